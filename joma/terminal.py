"""What the command prints: tables that read well, progress with time left, JSON for machines."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from joma.claims import Answer, statements
from joma.claims import table as claims
from joma.figures.numbers import counted, duration
from joma.verdicts import Outcome, Verdict

if TYPE_CHECKING:  # these import torch and SciPy, which `joma verify --help` can do without
    from joma.probe.scanning import Scan
    from joma.theory.simulation import Simulation

COLOURS = {
    Outcome.HOLDS: "green",
    Outcome.CONDITIONAL: "yellow",
    Outcome.REFUTED: "red",
    Outcome.INCONCLUSIVE: "blue",
    Outcome.NOT_RUN: "dim",
}
PIPED_WIDTH = 160
"""Columns when the output is not a terminal, so that rows stay on one line in a log."""
LINE_SECONDS = 15.0
"""Time between two lines of progress in a log, where a bar cannot move."""


def console() -> Console:
    """Return the console on standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def progress(label: str, *, quiet: bool = False) -> AbstractContextManager[Callable[[str, int, int], None]]:
    """Show a count with the time left on standard error, by a bar or by lines.

    Gives a function of what was just done, how many are done, and of how many.
    """
    return bars_or_lines(partial(_bar, label), _CountLines(label).show, quiet=quiet)


@contextmanager
def _bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[latest]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, latest="")
        yield lambda latest, done, total: bar.update(task, completed=done, total=total, latest=escape(latest))


@contextmanager
def busy(label: str, *, quiet: bool = False) -> Iterator[None]:
    """Show on standard error that work without steps to count has begun: by a mark that moves, or by a line."""
    with bars_or_lines(moving_mark, say, quiet=quiet) as show:
        show(label)
        yield


@contextmanager
def moving_mark(before: str = "") -> Iterator[Callable[[str], None]]:
    """Show a mark that moves and the time that has passed, for what the function is told, with words before it."""
    columns = (SpinnerColumn(), TextColumn(before + "{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda doing: bar.update(task, description=escape(doing))


@contextmanager
def bars_or_lines(
    bars: Callable[[], AbstractContextManager[Callable[..., None]]], log: Callable[..., None], *, quiet: bool
) -> Iterator[Callable[..., None]]:
    """Show progress on standard error, by bars that move on a terminal, by lines elsewhere; not at all if quiet."""
    if quiet:
        yield lambda *at: None
    elif sys.stderr.isatty():
        with bars() as show:
            yield show
    else:
        yield log


class LogLines:
    """Progress as lines of a log, on standard error: when something begins, and every some seconds."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._current: object = None
        self._due = 0.0

    def show(self, current: object, line: str) -> None:
        """Print a line if one is due: `current`, what is being done, is another than before, or it is time."""
        if current == self._current and monotonic() < self._due:
            return
        self._current, self._due = current, monotonic() + LINE_SECONDS
        say(line)


class _CountLines:
    """A count as lines of a log: the first, one every some seconds, and the last."""

    def __init__(self, label: str) -> None:
        self._label, self._lines = label, LogLines()
        self._begun: tuple[float, int] | None = None

    def show(self, latest: str, done: int, total: int) -> None:
        """Print a line if one is due; of nothing to do there is nothing to say."""
        if total:
            named = f", {latest}" if latest else ""
            self._lines.show(done == total, f"{self._label}: {done}/{total}{named}{self._left(done, total)}")

    def _left(self, done: int, total: int) -> str:
        if self._begun is None:
            self._begun = monotonic(), done
        time, num = monotonic() - self._begun[0], done - self._begun[1]
        return f"; about {duration(time / num * (total - done))} left" if 0 < num and done < total else ""


def say(line: str) -> None:
    """Print a line of a log on standard error, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def show_json(record: Any) -> None:
    """Print plain types as JSON on standard output."""
    sys.stdout.write(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def say_written(paths: Iterable[Path], *, quiet: bool = False) -> None:
    """Say where files were written."""
    for path in () if quiet else paths:
        console().print(f"Wrote {path}", soft_wrap=True)


def show_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print records of the same fields as a table."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in rows[0] if rows else ():
        table.add_column(name)
    for row in rows:
        table.add_row(*map(Text, row.values()))
    console().print(table)


def show_statements(answers: Sequence[Answer], *, explain: bool) -> None:
    """Print a row for each statement, or with `explain` everything there is to say about each."""
    screen = console()
    if explain:
        for answer in answers:
            screen.print(_explanation(answer))
            screen.print(claims.terminal(claims.check_rows(answer)))
    else:
        rows = [_statement_row(answer) for answer in answers]
        screen.print(claims.terminal(rows, title="Statements of the paper"))
    counts = Counter(answer.outcome for answer in answers)
    line = Text(f"{counted(len(answers), 'statement')}: ")
    for index, outcome in enumerate(outcome for outcome in claims.STYLES if counts[outcome]):
        line.append(", " if index else "").append(f"{counts[outcome]} {outcome.value}", style=claims.STYLES[outcome])
    screen.print(line)


def summary(verdicts: Sequence[Verdict]) -> Text:
    """Count the outcomes in one line, and name what is not sound."""
    counts = [(outcome, sum(v.outcome is outcome for v in verdicts)) for outcome in Outcome]
    line = Text(f"{counted(len(verdicts), 'verdict')}: ")
    for index, (outcome, count) in enumerate((o, c) for o, c in counts if c):
        line.append(", " if index else "").append(f"{count} {outcome.value}", style=COLOURS[outcome])
    unsound = [verdict.id for verdict in verdicts if not verdict.sound]
    if unsound:
        line.append(f". OUR OWN CHECKS FAIL: {', '.join(unsound)}", style="bold red")
    return line


def show_simulation(simulation: "Simulation") -> None:
    """Print how a flow ended and where every component went."""
    screen = console()
    table = Table(title=simulation.title, title_justify="left", header_style="bold")
    for name in ("component", f"target {simulation.flow.target_symbol}", "v start", "v end", "limit", "attention"):
        table.add_column(name, justify="right")
    for row in simulation.summary_rows():
        table.add_row(str(row["component"]), *(_digits(row[name]) for name in list(row)[1:]))
    screen.print(table)
    for remark in simulation.remarks():
        screen.print(Text(remark))


def show_scan(scan: "Scan") -> None:
    """Print what the audit found, and where the values are."""
    screen = console()
    if scan.findings:
        table = Table(title="Audit of the series", title_justify="left", header_style="bold")
        table.add_column("step", justify="right")
        for name in ("finding", "what"):
            table.add_column(name)
        for finding in scan.findings:
            table.add_row(str(finding.step), Text(finding.kind.value, style="red"), Text(finding.message))
        screen.print(table)
    for name, reason in scan.failures.items():
        screen.print(Text(f"Not reached: {name}: {reason}", style="bold red"))
    if not scan.sound:
        screen.print(Text(_unsound(scan), style="bold red"), soft_wrap=True)
    counts = [f"{scan.num_measured} measured now", f"{scan.num_known} known before"]
    if scan.not_loaded:
        counts.append(f"{len(scan.not_loaded)} not loaded")
    if scan.without_values:
        counts.append(f"{len(scan.without_values)} with nothing to measure")
    if scan.failures:
        counts.append(f"{len(scan.failures)} not reached")
    drawn = "" if scan.is_empty else f"; `joma report {scan.folder}` draws it"
    screen.print(
        Text(
            f"{counted(scan.num_checkpoints, 'checkpoint')}: {', '.join(counts)}; "
            f"{counted(len(scan.findings), 'finding')}. Record in {scan.folder}{drawn}."
        ),
        soft_wrap=True,
    )


def _unsound(scan: "Scan") -> str:
    """Say why a series is not sound, and where scripts find that: most findings leave the exit code at 0."""
    reasons = list(dict.fromkeys(finding.kind.value for finding in scan.grave))
    if scan.failures:
        reasons.append("not reached")
    return f"Not sound: {', '.join(reasons)}. The exit code does not tell what the audit finds: `sound` of --json does."


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"  # NaN stands for a limit that is not known


def _statement_row(answer: Answer) -> dict[str, str]:
    """Return the statement's row: its outcome and the check that decides it."""
    main = next((row for row in claims.check_rows(answer) if answer.main and row["check"] == answer.main.name), {})
    shown = {name: main.get(name, "") for name in ("measured", "tolerance", "as printed", "against")}
    return {"statement": answer.claim, "what it says": answer.title, "outcome": answer.outcome.value, **shown}


def _explanation(answer: Answer) -> Panel:
    statement = statements()[answer.claim]
    body = Text.assemble(("Printed    ", "bold"), answer.says, "\n")
    if statement.corrected:
        body.append("Corrected  ", style="bold").append(statement.corrected + "\n")
    body.append("Outcome    ", style="bold").append(answer.outcome.value, style=claims.STYLES[answer.outcome])
    if statement.computed_by:
        body.append("\nFunctions  ", style="bold").append(", ".join(statement.computed_by))
    body.append("\n\n" + statement.why)
    return Panel(body, title=f"{answer.claim}: {answer.title}", subtitle=answer.source, title_align="left")
