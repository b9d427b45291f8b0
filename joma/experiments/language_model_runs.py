"""The runs behind figures 6 and 8: trained as grids, each once, and their records as tables."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joma.engine.config import RunConfig
from joma.engine.measuring import ALL_HEADS, ENTROPY, LOSS, RANK, VALIDATION, WINDOW, regimes
from joma.engine.train import Progress, TrainedRun, train
from joma.experiments.language_model_config import (
    CONTROLS,
    OTHER_PRECISION,
    PAPER,
    TEXT_SETTINGS,
    UNTRAINED,
    Config,
)
from joma.measure.regime import MIN_POINTS
from joma.runs.record import info, read

Tell = Callable[[float, str], None]
DRAWN = (LOSS, ENTROPY, WINDOW, RANK)
"""Metrics whose curves are kept."""
SETTING = ["text", "condition", "depth", "lr"]
"""Columns that runs have in common which differ in their seed alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Runs that one call trains."""

    text: str
    condition: str
    recipe: str
    grid: Mapping[str, Any]

    @property
    def work(self) -> float:
        """About how long it takes, in runs of one block."""
        num = len(self.grid["lr"]) * len(self.grid["seed"]) * sum(self.grid["depth"])
        return num * (0.0 if self.condition == UNTRAINED else 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A run that has ended, and what it was trained for."""

    run: TrainedRun
    config: RunConfig
    text: str
    condition: str

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
    """Return the calls in their order; the large pack of learning rates comes first and holds figure 6's depth."""
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


def train_all(config: Config, folder: Path, device: str, tell: Tell) -> list[Found]:
    """Train every run that has not ended, and return all of them, each once."""
    wanted = suites(config)
    total = sum(suite.work for suite in wanted)
    found: dict[Path, Found] = {}
    done = 0.0
    for suite in wanted:
        part = suite.work / total
        trained = train(
            suite.grid,
            out=folder,
            recipe=suite.recipe,
            device=device,
            progress=_told(suite, tell, done, part),
        )
        for run in trained.runs:
            own = RunConfig.from_dict(info(run.folder).config)
            found.setdefault(run.folder, Found(run=run, config=own, text=suite.text, condition=suite.condition))
        done += part
    return list(found.values())


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
        "runs": pd.DataFrame(runs),
        "curves": _over_seeds(pd.concat(curves, ignore_index=True)),
        "regimes": pd.DataFrame(named),
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


def _over_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """Average runs that differ in their seed alone; in single precision, which is enough to draw."""
    kept = curves[(curves["metric"] != LOSS) | (curves["site"] == VALIDATION)]
    grouped = kept.groupby([*SETTING, "metric", "layer", "step"])["value"]
    means = grouped.agg(mean="mean", low="min", high="max").reset_index()
    return means.astype({"mean": "float32", "low": "float32", "high": "float32"})


def _told(suite: Suite, tell: Tell, start: float, part: float) -> Callable[[Progress], None]:
    return lambda at: tell(start + part * _share(at), _doing(suite, at))


def _share(at: Progress) -> float:
    packs = at.plan.packs
    done = sum(each.seconds for each in packs[: at.num_packs_done])
    if at.pack is not None and at.num_packs_done < len(packs):
        done += packs[at.num_packs_done].seconds * at.pack.step / at.pack.num_steps
    return min(1.0, done / at.plan.seconds)


def _doing(suite: Suite, at: Progress) -> str:
    runs = f"{suite.text}, {suite.condition}, depth {', '.join(map(str, suite.grid['depth']))}"
    return runs if at.pack is None else f"{runs}: step {at.pack.step:,} of {at.pack.num_steps:,}"
