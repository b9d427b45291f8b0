r"""What a curve does over training: flat, falling, rising, rebounding, peaking, collapsed, uniform, or unclear.

The noise is estimated from the curve itself: its size $\sigma$ and its autocorrelation $\varphi$ from second
differences at several strides, which a smooth signal hardly enters. Means of windows are then compared with each other.
For windows of widths $w_1, w_2$ among $N$ points, one after the other, a difference counts when

$$\frac{|m_1 - m_2|}{\sqrt{\mathrm{Var}\,m_1 + \mathrm{Var}\,m_2}} >
  \sqrt{2\ln\tfrac{N}{w_1} + 2\ln\tfrac{N}{w_2}} + c, \qquad
  \mathrm{Var}\,m = \tfrac{\sigma^2}{w}\Big(\tfrac{1+\varphi}{1-\varphi} -
  \tfrac{2\varphi(1-\varphi^w)}{w(1-\varphi)^2}\Big).$$

The root is what the largest of many such differences reaches by chance at those widths, and $c$ (`EVIDENCE`) serves
curves of all lengths. A rebound is a window lower than one before it and lower than one after it, by differences that
count. On a falling curve the second difference exists by noise alone, and is largest where the curve is flat: so $c$
bounds false rebounds whatever the shape of the descent. Only the order of the steps enters, not their spacing.

Curves of one length are worked on together. Axes: C curves, N points, W widths of windows.

Rates of error and the curves they were measured on: docs/regimes.md.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import maximum_filter1d, median_filter
from scipy.special import ndtr

from joma.errors import finite, same_shape

MIN_POINTS = 8
"""Shorter curves are unclear."""
MAX_POINTS = 400
"""Longer ones are averaged in groups of neighbours first."""
WIDTHS = (1, *(3 * 2**k for k in range(7)))
"""Of the windows: single points for curves without noise, then 3 up to half of the longest curve."""
EVIDENCE = 1.7
"""The constant c: it leaves less than 5 % false rebounds for noise that is white or autocorrelated up to 0.5."""
SELECTION = 1.5
"""Standard errors by which the highest and the lowest of a few neighbouring windows lie apart by chance: taken off
the sizes of falls and rises."""
MIN_HEIGHT = 1e-3
"""Height of a curve that lies on its lower bound, relative to its values: a stable rank of 1 is flat, not noise."""
MIN_CHANGE = 0.02
"""Smallest change that matters, as part of the scale: the range of possible values, or else the curve's own height."""
MIN_REBOUND = 0.1
"""Smallest rebound that matters, as part of the fall before it; and smallest such fall, as part of the rebound."""
KEPT = 0.25
"""Part of the fall and of the rise by which the two ends of the curve must still lie above the dip."""
COLLAPSED = 0.05
"""Curves that end this low, as part of the scale, have collapsed."""
UNIFORM = 0.99
"""Curves that end this high, as part of the scale, are uniform: attention at a usual initialisation is about there."""
HIDDEN = 0.25
"""Where a change of this part of the scale would drown in noise, a curve without changes is unclear, not flat."""
MORE_LIKELY_THAN_NOT = 0.5
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
SPIKE_WINDOW = 5
"""Points of the running median that shows up spikes: they are at most two points wide."""
SPIKE = 3.0
"""A point further than this many deviations from the running median is a spike, and left out."""
END_SHARE, MIN_END_POINTS = 0.1, 3
"""The points that make the level at each end."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
MAX_TOGETHER = 64
"""Curves that are worked on at a time: the longest of them compare their windows in some 100 MB."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """What a curve does, and how sure that is."""

    kind: Kind
    start: float
    """Level at the start: the median of the first tenth of the points."""
    end: float
    """Level at the end."""
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
    """From 0.5 to 1: probability of the weakest of the conditions that the verdict rests on, under that noise."""
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
            confidence=1.0,
            why=f"{len(curve.values)} points, {MIN_POINTS} are needed",
        )
        for curve in curves
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Noise:
    """Stationary noise around a curve: its deviation, and its correlation between neighbours."""

    deviation: float
    autocorrelation: float

    def of_mean(self, width: int) -> float:
        """Standard deviation of the mean of neighbouring points."""
        phi = self.autocorrelation
        factor = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**width) / (width * (1 - phi) ** 2)
        return self.deviation * sqrt(factor / width)


def _noises(values: Float[np.ndarray, "C N"]) -> list[_Noise]:
    r"""Match the sizes of second differences $x_{i-h} - 2x_i + x_{i+h}$, of variance $\sigma^2 g(\varphi^h)$."""
    nearest = _second_differences(values, 1)
    num_parts = max(1, min(NUM_PARTS, values.shape[1] // POINTS_OF_PART))
    noisiest = np.max([_spread(part) for part in np.array_split(nearest, num_parts, axis=1)], axis=0)
    return [
        _Noise(deviation=spread / sqrt(_variance_of_difference(phi)), autocorrelation=phi)
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


@dataclass(frozen=True, kw_only=True)
class _Curves:
    """Curves without spikes, of at most `MAX_POINTS` points each, with the means of their windows."""

    steps: Float[np.ndarray, "C N"]
    values: Float[np.ndarray, "C N"]
    noises: Sequence[_Noise]

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> "_Curves":
        steps = _thinned(np.stack([curve.steps for curve in curves]))
        values = _thinned(np.stack([curve.values for curve in curves]))
        for _ in range(2):  # the noise is seen better without the first spikes, and then the others
            values = _without_spikes(values, _noises(values))
        return cls(steps=steps, values=values, noises=_noises(values))

    @property
    def upside_down(self) -> "_Curves":
        return _Curves(steps=self.steps, values=-self.values, noises=self.noises)

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
        return max(MIN_END_POINTS, round(END_SHARE * self.values.shape[1]))


def _thinned(values: Float[np.ndarray, "C N"]) -> Float[np.ndarray, "C n"]:
    """Means of groups of neighbours, as few to a group as `MAX_POINTS` allows."""
    num = values.shape[1]
    if num <= MAX_POINTS:
        return values
    per_group = -(-num // MAX_POINTS)
    return np.stack([group.mean(axis=1) for group in np.array_split(values, -(-num // per_group), axis=1)], axis=1)


def _without_spikes(values: Float[np.ndarray, "C N"], noises: Sequence[_Noise]) -> Float[np.ndarray, "C N"]:
    """Put the running median for points that stick out of it; near steep parts they must stick out further."""
    deviation = np.array([[noise.deviation] for noise in noises])
    median = median_filter(values, (1, SPIKE_WINDOW), mode="mirror")
    moves = maximum_filter1d(np.abs(np.diff(median, append=median[:, -1:])), SPIKE_WINDOW + 1, mode="mirror")
    reach = SPIKE * deviation + np.maximum(0, moves - 2 * deviation)
    return np.where(np.abs(values - median) > reach, median, values)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    """How far each window lies under the windows on one side of it, by width and first point."""

    margin: Float[np.ndarray, "C W N"]
    """Standard errors by which the strongest difference exceeds the bar."""
    size: Float[np.ndarray, "C W N"]
    """The largest difference that counts, less what selection adds; minus infinity where none counts."""
    other: Int[np.ndarray, "C W N"]
    """Index of the other window's width in that difference."""

    @classmethod
    def of(cls, curves: _Curves, highest: Float[np.ndarray, "C W w N"]) -> "_Side":
        """Compare windows with the highest one of each width (second axis) on that side of them."""
        error, bar = curves.errors.mT[..., None], curves.bars.T[..., None]
        difference = highest - np.where(np.isnan(curves.means), np.inf, curves.means)[:, None]
        excess = difference / error - bar
        typical = np.where(excess > 0, difference - SELECTION * error, -np.inf)
        return cls(margin=excess.max(axis=1), size=typical.max(axis=1), other=typical.argmax(axis=1))


def _both_sides(curves: _Curves) -> tuple[_Side, _Side]:
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
    return _Side.of(curves, before), _Side.of(curves, after)


def _place_of_largest(sizes: Float[np.ndarray, "C W N"]) -> tuple[np.ndarray, ...]:
    """Of every curve the indices of its number, of the width and of the first point."""
    num_curves, *shape = sizes.shape
    width, at = np.unravel_index(sizes.reshape(num_curves, -1).argmax(axis=1), shape)
    return np.arange(num_curves), width, at


@dataclass(frozen=True, kw_only=True, slots=True)
class _Swing:
    """The largest fall or rise that counts."""

    chance: float
    """Probability that it counts and matters."""
    size: float


def _swings(curves: _Curves, side: _Side, smallest: Float[np.ndarray, " C"]) -> list[_Swing]:
    margin = side.margin.max(axis=(1, 2))
    each, width, _ = place = _place_of_largest(side.size)
    size, error = side.size[place], curves.errors[each, width, side.other[place]]
    counts = margin > 0
    chances = ndtr(np.where(counts, np.minimum(margin, (size - smallest) / error), margin))
    sizes = np.where(counts, size, 0.0)
    return [_Swing(chance=p, size=size) for p, size in zip(chances.tolist(), sizes.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dip:
    """A window that is lower than one before it and one after it, and than the ends of the curve."""

    chance: float
    """Probability of the weakest of its conditions."""
    step: float = np.nan
    depth: float = np.nan
    rebound: float = np.nan


def _dips(curves: _Curves, before: _Side, after: _Side, smallest: Float[np.ndarray, " C"]) -> list[_Dip]:
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
        _Dip(chance=p, step=step, depth=depth, rebound=rebound)
        for p, (step, depth, rebound) in zip(chances.tolist(), found.tolist(), strict=True)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Findings:
    """All that the verdict on a curve rests on."""

    noise: _Noise
    scale: float
    """The range of possible values, or else the curve's own height."""
    start: float
    end: float
    detectable: float
    """The smallest change that could count."""
    fall: _Swing
    rise: _Swing
    dip: _Dip
    peak: _Dip
    low: float
    """Probability that the end is as low as a collapsed curve's."""
    high: float
    """Probability that the end is as high as a uniform one's."""


def _findings(curves: _Curves, lower: Float[np.ndarray, " C"], scale: Float[np.ndarray, " C"]) -> list[_Findings]:
    smallest = MIN_CHANGE * scale
    before, after = _both_sides(curves)
    upside_down = curves.upside_down
    start, end = curves.ends()
    above = end - lower
    error = np.array([noise.of_mean(curves.num_end_points) for noise in curves.noises]) + curves.rounding
    of_curves = {
        "noise": curves.noises,
        "scale": scale.tolist(),
        "start": start.tolist(),
        "end": end.tolist(),
        "detectable": curves.detectable().tolist(),
        "fall": _swings(curves, before, smallest),
        "rise": _swings(curves, after, smallest),
        "dip": _dips(curves, before, after, smallest),
        "peak": _dips(upside_down, *_both_sides(upside_down), smallest),
        "low": ndtr((COLLAPSED * scale - above) / error).tolist(),
        "high": ndtr((above - UNIFORM * scale) / error).tolist(),
    }
    return [_Findings(**dict(zip(of_curves, each, strict=True))) for each in zip(*of_curves.values(), strict=True)]


def _verdicts(curves: Sequence[Curve]) -> list[Regime]:
    clean = _Curves.of(curves)
    scales = [_scale(curve, top) for curve, top in zip(curves, clean.values.max(axis=1).tolist(), strict=True)]
    found = _findings(clean, np.array([float(curve.lower) for curve in curves]), np.array(scales))
    return [_verdict(each, curve.upper is not None) for each, curve in zip(found, curves, strict=True)]


def _scale(curve: Curve, top: float) -> float:
    if curve.upper is not None:
        return float(curve.upper - curve.lower)
    return max(top - curve.lower, MIN_HEIGHT * abs(top))


def _verdict(found: _Findings, is_bounded: bool) -> Regime:
    """Go through the kinds in order; the first that is more likely than not is the verdict."""
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
    dip = found.dip if kind is Kind.REBOUNDING else _Dip(chance=chance)
    return Regime(
        kind=kind,
        start=found.start,
        end=found.end,
        dip_step=dip.step,
        dip_depth=dip.depth,
        rebound=dip.rebound,
        noise=found.noise.deviation,
        autocorrelation=found.noise.autocorrelation,
        confidence=min([chance, *(1 - rejected for _, rejected in chances[:chosen])]),
        why=f"{_told(kind, found)}; noise {found.noise.deviation:.2g}",
    )


def _told(kind: Kind, found: _Findings) -> str:
    """Word what was found."""
    dip, peak = found.dip, found.peak
    unseen = max(MIN_CHANGE * found.scale, found.detectable)
    return {
        Kind.COLLAPSED: f"ends at {found.end:.3g}, at most {COLLAPSED:.0%} of the scale",
        Kind.UNIFORM: f"ends at {found.end:.3g}, at least {UNIFORM:.0%} of the largest value possible",
        Kind.REBOUNDING: f"falls by {dip.depth:.3g} to step {dip.step:g}, then rises by {dip.rebound:.3g}",
        Kind.PEAKING: f"rises by {peak.depth:.3g} to step {peak.step:g}, then falls by {peak.rebound:.3g}",
        Kind.FALLING: f"falls by {found.fall.size:.3g}",
        Kind.RISING: f"rises by {found.rise.size:.3g}",
        Kind.FLAT: f"no change of {unseen:.2g} or more",
        Kind.UNCLEAR: f"a change of {found.detectable:.2g} would not be seen",
    }[kind]
