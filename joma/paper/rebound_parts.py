r"""Which part of the attention logits raises the entropy again, and is it the weights or the states?

Asked of figure 6's model at depth 1, whose attention reads $x_i = \sqrt d\,e_i + p_i$ in evaluation. Split x into mean
token, token rest, mean position and position rest; means are over the validation windows. With the biases, queries and
keys have five parts each. Products with a mean of the keys or their bias depend on the query alone and drop out of the
softmax. Ten terms are left, query × key, and sums of them. For each checkpoint: the spread of a term over a row's keys,
the entropy of the softmax of that term alone, and the entropy without it.

The theory's logits depend on the tokens of query and key: does this term alone rise as all terms do? The control of
token × token is position × token. It has the same keys, so larger or smaller keys move it as much, and only the query's
side differs. The same is asked with the means left in the queries.

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
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.models.logit_parts import COMMON, MEAN_POSITION, MEAN_TOKEN, POSITION, TOKEN, mean_rows, query_key_parts
from joma.paper import rebound_cause
from joma.paper.experiment import Experiment, Measured, over_seeds, select
from joma.paper.figures6_8 import EMBEDDED, ENTROPY, PAPER, VISIBLE, WIKITEXT2, measured, needs, one_task
from joma.store import Store, Task, Workspace

UNCENTRED = {"uncentred token": (TOKEN, MEAN_TOKEN), "uncentred position": (POSITION, MEAN_POSITION)}
QUERIES = {name: (name,) for name in (TOKEN, POSITION, *COMMON)} | {"common": COMMON} | UNCENTRED
TERMS = {f"{query} × {key}": [(part, key) for part in of] for query, of in QUERIES.items() for key in (TOKEN, POSITION)}
"""The pairs of parts that each term is the sum of."""
FULL, LATER_WEIGHTS, LATER_STATES = "all terms", "later queries and keys", "later states"
JUDGED = {"centred": (TOKEN, POSITION), "uncentred": tuple(UNCENTRED)}
"""The query's side of the theory's term and of its control; the key's side is the token."""
DRAWN = [FULL, *(f"{query} × {key}" for query in (TOKEN, POSITION, MEAN_POSITION) for key in (TOKEN, POSITION))]
START, DIP, END, WEIGHTS, STATES = "start", "dip", "end", "queries and keys", "states"
ENOUGH = 2 / 3
"""A term carries the rise if alone it rises by at least this share of the rise of all terms."""
NAMED = 0.7
"""Weights or states carry the rise if at least this share of it is due to them in both orders."""
ZERO = torch.zeros(())
FULL_SIZE = rebound_cause.ReboundCauseConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReboundPartsConfig:
    """Runs of depth 1, whose last checkpoint is the end; a change of less than `least` nats has no shares."""

    text: str = WIKITEXT2
    settings: Mapping[str, Any] = field(default_factory=lambda: {**FULL_SIZE.settings, "checkpoint_every": 500})
    rate: float = FULL_SIZE.rate
    seeds: tuple[int, ...] = (131, 132, 133, 134)
    least: float = VISIBLE
    needs_gpu: bool = True


SMALL = ReboundPartsConfig(
    rate=rebound_cause.SMALL.rate, settings={**rebound_cause.SMALL.settings, "checkpoint_every": 250}, needs_gpu=False
)
QUICK = ReboundPartsConfig(
    text=EMBEDDED, rate=3e-3, seeds=(1, 2), least=1e-3, needs_gpu=False,
    settings={**rebound_cause.QUICK.settings, "steps": 300, "checkpoint_every": 10},
)  # fmt: skip


def split(
    config: DecoderConfig, states: Parameters, weights: Parameters, tokens: Int[Tensor, "N L"]
) -> tuple[dict[tuple[str, str], Float[Tensor, "n H l L"]], Float[Tensor, "n H l 1"]]:
    """Return the terms of the first layer's logits that the softmax sees, and the sum of those of the query alone.

    Args:
        config: A model with norms after, positions that are added, and biases of queries and keys.
        states: Parameters of one run, with its axis, whose embedding and positions are read.
        weights: Parameters whose queries and keys are applied.
        tokens: Windows, over which means are taken too.
    """
    windows = tokens[None]
    sides = query_key_parts(config, states, weights, windows, mean_rows(states, [windows]))
    (q, k), scale = ({part: x[0] for part, x in side.items()} for side in sides), config.head_width**-0.5
    kept = {(part, key): scale * q[part] @ k[key].mT for part in q for key in (TOKEN, POSITION)}
    return kept, scale * sum(q.values(), ZERO) @ sum((k[part] for part in COMMON), ZERO).mT


def entropy_and_spread(logits: Float[Tensor, "n H l L"]) -> tuple[float, float]:
    """Return both over the visible keys of a row with a causal mask, averaged over windows, heads and rows."""
    visible = torch.ones(2 * logits.shape[-1:], dtype=torch.bool).tril()
    found = logits_entropy(torch.where(visible, logits, -torch.inf), companions=False, moments=True)
    assert found.logit_variance is not None
    return float(found.entropy.mean()), float(found.logit_variance.sqrt().mean())


def taken_apart(config: DecoderConfig, own: Parameters, end: Parameters, tokens: Int[Tensor, "N L"]) -> pd.DataFrame:
    """Return a row for each term of a checkpoint, for all terms, and for its transplants from and to the end."""
    (kept, of_query), decoder, found = split(config, own, own, tokens), Decoder(config), list[LayerReading]()
    decoder.hidden(own, decoder.embed(own, tokens[None]), tokens[None], tap=found.append)
    assert found[0].q is not None and found[0].k is not None
    logits, model = sum(kept.values(), ZERO), found[0].scale * found[0].q @ found[0].k.mT
    read = {name: sum((kept[pair] for pair in pairs), ZERO) for name, pairs in TERMS.items()} | {FULL: logits}
    read[LATER_WEIGHTS] = sum(split(config, own, end, tokens)[0].values(), ZERO)
    read[LATER_STATES] = sum(split(config, end, own, tokens)[0].values(), ZERO)
    error, rows = float((logits + of_query - model).abs().max() / model.abs().max()), []
    for name, of in read.items():
        (alone, spread), (without, _) = map(entropy_and_spread, (of, logits - of))
        rows.append({"logits": name, "spread": spread, "alone": alone, "without": without, "error": error})
    return pd.DataFrame(rows)


def _work(trained: Task, space: Workspace) -> dict[str, pd.DataFrame]:
    """Train, then take every checkpoint apart."""
    tables, found = trained.work(replace(space, progress=lambda share, at: space.progress(0.9 * share, at))), []
    for run in runs_of(trained.key["settings"], "figure6"):
        config = with_vocabulary(run.config)
        tokens = torch.cat([batch.tokens[0] for batch in source_of([config]).validation()])
        end: Parameters = {}
        for path in sorted((space.folder / run.name / CHECKPOINTS).glob("*.safetensors"), reverse=True):
            snapshot = load_snapshot(path)
            space.progress(0.9, f"{run.name}, step {snapshot.step}")
            own = {name: tensor.double()[None] for name, tensor in snapshot.tensors.items()}
            end = end or own
            found.append(taken_apart(config.model, own, end, tokens).assign(seed=config.seed, step=snapshot.step))
    return {**tables, "logits": pd.concat(found, ignore_index=True)}


def compute(config: ReboundPartsConfig, store: Store) -> Measured:
    """Train all runs and take their checkpoints apart, in one task; the checkpoints go when it is done."""
    trained = one_task(config, store.device, PAPER, 1)
    key, work = {**trained.key, "what": "parts"}, partial(_work, trained)
    seconds = 0.025 * config.settings["steps"] * len(config.seeds)  # of one core
    return measured(store, [replace(trained, key=key, work=work, kind="parts of logits", seconds=seconds)])


def at(t: Measured, when: str) -> pd.DataFrame:
    """Return entropies and spreads at the start, dip or end: a row for each seed, columns by quantity and logits."""
    wide, found = t.logits.pivot(index=["seed", "step"], columns="logits"), []
    dips = select(t.effects, metric=ENTROPY, layer=0).set_index("seed")["dip_step"]
    for seed, own in wide.groupby("seed"):
        nearest = int(np.abs(own.index.get_level_values("step") - dips[seed]).argmin())
        found.append(own.iloc[[{START: 0, DIP: nearest, END: -1}[when]]])
    return pd.concat(found).droplevel("step")


def carried(t: Measured, column: str, when: str = END) -> pd.DataFrame:
    """Return how far each term's entropy is above its dip, over that of all terms: rows are seeds, columns terms."""
    change = at(t, when) - at(t, DIP)
    full = change["alone"][FULL]
    return change[column].div(full, axis="index")[full >= t.config.least]


def transplanted(t: Measured) -> pd.DataFrame:
    """Return four entropies of each run, by the moments that queries and keys and that the states are of."""
    dip, end = at(t, DIP)["alone"], at(t, END)["alone"]
    four = {(DIP, DIP): dip[FULL], (END, DIP): dip[LATER_WEIGHTS], (DIP, END): dip[LATER_STATES]}
    return pd.DataFrame({**four, (END, END): end[FULL]}).rename_axis(columns=["weights", "states"])


def share_numbers(t: Measured, own: str, other: str) -> Iterator[Number]:
    """Return the share of the rise that weights or states carry in the worse order; the control is the other's."""
    risen = transplanted(t).pipe(lambda four: four.sub(four[DIP, DIP], axis="index"))
    weights, states, rise = risen[END, DIP], risen[DIP, END], risen[END, END]
    shares = pd.DataFrame({WEIGHTS: np.minimum(weights, rise - states), STATES: np.minimum(states, rise - weights)})
    shares = shares.div(rise, axis="index")[rise >= t.config.least]
    about: dict[str, Any] = {"control": shares[other], "control_name": other, "paired": True, "at_least": NAMED}
    yield Number.mean(f"share of the rise, {own}", shares[own], unit="share", key="share", **about)


@claim("rebound-token-token", "The part of the logits that the theory is about", source="Open question", ours=True)
def token_numbers(t: Measured) -> Iterator[Number]:
    """The logits of the query's token and the key's token carry the rise of the entropy after the dip."""
    for what, when, limit in (("rise", END, ENOUGH), ("fall", START, None)):
        shares = carried(t, "alone", when)
        for setting, sides in JUDGED.items():
            term, other = (f"{side} × {TOKEN}" for side in sides)
            about: dict[str, Any] = {"at_least": limit, "unit": "share", "setting": setting, "key": f"{what}_{setting}"}
            about |= {"control": shares[other], "control_name": other, "paired": True}
            yield Number.mean(f"{what} of {term} alone", shares[term], **about)
    error, limits = float(t.logits["error"].max()), {"at_most": 1e-10, "sanity": True, "key": "error"}
    yield Number.exact("largest error of the sum of the terms, over the largest logit", error, **limits)


WEIGHT_CLAIM, STATE_CLAIM = (
    claim(id, title, says=title, source="Open question", ours=True)(partial(share_numbers, own=own, other=other))
    for id, title, own, other in (
        ("rebound-weights", "Queries and keys carry the rise after the dip", WEIGHTS, STATES),
        ("rebound-states", "The states carry the rise after the dip", STATES, WEIGHTS),
    )
)


@claim("rebound-terms", "What each term of the logits does", source="Open question", primary=False, ours=True)
def term_numbers(t: Measured) -> Iterator[Number]:
    """The share of the rise of each term alone, the share that is left without it, and its spread."""
    tables = {name: carried(t, name) for name in ("alone", "without")}
    tables |= {f"spread, {when}": at(t, when)["spread"] for when in (DIP, END)}
    for (name, table), term in ((each, term) for term in TERMS for each in tables.items()):
        key = f"{name}_{term}".replace("spread, ", "").replace(" × ", "_").replace(" ", "_")
        yield Number.mean(f"{term}, {name}", table[term], unit="nats" if "spread" in name else "share", key=key)
    for (weights, states), entropy in transplanted(t).items():
        yield Number.mean(f"weights: {weights}, states: {states}", entropy, unit="nats", key=f"{weights}_{states}")


def charts(t: Measured) -> Iterator[Chart]:
    """Draw entropies and spreads of the terms over steps, and the four transplants of dip and end."""
    names = {"alone": "entropy, alone", "without": "entropy, without", "spread": "spread", "mean": "nats"}
    long = t.logits.rename(columns=names).melt(["seed", "step", "logits"], [*names.values()][:3], "what", "nats")
    own = over_seeds(long[long["logits"].isin(DRAWN)], ["logits", "what", "step"], "nats")
    look: dict[str, Any] = {"order": DRAWN, "share_y": False, "x_log": True, "labels": names, "band": ("low", "high")}
    look |= {"title": "The terms of the logits over training", "caption": "Bands are two standard errors."}
    yield lines(own, "step", "mean", color="logits", facet="what", id="rebound-terms", **look)
    four = over_seeds(transplanted(t).unstack().rename("entropy").reset_index(), ["weights", "states"], "entropy")
    names = {"weights": "queries and keys of the", "states": "states of the", "mean": "attention entropy (nats)"}
    look = {"title": "Queries and keys on other states", "caption": "Bars: two standard errors.", "labels": names}
    yield bars(four, "weights", "mean", color="states", error=("low", "high"), id="rebound-transplants", **look)


EXPERIMENTS = (
    Experiment(
        id="rebound-parts",
        title="Parts of the logits, and transplants from dip to end",
        source="Open question; Theorem 1",
        question="Which part of the logits carries the rise of the attention entropy, and is it weights or states?",
        presets={"quick": QUICK, "small": SMALL, "full": ReboundPartsConfig()},
        compute=compute,
        claims=(token_numbers, WEIGHT_CLAIM, STATE_CLAIM, term_numbers),
        charts=charts,
        seconds={"quick": 15.0, "small": 900.0},
        needs=needs,
        in_tasks=True,
        text_preset="small",
    ),
)
