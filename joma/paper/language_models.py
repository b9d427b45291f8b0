"""Language models of figures 6 and 8: trained as tasks of the store, one for each condition and depth.

A task trains all its runs in packs and keeps one curve for each run, metric and layer. Effects (fall, dip, rise) come
from these curves, so they do not depend on how the runs were packed or how often they were measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from joma.data.corpora import find_text
from joma.engine.grid import FIGURE_6_DEPTHS, TEXT_RATES, TEXT_SEEDS
from joma.engine.training import Progress, runs_of, train
from joma.measure.effects import describe, name_of
from joma.metrics import METRICS
from joma.paper.experiment import Measured, gathered, select
from joma.store import Store, Task, Workspace, read

PAPER, UNTRAINED, OTHER_PRECISION, LINEAR = "as in the paper", "untrained", "tf32", "linear activation"
CONTROLS: dict[str, dict[str, Any]] = {
    LINEAR: {"activation": "linear"},
    "no optimiser restart": {"restart_every_epoch": False},
    "no dropout": {"dropout": 0.0},
    "frozen attention": {"frozen": "attention"},
}
"""Ingredients that the rebound of the entropy may need, each taken away on its own."""
WIKITEXT2, WIKITEXT103, EMBEDDED = "wikitext2", "wikitext103", "python-docs"
ENTROPY, WINDOW, RANK, LOSS = "entropy", "entropy_window", "stable_rank", "loss"
SETTING = ["text", "condition", "depth", "lr", "seed"]
SHALLOW = 2
"""Up to this depth every layer is judged; above it the upper half."""
ALL_HEADS = -1
EARLIEST_DIP = 0.03
"""Learning rate times step before which the short first dip lies; the dip is searched after it."""
SECONDS_OF_A_STEP = {"cuda": 6e-5, "cpu": 1e-3}
"""For one run and one block; measured rates replace them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelConfig:
    """Runs of figures 6 and 8 and their controls."""

    text: str = WIKITEXT2
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which every run differs from the paper's recipe."""
    depths: tuple[int, ...] = FIGURE_6_DEPTHS
    rate: float = 1e-4
    """The learning rate that the paper calls best."""
    rates: tuple[float, ...] = TEXT_RATES
    """Figure 8, at the depth `rate_depth`."""
    rate_depth: int = 5
    seeds: tuple[int, ...] = TEXT_SEEDS
    controls: tuple[str, ...] = tuple(CONTROLS)
    control_depths: tuple[int, ...] = (1, 5)
    checked_depths: tuple[int, ...] = (1, 5)
    """Depths at which one seed is trained in TF32 as well, to compare bf16 with it."""
    needs_gpu: bool = True


FULL = LanguageModelConfig(settings={"precision": "bf16", "measure_every": 400, "measure_spacing": "early"})
"""The paper's settings, measured at about 170 steps, densely around the dip."""
FULL103 = LanguageModelConfig(
    text=WIKITEXT103,
    settings={"precision": "bf16", "epochs": 5, "measure_every": 2500, "measure_spacing": "early"},
    controls=(),
    checked_depths=(),
)
QUICK = LanguageModelConfig(
    text=EMBEDDED,
    settings={
        "vocabulary_cap": 2000,
        "width": 64,
        "hidden": 64,
        "embedding_scale": 8.0,
        "batch": 10,
        "steps": 400,
        "measure_every": 5,
        "valid_windows": 3,
        "precision": "fp32",
    },
    depths=(1, 2, 3),
    rate=3e-3,
    rates=(1e-3, 3e-3, 1e-2),
    rate_depth=2,
    seeds=(1, 2),
    controls=(LINEAR, "no dropout", "frozen attention"),
    control_depths=(1,),
    checked_depths=(),
    needs_gpu=False,
)
"""Width 64, 2,000 words of Python's documentation, 400 steps, two seeds: what fits on two cores."""


def tasks(
    config: LanguageModelConfig, device: str, conditions: Iterable[str], depths: Iterable[int] = ()
) -> list[Task]:
    """Return one task for each condition and depth; at the depth of figure 8 all learning rates are one task.

    Args:
        config: The runs.
        device: Where they are trained, for the expected time.
        conditions: `PAPER`, `UNTRAINED`, `OTHER_PRECISION` or names of `CONTROLS`.
        depths: Depths of the paper's own condition; the others have theirs in the config.
    """
    found = []
    for condition in conditions:
        for depth in depths if condition in (PAPER, UNTRAINED) else ():
            own: dict[str, Any] = {"lr": config.rates if depth == config.rate_depth else (config.rate,)}
            if condition == UNTRAINED:
                own = {"lr": (0.0,), "steps": 8, "epochs": None, "measure_every": 1}
            found.append(_task(config, device, condition, depth, **own))
        if condition == OTHER_PRECISION:
            own = {"seed": config.seeds[:1], "precision": OTHER_PRECISION}
            found += [_task(config, device, condition, depth, **own) for depth in config.checked_depths]
        elif condition in CONTROLS:
            found += [_task(config, device, condition, depth, **CONTROLS[condition]) for depth in config.control_depths]
    return found


def needs(config: Any, device: str) -> str:
    """Return what is missing to train these models here."""
    if config.needs_gpu and device == "cpu":
        return "It needs a GPU: on a CPU these runs would take weeks."
    try:
        find_text(config.text)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


def measured(store: Store, tasks: Sequence[Task]) -> Measured:
    """Train what is left, join the tables of finished tasks and describe every curve."""
    t = gathered(store, tasks)
    if not t:
        return t
    keys, rows = [*SETTING, "metric", "layer"], []
    for key, curve in t.curves[t.curves["metric"] != LOSS].groupby(keys, sort=False):
        own = dict(zip(keys, key, strict=True))
        rows.append(own | _effects(curve, own["metric"], own["lr"]))
    return t.copy_with(effects=pd.DataFrame(rows))


def effects_of(t: Measured) -> pd.DataFrame:
    """Return fall, dip and rise of every curve; of results of version 0.1 from the lowest raw value."""
    if "effects" in t:
        return t.effects
    old = t.regimes
    return old.assign(
        start=old["first"],
        fall=old["first"] - old["lowest"],
        rise=old["end"] - old["lowest"],
        dip_step=old["dip_step"].fillna(old["lowest_step"]),
        name=old["kind"],
        resolved=True,
    )


def judged_layers(effects: pd.DataFrame) -> pd.DataFrame:
    """Keep the layers that the paper speaks of: all of shallow models, the upper half of deep ones."""
    return effects[(effects["depth"] <= SHALLOW) | (effects["layer"] >= (effects["depth"] + 1) // 2)]


def per_run(effects: pd.DataFrame, column: str, **chosen: Any) -> pd.Series:
    """Return the mean of a column over layers for each seed, of the runs with these settings."""
    return select(effects, **chosen).groupby("seed")[column].mean()


def mean_curves(t: Measured, metric: str, **chosen: Any) -> pd.DataFrame:
    """Return the mean over seeds, in a column of the metric's name, with the lowest and the highest, for drawing."""
    curves = select(t.curves, metric=metric, **chosen)
    if "mean" in curves:  # version 0.1 kept nothing else
        return curves.rename(columns={"mean": metric})
    by = curves.groupby([*SETTING[:-1], "metric", "layer", "step"], as_index=False)["value"]
    return by.agg(**{metric: "mean", "low": "min", "high": "max"})


def _task(config: LanguageModelConfig, device: str, condition: str, depth: int, **own: Any) -> Task:
    axes = {
        "data": config.text,
        **config.settings,
        "depth": (depth,),
        "lr": (config.rate,),
        "seed": config.seeds,
        **own,
    }
    grid = {name: value for name, value in axes.items() if value is not None}
    runs = runs_of(grid, "figure6")
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in grid.items()}
    steps = grid.get("steps", 58_560)
    return Task(
        name=f"{condition}, depth {depth}, {len(runs)} runs",
        key={"runs": sorted(run.name for run in runs), "settings": plain, "condition": condition},
        work=lambda space: _train(space, grid, config.text, condition),
        seconds=20.0 + len(runs) * steps * depth * SECONDS_OF_A_STEP[device.partition(":")[0]],
        kind="language models",
        precision=str(grid.get("precision", "fp32")),
    )


def _train(space: Workspace, grid: Mapping[str, Any], text: str, condition: str) -> dict[str, pd.DataFrame]:
    """Train what is not trained yet, and read the records."""

    def report(at: Progress) -> None:
        total = sum(pack.seconds for pack in at.plan.packs) or 1.0
        space.progress(min(at.seconds_done / total, 1.0), f"pack {at.num_packs_done + 1} of {len(at.plan.packs)}")

    done = train(grid, out=space.folder, recipe="figure6", device=space.device, progress=report)
    settings = {run.name: run.config for run in runs_of(grid, "figure6")}
    runs, curves = [], []
    for each in done.runs:
        config = settings[each.name]
        own = {"text": text, "condition": condition} | {name: config.get(name) for name in ("depth", "lr", "seed")}
        table = read(each.folder)
        table = table[(table["head"] == ALL_HEADS) & np.isfinite(table["value"])].sort_values("step", kind="stable")
        table = table[(table["metric"] != LOSS) | (table["site"] == "validation")]
        losses = table[table["metric"] == LOSS].set_index("step")["value"]
        failed_at = -1 if each.failed_at is None else each.failed_at
        ends = {"status": each.status, "failed_at": failed_at, "num_steps": each.step}
        best = {"first_loss": losses.iloc[0], "best_loss": losses.min(), "best_step": losses.idxmin()}
        runs.append(own | ends | best | {"end_loss": losses.iloc[-1], "precision": config.get("precision")})
        kept = table.loc[table["metric"].isin((LOSS, ENTROPY, WINDOW, RANK)), ["metric", "layer", "step", "value"]]
        curves.append(kept.assign(**own).astype({"value": "float32"}))
    columns = [*SETTING, "metric", "layer", "step", "value"]
    return {"runs": pd.DataFrame(runs), "curves": pd.concat(curves, ignore_index=True)[columns]}


def _effects(curve: pd.DataFrame, metric: str, rate: float) -> dict[str, Any]:
    """Describe one curve; the dip is searched between the short first one and the middle of training."""
    steps, values = curve["step"].to_numpy(), curve["value"].to_numpy(dtype=float)
    known = METRICS[metric]
    first = EARLIEST_DIP / rate if rate else 0.0
    search = (first, steps[-1] / 2) if metric in (ENTROPY, WINDOW) and first < steps[-1] / 4 else None
    found = describe(steps, values, bounds=known.bounds, search=search)
    effects = {name: getattr(found, name).value for name in ("start", "lowest", "end", "fall", "rise")}
    effects |= {"dip_step": found.dip_time.value, "rise_low": found.rise.low, "rise_high": found.rise.high}
    named = name_of(found, smallest=known.change_from(found.start.value)).value
    return effects | {"resolved": found.resolved, "name": named}
