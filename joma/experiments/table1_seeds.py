"""Over how many seeds the means of Table 1 are: runs that diverged leave no numbers, which is told and not passed over.

A mean is taken over the seeds that there are. How many that is, of how many, stands beside it; the runs that diverged
are listed, and a setting that none of its seeds is left of keeps its place, without a number.
"""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from joma.engine.config import HIERARCHY, RunConfig
from joma.experiments.experiment import Result
from joma.figures.numbers import counted, fewest_letters

KEYS = ["data", "num_classes", "num_children", "num_latents", "rho", "hidden", "lr", "level"]
"""What one number of the table depends on; over seeds it is averaged."""
SETTING = [name for name in KEYS if name != "level"]
"""What a mean over seeds is taken for."""
CHOICE = ["data", "hidden", "lr"]
"""What a mean over settings and seeds is taken for."""
_WHOLE_NUMBERS, _NUMBERS = ("num_classes", "num_children", "hidden", "level", "seed"), ("rho", "lr")
"""Types of these columns."""
DIVERGED = "diverged"
"""Table of the runs that diverged, where there are any."""
NUM_PLANNED = "num_planned"
"""Fact: how many runs were trained, with those that diverged; results that were kept before have none."""
MOST_SETTINGS_NAMED = 12
"""Settings that a sentence names one by one; the table has them all."""


def run_settings(run: RunConfig) -> dict[str, str | int | float]:
    """Return what tells a run from the others, as columns of its rows."""
    data = run.data
    is_hierarchy = data.data == HIERARCHY
    return {
        "data": data.data,
        "num_classes": data.num_classes,
        "num_children": data.num_children if is_hierarchy else data.branching,
        "num_latents": "x".join(map(str, data.num_latents)) if is_hierarchy else "",
        "rho": 1.0 if is_hierarchy else data.rho,
        "hidden": run.model.hidden,
        "lr": run.optimiser.lr,
        "seed": run.seed,
    }


def planned_numbers(runs: Iterable[RunConfig]) -> pd.DataFrame:
    """Return a row for each level of each run: the numbers that there are unless a run diverges."""
    rows = [run_settings(run) | {"level": level} for run in runs for level in range(_num_levels(run))]
    table = pd.DataFrame(rows, columns=[*KEYS, "seed"])
    return table.astype(dict.fromkeys(_WHOLE_NUMBERS, int) | dict.fromkeys(_NUMBERS, float))  # also of no rows


def _num_levels(run: RunConfig) -> int:
    """Return how many levels of latents lie between the tokens and the class."""
    return len(run.data.num_latents) if run.data.data == HIERARCHY else run.data.tree_depth - 1


def diverged_runs(runs: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """Return the planned runs that have no numbers."""
    names = [*SETTING, "seed"]
    asked, there = (pd.MultiIndex.from_frame(table[names]).unique() for table in (planned, runs))
    return asked[~asked.isin(there)].to_frame(index=False)


def told(result: Result) -> str:
    """Say over how many seeds the means are, and which runs diverged; nothing of a result that does not know."""
    if NUM_PLANNED not in result.facts:
        return ""
    diverged, settings = result.tables.get(DIVERGED), result.tables["settings"]
    if diverged is None:
        return f"Every mean is over {_range(settings['num_seeds'])}, and no run diverged."
    empty = settings.loc[settings["num_seeds"] == 0, SETTING].drop_duplicates()
    listed = "; ".join(
        f"{choice_in_words(own)}: {_some(_named(own, settings))}" for _, own in diverged.groupby(CHOICE, sort=False)
    )
    without = f" Without any seed, and so without a number: {counted(len(empty), 'setting')}." if len(empty) else ""
    return (
        f"{len(diverged)} of {result.facts[NUM_PLANNED]} runs diverged and are in no mean, so that means are over "
        f"{_range(settings['num_seeds'])}. They are: {listed}.{without}"
    )


def choice_in_words(runs: pd.DataFrame) -> str:
    """Name the open choice that runs have in common."""
    first = runs.iloc[0]
    data = "hierarchy" if first["data"] == HIERARCHY else "latent trees"
    return f"{data}, hidden {first['hidden']}, learning rate {fewest_letters(first['lr'])}"


def setting_in_words(row: dict[Any, Any]) -> str:
    """Name a setting of an open choice: classes / children / latents of a hierarchy, the polarity of a tree."""
    if row["data"] == HIERARCHY:
        return f"{row['num_classes']}/{row['num_children']}/{row['num_latents']}"
    return f"ρ = {row['rho']:g}"


def of_planned(num: int, num_planned: int, singular: str) -> str:
    """Say how many there are of what was planned, where some are missing.

    >>> of_planned(3, 5, "seed"), of_planned(0, 5, "seed"), of_planned(5, 5, "seed")
    (' (3 of 5 seeds)', ' (none of 5 seeds)', '')
    """
    return f" ({num or 'none'} of {counted(num_planned, singular)})" if num < num_planned else ""


def _named(diverged: pd.DataFrame, settings: pd.DataFrame) -> list[str]:
    """Name the settings of an open choice that have lost seeds, with these."""
    num_planned = settings.groupby(SETTING)["num_seeds_planned"].first()
    return [
        f"{setting_in_words(own.iloc[0].to_dict())} "
        + ("all seeds" if len(own) == num_planned[key] else f"seed {', '.join(map(str, own['seed']))}")
        for key, own in diverged.groupby(SETTING, sort=False)
    ]


def _some(names: list[str]) -> str:
    shown, more = names[:MOST_SETTINGS_NAMED], len(names) - MOST_SETTINGS_NAMED
    return ", ".join(shown) + (f", and {more} settings more" if more > 0 else "")


def _range(num_seeds: pd.Series) -> str:
    """Say how many seeds settings have, those with none aside."""
    numbers = sorted(set(num_seeds[num_seeds > 0].astype(int)))
    if not numbers:
        return "no seeds"
    return counted(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
