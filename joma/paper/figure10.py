"""Figure 10: single neurons that fire for several unrelated contexts, with the tokens that the query attends to.

There are two questions. Do the two contexts that fire a neuron most attend to unrelated tokens? That is what the
figure shows, and chance gives it too. Do the contexts of a neuron fall into several patterns, each of which recurs?
That is superposition. Both are asked of a small GPT-NeoX trained here, of the same before training, and with neurons
and contexts shuffled. The unit is the model: one seed decides nothing.

`figure10-public` counts, in Pythia, the neurons that fire for both texts of each of the paper's pairs. Which tokens the
paper prints in bold, and at which position it reads a neuron, its text does not say. Here every position but the first
counts.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from joma.charts import Chart, bars, beside
from joma.claims import Number, claim
from joma.data.text import Corpus
from joma.measure.superposition import (
    Attended,
    Firing,
    SuperpositionResult,
    overlaps,
    profile_roots,
    superposed_neurons,
)
from joma.paper import neox
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, one_thread
from joma.paper.neox import NeoxConfig, hub_missing, transformers_missing
from joma.probe.hub import hub_errors
from joma.probe.neurons import NeuronReading, read_neurons
from joma.probe.text import quiet_transformers
from joma.store import Store, Task, Workspace

TRAINED, UNTRAINED, SHUFFLED = "trained", "untrained", "contexts shuffled"
NETWORKS = (TRAINED, UNTRAINED, SHUFFLED)
RELATED = 0.2
"""Overlap of what two contexts attend to from which they are related."""
LEAST_SHARE = 0.05
"""Share of neurons with a pair of unrelated contexts from which the paper's examples are no exceptions."""
MOST_NEURONS, PER_PATTERN, MOST_TOKENS, SHOWN_WORDS = 12, 3, 4, 12
"""Neurons in the table of examples, contexts of each pattern, attended tokens and last words of each context."""
READ_AT_ONCE = 128
LOOK_SECONDS = 4e-7
"""For each neuron and context, about, on one core; it is more where most neurons fire."""
RANDOM_SETS, SHUFFLE = 0, 1
"""Seeds, the same for all models."""
COUNTS = ("several_patterns", "num_neurons")
"""Columns that are reported as counts; others are means over neurons."""
SOURCE = "Appendix, Figure 10 and Eqn 60"
UNTRAINED_REVISION = "step0"
"""Pythia as it was before its first step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure10Config:
    """The model of figure 7, and the contexts."""

    model: NeoxConfig
    num_contexts: int
    """Contexts, at most as many as the validation text has."""
    length: int
    """Tokens of a context; the neuron is read at the last."""
    seeds: tuple[int, ...] = (0,)
    """One model for each."""


def compute(config: Figure10Config, store: Store) -> Measured:
    """Look for patterns in the neurons of one model for each seed."""
    corpus = neox.first_text(config.model)
    contexts = contexts_of(corpus.valid, config)
    looks = 3 * config.model.depth * neox.EXPANSION * config.model.width * len(contexts)
    tasks = [
        Task(
            name=f"neurons of a GPT-NeoX, seed {seed}",
            key={"model": asdict(model), "text": corpus.hash, "contexts": [config.num_contexts, config.length]},
            work=partial(_measure, model=model, corpus=corpus, contexts=contexts),
            seconds=config.model.seconds(store.device) + LOOK_SECONDS * looks,
            kind="neox neurons",
            precision=config.model.precision,
        )
        for seed in config.seeds
        for model in [replace(config.model, seed=seed)]
    ]
    facts = {"text": corpus.name, "num_contexts": len(contexts), "length": config.length}
    found = gathered(store, tasks)
    return Measured(facts=facts, **found) if found else found


def contexts_of(tokens: Int64[Tensor, " tokens"], config: Figure10Config) -> Int64[Tensor, "C L"]:
    """Cut the text into pieces that do not overlap, spread evenly over it."""
    pieces = tokens[: len(tokens) // config.length * config.length].reshape(-1, config.length)
    kept = np.linspace(0, len(pieces) - 1, min(config.num_contexts, len(pieces))).round().astype(int)
    return pieces[torch.from_numpy(kept)]


def _measure(
    space: Workspace, model: NeoxConfig, corpus: Corpus, contexts: Int64[Tensor, "C L"]
) -> dict[str, pd.DataFrame]:
    """Train a model, read its neurons at the last position of each context before and after, and look for patterns."""
    training = replace(space, progress=lambda share, doing: space.progress(share / 2, doing))
    layers, examples = [], {}
    with one_thread():
        *_, (_, trained) = neox.train(model, corpus, training)
        networks = {TRAINED: trained, UNTRAINED: neox.new_model(model, corpus).to(space.device)}
        inputs = {"input_ids": contexts, "use_cache": False}
        readings = {
            name: [(each.layer, each.activations, each.attended) for each in found.layers]
            for name, network in networks.items()
            for found in [read_neurons(network.eval(), inputs, at_once=READ_AT_ONCE)]
        }
        order = torch.randperm(len(contexts), generator=torch.Generator().manual_seed(SHUFFLE))
        readings[SHUFFLED] = [(layer, values[order], seen) for layer, values, seen in readings[TRAINED]]
        todo = [(name, *found) for name, of in readings.items() for found in of]
        for number, (name, layer, activations, attended) in enumerate(todo):
            space.progress(0.6 + 0.4 * number / len(todo), f"looking for patterns, {name}, layer {layer}")
            generator = torch.Generator().manual_seed(RANDOM_SETS)
            found = superposed_neurons(activations, attended, generator=generator, related=RELATED)
            row = {"seed": model.seed, "network": name, "layer": layer, "num_neurons": len(found.neuron)}
            row |= {"num_silent": found.num_silent_neurons, "one_pattern": int((found.num_patterns == 1).sum())}
            row |= {"several_patterns": int((found.num_patterns > 1).sum()), "score": found.average}
            pairs = unrelated_pairs(activations[:, found.neuron], found.attended)
            layers.append(row | {"excess": found.excess, "error": found.error, "unrelated_pairs": pairs})
            if name == TRAINED:
                examples[layer] = found
    neurons = top_neurons(examples, contexts, corpus.vocabulary).assign(seed=model.seed)
    return {"layers": pd.DataFrame(layers), "neurons": neurons}


def unrelated_pairs(activations: Float[Tensor, "C J"], attended: Attended) -> float:
    """Share of the neurons whose two strongest contexts attend to unrelated tokens."""
    strongest = activations.topk(2, dim=0).indices.numpy()
    roots = profile_roots(attended)
    overlap = roots[strongest[0]].multiply(roots[strongest[1]]).sum(axis=1)
    return float((np.asarray(overlap) < RELATED).mean())


def top_neurons(
    found: dict[int, SuperpositionResult], contexts: Int64[Tensor, "C L"], vocabulary: tuple[str, ...]
) -> pd.DataFrame:
    """Return the neurons with the highest scores, or else most patterns, with the contexts of each pattern."""
    ranked = sorted(
        (-score, -patterns, layer, neuron)
        for layer, of in found.items()
        for score, patterns, neuron in zip(of.score.tolist(), of.num_patterns.tolist(), of.neuron.tolist(), strict=True)
        if patterns
    )[:MOST_NEURONS]
    rows = [
        (
            *(layer, neuron, -score, -patterns, top.pattern, top.activation),
            " ".join(vocabulary[number] for number in contexts[top.context, -SHOWN_WORDS:].tolist()),
            ", ".join(f"{vocabulary[number]} {share:.2f}" for number, share in top.tokens),
        )
        for score, patterns, layer, neuron in ranked
        for top in found[layer].top_contexts(neuron, per_pattern=PER_PATTERN, num_tokens=MOST_TOKENS)
        if top.pattern >= 0
    ]
    columns = ["layer", "neuron", "score", "num_patterns", "pattern", "activation", "context", "attended"]
    return pd.DataFrame(rows, columns=columns)


PAIRS: list[dict[str, str]] = tomllib.loads(
    resources.files("joma.paper").joinpath("figure10_texts.toml").read_text(encoding="utf-8")
)["pair"]
"""Two texts that fire one neuron, `first` and `second`, as the paper prints them; `model` and `name` of the pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicTextsConfig:
    """Models of the hub."""

    models: tuple[str, ...] = tuple(dict.fromkeys(pair["model"] for pair in PAIRS))


def compute_public(config: PublicTextsConfig, store: Store) -> Measured:
    """Count for each pair the neurons that fire for both texts, in the models as trained and as they began."""
    tasks = [
        Task(
            f"reading {name}", {"model": name, "texts": PAIRS}, partial(_read_public, name=name), 60.0, "public models"
        )
        for name in config.models
    ]
    return gathered(store, tasks)


def _read_public(space: Workspace, name: str) -> dict[str, pd.DataFrame]:
    from transformers import AutoTokenizer, GPTNeoXForCausalLM

    rows: list[dict[str, Any]] = []
    for number, revision in enumerate(("main", UNTRAINED_REVISION)):
        space.progress(number / 2, f"reading {name} {revision}")
        with quiet_transformers(), hub_errors(name):
            model: Any = GPTNeoXForCausalLM.from_pretrained(name, revision=revision, dtype=torch.float32)
            tokenizer: Any = AutoTokenizer.from_pretrained(name, revision=revision)
        layers, text_of = every_position(model.to(space.device).eval(), tokenizer)
        rows += [
            {"model": name, "revision": revision, "pair": pair["name"]} | _shared(layers, text_of, at, tokenizer)
            for at, pair in enumerate(PAIRS)
            if pair["model"] == name
        ]
    return {"pairs": pd.DataFrame(rows)}


def every_position(model: Any, tokenizer: Any) -> tuple[Sequence[NeuronReading], np.ndarray]:
    """Read every position of all texts but their first, as the last one of a context; and the text that each is in."""
    ids = [torch.tensor(tokenizer(pair[which])["input_ids"]) for pair in PAIRS for which in ("first", "second")]
    longest = max(map(len, ids))

    def padded(rows: Tensor) -> Tensor:
        return nn.functional.pad(rows, (0, longest - rows.shape[1]))

    tokens = torch.cat([padded(each.expand(len(each) - 1, -1)) for each in ids])
    visible = torch.cat([padded(torch.ones(len(each), len(each)).tril()[1:]) for each in ids])
    found = read_neurons(model, {"input_ids": tokens, "attention_mask": visible.long(), "use_cache": False})
    return found.layers, np.repeat(np.arange(len(ids)), [len(each) - 1 for each in ids])


def _shared(layers: Sequence[NeuronReading], text_of: np.ndarray, at: int, tokenizer: Any) -> dict[str, Any]:
    """Count the neurons whose strongest firing positions in the texts of a pair attend to unrelated tokens.

    Of the one that fires most, by the smaller of its two activations, it shows what both attend to.
    """
    found = []
    for layer in layers:
        roots, activations = profile_roots(layer.attended), layer.activations.double().numpy()
        for neuron, activation in enumerate(activations.T):
            context = Firing.of(activation).context  # strongest first
            pair = np.concatenate([context[text_of[context] == text][:1] for text in (2 * at, 2 * at + 1)])
            if len(pair) > 1 and overlaps(roots, pair)[0, 1] < RELATED:
                found.append((float(activation[pair].min()), layer, neuron, pair))
    count = {"num_shared": len(found), "num_neurons": sum(layer.activations.shape[1] for layer in layers)}
    if not found:
        return count | {"layer": -1, "neuron": -1, "first": "", "second": ""}
    _, layer, neuron, pair = max(found, key=lambda each: each[0])
    first, second = (
        ", ".join(f"{tokenizer.decode([token]).strip()} {share:.2f}" for token, share in tokens)
        for tokens in (layer.attended.strongest(int(position), MOST_TOKENS - 1) for position in pair)
    )
    return count | {"layer": layer.layer, "neuron": neuron, "first": first, "second": second}


def _next_to(t: Measured, name: str, column: str, control: str, **fields: Any) -> Number:
    """Return a number of the trained models, over all their neurons, next to that of a control."""
    layers = t.layers if "seed" in t.layers else t.layers.assign(seed=0)  # version 0.1 trained one model
    means = layers[["excess", "unrelated_pairs"]].mul(layers["num_neurons"], axis=0)
    sums = layers.assign(**means).groupby(["network", "seed"]).sum(numeric_only=True)
    if column not in COUNTS:
        sums[column] /= sums["num_neurons"]
    values, others = sums.loc[TRAINED, column], sums.loc[control, column]
    return Number.mean(name, values, control=others, control_name=control, paired=True, **fields)


@claim("figure10-pairs", "One neuron, two unrelated contexts", source=SOURCE)
def pair_numbers(t: Measured) -> Iterator[Number]:
    """The same neuron can be activated by multiple irrelevant combinations of tokens."""
    name = "neurons whose two strongest contexts attend to unrelated tokens"
    limit: dict[str, Any] = {"at_least": LEAST_SHARE, "unit": "share of the neurons"}
    for control, key in ((UNTRAINED, "untrained"), (SHUFFLED, "shuffled")):
        yield _next_to(t, name, "unrelated_pairs", control, key=key, **limit)


@claim("figure10-patterns", "One neuron, several patterns", source=SOURCE)
def pattern_numbers(t: Measured) -> list[Number]:
    """One weight vector holds several query tokens with their pattern templates."""
    name, silent = "superposition above that of random contexts", "silent neurons, which can have no pattern"
    return [
        _next_to(t, name, "excess", SHUFFLED, at_least=0.0, unit="mean score", key="score"),
        _next_to(t, name, "excess", UNTRAINED, at_least=0.0, unit="mean score"),
        _next_to(t, "neurons with several patterns", "several_patterns", SHUFFLED, key="several"),
        _next_to(t, "neurons that vary", "num_neurons", UNTRAINED, key="neurons"),
        _next_to(t, silent, "num_silent", UNTRAINED, unit="share of the neurons", key="silent"),
    ]


@claim("figure10-public", "The paper's eight texts in Pythia", source=SOURCE)
def public_numbers(t: Measured) -> list[Number]:
    """The same neuron is activated by both texts of each pair, which attend to unrelated tokens."""
    name = "neurons that fire for both texts"
    about: dict[str, Any] = {"at_least": 1.0, "control_name": "before training", "unit": "neurons"}
    counts = t.pairs.pivot(index=["model", "pair"], columns="revision", values="num_shared")
    return [
        Number.exact(name, row["main"], control=row[UNTRAINED_REVISION], setting=f"{model}, {pair}", **about)
        for (model, pair), row in counts.iterrows()
    ]


CLAIMS = (pair_numbers, pattern_numbers)
PUBLIC_CLAIMS = (public_numbers,)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw how many neurons have patterns, and for how many the strongest contexts are unrelated, by layer."""
    means = t.layers.groupby(["network", "layer"], sort=False, as_index=False).mean(numeric_only=True)
    means = means.astype({"layer": str})
    panels = [
        bars(means, "layer", column, color="network", order=NETWORKS, title=title, labels={column: unit})
        for column, title, unit in (
            ("several_patterns", "several patterns", "neurons"),
            ("one_pattern", "one pattern", "neurons"),
            ("unrelated_pairs", "two strongest contexts unrelated", "share of the neurons"),
        )
    ]
    yield beside(*panels, **caption("figure10"))


EXPERIMENTS = (
    Experiment(
        **catalogue("figure10"),
        presets={
            "quick": Figure10Config(model=neox.QUICK, num_contexts=1000, length=neox.QUICK.window),
            "full": Figure10Config(model=neox.FULL, num_contexts=3000, length=64),
        },
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        needs=lambda config, device: transformers_missing(),
        in_tasks=True,
    ),
    Experiment(
        **catalogue("figure10-public"),
        presets={"quick": PublicTextsConfig(), "full": PublicTextsConfig()},
        compute=compute_public,
        claims=PUBLIC_CLAIMS,
        charts=lambda t: [],
        needs=lambda config, device: hub_missing(),
        in_tasks=True,
    ),
)
