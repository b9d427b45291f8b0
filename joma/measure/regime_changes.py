"""Falls, rises and dips of curves: windows that lie under others by differences that count.

Axes: C curves, N points, W widths of windows.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

from joma.measure.regime_curves import Curves

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
