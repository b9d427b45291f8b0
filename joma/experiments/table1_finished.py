"""Which runs of Table 1 are finished while others are not, and which of them can be averaged without misleading.

A number of the table is a mean over seeds, and a verdict rests on means over settings, which differ in how hard they
are. So nothing is averaged over some of the seeds, and an open choice (data, hidden width, learning rate) is judged and
held against others only where every setting and seed of it is finished. Of the other choices, settings of which all
seeds are finished are shown by themselves; runs beyond those wait.
"""

from dataclasses import dataclass

import pandas as pd

from joma.engine.sources import with_vocabulary
from joma.experiments.experiment import Workplace
from joma.experiments.latent_neurons import rows_path
from joma.experiments.table1_measure import Config, grids_of, measure_settings
from joma.experiments.table1_seeds import CHOICE, SETTING, choice_in_words, planned_numbers, run_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The runs that are finished, some of them perhaps by diverging, which leaves no rows."""

    num_done: int
    num_all: int
    whole: pd.DataFrame
    """Rows of choices of which all runs are finished."""
    whole_planned: pd.DataFrame
    """What these choices have if no run of them diverged, as `planned_numbers` has it."""
    in_part: pd.DataFrame
    """Rows of the other choices, of settings of which all seeds are finished."""
    in_part_planned: pd.DataFrame
    """What these settings have if no run of them diverged."""
    num_waiting: int
    """Finished runs of settings of which a seed is not."""
    absent: tuple[str, ...]
    """Choices that are not whole, in words, with how much of them is there."""


def finished(config: Config, workplace: Workplace) -> Finished | None:
    """Read the rows that are kept; None if none are."""
    planned = [with_vocabulary(run.config) for runs in grids_of(config) for run in runs]
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
    in_part = runs["has_all_seeds"] & ~runs["is_whole"]

    def planned_where(is_meant: pd.Series) -> pd.DataFrame:
        return planned_numbers(run for run, is_one in zip(planned, is_meant, strict=True) if is_one)

    return Finished(
        num_done=int(runs["is_done"].sum()),
        num_all=len(runs),
        whole=found[found["is_whole"]].drop(columns=labels).reset_index(drop=True),
        whole_planned=planned_where(runs["is_whole"]),
        in_part_planned=planned_where(in_part),
        in_part=found[found["has_all_seeds"] & ~found["is_whole"]].drop(columns=labels).reset_index(drop=True),
        num_waiting=int((runs["is_done"] & ~runs["has_all_seeds"]).sum()),
        absent=tuple(_in_words(own) for _, own in runs[~runs["is_whole"]].groupby(CHOICE, sort=False)),
    )


def _in_words(choice: pd.DataFrame) -> str:
    return f"{choice_in_words(choice)} ({choice['is_done'].sum()} of {len(choice)} runs)"
