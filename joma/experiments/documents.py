"""docs/results.md, generated from the results kept in the repository: `python -m joma.experiments.documents .`."""

import re
import sys
from pathlib import Path

from joma.experiments import record
from joma.experiments.record import Record, Reproduction
from joma.figures.numbers import duration, short
from joma.verdicts import Evidence, Outcome, Verdict

NOTICE = "<!-- Generated from the kept results by `make docs`; a test keeps it current. Do not edit. -->"
RESULTS = Path("results")
"""Folder of the kept results in the repository."""
FIGURES = Path("docs") / "results"
"""Folder of their figures."""
DOCUMENT = Path("docs") / "results.md"
DIGITS = 4
_NUMBERS = ("statistic", "threshold", "control", "published")


def write(root: Path) -> list[Path]:
    """Write docs/results.md below the root of the repository if it keeps results; return what was written."""
    if not (root / RESULTS / record.FILE_NAME).exists():
        return []
    (root / DOCUMENT).write_text(results(root), encoding="utf8")
    return [root / DOCUMENT]


def results(root: Path) -> str:
    """Return docs/results.md: what holds, what does not, and what the controls say."""
    done = record.read(root / RESULTS)
    parts = [
        NOTICE,
        "# The paper's figures and tables, rebuilt",
        _lead(done),
        "## Every claim",
        _claims(done),
        *(part for each in done.experiments for part in _experiment(each, root)),
    ]
    return "\n\n".join(parts) + "\n"


def _lead(done: Reproduction) -> str:
    counts = ", ".join(
        f"{sum(verdict.outcome is outcome for verdict in done.verdicts)} {outcome.value}"
        for outcome in Outcome
        if any(verdict.outcome is outcome for verdict in done.verdicts)
    )
    return (
        f"`joma reproduce --preset {done.preset}` (arXiv:2310.00535v3), {duration(done.seconds)} of computing in all. "
        f"{len(done.verdicts)} claims: {counts}. Thresholds stood in the code before the results; a control is the "
        "same statistic where the claim's cause is absent. Tables are in `results/`."
    )


def _claims(done: Reproduction) -> str:
    rows = [
        _row(f"[{each.id}](#{each.id})", _plain(verdict.title), verdict.outcome.value, *_numbers(verdict.decisive))
        for each in done.experiments
        for verdict in each.verdicts
    ]
    return "\n".join([*_head("experiment", "claim", "verdict", *_NUMBERS), *rows])


def _experiment(done: Record, root: Path) -> list[str]:
    seeds = f", seeds {', '.join(map(str, done.seeds))}" if done.seeds else ""
    figures = [FIGURES / done.id / f"{chart}.png" for chart in done.charts]
    shown = [path.relative_to(DOCUMENT.parent).as_posix() for path in figures if (root / path).exists()]
    return [
        f"## {done.id}",
        f"**{_plain(done.title)}.** {_plain(done.place)}. {_plain(done.question)}",
        f"{done.status.value.capitalize()}: preset {done.preset}, {done.device}, {duration(done.seconds)}{seeds}."
        + (f" {_plain(done.reason)}" if done.reason else ""),
        *(f"![{Path(path).stem}]({path})" for path in shown),
        *(part for verdict in done.verdicts for part in _verdict(verdict)),
    ]


def _verdict(verdict: Verdict) -> list[str]:
    lines = [
        f"### {_plain(verdict.title)}: {verdict.outcome.value}",
        f"Claim: {_plain(verdict.claim)}",
        *([_plain(verdict.explanation)] if verdict.explanation else []),
        *([f"Instead: {_plain(verdict.correction)}"] if verdict.correction else []),
    ]
    rows = [
        _row(_plain(row.name), *_numbers(row), _plain(row.control_name), _plain(row.unit)) for row in verdict.evidence
    ]
    return [*lines, "\n".join([*_head("measured", *_NUMBERS, "control is", "unit"), *rows])] if rows else lines


def _numbers(evidence: Evidence | None) -> tuple[str, str, str, str]:
    if evidence is None:
        return "", "", "", ""
    return (
        short(evidence.value, DIGITS),
        f"{'≥' if evidence.at_least else '≤'} {short(evidence.threshold, DIGITS)}",
        short(evidence.control, DIGITS),
        short(evidence.published, DIGITS),
    )


def _head(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    """Escape what Markdown would read as emphasis or as the end of a table cell."""
    return re.sub(r"([*_|<])", r"\\\1", text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
