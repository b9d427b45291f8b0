"""Tables of a page: cells that sort by their number and are escaped by the template."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from joma.page.document import render

DIGITS = 4
"""Significant digits of a number in a table; the record has all of them."""
ERROR_DIGITS = 2
MAX_PLAIN = 1e9
"""From here on numbers have an exponent."""
NOTHING: Mapping[str, str] = MappingProxyType({})


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
    mark: str = ""
    """A few words that stand out."""
    title: str = ""
    """What the pointer shows."""

    @property
    def classes(self) -> str:
        """Classes of the style sheet."""
        return " ".join(name for name in ("num" if self.is_number else "", self.tone) if name)


def words(text: str, *, tone: str = "", link: str = "", more: str = "", mark: str = "") -> Cell:
    """Return a cell with text."""
    return Cell(text=text, tone=tone, link=link, more=more, mark=mark)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Heading:
    """A column: its name, what the pointer says of it, and how it is shown."""

    name: str
    title: str
    is_number: bool
    is_folded: bool


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    titles: Mapping[str, str] = NOTHING,
    outcomes: Sequence[str] = (),
    folded: Sequence[bool] = (),
    folded_are: str = "",
    cards: bool = False,
) -> Markup:
    """Return rows under these headings; clicking on a heading sorts.

    `titles` say more of headings. By `outcomes`, one a row, chips choose rows. Rows that are `folded`, and columns that
    only they use, are shown when that is asked for; what they are is said by `folded_are`, or else by their outcomes.
    With `cards` every row is a card of its own where the screen is narrow.
    """
    is_folded = folded or [False] * len(rows)
    used = [row for row, hidden in zip(rows, is_folded, strict=True) if not hidden]
    headings = [
        _Heading(
            name=name,
            title=titles.get(name, ""),
            is_number=bool(rows) and all(row[place].is_number for row in rows),
            is_folded=any(is_folded) and not any(row[place].text for row in used),
        )
        for place, name in enumerate(columns)
    ]
    hidden = Counter(outcome for outcome, out in zip(outcomes, is_folded, strict=True) if out) if outcomes else {}
    return Markup(
        render(
            "table",
            columns=headings,
            rows=list(zip(rows, is_folded, strict=True)),
            outcomes=outcomes,
            num_folded=sum(is_folded),
            folded=folded_are or ", ".join(f"{count} {outcome}" for outcome, count in hidden.items()),
            cards=cards,
        )
    )


def digits(value: float | int, num: int = DIGITS) -> str:
    """Round to so many digits, or to a whole number where that has more; there is no -0.

    >>> digits(0.123456), digits(123456.7), digits(-0.0)
    ('0.1235', '123457', '0')
    """
    value += 0.0
    if abs(value) < 10**num:
        return f"{float(f'{value:.{num}g}'):g}"
    return f"{value:.0f}" if abs(value) < MAX_PLAIN else f"{value:.{num}g}"
