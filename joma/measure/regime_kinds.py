"""The closed set of regimes, and which way a curve of each goes at its two ends."""

from enum import StrEnum


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
