r"""What figure 5 shows, measured: co-occurrence, the order that the theory gives it, and trained networks over time.

Deep and shallow trees have the same number of leaves. Heights count from the leaves: a latent of height 1 lies above
tokens, and tokens $l$, $m$ have a common ancestor of height $H$. All comparisons over training are with the same run's
start, and all error bars are between seeds.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.data.latent_trees import TreeSampler
from joma.engine import grid as recipes
from joma.engine.config import TREES, DataConfig, RunConfig
from joma.engine.grid import Run, grid
from joma.engine.snapshots import CHECKPOINTS, load_snapshot, name_of
from joma.engine.sources import tree_of
from joma.experiments.experiment import Workplace
from joma.experiments.latent_neurons import (
    AllDivergedError,
    LatentSamples,
    Reading,
    Row,
    latent_samples,
    measured_packs,
    ncorr,
    of_one_run,
    planned,
    read_neurons,
)
from joma.experiments.measured_times import tried_once
from joma.models.batch import LayerReading, Parameters
from joma.models.decoder import Decoder
from joma.randomness import run_keys
from joma.theory.attention_flow import AttentionFlow
from joma.theory.convergence import ConvergenceFlow, TiedFlow
from joma.theory.latent_tree import LatentTree, cooccurrence

DEEP, SHALLOW = "deep", "shallow"
NCORR, ATTENTION = "ncorr", "attention"
FLOWS: dict[str, type[TiedFlow]] = {"Eqn 6": ConvergenceFlow, "the model's flow": AttentionFlow}
SALIENCY = 4.0
"""Target of a token that always occurs with the query: the largest of figure 4."""
FLOW_TIMES = np.linspace(0.0, 2.0, 401)
HALF = 0.5
"""Part of the way at which something counts as learned."""
NUM_LAST = 3
"""Measurements at the end of a run that its end is the mean of."""
NUM_READERS = 4
"""Checkpoints that are read, and held against their checksums, while others are measured."""
NO_ORDER = 0.0
"""ρ of the control: leaves below one child of the root all occur together as often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeShape:
    """A regular tree with classes."""

    tree_depth: int
    branching: int
    num_classes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Latent trees, and networks trained on them."""

    is_small: bool = False
    """Whether this is too small to deny a claim."""
    deep: TreeShape = TreeShape(tree_depth=4, branching=2, num_classes=3)
    """Three levels of latents for three blocks."""
    shallow: TreeShape = TreeShape(tree_depth=2, branching=4, num_classes=4)
    """One level of latents over as many leaves."""
    rho: float = 0.8
    limit_depth: int = 5
    """L of the tree on which the limit 1 − H/L is approached."""
    epsilons: tuple[float, ...] = (0.2, 0.1, 0.01, 0.001)
    """1 − ρ = 1 − ρ₀ on the way there."""
    num_blocks: int = 32
    """Independent blocks of samples, whose spread is the error of co-occurrences."""
    block_size: int = 4000
    width: int = 256
    hidden: int = 512
    lr: float = 3e-5
    steps: int = 2000
    checkpoint_every: int = 80
    """Steps between measurements of neurons and attention."""
    seeds: tuple[int, ...] = tuple(range(1, 11))
    batch: int = 128
    precision: str = "tf32"
    num_samples: int = 1280
    num_shuffles: int = 20

    def __post_init__(self) -> None:
        """Refuse measurements that miss the end, and trees that cannot be told apart."""
        if self.steps % self.checkpoint_every:
            raise ValueError(
                f"`checkpoint_every` must divide `steps`, so that the end is measured, got {self.checkpoint_every} and "
                f"{self.steps}. Take another number."
            )
        if self.deep.tree_depth <= self.shallow.tree_depth:
            raise ValueError(
                f"The deep tree must be deeper than the shallow one, got depths {self.deep.tree_depth} and "
                f"{self.shallow.tree_depth}. Exchange them."
            )

    def data(self, name: str) -> DataConfig:
        """Return the settings of the deep or of the shallow tree."""
        shape = self.deep if name == DEEP else self.shallow
        return DataConfig(
            data=TREES,
            tree_depth=shape.tree_depth,
            branching=shape.branching,
            num_classes=shape.num_classes,
            rho=self.rho,
            batch=self.batch,
        )


def cooccurrences(config: Config) -> pd.DataFrame:
    """Co-occurrence by height of the common ancestor: exact, sampled, by Theorem 5 corrected and as printed."""
    return pd.DataFrame([row for name in (DEEP, SHALLOW) for row in _cooccurrence_rows(config, name)])


def _cooccurrence_rows(config: Config, name: str) -> Iterator[Row]:
    tree = tree_of(config.data(name))
    blind = tree_of(replace(config.data(name), rho=NO_ORDER))
    heights = tree.ancestor_heights()
    L, rho0 = int(heights.max()), float(tree.root_parameters[0])
    sampled, error = _sampled(tree, config)
    for H in range(1, L + 1):
        pairs = heights == H
        is_binary = H < L
        yield {
            "tree": name,
            "height": H,
            "exact": float(tree.cooccurrence_matrix()[pairs].mean()),
            "sampled": float(sampled[H]),
            "error": float(error[H]),
            "formula": float(cooccurrence(H, L, config.rho, rho0)) if is_binary else np.nan,
            "printed": float(cooccurrence(H, L, config.rho, (1 + rho0) / 2)) if is_binary else np.nan,
            "limit": 1 - H / L,
            "control": float(blind.cooccurrence_matrix()[pairs].mean()),
        }


def _sampled(tree: LatentTree, config: Config) -> tuple[Float[np.ndarray, " H"], Float[np.ndarray, " H"]]:
    """Return P[l | m] and its standard error for every height, from samples in blocks."""
    samples = TreeSampler.of(tree).sample(run_keys(range(1, config.num_blocks + 1)), 0, config.block_size)
    on = samples.present.double()
    together = (on.mT @ on).numpy()
    often = on.sum(dim=1).numpy()
    heights = tree.ancestor_heights()
    by_block = np.stack(
        [
            together[:, heights == H].sum(axis=1) / (often[:, None, :] * (heights == H)).sum(axis=(1, 2))
            for H in range(heights.max() + 1)
        ]
    )
    return by_block.mean(axis=1), by_block.std(axis=1, ddof=1) / np.sqrt(config.num_blocks)


def limits(config: Config) -> pd.DataFrame:
    r"""Theorem 5 for $\rho = \rho_0 = 1 - \epsilon$ beside its limit $1 - H/L$ (Eqn 8)."""
    L = config.limit_depth
    return pd.DataFrame(
        [
            {"epsilon": e, "height": H, "exact": float(cooccurrence(H, L, 1 - e, 1 - e)), "limit": 1 - H / L}
            for e in config.epsilons
            for H in range(1, L)
        ]
    )


def flows(config: Config) -> tuple[pd.DataFrame, pd.DataFrame]:
    r"""Attention over time for targets $\mu_l \propto P[l \mid m]$, by height, and when half the way is done.

    The control has $\rho = 0$ on the edges, so that co-occurrence does not tell heights below the root apart.
    """
    curves, times = [], []
    for name in (DEEP, SHALLOW):
        for rho in (config.rho, NO_ORDER):
            tree = tree_of(replace(config.data(name), rho=rho))
            for flow in FLOWS:
                found = _flow(tree, flow)
                times += [{"tree": name, "rho": rho, "flow": flow, "height": H, "half": t} for H, t in found[1].items()]
                if rho == config.rho:
                    curves += [{"tree": name, "flow": flow} | row for row in found[0]]
    return pd.DataFrame(curves), pd.DataFrame(times)


def _flow(tree: LatentTree, name: str) -> tuple[list[Row], dict[int, float]]:
    """Return how the other tokens share the attention of the first leaf over time, and the half times, by height."""
    frequency = tree.cooccurrence_matrix()[1:, 0]
    heights = tree.ancestor_heights()[0, 1:]
    flow = FLOWS[name](mu=SALIENCY * frequency)
    v = flow.solution(FLOW_TIMES)
    weight = frequency * np.exp(flow.log_attention(v))
    share = weight / weight.sum(axis=1, keepdims=True) * len(heights)
    learned = v / flow.critical_point()
    rows: list[Row] = []
    halves = {}
    for H in np.unique(heights):
        own = heights == H
        by_time = zip(FLOW_TIMES.tolist(), share[:, own].mean(axis=1).tolist(), strict=True)
        rows += [{"height": int(H), "t": t, "attention": attention} for t, attention in by_time]
        halves[int(H)] = _crossing(FLOW_TIMES, learned[:, own].mean(axis=1), HALF)
    return rows, halves


def _crossing(x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"], level: float) -> float:
    """Return where a curve first reaches a level, between points on a straight line; NaN where it never does."""
    above = np.flatnonzero(y >= level)
    if not above.size:
        return float("nan")
    i = int(above[0])
    return float(x[0]) if i == 0 else float(np.interp(level, [y[i - 1], y[i]], [x[i - 1], x[i]]))


_CURVE = ["tree", "what", "layer", "height"]
"""What one curve over training is of, beside its seed."""


def training_curves(config: Config, workplace: Workplace) -> pd.DataFrame:
    """Train on both trees, and return NCorr and attention by block, height and step for every seed."""

    def measure(run: Run, folder: Path, end: Parameters) -> list[Row]:
        return _run_rows(run.config, folder, config, workplace.device)

    def measuring(run: RunConfig) -> float:
        return _measuring_seconds(run, config, workplace.device)

    settings = ["figure5", config.num_samples, config.num_shuffles, config.checkpoint_every]
    packs = planned([_runs(config, name) for name in (DEEP, SHALLOW)], workplace.device)
    table = measured_packs(packs, workplace, measure, settings=settings, measuring=measuring)
    for name in (DEEP, SHALLOW):
        if not (table["tree"] == name).any():
            raise AllDivergedError(len(config.seeds), f"on {name} trees")
    return table


def _runs(config: Config, name: str) -> tuple[Run, ...]:
    recipe = recipes.recipe("trees")
    shared = {
        field: getattr(config, field)
        for field in ("rho", "width", "hidden", "lr", "steps", "checkpoint_every", "batch", "precision")
    }
    data = config.data(name)
    own = {field: getattr(data, field) for field in ("tree_depth", "branching", "num_classes")}
    base = recipe.base.update(shared | own | {"measure_every": config.steps})
    return grid(base, {"seed": config.seeds}, ("tree_depth", "rho", "lr"))


def _measured_steps(config: Config) -> range:
    return range(0, config.steps + 1, config.checkpoint_every)


def _run_rows(run: RunConfig, folder: Path, config: Config, device: str) -> list[Row]:
    samples = latent_samples(run, config.num_samples, device)
    name = DEEP if run.data.tree_depth == config.deep.tree_depth else SHALLOW
    rows: list[Row] = []
    with ThreadPoolExecutor(NUM_READERS) as readers:
        paths = [folder / CHECKPOINTS / name_of(step) for step in _measured_steps(config)]
        for snapshot in readers.map(load_snapshot, paths):
            parameters = of_one_run(snapshot.tensors, device)
            about = {"tree": name, "seed": run.seed, "step": snapshot.step}
            rows += [about | row for row in _network_rows(run, parameters, samples, config.num_shuffles)]
    return rows


def _network_rows(run: RunConfig, parameters: Parameters, samples: LatentSamples, num_shuffles: int) -> list[Row]:
    """Measure one network: attention and NCorr by block and height."""
    attention = _AttentionByHeight(tree_of(run.data), samples.batch.tokens[0], seed=run.seed)
    reading = read_neurons(Decoder(run.model), parameters, samples, attention.take)
    found = [*attention.rows, *_alignments(samples, reading, run.seed, num_shuffles)]
    return [{"loss": reading.loss} | row for row in found]


def _measuring_seconds(run: RunConfig, config: Config, device: str) -> float:
    """Return what all measurements of a run take, by one of its network at the start."""
    samples = latent_samples(run, config.num_samples, device)
    start = of_one_run(Decoder(run.model).initial(run.seed), device)
    seconds = tried_once(lambda: _network_rows(run, start, samples, config.num_shuffles), device)
    return len(_measured_steps(config)) * seconds


def _alignments(samples: LatentSamples, reading: Reading, seed: int, num_shuffles: int) -> Iterator[Row]:
    """Yield NCorr of every height of latents in every block."""
    for layer, peaks in enumerate(reading.peaks):
        for height, latents in enumerate(samples.latents, 1):
            found = ncorr(latents, peaks, seed=seed, num_shuffles=num_shuffles)
            about = {"what": NCORR, "layer": layer, "height": height}
            yield about | {"value": found["ncorr"], "control": found["shuffled"]}


class _AttentionByHeight:
    """Mean attention of tokens that are there to others that are, by the height of their common ancestor.

    In units of uniform attention. The control deals the leaves to other places in the tree.
    """

    def __init__(self, tree: LatentTree, tokens: Int[Tensor, "B n"], *, seed: int) -> None:
        heights = torch.as_tensor(tree.ancestor_heights(), device=tokens.device)
        order = torch.randperm(len(heights), generator=torch.Generator().manual_seed(seed)).to(tokens.device)
        present = tokens < len(heights)
        self._pairs: Bool[Tensor, "B n n"] = present[:, :, None] & present[:, None, :]
        self._heights = {"value": heights, "control": heights[order][:, order]}
        self.rows: list[Row] = []

    def take(self, reading: LayerReading) -> None:
        """Add a row for each height."""
        assert reading.q is not None and reading.k is not None
        weights = torch.softmax(reading.q @ reading.k.mT * reading.scale, dim=-1).mean(dim=1) * reading.q.shape[-2]
        for height in range(1, int(self._heights["value"].max()) + 1):
            row: Row = {"what": ATTENTION, "layer": reading.layer, "height": height}
            for name, heights in self._heights.items():
                pairs = self._pairs & (heights == height)
                row[name] = float(weights[pairs].mean())
            self.rows.append(row)


def over_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """Return means and standard errors between seeds, and what was added to the means since the first step."""
    groups = curves.groupby([*_CURVE, "step"])
    table = groups[["value", "control"]].mean()
    table["error"] = groups["value"].sem().fillna(0.0)
    return with_added(table.reset_index())


def with_added(means: pd.DataFrame) -> pd.DataFrame:
    """Return the means with what was added to each curve, and to its control, since its first step."""
    means = means.sort_values([*_CURVE, "step"])
    first = means.groupby(_CURVE)[["value", "control"]].transform("first")
    return means.assign(added=means["value"] - first["value"], added_control=means["control"] - first["control"])


def learned_levels(curves: pd.DataFrame) -> pd.DataFrame:
    """For each block, height and seed: NCorr at the start, what training added, and the step at which half of it was.

    The control is what was added on shuffled latents.
    """
    rows = []
    own = curves[curves["what"] == NCORR]
    for (tree, layer, height, seed), part in own.sort_values("step").groupby(["tree", "layer", "height", "seed"]):
        added = part["value"].to_numpy() - part["value"].iloc[0]
        gain = float(added[-NUM_LAST:].mean())
        shuffled = part["control"].to_numpy()
        rows.append(
            {
                "tree": tree,
                "layer": layer,
                "height": height,
                "seed": seed,
                "start": float(part["value"].iloc[0]),
                "gain": gain,
                "control_gain": float(shuffled[-NUM_LAST:].mean() - shuffled[0]),
                "half_step": _crossing(part["step"].to_numpy(float), added, HALF * gain) if gain > 0 else np.nan,
            }
        )
    return pd.DataFrame(rows)


def attention_leads(curves: pd.DataFrame) -> pd.DataFrame:
    r"""How much more attention nearest tokens get than farthest, $\ln(a_{H=1}/a_{H=L})$ less that of the start.

    Its largest value over training, when that was, and its end; the controls are the same for relabelled leaves.
    """
    rows = []
    own = curves[curves["what"] == ATTENTION]
    for (tree, layer, seed), part in own.groupby(["tree", "layer", "seed"]):
        lead, control = (_lead(part, column) for column in ("value", "control"))
        rows.append(
            {
                "tree": tree,
                "layer": layer,
                "seed": seed,
                "largest": float(lead.max()),
                "largest_step": int(lead.idxmax()),
                "end": float(lead.iloc[-NUM_LAST:].mean()),
                "control_largest": float(control.max()),
                "control_end": float(control.iloc[-NUM_LAST:].mean()),
            }
        )
    return pd.DataFrame(rows)


def _lead(part: pd.DataFrame, column: str) -> "pd.Series[float]":
    wide = np.log(part.pivot(index="step", columns="height", values=column))
    lead = wide[wide.columns.min()] - wide[wide.columns.max()]
    return lead - lead.iloc[0]
