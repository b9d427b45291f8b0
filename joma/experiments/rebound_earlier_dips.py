"""Dips that a curve has before its lowest point: the regime of a curve tells one dip, the largest, and no other.

They are read off the kept means over seeds. This was asked since the result was seen, and decides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.experiments.rebound_shares import AFTERWARDS
from joma.measure.regime import KEPT, MIN_REBOUND

RULE = (
    f"{AFTERWARDS}: in means over seeds, with a fall and a rise of {MIN_REBOUND:g} of the curve's height or more, the "
    f"rise {KEPT:g} of the fall or more"
)
"""The shares are those by which a regime tells its dip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierDip:
    """A curve that falls, rises, and later falls further; levels and the steps at which they are reached."""

    depth: int
    layer: int
    before: float
    level: float
    step: int
    after: float
    after_step: int
    lowest: float
    lowest_step: int

    def __str__(self) -> str:
        """As it is said, with where it is and what comes later."""
        return (
            f"depth {self.depth}, layer {self.layer}: {self.before:.2f} to {self.level:.2f} at step {self.step:,}, "
            f"back by {self.after - self.level:.2f} to {self.after:.2f} at step {self.after_step:,}, lowest "
            f"{self.lowest:.2f} at step {self.lowest_step:,}"
        )


def earlier_dips(curves: pd.DataFrame) -> list[EarlierDip]:
    """Return the dips before the lowest point of the mean curves of one condition, learning rate and metric."""
    return [
        dip
        for (depth, layer), own in curves.sort_values("step", kind="stable").groupby(["depth", "layer"])
        for dip in _of_curve(int(depth), int(layer), own)
    ]


def _of_curve(depth: int, layer: int, curve: pd.DataFrame) -> Iterator[EarlierDip]:
    values, steps = curve["mean"].to_numpy(dtype=float), curve["step"].to_numpy()
    lowest = int(values.argmin())
    points = turning_points(values, MIN_REBOUND * float(np.ptp(values)))
    for before, at, after in zip(points, points[1:], points[2:], strict=False):
        fall, rise = values[before] - values[at], values[after] - values[at]
        if at < lowest and fall > 0 and rise >= KEPT * fall:
            yield EarlierDip(
                depth=depth,
                layer=layer,
                before=values[before],
                level=values[at],
                step=int(steps[at]),
                after=values[after],
                after_step=int(steps[after]),
                lowest=values[lowest],
                lowest_step=int(steps[lowest]),
            )


def turning_points(values: Float[np.ndarray, " N"], least: float) -> list[int]:
    """Return where a curve turns, from its first extreme to its last; nothing where no swing reaches `least`.

    >>> turning_points(np.array([5.0, 2.0, 2.1, 4.0, 3.9, 1.0]), 0.5)
    [0, 1, 3, 5]
    >>> turning_points(np.ones(3), 0.0)
    []
    """
    if not least > 0:
        return []
    points: list[int] = []
    sign = 0  # of the swing under way: not known before the first of them
    low = high = 0
    for at, value in enumerate(values):
        low, high = (at if value < values[low] else low), (at if value > values[high] else high)
        if sign >= 0 and values[high] - value >= least:
            points, sign, low = [*points, high], -1, at
        elif sign <= 0 and value - values[low] >= least:
            points, sign, high = [*points, low], 1, at
    return [*points, low if sign < 0 else high] if points else []
