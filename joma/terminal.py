"""What the command prints: tables that read well, progress with time left, JSON for machines."""

import json
import math
import re
import shutil
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
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from joma.claims import Answer, Outcome, statements
from joma.claims import table as claims
from joma.claims.text import filled, heading
from joma.formatting import counted, duration, printable

if TYPE_CHECKING:  # these import torch and SciPy, which `joma verify --help` can do without
    from joma.paper.reproduce import Reproduction
    from joma.probe.scanning import Scan
    from joma.store.work import WorkProgress
    from joma.theory.simulation import Simulation

PIPED_WIDTH = 160
"""Columns when the output is not a terminal and COLUMNS is not set, so that rows stay on one line in a log."""
LINE_SECONDS = 15.0
"""Time between two lines of progress in a log, where a bar cannot move."""


def console() -> Console:
    """Return the console on standard output."""
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return Console(width=width, highlight=False)


def moving(*columns: ProgressColumn) -> Progress:
    """Return bars on standard error, which disappear at the end."""
    return Progress(*columns, console=Console(stderr=True), transient=True)


def progress(label: str, *, quiet: bool = False) -> AbstractContextManager[Callable[[str, int, int], None]]:
    """Show a count with the time left on standard error, by a bar or by lines.

    Gives a function of what was just done, how many are done, and of how many.
    """
    lines = LogLines()

    def log(latest: str, done: int, total: int) -> None:
        if total:  # of nothing to do there is nothing to say
            named = f", {latest}" if latest else ""
            lines.show(done == total, f"{label}: {done}/{total}{named}{lines.time_left(done, total)}")

    return bars_or_lines(partial(_bar, label), log, quiet=quiet)


@contextmanager
def _bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[latest]}"),
    )
    with moving(*columns) as bar:
        task = bar.add_task(label, total=None, latest="")
        yield lambda latest, done, total: bar.update(
            task, completed=done, total=total, latest=escape(printable(latest))
        )


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
    with moving(*columns) as bar:
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
        self._begun: tuple[float, float] | None = None

    def show(self, current: object, line: str) -> None:
        """Print a line if one is due: `current`, what is being done, is another than before, or it is time."""
        if current == self._current and monotonic() < self._due:
            return
        self._current, self._due = current, monotonic() + LINE_SECONDS
        say(line)

    def time_left(self, done: float, total: float) -> str:
        """Return about how long the rest takes at the pace since the first call; nothing where that is not known."""
        if self._begun is None:
            self._begun = monotonic(), done
        seconds, gained = monotonic() - self._begun[0], done - self._begun[1]
        return f"; about {duration(seconds / gained * (total - done))} left" if 0 < gained and done < total else ""


def say(line: str) -> None:
    """Print a line of a log on standard error, at once."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def show_json(record: Any) -> None:
    """Print plain types as JSON on standard output."""
    has_all_letters = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(record, indent=2, ensure_ascii=not has_all_letters, allow_nan=False)
    # JSON escapes control characters itself, but not those that some terminals act on all the same
    text = re.sub(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]", lambda found: f"\\u{ord(found[0]):04x}", text)
    sys.stdout.write(text + "\n")


def say_written(paths: Iterable[Path], *, quiet: bool = False) -> None:
    """Say where files were written."""
    for path in () if quiet else paths:
        console().print(f"Wrote {path}", soft_wrap=True)


def show_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print records of the same fields as a table."""
    console().print(claims.table_of(rows, title=title))


def show_answers(answers: Sequence[Answer], *, explain: bool, texts: bool = False) -> None:
    """Print a row for each claim, or with `explain` everything there is to say about each.

    `texts` takes the hand-written texts, which speak of the kept results.
    """
    screen = console()
    for answer in answers if explain else ():
        screen.print(_explained(answer, texts))
        if answer.numbers:
            screen.print(claims.terminal(claims.number_rows(answer)))
    if not explain:
        screen.print(claims.terminal(claims.rows(answers, texts=texts)))
    counts = Counter(answer.outcome for answer in answers)
    line = Text(f"{counted(len(answers), 'claim')}: ")
    for index, outcome in enumerate(each for each in Outcome if counts[each]):
        line.append(", " if index else "").append(f"{counts[outcome]} {outcome}", style=claims.STYLES.get(outcome, ""))
    screen.print(line)


def show_reproduction(done: "Reproduction", *, explain: bool) -> None:
    """Print the claims of experiments, what is not done and why, and where the files are."""
    screen = console()
    if done.answers:
        texts = all(each.has_texts for each in done.experiments if each.answers)
        show_answers(done.answers, explain=explain, texts=texts)
    for each in done.experiments:
        if each.status != "done":
            counts = f" ({each.done} of {each.tasks} tasks)" if each.tasks else ""
            style = "bold red" if each.status == "failed" else "yellow"
            screen.print(Text.assemble((f"{each.id} {each.status}{counts}: ", style), each.reason), soft_wrap=True)
    screen.print(f"Saved to {done.folder}. For charts: joma report {done.folder}", soft_wrap=True, markup=False)


def work_progress(*, quiet: bool = False) -> "AbstractContextManager[Callable[[str, WorkProgress], None]]":
    """Show on standard error which experiment is at work, how far it is, and how long the rest of it takes."""
    lines = LogLines()

    def log(id: str, at: "WorkProgress") -> None:
        times = f"elapsed {duration(at.elapsed)}, left {duration(at.remaining)}"
        words = ", ".join(filter(None, (f"{at.share:.0%}", at.task, at.doing)))
        lines.show(id, f"{id}: {words}; {times}")

    return bars_or_lines(_work_bar, log, quiet=quiet)


@contextmanager
def _work_bar() -> "Iterator[Callable[[str, WorkProgress], None]]":
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[at]}"))
    with moving(*columns) as bar:
        task = bar.add_task("", total=1.0, at="")

        def show(id: str, at: "WorkProgress") -> None:
            times = f"elapsed {duration(at.elapsed)}, left {duration(at.remaining)}"
            words = escape(f"{at.share:.0%}  {times}  {at.doing}")
            bar.update(task, description=escape(id), completed=at.share, at=words)

        yield show


def _explained(answer: Answer, texts: bool) -> Panel:
    """Return what the paper says, what holds, and why."""
    statement = statements().get(answer.claim) if answer.tested_by == "verify" else None
    body = Text.assemble(("We say      " if answer.ours else "Paper says  ", "bold"), answer.says)
    body.append("\nOutcome     ", style="bold").append(
        answer.outcome.value, style=claims.STYLES.get(answer.outcome, "")
    )
    for setting, outcome in answer.settings.items():
        body.append(f"\n            {setting}: ").append(outcome.value, style=claims.STYLES.get(outcome, ""))
    if statement is not None and statement.corrected:
        label = "Condition " if statement.form == "condition" else "Corrected "
        body.append(f"\n{label}  ", style="bold").append(statement.corrected)
    text = (filled(answer) if texts else None) or (statement.why if statement else "")
    if text:
        body.append("\n\n" + "\n".join(line for line in text.splitlines() if not line.startswith("# ")).strip())
    if statement is not None and statement.computed_by:
        body.append("\n\nComputed by ").append(", ".join(f"joma.theory.{name}" for name in statement.computed_by))
    title = heading(answer) if texts else answer.title
    return Panel(body, title=escape(f"{answer.claim}: {title}"), subtitle=escape(answer.source), title_align="left")


def show_simulation(simulation: "Simulation") -> None:
    """Print how a flow ended and where every component went."""
    screen = console()
    names = "component", f"target {simulation.flow.target_symbol}", "v start", "v end", "limit", "attention"
    cells = [[str(row.pop("component")), *map(_digits, row.values())] for row in simulation.summary_rows()]
    rows = [dict(zip(names, each, strict=True)) for each in cells]
    screen.print(claims.table_of(rows, title=simulation.title, numbers=names))
    effects = Table(show_header=False)
    for name, value in simulation.effects().items():
        effects.add_row(name, f"{value:.10g}" if "time" in name else _digits(value))
    screen.print(effects)
    if simulation.obstacle:
        screen.print(Text(f"Not integrated, closed form alone: {simulation.obstacle}."))


VERDICTS = {
    True: "Sound: no problem was found.",
    False: "Not sound: the lines above say what is wrong. Replace these checkpoints or leave them out; scan again.",
}
"""What a scan ends with."""


def show_scan(scan: "Scan") -> None:
    """Print the values of every layer, what the audit found, and where the record is."""
    screen = console()
    screen.print(Text(scan.summary()), soft_wrap=True)
    counts = {
        "measured now": scan.num_measured,
        "known before": scan.num_known,
        "not loaded": len(scan.not_loaded),
        "with nothing to measure": len(scan.without_values),
        "not reached": len(scan.failures),
    }
    listed = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what == "measured now")
    screen.print(
        Text(f"{counted(scan.num_checkpoints, 'checkpoint')}: {listed}. {VERDICTS[scan.sound]}"), soft_wrap=True
    )
    charts = "" if scan.is_empty else f" For charts: joma report {scan.folder}"
    screen.print(Text(f"Saved to {scan.folder}.{charts}"), soft_wrap=True)


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"  # NaN stands for a limit that is not known


@contextmanager
def options_named(names: Iterable[str]) -> Iterator[None]:
    """Have errors name the options of a command where they name the arguments of the function behind it."""
    try:
        yield
    except (ValueError, OSError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):  # an error of the system keeps its number
            error.args = (in_options(error.args[0], names),)
        raise


def in_options(message: str, names: Iterable[str]) -> str:
    r"""Write the arguments that a message names in backticks as options.

    >>> in_options(r"Pass `text`. No matrix matches `mlp_pattern=m\.0`. Change `mlp_pattern=`.", ["mlp_pattern"])
    'Pass `text`. No matrix matches `--mlp-pattern=m\\.0`. Change `--mlp-pattern`.'
    """
    argument = re.compile(rf"`({'|'.join(map(re.escape, names))})(?:=(?=`))?(?=[=`])")
    return argument.sub(lambda found: f"`--{found[1].replace('_', '-')}", message)
