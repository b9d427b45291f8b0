"""Tables of a page: cells that sort by their number and are escaped by the template."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from joma.page.document import render

DIGITS = 4
"""Significant digits of a number in a table; the record has all of them."""
ERROR_DIGITS = 2
MAX_PLAIN = 1e9
"""From here on numbers have an exponent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What a cell shows, and what it sorts by."""

    text: str
    raw: float | int | str | None = None
    """What it sorts by where that is not the text; empty sorts to the end."""
    is_number: bool = False
    tone: str = ""
    """Class of the style sheet."""
    link: str = ""
    more: str = ""
    """What is shown when it is asked for."""

    @property
    def classes(self) -> str:
        """Classes of the style sheet."""
        return " ".join(name for name in ("num" if self.is_number else "", self.tone) if name)


def words(text: str, *, tone: str = "", link: str = "", more: str = "") -> Cell:
    """Return a cell with text."""
    return Cell(text=text, tone=tone, link=link, more=more)


def number(value: float | int | None, error: float | None = None, *, tone: str = "") -> Cell:
    """Return a cell with a number, ± its error if there is one; none is empty.

    >>> number(2.34567, 0.0123).text, number(143000.0, 180.0).text, number(math.nan).text
    ('2.346 ± 0.012', '143000 ± 180', '')
    """
    if value is None or math.isnan(value):
        return Cell(text="", raw="", is_number=True, tone=tone)
    text = digits(value)
    if error is not None and not math.isnan(error):
        text += f" ± {digits(error, ERROR_DIGITS)}"
    return Cell(text=text, raw=value, is_number=True, tone=tone)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, outcomes: Sequence[str] = (), cards: bool = False
) -> Markup:
    """Return rows under these headings; clicking on a heading sorts.

    By `outcomes`, one a row, chips choose rows. With `cards` every row is a card of its own where the screen is narrow.
    """
    numeric = [bool(rows) and all(row[place].is_number for row in rows) for place in range(len(columns))]
    headings = list(zip(columns, numeric, strict=True))
    return Markup(render("table", columns=headings, rows=rows, outcomes=outcomes, cards=cards))


def digits(value: float | int, num: int = DIGITS) -> str:
    """Round to so many digits, or to a whole number where that has more; there is no -0.

    >>> digits(0.123456), digits(123456.7), digits(-0.0)
    ('0.1235', '123457', '0')
    """
    value += 0.0
    if abs(value) < 10**num:
        return f"{float(f'{value:.{num}g}'):g}"
    return f"{value:.0f}" if abs(value) < MAX_PLAIN else f"{value:.{num}g}"
