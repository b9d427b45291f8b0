"""Answers of `joma verify` on disk, and as a section of the page."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from joma.claims import Answer, Number, Outcome, statements
from joma.claims.table import check_rows
from joma.figures.numbers import counted
from joma.page.document import Section, document, render
from joma.store.files import write_text

RECORD = "verification.json"
LEAD = (
    "Every numbered statement of the JoMA paper (arXiv:2310.00535), checked numerically: "
    "the form as printed beside the form that holds."
)
_ANSWERS = TypeAdapter(list[Answer])
_OUTCOMES = {"holds under conditions": Outcome.CONDITIONAL, "refuted": Outcome.WRONG}
"""Names of outcomes in records of version 0.1."""


def write(answers: Sequence[Answer], folder: Path) -> list[Path]:
    """Write the answers as JSON and as a page of their own; return both paths."""
    record, page = folder / RECORD, folder / "verification.html"
    write_text(record, _ANSWERS.dump_json(list(answers), indent=1).decode() + "\n")
    write_text(page, document("What the JoMA paper proves", LEAD, [section(answers)]))
    return [record, page]


def read(record: Path) -> list[Answer]:
    """Read answers back from what `write`, or version 0.1, left; refuse a file that holds anything else."""
    try:
        rows = json.loads(record.read_text(encoding="utf8"))
        answers = [_answer_of_0_1(row) if "evidence" in row else Answer.model_validate(row) for row in rows]
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{record} is not a record of `joma verify --out`: {type(error).__name__}, {error}. Remove it, or write it "
            "again."
        ) from None
    if not answers:
        raise ValueError(f"{record} holds no statement. Remove it, or write it again with `joma verify --out`.")
    return answers


def section(answers: Sequence[Answer]) -> Section:
    """Return the answers as a sortable table with everything about each statement below it."""
    counts = Counter(answer.outcome for answer in answers)
    body = render(
        "verdicts",
        answers=[(answer, statements().get(answer.claim), check_rows(answer)) for answer in answers],
        counts=[(outcome.value, counts[outcome]) for outcome in Outcome if counts[outcome]],
    )
    return Section(anchor="statements", title=counted(len(answers), "statement"), body=body)


def _answer_of_0_1(row: dict[str, Any]) -> Answer:
    numbers = [
        Number.exact(
            each["name"],
            float("nan" if each["value"] is None else each["value"]),
            unit=each["unit"],
            at_most=each["threshold"],
            control=each["control"],
            control_name=each["control_name"],
            against=each["against"],
            seconds=each["seconds"],
        )
        for each in row["evidence"]
    ]
    outcome = Outcome(_OUTCOMES.get(row["outcome"], row["outcome"])) if row["sound"] else Outcome.FAULTY
    return Answer(
        claim=row["id"],
        title=row["title"],
        says=row["claim"],
        source=row["source"],
        outcome=outcome,
        numbers=tuple(numbers),
    )
