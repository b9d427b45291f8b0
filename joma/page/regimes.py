"""The regime of every layer's curve: what it does over training, where it dips and how far it comes back."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from joma.figures.curves import Curve, all_values
from joma.figures.span import least_span
from joma.measure.regime import MIN_POINTS, Kind, Regime, classify
from joma.page import layers
from joma.page.records import Group
from joma.page.table import Cell, digits, number, words

LOWER = {"entropy": 0.0, "stable_rank": 1.0}
"""What is classified, with the smallest value possible."""
FRACTION = "entropy_fraction"
UPPER = {FRACTION: 1.0, "sink_mass": 1.0}
"""The largest value possible, where that is known."""
FINE = ("loss",)
"""Quantities in which a small change may matter."""
COLUMNS = [
    *("layer", "site", "quantity", "regime", "level at start"),
    *("dip at step", "depth of the dip", "rebound", "level at end"),
]
_LEVEL = "The median of the {} tenth of the points, of three at least, without spikes; a single point does not make it."
TITLES = {
    "regime": "A first or last point that stands alone may be a spike or part of a change: the regime is without it.",
    "level at start": f"{_LEVEL.format('first')} Of fewer than {MIN_POINTS} points it is the first one.",
    "level at end": f"{_LEVEL.format('last')} Of fewer than {MIN_POINTS} points it is the last one.",
    "depth of the dip": "The fall into the dip from the highest level before it.",
    "rebound": "The rise out of the dip to the highest level after it.",
}
"""What the headings mean."""
_NUMBERS = ("start", "dip_step", "dip_depth", "rebound", "end")


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteRegimes:
    """A curve of a group, with its regime in each of the runs that have it."""

    metric: str
    layer: int
    site: str
    by_run: Mapping[int, Regime]
    """By the position of the run in its group."""

    @property
    def kinds(self) -> Counter[str]:
        """How many runs show which regime."""
        return Counter(regime.kind.value for regime in self.by_run.values())


def classified(group: Group) -> list[SiteRegimes]:
    """Classify entropy and stable rank site by site and run by run; values that are not to be trusted are left out."""
    return [each for metric in LOWER for each in _sites(group, metric)]


def rows(found: Sequence[SiteRegimes]) -> list[list[Cell]]:
    """Return the rows of the table of layers, under `COLUMNS`; several runs by mean and standard error."""
    return [
        [
            layers.layer_cell(each.layer),
            words(each.site),
            words(each.metric.replace("_", " "), tone="tag"),
            _regime_cell(each),
            *(_mean([getattr(regime, name) for regime in each.by_run.values()]) for name in _NUMBERS),
        ]
        for each in found
    ]


def min_span(metric: str, curves: Sequence[Curve]) -> float:
    """Return how much a scale must span at least, by what is known of the metric."""
    return least_span(all_values(curves), lower=LOWER.get(metric, 0.0), upper=UPPER.get(metric), fine=metric in FINE)


def counted(found: Sequence[SiteRegimes], metric: str, run: int) -> Cell:
    """Tell how many layers of a run are in which regime."""
    kinds = [each.by_run[run].kind.value for each in found if each.metric == metric and run in each.by_run]
    return words(told(Counter(kinds)), tone=_tone(Counter(kinds)))


def told(kinds: Counter[str]) -> str:
    """Name what there is, with counts where there are several, the frequent first.

    >>> told(Counter(["flat", "falling", "flat"])), told(Counter(["flat", "flat"]))
    ('flat 2, falling 1', 'flat')
    """
    if len(kinds) == 1:
        return next(iter(kinds))
    return ", ".join(f"{name} {count}" for name, count in kinds.most_common())


def _regime_cell(each: SiteRegimes) -> Cell:
    """Name the regimes, with a mark where points at the ends stand alone and were left out of them."""
    apart = [regime for regime in each.by_run.values() if regime.doubt]
    named = words(told(each.kinds), tone=_tone(each.kinds), mark=_apart_in_words(apart, len(each.by_run)))
    return replace(named, title="; ".join(dict.fromkeys(regime.doubt for regime in apart)))


def _apart_in_words(apart: Sequence[Regime], num_runs: int) -> str:
    if not apart:
        return ""
    if num_runs > 1:
        return f"points stand alone in {len(apart)} of {num_runs} runs"
    ends = (("first", apart[0].num_first_aside, apart[0].first), ("last", apart[0].num_last_aside, apart[0].last))
    return ", ".join(f"{which} point {digits(value, 3)} stands alone" for which, num, value in ends if num)


def _sites(group: Group, metric: str) -> Iterator[SiteRegimes]:
    curves = _curves(group, metric)
    fractions = _curves(group, FRACTION) if metric == "entropy" else {}
    sites = sorted({key[:2] for key in curves})
    for layer, site in sites:
        keys = [(layer, site, run) for run in range(len(group.runs)) if (layer, site, run) in curves]
        found = {key[2]: _regime(curves[key], LOWER[metric], fractions.get(key)) for key in keys}
        yield SiteRegimes(metric=metric, layer=layer, site=site, by_run=found)


def _curves(group: Group, metric: str) -> dict[tuple[int, str, int], pd.DataFrame]:
    """Trusted values over all heads, by layer, site and run."""
    values = layers.rows(group, metric)
    trusted = values[values["trusted"] & (values["head"] == layers.ALL_HEADS)]
    return {(int(layer), site, run): own for (layer, site, run), own in trusted.groupby(["layer", "site", "run"])}


def _regime(curve: pd.DataFrame, lower: float, fraction: pd.DataFrame | None) -> Regime:
    """Classify a curve; whether it has collapsed or is uniform is read off its fraction of the maximum, if known."""
    found = _classify(curve, lower)
    if fraction is None:
        return found
    relative = _classify(fraction, 0.0, upper=1.0).kind
    return replace(found, kind=relative) if relative in (Kind.COLLAPSED, Kind.UNIFORM) else found


def _classify(curve: pd.DataFrame, lower: float, upper: float | None = None) -> Regime:
    values = curve["value"].to_numpy()
    lower = min(lower, float(values.min()))  # whatever was recorded under this name is shown
    upper = None if upper is None else max(upper, float(values.max()))
    return classify(curve["step"].to_numpy(), values, lower=lower, upper=upper)


def _tone(kinds: Counter[str]) -> str:
    return "bad" if Kind.COLLAPSED in kinds else "warned" if Kind.UNIFORM in kinds else "tag"


def _mean(values: Sequence[float]) -> Cell:
    known = np.array([value for value in values if np.isfinite(value)])
    if not known.size:
        return number(None)
    error = float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else None
    return number(float(known.mean()), error)
