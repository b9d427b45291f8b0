"""The naming of curves of version 0.1, which depends on the logging schedule. To be deleted with `joma.experiments`.

`joma.measure.effects` replaces it. Nothing but the experiments whose kept results rest on it may use this file.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.ndimage import maximum_filter1d, median_filter
from scipy.special import ndtr

from joma.errors import finite, same_shape

if TYPE_CHECKING:
    import pandas

ALL_HEADS = -1
ENTROPY, FRACTION = "entropy", "entropy_fraction"
SMALLEST = {ENTROPY: 0.0, "entropy_window": 0.0, "stable_rank": 1.0}
"""Metrics whose regimes are named, with the smallest value possible."""


class Kind(StrEnum):
    """The closed set of answers. Where several hold, the one furthest up is given."""

    COLLAPSED = "collapsed"
    """Ends at the lowest value possible, or where that is not known, fell nearly to it."""
    UNIFORM = "uniform"
    """Ends at the highest value possible."""
    REBOUNDING = "rebounding"
    """Falls, then rises."""
    PEAKING = "peaking"
    """Rises, then falls."""
    FALLING = "falling"
    RISING = "rising"
    FLAT = "flat"
    """No change that counts and matters."""
    UNCLEAR = "unclear"
    """Too few points, or too much noise to call it flat."""


DOWN, LEVEL, UP = -1, 0, 1
FIRST_WAY = {
    Kind.REBOUNDING: DOWN,
    Kind.PEAKING: UP,
    Kind.FALLING: DOWN,
    Kind.RISING: UP,
    Kind.FLAT: LEVEL,
}
"""Which way a curve goes at first, of the kinds that say so."""
LAST_WAY = {
    Kind.COLLAPSED: DOWN,
    Kind.UNIFORM: UP,
    Kind.REBOUNDING: UP,
    Kind.PEAKING: DOWN,
    Kind.FALLING: DOWN,
    Kind.RISING: UP,
    Kind.FLAT: LEVEL,
}
"""Which way a curve goes at last, or as good as; of the kinds that say so."""


STRIDES = (2, 3, 4)
"""Of the second differences that are set against those of stride 1 to find the autocorrelation."""
POINTS_PER_STRIDE = 10
"""Points that a stride needs: with fewer, second differences are mostly signal."""
MAX_AUTOCORRELATION = 0.8
"""Noise that is smoother cannot be told from signal."""
POINTS_OF_AUTOCORRELATION = 85
"""N points show an autocorrelation of at most N over this; in a short curve a bend looks like more."""
CLIP = 3.0
"""Second differences beyond this many deviations are signal or spikes, and count as this many."""
NUM_PARTS, POINTS_OF_PART = 3, 30
"""The noise is that of the noisiest third; halves or the whole where thirds would be shorter than 30 points."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Stationary noise around a curve: its deviation, and its correlation between neighbours."""

    deviation: float
    autocorrelation: float

    def of_mean(self, width: int) -> float:
        """Standard deviation of the mean of neighbouring points."""
        phi = self.autocorrelation
        factor = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**width) / (width * (1 - phi) ** 2)
        return self.deviation * sqrt(factor / width)


def noises_of(values: Float[np.ndarray, "C N"]) -> list[Noise]:
    r"""Match the sizes of second differences $x_{i-h} - 2x_i + x_{i+h}$, of variance $\sigma^2 g(\varphi^h)$."""
    nearest = _second_differences(values, 1)
    num_parts = max(1, min(NUM_PARTS, values.shape[1] // POINTS_OF_PART))
    noisiest = np.max([_spread(part) for part in np.array_split(nearest, num_parts, axis=1)], axis=0)
    return [
        Noise(deviation=spread / sqrt(_variance_of_difference(phi)), autocorrelation=phi)
        for spread, phi in zip(noisiest.tolist(), _autocorrelations(values, _spread(nearest)), strict=True)
    ]


def _autocorrelations(values: Float[np.ndarray, "C N"], nearest: Float[np.ndarray, " C"]) -> list[float]:
    """Read off how much larger second differences are at longer strides; at most what so many points can show."""
    num_curves, num = values.shape
    strides = [h for h in STRIDES if POINTS_PER_STRIDE * h <= num]
    if not strides:
        return [0.0] * num_curves
    spreads = np.stack([_spread(_second_differences(values, h)) for h in strides], axis=1)
    grid = np.linspace(0, MAX_AUTOCORRELATION, 161)
    expected = np.mean(_variance_of_difference(grid ** np.array(strides)[:, None]), axis=0)
    expected = expected / _variance_of_difference(grid)
    ratios = [
        np.mean([(spread / single) ** 2 for spread in further]) if single > 0 else 0.0
        for single, further in zip(nearest.tolist(), spreads.tolist(), strict=True)
    ]
    return np.minimum(np.interp(ratios, expected, grid), num / POINTS_OF_AUTOCORRELATION).tolist()


def _second_differences(values: Float[np.ndarray, "C N"], stride: int) -> Float[np.ndarray, "C n"]:
    return values[:, : -2 * stride] - 2 * values[:, stride:-stride] + values[:, 2 * stride :]


def _spread(differences: Float[np.ndarray, "C n"]) -> Float[np.ndarray, " C"]:
    """Root mean square with what is beyond `CLIP` deviations cut to that: a few jumps do not count as noise."""
    sizes = np.abs(differences)
    bounds = CLIP * NORMAL_MAD * np.median(sizes, axis=1, keepdims=True)
    return np.sqrt(np.mean(np.minimum(sizes, bounds) ** 2, axis=1))


def _variance_of_difference(correlation: float | Float[np.ndarray, "..."]) -> Any:
    r"""Variance of a second difference over that of a point, $g(\varphi) = 6 - 8\varphi + 2\varphi^2$."""
    return 6 - 8 * correlation + 2 * correlation**2


MAX_POINTS = 400
"""Longer curves are averaged in groups of neighbours first."""
WIDTHS = (1, *(3 * 2**k for k in range(7)))
"""Of the windows: single points for curves without noise, then 3 up to half of the longest curve."""
EVIDENCE = 1.7
"""The constant c: it leaves less than 5 % false rebounds for noise that is white or autocorrelated up to 0.5."""
SPIKE_WINDOW = 5
"""Points of the running median that shows up spikes: they are at most two points wide."""
SPIKE = 3.0
"""A point further than this many deviations from the running median is a spike, and left out."""
END_SHARE, MIN_END_POINTS = 0.1, 3
"""The points that make the level at each end, as part of all; and the fewest."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves without spikes, of at most `MAX_POINTS` points each, with the means of their windows."""

    steps: Float[np.ndarray, "C N"]
    values: Float[np.ndarray, "C N"]
    measured: Float[np.ndarray, "C N"]
    """The same with their spikes."""
    group_sizes: Int[np.ndarray, " N"]
    """How many points as they were measured each one is the mean of."""
    noises: Sequence[Noise]

    @classmethod
    def of(cls, steps: Float[np.ndarray, "C n"], values: Float[np.ndarray, "C n"]) -> "Curves":
        """Make curves ready that are as they were measured."""
        sizes = _group_sizes(values.shape[1])
        steps, measured = _thinned(steps, sizes), _thinned(values, sizes)
        values = measured
        for _ in range(2):  # the noise is seen better without the first spikes, and then the others
            values = _without_spikes(values, noises_of(values))
        return cls(steps=steps, values=values, measured=measured, group_sizes=sizes, noises=noises_of(values))

    @property
    def upside_down(self) -> "Curves":
        """The same with dips for peaks."""
        return replace(self, values=-self.values, measured=-self.measured)

    @cached_property
    def widths(self) -> Int[np.ndarray, " W"]:
        """Of the windows: up to half of the curve."""
        return np.array([w for w in WIDTHS if 2 * w <= self.values.shape[1]])

    @cached_property
    def means(self) -> Float[np.ndarray, "C W N"]:
        """Mean of each window, by width and first point; NaN where it would reach beyond the end."""
        num_curves, num = self.values.shape
        total = np.pad(np.cumsum(self.values, axis=1), ((0, 0), (1, 0)))
        means = np.full((num_curves, len(self.widths), num), np.nan)
        for row, w in enumerate(self.widths):
            means[:, row, : num - w + 1] = (total[:, w:] - total[:, :-w]) / w
        return means

    @cached_property
    def errors(self) -> Float[np.ndarray, "C W W"]:
        """Standard error of the difference of two means, by their widths."""
        single = np.array([[noise.of_mean(w) for w in self.widths.tolist()] for noise in self.noises])
        return np.hypot(single[:, :, None], single[:, None, :]) + self.rounding[:, None, None]

    @cached_property
    def rounding(self) -> Float[np.ndarray, " C"]:
        """Added to every standard error; more than zero."""
        limits = np.finfo(np.float64)
        return np.maximum(limits.eps * np.abs(self.values).max(axis=1), limits.tiny)

    @cached_property
    def bars(self) -> Float[np.ndarray, "W W"]:
        """Number of standard errors that the difference of two windows must exceed."""
        single = 2 * np.log(self.values.shape[1] / self.widths)
        return np.sqrt(single[:, None] + single) + EVIDENCE

    def detectable(self) -> Float[np.ndarray, " C"]:
        """The smallest difference that could count."""
        return np.min(self.bars * self.errors, axis=(1, 2))

    def ends(self) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
        """Levels at the start and at the end."""
        num = self.num_end_points
        return np.median(self.values[:, :num], axis=1), np.median(self.values[:, -num:], axis=1)

    @property
    def num_end_points(self) -> int:
        """Points that make the level at each end."""
        return max(MIN_END_POINTS, round(END_SHARE * self.values.shape[1]))


def _group_sizes(num: int) -> Int[np.ndarray, " n"]:
    """How many neighbours are averaged together, as few to a group as `MAX_POINTS` allows."""
    per_group = -(-num // MAX_POINTS)
    return np.array([len(group) for group in np.array_split(np.arange(num), -(-num // per_group))])


def _thinned(values: Float[np.ndarray, "C N"], sizes: Int[np.ndarray, " n"]) -> Float[np.ndarray, "C n"]:
    """Means of groups of neighbours."""
    if len(sizes) == values.shape[1]:
        return values
    groups = np.split(values, np.cumsum(sizes)[:-1], axis=1)
    return np.stack([group.mean(axis=1) for group in groups], axis=1)


def _without_spikes(values: Float[np.ndarray, "C N"], noises: Sequence[Noise]) -> Float[np.ndarray, "C N"]:
    """Put the running median for points that stick out of it; near steep parts they must stick out further."""
    deviation = np.array([[noise.deviation] for noise in noises])
    median = median_filter(values, (1, SPIKE_WINDOW), mode="mirror")
    moves = maximum_filter1d(np.abs(np.diff(median, append=median[:, -1:])), SPIKE_WINDOW + 1, mode="mirror")
    reach = SPIKE * deviation + np.maximum(0, moves - 2 * deviation)
    return np.where(np.abs(values - median) > reach, median, values)


SELECTION = 1.5
"""Standard errors by which the highest and the lowest of a few neighbouring windows lie apart by chance: taken off
the sizes of falls and rises."""
MIN_REBOUND = 0.1
"""Smallest rebound that matters, as part of the fall before it; and smallest such fall, as part of the rebound."""
KEPT = 0.25
"""Part of the fall and of the rise by which the two ends of the curve must still lie above the dip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """How far each window lies under the windows on one side of it, by width and first point."""

    margin: Float[np.ndarray, "C W N"]
    """Standard errors by which the strongest difference exceeds the bar."""
    size: Float[np.ndarray, "C W N"]
    """The largest difference that counts, less what selection adds; minus infinity where none counts."""
    other: Int[np.ndarray, "C W N"]
    """Index of the other window's width in that difference."""

    @classmethod
    def of(cls, curves: Curves, highest: Float[np.ndarray, "C W w N"]) -> "Side":
        """Compare windows with the highest one of each width (second axis) on that side of them."""
        error, bar = curves.errors.mT[..., None], curves.bars.T[..., None]
        difference = highest - np.where(np.isnan(curves.means), np.inf, curves.means)[:, None]
        excess = difference / error - bar
        typical = np.where(excess > 0, difference - SELECTION * error, -np.inf)
        return cls(margin=excess.max(axis=1), size=typical.max(axis=1), other=typical.argmax(axis=1))


def both_sides(curves: Curves) -> tuple[Side, Side]:
    """How far all windows lie under those that end before them, and under those that start after them."""
    num_curves, num_widths, num = curves.means.shape
    known = np.where(np.isnan(curves.means), -np.inf, curves.means)
    so_far = np.maximum.accumulate(known, axis=2)
    from_here = np.maximum.accumulate(known[..., ::-1], axis=2)[..., ::-1]
    before = np.full((num_curves, num_widths, 1, num), -np.inf)
    after = np.full((num_curves, num_widths, num_widths, num), -np.inf)
    for row, width in enumerate(curves.widths):
        before[:, row, 0, width:] = so_far[:, row, :-width]
        after[:, :, row, :-width] = from_here[:, :, width:]
    return Side.of(curves, before), Side.of(curves, after)


def _place_of_largest(sizes: Float[np.ndarray, "C W N"]) -> tuple[np.ndarray, ...]:
    """Of every curve the indices of its number, of the width and of the first point."""
    num_curves, *shape = sizes.shape
    width, at = np.unravel_index(sizes.reshape(num_curves, -1).argmax(axis=1), shape)
    return np.arange(num_curves), width, at


@dataclass(frozen=True, kw_only=True, slots=True)
class Swing:
    """The largest fall or rise that counts."""

    chance: float
    """Probability that it counts and matters."""
    size: float


def swings(curves: Curves, side: Side, smallest: Float[np.ndarray, " C"]) -> list[Swing]:
    """The largest changes to windows from those on one side of them."""
    margin = side.margin.max(axis=(1, 2))
    each, width, _ = place = _place_of_largest(side.size)
    size, error = side.size[place], curves.errors[each, width, side.other[place]]
    counts = margin > 0
    chances = ndtr(np.where(counts, np.minimum(margin, (size - smallest) / error), margin))
    sizes = np.where(counts, size, 0.0)
    return [Swing(chance=p, size=size) for p, size in zip(chances.tolist(), sizes.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dip:
    """A window that is lower than one before it and one after it, and than the ends of the curve."""

    chance: float
    """Probability of the weakest of its conditions."""
    step: float = np.nan
    depth: float = np.nan
    rebound: float = np.nan


def dips(curves: Curves, before: Side, after: Side, smallest: Float[np.ndarray, " C"]) -> list[Dip]:
    """The dips with the largest fall and rise that count, together; or how far the best window is from being one."""
    margin = np.minimum(before.margin, after.margin).max(axis=(1, 2))
    each, width, at = place = _place_of_largest(before.size + after.size)
    level, depth, rebound = curves.means[place], before.size[place], after.size[place]
    left, right = before.other[place], after.other[place]
    start, end = curves.means[each, left, 0], curves.means[each, right, -curves.widths[right]]
    fall = np.minimum(depth - np.maximum(smallest, MIN_REBOUND * rebound), start - level - KEPT * depth)
    rise = np.minimum(rebound - np.maximum(smallest, MIN_REBOUND * depth), end - level - KEPT * rebound)
    weakest = np.minimum(fall / curves.errors[each, width, left], rise / curves.errors[each, width, right])
    counts = margin > 0
    chances = ndtr(np.where(counts, np.minimum(margin, weakest), margin))
    step = curves.steps[each, at + (curves.widths[width] - 1) // 2]
    found = np.where(counts, (step, depth, rebound), np.nan).T
    return [
        Dip(chance=p, step=step, depth=depth, rebound=rebound)
        for p, (step, depth, rebound) in zip(chances.tolist(), found.tolist(), strict=True)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """Points at one end of a curve that stick out of it and were left out."""

    num: int
    """Points as they were measured."""
    value: float
    """Of the outermost one; of curves that were averaged, the mean of its group."""
    way: int
    """Which way the curve goes there if it is no spike, down or up."""
    step: float
    """Of the nearest point that was kept, or moved by less than what matters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strays:
    """What was left out at both ends of a curve, as far as it matters, and what it may be."""

    first: Stray | None = None
    last: Stray | None = None
    num_returned: int = 0
    """How often points inside stuck out as much and came back."""

    @property
    def chance(self) -> float:
        """Probability that what sticks out at an end is a spike like those inside; one half where there are none."""
        return (self.num_returned + 1) / (self.num_returned + 2)

    def contradict(self, kind: Kind) -> bool:
        """Whether one of them, if it is no spike, is another change than a curve of this kind has there."""
        ends = ((self.first, FIRST_WAY), (self.last, LAST_WAY))
        return any(stray is not None and stray.way != ways.get(kind, stray.way) for stray, ways in ends)


def strays(curves: Curves, smallest: Float[np.ndarray, " C"]) -> list[Strays]:
    """Find the points at the ends that were left out and are further away than the `smallest` change that matters."""
    away = curves.measured - curves.values
    matters = np.abs(away) > smallest[:, None]
    is_at_an_end = (matters[:, 0] | matters[:, -1]).tolist()
    return [
        _strays(curves, each, away[each], matters[each]) if is_stray else Strays()
        for each, is_stray in enumerate(is_at_an_end)
    ]


def _strays(curves: Curves, each: int, away: Float[np.ndarray, " N"], matters: Bool[np.ndarray, " N"]) -> Strays:
    num_first, num_last = (_num_leading(points) for points in (matters, matters[::-1]))
    steps, measured, sizes = curves.steps[each], curves.measured[each], curves.group_sizes
    inside = matters[num_first : len(matters) - num_last]
    first = Stray(
        num=int(sizes[:num_first].sum()),
        value=float(measured[0]),
        way=DOWN if away[0] > 0 else UP,
        step=float(steps[num_first]),
    )
    last = Stray(
        num=int(sizes[len(sizes) - num_last :].sum()),
        value=float(measured[-1]),
        way=UP if away[-1] > 0 else DOWN,
        step=float(steps[-1 - num_last]),
    )
    return Strays(
        first=first if matters[0] else None,
        last=last if matters[-1] else None,
        num_returned=int((np.diff(inside.astype(int), prepend=0) > 0).sum()),
    )


def _num_leading(matters: Bool[np.ndarray, " N"]) -> int:
    """How many points from the first on matter; not all, one at least was kept."""
    return min(int(np.logical_and.accumulate(matters).sum()), len(matters) - 1)


MIN_CHANGE = 0.02
"""Smallest change that matters, as part of the scale: the range of possible values, or else the curve's own height."""
COLLAPSED = 0.05
"""Curves that end this low, as part of the scale, have collapsed."""
UNIFORM = 0.99
"""Curves that end this high, as part of the scale, are uniform: attention at a usual initialisation is about there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All that the verdict on a curve rests on."""

    noise: Noise
    scale: float
    """The range of possible values, or else the curve's own height."""
    start: float
    end: float
    detectable: float
    """The smallest change that could count."""
    fall: Swing
    rise: Swing
    dip: Dip
    peak: Dip
    low: float
    """Probability that the end is as low as a collapsed curve's."""
    high: float
    """Probability that the end is as high as a uniform one's."""
    strays: Strays
    """What was left out at both ends."""


def findings(curves: Curves, lower: Float[np.ndarray, " C"], scale: Float[np.ndarray, " C"]) -> list[Findings]:
    """Look for every change, and at both ends."""
    smallest = MIN_CHANGE * scale
    before, after = both_sides(curves)
    upside_down = curves.upside_down
    start, end = curves.ends()
    above = end - lower
    error = np.array([noise.of_mean(curves.num_end_points) for noise in curves.noises]) + curves.rounding
    # the ends of the scale are rounded as well, and a curve of zeros has no rounding of its own to divide by
    error = np.maximum(error, np.finfo(np.float64).eps * scale)
    of_curves = {
        "noise": curves.noises,
        "scale": scale.tolist(),
        "start": start.tolist(),
        "end": end.tolist(),
        "detectable": curves.detectable().tolist(),
        "fall": swings(curves, before, smallest),
        "rise": swings(curves, after, smallest),
        "dip": dips(curves, before, after, smallest),
        "peak": dips(upside_down, *both_sides(upside_down), smallest),
        "low": ndtr((COLLAPSED * scale - above) / error).tolist(),
        "high": ndtr((above - UNIFORM * scale) / error).tolist(),
        "strays": strays(curves, smallest),
    }
    return [Findings(**dict(zip(of_curves, each, strict=True))) for each in zip(*of_curves.values(), strict=True)]


CHANGE = {DOWN: "fall", UP: "rise"}


def told(kind: Kind, found: Findings, gap: float) -> str:
    """Word what was found; `gap` is how far the first and the last value lie apart as they were measured."""
    dip, peak, kept = found.dip, found.peak, _kept(found.strays)
    last = found.strays.last
    ends = f"ends at {found.end:.3g}" if last is None else f"is at {found.end:.3g} up to step {last.step:g}"
    return {
        Kind.COLLAPSED: f"{ends}, at most {COLLAPSED:.0%} of the scale",
        Kind.UNIFORM: f"{ends}, at least {UNIFORM:.0%} of the largest value possible",
        Kind.REBOUNDING: f"falls by {dip.depth:.3g} to step {dip.step:g}, then rises by {dip.rebound:.3g}",
        Kind.PEAKING: f"rises by {peak.depth:.3g} to step {peak.step:g}, then falls by {peak.rebound:.3g}",
        Kind.FALLING: f"falls by {found.fall.size:.3g}{kept}",
        Kind.RISING: f"rises by {found.rise.size:.3g}{kept}",
        Kind.FLAT: f"flat{kept}" if kept else _no_change(found, gap),
        Kind.UNCLEAR: f"a change of {found.detectable:.2g} would not be seen",
    }[kind]


def doubt(kind: Kind, strays: Strays) -> str:
    """Word what the points may be that were left out at the ends; empty where none matters."""
    said = []
    if strays.first is not None and kind not in (Kind.COLLAPSED, Kind.UNIFORM):  # these tell of the end alone
        said.append(f"{_alone('first', strays.first, 'at the start')} the end of an earlier {CHANGE[strays.first.way]}")
    if strays.last is not None:
        what = "a further" if strays.last.way == LAST_WAY.get(kind) else "the beginning of a"
        said.append(f"{_alone('last', strays.last, 'at the end')} {what} {CHANGE[strays.last.way]}")
    return "; ".join(said)


def _no_change(found: Findings, gap: float) -> str:
    unseen = f"{max(MIN_CHANGE * found.scale, found.detectable):.2g}"
    if gap < float(unseen):
        return f"no change of {unseen} or more"
    return f"no lasting change of {unseen} or more, though first and last point differ by {gap:.2g}"


def _kept(strays: Strays) -> str:
    """Say to which steps a verdict applies where points were left out."""
    first, last = strays.first, strays.last
    if first is None:
        return "" if last is None else f" up to step {last.step:g}"
    return f" from step {first.step:g} " + ("on" if last is None else f"to step {last.step:g}")


def _alone(which: str, stray: Stray, where: str) -> str:
    if stray.num == 1:
        return f"the {which} point, {stray.value:.3g}, stands alone and may be"
    return f"the {which} {stray.num} points, {stray.value:.3g} {where}, stand alone and may be"


MIN_POINTS = 8
"""Shorter curves are unclear."""
MIN_HEIGHT = 1e-3
"""Height of a curve that lies on its lower bound, relative to its values: a stable rank of 1 is flat, not noise."""
HIDDEN = 0.25
"""Where a change of this part of the scale would drown in noise, a curve without changes is unclear, not flat."""
MORE_LIKELY_THAN_NOT = 0.5
MAX_TOGETHER = 64
"""Curves that are worked on at a time: the longest of them compare their windows in some 100 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """What a curve does, and how sure that is."""

    kind: Kind
    start: float
    """Level at the start: the median of the first tenth of the points."""
    end: float
    """Level at the end, without the points that were left out there."""
    first: float
    """The first value as it was measured."""
    last: float
    """The last value as it was measured."""
    num_first_aside: int = 0
    """First points that stick out so far that it would matter, and were left out as a possible spike."""
    num_last_aside: int = 0
    """Last points of the same kind."""
    dip_step: float = np.nan
    """Step of the dip; NaN unless rebounding, as the next two."""
    dip_depth: float = np.nan
    """Fall into the dip, from the highest level before it."""
    rebound: float = np.nan
    """Rise out of the dip, to the highest level after it."""
    noise: float = np.nan
    """Standard deviation of a point around the curve."""
    autocorrelation: float = np.nan
    """Of that noise, between neighbouring points."""
    confidence: float
    """From 0.5 to 1: probability of the weakest of the conditions that the verdict rests on, under that noise; at most
    the chance of a spike where points were left out that speak against the verdict."""
    doubt: str = ""
    """What the points that were left out may be, in words; empty where there are none."""
    why: str
    """The verdict in words, with its numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over ascending steps."""

    steps: Float[np.ndarray, " N"] | Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]
    upper: float | None = None
    """The largest value possible, if there is one."""
    lower: float = 0.0
    """The smallest value possible."""


def classify(
    steps: Float[np.ndarray, " N"] | Int[np.ndarray, " N"],
    values: Float[np.ndarray, " N"],
    *,
    upper: float | None = None,
    lower: float = 0.0,
) -> Regime:
    """Name the regime of a curve over ascending steps.

    `upper` and `lower` are the largest and smallest values possible: log L and 0 for the entropy over L keys, 1 for
    the smallest stable rank. Without `upper` nothing is uniform, and sizes are relative to the curve's own height.

    >>> steps = np.arange(60)
    >>> found = classify(steps, 3 + np.abs(steps - 20) / 16, upper=8.0)
    >>> found.kind.value, found.dip_step
    ('rebounding', 20.0)
    >>> found.why
    'falls by 1.25 to step 20, then rises by 2.44; noise 0'
    """
    return classify_all([Curve(steps=steps, values=values, upper=upper, lower=lower)])[0]


def classify_all(curves: Iterable[Curve]) -> list[Regime]:
    """Name the regimes of many curves as `classify` does, in far less time for those that are of one length.

    >>> steps = np.arange(60)
    >>> [found.kind.value for found in classify_all(Curve(steps=steps, values=1.0 + k * steps) for k in (0, 1))]
    ['flat', 'rising']
    """
    checked = [_checked(curve) for curve in curves]
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, curve in enumerate(checked):
        places[len(curve.values)].append(place)
    found: dict[int, Regime] = {}
    for length, alike in places.items():
        named = _verdicts if length >= MIN_POINTS else _too_short
        for first in range(0, len(alike), MAX_TOGETHER):
            together = alike[first : first + MAX_TOGETHER]
            found.update(zip(together, named([checked[place] for place in together]), strict=True))
    return [found[place] for place in range(len(checked))]


def _checked(curve: Curve) -> Curve:
    steps, values = finite("steps", _as_array(curve.steps)), finite("values", _as_array(curve.values))
    same_shape(steps=steps, values=values)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"A curve needs one axis and a point, got shape {values.shape}. Classify curves one by one.")
    if (np.diff(steps) <= 0).any():
        at = int(np.argmax(np.diff(steps) <= 0))
        raise ValueError(f"`steps` must ascend, got {steps[at]:g} before {steps[at + 1]:g}. Sort; keep one of each.")
    top = np.inf if curve.upper is None else curve.upper
    slack = 1e-6 * float(np.abs(values).max())  # single precision may round an entropy above log L
    if values.min() < curve.lower - slack or values.max() > top + slack:
        raise ValueError(
            f"`values` must lie between `lower` {curve.lower:g} and `upper` {top:g}, "
            f"got {values.min():g} to {values.max():g}. Pass the bounds of this quantity."
        )
    return replace(curve, steps=steps, values=values)


def _as_array(values: Any) -> Any:
    """Bring a tensor over from its device and without its gradient, which NumPy refuses; leave all else as it is."""
    return values.detach().cpu().double().numpy() if hasattr(values, "detach") else values


def _too_short(curves: Sequence[Curve]) -> list[Regime]:
    return [
        Regime(
            kind=Kind.UNCLEAR,
            start=float(curve.values[0]),
            end=float(curve.values[-1]),
            first=float(curve.values[0]),
            last=float(curve.values[-1]),
            confidence=1.0,
            why=f"{len(curve.values)} points, {MIN_POINTS} are needed",
        )
        for curve in curves
    ]


def _verdicts(curves: Sequence[Curve]) -> list[Regime]:
    clean = Curves.of(np.stack([curve.steps for curve in curves]), np.stack([curve.values for curve in curves]))
    scales = [_scale(curve, top) for curve, top in zip(curves, clean.values.max(axis=1).tolist(), strict=True)]
    found = findings(clean, np.array([float(curve.lower) for curve in curves]), np.array(scales))
    return [_verdict(each, curve) for each, curve in zip(found, curves, strict=True)]


def _scale(curve: Curve, top: float) -> float:
    if curve.upper is not None:
        return float(curve.upper - curve.lower)
    return max(top - curve.lower, MIN_HEIGHT * abs(top))


def _verdict(found: Findings, curve: Curve) -> Regime:
    """Go through the kinds in order; the first that is more likely than not is the verdict."""
    is_bounded = curve.upper is not None
    monotone = [(Kind.FALLING, found.fall.chance), (Kind.RISING, found.rise.chance)]
    is_hidden = found.noise.deviation > 0 and found.detectable > HIDDEN * found.scale
    chances = [
        (Kind.COLLAPSED, found.low if is_bounded else min(found.low, found.fall.chance)),
        (Kind.UNIFORM, found.high if is_bounded else 0.0),
        (Kind.REBOUNDING, found.dip.chance),
        (Kind.PEAKING, found.peak.chance),
        *(monotone if found.fall.size > found.rise.size else monotone[::-1]),
        (Kind.UNCLEAR if is_hidden else Kind.FLAT, 1.0),
    ]
    chosen = next(i for i, (_, chance) in enumerate(chances) if chance > MORE_LIKELY_THAN_NOT)
    kind, chance = chances[chosen]
    dip = found.dip if kind is Kind.REBOUNDING else Dip(chance=chance)
    strays = found.strays
    first, last, doubted = float(curve.values[0]), float(curve.values[-1]), doubt(kind, strays)
    words = (told(kind, found, abs(last - first)), doubted, f"noise {found.noise.deviation:.2g}")
    return Regime(
        kind=kind,
        start=found.start,
        end=found.end,
        first=first,
        last=last,
        num_first_aside=strays.first.num if strays.first else 0,
        num_last_aside=strays.last.num if strays.last else 0,
        dip_step=dip.step,
        dip_depth=dip.depth,
        rebound=dip.rebound,
        noise=found.noise.deviation,
        autocorrelation=found.noise.autocorrelation,
        confidence=min(
            chance,
            *(1 - rejected for _, rejected in chances[:chosen]),
            strays.chance if strays.contradict(kind) else 1.0,
        ),
        doubt=doubted,
        why="; ".join(filter(None, words)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteRegime:
    """What a curve of one run does over training."""

    metric: str
    site: str
    layer: int
    regime: Regime


def regimes(table: "pandas.DataFrame") -> Iterator[SiteRegime]:
    """Name the regime of each curve in a run's record; values that are not finite are left out.

    Whether attention has collapsed or is uniform is read off its entropy as a fraction of the maximum.
    """
    curves = _curves(table)
    found = dict(zip(curves, classify_all(curves.values()), strict=True))
    for (layer, site, metric), own in found.items():
        if metric == FRACTION:
            continue
        regime, fraction = own, found.get((layer, site, FRACTION)) if metric == ENTROPY else None
        if fraction is not None and fraction.kind in (Kind.COLLAPSED, Kind.UNIFORM):
            regime = replace(own, kind=fraction.kind)
        yield SiteRegime(metric=metric, site=site, layer=layer, regime=regime)


def _curves(table: "pandas.DataFrame") -> dict[tuple[int, str, str], Curve]:
    """Return the curves whose regimes are wanted, by layer, site and metric, in the order of these."""
    is_wanted = (table["head"] == ALL_HEADS) & table["metric"].isin([*SMALLEST, FRACTION])
    wanted = table[is_wanted & table["value"].abs().lt(float("inf"))]
    steps, values = wanted["step"].to_numpy(), wanted["value"].to_numpy()
    rows = wanted.groupby(["layer", "site", "metric"]).indices
    return {
        (int(layer), site, metric): _curve(metric, steps[rows[layer, site, metric]], values[rows[layer, site, metric]])
        for layer, site, metric in sorted(rows)
    }


def _curve(metric: str, steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"]) -> Curve:
    """Return a curve with the bounds of its metric, which rounding may pass."""
    lower = min(SMALLEST.get(metric, 0.0), float(values.min()))
    upper = max(1.0, float(values.max())) if metric == FRACTION else None
    return Curve(steps=steps, values=values, lower=lower, upper=upper)
