"""The paper on pages: the table of all claims, one page for each experiment, and one for the statements."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from pydantic import TypeAdapter, ValidationError

from joma.charts import Chart
from joma.claims import Answer, Outcome, statements
from joma.claims.table import number_rows, rows
from joma.claims.text import filled, heading
from joma.page.site import Page, code, figure, link, prose, render, table
from joma.paper.experiment import claims_at
from joma.paper.reproduce import ExperimentResult, Reproduction, charts_of
from joma.store.files import write_text

VERIFICATION = "verification.json"
HEADLINES = ("figure6-entropy", "rebound-answer-positions", "figure4-entropy")
"""Charts that the index shows next to the table of claims, in this order."""
_ANSWERS = TypeAdapter(list[Answer])

Sizes = Sequence[tuple[ExperimentResult, Path]]
"""The results of one experiment, each with the folder of its reproduction: answered ones and the paper's size first."""


def reproduction_pages(found: Sequence[Reproduction], verified: Sequence[Answer], root: Path) -> list[Page]:
    """Return the pages of reproductions and of the statements, the table of claims first.

    An experiment that was computed in several sizes has one page.
    """
    by_id: dict[str, list[tuple[ExperimentResult, Path]]] = {}
    for each in found:
        for result in each.experiments:
            by_id.setdefault(result.id, []).append((result, each.folder))
    for sizes in by_id.values():
        sizes.sort(key=lambda size: (not size[0].answers, not size[0].has_texts))
    results = [[result for result, _ in sizes] for sizes in by_id.values()]
    addresses = {answer.claim: f"statements.html#{answer.claim}" for answer in verified}
    for first, *_ in reversed(results):
        addresses |= {answer.claim: f"{first.id}.html#{answer.claim}" for answer in first.answers}
    pages = [_experiment_page(sizes, addresses, root) for sizes in by_id.values()]
    if any(first.answers for first, *_ in results):
        pages.insert(0, _claims_page(results))
    return [*pages, *([_statements_page(verified)] if verified else [])]


def _claims_page(results: Sequence[Sequence[ExperimentResult]]) -> Page:
    """Return the table of all claims, each with a link to its text; outcomes of other sizes in further columns."""
    texts = all(first.has_texts for first, *_ in results if first.answers)
    answers = [answer for first, *_ in results for answer in first.answers]
    others = {
        (answer.claim, f"preset {other.preset}"): answer.outcome.value
        for _, *more in results
        for other in more
        for answer in other.answers
    }
    columns = dict.fromkeys(column for _, column in others)
    long, short = [], []
    for answer, row in zip(answers, rows(answers, texts=texts), strict=True):
        name = "what we found" if texts else "about"
        address, text = f"{answer.tested_by}.html#{answer.claim}", code(row[name])
        more = {column: others.get((answer.claim, column), "") for column in columns}
        long.append(row | {"claim": link(address, answer.claim), name: text} | more)
        claim = Markup("{} <small>{}</small>").format(link(address, text), answer.claim)
        short.append({"claim": claim, "outcome": row["outcome"]} | more)
    return Page(
        slug="claims",
        title="All claims",
        group="Paper",
        body=_claims_table(answers, long),
        summary=Markup('<div class="claims-box" tabindex="0">{}</div>').format(_claims_table(answers, short)),
        headline=1,
    )


def _claims_table(answers: Sequence[Answer], shown: Sequence[dict[str, str]]) -> Markup:
    """Return claims as a table that can be sorted and filtered by outcome."""
    counts = Counter(answer.outcome for answer in answers)
    counted = [(outcome.value, counts[outcome]) for outcome in Outcome if counts[outcome]]
    return render("claims", answers=answers, counts=counted, table=table(shown, outcomes=True))


def _experiment_page(sizes: Sizes, addresses: Mapping[str, str], root: Path) -> Page:
    """Return the page of one experiment: for each size charts, claims, data and settings."""
    first = sizes[0][0]
    charts = [charts_of(folder, result) for result, folder in sizes]
    headline = next((chart for chart in charts[0] if chart.id in HEADLINES), None)
    bodies = [
        _body(result, own, addresses, _data(result, folder / result.id, root), again=f"-{place}" if place else "")
        for place, ((result, folder), own) in enumerate(zip(sizes, charts, strict=True))
    ]
    return Page(
        slug=first.id,
        title=first.title,
        group="Paper",
        body=Markup("").join(bodies),
        summary=render(
            "summary",
            result=first,
            chart=figure(headline) if headline else "",
            found=[(heading(each) if first.has_texts else each.title, each) for each in first.answers],
        ),
        label=first.id,
        headline=HEADLINES.index(headline.id) + 2 if headline else 0,
    )


def _body(
    result: ExperimentResult, charts: Sequence[Chart], addresses: Mapping[str, str], data: list[Any], *, again: str
) -> Markup:
    """Return one size of an experiment; `again` follows the ids of what stands on the page in another size already."""
    place = {claim: chart.id for chart in charts for claim in claims_at(chart.id)}
    by_chart: dict[str, list[Markup]] = {chart.id: [] for chart in charts}
    for answer in result.answers:
        shown = _answer(answer, addresses, texts=result.has_texts, again=again)
        by_chart.setdefault(place.get(answer.claim, next(iter(by_chart), "")), []).append(shown)
    figures = {chart.id: figure(replace(chart, id=chart.id + again)) for chart in charts}
    settings = [{"setting": name, "value": json.dumps(value)} for name, value in result.config.items()]
    made = [{name: _cell(value) for name, value in row.items()} for row in result.provenance]
    return render(
        "experiment",
        result=result,
        again=again,
        findings=[(figures.get(id, ""), claims) for id, claims in by_chart.items()],
        data=data,
        provenance=table(made) if made else "",
        settings=table(settings) if settings else "",
    )


def _statements_page(answers: Sequence[Answer]) -> Page:
    """Return the checked statements: a table, and below it everything about each."""
    shown = [row | {"claim": link(f"#{row['claim']}", row["claim"])} for row in rows(answers, texts=False)]
    each = Markup("").join(_answer(answer, {}, texts=False) for answer in answers)
    return Page(
        slug="statements",
        title=f"{len(answers)} statements",
        group="Theory",
        body=_claims_table(answers, shown) + each,
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


def _answer(answer: Answer, addresses: Mapping[str, str], *, texts: bool, again: str = "") -> Markup:
    """Return one claim with its text and its numbers."""
    statement = statements().get(answer.claim) if answer.tested_by == "verify" else None
    why = statement.why if statement else ""
    return render(
        "answer",
        answer=answer,
        again=again,
        heading=heading(answer) if texts else answer.title,
        corrected=statement.corrected if statement else "",
        computed_by=statement.computed_by if statement else (),
        text=prose((filled(answer) or "") if texts else why, addresses),
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
