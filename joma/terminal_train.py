"""What `joma train` prints: the plan, live progress, and how every run ended."""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from joma.claims.table import table_of
from joma.formatting import binary_size, counted, duration
from joma.terminal import console

if TYPE_CHECKING:  # these import torch, which `joma train --help` can do without
    from joma.engine import training
    from joma.engine.plan import Plan

MOST_LOSSES = 4
"""Losses that are shown; of more runs, their range."""
MOST_NAMES = 3
"""Runs of a pack that are named in the plan."""


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


def show_progress(show: Callable[..., None], at: "training.Progress") -> None:
    """Show how far a training is, and the packs at work: on Ray there may be several."""
    packs = [] if at.pack is None else [at.pack, *at.others]
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


def _counted(names: tuple[str, ...]) -> str:
    """Return the names layer by layer, equal neighbours counted."""
    parts = [(name, len(list(same))) for name, same in groupby(names)]
    return ", ".join(name + (f" ×{num}" if num > 1 else "") for name, num in parts)


def _status(run: "training.TrainedRun") -> Text:
    if run.failed_at is not None:
        return Text(f"failed at step {run.failed_at:,}", style="bold red")
    return Text(run.status, style="green" if run.is_new else "dim")
