r"""Which part of the attention logits raises the entropy again, and is it the weights or the states?

Two questions to figure 6's model at depth 1, whose attention reads $x_i = \sqrt d\,e_i + p_i$ in evaluation. Split x
into mean token, token rest, mean position and position rest, with means over all tokens of the validation windows and
over the positions of a window. With the biases, queries and keys have five parts each. Products with a mean of the keys
or their bias depend on the query alone and drop out of the softmax. Ten terms are left, query × key, such as token ×
position, and sums of them. For each checkpoint: the spread of a term over a row's visible keys, the entropy of the
softmax of that term alone, and the entropy without it.

The theory's logits depend on the tokens of query and key. Asked is whether this term alone rises as all terms do. The
control of token × token is position × token: it has the same keys, so larger or smaller keys move it as much, and the
query's token alone tells them apart. The same is asked with the means left in the queries.

Transplant, without training: queries and keys (weights and biases) of the checkpoint at the dip on the states of the
end, and the reverse. What counts as carried by one of the two is the smaller share of the two orders.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.charts import Chart, bars, lines
from joma.claims import Number, claim
from joma.engine.grid import runs_of
from joma.engine.snapshots import CHECKPOINTS, load_snapshot
from joma.engine.sources import source_of, with_vocabulary
from joma.measure.entropy import logits_entropy
from joma.models.batch import LayerReading, Parameters
from joma.models.decoder import EMBEDDING, POSITIONS, Decoder
from joma.models.decoder_config import DecoderConfig
from joma.models.functional import entrance
from joma.paper import rebound_cause
from joma.paper.experiment import Experiment, Measured, captions, over_seeds, select
from joma.paper.figures6_8 import EMBEDDED, ENTROPY, PAPER, VISIBLE, WIKITEXT2, measured, needs, one_task
from joma.store import Store, Task, Workspace

TOKEN, POSITION, MEAN_TOKEN, MEAN_POSITION, BIAS = "token", "position", "mean token", "mean position", "bias"
COMMON = (MEAN_TOKEN, MEAN_POSITION, BIAS)
"""Parts that all tokens and positions share: on the side of the keys they drop out of the softmax."""
QUERIES = {name: (name,) for name in (TOKEN, POSITION, *COMMON)} | {
    "common": COMMON,
    "uncentred token": (TOKEN, MEAN_TOKEN),
    "uncentred position": (POSITION, MEAN_POSITION),
}
TERMS = {f"{query} × {key}": [(part, key) for part in of] for query, of in QUERIES.items() for key in (TOKEN, POSITION)}
"""The pairs of parts that each term is the sum of."""
FULL = "all terms"
JUDGED = {
    "centred": ("token × token", "position × token"),
    "uncentred": ("uncentred token × token", "uncentred position × token"),
}
"""The theory's term and its control."""
START, DIP, END = "start", "dip", "end"
WEIGHTS, STATES = "queries and keys", "states"
ENOUGH = 2 / 3
"""A term carries the rise if alone it rises by at least this share of the rise of all terms."""
NAMED = 0.7
"""Weights or states carry the rise if at least this share of it is due to them in both orders."""
EXACT = 1e-10
"""Largest error of the sum of all terms, relative to the largest logit of the model."""
SECONDS_OF_A_STEP = 0.025
SETTINGS: dict[str, Any] = {"vocabulary_cap": 2000, "batch": 10, "steps": 7000, "epochs": None, "precision": "fp32"}
SETTINGS |= {"measure_every": 100, "measure_spacing": "early", "valid_windows": 10, "checkpoint_every": 250}
ZERO = torch.zeros(())
Terms = dict[tuple[str, str], Float[Tensor, "n H l L"]]
"""Products of a part of the queries with one of the keys; n and l are 1 where all windows or rows have the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReboundPartsConfig:
    """Runs of depth 1; the last checkpoint is the end."""

    text: str = WIKITEXT2
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)
    rate: float = 3e-4
    seeds: tuple[int, ...] = (131, 132, 133, 134)
    least: float = VISIBLE
    """Change of the entropy, in nats, below which no shares are taken."""
    needs_gpu: bool = False


QUICK_SETTINGS = {**rebound_cause.QUICK.settings, "checkpoint_every": 5}
QUICK = ReboundPartsConfig(text=EMBEDDED, rate=3e-3, seeds=(1, 2), least=0.01, settings=QUICK_SETTINGS)


def split(
    config: DecoderConfig, states: Parameters, weights: Parameters, tokens: Int[Tensor, "N L"]
) -> tuple[Terms, Float[Tensor, "n H l 1"]]:
    """Return the terms of the first layer's logits that the softmax sees, and the sum of those of the query alone.

    Args:
        config: A model with norms after and positions that are added.
        states: Parameters of one run, with its axis, whose embedding and positions are read.
        weights: Parameters whose queries and keys are applied.
        tokens: Windows, over which means are taken too.
    """
    rows = config.embedding_scale * states[EMBEDDING][0][tokens]
    places = entrance(config, rows.new_zeros(1, 1, *rows.shape[1:]), states.get(POSITIONS), None)[0]
    mean_token, mean_place = rows.mean(dim=(0, 1), keepdim=True), places.mean(dim=1, keepdim=True)
    parts = {TOKEN: rows - mean_token, POSITION: places - mean_place, MEAN_TOKEN: mean_token, MEAN_POSITION: mean_place}
    matrices = weights["blocks.0.attention.qkv.weight"][0].chunk(3)
    biases = weights.get("blocks.0.attention.qkv.bias", rows.new_zeros(1, 3 * config.width))[0].chunk(3)
    sides = []
    for matrix, bias in zip(matrices[:2], biases[:2], strict=True):
        side = {part: x @ matrix.T for part, x in parts.items()} | {BIAS: bias[None, None]}
        sides.append({part: x.unflatten(-1, (config.heads, -1)).transpose(1, 2) for part, x in side.items()})
    (q, k), scale = sides, config.attention_scale * config.head_width**-0.5
    kept = {(part, key): scale * q[part] @ k[key].mT for part in q for key in (TOKEN, POSITION)}
    return kept, scale * sum(q.values(), ZERO) @ sum((k[part] for part in COMMON), ZERO).mT


def entropy_and_spread(logits: Float[Tensor, "n H l L"]) -> tuple[float, float]:
    """Return both over the visible keys of a row with a causal mask, averaged over windows, heads and rows."""
    visible = torch.ones(2 * logits.shape[-1:], dtype=torch.bool).tril()
    found = logits_entropy(torch.where(visible, logits, -torch.inf), companions=False, moments=True)
    assert found.logit_variance is not None
    return float(found.entropy.mean()), float(found.logit_variance.sqrt().mean())


def taken_apart(
    config: DecoderConfig, own: Parameters, end: Parameters, tokens: Int[Tensor, "N L"]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return a row for each term of a checkpoint, and one with its transplants from and to the end."""
    (kept, of_query), decoder, found = split(config, own, own, tokens), Decoder(config), list[LayerReading]()
    decoder.hidden(own, decoder.embed(own, tokens[None]), tokens[None], tap=found.append)
    assert found[0].q is not None and found[0].k is not None
    model, logits, rows = found[0].scale * found[0].q @ found[0].k.mT, sum(kept.values(), ZERO), []
    for name, pairs in {FULL: list(kept), **TERMS}.items():
        term = sum((kept[pair] for pair in pairs), ZERO)
        (alone, spread), (without, _) = map(entropy_and_spread, (term, logits - term))
        rows.append({"term": name, "spread": spread, "alone": alone, "without": without})
    changed = {"later_weights": split(config, own, end, tokens), "later_states": split(config, end, own, tokens)}
    moved = {name: entropy_and_spread(sum(terms.values(), ZERO))[0] for name, (terms, _) in changed.items()}
    error = (logits + of_query - model).abs().max() / model.abs().max()
    return rows, {"entropy": rows[0]["alone"], **moved, "error": float(error)}


def _work(trained: Task, space: Workspace) -> dict[str, pd.DataFrame]:
    """Train, then take every checkpoint apart."""
    tables = trained.work(replace(space, progress=lambda share, doing: space.progress(0.9 * share, doing)))
    terms, transplants = [], []
    for run in runs_of(trained.key["settings"], "figure6"):
        config = with_vocabulary(run.config)
        tokens = torch.cat([batch.tokens[0] for batch in source_of([config]).validation()])
        end: Parameters = {}
        for path in sorted((space.folder / run.name / CHECKPOINTS).glob("*.safetensors"), reverse=True):
            snapshot = load_snapshot(path)
            space.progress(0.9, f"{run.name}, step {snapshot.step}")
            own = {name: tensor.double()[None] for name, tensor in snapshot.tensors.items()}
            end = end or own
            with torch.no_grad():
                rows, moved = taken_apart(config.model, own, end, tokens)
            about = {"seed": config.seed, "step": snapshot.step}
            terms += [about | row for row in rows]
            transplants.append(about | moved)
    return tables | {"terms": pd.DataFrame(terms), "transplants": pd.DataFrame(transplants)}


def compute(config: ReboundPartsConfig, store: Store) -> Measured:
    """Train all runs and take their checkpoints apart, in one task; the checkpoints go when it is done."""
    trained = one_task(config, store.device, PAPER, 1)
    key, seconds = {**trained.key, "what": "parts"}, SECONDS_OF_A_STEP * config.settings["steps"] * len(config.seeds)
    work = partial(_work, trained)
    return measured(store, [replace(trained, key=key, work=work, kind="parts of logits", seconds=seconds)])


def at(t: Measured, table: str, when: str) -> pd.DataFrame:
    """Return the rows of a table at the start, dip or end of each run, by seed and, in that of the terms, by term."""
    dips, steps = select(t.effects, metric=ENTROPY, layer=0).set_index("seed")["dip_step"], []
    for seed, own in t.transplants.groupby("seed")["step"]:
        nearest = own.iloc[(own - dips[seed]).abs().argmin()]
        steps.append({"seed": seed, "step": {START: own.min(), DIP: nearest, END: own.max()}[when]})
    return t[table].merge(pd.DataFrame(steps)).set_index(["seed", "term"] if table == "terms" else "seed")


def carried(t: Measured, column: str, first: str = DIP, last: str = END) -> pd.DataFrame:
    """Return the change of each term's entropy over that of all terms: a row for each seed, a column for each term."""
    change = (at(t, "terms", last) - at(t, "terms", first)).unstack()
    full = change["alone"][FULL]
    return change[column].div(full.where(full.abs() >= t.config.least), axis="index").dropna()


def factors(t: Measured) -> pd.DataFrame:
    """Return the shares of the rise that weights and states carry in the worse order, a row for each seed."""
    dip, end = at(t, "transplants", DIP), at(t, "transplants", END)
    rise = end["entropy"] - dip["entropy"]
    early = dip.sub(dip["entropy"], axis="index").div(rise.where(rise >= t.config.least), axis="index").dropna()
    weights, states = early["later_weights"], early["later_states"]
    return pd.DataFrame({WEIGHTS: np.minimum(weights, 1 - states), STATES: np.minimum(states, 1 - weights)})


@claim("rebound-token-token", "The part of the logits that the theory is about", source="Theorem 1; open question")
def token_numbers(t: Measured) -> Iterator[Number]:
    """The logits of the query's token and the key's token carry the rise of the entropy after the dip."""
    for what, first, last, limit in (("rise", DIP, END, ENOUGH), ("fall", START, DIP, None)):
        shares = carried(t, "alone", first, last)
        for setting, (term, other) in JUDGED.items():
            about: dict[str, Any] = {"at_least": limit, "unit": "share", "setting": setting, "key": f"{what}_{setting}"}
            about |= {"control": shares[other], "control_name": other, "paired": True}
            yield Number.mean(f"{what} of {term} alone", shares[term], **about)
    error = float(t.transplants["error"].max())
    yield Number.exact("largest error of the sum of the terms", error, at_most=EXACT, sanity=True, key="error")


def _share(t: Measured, own: str, other: str) -> Iterator[Number]:
    shares = factors(t)
    about: dict[str, Any] = {"control": shares[other], "control_name": other, "paired": True, "key": "share"}
    yield Number.mean(f"share of the rise, {own}", shares[own], at_least=NAMED, unit="share", **about)


@claim("rebound-weights", "Queries and keys carry the rise", source="Open question", ours=True)
def weight_numbers(t: Measured) -> Iterator[Number]:
    """The weights of queries and keys raise the entropy from the dip to the end, in both orders."""
    return _share(t, WEIGHTS, STATES)


@claim("rebound-states", "States carry the rise", source="Open question", ours=True)
def state_numbers(t: Measured) -> Iterator[Number]:
    """The states that queries and keys read raise the entropy from the dip to the end, in both orders."""
    return _share(t, STATES, WEIGHTS)


@claim("rebound-terms", "What each term of the logits does", source="Open question", primary=False, ours=True)
def term_numbers(t: Measured) -> Iterator[Number]:
    """The share of the rise of each term alone, the share that is left without it, and its spread."""
    tables = {name: carried(t, name) for name in ("alone", "without")}
    tables |= {f"spread, {when}": at(t, "terms", when)["spread"].unstack() for when in (DIP, END)}
    for (name, table), term in ((each, term) for term in TERMS for each in tables.items()):
        key = f"{name}_{term}".replace("spread, ", "").replace(" × ", "_").replace(" ", "_")
        yield Number.mean(f"{term}, {name}", table[term], unit="nats" if "spread" in name else "share", key=key)
    for when in (START, DIP, END):
        yield Number.mean(f"entropy, {when}", at(t, "transplants", when)["entropy"], unit="nats", key=when)
    for name in ("later_weights", "later_states"):
        yield Number.mean(f"entropy, dip, {name}", at(t, "transplants", DIP)[name], unit="nats", key=name)


CHARTS = {
    "rebound-terms": ("The terms of the logits over training", "Means over seeds; bands are two standard errors."),
    "rebound-common": ("The same, of queries that all tokens share", "Means over seeds; bands: two standard errors."),
    "rebound-transplants": ("Queries and keys on states of another checkpoint", "Bars are two standard errors."),
}


def charts(t: Measured) -> Iterator[Chart]:
    """Draw entropies and spreads of the terms over steps, and the four transplants of dip and end."""
    about, ends = captions(CHARTS), ("low", "high")
    columns = {"alone": "entropy, alone", "without": "entropy, without", "spread": "spread"}
    long = t.terms.rename(columns=columns).melt(["seed", "step", "term"], [*columns.values()], "what", "nats")
    common = [name for name in TERMS if name.startswith((*COMMON, "uncentred"))]
    for id, shown in (("rebound-terms", [name for name in TERMS if name not in common]), ("rebound-common", common)):
        own = over_seeds(long[long["term"].isin([FULL, *shown])], ["term", "what", "step"], "nats")
        look: dict[str, Any] = {"order": [FULL, *shown], "share_y": False, "x_log": True, "labels": {"mean": "nats"}}
        yield lines(own, "step", "mean", color="term", facet="what", band=ends, **look, **about[id])
    dip, end = at(t, "transplants", DIP), at(t, "transplants", END)
    four = {(DIP, DIP): dip["entropy"], (END, DIP): dip["later_weights"], (DIP, END): dip["later_states"]}
    rows = pd.concat({**four, (END, END): end["entropy"]}, names=["weights", "states"]).rename("entropy").reset_index()
    labels = {"weights": "queries and keys of the", "states": "states of the", "mean": "attention entropy (nats)"}
    means, id = over_seeds(rows, ["weights", "states"], "entropy"), "rebound-transplants"
    yield bars(means, "weights", "mean", color="states", error=ends, labels=labels, **about[id])


EXPERIMENTS = (
    Experiment(
        id="rebound-parts",
        title="Parts of the logits, and transplants from dip to end",
        source="Open question; Theorem 1",
        question="Which part of the logits carries the rise of the attention entropy, and is it weights or states?",
        presets={"quick": QUICK, "full": ReboundPartsConfig()},
        compute=compute,
        claims=(token_numbers, weight_numbers, state_numbers, term_numbers),
        charts=charts,
        seconds={"quick": 15.0, "full": 900.0},
        needs=needs,
        in_tasks=True,
    ),
)
