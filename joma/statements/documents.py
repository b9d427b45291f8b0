"""docs/theorems.md and docs/errata.md, generated from the registry: `python -m joma.statements.documents docs`."""

import re
import sys
from pathlib import Path

from joma.statements.registry import Statement
from joma.statements.verification import registry
from joma.verdicts import Outcome

NOTICE = "<!-- Generated from the registry of statements by `make docs`; a test keeps it current. Do not edit. -->"
PAPER = "Numbers refer to arXiv:2310.00535v3 (ICLR 2024). Symbols are in [notation.md](notation.md)."


def theorems() -> str:
    """Return docs/theorems.md: every statement with its verdict, its corrected form and its checks."""
    statements = list(registry().values())
    parts = [
        NOTICE,
        "# Every statement of the paper, with its verdict",
        f"{PAPER} `joma verify ID` measures any of them again and prints the numbers.",
        _index(statements),
        *(_entry(statement) for statement in statements),
    ]
    return "\n\n".join(parts) + "\n"


def errata() -> str:
    """Return docs/errata.md: what is wrong as printed, what needs a condition, and what is worth knowing beside."""
    statements = list(registry().values())
    refuted = [s for s in statements if s.outcome is Outcome.REFUTED]
    conditional = [s for s in statements if s.outcome is Outcome.CONDITIONAL]
    remarked = [s for s in statements if s.remark]
    parts = [
        NOTICE,
        "# Errata of the paper",
        f"{PAPER} Each row is measured by `joma verify ID`, printed form beside corrected form.",
        f"## Wrong as printed ({len(refuted)})",
        _corrections(refuted),
        f"## Right under conditions that the paper does not state ({len(conditional)})",
        _corrections(conditional),
        "## Remarks",
        "\n".join(f"- [{s.id}](theorems.md#{s.id}): {_plain(s.remark)}" for s in remarked),
    ]
    return "\n\n".join(parts) + "\n"


def _index(statements: list[Statement]) -> str:
    counts = ", ".join(
        f"{sum(s.outcome is outcome for s in statements)} {outcome.value}"
        for outcome in Outcome
        if any(s.outcome is outcome for s in statements)
    )
    rows = [_row(f"[{s.id}](#{s.id})", s.title, s.place, s.outcome.value) for s in statements]
    return "\n".join([f"{len(statements)} statements: {counts}.", "", *_head("id", "what", "where", "verdict"), *rows])


def _entry(statement: Statement) -> str:
    lines = [
        f"## {statement.id}",
        "",
        f"**{statement.title}.** {statement.place}. Verdict: **{statement.outcome.value}**.",
        "",
        f"- Printed: `{statement.printed}`",
        *([f"- Corrected: `{statement.corrected}`"] if statement.corrected else []),
        "",
        _plain(statement.explanation),
        "",
        *_head("check", "against", "tolerance", "unit", "must catch"),
    ]
    lines += [
        _row(check.name, check.against.value, f"{check.tolerance:.2g}", check.unit, check.mutation.description)
        for check in statement.checks
    ]
    return "\n".join(lines)


def _corrections(statements: list[Statement]) -> str:
    rows = [_row(f"[{s.id}](theorems.md#{s.id})", s.place, s.printed, s.corrected) for s in statements]
    return "\n".join([*_head("id", "where", "printed", "corrected"), *rows])


def _head(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Escape what Markdown would read as emphasis or as the end of a table cell."""
    return re.sub(r"([*_|<])", r"\\\1", text)


def write(folder: Path) -> None:
    """Write both documents into `folder`."""
    (folder / "theorems.md").write_text(theorems(), encoding="utf8")
    (folder / "errata.md").write_text(errata(), encoding="utf8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
