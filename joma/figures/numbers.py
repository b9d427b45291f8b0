"""Numbers short enough for a table."""

import math


def short(value: float | None) -> str:
    """Format a measured number with two digits, and nothing for None.

    >>> short(3.14159e-13), short(0.25), short(float("inf")), short(None)
    ('3.1e-13', '0.25', 'not finite', '')
    """
    if value is None:
        return ""
    return f"{value:.2g}" if math.isfinite(value) else "not finite"
