"""How much a scale spans at least, so that what counts as flat looks flat: one rule for every axis and colour bar.

Left to itself an axis fills with whatever there is, and the rounding of a constant looks like a curve.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

MIN_CHANGE = 0.02
"""Smallest change that is to be seen, as part of the range of possible values or of the height of the highest."""
MIN_HEIGHT = 1e-3
"""Height of values that lie on their lower bound, relative to the values."""
FLAT_SHARE = 0.2
"""Part of an axis that the largest change takes which still counts as none."""


def least_span(
    values: Float[np.ndarray, " n"], *, lower: float = 0.0, upper: float | None = None, fine: bool = False
) -> float:
    """Return how much a scale of these values, all finite, must span at least.

    The smallest change is a part of what values are possible or, where the largest one is not known, of
    the height of the highest. It takes `FLAT_SHARE` of the scale; all of it where `fine` says that a small change may
    matter.

    >>> noise = np.array([2.0, 2.0 + 1e-7])
    >>> [round(each, 6) for each in (least_span(noise), least_span(noise, fine=True), least_span(noise, upper=3.0))]
    [0.2, 0.04, 0.3]
    """
    top = float(np.abs(values).max(initial=0.0))
    height = max(top - lower, MIN_HEIGHT * top) if upper is None else upper - lower
    return MIN_CHANGE * height / (1.0 if fine else FLAT_SHARE)


def widened(values: Sequence[float] | Float[np.ndarray, " n"], span: float) -> list[float]:
    """Return the ends of a scale that has this span around values that differ by less; none where they fill it.

    >>> widened([2.0, 2.0], 0.5), widened([2.0, 3.0], 0.5), widened([], 0.5)
    ([1.75, 2.25], [], [])
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size or array.max() - array.min() >= span:
        return []
    middle = float(array.max() + array.min()) / 2
    return [middle - span / 2, middle + span / 2]
