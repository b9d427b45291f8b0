"""The runs behind figures 6 and 8: trained in packs, each once, and their records as tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from joma.engine.config import RunConfig
from joma.engine.grid import Run, axes_of, grid, recipe
from joma.engine.loop import PackProgress, train_pack
from joma.engine.measuring import ALL_HEADS, ENTROPY, LOSS, RANK, VALIDATION, WINDOW
from joma.engine.plan import Pack, PackPlan, make_plan
from joma.experiments.ended_runs import EndedRun, ended_run
from joma.experiments.experiment import Workplace
from joma.experiments.language_model_config import (
    CONTROLS,
    OTHER_PRECISION,
    PAPER,
    TEXT_SETTINGS,
    UNTRAINED,
    Config,
)
from joma.experiments.language_model_settings import Setting
from joma.experiments.pack_pieces import pack_pieces
from joma.experiments.timetable import Piece, Tell
from joma.measure.regime import MIN_POINTS, regimes
from joma.models.batch import Parameters
from joma.store import read

DRAWN = (LOSS, ENTROPY, WINDOW, RANK)
"""Metrics whose curves are kept."""
SETTING = list(Setting._fields)
"""Columns that runs have in common which differ in their seed alone."""
RUN_COLUMNS = [
    *SETTING, "seed", "status", "failed_at", "num_steps", "first_loss", "best_loss", "best_step", "end_loss",
    "precision", "git_commit",
]  # fmt: skip
REGIME_COLUMNS = [
    *SETTING, "seed", "metric", "layer", "kind", "confidence", "dip_step", "dip_depth", "rebound", "first", "end",
    "lowest", "lowest_step",
]  # fmt: skip
CURVE_COLUMNS = [*SETTING, "metric", "layer", "step", "mean", "low", "high"]
"""A table has its columns before there is a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Runs that are trained for one purpose."""

    text: str
    condition: str
    recipe: str
    grid: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it trains, in words."""
        return f"{self.text}, {self.condition}, depth {', '.join(map(str, self.grid['depth']))}"

    def setting_of(self, run: Run) -> Setting:
        """What one of its runs has in common with those that differ in their seed alone."""
        return Setting(self.text, self.condition, run.config.get("depth"), run.config.get("lr"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A run that has ended, and what it was trained for."""

    run: EndedRun
    text: str
    condition: str

    @property
    def config(self) -> RunConfig:
        """Its settings, as it was trained."""
        return self.run.config

    @property
    def labels(self) -> dict[str, Any]:
        """What tells it from the other runs."""
        own = {name: self.config.get(name) for name in ("depth", "lr", "seed")}
        return {"text": self.text, "condition": self.condition, **own}

    def table(self) -> pd.DataFrame:
        """Return what was measured of all heads together."""
        table = read(self.run.folder)
        return table[table["head"] == ALL_HEADS].sort_values("step", kind="stable")


def suites(config: Config) -> tuple[Suite, ...]:
    """Return the suites in their order; the large pack of learning rates comes first and holds figure 6's depth."""
    return tuple(suite for text in config.texts for suite in _of_text(config, text))


def _of_text(config: Config, text: str) -> Iterator[Suite]:
    base = {"data": text, **TEXT_SETTINGS.get(text, {}), **config.settings}

    def suite(condition: str, recipe: str = "figure6", **own: Any) -> Suite:
        axes = {"depth": config.depths, "lr": (config.rate,), "seed": config.seeds}
        return Suite(text=text, condition=condition, recipe=recipe, grid={**base, **axes, **own})

    yield suite(PAPER, "figure8", depth=(config.rate_depth,), lr=config.rates)
    yield suite(PAPER)
    yield suite(UNTRAINED, lr=(0.0,), steps=MIN_POINTS, measure_every=1)
    if text == config.texts[0]:
        for name in config.controls:
            yield suite(name, depth=config.control_depths, **CONTROLS[name])
        if config.checked_depths:
            yield suite(OTHER_PRECISION, depth=config.checked_depths, seed=config.seeds[:1], precision=OTHER_PRECISION)


def training_pieces(config: Config, workplace: Workplace) -> list[Piece]:
    """Return the packs that are left to train; where none is, neither text nor GPU is asked for."""
    folder, known = runs_folder(workplace), set[str]()
    pieces: list[Piece] = []
    for suite in suites(config):
        new = [run for run in runs_of(suite) if run.name not in known]
        known |= {run.name for run in new}
        plans = _plans(new, folder, workplace.device)
        pieces += pack_pieces(
            plans,
            folder,
            device=workplace.device,
            timetable=workplace.timetable,
            name=suite.name,
            work=partial(_train, suite=suite, folder=folder, device=workplace.device),
        )
    return pieces


def ended_runs(config: Config, workplace: Workplace) -> list[Found]:
    """Return all runs that have ended, each once, by their records."""
    folder = runs_folder(workplace)
    return [
        Found(run=end, text=suite.text, condition=suite.condition)
        for suite, run in planned_runs(config).values()
        if (end := ended_run(run, folder)) is not None
    ]


def are_trained(config: Config, workplace: Workplace) -> bool:
    """Whether every run has ended."""
    folder = runs_folder(workplace)
    return all(ended_run(run, folder) for _, run in planned_runs(config).values())


def planned_runs(config: Config) -> dict[str, tuple[Suite, Run]]:
    """Return every run once, by its name, with the first suite that has it."""
    planned: dict[str, tuple[Suite, Run]] = {}
    for suite in suites(config):
        for run in runs_of(suite):
            planned.setdefault(run.name, (suite, run))
    return planned


def runs_folder(workplace: Workplace) -> Path:
    """Return the folder of the runs."""
    return workplace.folder / "runs"


def runs_of(suite: Suite) -> tuple[Run, ...]:
    """Return the runs of a suite."""
    chosen = recipe(suite.recipe)
    return grid(chosen.base, {**chosen.axes, **axes_of(suite.grid)}, tuple(chosen.axes))


def _plans(runs: Sequence[Run], folder: Path, device: str) -> tuple[PackPlan, ...]:
    """Pack the runs that have not ended; those of their shape that diverged keep their places beside them."""
    ended = {run.name: ended_run(run, folder) for run in runs}
    open_shapes = {run.config.shape for run in runs if ended[run.name] is None}
    left = [
        run
        for run in runs
        if run.config.shape in open_shapes and ((end := ended[run.name]) is None or end.failed_at is not None)
    ]
    return make_plan(left, device=torch.device(device)).packs if left else ()


def _train(pack: Pack, tell: Tell, *, suite: Suite, folder: Path, device: str) -> None:
    def told(at: PackProgress) -> None:
        tell(at.step / at.num_steps, f"{suite.name}: step {at.step:,} of {at.num_steps:,}")

    def leave(name: str, parameters: Parameters) -> None:
        """Keep nothing of the end: the record is all that is needed, and the weights of a large pack are gigabytes."""

    train_pack(pack, folder, device=device, progress=told, take=leave)


def tables_of(found: list[Found]) -> dict[str, pd.DataFrame]:
    """Return runs, curves over the seeds, and regimes of every curve."""
    runs: list[dict[str, Any]] = []
    curves: list[pd.DataFrame] = []
    named: list[dict[str, Any]] = []
    for each in found:
        table = each.table()
        runs.append(_run_row(each, table))
        curves.append(table[table["metric"].isin(DRAWN)].assign(**each.labels))
        named += _regime_rows(each, table)
    return {
        "runs": pd.DataFrame(runs, columns=RUN_COLUMNS),
        "curves": _over_seeds(curves),
        "regimes": pd.DataFrame(named, columns=REGIME_COLUMNS),
    }


def validation_losses(table: pd.DataFrame) -> pd.Series:
    """Return the finite validation losses of a run by step."""
    chosen = table[(table["metric"] == LOSS) & (table["site"] == VALIDATION)]
    losses = chosen.set_index("step")["value"].astype(float)
    return losses[losses.abs() < float("inf")]


def _run_row(found: Found, table: pd.DataFrame) -> dict[str, Any]:
    losses, run = validation_losses(table), found.run
    return {
        **found.labels,
        "status": run.status,
        "failed_at": -1 if run.failed_at is None else run.failed_at,
        "num_steps": run.step,
        "first_loss": losses.iloc[0],
        "best_loss": losses.min(),
        "best_step": losses.idxmin(),
        "end_loss": losses.iloc[-1],
        "precision": found.config.get("precision"),
        "git_commit": run.git_commit,
    }


def _regime_rows(found: Found, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    curves = dict(iter(table.groupby(["metric", "layer"])))
    for each in regimes(table):
        curve = curves[each.metric, each.layer]
        values = curve["value"].to_numpy()
        values, steps = values[abs(values) < float("inf")], curve["step"].to_numpy()[abs(values) < float("inf")]
        yield {
            **found.labels,
            "metric": each.metric,
            "layer": each.layer,
            "kind": each.regime.kind.value,
            "confidence": each.regime.confidence,
            "dip_step": each.regime.dip_step,
            "dip_depth": each.regime.dip_depth,
            "rebound": each.regime.rebound,
            "first": values[0],
            "end": each.regime.end,
            "lowest": values.min(),
            "lowest_step": steps[values.argmin()],
        }


def _over_seeds(curves: list[pd.DataFrame]) -> pd.DataFrame:
    """Average runs that differ in their seed alone; in single precision, which is enough to draw."""
    if not curves:
        return pd.DataFrame(columns=CURVE_COLUMNS)
    together = pd.concat(curves, ignore_index=True)
    kept = together[(together["metric"] != LOSS) | (together["site"] == VALIDATION)]
    grouped = kept.groupby([*SETTING, "metric", "layer", "step"])["value"]
    means = grouped.agg(mean="mean", low="min", high="max").reset_index()
    return means.astype({"mean": "float32", "low": "float32", "high": "float32"})
