"""Numbers short enough for a table."""


def short(value: float | None) -> str:
    """Format a measured number with two digits, and nothing for None.

    >>> short(3.14159e-13), short(0.25), short(None)
    ('3.1e-13', '0.25', '')
    """
    return "" if value is None else f"{value:.2g}"
