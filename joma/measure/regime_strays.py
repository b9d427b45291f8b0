r"""Points at the ends of curves that were left out as spikes: a spike indeed, or a change of which no more is seen.

Inside a curve a spike is known by what comes after it. At an end nothing does, and a first or last point that sticks
out is left out all the same: what it is cannot be told. Its chance to be a spike is taken from those inside: after $s$
points that stuck out and came back, the next one does by Laplace's rule of succession with probability
$(s + 1)/(s + 2)$. Axes: C curves, N points.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from joma.measure.regime_curves import Curves
from joma.measure.regime_kinds import DOWN, FIRST_WAY, LAST_WAY, UP, Kind


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
