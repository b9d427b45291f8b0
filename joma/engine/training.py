"""`train`: a grid of runs, packed and trained, each recorded in a folder of its own."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch

from joma.engine.grid import DEFAULT, check_data, runs_of
from joma.engine.loop import PackProgress, train_pack
from joma.engine.memory import free_bytes
from joma.engine.plan import PackPlan, Plan, counted_seconds, device_named, make_plan, tried_seconds
from joma.engine.precision import limited_threads
from joma.engine.resume import TrainedRun, inspect_run
from joma.engine.snapshots import steps_of
from joma.engine.sources import data_size
from joma.store.files import demand_writable, remove_leftovers
from joma.store.lock import alone_in
from joma.store.record import plain
from joma.tasks.run import check_place, run_tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a training is."""

    plan: Plan
    num_packs_done: int
    packs: tuple[PackProgress, ...] = ()
    """Packs at work, the one that was heard last first; on Ray there may be several."""
    seconds_done: float = 0.0
    """Work that is done, in seconds of the plan's own estimate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What a call of `train` did."""

    folder: Path
    runs: tuple[TrainedRun, ...]
    """In the order of the grid."""

    @property
    def num_failed(self) -> int:
        """Runs that diverged."""
        return sum(run.failed_at is not None for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def train(
    grid: Mapping[str, Any] | None = None,
    *,
    out: Path | str,
    recipe: str = DEFAULT,
    on: str = "local",
    device: str | None = None,
    memory: int | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Training:
    """Train every combination of a grid, many runs at once, each into the folder of its name below `out`.

    Args:
        grid: Values by setting, one or several each: `{"depth": [1, 2], "lr": 1e-4}`. They replace or join the axes of
            the recipe; settings that neither names are as in its base.
        out: Folder of the runs. The same call goes on where an earlier one stopped; a larger grid adds to it.
        recipe: Where to start from: `figure6`, `figure8`, `small`, `table1` or `trees`.
        on: `local`, this process, or `ray`, a cluster of machines like this one on which `out` is a shared folder. A
            pack there has a GPU to itself, or a core and as large a share of the memory; when its machine is lost,
            another one goes on with it at once.
        device: `cpu`, `cuda` or one GPU, `cuda:0`; the GPU if there is one when None.
        memory: Bytes to plan with instead of what is free on the device.
        threads: Threads of a calculation on a CPU; None takes OMP_NUM_THREADS, else one, which also is fast on a busy
            machine.
        progress: Called about once a second.

    Settings that cannot be, data that are not there and runs that do not fit are refused before anything is written.
    """
    check_place(on)
    demand_writable(out)
    runs, there, out = runs_of(grid, recipe), device_named(device), Path(out)
    check_data(runs)
    results: dict[str, TrainedRun] = {}
    with limited_threads(threads):
        plan = make_plan(runs, device=there, memory=_memory(memory, there, on))
        with alone_in(out) as show_life:
            remove_leftovers(out)
            # Folders that hold other runs, or that another process writes to, are refused before any run is touched.
            members = [inspect_run(run, out, data_size(run.config)) for run in plan.runs]
            ended = {member.name for member in members if not member.is_open}

            def report(at: Progress) -> None:
                show_life()
                if progress is not None:
                    progress(at)

            for ended_runs in _train_packs(plan, out, on, threads, report):
                results |= {run.name: run for run in ended_runs}
    # A machine that goes on with a lost one's pack may find its runs ended: this call trained them all the same.
    done = [replace(results[run.name], is_new=run.name not in ended) for run in runs]
    return Training(folder=out, runs=tuple(done))


def plan_training(
    grid: Mapping[str, Any] | None = None,
    *,
    recipe: str = DEFAULT,
    device: str | None = None,
    memory: int | None = None,
    threads: int | None = None,
    on: str = "local",
    out: Path | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Return what `train` would do with the same arguments: packs, memory and estimated time. Nothing is written.

    With `out` that is what is left there to do, and a folder that `train` would refuse is refused.

    On a CPU a few steps are tried for the estimate; on a GPU, where a step is compiled first, they are counted.
    `progress` gets in words what is done next, which may take a while.
    """
    check_place(on)
    runs, there = runs_of(grid, recipe), device_named(device)
    check_data(runs)
    clock = tried_seconds if there.type == "cpu" else counted_seconds(there)
    with limited_threads(threads):
        room = _memory(memory, there, on)
        plan = make_plan(runs, device=there, memory=room, step_seconds=clock, progress=progress)
    if out is None:
        return plan
    return replace(plan, packs=tuple(_left(each, Path(out)) for each in plan.packs))


def saved_steps(out: Path | str) -> dict[str, int]:
    """Return the last step that is saved of each run in a folder, by name; empty where nothing is."""
    folders = sorted(Path(out).iterdir()) if Path(out).is_dir() else []
    return {folder.name: steps[-1] for folder in folders if (steps := steps_of(folder))}


def _memory(given: int | None, device: torch.device, on: str) -> int | None:
    """Return the bytes that one pack may take; on Ray a machine trains as many packs at a time as it has cores."""
    if given is not None or on == "local" or device.type == "cuda":
        return given
    return free_bytes(device) // (os.cpu_count() or 1)


def _left(plan: PackPlan, out: Path) -> PackPlan:
    """Return what is left of a pack: from the steps on that all its runs have done, those aside that have ended."""
    members = [inspect_run(run, out, data_size(run.config)) for run in plan.pack.runs]
    done = min((max(steps_of(each.folder), default=0) for each in members if each.is_open), default=plan.num_steps)
    return replace(plan, num_steps_done=done, seconds=plan.seconds * (1 - done / plan.num_steps))


def _train_packs(
    plan: Plan, out: Path, on: str, threads: int | None, report: Callable[[Progress], None]
) -> Iterator[tuple[TrainedRun, ...]]:
    """Train the packs: here one after the other, on a cluster several at a time. Report them all as one."""
    kind = torch.device(plan.device).type
    tasks = [
        {
            "pack": each.pack,
            "folder": out.resolve(),
            "device": plan.device if on == "local" else kind,  # of another machine's GPUs a task sees its own alone
            "threads": threads,
            "owner": "" if on == "local" else token_hex(8),  # the same when another machine goes on with the pack
        }
        for each in plan.packs
    ]
    done: set[int] = set()
    at_work: dict[int, PackProgress] = {}  # the one that was heard last is the last

    def send() -> None:
        shares = dict.fromkeys(done, 1.0) | {at: pack.step / pack.num_steps for at, pack in at_work.items()}
        report(
            Progress(
                plan=plan,
                num_packs_done=len(done),
                packs=tuple(reversed(at_work.values())),
                seconds_done=math.fsum(share * plan.packs[at].seconds for at, share in shares.items()),
            )
        )

    def hear(position: int, pack: PackProgress) -> None:
        at_work.pop(position, None)
        at_work[position] = pack
        send()

    send()
    for position, result in run_tasks(_train_task, tasks, on=on, num_gpus=int(kind == "cuda"), report=hear):
        at_work.pop(position, None)
        done.add(position)
        send()
        yield result


def _train_task(task: dict[str, Any], report: Callable[[PackProgress], None]) -> tuple[TrainedRun, ...]:
    """Train a pack, here or on another machine."""
    arguments = dict(task)
    with limited_threads(arguments.pop("threads")):
        return train_pack(progress=report, **arguments)
