"""Which runs of Table 1 are finished while others are not, and which of them can be averaged without misleading.

A number of the table is a mean over seeds, and a verdict rests on means over settings, which differ in how hard they
are. So nothing is averaged over some of the seeds, and an open choice (data, hidden width, learning rate) is judged and
held against others only where every setting and seed of it is finished. Of the other choices, settings of which all
seeds are finished are shown by themselves; runs beyond those wait.
"""

from dataclasses import dataclass

import pandas as pd

from joma.engine.config import HIERARCHY
from joma.engine.extent import completed
from joma.experiments.experiment import Workplace
from joma.experiments.latent_neurons import rows_path
from joma.experiments.table1_measure import KEYS, Config, grids_of, measure_settings, run_settings

CHOICE = ["data", "hidden", "lr"]
"""What a mean over settings and seeds is taken for."""
SETTING = [name for name in KEYS if name != "level"]
"""What a mean over seeds is taken for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The runs that are finished, some of them perhaps by diverging, which leaves no rows."""

    num_done: int
    num_all: int
    whole: pd.DataFrame
    """Rows of choices of which all runs are finished."""
    in_part: pd.DataFrame
    """Rows of the other choices, of settings of which all seeds are finished."""
    num_waiting: int
    """Finished runs of settings of which a seed is not."""
    absent: tuple[str, ...]
    """Choices that are not whole, in words, with how much of them is there."""


def finished(config: Config, workplace: Workplace) -> Finished | None:
    """Read the rows that are kept; None if none are."""
    planned = [completed(run.config) for runs in grids_of(config) for run in runs]
    paths = [rows_path(each, workplace, settings=measure_settings(config)) for each in planned]
    tables = [pd.read_parquet(path) if path.exists() else None for path in paths]
    runs = pd.DataFrame([run_settings(each) for each in planned])
    runs["is_done"] = [table is not None for table in tables]
    runs["is_whole"] = runs.groupby(CHOICE)["is_done"].transform("all")
    runs["has_all_seeds"] = runs.groupby(SETTING)["is_done"].transform("all")
    rows = [
        table.assign(is_whole=run.is_whole, has_all_seeds=run.has_all_seeds)
        for table, run in zip(tables, runs.itertuples(), strict=True)
        if table is not None and len(table)
    ]
    if not rows:
        return None
    found = pd.concat(rows, ignore_index=True)
    labels = ["is_whole", "has_all_seeds"]
    return Finished(
        num_done=int(runs["is_done"].sum()),
        num_all=len(runs),
        whole=found[found["is_whole"]].drop(columns=labels).reset_index(drop=True),
        in_part=found[found["has_all_seeds"] & ~found["is_whole"]].drop(columns=labels).reset_index(drop=True),
        num_waiting=int((runs["is_done"] & ~runs["has_all_seeds"]).sum()),
        absent=tuple(_in_words(own) for _, own in runs[~runs["is_whole"]].groupby(CHOICE, sort=False)),
    )


def _in_words(choice: pd.DataFrame) -> str:
    first = choice.iloc[0]
    data = "hierarchy" if first["data"] == HIERARCHY else "latent trees"
    done = f"{choice['is_done'].sum()} of {len(choice)} runs"
    return f"{data}, hidden {first['hidden']}, learning rate {first['lr']:g} ({done})"
