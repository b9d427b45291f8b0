"""The runs behind Table 1, and what each of them scores: NCorr of a network before and after training, with controls.

Two kinds of data. The paper's hierarchy is deterministic: a class has one sequence, so latents follow from the class.
In the latent trees HBLT(ρ) with ρ < 1 inputs vary within a class, and latents below the top are not told by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from joma.engine import grid as recipes
from joma.engine.config import HIERARCHY, TREES, RunConfig
from joma.engine.grid import Run, grid
from joma.engine.sources import HierarchySource, with_vocabulary
from joma.experiments.experiment import Workplace
from joma.experiments.latent_neurons import (
    LatentSamples,
    Row,
    latent_samples,
    measured_packs,
    ncorr,
    of_one_run,
    planned,
    read_neurons,
)
from joma.experiments.measured_times import tried_once
from joma.experiments.seed_errors import mean_and_error
from joma.experiments.table1_seeds import CHOICE, KEYS, run_settings
from joma.models.batch import Parameters
from joma.models.decoder import Decoder
from joma.models.decoder_config import TABLE1_BLOCKS, DecoderConfig

TRAINED, UNTRAINED = "trained", "untrained"
TREE_DEPTH = TABLE1_BLOCKS + 1
"""Edges from the root to a leaf: a level of latents between them for each block."""
LOWEST_LOSS = "lowest_loss"
"""Column of runs: the lowest loss that the task has, NaN on trees."""
NUM_STARTS = 8
"""Untrained networks that are held at a time: a start depends on sizes and seed alone, not on the data."""

_PUBLISHED = {
    (0, "10x20"): (0.99, 1.00, 0.99, 0.99, 0.99, 0.99),
    (0, "20x30"): (0.97, 0.96, 0.94, 0.95, 0.95, 0.95),
    (1, "10x20"): (0.81, 0.69, 0.73, 0.72, 0.58, 0.64),
    (1, "20x30"): (0.80, 0.68, 0.74, 0.66, 0.55, 0.61),
}
PUBLISHED = {
    (level, latents, num_classes, num_children): value
    for (level, latents), row in _PUBLISHED.items()
    for (num_classes, num_children), value in zip(product((20, 30, 50), (2, 3)), row, strict=True)
}
"""Table 1 as printed, by level, latents, classes and children."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Table 1 and the same question on latent trees."""

    is_paper_size: bool = True
    """Whether these are the paper's settings, so that its numbers can be held against ours."""
    num_latents: tuple[tuple[int, int], ...] = recipes.TABLE_1_LATENTS
    num_children: tuple[int, ...] = recipes.TABLE_1_CHILDREN
    num_classes: tuple[int, ...] = recipes.TABLE_1_CLASSES
    lrs: tuple[float, ...] = (1e-5, 1e-4)
    """Learning rates: the paper's text and its scripts."""
    hiddens: tuple[int, ...] = (400, 4096)
    """Hidden neurons of each MLP: four for each token, or for each number of the embedding."""
    width: int = 1024
    seeds: tuple[int, ...] = recipes.TABLE_1_SEEDS
    steps: int = 10_000
    rhos: tuple[float, ...] = (0.7, 0.8, 0.9)
    """Polarities of the trees."""
    tree_hiddens: tuple[int, ...] = (400,)
    """Hidden neurons of the networks on trees, which the paper does not have."""
    tree_classes: int = 3
    tree_steps: int = 10_000
    batch: int = 128
    precision: str = "bf16"
    num_samples: int = 1280
    """Fresh samples that neurons are measured on."""
    num_shuffles: int = 50


def score_runs(config: Config, workplace: Workplace) -> pd.DataFrame:
    """Train all runs, and return NCorr of every level of each, trained and untrained, with controls."""

    def measure(run: Run, folder: Path, trained: Parameters) -> list[Row]:
        return _scores(run.config, trained, config, workplace.device)

    seconds: dict[tuple[str, int], float] = {}

    def measuring(run: RunConfig) -> float:
        kind = (run.data.data, run.model.hidden)  # whatever else packs differ in, they take about as long
        if kind not in seconds:
            seconds[kind] = _measuring_seconds(run, config, workplace.device)
        return seconds[kind]

    packs = planned(grids_of(config), workplace.device)
    table = measured_packs(packs, workplace, measure, settings=measure_settings(config), measuring=measuring)
    _start.cache_clear()
    return table


def grids_of(config: Config) -> list[tuple[Run, ...]]:
    """Return all runs, those of one hidden width together."""
    return [*_hierarchy_grids(config), *_tree_grids(config)]


def measure_settings(config: Config) -> list[Any]:
    """Return what the rows of a run depend on, beside the run."""
    return ["table1", config.num_samples, config.num_shuffles]


def with_lowest_losses(runs: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return the rows of runs with the lowest loss that each one's hierarchy allows: its classes may share sequences.

    Of m classes with one sequence none can be told from the others, which costs ln m.
    """
    keys = ["data", "num_classes", "num_children", "num_latents", "seed"]
    tasks = {}
    for run in (run.config for grid_runs in _hierarchy_grids(config) for run in grid_runs):
        key = tuple(run_settings(run)[name] for name in keys)
        if key not in tasks:
            [hierarchy] = HierarchySource([with_vocabulary(run)], "cpu").hierarchies
            _, same, num = hierarchy.sequences.unique(dim=0, return_inverse=True, return_counts=True)
            tasks[key] = float(num[same].double().log().mean())
    found = [tasks.get(tuple(row), float("nan")) for row in runs[keys].itertuples(index=False)]
    return runs.assign(**{LOWEST_LOSS: found})


def by_setting(runs: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds with standard errors, trained beside untrained, and the published number.

    Every planned setting has its row, with how many seeds the means are over; without any they are NaN.
    """
    wide = _side_by_side(runs)
    groups, planned_groups = wide.groupby(KEYS), planned.groupby(KEYS)
    table = groups.mean().drop(columns="seed")
    errors = groups[["trained", "untrained", "excess"]].sem()
    table = table.join(errors.add_suffix("_error")).reindex(planned_groups.size().index)
    table["num_seeds"] = groups.size().reindex(table.index, fill_value=0)
    table["num_seeds_planned"] = planned_groups.size()
    table = table.reset_index()
    table["published"] = [_published(row) for row in table.to_dict("records")]
    return table


def by_choice(runs: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """Return means over all settings for each planned open choice and level, with how many runs they are over.

    Networks of one seed start alike in all settings: errors are those between the seeds' means.
    """
    keys = [*CHOICE, "level"]
    wide, planned_groups = _side_by_side(runs), planned.groupby(keys)
    by_seed = wide.drop(columns="num_latents").groupby([*keys, "seed"]).mean()
    groups = by_seed.groupby(level=keys)
    table = groups.mean().drop(columns=["num_classes", "num_children", "rho"])
    table = table.join(groups[["trained", "untrained", "excess"]].sem().add_suffix("_error"))
    table = table.reindex(planned_groups.size().index)
    table["num_seeds"] = groups.size().reindex(table.index, fill_value=0)
    table["num_runs"] = wide.groupby(keys).size().reindex(table.index, fill_value=0)
    table["num_runs_planned"] = planned_groups.size()
    return table.reset_index()


def distance_error(runs: pd.DataFrame) -> float:
    """Return the standard error, by leaving out one seed at a time, of how far an open choice is from Table 1.

    The distance is the mean over settings and levels, of absolute values, whose mean over seeds would be another one.
    """
    wide = _side_by_side(runs)
    wide["published"] = [_published(row) for row in wide.to_dict("records")]
    seeds = wide["seed"].unique()
    if len(seeds) <= 1:
        return float("nan")

    def distance(part: pd.DataFrame) -> float:
        means = part.groupby(KEYS)[["trained", "published"]].mean()
        return float((means["trained"] - means["published"]).abs().mean())

    left_out = pd.Series([distance(wide[wide["seed"] != seed]) for seed in seeds])
    return float(((len(seeds) - 1) * left_out.var(ddof=0)) ** 0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """By how much NCorr falls from the simplest to the most complicated value of an axis, all else equal."""

    trained: float
    error: float
    """Between seeds."""
    untrained: float
    published: float | None


def fall_along(runs: pd.DataFrame, level: int, axis: str) -> Fall | None:
    """Return the fall of a level of the hierarchy, over seeds that have both ends; None where nothing has both."""
    own = _side_by_side(runs[(runs["data"] == HIERARCHY) & (runs["level"] == level)])
    own["published"] = [_published(row) for row in own.to_dict("records")]
    simplest, most = own[axis].min(), own[axis].max()
    if own.empty or simplest == most:
        return None
    others = [name for name in [*KEYS, "seed"] if name != axis]
    numbers = ["trained", "untrained", "published"]
    low, high = (own[own[axis] == value].set_index(others)[numbers] for value in (simplest, most))
    by_seed = (low - high).groupby(level="seed").mean().dropna(subset="trained")  # an end may have diverged
    if by_seed.empty:
        return None
    trained, error = mean_and_error(by_seed["trained"])
    published = float(by_seed["published"].mean())
    return Fall(
        trained=trained,
        error=error,
        untrained=float(by_seed["untrained"].mean()),
        published=None if isnan(published) else published,
    )


def _side_by_side(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each run and level: the network as it ended, as it started, and the difference."""
    keys = [*KEYS, "seed"]
    trained, untrained = (runs[runs["network"] == network].set_index(keys) for network in (TRAINED, UNTRAINED))
    wide = trained[["shuffled", "matched", "loss"]].assign(
        trained=trained["ncorr"], untrained=untrained["ncorr"], shuffled_untrained=untrained["shuffled"]
    )
    wide = wide.reset_index()
    wide["excess"] = wide["trained"] - wide["untrained"]
    wide["excess_shuffled"] = wide["shuffled"] - wide["shuffled_untrained"]
    return wide


def _published(row: dict[Any, Any]) -> float:
    """Return the number as printed, NaN where the paper has none."""
    key = (row["level"], row["num_latents"], row["num_classes"], row["num_children"])
    return PUBLISHED.get(key, float("nan")) if row["data"] == HIERARCHY else float("nan")


def _hierarchy_grids(config: Config) -> Iterator[tuple[Run, ...]]:
    """Yield a grid for each hidden width; its runs of one number of classes and of children make a pack."""
    base = recipes.recipe("table1").base.update(_common(config, config.steps))
    for hidden in config.hiddens:
        axes: dict[str, tuple[Any, ...]] = {
            "num_classes": config.num_classes,
            "num_latents": config.num_latents,
            "num_children": config.num_children,
            "hidden": (hidden,),
            "lr": config.lrs,
            "seed": config.seeds,
        }
        yield grid(base, axes, tuple(axes))


def _tree_grids(config: Config) -> Iterator[tuple[Run, ...]]:
    """Yield grids of the same network on trees; rates and seeds of one ρ make a pack."""
    trees = {"data": TREES, "tree_depth": TREE_DEPTH, "num_classes": config.tree_classes}
    base = recipes.recipe("table1").base.update(_common(config, config.tree_steps) | trees)
    for hidden in config.tree_hiddens:
        axes = {"rho": config.rhos, "hidden": (hidden,), "lr": config.lrs, "seed": config.seeds}
        yield grid(base, axes, tuple(axes))


def _common(config: Config, steps: int) -> dict[str, Any]:
    """Return what all runs have in common; losses and entropies on the way are not asked for."""
    return {
        "steps": steps,
        "measure_every": steps,
        "width": config.width,
        "batch": config.batch,
        "precision": config.precision,
    }


def _scores(run: RunConfig, trained: Parameters, config: Config, device: str) -> list[Row]:
    """Return a row for each level and network."""
    samples = latent_samples(run, config.num_samples, device)
    networks = {TRAINED: trained, UNTRAINED: _start(run.model, run.seed, device)}
    return [
        run_settings(run) | {"network": network, "level": level} | row
        for network, parameters in networks.items()
        for level, row in enumerate(_levels(Decoder(run.model), parameters, samples, run.seed, config.num_shuffles))
    ]


def _measuring_seconds(run: RunConfig, config: Config, device: str) -> float:
    """Return what measuring a run takes, by its network at the start in place of the trained one."""
    return tried_once(lambda: _scores(run, _start(run.model, run.seed, device), config, device), device)


@lru_cache(maxsize=NUM_STARTS)
def _start(model: DecoderConfig, seed: int, device: str) -> Parameters:
    return of_one_run(Decoder(model).initial(seed), device)


def _levels(
    decoder: Decoder, parameters: Parameters, samples: LatentSamples, seed: int, num_shuffles: int
) -> list[Row]:
    """Compare every level of latents with the block of the same number."""
    reading = read_neurons(decoder, parameters, samples)
    compared = zip(samples.latents, reading.peaks, strict=False)  # the hierarchy's third level are its classes
    return [
        ncorr(latents, peaks, seed=seed, num_shuffles=num_shuffles, groups=samples.drawn) | {"loss": reading.loss}
        for latents, peaks in compared
    ]
