"""The table of claims: the same rows in the terminal, on the page and in the documents."""

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from joma.claims.claim import Answer, Outcome, outcome_of
from joma.claims.number import Number
from joma.claims.text import heading

DIGITS = 4
"""Significant digits of a shown number."""
STYLES = {
    Outcome.HOLDS: "green",
    Outcome.CONDITIONAL: "yellow",
    Outcome.MIXED: "yellow",
    Outcome.MATCHES_CONTROL: "yellow",
    Outcome.WRONG: "red",
    Outcome.REFUTED: "red",
    Outcome.FAULTY: "bold red",
}
"""Colours of outcomes in a terminal."""
NUMBERS = ("value", "95 % interval", "threshold", "control", "published", "measured", "tolerance", "as printed")
"""Columns that hold numbers."""


def short(value: float | None, digits: int = DIGITS) -> str:
    """Return a number with few digits, empty for None.

    >>> short(0.123456), short(12345678.0), short(1e-12), short(None), short(math.nan)
    ('0.1235', '12,345,678', '1e-12', '', '–')
    """
    if value is None:
        return ""
    if math.isnan(value):
        return "–"
    value += 0.0  # minus zero is zero
    size = abs(value)
    if math.isfinite(value) and size >= 1000:  # noqa: PLR2004 - from here on thousands are set apart
        return f"{value:,.0f}"
    return f"{value:.{digits}g}".replace("inf", "∞")


def threshold(number: Number) -> str:
    """Return the thresholds of a number."""
    if number.at_least is not None and number.at_most is not None:
        return f"{short(number.at_least)} to {short(number.at_most)}"
    if number.at_least is not None:
        return f"≥ {short(number.at_least)}"
    return f"≤ {short(number.at_most)}" if number.at_most is not None else ""


def rows(answers: Iterable[Answer], *, texts: bool = True) -> list[dict[str, str]]:
    """Return one row for each claim with its main number; `texts` takes the headings of the hand-written texts."""
    return [
        {
            "claim": answer.claim,
            "what we found" if texts else "about": heading(answer) if texts else answer.title,
            "outcome": answer.outcome.value,
            "value": _value(answer.main) if answer.main else "",
            "threshold": threshold(answer.main) if answer.main else "",
            "control": short(answer.main.control) if answer.main else "",
            "published": short(answer.main.published) if answer.main else "",
            "tested by": answer.tested_by,
        }
        for answer in answers
    ]


def number_rows(answer: Answer) -> list[dict[str, str]]:
    """Return one row for each number of a claim."""
    return [
        {
            "number": number.name,
            "setting": number.setting,
            "value": short(number.value),
            "95 % interval": "{} to {}".format(*map(short, number.interval())) if _has_interval(number) else "",
            "threshold": threshold(number),
            "control": short(number.control),
            "control is": number.control_name,
            "outcome": outcome_of(number).value if number.is_judged else "",
            "unit": number.unit,
        }
        for number in answer.numbers
    ]


def markdown(table: Sequence[dict[str, str]]) -> str:
    """Return rows as a Markdown table, without columns that are empty throughout."""
    names = [name for name in table[0] if any(row[name] for row in table)]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row[name].replace("|", "\\|") for name in names) + " |" for row in table]
    return "\n".join(lines)


def terminal(table: Sequence[dict[str, str]]) -> Table:
    """Return rows as a table for the terminal, without columns that are empty throughout."""
    names = [name for name in (table[0] if table else ()) if any(row[name] for row in table)]
    styles = {("outcome", outcome.value): style for outcome, style in STYLES.items()}
    cells = [{name: Text(row[name], style=styles.get((name, row[name]), "")) for name in names} for row in table]
    return table_of(cells, numbers=NUMBERS)


def table_of(rows: Sequence[Mapping[str, str | Text]], *, title: str = "", numbers: Iterable[str] = ()) -> Table:
    """Return rows with the same names as a table for the terminal; columns of `numbers` are set flush right."""
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for name in rows[0] if rows else ():
        is_number = name in numbers
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row.values()))
    return table


def _has_interval(number: Number) -> bool:
    return not number.is_exact and math.isfinite(number.interval()[0])


def _value(number: Number) -> str:
    """Return a number with half the width of its interval."""
    low, high = number.interval()
    half = (high - low) / 2
    return f"{short(number.value)} ± {short(half, 2)}" if 0 < half < math.inf else short(number.value)
