"""Settings of language models, each with its seeds: which of them a claim needs, which are there, and how to name them.

A number of figures 6 and 8 is a mean over seeds, so that a setting is there once all its seeds have ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pandas as pd

from joma.experiments.language_model_config import PAPER, UNTRAINED, Config
from joma.experiments.markdown import enumerated
from joma.figures.numbers import fewest_letters

NOTHING_YET = "There is nothing on this yet."
"""Said of a claim of which no setting is there."""


class Setting(NamedTuple):
    """What runs have in common which differ in their seed alone; its fields are columns of the tables."""

    text: str
    condition: str
    depth: int
    lr: float


def by_depth(config: Config, text: str, depths: Iterable[int], condition: str = PAPER) -> list[Setting]:
    """Return settings at the learning rate of figure 6, or untrained ones."""
    lr = 0.0 if condition == UNTRAINED else config.rate
    return [Setting(text, condition, depth, lr) for depth in depths]


def by_rate(config: Config, text: str) -> list[Setting]:
    """Return the settings of figure 8."""
    return [Setting(text, PAPER, config.rate_depth, lr) for lr in config.rates]


def absent(wanted: Iterable[Setting], runs: pd.DataFrame) -> list[Setting]:
    """Return the settings of which a table of runs has none."""
    there = set(runs[list(Setting._fields)].itertuples(index=False, name=None))
    return [setting for setting in wanted if setting not in there]


def in_words(settings: Iterable[Setting]) -> str:
    """Name settings of one text, those together that differ in depth, learning rate or condition alone.

    >>> in_words(Setting("t", name, depth, 1e-4) for name in ("linear", "no dropout") for depth in (1, 5))
    'linear and no dropout at depths 1 and 5, learning rate 1e-4'
    >>> in_words([Setting("t", "untrained", 1, 0.0), Setting("t", "linear", 1, 1e-4), Setting("t", "linear", 1, 1e-3)])
    'untrained at depth 1; linear at depth 1, learning rates 1e-4 and 1e-3'
    """
    return "; ".join(_groups_in_words(settings))


def not_yet(what: str) -> str:
    """Tell what a claim lacks."""
    return f"Not there yet: {what}."


def _groups_in_words(settings: Iterable[Setting]) -> Iterator[str]:
    depths: dict[tuple[str, float], list[int]] = defaultdict(list)
    for each in settings:
        depths[each.condition, each.lr].append(each.depth)
    rates: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    for (condition, lr), own in depths.items():
        rates[condition, tuple(sorted(own))].append(lr)
    conditions: dict[tuple[tuple[int, ...], tuple[float, ...]], list[str]] = defaultdict(list)
    for (condition, deep), lrs in rates.items():
        conditions[deep, () if condition == UNTRAINED else tuple(lrs)].append(condition)
    for (deep, trained_at), names in conditions.items():
        at = f", {_each('learning rate', map(fewest_letters, trained_at))}" if trained_at else ""
        yield f"{enumerated(names)} at {_each('depth', map(str, deep))}{at}"


def _each(what: str, values: Iterable[str]) -> str:
    named = list(values)
    return f"{what}{'s' if len(named) > 1 else ''} {enumerated(named)}"
