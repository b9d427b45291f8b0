"""Verdicts on disk, and as a section of the page."""

import json
from collections.abc import Sequence
from pathlib import Path

from joma.figures.numbers import counted
from joma.page.document import Section, document, render
from joma.store.files import write_text
from joma.verdicts import Outcome, Verdict

RECORD = "verification.json"
LEAD = (
    "Every numbered statement of the JoMA paper (arXiv:2310.00535), checked numerically: "
    "the form as printed beside the form that holds."
)


def write(verdicts: Sequence[Verdict], folder: Path) -> list[Path]:
    """Write the verdicts as JSON and as a page of their own; return both paths."""
    record, page = folder / RECORD, folder / "verification.html"
    write_text(
        record, json.dumps([v.as_dict() for v in verdicts], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    write_text(page, document("What the JoMA paper proves", LEAD, [section(verdicts)]))
    return [record, page]


def read(record: Path) -> list[Verdict]:
    """Read verdicts back from the JSON that `write` left, refusing a file that holds anything else."""
    try:
        verdicts = [Verdict.from_dict(row) for row in json.loads(record.read_text(encoding="utf8"))]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{record} is not a record of `joma verify --out`: {type(error).__name__}, {error}. Remove it, or write it "
            "again."
        ) from None
    if not verdicts:
        raise ValueError(f"{record} holds no verdict. Remove it, or write it again with `joma verify --out`.")
    return verdicts


def section(verdicts: Sequence[Verdict]) -> Section:
    """Return the verdicts as a sortable table with everything about each statement below it."""
    counts = [(outcome.value, sum(v.outcome is outcome for v in verdicts)) for outcome in Outcome]
    body = render(
        "verdicts",
        verdicts=verdicts,
        counts=[(outcome, count) for outcome, count in counts if count],
        unsound=[verdict.id for verdict in verdicts if not verdict.sound],
    )
    return Section(anchor="statements", title=counted(len(verdicts), "statement"), body=body)
