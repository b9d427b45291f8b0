"""Language models that experiments train: shared settings, one task for each condition, and the dips of their curves.

A task of the store trains all runs of one condition and depth and keeps one curve for each run, metric and layer. What
is measured does not depend on how the runs were packed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joma.data.corpora import find_text
from joma.engine.config import RunConfig
from joma.engine.snapshots import load_snapshot, path_of, steps_of
from joma.engine.training import Progress, runs_of, train
from joma.measure.effects import describe, name_of
from joma.metrics import METRICS
from joma.models.batch import Parameters
from joma.paper.experiment import Measured, gathered, gpu_missing, select
from joma.paper.latent_neurons import of_one_run
from joma.store import Store, Task, Workspace, info, read

Settings = dict[str, Any]
"""Settings or axes of a grid, next to figure 6's recipe."""
PAPER, LINEAR, FROZEN = "as in the paper", "linear activation", "frozen attention"
"""Names of conditions."""
ENTROPY, WINDOW, RANK, LOSS = "entropy", "entropy_window", "stable_rank", "loss"
SETTING = ["text", "condition", "depth", "lr", "seed"]
CURVES = (LOSS, ENTROPY, WINDOW, RANK)
"""Metrics that are kept, unless an experiment asks for others."""
SAVED = "parameters."
"""Prefix of the parameters in a snapshot."""
ALL_HEADS = -1
EARLIEST_DIP = 0.03
"""Learning rate times step before which the short first dip lies; the dip is searched after it."""
SECONDS_OF_A_STEP = {"cuda": 6e-5, "cpu": 1e-3}
"""For one run and one block; measured rates replace them."""
VISIBLE = 0.1
"""Rise of the entropy, in nats, that counts as a rebound."""
NEEDED = 1 / 3
"""An ingredient is needed if the rise without it is below this share of the rise with it."""
LONG: Settings = {"precision": "bf16", "steps": 20_000, "measure_every": 200, "measure_spacing": "early"}
"""The common setting of the open questions at full size."""


def small(words: int, width: int, **own: Any) -> Settings:
    """Return settings for one CPU core: the most frequent words, narrow layers and half the batch."""
    scale = float(round(width**0.5))
    sizes = {"vocabulary_cap": words, "width": width, "hidden": width, "embedding_scale": scale, "batch": 10}
    return {**sizes, "precision": "fp32", **own}


def needs(config: Any, device: str) -> str:
    """Return what is missing to train these models here."""
    if config.needs_gpu and (missing := gpu_missing(device)):
        return missing
    try:
        find_text(config.text)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


def one_task(
    config: Any,
    device: str,
    condition: str,
    depth: int,
    *,
    metrics: Sequence[str] = CURVES,
    by: Sequence[str] = ("layer",),
    **own: Any,
) -> Task:
    """Return the task that trains one condition at one depth; `own` are its settings.

    Args:
        config: Text, settings, learning rate and seeds of all runs.
        device: Where they are trained, for the expected time.
        condition: Name of the condition in tables.
        depth: Number of blocks.
        metrics: Metrics whose curves are kept; no part of the task's key, so a task that exists keeps its curves.
        by: Columns of the record in which the curves of one metric and run differ.
        own: Settings, or axes of the grid, in which this condition differs.
    """
    axes = {"depth": (depth,), "lr": (config.rate,), "seed": config.seeds}
    grid = {"data": config.text, **config.settings, **axes, **own}
    grid = {name: value for name, value in grid.items() if value is not None}
    runs = runs_of(grid, "figure6")
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in grid.items()}
    step = SECONDS_OF_A_STEP[device.partition(":")[0]]
    return Task(
        name=f"{condition}, depth {depth}, {len(runs)} runs",
        key={"runs": sorted(run.name for run in runs), "settings": plain, "condition": condition},
        work=lambda space: _train(space, grid, config.text, condition, metrics, by),
        seconds=20.0 + len(runs) * grid.get("steps", 58_560) * depth * step,
        kind="language models",
        precision=str(grid.get("precision", "fp32")),
    )


def _train(
    space: Workspace,
    grid: Mapping[str, Any],
    text: str,
    condition: str,
    metrics: Sequence[str],
    by: Sequence[str],
) -> dict[str, pd.DataFrame]:
    """Train what is not trained yet, and read the records."""

    def report(at: Progress) -> None:
        packs = at.plan.packs
        total = sum(pack.seconds for pack in packs) or 1.0
        number = min(at.num_packs_done + 1, len(packs))
        space.progress(min(at.seconds_done / total, 1.0), f"pack {number} of {len(packs)}")

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
        ends = {"status": each.status, "failed_at": -1 if each.failed_at is None else each.failed_at}
        ends["num_steps"] = each.step
        best = {"first_loss": losses.iloc[0], "best_loss": losses.min(), "best_step": losses.idxmin()}
        runs.append(own | ends | best | {"end_loss": losses.iloc[-1], "precision": config.get("precision")})
        kept = table.loc[table["metric"].isin(metrics), ["metric", *by, "step", "value"]]
        curves.append(kept.assign(**own).astype({"value": "float32"}))
    columns = [*SETTING, "metric", *by, "step", "value"]
    return {"runs": pd.DataFrame(runs), "curves": pd.concat(curves, ignore_index=True)[columns]}


def with_ends(task: Task, table: str, read_end: Callable[[RunConfig, Parameters, str], Mapping[str, Any]]) -> Task:
    """Return a task of `one_task` with one more table: a row for each run that reached its end.

    Args:
        task: Trains the runs.
        table: Name of the table; part of the task's key.
        read_end: Takes a run's config, its trained parameters and the device, and returns further columns.
    """

    def work(space: Workspace) -> dict[str, pd.DataFrame]:
        tables = dict(task.work(space))
        rows = []
        for name in task.key["runs"]:
            folder = space.folder / name
            if info(folder).status != "finished":
                continue
            config, parameters = end_of(folder, space.device)
            own = {"text": config.data.data, "condition": task.key["condition"]}
            own |= {name: config.get(name) for name in SETTING[2:]}
            rows.append(own | dict(read_end(config, parameters, space.device)))
        return tables | {table: pd.DataFrame(rows)}

    return replace(task, key={**task.key, "table": table}, work=work)


def end_of(folder: Path, device: str) -> tuple[RunConfig, Parameters]:
    """Return the config of a finished run, with the vocabulary of its text, and its parameters at the end."""
    saved = load_snapshot(path_of(folder, steps_of(folder)[-1])).tensors
    own = {name.removeprefix(SAVED): tensor for name, tensor in saved.items() if name.startswith(SAVED)}
    return RunConfig.from_dict(info(folder).config), of_one_run(own, device)


def measured(store: Store, tasks: Sequence[Task]) -> Measured:
    """Train what is left, join the tables of finished tasks and describe every curve."""
    return described(gathered(store, tasks))


def described(t: Measured) -> Measured:
    """Return the tables with fall, dip and rise of every curve, in `effects`."""
    if not t:
        return t
    keys = [*SETTING, "metric", "layer"]
    curves = t.curves[t.curves["metric"] != LOSS].groupby(keys, sort=False)
    return t.copy_with(effects=pd.DataFrame(_described(dict(zip(keys, key, strict=True)), own) for key, own in curves))


def _described(about: dict[str, Any], curve: pd.DataFrame) -> dict[str, Any]:
    """Describe one curve; the dip is searched between the short first one and the middle of training."""
    steps, values = curve["step"].to_numpy(), curve["value"].to_numpy(dtype=float)
    known, first = METRICS[about["metric"]], EARLIEST_DIP / about["lr"] if about["lr"] else 0.0
    is_searched = about["metric"] in (ENTROPY, WINDOW) and first < steps[-1] / 4
    found = describe(steps, values, bounds=known.bounds, search=(first, steps[-1] / 2) if is_searched else None)
    effects = {name: getattr(found, name).value for name in ("start", "lowest", "end", "fall", "rise")}
    effects |= {"dip_step": found.dip_time.value, "rise_low": found.rise.low, "rise_high": found.rise.high}
    named = name_of(found, smallest=known.change_from(found.start.value)).value
    return about | effects | {"resolved": found.resolved, "name": named}


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
