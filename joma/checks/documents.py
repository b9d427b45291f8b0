"""docs/theorems.md and docs/errata.md, from the statements and their checks: `python -m joma.checks.documents docs`."""

import re
import sys
from collections import Counter
from pathlib import Path

from joma.checks.check import checks
from joma.claims import Outcome, Statement, statements
from joma.claims.table import markdown

NOTICE = "<!-- Generated from statements.toml and the checks by `make docs`; a test keeps it current. Do not edit. -->"
PAPER = "Numbers refer to arXiv:2310.00535v3 (ICLR 2024). Symbols are in [notation.md](notation.md)."


def theorems() -> str:
    """Return docs/theorems.md: every statement with its outcome, its corrected form, its functions and its checks."""
    every = list(statements().values())
    ours = sum(each.ours for each in every)
    counts = Counter(each.outcome for each in every if not each.ours)
    counted = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    index = [
        {"id": f"[{each.id}](#{each.id})", "what": each.title, "where": each.source, "outcome": each.outcome.value}
        for each in every
    ]
    parts = [
        NOTICE,
        "# Every statement of the paper, with its outcome",
        f"{PAPER} `joma verify ID` measures any of them again and prints the numbers.",
        f"{len(every) - ours} statements of the paper: {counted}. {ours} of our own, in its order, all of which hold.",
        _table(index),
        *map(_entry, every),
    ]
    return "\n\n".join(parts) + "\n"


def errata() -> str:
    """Return docs/errata.md: what is wrong as printed, what needs a condition, and remarks."""
    (num_wrong, wrong), (num_conditional, conditional) = map(_corrections, (Outcome.WRONG, Outcome.CONDITIONAL))
    every = [each for each in statements().values() if each.remark]
    parts = [
        NOTICE,
        "# Errata of the paper",
        f"{PAPER} Each row is measured by `joma verify ID`, in its printed and its corrected form.",
        f"## Wrong as printed ({num_wrong})",
        wrong,
        f"## Right under conditions that the paper does not state ({num_conditional})",
        conditional,
        "## Remarks",
        "\n".join(f"- [{each.id}](theorems.md#{each.id}): {_plain(each.remark)}" for each in every),
    ]
    return "\n\n".join(parts) + "\n"


def _entry(statement: Statement) -> str:
    lines = [f"- {'Ours' if statement.ours else 'Printed'}: `{statement.says}`"]
    lines += [f"- Corrected: `{statement.corrected}`"] if statement.corrected else []
    names = ", ".join(f"`{name}`" for name in statement.computed_by)
    lines += [f"- Computed by {names}"] if names else []
    rows = [
        {
            "check": check.name,
            "against": check.against.value,
            "tolerance": f"{check.tolerance:.2g}",
            "unit": check.unit,
            "must catch": "; ".join(each.description for each in check.mutations),
        }
        for check in checks()[statement.id]
    ]
    head = f"**{statement.title}.** {statement.source}. Outcome: **{statement.outcome.value}**."
    return "\n\n".join([f"## {statement.id}", head, "\n".join(lines), _plain(statement.why), _table(rows)])


def _corrections(outcome: Outcome) -> tuple[int, str]:
    """Return how many statements have an outcome, and the table of their corrections."""
    every = [each for each in statements().values() if each.outcome is outcome]
    rows = [
        {"id": f"[{s.id}](theorems.md#{s.id})", "where": s.source, "printed": s.says, "corrected": s.corrected}
        for s in every
    ]
    return len(rows), _table(rows)


def _table(rows: list[dict[str, str]]) -> str:
    return markdown([{name: _plain(cell) for name, cell in row.items()} for row in rows])


def _plain(text: str) -> str:
    """Escape what Markdown would read as emphasis; `markdown` escapes the ends of cells."""
    return re.sub(r"([*_<])", r"\\\1", text)


if __name__ == "__main__":
    for document in (theorems, errata):
        Path(sys.argv[1], f"{document.__name__}.md").write_text(document(), encoding="utf8")
