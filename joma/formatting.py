"""Numbers as people read them: short enough for a table, and with their word in a sentence."""

import math
from decimal import Decimal

NO_LAYER = -1
"""Number, in records, of what is measured outside of the layers: a pooling head, an embedding, the loss."""
ALL_HEADS = -1  # number, in records, of what is measured over all heads
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


def fixed(value: float, decimals: int) -> str:
    """Format a number of a table with fixed decimals, with two significant digits where these would show fewer.

    >>> fixed(30.312, 1), fixed(0.0463, 1), fixed(3.2e-7, 1), fixed(0.0, 1)
    ('30.3', '0.046', '3.2e-07', '0.0')
    """
    return f"{value:.{decimals}f}" if value == 0 or abs(value) >= 10 ** (1 - decimals) else f"{value:#.2g}"


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


def binary_size(num_bytes: int) -> str:
    """Return a number of bytes as people read it.

    >>> binary_size(512), binary_size(3 * 2**20), binary_size(1500 * 2**20)
    ('0.5 KiB', '3.0 MiB', '1.5 GiB')
    """
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if num_bytes >= 2**power:
            return f"{num_bytes / 2**power:.1f} {unit}"
    return f"{num_bytes / 2**10:.1f} KiB"


def layer_name(layer: int, preposition: str = "") -> str:
    """Return a layer by its number, after a preposition if one is given; what has none lies outside of them.

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


def printable(text: str) -> str:
    r"""Write control characters as text, so that names in foreign files cannot steer a terminal.

    >>> printable("layers.0\x1b[31m\u202e"), printable("größe 7")
    ('layers.0\\x1b[31m\\u202e', 'größe 7')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
