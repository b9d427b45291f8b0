r"""What a curve does over training: how far it falls, when it is lowest, how far it rises again.

The answer does not depend on how often the curve was logged. The curve is smoothed in logarithmic time
$u = \log(1 + t/t_0)$ as a Gaussian process, $y = f(u) + e$. The prior of $f$ is an integrated random walk, whose
posterior mean is a cubic smoothing spline; the noise $e$ is white, or correlated over some steps. Where measurements
are missing the posterior of $f$ is wide, so intervals include what the schedule cannot show. Roughness of the curve and
correlation of the noise are averaged over a grid, weighted by their restricted likelihood.

With $L$ the mean of $f$ over the last tenth of training and $m$, $s$ the posterior mean and deviation of $L - f(t)$,

$$\text{rise} = \max_t m(t) \in \Big[\max_t \big(m - c\,s\big)(t),\; \max_t \big(m + c\,s\big)(t)\Big],$$

and likewise for the fall, $f(0) - f(t)$, and the lowest value. The ends of the interval are maxima themselves, so it
stays right where the curve is flat and the time of the minimum is arbitrary.

Measured on curves of known shape: tests/measure/test_effects.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from joma.errors import finite, same_shape
from joma.formatting import ALL_HEADS
from joma.metrics import METRICS

if TYPE_CHECKING:
    import pandas

EARLIEST = 1e-5  # part of training where logarithmic time begins: the unit $t_0$
BIN = 0.04  # measurements that are closer than this in logarithmic time are averaged
MOST = 1000  # longer curves are averaged to this many points first
SPACING = 0.07  # of the times, in logarithmic time, at which the curve is evaluated
WIDEST = np.log(3)  # gap in logarithmic time that is interpolated. No dip is searched inside a wider one.
LAST = 0.1  # part of training whose mean is the level at the end
ROUGHNESS = 10.0 ** np.arange(-3, 8.1, 0.8)  # variance of the random walk, in units of the variance of the noise
CORRELATION_TIMES = (0.0, 0.0007, 0.002, 0.006)  # of the noise, as parts of training; 0 is white noise
PREFER_SHORT = 3.0
"""Log prior odds of each correlation time against the next longer one: a dip is a signal, not slow noise."""
LEAST_NOISE = 0.012
"""Deviation, as part of the curve's range, of one more residual: a steep curve with few points looks free of noise."""
NEGLIGIBLE = 1e-3  # settings less likely than this, relative to the best, are left out
BAND = 2.7
"""Half-width of a 95 % interval in posterior deviations: above 1.96, because the minimum is searched and the prior is
only roughly right. Chosen for coverage on the curves of the test."""
MIN_NEAR, NEAR = 3, 2.0  # a dip is resolved by three measurements within a factor of 2 of its time
MIN_POINTS = 5  # shorter curves are not resolved
MIN_CHANGE = 0.02  # smallest change that has a name, as part of the largest value possible or of the start
CLEAR = 0.25
"""Part of its interval by which a change must clear the smallest that counts to get a name, which otherwise depends on
the schedule. Chosen among 0, 0.15, 0.25, 0.35, 0.5, 0.7 and 1 on curves with other seeds than those of the test."""
COLLAPSED, UNIFORM = 0.05, 0.99
"""A curve that ends below or above this part of its largest value has collapsed or is uniform."""
Range = tuple[float | int, float | int]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """What a curve does, in numbers."""

    start: Estimate  # level at the first point
    lowest: Estimate  # smallest value of the smoothed curve
    dip_time: Estimate  # when the smoothed curve is lowest
    fall: Estimate  # start minus lowest
    end: Estimate  # mean of the smoothed curve over the last tenth of training
    rise: Estimate  # end minus lowest
    resolved: bool
    """False where the curve has a dip with fewer than three measurements near it. The dip may then be deeper."""
    noise: float  # standard deviation of a measurement around the smoothed curve
    lower: float  # the smallest value possible
    maximum: float | None  # the largest value possible, if it is known


class Name(StrEnum):
    """Names of curves. Where several apply, the first is given."""

    COLLAPSED = "collapsed"  # ends near the smallest value possible
    UNIFORM = "uniform"  # ends at the largest value possible
    NOT_RESOLVED = "not resolved"
    """There may be a fall or rise that matters, but schedule or noise hide it, or whether it is large enough."""
    REBOUNDING = "rebounding"  # falls and rises again
    FALLING = "falling"
    RISING = "rising"
    FLAT = "flat"


def name_of(effects: Effects, *, smallest: float | int | None = None) -> Name:
    """Name a curve by thresholds on its effects.

    Args:
        effects: what `describe` returned.
        smallest: fall or rise that counts, in the unit of the curve; 2 % of the largest value by default.
    """
    top = effects.start.value if effects.maximum is None else effects.maximum
    height = top - effects.lower
    if smallest is None:
        smallest = MIN_CHANGE * (height if np.isfinite(height) else abs(top))
    above = effects.end.value - effects.lower
    has_fallen = effects.maximum is not None or effects.fall.value >= smallest
    if np.isfinite(height) and above <= COLLAPSED * height and has_fallen:
        return Name.COLLAPSED
    if effects.maximum is not None and above >= UNIFORM * height:
        return Name.UNIFORM
    if not effects.resolved or not all(_is_clear(change, smallest) for change in (effects.fall, effects.rise)):
        return Name.NOT_RESOLVED
    falls, rises = effects.fall.value >= smallest, effects.rise.value >= smallest
    if falls:
        return Name.REBOUNDING if rises else Name.FALLING
    return Name.RISING if rises else Name.FLAT


def _is_clear(change: Estimate, smallest: float | int) -> bool:
    """Whether a change is certainly there, and clearly larger than the smallest that counts, or clearly smaller."""
    if change.value >= smallest:
        return change.low > 0 and change.value - smallest >= CLEAR * (change.value - change.low)
    return smallest - change.value >= CLEAR * (change.high - change.value)


def describe(
    times: Any,
    values: Any,
    *,
    bounds: Range = (-np.inf, np.inf),
    maximum: float | int | None = None,
    search: Range | None = None,
) -> Effects:
    """Describe a curve by its start, fall, dip, rise and end, each with a 95 % interval.

    Args:
        times: ascending, not negative: steps, tokens or epochs.
        values: one for each time.
        bounds: smallest and largest value possible. Levels and their intervals stay inside.
        maximum: value of a uniform curve, such as log L for the entropy over L keys.
        search: first and last time between which the lowest value is searched; the whole curve if None.

    >>> steps = np.arange(0, 20_001, 250)
    >>> effects = describe(steps, 2.5 - 1.5 * np.exp(-np.log((steps + 1) / 2000) ** 2), bounds=(0, np.inf))
    >>> name_of(effects).value, round(effects.rise.value, 1), round(effects.dip_time.value, -3)
    ('rebounding', 1.5, 2000.0)
    """
    times, values = finite("times", times), finite("values", values)
    same_shape(times=times, values=values)
    if times.ndim != 1 or not len(times):
        raise ValueError(f"A curve needs one axis and a point, got shape {times.shape}. Describe curves one by one.")
    if times[0] < 0 or (np.diff(times) <= 0).any():
        raise ValueError("`times` must ascend and not be negative. Sort them and keep one of each.")
    group = -(-len(times) // MOST)
    starts = np.concatenate([[0], np.arange(1, len(times), group)])
    sizes = np.diff(starts, append=len(times))
    grid, posterior = _schedule((np.add.reduceat(times, starts) / sizes).tobytes())
    mean, cov, deviation = posterior(np.add.reduceat(values, starts) / sizes)

    low, high = (-np.inf, np.inf) if search is None else search
    at = np.flatnonzero((grid >= low) & (grid <= high))
    if not len(at):
        raise ValueError(f"No measurement lies in `search` {search}; the curve goes from {grid[0]:g} to {grid[-1]:g}.")
    first, last = len(mean) - 2, len(mean) - 1
    variance = np.maximum(np.diag(cov), 0)

    def band(index: Any, other: Any) -> Any:
        return BAND * np.sqrt(np.maximum(variance[index] + variance[other] - 2 * cov[index, other], 0))

    def level(value: float, low: float, high: float) -> Estimate:
        return Estimate(*(float(np.clip(each, *bounds)) for each in (value, low, high)))

    def drop_from(index: int) -> Estimate:
        size, half = mean[index] - mean[at], band(index, at)
        return Estimate(float(size.max()), float((size - half).max()), float((size + half).max()))

    half = BAND * np.sqrt(variance)
    dip = at[mean[at].argmin()]
    may_be_dip = grid[at[mean[at] - mean[dip] <= band(dip, at)]]
    fall, rise = drop_from(first), drop_from(last)
    num_near = int(((times >= grid[dip] / NEAR) & (times <= grid[dip] * NEAR)).sum())
    is_inside = times[0] < grid[dip] < (1 - LAST) * times[-1]
    has_dip = is_inside and fall.low > 0 and rise.low > 0
    return Effects(
        start=level(mean[first], mean[first] - half[first], mean[first] + half[first]),
        lowest=level(mean[dip], (mean - half)[at].min(), (mean + half)[at].min()),
        dip_time=Estimate(float(grid[dip]), float(may_be_dip[0]), float(may_be_dip[-1])),
        fall=fall,
        end=level(mean[last], mean[last] - half[last], mean[last] + half[last]),
        rise=rise,
        resolved=len(times) >= MIN_POINTS and (num_near >= MIN_NEAR or not has_dip),
        noise=deviation * float(np.sqrt(group)),
        lower=float(bounds[0]),
        maximum=None if maximum is None else float(maximum),
    )


Posterior = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, float]]
"""From values to mean and covariance of the results, and the deviation of the noise.

The results are the curve on the grid, its level at the start and its level at the end.
"""


@lru_cache(maxsize=4)
def _schedule(times_bytes: bytes) -> tuple[Float[np.ndarray, " g"], Posterior]:
    """Prepare the fit of all curves that were measured at these times; return the grid, and what fits a curve.

    Axes: S settings of the prior, N points, p coefficients of a line, G results. Covariances are in units of the
    variance of the noise.
    """
    times = np.frombuffer(times_bytes)
    duration = times[-1] or 1.0
    u = np.log1p(times / (EARLIEST * duration))
    average, grid = _average_and_grid(u)
    late = np.maximum(duration * (1 - LAST * (np.arange(8) + 0.5) / 8), times[0])
    wanted = np.concatenate([grid, u[:1], np.log1p(late / (EARLIEST * duration))])
    collect = np.eye(len(grid) + 2, len(wanted))
    collect[-1, len(grid) + 1 :] = 1 / len(late)

    points = average @ u
    # The line, which the prior leaves free, at the points (N p) and at the results (G p).
    line, far_line = (np.stack([np.ones(len(at)), at - u[0]], axis=1)[:, : len(points)] for at in (points, wanted))
    far_line = collect @ far_line
    lags = np.abs(times[:, None] - times) / duration
    noises = [average @ (np.exp(-lags / part) if part else np.eye(len(u))) @ average.T for part in CORRELATION_TIMES]
    correlation, roughness = (each.ravel() for each in np.meshgrid(np.arange(len(noises)), ROUGHNESS, indexing="ij"))
    total = roughness[:, None, None] * _walk(points - u[0], points - u[0]) + np.stack(noises)[correlation]
    inverse = np.linalg.inv(total)  # S N N, of the points' covariance without the line
    of_line = inverse @ line  # S N p
    precision = line.T @ of_line
    line_cov = np.linalg.inv(precision)
    project = inverse - of_line @ line_cov @ of_line.mT  # the inverse with the line projected out
    log_volume = np.linalg.slogdet(total)[1] + np.linalg.slogdet(precision)[1]
    # Covariances under a random walk of variance 1: of results and points (G N), and of the results (G G).
    cross = collect @ _walk(wanted - u[0], points - u[0])
    own = collect @ _walk(wanted - u[0], wanted - u[0]) @ collect.T

    @cache
    def result(setting: int) -> tuple[Float[np.ndarray, "G N"], Float[np.ndarray, "G G"]]:
        """Map from points to the posterior mean of the results, and their covariance; kept for the next curve."""
        back = roughness[setting] * (cross @ inverse[setting])
        free_line = far_line - roughness[setting] * (cross @ of_line[setting])
        by_line = free_line @ line_cov[setting]
        smooth = by_line @ of_line[setting].T + back
        return smooth, roughness[setting] * (own - back @ cross.T) + by_line @ free_line.T

    def posterior(values: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, float]:
        y = average @ (values - values.mean())
        free = max(len(y) - far_line.shape[1], 1)
        rounding = 1e-7 * float(np.abs(values).max()) + 1e-30
        misfit = np.maximum(((project @ y) @ y), 0) + (LEAST_NOISE * np.ptp(values)) ** 2 + free * rounding**2
        variance, fit = misfit / max(free - 2, 1), 0.5 * free * np.log(misfit)
        log_weight = -0.5 * log_volume - fit - PREFER_SHORT * correlation
        weight = np.exp(log_weight - log_weight.max())
        used = np.flatnonzero(weight > NEGLIGIBLE)
        weight, variance = weight[used] / weight[used].sum(), variance[used]
        maps = [result(setting) for setting in used.tolist()]
        means = np.stack([smooth @ y for smooth, _ in maps])
        mean = weight @ means
        apart = (means - mean) * np.sqrt(weight)[:, None]
        cov = apart.T @ apart
        for share, (_, own_cov) in zip(weight * variance, maps, strict=True):
            cov += share * own_cov
        return mean + values.mean(), cov, float(np.sqrt(weight @ variance))

    return np.expm1(grid) * EARLIEST * duration, posterior


def _average_and_grid(u: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, "N n"], Float[np.ndarray, " g"]]:
    """Return the averages of measurements that are close to each other, and the times at which a curve is evaluated."""
    bins = np.zeros(len(u), dtype=int)
    edge = u[0]
    for i in range(1, len(u)):
        is_apart = u[i] - edge >= BIN
        bins[i], edge = bins[i - 1] + is_apart, u[i] if is_apart else edge
    fine = np.linspace(u[0], u[-1], int((u[-1] - u[0]) / SPACING) + 2)
    gaps = np.diff(u, prepend=u[0], append=u[-1])
    grid = np.unique(np.concatenate([u[:2], fine[gaps[np.searchsorted(u, fine)] <= WIDEST], u[-1:]]))
    return (bins == np.arange(bins[-1] + 1)[:, None]) / np.bincount(bins)[:, None], grid


def _walk(u: Float[np.ndarray, " a"], v: Float[np.ndarray, " b"]) -> Float[np.ndarray, "a b"]:
    r"""Covariance of an integrated random walk, $\int (u - s)_+ (v - s)_+\,ds$."""
    low, high = np.minimum(u[:, None], v), np.maximum(u[:, None], v)
    return low**2 * (3 * high - low) / 6


FRACTION = "entropy_fraction"
DESCRIBED = ("entropy", "entropy_window", "stable_rank")  # metrics whose curves are described


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveEffects:
    """What the curve of one metric does at one site."""

    metric: str
    layer: int
    site: str
    effects: Effects
    name: Name


def curve_effects(table: "pandas.DataFrame") -> list[CurveEffects]:
    """Describe every curve of the `DESCRIBED` metrics over all heads, by layer, site and metric.

    One rule for train, watch, scan and the report. Whether attention has collapsed or is uniform is read off its
    entropy as a fraction of the maximum, where recorded. Values that are not finite are left out.

    Args:
        table: rows of a record with step, metric, layer, site, head and value, as `joma.read` returns them.
    """
    wanted = table[(table["head"] == ALL_HEADS) & table["metric"].isin([*DESCRIBED, FRACTION])]
    wanted = wanted[np.isfinite(wanted["value"].astype(float))].sort_values("step")
    found = {}
    for (layer, site, metric), rows in wanted.groupby(["layer", "site", "metric"], observed=True):
        known = METRICS[metric]
        maximum = known.bounds[1] if np.isfinite(known.bounds[1]) else None
        effects = describe(rows["step"].to_numpy(), rows["value"].to_numpy(), bounds=known.bounds, maximum=maximum)
        found[layer, site, metric] = effects, name_of(effects, smallest=known.change_from(effects.start.value))
    result = []
    for (layer, site, metric), (effects, name) in found.items():
        of_fraction = found.get((layer, site, FRACTION), (None, name))[1] if metric == "entropy" else name
        named = of_fraction if of_fraction in (Name.COLLAPSED, Name.UNIFORM) else name
        if metric != FRACTION:
            result.append(CurveEffects(metric=metric, layer=int(layer), site=str(site), effects=effects, name=named))
    return result
