"""Which height of a real hierarchy is learned first, and in which block: arithmetic, JSON and Python source.

The latents of a token are the types of the nodes above it, by height. A decoder learns to predict the next token. Its
best neuron and a linear probe are asked for these types (`joma.measure.readable`), in every block and at a series of
steps. All heights have the same types, each with the same number of tokens (`joma.data.matched`).

Judged is Spearman's correlation of the height with the step at which half of the final gain is reached in the best
block, and with that block: one number per run. A height that gains less than `LEAST_GAIN` does not count, and a run
with fewer than three others is left out. Controls: types dealt to other tokens of the same word, types dealt to other
nodes of the same height (another tree of the same shape), and the untrained network, whose correlation with time is 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import rankdata

from joma.charts import Chart, lines, points
from joma.claims import Number, claim
from joma.data.matched import matched_tokens
from joma.data.text import TreeText
from joma.data.tree_texts import tree_text
from joma.engine import grid as recipes
from joma.engine.config import ARITHMETIC, JSON, SOURCE_CODE, RunConfig
from joma.engine.grid import grid
from joma.engine.snapshots import CHECKPOINTS, load_snapshot, name_of
from joma.engine.sources import data_hash
from joma.measure.readable import best_neuron, linear_probe
from joma.models.batch import Batch, LayerReading, Parameters
from joma.models.decoder import Decoder
from joma.paper.experiment import Experiment, Measured, caption, catalogue, crossed, gathered, over_seeds, select
from joma.paper.figure5 import HALF, NUM_LAST, crossing
from joma.paper.latent_neurons import Row, of_one_run, pack_tasks
from joma.store import Store

NEURON, PROBE = "best neuron", "linear probe"
MEASURES = {NEURON: best_neuron, PROBE: linear_probe}
TIME, BLOCK = "step of half gain", "best block"
SHUFFLED, OTHER, UNTRAINED = CONTROLS = "types dealt within the same token", "another tree", "untrained network"
CURVES, HEIGHTS, ORDERS = "curves", "heights", "orders"
COLUMNS = {
    CURVES: ["step", "layer", "height", "value", SHUFFLED, OTHER],
    HEIGHTS: ["height", BLOCK, UNTRAINED, "gain", TIME],
    ORDERS: ["what", "value", *CONTROLS],
}
PARTS, SOURCE = ("valid", "test"), "Section 5; next check 3"
"""Held-out text to choose a neuron and fit a probe on, and to score them on; and where the paper asks."""
LEAST_ORDER = 0.3
"""Correlation with the height beyond the strongest control's. It was chosen before the result."""
LEAST_GAIN = 0.05
"""Balanced accuracy that training must add for a height to count as learned."""
LEAST_HEIGHTS = 3
"""Learned heights without which there is no order."""


SHARED: dict[str, Any] = {"vocabulary_cap": 8000, "restart_every_epoch": False, "valid_windows": 10}
LARGE = SHARED | {"width": 256, "hidden": 512, "depth": 5, "embedding_scale": 16.0, "batch": 16, "window": 128}
LARGE |= {"lr": 1e-4, "steps": 12_000, "precision": "tf32"}
NARROW = SHARED | {"width": 48, "hidden": 96, "depth": 3, "embedding_scale": 7.0, "batch": 8, "window": 64}
NARROW |= {"lr": 1e-3, "steps": 3000, "precision": "fp32"}
FAST = NARROW | {"width": 32, "hidden": 48, "lr": 3e-3, "steps": 150}
MATCHING = {"num_heights": 5, "num_types": 3, "num_samples": 500, "num_permutations": 20}
SOME, FEW = ({"num_samples": num, "num_permutations": permutations} for num, permutations in ((300, 5), (60, 3)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RealHierarchiesConfig:
    """Texts, the network, and how it is asked for types."""

    data: tuple[str, ...] = (ARITHMETIC, JSON, SOURCE_CODE)
    settings: Mapping[str, Any] = field(default_factory=LARGE.copy)
    """What differs from figure 6's recipe."""
    checkpoint_every: int = 200
    seeds: tuple[int, ...] = (121, 122, 123, 124, 125)
    num_windows: int = 1000
    """Most windows of each of both held-out texts that are read."""
    matching: Mapping[str, int] = field(default_factory=MATCHING.copy)
    """How tokens are chosen (`joma.data.matched.matched_tokens`)."""
    needs_gpu: bool = True


on_a_cpu = partial(RealHierarchiesConfig, data=(ARITHMETIC, JSON), needs_gpu=False)
SMALL = on_a_cpu(settings=NARROW, checkpoint_every=150, num_windows=250, matching=MATCHING | SOME)
QUICK = on_a_cpu(settings=FAST, checkpoint_every=25, seeds=(1, 2), num_windows=40, matching=MATCHING | FEW)


def compute(config: RealHierarchiesConfig, store: Store) -> Measured:
    """Train networks on every text, and ask them for the types above tokens."""
    asked = {name: getattr(config, name) for name in ("checkpoint_every", "num_windows")} | dict(config.matching)
    own = {"checkpoint_every": config.checkpoint_every, "measure_every": config.settings["steps"]}
    tasks = []
    for name in config.data:
        base = recipes.recipe("figure6").base.update({**config.settings, **own, "data": name})
        key = {"what": "real-hierarchies", "text": data_hash(base.data), **asked}
        runs = grid(base, {"seed": config.seeds}, ("data", "lr"))
        tasks += pack_tasks([runs], store.device, partial(_rows, config), key)
    found = gathered(store, tasks)
    if not found or not len(found.rows):
        return Measured()
    keys = ["data", "seed", "measure"]
    return Measured(**{kind: select(found.rows, kind=kind)[[*keys, *columns]] for kind, columns in COLUMNS.items()})


def needs(config: RealHierarchiesConfig, device: str) -> str:
    """Return that a GPU is missing for networks of full size."""
    return "It needs a GPU: on a CPU these runs would take days." if config.needs_gpu and device == "cpu" else ""


def spearman(values: Float[np.ndarray, " H"]) -> float:
    """Return the correlation of ranks with the height; 0 for equal values, NaN for too few.

    >>> spearman(np.array([1.0, 2.0, np.nan, 9.0])), spearman(np.array([2.0, 2.0, 2.0]))
    (1.0, 0.0)
    """
    ranks = rankdata(values[~np.isnan(values)])
    if len(ranks) < LEAST_HEIGHTS:
        return np.nan
    return float(np.round(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1], 12)) if np.ptp(ranks) else 0.0


def learned(scores: Float[np.ndarray, "T B H"], steps: Float[np.ndarray, " T"]) -> pd.DataFrame:
    """Return for each height its best block at the end and at the start, what it gains there, and the step of half."""
    end = scores[-NUM_LAST:].mean(axis=0)
    rows = []
    for height, block in enumerate(end.argmax(axis=0).tolist()):
        curve, gain = scores[:, block, height], end[block, height] - scores[0, block, height]
        half = crossing(steps, curve, curve[0] + HALF * gain) if gain >= LEAST_GAIN else np.nan
        rows.append({"height": height + 1, BLOCK: block, "gain": gain, TIME: half})
    return pd.DataFrame(rows).assign(**{UNTRAINED: scores[0].argmax(axis=0)})


def correlations(scores: Float[np.ndarray, "T B H V"], steps: Float[np.ndarray, " T"]) -> Iterator[Row]:
    """Yield the correlation of the height with time and block, for the tree's own labels and for the controls'."""
    found = [learned(scores[..., labelling], steps) for labelling in range(scores.shape[-1])]
    start = spearman(found[0][UNTRAINED].to_numpy(float))
    for what in (TIME, BLOCK):
        known = (each[what].where(each["gain"] >= LEAST_GAIN) for each in found)
        value, *others = (spearman(each.to_numpy(float)) for each in known)
        dealt = np.nan_to_num(others).reshape(2, -1).mean(axis=1)  # no order counts as 0
        controls = dict(zip(CONTROLS, (*dealt, start if what == BLOCK else 0.0), strict=True))
        yield {"what": what, "value": value, **controls}


def _rows(config: RealHierarchiesConfig, run: RunConfig, folder: Path, end: Parameters, device: str) -> list[Row]:
    """Ask every checkpoint of a run, and return rows of all kinds."""
    parts, length = [tree_text(run.data.data, part, run.data.vocabulary_cap) for part in PARTS], run.data.window
    num = length * min(config.num_windows, *(len(part.tokens) // length for part in parts))
    joined = {name: torch.cat([getattr(part, name)[:num] for part in parts]) for name in ("tokens", "types", "nodes")}
    chosen = matched_tokens(TreeText(**joined, type_names=parts[0].type_names), seed=run.seed, **config.matching)
    tokens = joined["tokens"].to(device)
    batch = Batch(tokens=tokens.reshape(1, -1, length), targets=tokens.roll(-1)[None])
    samples = [(places.to(device), labels.to(device)) for places, labels in chosen]
    steps = np.arange(0, config.settings["steps"] + 1, config.checkpoint_every)
    found: list[np.ndarray] = []

    def take(reading: LayerReading) -> None:
        hidden = reading.hidden[0].flatten(0, 1).float()
        for places, labels in samples:
            both = [score(hidden[places], labels.flatten(2)) for score in MEASURES.values()]
            found.append(torch.stack(both).unflatten(1, labels.shape[2:]).mean(dim=-1).cpu().numpy())

    for step in steps.tolist():
        snapshot = load_snapshot(folder / CHECKPOINTS / name_of(step))
        Decoder(run.model).losses(of_one_run(snapshot.tensors, device), batch, take)
    scores = np.reshape(found, (len(steps), run.model.depth, len(samples), len(MEASURES), -1)).astype(float)
    cells = crossed(step=steps, layer=range(run.model.depth), height=range(1, len(samples) + 1))
    rows: list[Row] = []
    for number, measure in enumerate(MEASURES):
        own, about = scores[:, :, :, number], {"data": run.data.data, "seed": run.seed, "measure": measure}
        means = [part.mean(axis=-1).ravel() for part in np.split(own[..., 1:], 2, axis=-1)]
        curves = cells.assign(value=own[..., 0].ravel(), **dict(zip(CONTROLS, means, strict=False)), kind=CURVES)
        heights = learned(own[..., 0], steps.astype(float)).assign(kind=HEIGHTS)
        orders = pd.DataFrame(correlations(own, steps.astype(float))).assign(kind=ORDERS)
        rows += pd.concat([curves, heights, orders]).assign(**about).to_dict("records")
    return rows


def _numbers(t: Measured, what: str) -> Iterator[Number]:
    """Return the correlation by the best neuron beyond the strongest control's, and what is reported with it."""
    title = f"Spearman correlation of the height with the {what}"
    for name in t.config.data:
        own, probed = (select(t.orders, data=name, what=what, measure=each).dropna(subset="value") for each in MEASURES)
        strongest = max(CONTROLS, key=lambda control: own[control].mean())
        judged: dict[str, Any] = {"at_least": LEAST_ORDER, "setting": name}
        other: dict[str, Any] = {"control": own[strongest], "control_name": strongest, "paired": True}
        yield Number.mean(f"{title}, less the control's", own["value"] - own[strongest], key="beyond", **judged)
        yield Number.mean(title, own["value"], key="order", **other, **judged)
        for control in CONTROLS:
            yield Number.mean(f"the same, {control}", own[control], setting=name)
        yield Number.mean(f"the same by a {PROBE}", probed["value"], setting=name)
        heights = select(t.heights, data=name, measure=NEURON)
        shares = (heights["gain"] >= LEAST_GAIN).groupby(heights["seed"]).mean()
        yield Number.mean("share of the heights that are learned", shares, setting=name, key=f"learned_{name}")


@claim("hierarchies-time", "Lower nodes of real hierarchies are learned first", source=SOURCE)
def time_numbers(t: Measured) -> Iterator[Number]:
    """The lowest latents are learned first, then those above: also in code, arithmetic and JSON."""
    yield from _numbers(t, TIME)


@claim("hierarchies-block", "Higher nodes of real hierarchies are in later blocks", source=SOURCE)
def block_numbers(t: Measured) -> Iterator[Number]:
    """Hidden nodes of later layers come to represent higher latents: also in code, arithmetic and JSON."""
    yield from _numbers(t, BLOCK)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the gain over steps, and the best block of every height."""
    keys, heights = ["data", "seed", "height"], select(t.heights, measure=NEURON)
    best = heights[[*keys, BLOCK]].rename(columns={BLOCK: "layer"}).astype({"layer": int})
    curves = select(t.curves, measure=NEURON).merge(best).sort_values("step")
    curves["gain"] = curves["value"] - curves.groupby(keys)["value"].transform("first")
    blocks = heights.rename(columns={BLOCK: "trained"}).melt(keys, ["trained", UNTRAINED], "network", "block")
    gains = over_seeds(curves, ["data", "height", "step"], "gain")
    yield lines(gains, "step", "mean", color="height", facet="data", **caption("hierarchies-gain"))
    blocks = over_seeds(blocks, ["data", "height", "network"], "block").astype({"height": int}).astype({"height": str})
    yield points(blocks, "height", "mean", color="network", facet="data", **caption("hierarchies-block"))


EXPERIMENTS = (
    Experiment(
        **catalogue("real-hierarchies"),
        presets={"quick": QUICK, "small": SMALL, "full": RealHierarchiesConfig()},
        compute=compute,
        claims=(time_numbers, block_numbers),
        charts=charts,
        needs=needs,
        in_tasks=True,
    ),
)
