"""Curves made ready to be compared: without spikes, of a few hundred points at most, with the means of their windows.

Axes: C curves, N points, W widths of windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import maximum_filter1d, median_filter

from joma.measure.regime_noise import Noise, noises_of

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
