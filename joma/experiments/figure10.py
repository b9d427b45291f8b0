"""Figure 10: single neurons that fire for several unrelated contexts, with the tokens that the query attends to.

Two questions are told apart. Do the contexts that fire a neuron most attend to unrelated tokens? That is what the
figure shows, and chance gives it too. Do they fall into several patterns, each of which recurs? That is superposition.
Both are asked of a model trained here, of the same before training, and with neurons and contexts dealt anew.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from joma.engine.config import digest
from joma.experiments.cache import encode
from joma.experiments.experiment import FAILURE, Experiment, Result, Workplace
from joma.experiments.figure7 import FULL_NEOX, QUICK_NEOX
from joma.experiments.figure10_public import COLUMNS, PAIRS, RELATED, read_public
from joma.experiments.figure10_verdicts import (
    SHUFFLED,
    SOURCE,
    TRAINED,
    UNTRAINED,
    pairs_verdict,
    patterns_verdict,
    public_verdicts,
)
from joma.experiments.hub_access import hub_missing, transformers_missing
from joma.experiments.neox_series import (
    EXPANSION,
    SETUP_SECONDS,
    NeoxConfig,
    NeoxSeries,
    series_of,
    shared_folder,
    train_series,
    training_seconds,
)
from joma.experiments.threads import one_thread
from joma.experiments.timetable import Piece, Tell
from joma.figures.chart import Bars, Chart, Panel
from joma.measure.superposition import Attended, Profiles, SuperpositionResult, superposed_neurons
from joma.probe.neurons import read_neurons
from joma.store.files import write_bytes
from joma.verdicts import Verdict

MOST_NEURONS = 12
"""Neurons in the table with their contexts."""
PER_PATTERN, MOST_TOKENS, SHOWN_WORDS = 3, 4, 12
"""Contexts of each pattern, attended tokens of each context, and its last words, in that table."""
READ_AT_ONCE = 128
NUM_NETWORKS = 3
"""Trained, untrained and shuffled."""
LOOK_SECONDS = 4e-7
"""For each neuron and context, about, on one core of the CPU; it is more where most neurons fire."""
PUBLIC_SECONDS = 60.0
"""For a model of the hub: said and not counted, since it is the download that takes the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The model and the contexts."""

    neox: NeoxConfig
    """The model: that of figure 7, trained once for both."""
    num_contexts: int
    """Contexts, at most as many as the validation text has."""
    length: int
    """Tokens of a context; the neuron is read at the last."""
    public: tuple[str, ...] = ()
    """Models of the hub, if it can be reached."""
    small: bool
    seed: int = 0
    """Of random sets and shuffles."""


def quick() -> Config:
    """The small GPT-NeoX of figure 7 on a thousand contexts of Python's documentation."""
    return Config(neox=QUICK_NEOX, num_contexts=1000, length=QUICK_NEOX.window, small=True)


def full() -> Config:
    """The larger GPT-NeoX of figure 7 on WikiText-2, and Pythia on the paper's texts if the hub can be reached now."""
    return Config(
        neox=FULL_NEOX, num_contexts=3000, length=64, public=() if hub_missing() else tuple(PAIRS), small=False
    )


def missing(config: Config, workplace: Workplace) -> str:
    """Return what the model that is trained here lacks; Pythia has a verdict of its own."""
    return transformers_missing()


def compute(config: Config, workplace: Workplace) -> Result:
    """Look for patterns in the neurons of the model trained here, and of the hub's where it can be reached."""
    with one_thread(workplace.device):
        return _compute(config, workplace)


def _compute(config: Config, workplace: Workplace) -> Result:
    series = series_of(config.neox, shared_folder(workplace))
    contexts = _contexts(series.corpus.valid, config)
    ours = _kept_tables(config, series, workplace)
    pairs = {name: workplace.folder.parent / f"pairs-{digest(name)}.parquet" for name in config.public}
    failures: dict[str, str] = {}
    workplace.work_off(
        [
            *([] if ours.are_there else [_piece(config, series, contexts, ours, workplace.device)]),
            *(
                _public_piece(name, workplace.device, path, failures)
                for name, path in pairs.items()
                if not path.exists()
            ),
        ]
    )
    found = [pd.read_parquet(path) for path in pairs.values() if path.exists()]
    return Result(
        tables={
            "layers": pd.read_parquet(ours.layers),
            "neurons": pd.read_parquet(ours.neurons),
            "pairs": pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=COLUMNS),
        },
        facts={
            "text": series.corpus.name,
            "trained_on": series.trained_on,
            "num_contexts": len(contexts),
            "length": config.length,
            "public_missing": _why_no_public(config),
            **{f"{FAILURE}{name}": reason for name, reason in failures.items()},
        },
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _KeptTables:
    """Where lies what was found in the model trained here: neither its weights nor its readings are needed then."""

    layers: Path
    neurons: Path

    @property
    def are_there(self) -> bool:
        return self.layers.exists() and self.neurons.exists()


def _kept_tables(config: Config, series: NeoxSeries, workplace: Workplace) -> _KeptTables:
    """Name the tables by all that they depend on, which models of the hub are not part of."""
    key = digest([series.key, config.num_contexts, config.length, config.seed])
    layers, neurons = (workplace.folder.parent / f"{name}-{key}.parquet" for name in ("layers", "neurons"))
    return _KeptTables(layers=layers, neurons=neurons)


def _piece(config: Config, series: NeoxSeries, contexts: Int64[Tensor, "C L"], kept: _KeptTables, device: str) -> Piece:
    """Train the model or find it trained, read its neurons before and after training, and look for patterns."""
    neox = config.neox
    num_looks = NUM_NETWORKS * neox.depth * EXPANSION * neox.width * len(contexts)
    return Piece(
        kind="networks",
        name="neurons of a small GPT-NeoX",
        seconds=training_seconds(series, device) + LOOK_SECONDS * num_looks,
        setup=SETUP_SECONDS,
        work=lambda tell: _keep_tables(config, series, contexts, kept, device, tell),
    )


def _keep_tables(
    config: Config, series: NeoxSeries, contexts: Int64[Tensor, "C L"], kept: _KeptTables, device: str, tell: Tell
) -> None:
    train_series(config.neox, series.folder.parent, device=device, tell=lambda share, doing: tell(share / 2, doing))
    steps = {TRAINED: config.neox.num_steps, UNTRAINED: 0}
    readings = {name: readings_of(series.model(step, device), contexts) for name, step in steps.items()}
    readings[SHUFFLED] = _dealt_anew(readings[TRAINED], config.seed)
    found = dict(_look(readings, config.seed, lambda share, doing: tell(0.6 + 0.4 * share, doing)))
    layers = [
        {"network": name, "layer": layer} | _numbers(readings[name][layer][0], of)
        for (name, layer), of in found.items()
    ]
    trained = {layer: of for (name, layer), of in found.items() if name == TRAINED}
    write_bytes(kept.layers, encode(pd.DataFrame(layers)))
    write_bytes(kept.neurons, encode(_top_neurons(trained, contexts, series.corpus.vocabulary)))


def _public_piece(name: str, device: str, pairs: Path, failures: dict[str, str]) -> Piece:
    """Read a model of the hub, and keep what it shows; one that failed is read again by the next call."""

    def work(tell: Tell) -> None:
        found, failed = read_public((name,), device, tell)
        failures.update(failed)
        if not failed:
            write_bytes(pairs, encode(found))

    return Piece(kind="public models", name=f"reading {name}", seconds=PUBLIC_SECONDS, work=work)


TOKEN_AND_SHARE = re.compile(r"(\S+) (\d\.\d+)")
"""An attended token and its share, as the table of neurons lists them."""
Readings = dict[int, tuple[Tensor, Attended]]
"""Activations of each layer, contexts by neurons, and what the contexts attend to."""


def readings_of(model: nn.Module, contexts: Int64[Tensor, "C L"]) -> Readings:
    """Read the neurons at the last position of each context, in all layers that see attention."""
    found = read_neurons(model, {"input_ids": contexts, "use_cache": False}, at_once=READ_AT_ONCE)
    return {each.layer: (each.activations, each.attended) for each in found.layers}


def _dealt_anew(readings: Readings, seed: int) -> Readings:
    """Give every context the neurons of another, the same in all layers."""
    count = next(iter(readings.values()))[1].num_contexts
    order = torch.randperm(count, generator=_generator(seed + 1))
    return {layer: (activations[order], attended) for layer, (activations, attended) in readings.items()}


def _look(
    readings: dict[str, Readings], seed: int, tell: Tell
) -> Iterator[tuple[tuple[str, int], SuperpositionResult]]:
    """Look for patterns in each layer of each network."""
    todo = [(name, layer) for name, of in readings.items() for layer in of]
    for number, (name, layer) in enumerate(todo):
        tell(number / len(todo), f"looking for patterns, {name}, layer {layer}")
        activations, attended = readings[name][layer]
        found = superposed_neurons(activations, attended, generator=_generator(seed), related=RELATED)
        yield (name, layer), found


def _contexts(tokens: Int64[Tensor, " tokens"], config: Config) -> Int64[Tensor, "C L"]:
    """Cut the text into pieces that do not overlap, spread evenly over it."""
    pieces = tokens[: len(tokens) // config.length * config.length].reshape(-1, config.length)
    kept = np.linspace(0, len(pieces) - 1, min(config.num_contexts, len(pieces))).round().astype(int)
    return pieces[torch.from_numpy(kept)]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _numbers(activations: Float[Tensor, "C J"], found: SuperpositionResult) -> dict[str, float | int]:
    """Return what is kept of one layer of one network."""
    patterns = found.num_patterns
    return {
        "num_neurons": len(found.neuron),
        "num_silent": found.num_silent_neurons,
        "one_pattern": int((patterns == 1).sum()),
        "several_patterns": int((patterns > 1).sum()),
        "score": found.average,
        "excess": found.excess,
        "error": found.error,
        "unrelated_pairs": unrelated_pairs(activations[:, found.neuron], found.attended),
    }


def unrelated_pairs(activations: Float[Tensor, "C J"], attended: Attended) -> float:
    """Share of the neurons whose two strongest contexts attend to unrelated tokens."""
    strongest = activations.topk(2, dim=0).indices.numpy()
    roots = Profiles.of(attended).roots
    overlap = roots[strongest[0]].multiply(roots[strongest[1]]).sum(axis=1)
    return float((np.asarray(overlap) < RELATED).mean())


NEURON_COLUMNS = ["layer", "neuron", "score", "num_patterns", "pattern", "activation", "context", "attended"]


def _top_neurons(
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
        (layer, neuron, -score, -patterns, *row)
        for score, patterns, layer, neuron in ranked
        for row in _contexts_of(found[layer], neuron, contexts, vocabulary)
    ]
    return pd.DataFrame(rows, columns=NEURON_COLUMNS)


def _contexts_of(
    found: SuperpositionResult, neuron: int, contexts: Int64[Tensor, "C L"], vocabulary: tuple[str, ...]
) -> Iterator[tuple[int, float, str, str]]:
    for top in found.top_contexts(neuron, per_pattern=PER_PATTERN, num_tokens=MOST_TOKENS):
        if top.pattern >= 0:
            words = " ".join(vocabulary[number] for number in contexts[top.context, -SHOWN_WORDS:].tolist())
            attended = ", ".join(f"{vocabulary[number]} {share:.2f}" for number, share in top.tokens)
            yield top.pattern, top.activation, words, attended


def _why_no_public(config: Config) -> str:
    if config.public:
        return ""
    return "It is part of the preset `full`, and needs the Hugging Face hub." if config.small else hub_missing()


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge pairs of contexts and patterns in the model trained here, and Pythia or that it is not there."""
    return (pairs_verdict(result), patterns_verdict(result), *public_verdicts(result))


def draw(result: Result) -> tuple[Chart, ...]:
    """Draw how many neurons have patterns, and for how many the strongest contexts are unrelated, by layer."""
    layers = result.tables["layers"]
    panels = [
        Panel(label, "layer", unit, list(_bars(layers, column)))
        for column, label, unit in (
            ("several_patterns", "Neurons with several patterns", "neurons"),
            ("one_pattern", "Neurons with one pattern", "neurons"),
            ("unrelated_pairs", "Two strongest contexts unrelated", "share of the neurons"),
        )
        if layers[column].any()
    ]
    none = "" if layers["several_patterns"].any() else "No neuron has several patterns. "
    return (
        Chart(
            id="figure10",
            title="Superposed neurons of a small GPT-NeoX",
            caption=(
                f"Neurons of a model trained here on {result.facts['text']} (one seed), before and after training, and "
                "with contexts shuffled. A pattern is a bundle of contexts that attend alike, larger than chance makes "
                f"it. {none}{_example(result.tables['neurons'])}Attention is that of the layer below: here, as in "
                "Pythia, MLP and attention of a layer run side by side."
            ),
            panels=panels,
        ),
    )


def _example(neurons: pd.DataFrame) -> str:
    """Show the neuron with the highest score: the context of each pattern that fires it most, and what that attends to.

    Empty where no neuron has several patterns.
    """
    own = neurons[neurons["num_patterns"] > 1]
    if own.empty:
        return ""
    own = own[(own["layer"] == own["layer"].iloc[0]) & (own["neuron"] == own["neuron"].iloc[0])]
    strongest = own.loc[own.groupby("pattern")["activation"].idxmax()]
    quoted = (TOKEN_AND_SHARE.sub(r"“\1” \2", attended) for attended in strongest["attended"])
    shown = "; ".join(
        f"“… {context}” attends to {attended}" for context, attended in zip(strongest["context"], quoted, strict=True)
    )
    return f"The highest score has neuron {own['neuron'].iloc[0]} of layer {own['layer'].iloc[0]}: {shown}. "


def _bars(layers: pd.DataFrame, column: str) -> Iterator[Bars]:
    for name in (TRAINED, UNTRAINED, SHUFFLED):
        own = layers[layers["network"] == name].sort_values("layer")
        yield Bars(name, [str(layer) for layer in own["layer"]], own[column])


EXPERIMENT = Experiment(
    id="figure10",
    title="Superposition: one neuron, several patterns",
    place=SOURCE,
    question=(
        "Do single hidden neurons fire for several contexts whose attended tokens are unrelated, more so than in a "
        "network that was not trained?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=missing,
    in_pieces=True,
)
