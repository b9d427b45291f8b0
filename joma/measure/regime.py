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

Rates of error and the curves they were measured on: docs/regimes.md.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
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
    steps, values = _checked(steps, values, upper, lower)
    if len(values) < MIN_POINTS:
        why = f"{len(values)} points, {MIN_POINTS} are needed"
        return Regime(kind=Kind.UNCLEAR, start=float(values[0]), end=float(values[-1]), confidence=1.0, why=why)
    return _verdict(_Curve.of(steps, values), lower, upper)


def _checked(steps: np.ndarray, values: np.ndarray, upper: float | None, lower: float) -> tuple[np.ndarray, np.ndarray]:
    steps, values = finite("steps", _as_array(steps)), finite("values", _as_array(values))
    same_shape(steps=steps, values=values)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"A curve needs one axis and a point, got shape {values.shape}. Classify curves one by one.")
    if (np.diff(steps) <= 0).any():
        at = int(np.argmax(np.diff(steps) <= 0))
        raise ValueError(f"`steps` must ascend, got {steps[at]:g} before {steps[at + 1]:g}. Sort; keep one of each.")
    top = np.inf if upper is None else upper
    slack = 1e-6 * float(np.abs(values).max())  # single precision may round an entropy above log L
    if values.min() < lower - slack or values.max() > top + slack:
        raise ValueError(
            f"`values` must lie between `lower` {lower:g} and `upper` {top:g}, "
            f"got {values.min():g} to {values.max():g}. Pass the bounds of this quantity."
        )
    return steps, values


def _as_array(values: Any) -> Any:
    """Bring a tensor over from its device and without its gradient, which NumPy refuses; leave all else as it is."""
    return values.detach().cpu().double().numpy() if hasattr(values, "detach") else values


@dataclass(frozen=True, kw_only=True, slots=True)
class _Noise:
    """Stationary noise around the curve: its deviation, and its correlation between neighbours."""

    deviation: float
    autocorrelation: float

    @classmethod
    def of(cls, values: Float[np.ndarray, " N"]) -> "_Noise":
        r"""Match the sizes of second differences $x_{i-h} - 2x_i + x_{i+h}$, of variance $\sigma^2 g(\varphi^h)$."""
        nearest = _second_differences(values, 1)
        num_parts = max(1, min(NUM_PARTS, len(values) // POINTS_OF_PART))
        noisiest = max(_spread(part) for part in np.array_split(nearest, num_parts))
        phi = _autocorrelation(values, _spread(nearest))
        return cls(deviation=float(noisiest / np.sqrt(_variance_of_difference(phi))), autocorrelation=phi)

    def of_mean(self, width: int) -> float:
        """Standard deviation of the mean of neighbouring points."""
        phi = self.autocorrelation
        factor = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**width) / (width * (1 - phi) ** 2)
        return self.deviation * float(np.sqrt(factor / width))


def _autocorrelation(values: Float[np.ndarray, " N"], nearest: float) -> float:
    """Read off how much larger second differences are at longer strides; at most what so many points can show."""
    strides = [h for h in STRIDES if POINTS_PER_STRIDE * h <= len(values)]
    if nearest == 0 or not strides:
        return 0.0
    ratio = np.mean([(_spread(_second_differences(values, h)) / nearest) ** 2 for h in strides])
    grid = np.linspace(0, MAX_AUTOCORRELATION, 161)
    expected = np.mean(_variance_of_difference(grid ** np.array(strides)[:, None]), axis=0)
    expected = expected / _variance_of_difference(grid)
    return min(float(np.interp(ratio, expected, grid)), len(values) / POINTS_OF_AUTOCORRELATION)


def _second_differences(values: Float[np.ndarray, " N"], stride: int) -> Float[np.ndarray, " n"]:
    return values[: -2 * stride] - 2 * values[stride:-stride] + values[2 * stride :]


def _spread(differences: Float[np.ndarray, " n"]) -> float:
    """Root mean square with what is beyond `CLIP` deviations cut to that: a few jumps do not count as noise."""
    bound = CLIP * NORMAL_MAD * np.median(np.abs(differences))
    return float(np.sqrt(np.mean(np.minimum(np.abs(differences), bound) ** 2)))


def _variance_of_difference(correlation: float | Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    r"""Variance of a second difference over that of a point, $g(\varphi) = 6 - 8\varphi + 2\varphi^2$."""
    return np.asarray(6 - 8 * correlation + 2 * correlation**2)


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """A curve without spikes, of at most `MAX_POINTS` points, with the means of its windows."""

    steps: Float[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]
    noise: _Noise

    @classmethod
    def of(cls, steps: Float[np.ndarray, " N"], values: Float[np.ndarray, " N"]) -> "_Curve":
        steps, values = _thinned(steps), _thinned(values)
        for _ in range(2):  # the noise is seen better without the first spikes, and then the others
            values = _without_spikes(values, _Noise.of(values).deviation)
        return cls(steps=steps, values=values, noise=_Noise.of(values))

    @property
    def upside_down(self) -> "_Curve":
        return _Curve(steps=self.steps, values=-self.values, noise=self.noise)

    @cached_property
    def widths(self) -> Int[np.ndarray, " W"]:
        """Of the windows: up to half of the curve."""
        return np.array([w for w in WIDTHS if 2 * w <= len(self.values)])

    @cached_property
    def means(self) -> Float[np.ndarray, "W N"]:
        """Mean of each window, by width and first point; NaN where it would reach beyond the end."""
        total = np.concatenate([[0.0], np.cumsum(self.values)])
        means = np.full((len(self.widths), len(self.values)), np.nan)
        for row, w in zip(means, self.widths, strict=True):
            row[: len(row) - w + 1] = (total[w:] - total[:-w]) / w
        return means

    @cached_property
    def errors(self) -> Float[np.ndarray, "W W"]:
        """Standard error of the difference of two means, by their widths."""
        single = np.array([self.noise.of_mean(int(w)) for w in self.widths])
        return np.hypot(single[:, None], single) + self.rounding

    @property
    def rounding(self) -> float:
        """Added to every standard error; more than zero."""
        limits = np.finfo(np.float64)
        return max(float(limits.eps * np.abs(self.values).max()), float(limits.tiny))

    @cached_property
    def bars(self) -> Float[np.ndarray, "W W"]:
        """Number of standard errors that the difference of two windows must exceed."""
        single = 2 * np.log(len(self.values) / self.widths)
        return np.sqrt(single[:, None] + single) + EVIDENCE

    def detectable(self) -> float:
        """The smallest difference that could count."""
        return float(np.min(self.bars * self.errors))

    def ends(self) -> tuple[float, float]:
        """Levels at the start and at the end."""
        num = self.num_end_points
        return float(np.median(self.values[:num])), float(np.median(self.values[-num:]))

    @property
    def num_end_points(self) -> int:
        return max(MIN_END_POINTS, round(END_SHARE * len(self.values)))


def _thinned(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
    """Means of groups of neighbours, as few to a group as `MAX_POINTS` allows."""
    per_group = -(-len(values) // MAX_POINTS)
    return np.array([group.mean() for group in np.array_split(values, -(-len(values) // per_group))])


def _without_spikes(values: Float[np.ndarray, " N"], deviation: float) -> Float[np.ndarray, " N"]:
    """Put the running median for points that stick out of it; near steep parts they must stick out further."""
    median = median_filter(values, SPIKE_WINDOW, mode="mirror")
    moves = maximum_filter1d(np.abs(np.diff(median, append=median[-1])), SPIKE_WINDOW + 1, mode="mirror")
    reach = SPIKE * deviation + np.maximum(0, moves - 2 * deviation)
    return np.where(np.abs(values - median) > reach, median, values)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Side:
    """How far each window lies under the windows on one side of it, by width and first point."""

    margin: Float[np.ndarray, "W N"]
    """Standard errors by which the strongest difference exceeds the bar."""
    size: Float[np.ndarray, "W N"]
    """The largest difference that counts, less what selection adds; minus infinity where none counts."""
    other: Int[np.ndarray, "W N"]
    """Index of the other window's width in that difference."""

    @classmethod
    def of(cls, curve: _Curve, highest: Float[np.ndarray, "W w N"]) -> "_Side":
        """Compare windows with the highest one of each width (first axis) on that side of them."""
        error, bar = curve.errors.T[:, :, None], curve.bars.T[:, :, None]
        difference = np.where(np.isnan(curve.means), -np.inf, highest - curve.means)
        excess = difference / error - bar
        typical = np.where(excess > 0, difference - SELECTION * error, -np.inf)
        return cls(margin=excess.max(axis=0), size=typical.max(axis=0), other=typical.argmax(axis=0))


def _both_sides(curve: _Curve) -> tuple[_Side, _Side]:
    """How far all windows lie under those that end before them, and under those that start after them."""
    num_widths, num = curve.means.shape
    known = np.where(np.isnan(curve.means), -np.inf, curve.means)
    so_far = np.maximum.accumulate(known, axis=1)
    from_here = np.pad(
        np.maximum.accumulate(known[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, num)), constant_values=-np.inf
    )
    before = np.full((num_widths, 1, num), -np.inf)
    for row, highest, width in zip(before, so_far, curve.widths, strict=True):
        row[0, width:] = highest[:-width]
    after = from_here[:, np.arange(num) + curve.widths[:, None]]
    return _Side.of(curve, before), _Side.of(curve, after)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Swing:
    """The largest fall or rise that counts."""

    chance: float
    """Probability that it counts and matters."""
    size: float


def _swing(curve: _Curve, side: _Side, smallest: float) -> _Swing:
    margin = float(side.margin.max())
    if margin <= 0:
        return _Swing(chance=float(ndtr(margin)), size=0.0)
    width, at = np.unravel_index(side.size.argmax(), side.size.shape)
    size, error = float(side.size[width, at]), float(curve.errors[width, side.other[width, at]])
    return _Swing(chance=float(ndtr(min(margin, (size - smallest) / error))), size=size)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dip:
    """A window that is lower than one before it and one after it, and than the ends of the curve."""

    chance: float
    """Probability of the weakest of its conditions."""
    step: float = np.nan
    depth: float = np.nan
    rebound: float = np.nan


def _dip(curve: _Curve, before: _Side, after: _Side, smallest: float) -> _Dip:
    """The dip with the largest fall and rise that count, together; or how far the best window is from being one."""
    margin = float(np.minimum(before.margin, after.margin).max())
    if margin <= 0:
        return _Dip(chance=float(ndtr(margin)))
    swings = before.size + after.size
    width, at = np.unravel_index(swings.argmax(), swings.shape)
    level, depth, rebound = (float(of[width, at]) for of in (curve.means, before.size, after.size))
    left, right = int(before.other[width, at]), int(after.other[width, at])
    start, end = float(curve.means[left, 0]), float(curve.means[right, -curve.widths[right]])
    fall = min(depth - max(smallest, MIN_REBOUND * rebound), start - level - KEPT * depth)
    rise = min(rebound - max(smallest, MIN_REBOUND * depth), end - level - KEPT * rebound)
    weakest = min(margin, fall / curve.errors[width, left], rise / curve.errors[width, right])
    step = float(curve.steps[at + (curve.widths[width] - 1) // 2])
    return _Dip(chance=float(ndtr(weakest)), step=step, depth=depth, rebound=rebound)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Findings:
    """All that a verdict rests on."""

    fall: _Swing
    rise: _Swing
    dip: _Dip
    peak: _Dip
    low: float
    """Probability that the end is as low as a collapsed curve's."""
    high: float
    """Probability that the end is as high as a uniform one's."""

    @classmethod
    def of(cls, curve: _Curve, lower: float, scale: float) -> "_Findings":
        smallest = MIN_CHANGE * scale
        before, after = _both_sides(curve)
        upside_down = curve.upside_down
        error = curve.noise.of_mean(curve.num_end_points) + curve.rounding
        above = curve.ends()[1] - lower
        return cls(
            fall=_swing(curve, before, smallest),
            rise=_swing(curve, after, smallest),
            dip=_dip(curve, before, after, smallest),
            peak=_dip(upside_down, *_both_sides(upside_down), smallest),
            low=float(ndtr((COLLAPSED * scale - above) / error)),
            high=float(ndtr((above - UNIFORM * scale) / error)),
        )


def _verdict(curve: _Curve, lower: float, upper: float | None) -> Regime:
    """Go through the kinds in order; the first that is more likely than not is the verdict."""
    top = float(curve.values.max())
    scale = max(top - lower, MIN_HEIGHT * abs(top)) if upper is None else upper - lower
    found = _Findings.of(curve, lower, scale)
    monotone = [(Kind.FALLING, found.fall.chance), (Kind.RISING, found.rise.chance)]
    chances = [
        (Kind.COLLAPSED, found.low if upper is not None else min(found.low, found.fall.chance)),
        (Kind.UNIFORM, found.high if upper is not None else 0.0),
        (Kind.REBOUNDING, found.dip.chance),
        (Kind.PEAKING, found.peak.chance),
        *(monotone if found.fall.size > found.rise.size else monotone[::-1]),
        (Kind.UNCLEAR if curve.noise.deviation > 0 and curve.detectable() > HIDDEN * scale else Kind.FLAT, 1.0),
    ]
    chosen = next(i for i, (_, chance) in enumerate(chances) if chance > MORE_LIKELY_THAN_NOT)
    kind, chance = chances[chosen]
    start, end = curve.ends()
    dip = found.dip if kind is Kind.REBOUNDING else _Dip(chance=chance)
    return Regime(
        kind=kind,
        start=start,
        end=end,
        dip_step=dip.step,
        dip_depth=dip.depth,
        rebound=dip.rebound,
        noise=curve.noise.deviation,
        autocorrelation=curve.noise.autocorrelation,
        confidence=min([chance, *(1 - rejected for _, rejected in chances[:chosen])]),
        why=f"{_told(kind, found, curve, scale)}; noise {curve.noise.deviation:.2g}",
    )


def _told(kind: Kind, found: _Findings, curve: _Curve, scale: float) -> str:
    """Word what was found."""
    end, dip, peak = curve.ends()[1], found.dip, found.peak
    unseen = max(MIN_CHANGE * scale, curve.detectable())
    return {
        Kind.COLLAPSED: f"ends at {end:.3g}, at most {COLLAPSED:.0%} of the scale",
        Kind.UNIFORM: f"ends at {end:.3g}, at least {UNIFORM:.0%} of the largest value possible",
        Kind.REBOUNDING: f"falls by {dip.depth:.3g} to step {dip.step:g}, then rises by {dip.rebound:.3g}",
        Kind.PEAKING: f"rises by {peak.depth:.3g} to step {peak.step:g}, then falls by {peak.rebound:.3g}",
        Kind.FALLING: f"falls by {found.fall.size:.3g}",
        Kind.RISING: f"rises by {found.rise.size:.3g}",
        Kind.FLAT: f"no change of {unseen:.2g} or more",
        Kind.UNCLEAR: f"a change of {curve.detectable():.2g} would not be seen",
    }[kind]
