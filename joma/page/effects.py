"""The table of layers: how far each curve falls, when it is lowest, and how far it rises again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joma.measure.curve_effects import CurveEffects, curve_effects
from joma.measure.effects import Estimate, Name
from joma.metrics import METRICS
from joma.page import layers
from joma.page.records import Group, trusted
from joma.page.table import Cell, number, words

SHOWN = ("entropy", "stable_rank")
NUMBERS = {"start": "start", "fall": "fall", "dip at step": "dip_time", "rise": "rise", "end": "end"}
"""Columns of the table, with the names of the effects."""
COLUMNS = ["layer", "site", "quantity", "name", *NUMBERS]
TITLES = {
    "name": "Thresholds on fall and rise. Not resolved: too few measurements near the dip, or too much noise.",
    "start": "Level at the first step, smoothed. One run: ± half of the 95 % interval. Several: ± standard error.",
    "fall": "Start minus the lowest value of the smoothed curve.",
    "dip at step": "Where the smoothed curve is lowest.",
    "rise": "End minus the lowest value of the smoothed curve.",
    "end": "Mean of the smoothed curve over the last tenth of training.",
}
"""What the headings mean."""
TONES = {Name.COLLAPSED: "bad", Name.UNIFORM: "warned"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteEffects:
    """A curve of a group, with its effects in each of the runs that have it."""

    metric: str
    layer: int
    site: str
    by_run: Mapping[int, CurveEffects]
    """By the position of the run in its group."""


def described(group: Group) -> list[SiteEffects]:
    """Describe entropy and stable rank site by site and run by run; values that are not to be trusted are left out."""
    found: dict[tuple[str, int, str], dict[int, CurveEffects]] = {}
    for place, run in enumerate(group.runs):
        for each in curve_effects(run.measured[trusted(run.measured)]):
            found.setdefault((each.metric, each.layer, each.site), {})[place] = each
    return [
        SiteEffects(metric=metric, layer=layer, site=site, by_run=by_run)
        for shown in SHOWN
        for (metric, layer, site), by_run in sorted(found.items(), key=lambda item: item[0])
        if metric == shown
    ]


def rows(found: Sequence[SiteEffects]) -> list[list[Cell]]:
    """Return the rows of the table of layers, under `COLUMNS`."""
    return [
        [
            layers.layer_cell(each.layer),
            words(each.site),
            words(METRICS[each.metric].label, tone="tag"),
            _names_cell([own.name for own in each.by_run.values()]),
            *(_number([getattr(own.effects, name) for own in each.by_run.values()]) for name in NUMBERS.values()),
        ]
        for each in found
    ]


def counted(found: Sequence[SiteEffects], metric: str, run: int) -> Cell:
    """Count the layers of a run by the name of their curve."""
    return _names_cell([each.by_run[run].name for each in found if each.metric == metric and run in each.by_run])


def _names_cell(names: Sequence[Name]) -> Cell:
    """Show the names, with counts where there are several, the most frequent first."""
    counts = Counter(names).most_common()
    tone = next((tone for name, tone in TONES.items() if name in names), "tag")
    text = counts[0][0].value if len(counts) == 1 else ", ".join(f"{name.value} {count}" for name, count in counts)
    return words(text, tone=tone)


def _number(estimates: Sequence[Estimate]) -> Cell:
    values = np.array([each.value for each in estimates])
    if len(values) == 1:
        return number(estimates[0].value, (estimates[0].high - estimates[0].low) / 2)
    return number(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))
