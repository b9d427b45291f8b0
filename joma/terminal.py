"""What the command prints: tables that read well, progress with time left, JSON for machines."""

import json
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from joma.claims import Answer, Outcome, statements
from joma.claims import table as claims
from joma.claims.text import filled, heading
from joma.formatting import binary_size, counted, duration, printable

if TYPE_CHECKING:  # these import torch and SciPy, which `joma verify --help` can do without
    from joma.engine.plan import Plan
    from joma.engine.resume import TrainedRun
    from joma.engine.training import Progress as TrainingProgress
    from joma.engine.training import Training
    from joma.paper.reproduce import Reproduction
    from joma.probe.scanning import Scan
    from joma.store.work import WorkProgress
    from joma.theory.simulation import Simulation

PIPED_WIDTH = 160
"""Columns when the output is not a terminal and COLUMNS is not set, so that rows stay on one line in a log."""
LINE_SECONDS = 15.0
"""Time between two lines of progress in a log, where a bar cannot move."""
TIME_WIDTH = len("0:00:00")
"""Kept in a narrow terminal too: the latest words give way."""
MOST_LOSSES = 4
"""Losses that are shown; of more runs, their range."""
MOST_NAMES = 3
"""Runs of a pack that are named in the plan."""


def console() -> Console:
    """Return the console on standard output."""
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return Console(width=width, highlight=False)


class Shown:
    """Progress on standard error: a bar that moves on a terminal; in a log lines, now and then."""

    def __init__(self, bar: Progress | None) -> None:
        """Move a bar, or print lines without one."""
        self._bar = bar
        self._task = None if bar is None else bar.add_task("", total=None, at="", left="", latest="")
        self._line: object = None
        self._due = 0.0
        self._begun: tuple[float, float] | None = None

    def __call__(
        self,
        doing: str,
        *,
        done: float = 0,
        total: float | None = None,
        at: str = "",
        latest: str = "",
        remaining: float | None = None,
    ) -> None:
        """Show how far something is; in a log, if it is something else than before, is done, or some time has passed.

        Args:
            doing: What is being done.
            done: How much of it, in any unit.
            total: What there is to do; None where nobody knows.
            at: The same in words; `done/total` if empty.
            latest: What was just done.
            remaining: Seconds that the rest takes, if they are known better than by the pace since the first call.
        """
        if total == 0:  # of nothing to do there is nothing to say
            return
        at = at or ("" if total is None else f"{done:.0f}/{total:.0f}")
        remaining = self._by_pace(done, total or 0) if remaining is None else remaining
        left = "" if remaining is None else f"about {duration(remaining)} left"
        if self._bar is not None and self._task is not None:
            doing, latest = escape(printable(doing)), escape(printable(latest))
            self._bar.update(
                self._task, description=doing, completed=done, total=total, at=at, left=left, latest=latest
            )
        elif (doing, done == total) != self._line or monotonic() >= self._due:
            self._line, self._due = (doing, done == total), monotonic() + LINE_SECONDS
            far = ", ".join(filter(None, (at, latest)))
            say(doing + (far and f": {far}") + (left and f"; {left}"))

    def _by_pace(self, done: float, total: float) -> float | None:
        """Return the seconds that the rest takes at the pace since the first call; None where that is not known."""
        if self._begun is None:
            self._begun = monotonic(), done
        seconds, gained = monotonic() - self._begun[0], done - self._begun[1]
        return seconds / gained * (total - done) if 0 < gained and done < total else None


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Give what shows progress, as `Shown`; nothing if quiet."""
    if quiet:
        yield lambda *_, **__: None
    elif sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[at]}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(table_column=Column(min_width=TIME_WIDTH)),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[latest]}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield Shown(bar)
    else:
        yield Shown(None)


@contextmanager
def busy(label: str, *, quiet: bool = False) -> Iterator[None]:
    """Show that work without steps to count has begun."""
    with progress(quiet=quiet) as show:
        show(label)
        yield


def show_work(show: Callable[..., None], id: str, at: "WorkProgress") -> None:
    """Show which experiment is at work, how far it is, and how long the rest of it takes."""
    latest = ", ".join(filter(None, (at.task, at.doing)))
    show(id, done=at.share, total=1.0, at=f"{at.share:.0%}", latest=latest, remaining=at.remaining)


def say(line: str) -> None:
    """Print a line of a log on standard error, at once."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def print_line(text: str) -> None:
    """Print text as it is on standard output, on one line however narrow that is."""
    console().print(Text(text), soft_wrap=True)


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
    print_line(f"Saved to {done.folder}. For charts: joma report {done.folder}")


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
    print_line(scan.summary())
    counts = {
        "measured now": scan.num_measured,
        "known before": scan.num_known,
        "not loaded": len(scan.not_loaded),
        "with nothing to measure": len(scan.without_values),
        "not reached": len(scan.failures),
    }
    listed = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what == "measured now")
    print_line(f"{counted(scan.num_checkpoints, 'checkpoint')}: {listed}. {VERDICTS[scan.sound]}")
    charts = "" if scan.is_empty else f" For charts: joma report {scan.folder}"
    print_line(f"Saved to {scan.folder}.{charts}")


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"  # NaN stands for a limit that is not known


def show_plan(plan: "Plan") -> None:
    """Print packs, memory and estimated time."""
    rows = [
        {
            "pack": str(number),
            "runs": str(each.pack.num_runs),
            "steps left": (f"{each.num_steps - each.num_steps_done:,} of " if each.num_steps_done else "")
            + f"{each.num_steps:,}",
            "tokens a step": f"{each.tokens_per_step:,}",
            "memory": binary_size(each.num_bytes),
            "estimated time": duration(each.seconds),
            "names": _names(each.pack.names),
        }
        for number, each in enumerate(plan.packs, start=1)
    ]
    console().print(claims.table_of(rows, title=f"Packs on {plan.device}", numbers=list(rows[0])[:-1] if rows else ()))
    print_line(
        f"{counted(len(plan.runs), 'run')} in {counted(len(plan.packs), 'pack')}; {binary_size(plan.free_bytes)} free. "
        f"About {duration(plan.seconds)} in all: an estimate of this moment. Nothing was written."
    )


def show_training(training: "Training") -> None:
    """Print how every run ended, and where to find it."""
    rows: list[dict[str, str | Text]] = [
        {
            "run": run.name,
            "steps": f"{run.step:,}",
            "final loss": _loss(run.final_loss),
            "best loss": _loss(run.best_loss),
            "entropy by layer": _neighbours(run.entropy_names),
            "status": _status(run),
        }
        for run in training.runs
    ]
    title = f"Runs, each in the folder of its name in {training.folder}"
    console().print(claims.table_of(rows, title=title, numbers=("steps", "final loss", "best loss")))
    num_old = sum(not run.is_new for run in training.runs)
    before = f", {num_old} of them ended before this call" if num_old else ""
    failed = f", {training.num_failed} diverged" if training.num_failed else ""
    them = "it" if len(training.runs) == 1 else "them"
    print_line(f"{counted(len(training.runs), 'run')}{before}{failed}. `joma report {training.folder}` draws {them}.")


def stopped(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Say what a training that was interrupted leaves, from the steps of its runs that were and are saved.

    >>> stopped({}, {"seed1": 50})
    'stopped and saved; the same command goes on from the last snapshots.'
    """
    if after != before:
        return "stopped and saved; the same command goes on from the last snapshots."
    if after:
        return "stopped before anything new was saved; the same command goes on from the snapshots there were before."
    return "stopped before anything was saved; the same command begins at the start."


def show_progress(show: Callable[..., None], at: "TrainingProgress") -> None:
    """Show how far a training is, and the packs at work: on Ray there may be several."""
    packs = at.packs
    if not packs:
        if at.num_packs_done == 0:
            show(f"Training: {counted(len(at.plan.runs), 'run')} in {counted(len(at.plan.packs), 'pack')}")
        return
    num_failed = sum(len(each.failed) for each in packs)
    runs = counted(sum(len(each.names) for each in packs) + num_failed, "run")
    several = f" of {len(packs)} packs" if len(packs) > 1 else ""
    failed = f", {num_failed} diverged" if num_failed else ""
    step, num_steps = sum(each.step for each in packs), sum(each.num_steps for each in packs)
    speed = sum(each.tokens_per_second for each in packs)
    current = [loss for each in packs for loss in each.losses.values()]
    show(
        f"[{at.num_packs_done + 1}/{len(at.plan.packs)}] {runs}{several}{failed}",
        done=at.seconds_done,
        total=at.plan.seconds,
        at=f"step {step:,}/{num_steps:,}",
        latest=f"{speed:,.0f} tokens/s, loss {losses(current)}",
    )


def losses(values: list[float]) -> str:
    """Return the losses of a few runs, or the range of many.

    >>> losses([2.5, 3.0]), losses([1.0, 2.0, 3.0, 4.0, 5.0])
    ('2.500 3.000', '1.000 to 5.000')
    """
    if len(values) <= MOST_LOSSES:
        return " ".join(f"{value:.3f}" for value in values)
    return f"{min(values):.3f} to {max(values):.3f}"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown}, and {len(names) - MOST_NAMES} more"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _neighbours(names: tuple[str, ...]) -> str:
    """Return the names layer by layer, equal neighbours counted."""
    parts = [(name, len(list(same))) for name, same in groupby(names)]
    return ", ".join(name + (f" ×{num}" if num > 1 else "") for name, num in parts)


def _status(run: "TrainedRun") -> Text:
    if run.failed_at is not None:
        return Text(f"failed at step {run.failed_at:,}", style="bold red")
    return Text(run.status, style="green" if run.is_new else "dim")


@contextmanager
def options_named(names: Iterable[str]) -> Iterator[None]:
    """Have errors name the options of a command where they name the arguments of the function that it calls."""
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
