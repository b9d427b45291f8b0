"""The paper on pages: the table of all claims, one page for each experiment, and one for the statements."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from pydantic import TypeAdapter, ValidationError

from joma.claims import Answer, Outcome, statements
from joma.claims.table import number_rows, rows
from joma.claims.text import filled, heading
from joma.page.site import Page, figure, prose, render, table
from joma.paper.reproduce import ExperimentResult, Reproduction, charts_of
from joma.store.files import write_text

VERIFICATION = "verification.json"
HEADLINES = ("rebound-answer", "figure6", "figure4")
"""Experiments whose first chart the index shows, after the table of claims."""
_ANSWERS = TypeAdapter(list[Answer])


def claims_page(answers: Sequence[Answer], addresses: dict[str, str], *, texts: bool) -> Page:
    """Return the table of all claims, each linked to where it is told in detail."""
    found = [
        {name: row[name] for name in ("claim", "what we found" if texts else "about", "outcome")}
        for row in rows(answers, texts=texts)
    ]
    short = render(
        "claims", counts=_counts(answers), answers=answers, table=table(found, links=addresses, outcomes=True)
    )
    return Page(
        slug="claims",
        title="All claims",
        group="Paper",
        body=claims_table(answers, addresses, texts=texts),
        summary=Markup('<div class="claims-box" tabindex="0">{}</div>').format(short),
        headline=1,
    )


def _counts(answers: Sequence[Answer]) -> list[tuple[str, int]]:
    counts = Counter(answer.outcome for answer in answers)
    return [(outcome.value, counts[outcome]) for outcome in Outcome if counts[outcome]]


def claims_table(answers: Sequence[Answer], addresses: dict[str, str], *, texts: bool) -> Markup:
    """Return claims as a table that can be sorted and filtered by outcome."""
    shown = table(rows(answers, texts=texts), links=addresses, outcomes=True)
    return render("claims", answers=answers, counts=_counts(answers), table=shown)


def experiment_page(result: ExperimentResult, reproduction: Path, root: Path) -> Page:
    """Return the page of one experiment: charts, claims, data and settings."""
    charts = [figure(chart) for chart in charts_of(reproduction, result)]
    claims = [_answer(answer, texts=result.has_texts) for answer in result.answers]
    settings = [{"setting": name, "value": json.dumps(value)} for name, value in result.config.items()]
    body = render(
        "experiment",
        result=result,
        first=charts[:1],
        claims=claims,
        others=charts[1:],
        data=_data(result, reproduction / result.id, root),
        provenance=table([{name: _cell(value) for name, value in row.items()} for row in result.provenance])
        if result.provenance
        else "",
        settings=table(settings) if settings else "",
    )
    headline = HEADLINES.index(result.id) + 2 if result.id in HEADLINES else 0
    chart = charts[0] if charts and headline else ""
    return Page(
        slug=result.id,
        title=result.title,
        group="Paper",
        body=body,
        summary=render("summary", result=result, chart=chart, address=f"{result.id}.html"),
        label=result.id,
        headline=headline,
    )


def statements_page(answers: Sequence[Answer]) -> Page:
    """Return the checked statements: a table, and below it everything about each."""
    links = {answer.claim: f"#{answer.claim}" for answer in answers}
    each = Markup("").join(_answer(answer, texts=False) for answer in answers)
    return Page(
        slug="statements",
        title=f"{len(answers)} statements",
        group="Theory",
        body=claims_table(answers, links, texts=False) + each,
    )


def write_verification(answers: Sequence[Answer], folder: Path) -> Path:
    """Write the answers of `joma verify` as JSON."""
    return write_text(folder / VERIFICATION, _ANSWERS.dump_json(list(answers), indent=1).decode() + "\n")


def read_verification(path: Path) -> list[Answer]:
    """Read the answers of `joma verify`, refusing a file that holds anything else."""
    try:
        return _ANSWERS.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"{path} is not a record of `joma verify --out` ({first['msg']}). Write it again, or remove it."
        ) from None


def _answer(answer: Answer, *, texts: bool) -> Markup:
    """Return one claim with its text and its numbers."""
    statement = statements().get(answer.claim) if answer.tested_by == "verify" else None
    text = prose(filled(answer) or "") if texts else prose(statement.why) if statement else Markup("")
    return render(
        "answer",
        answer=answer,
        heading=heading(answer) if texts else answer.title,
        corrected=statement.corrected if statement else "",
        computed_by=statement.computed_by if statement else (),
        text=text,
        table=table(number_rows(answer)) if answer.numbers else "",
    )


def _data(result: ExperimentResult, folder: Path, root: Path) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return name, size and files of every table."""
    found = []
    for name in result.tables:
        files = [folder / "tables" / f"{name}.{kind}" for kind in ("csv", "parquet")]
        present = [path for path in files if path.exists()]
        size = f"{max((path.stat().st_size for path in present), default=0) / 1e3:,.0f} kB"
        links = [(path.suffix[1:], quote(Path(os.path.relpath(path, root)).as_posix())) for path in present]
        found.append((name, size, links))
    return found


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def reproduction_pages(found: Sequence[Reproduction], verified: Sequence[Answer], root: Path) -> list[Page]:
    """Return the pages of reproductions and of the statements, the table of claims first."""
    pages = [experiment_page(result, each.folder, root) for each in found for result in each.experiments]
    tested = [(answer, result) for each in found for result in each.experiments for answer in result.answers]
    addresses = {answer.claim: f"{result.id}.html#{answer.claim}" for answer, result in tested}
    addresses |= {
        answer.claim: f"statements.html#{answer.claim}" for answer in verified if answer.claim not in addresses
    }
    if tested:
        texts = all(result.has_texts for _, result in tested)
        pages.insert(0, claims_page([answer for answer, _ in tested], addresses, texts=texts))
    return [*pages, *([statements_page(verified)] if verified else [])]
