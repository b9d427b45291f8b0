"""docs/results.md, generated from the results kept in the repository: `python -m joma.experiments.documents .`."""

import json
import sys
from pathlib import Path
from typing import Any

from joma.experiments import record
from joma.experiments.markdown import enumerated, escaped, table
from joma.experiments.origins import UNKNOWN, commits_with_work
from joma.experiments.publication import FILE_NAME as RESULT
from joma.experiments.publication import TABLES
from joma.experiments.record import Record, Status
from joma.experiments.registry import named
from joma.experiments.results_overview import claim_anchor, device_in_words, numbers, overview
from joma.figures.numbers import duration
from joma.verdicts import Verdict

NOTICE = "<!-- Generated from the kept results by `make docs`; a test keeps it current. Do not edit. -->"
RESULTS = Path("results")
"""Folder of the kept results in the repository."""
FIGURES = Path("docs") / "results"
"""Folder of their figures."""
DOCUMENT = Path("docs") / "results.md"
CAPTIONS = "captions.json"
"""What is written below the pictures of an experiment, kept beside its record: title and caption by chart."""
COMMIT_LETTERS = 7
BESIDE = " *(beside)*"
"""Mark of a number that does not decide its claim."""
EVIDENCE_COLUMNS = ("statistic", "measured", "threshold", "control", "published", "what the control is", "unit")


def write(root: Path) -> list[Path]:
    """Write docs/results.md below the root of the repository if it keeps results; return what was written."""
    if not (root / RESULTS / record.FILE_NAME).exists():
        return []
    (root / DOCUMENT).write_text(results(root), encoding="utf8")
    return [root / DOCUMENT]


def results(root: Path) -> str:
    """Return docs/results.md: what holds, what does not, what the controls say, and every experiment by itself."""
    done = record.read(root / RESULTS)
    parts = [
        NOTICE,
        "# The paper's figures and tables, rebuilt",
        *overview(done),
        *(part for each in done.experiments for part in _experiment(each, root)),
    ]
    return "\n\n".join(parts) + "\n"


def _experiment(done: Record, root: Path) -> list[str]:
    return [
        f'<a id="{done.id}"></a>',
        f"## {named(done.id)}. {escaped(done.title)}",
        f"*{escaped(done.place)}.* {escaped(done.question)}",
        _run(done, root),
        *(escaped(note) for note in done.notes),
        *_pictures(done, root),
        *(part for verdict in done.verdicts for part in _claim(done, verdict)),
    ]


def _run(done: Record, root: Path) -> str:
    """How the numbers came about, and where they are."""
    said = f"**{done.label.capitalize()}**, preset `{done.preset}`"
    if not done.is_shown:
        return f"{said}: {escaped(done.reason)}"
    about = _json(root / RESULTS / done.id / RESULT)
    told = [
        f"Preset `{done.preset}`",
        f"on {device_in_words(done.device)} in {duration(done.seconds)}",
        ("seeds " if len(done.seeds) > 1 else "seed ") + ", ".join(map(str, done.seeds)) if done.seeds else "",
        f"on {str(about['computed'])[:10]}" if about.get("computed") else "",
        _commits(about),
    ]
    files = [("settings and facts", RESULTS / done.id / RESULT)]
    files += [(name, RESULTS / done.id / TABLES / f"{name}.parquet") for name in done.tables]
    links = ", ".join(f"[{escaped(name)}](../{path.as_posix()})" for name, path in files)
    computed = f"{', '.join(part for part in told if part)}. Data: {links}."
    if done.status is Status.DONE:
        return computed
    return f"{said}.\n\nAll that follows rests on {done.part} and decides nothing yet. {computed}"


def _commits(about: dict[str, Any]) -> str:
    """At which states of the software, as a sentence lists them.

    >>> _commits({"git_commit": "0123456789 and abcdef0123 and 9876543210"}), _commits({"git_commit": "unknown and a1"})
    ('at commits 0123456, abcdef0 and 9876543', 'at commit a1 and one that is not known')
    """
    found = commits_with_work(about, COMMIT_LETTERS)
    if not found:
        return ""
    known = [each for each in found if not each.startswith(UNKNOWN)]
    named = known + [each.replace(UNKNOWN, "one that is not known", 1) for each in found if each not in known]
    return f"at {'commits' if len(known) > 1 else 'commit'} {enumerated(named)}"


def _pictures(done: Record, root: Path) -> list[str]:
    captions = _json(root / RESULTS / done.id / CAPTIONS)
    parts = []
    for chart in done.charts:
        path = FIGURES / done.id / f"{chart}.png"
        if (root / path).exists():
            said = captions.get(chart, {"title": chart, "caption": ""})
            parts.append(f"![{escaped(said['title'])}]({path.relative_to(DOCUMENT.parent).as_posix()})")
            parts += [escaped(said["caption"])] if said["caption"] else []
    return parts


def _claim(done: Record, verdict: Verdict) -> list[str]:
    told = [
        f'<a id="{claim_anchor(done, verdict)}"></a>',
        f"### {escaped(verdict.title)}: {done.said_of(verdict)}",
        f"**Claim** ({escaped(verdict.source)}): {escaped(verdict.claim)}",
        "**One of our own checks fails here.**" if not verdict.sound else "",
        escaped(verdict.explanation),
        f"**What holds:** {escaped(verdict.correction)}" if verdict.correction else "",
        _evidence(verdict, judged=done.status is Status.DONE),
    ]
    return [part for part in told if part]


def _evidence(verdict: Verdict, *, judged: bool) -> str:
    rows = [
        [
            escaped(row.name) + ("" if row.decides else BESIDE),
            *numbers(row, judged=judged),
            escaped(row.control_name),
            escaped(row.unit),
        ]
        for row in verdict.evidence
    ]
    return table(EVIDENCE_COLUMNS, rows) if rows else ""


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf8")) if path.exists() else {}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
