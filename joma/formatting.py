"""Numbers as people read them: short enough for a table, and with their word in a sentence."""

import math
from decimal import Decimal

NO_LAYER = -1
"""Number, in records, of what is measured outside of the layers: a pooling head, an embedding, the loss."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def short(value: float | None, digits: int = 2) -> str:
    """Format a measured number with a few digits; NaN, of what did not occur, is none, and None is nothing.

    >>> short(3.14159e-13), short(5.3571, digits=4), short(float("nan")), short(float("inf")), short(None)
    ('3.1e-13', '5.357', 'none', '∞', '')
    """
    if value is None:
        return ""
    if math.isnan(value):
        return "none"
    return f"{value:.{digits}g}".replace("inf", "∞")


def fewest_letters(value: float) -> str:
    """Spell a number, with all its digits, in as few letters as it needs: what a setting is called, and names of runs.

    >>> [fewest_letters(value) for value in (0.2, 0.01, 1e-4, 5e-06, 200.0, 1e20)]
    ['0.2', '1e-2', '1e-4', '5e-6', '200', '1e20']
    """
    if not math.isfinite(value):
        return str(float(value))
    exact = Decimal(repr(float(value))).normalize()
    plain, scaled = f"{exact:f}", f"{exact:e}".replace("e+", "e")
    return scaled if len(scaled) < len(plain) or (len(scaled) == len(plain) and abs(value) < 1) else plain


def duration(seconds: float | int) -> str:
    """Return a time as people say it.

    >>> duration(7), duration(200), duration(8000), duration(400000)
    ('7 s', '3 min 20 s', '2 h 13 min', '4 d 15 h')
    """
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    for unit, name, below, below_name in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // below} {below_name}"
    return f"{whole // _MINUTE} min {whole % _MINUTE} s"


def layer_name(layer: int, preposition: str = "") -> str:
    """Return a layer by its number, behind a preposition if one is given; what has none lies outside of them.

    >>> layer_name(3), layer_name(3, "in"), layer_name(NO_LAYER, "in")
    ('layer 3', 'in layer 3', 'outside of the layers')
    """
    return "outside of the layers" if layer == NO_LAYER else f"{preposition} layer {layer}".lstrip()


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its word, which takes an s in the plural unless that is given.

    >>> counted(1, "pack"), counted(1200, "run"), counted(0, "entry", "entries")
    ('1 pack', '1,200 runs', '0 entries')
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"
