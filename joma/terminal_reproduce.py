"""What `joma reproduce` prints: the experiments, live progress, and for every claim its verdict with the numbers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from joma.figures.numbers import counted, duration, short
from joma.terminal import COLOURS, LogLines, bars_or_lines, console, summary
from joma.verdicts import Evidence, Outcome, Verdict

if TYPE_CHECKING:  # these import torch, which `joma reproduce --help` can do without
    from joma.experiments import progress
    from joma.experiments.record import Record, Reproduction
    from joma.experiments.reproduction import Availability

DIGITS = 4
NUMBERS = ("measured", "threshold", "control", "published")
"""Columns with the numbers of a claim; the statistic is what they are numbers of, as on the page."""
UNFINISHED = "unfinished"
"""Status of an experiment of which some is left, to a later call or to another machine."""
FAILS, PASSES, BESIDE = " (fails)", " (passes)", " (beside)"
"""Marks of a number that fails, of a control that passes and of a number that does not decide, as on page and in docs;
in words, since colours are lost where the output is kept."""
HOUR, DAY = 3600, 86400
"""Seconds from which on an experiment is one to think about, and not one for this machine."""


def show_available(experiments: "Sequence[Availability]") -> None:
    """Print every experiment with what it lacks here, or about how long it takes."""
    table = Table(title="Experiments", title_justify="left", header_style="bold")
    for name in ("experiment", "what it shows", "where in the paper"):
        table.add_column(name)
    for preset in experiments[0].missing:
        table.add_column(f"{preset}, here")
    for each in experiments:
        needs = [_here(lack, each.seconds[preset]) for preset, lack in each.missing.items()]
        table.add_row(each.id, Text(each.title), Text(each.place), *needs)
    console().print(table)


def _here(lack: str, seconds: float) -> Text:
    """Return whether an experiment runs here: what it lacks, or about how long it takes."""
    if lack:
        return Text(lack, style="yellow")
    if seconds >= DAY:
        return Text(f"about {counted(round(seconds / DAY), 'day')} on a CPU: take a GPU", style="yellow")
    if not seconds:
        return Text("done", style="green")
    return Text(f"runs, about {duration(seconds)}", style="yellow" if seconds >= HOUR else "green")


def show_reproduction(done: "Reproduction", *, explain: bool) -> None:
    """Print a row for every claim, with `explain` everything there is to say of each, and where the files are."""
    screen = console()
    for record in done.experiments if explain else ():
        for verdict in record.verdicts:
            screen.print(_explanation(verdict, _said(record, verdict), is_question=not record.is_shown))
            if verdict.evidence:
                screen.print(_evidence_table(verdict.evidence, judged=not _is_left(record)))
    screen.print(_claims_table(done))
    for record in done.experiments:
        for remark in _remarks(record):
            screen.print(remark, soft_wrap=True)
    settled = [verdict for record in done.experiments if not _is_left(record) for verdict in record.verdicts]
    if settled:
        screen.print(summary(settled))
    standing = ", ".join(f"{count} {status.value}" for status, count in done.counts().items())
    screen.print(
        Text(
            f"Experiments: {standing}; {duration(done.seconds)} of computing. Everything is in {done.folder}; "
            f"`joma report {done.folder}` puts it on a page."
        ),
        soft_wrap=True,
    )
    if left := [record.id for record in done.experiments if _is_left(record)]:
        told = (
            f"Not all is done. Run the same command again, where nothing is missing, to go on with {', '.join(left)}."
        )
        screen.print(Text(told), soft_wrap=True)


def reproduction_progress(*, quiet: bool = False) -> "AbstractContextManager[Callable[[progress.Progress], None]]":
    """Show a bar for all experiments and one for the one at work, on standard error; in a log a line now and then."""
    lines = LogLines()
    return bars_or_lines(_bars, lambda at: lines.show(at.id, _line(at)) if at.id else None, quiet=quiet)


@contextmanager
def _bars() -> "Iterator[Callable[[progress.Progress], None]]":
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.fields[doing]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        whole = bar.add_task("Reproducing", total=1.0, count="", left="", doing="")
        part = bar.add_task("", total=1.0, count="", left="", doing="", visible=False)
        current = ""

        def show(at: "progress.Progress") -> None:
            nonlocal current
            if at.id != current:
                current = at.id
                bar.reset(part, visible=bool(current), description=escape(current))
            count = f"{at.num_done}/{len(at.ids)} experiments"
            bar.update(whole, completed=at.whole_share, count=count, left=_left(at.total_seconds_left))
            doing = escape(at.doing)
            bar.update(part, completed=at.share, count=f"{at.share:.0%}", left=_left(at.seconds_left), doing=doing)

        yield show


def _line(at: "progress.Progress") -> str:
    doing = f", {at.doing}" if at.doing else ""
    return f"[{at.num_done + 1}/{len(at.ids)}] {at.id}: {at.share:.0%}{doing}; {_left(at.total_seconds_left)} in all"


def _left(seconds: float) -> str:
    return f"about {duration(seconds)} left"


def _claims_table(done: "Reproduction") -> Table:
    table = Table(title=f"Claims of the paper, preset {done.preset}", title_justify="left", header_style="bold")
    for name in ("experiment", "claim", "verdict"):
        table.add_column(name)
    for name in NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for record in done.experiments:
        for verdict in record.verdicts:
            table.add_row(record.id, Text(verdict.title), _said(record, verdict), *_shown_first(record, verdict))
        if not record.verdicts:
            table.add_row(record.id, Text(record.title), Text(record.status.value, style="bold red"), "", "", "", "")
    return table


def _shown_first(record: "Record", verdict: Verdict) -> tuple[Text | str, ...]:
    """Return the numbers that stand for a claim; where nothing decides it, the one that is shown says so."""
    decisive = verdict.decisive
    if decisive is None:
        return ("",) * len(NUMBERS)
    cells = _numbers(decisive, judged=not _is_left(record))
    return cells if decisive.decides else (Text.assemble(cells[0], BESIDE), *cells[1:])


def _remarks(record: "Record") -> Iterator[Text]:
    if record.reason:
        style = "bold red" if not record.sound else "yellow"
        told = f"{record.reason} {record.advice}".rstrip()
        yield Text.assemble((f"{record.id} {record.status.value}: ", style), told)
    for note in record.notes:
        yield Text.assemble((f"{record.id}: ", "yellow"), note)


def _numbers(evidence: Evidence, *, judged: bool) -> tuple[Text, str, Text, str]:
    """Return measured value, threshold, control and published value; those of a part are not judged, nor marked."""
    return (
        _marked(evidence.value, FAILS if judged and not evidence.holds else ""),
        f"{'≥' if evidence.at_least else '≤'} {short(evidence.threshold, DIGITS)}",
        _marked(evidence.control, PASSES if judged and evidence.control_holds else ""),
        short(evidence.published, DIGITS),
    )


def _marked(value: float | None, mark: str) -> Text:
    return Text(short(value, DIGITS) + mark, style="red" if mark else "")


def _outcome(verdict: Verdict) -> Text:
    text = Text(verdict.outcome.value, style=COLOURS[verdict.outcome])
    return text if verdict.sound else text.append(" (our check fails)", style="bold red")


def _is_left(record: "Record") -> bool:
    return record.status.value == UNFINISHED


def _said(record: "Record", verdict: Verdict) -> Text:
    """Return the outcome; of an unfinished experiment, which has none yet, the part that its numbers rest on."""
    return Text(record.label, style="yellow") if _is_left(record) else _outcome(verdict)


def _explanation(verdict: Verdict, outcome: Text, *, is_question: bool) -> Panel:
    """Return all that is said of a claim; where there is none yet, the question of its experiment."""
    label = "Question" if is_question else "Claim   "
    body = Text.assemble((f"{label} ", "bold"), verdict.claim, "\n", ("Verdict  ", "bold"), outcome)
    if verdict.outcome is not Outcome.NOT_RUN and verdict.correction:
        body.append("\n").append("Instead  ", style="bold").append(verdict.correction)
    if verdict.explanation:
        body.append(f"\n\n{verdict.explanation}")
    return Panel(body, title=escape(verdict.title), subtitle=escape(verdict.source), title_align="left")


def _evidence_table(rows: Sequence[Evidence], *, judged: bool) -> Table:
    table = Table(header_style="bold")
    table.add_column("statistic")
    for name in NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("control is", "unit"):
        table.add_column(name)
    for row in rows:
        statistic = Text(row.name) if row.decides else Text(row.name + BESIDE, style="dim")
        table.add_row(statistic, *_numbers(row, judged=judged), Text(row.control_name), Text(row.unit))
    return table
