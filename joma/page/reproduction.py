"""A reproduction of the paper on the page: what holds, by claim, then each experiment with its figures and its data.

Figures are drawn again from the published tables through the experiment's `draw`; where that cannot be done any more,
the still pictures stand in.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from joma.claims import Answer
from joma.experiments.experiment import Result
from joma.experiments.markdown import enumerated
from joma.experiments.parts import labelled
from joma.experiments.publication import FIGURES, TABLES, published
from joma.experiments.publication import FILE_NAME as RESULT
from joma.experiments.record import FILE_NAME as RECORD
from joma.experiments.record import Record, Reproduction, Status, read
from joma.experiments.registry import experiment, named
from joma.figures.chart import Chart, HeatMap, Panel, to_plotly
from joma.figures.numbers import counted, duration
from joma.page.claims import anchor, claims, counts, evidence_table, summary_table
from joma.page.document import Section, code, render
from joma.page.findings import findings
from joma.page.plot import plot, plot_scripts
from joma.page.records import flat
from joma.page.table import Cell, number, table, words
from joma.page.unfinished import going_on, reason
from joma.store import find_runs

TITLE = "The JoMA paper, rebuilt"
LEAD = (
    "The figures and the table of the JoMA paper (arXiv:2310.00535), computed anew: for each claim whether it holds, "
    "on what evidence, and against which control."
)
QUICK = "quick"
STATIC = ("png", "pdf", "svg")
MAX_ROWS = 100
"""Rows of a table that the page shows."""
MAX_TABLE, MAX_DATA = 250_000, 2_500_000
"""Bytes of a CSV file that the page carries with it, and of all of them; the folder has the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart as the page shows it."""

    anchor: str
    title: str
    caption: str
    panels: Sequence[tuple[str, Markup]]
    """Titles and plots."""
    links: Sequence[tuple[str, str]]
    """Names and addresses of its static files, beside the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """A table of numbers, as a link and in part."""

    name: str
    size: str
    carried: str
    """All of it as an address that needs no file; empty where it is too large for the page."""
    file_name: str
    """Under which the browser keeps what is carried."""
    links: Sequence[tuple[str, str]]
    """Names and addresses of its files beside the page."""
    rows: Markup
    note: str


def find(folder: Path) -> list[Reproduction]:
    """Read every reproduction at or below a folder."""
    return [read(path.parent) for path in sorted(folder.rglob(RECORD))]


def places(reproduction: Reproduction) -> list[Path]:
    """Return the folders of its experiments, whose training runs do not belong on the page one by one."""
    return [reproduction.folder / record.id for record in reproduction.experiments]


def sections(
    reproduction: Reproduction, root: Path, *, statements: Sequence[Answer] = (), with_plotly: bool = True
) -> list[Section]:
    """Return the summary of a reproduction and a section for each experiment; links lead from `root`.

    The summary tells of `statements` too, which the page has in a section of their own.
    """
    summary = Section(
        anchor="summary",
        title="What holds, and what does not",
        short="Summary",
        body=_summary(reproduction, statements, plot_scripts() if with_plotly else Markup("")),
    )
    room = _Room(MAX_DATA)
    return [summary, *(_section(record, reproduction.folder, root, room) for record in reproduction.experiments)]


def _summary(reproduction: Reproduction, statements: Sequence[Answer], scripts: Markup) -> str:
    records = reproduction.experiments
    found = claims(records)
    shown = [record for record in records if record.is_shown]
    small = [record for record in shown if record.preset == QUICK]
    return render(
        "reproduction_summary",
        scripts=scripts,
        findings=findings(found, statements),
        small=Markup(enumerated([_link(record) for record in small])),
        small_ids=" ".join(record.id for record in small),
        is_all_small=len(small) == len(shown),
        presets=_presets(reproduction),
        started=reproduction.started.replace("T", " ")[:16],
        took=duration(reproduction.seconds),
        unfinished=[
            (record.id, named(record.id), record.part) for record in records if record.status is Status.UNFINISHED
        ],
        failed=[(record.id, named(record.id)) for record in records if record.status is Status.FAILED],
        unsound=[verdict.id for verdict in reproduction.verdicts if not verdict.sound],
        num_claims=len(found),
        counts=counts(found),
        table=summary_table(found),
    )


def _link(record: Record) -> str:
    return str(Markup('<a href="#{}">{}</a>').format(record.id, named(record.id)))


def _presets(reproduction: Reproduction) -> str:
    """Return the preset of all experiments, or each with those that were run with it: a folder may hold several."""
    names: dict[str, list[str]] = {}
    for record in reproduction.experiments:
        names.setdefault(record.preset, []).append(named(record.id))
    if len(names) <= 1:
        return reproduction.preset
    return ", and ".join(f"{preset} for {enumerated(own)}" for preset, own in names.items())


def _section(record: Record, folder: Path, root: Path, room: "_Room") -> Section:
    place, is_done = folder / record.id, record.status is Status.DONE
    result, figures, problem = _drawn(record, place, root)
    about = _about(place)
    settings = [[words(name), words(value)] for name, value in _settings(record, about)]
    facts = [[words(name), words(code(value))] for name, value in flat(result.facts if result else {}) if name]
    body = render(
        "reproduction",
        record=record,
        is_small=record.preset == QUICK,
        is_done=is_done,
        reason=reason(record),
        command=going_on(record, folder, root),
        line=_line(record),
        problem=problem,
        runs=_runs(place, root),
        verdicts=[
            (each, record.said_of(each), anchor(record, each), evidence_table(each, judged=is_done))
            for each in record.verdicts
            if record.is_shown
        ],
        figures=figures,
        data=[_data(name, frame, place, root, room) for name, frame in result.tables.items()] if result else [],
        facts=table(["fact", "value"], facts) if facts else "",
        settings=table(["setting", "value"], settings) if settings else "",
    )
    name = named(record.id)
    return Section(anchor=record.id, title=f"{name}. {record.title}", short=name, body=body)


def _line(record: Record) -> list[tuple[str, str]]:
    """What is told of an experiment at a glance."""
    seeds = ", ".join(str(seed) for seed in record.seeds)
    told = [("preset", record.preset), ("seeds", seeds), ("run time", duration(record.seconds)), ("on", record.device)]
    return [(name, value) for name, value in told if value]


def _drawn(record: Record, place: Path, root: Path) -> tuple[Result | None, list[Figure], str]:
    """Draw the charts again; where that fails, show their still pictures and say why."""
    if not record.is_shown:
        return None, [], ""
    result = None
    try:
        result = published(place)
        charts = labelled(experiment(record.id).draw(result), record.part)
    except Exception as error:  # an older or a newer joma may have written it, and the page must still show it
        reason = " ".join(f"{type(error).__name__}, {error}".split())
        still = [_still(name, record, place, root) for name in record.charts]
        return result, still, f"Figures could not be drawn again ({reason}); these are the still pictures."
    return result, [_figure(chart, record, place, root) for chart in charts], ""


def _figure(chart: Chart, record: Record, place: Path, root: Path) -> Figure:
    panels = [
        (_heading(panel), plot(drawn, f"{chart.title}: {panel.title or panel.y_label}"))
        for panel, drawn in zip(chart.panels, to_plotly(chart), strict=True)
    ]
    return Figure(
        anchor=f"{record.id}-{chart.id}",
        title=chart.title,
        caption=chart.caption,
        panels=panels,
        links=_static(chart.id, place, root),
    )


def _heading(panel: Panel) -> str:
    """Title of a panel, and what its colours mean: below a heat map there is no room for that."""
    colors = [f"colour: {item.label}" for item in panel.items if isinstance(item, HeatMap) and item.label]
    return "; ".join(part for part in (panel.title, *colors) if part)


def _still(name: str, record: Record, place: Path, root: Path) -> Figure:
    picture = place / FIGURES / f"{name}.png"
    panels = []
    if picture.is_file():
        image = Markup('<img alt="{}" src="{}">').format(name, _carried("image/png", picture.read_bytes()))
        panels = [("", image)]
    return Figure(
        anchor=f"{record.id}-{name}",
        title=name,
        caption="",
        panels=panels,
        links=_static(name, place, root),
    )


def _static(name: str, place: Path, root: Path) -> list[tuple[str, str]]:
    paths = [place / FIGURES / f"{name}.{kind}" for kind in STATIC]
    return [(path.suffix[1:].upper(), _address(path, root)) for path in paths if path.is_file()]


def _data(name: str, frame: pd.DataFrame, place: Path, root: Path, room: "_Room") -> Data:
    csv = frame.to_csv(index=False).encode("utf-8")
    files = [place / TABLES / f"{name}.{kind}" for kind in ("csv", "parquet")]
    fits = len(csv) <= MAX_TABLE and room.take(len(csv))
    rows = [[_cell(value) for value in row] for row in frame.head(MAX_ROWS).itertuples(index=False)]
    return Data(
        name=name,
        size=f"{counted(len(frame), 'row')}, {counted(len(frame.columns), 'column')}",
        carried=_carried("text/csv", csv) if fits else "",
        file_name=f"{place.name}-{name}.csv",
        links=[(path.name, _address(path, root)) for path in files if path.is_file()],
        rows=table([str(column) for column in frame.columns], rows),
        note=f"The first {MAX_ROWS} rows; the file has all of them." if len(frame) > MAX_ROWS else "",
    )


def _cell(value: Any) -> Cell:
    if isinstance(value, bool) or not pd.api.types.is_number(value):
        return words("" if value is None else str(value))
    return number(value)


class _Room:
    """Bytes that the page may still carry."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, num: int) -> bool:
        """Take so many, if there are."""
        if num > self._left:
            return False
        self._left -= num
        return True


def _carried(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _address(path: Path, root: Path) -> str:
    return quote(path.relative_to(root).as_posix(), errors="surrogateescape")


def _about(place: Path) -> Mapping[str, Any]:
    """Return what the experiment's own record says beyond the summary; nothing where it cannot be read."""
    try:
        about = json.loads((place / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _settings(record: Record, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = [(name.replace("_", " "), about[name]) for name in ("computed", "git_commit") if about.get(name)]
    return [*flat(record.config), *((name, str(value)) for name, value in known), *_versions(about)]


def _versions(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = about.get("versions")
    return list(flat(versions, "version")) if isinstance(versions, dict) else []


def _runs(place: Path, root: Path) -> str:
    """Say where the training runs of an experiment are, and how to see them."""
    num = len(find_runs(place)) if place.is_dir() else 0
    if not num:
        return ""
    runs = "a training run" if num == 1 else f"{num} training runs"
    return f"Rests on {runs}, which a report of the folder {place.relative_to(root)} shows layer by layer."
