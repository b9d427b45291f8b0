"""What `joma train` prints: the plan, live progress, and how every run ended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from joma.claims.table import table_of
from joma.formatting import binary_size, counted, duration
from joma.terminal import LogLines, bars_or_lines, console, moving, moving_mark, say

if TYPE_CHECKING:  # these import torch, which `joma train --help` can do without
    from joma.engine import training
    from joma.engine.loop import PackProgress
    from joma.engine.plan import Plan

MOST_LOSSES = 4
"""Losses that are shown beside a bar; of more runs, their range."""
MOST_NAMES = 3
"""Runs of a pack that are named in the plan."""
TIME_WIDTH = len("0:00:00")
"""Kept in a narrow terminal too: the losses give way."""


def show_plan(plan: "Plan") -> None:
    """Print packs, memory and estimated time."""
    screen = console()
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
    screen.print(table_of(rows, title=f"Packs on {plan.device}", numbers=list(rows[0])[:-1] if rows else ()))
    screen.print(
        Text(
            f"{counted(len(plan.runs), 'run')} in {counted(len(plan.packs), 'pack')}; "
            f"{binary_size(plan.free_bytes)} free. "
            f"About {duration(plan.seconds)} in all: an estimate of this moment. Nothing was written."
        ),
        soft_wrap=True,
    )


def show_training(training: "training.Training") -> None:
    """Print how every run ended, and where to find it."""
    screen = console()
    rows: list[dict[str, str | Text]] = [
        {
            "run": run.name,
            "steps": f"{run.step:,}",
            "final loss": _loss(run.final_loss),
            "best loss": _loss(run.best_loss),
            "entropy by layer": _counted(run.entropy_names),
            "status": _status(run),
        }
        for run in training.runs
    ]
    title = f"Runs, each in the folder of its name in {training.folder}"
    screen.print(table_of(rows, title=title, numbers=("steps", "final loss", "best loss")))
    num_old = sum(not run.is_new for run in training.runs)
    before = f", {num_old} of them ended before this call" if num_old else ""
    failed = f", {training.num_failed} diverged" if training.num_failed else ""
    screen.print(
        Text(
            f"{counted(len(training.runs), 'run')}{before}{failed}. `joma report {training.folder}` draws "
            f"{'it' if len(training.runs) == 1 else 'them'}."
        ),
        soft_wrap=True,
    )


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


def planning_progress(*, quiet: bool = False) -> AbstractContextManager[Callable[[str], None]]:
    """Show what is done for a plan on standard error, in a log as lines; gives what to call with it."""
    before = "Planning: "
    return bars_or_lines(partial(moving_mark, before), lambda doing: say(before + doing), quiet=quiet)


def training_progress(*, quiet: bool = False) -> AbstractContextManager[Callable[["training.Progress"], None]]:
    """Show a bar for all packs and one for those at work, on standard error; in a log a line now and then."""
    lines = LogLines()

    def log(at: "training.Progress") -> None:
        if at.pack is not None:
            runs, step, num_steps, latest = _together([at.pack, *at.others])
            left = lines.time_left(at.seconds_done, at.plan.seconds)
            pack = f"[{at.num_packs_done + 1}/{len(at.plan.packs)}]"
            lines.show(pack, f"{pack} {runs}: step {step:,}/{num_steps:,}, {latest}{left}")
        elif at.num_packs_done == 0:
            say(f"Training: {counted(len(at.plan.runs), 'run')} in {counted(len(at.plan.packs), 'pack')}")

    return bars_or_lines(_bars, log, quiet=quiet)


@contextmanager
def _bars() -> Iterator[Callable[["training.Progress"], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TextColumn("elapsed"),
        TimeElapsedColumn(table_column=Column(min_width=TIME_WIDTH)),
        TextColumn("left"),
        TimeRemainingColumn(table_column=Column(min_width=TIME_WIDTH)),
        TextColumn("[dim]{task.fields[latest]}"),
    )
    with moving(*columns) as bar:
        whole = bar.add_task("Training", total=None, count="", latest="")
        part = bar.add_task("Pack", total=None, count="", latest="", visible=False)
        seen = [-1]

        def show(at: "training.Progress") -> None:
            if seen[0] != at.num_packs_done:
                seen[0] = at.num_packs_done
                bar.reset(part, visible=at.pack is not None)
            count = f"{at.num_packs_done}/{len(at.plan.packs)} packs"
            bar.update(whole, completed=at.seconds_done, total=at.plan.seconds, count=count)
            if at.pack is not None:
                runs, step, num_steps, latest = _together([at.pack, *at.others])
                count = f"step {step:,}/{num_steps:,}"
                bar.update(part, visible=True, description=runs, completed=step, total=num_steps, count=count)
                bar.update(part, latest=escape(latest))

        yield show


def _together(packs: "Sequence[PackProgress]") -> tuple[str, int, int, str]:
    """Return runs, steps done, steps in all, and speed with losses of the packs at work: on Ray there are several."""
    num_failed = sum(len(at.failed) for at in packs)
    num_runs = sum(len(at.names) for at in packs) + num_failed
    several = f" of {len(packs)} packs" if len(packs) > 1 else ""
    failed = f", {num_failed} diverged" if num_failed else ""
    speed = sum(at.tokens_per_second for at in packs)
    current = [loss for at in packs for loss in at.losses.values()]
    return (
        f"{counted(num_runs, 'run')}{several}{failed}",
        sum(at.step for at in packs),
        sum(at.num_steps for at in packs),
        f"{speed:,.0f} tokens/s, loss {losses(current)}",
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


def _counted(names: tuple[str, ...]) -> str:
    """Return the names layer by layer, equal neighbours counted."""
    parts = [(name, len(list(same))) for name, same in groupby(names)]
    return ", ".join(name + (f" ×{num}" if num > 1 else "") for name, num in parts)


def _status(run: "training.TrainedRun") -> Text:
    if run.failed_at is not None:
        return Text(f"failed at step {run.failed_at:,}", style="bold red")
    return Text(run.status, style="green" if run.is_new else "dim")
