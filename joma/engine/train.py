"""`train`: a grid of runs, packed and trained, each recorded in a folder of its own."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import torch

from joma.engine import grid as grids
from joma.engine import recipes
from joma.engine.extent import extent
from joma.engine.measuring import ENTROPY, LOSS, VALIDATION
from joma.engine.memory import free_bytes
from joma.engine.packs import Pack
from joma.engine.plan import PackPlan, Plan, device_named, make_plan
from joma.engine.snapshots import steps_of
from joma.engine.speed import counted_seconds, tried_seconds
from joma.engine.standing import examined
from joma.engine.training import REGIME, PackProgress, PackResult, RunResult, train_pack
from joma.errors import UnknownNameError
from joma.store import read, read_events
from joma.store.files import demand_writable, remove_leftovers
from joma.store.lock import alone_in
from joma.tasks.local import run_tasks
from joma.tasks.on_ray import demand_ray

if TYPE_CHECKING:
    import pandas

PLACES = ("local", "ray")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a training is."""

    plan: Plan
    num_packs_done: int
    pack: PackProgress | None = None
    """Of the pack that is being trained; where there are several, of the one that was heard last."""
    beside: tuple[PackProgress, ...] = ()
    """Of the others that are trained at the same time, on Ray."""
    seconds_done: float = 0.0
    """Work that is done, in seconds of the plan's own estimate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedRun:
    """How one run of a grid ended; all its numbers are in its record, `joma.read(folder)`."""

    name: str
    folder: Path
    status: str
    """`finished`, or `failed` for a run that diverged."""
    step: int
    """Steps done."""
    failed_at: int | None
    """Step at which it diverged."""
    final_loss: float | None
    """Validation loss at the last measurement; None where nothing finite was measured."""
    best_loss: float | None
    """Lowest validation loss."""
    entropy_regimes: tuple[str, ...]
    """What the attention entropy of each layer did, from the first layer on; empty where a run did not come so far."""
    is_new: bool
    """Whether this call trained it; otherwise it had ended before."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"folder": str(self.folder), "entropy_regimes": list(self.entropy_regimes)}


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
        return {"folder": str(self.folder), "runs": [run.as_dict() for run in self.runs]}


def train(
    grid: Mapping[str, Any] | None = None,
    *,
    out: Path | str,
    recipe: str = recipes.DEFAULT,
    on: str = "local",
    device: str | None = None,
    memory: int | None = None,
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
        progress: Called about once a second.

    Settings that cannot be, data that are not there and runs that do not fit are refused before anything is written.
    """
    _require_place(on)
    demand_writable(out)
    there = device_named(device)
    plan = make_plan(_runs(grid, recipe), device=there, memory=_memory(memory, there, on))
    out = Path(out)
    report = progress or (lambda _: None)
    results: dict[str, RunResult] = {}
    with alone_in(out) as show_life:
        remove_leftovers(out)
        ended = _ended_before(plan, out)

        def told(at: Progress) -> None:
            show_life()
            report(at)

        for pack_result in _trained(plan, out, on, told):
            results |= {run.name: run for run in pack_result.runs}
    names = [run.name for run in _runs(grid, recipe)]
    return Training(folder=out, runs=tuple(_summary(results[name], is_new=name not in ended) for name in names))


def plan_training(
    grid: Mapping[str, Any] | None = None,
    *,
    recipe: str = recipes.DEFAULT,
    device: str | None = None,
    memory: int | None = None,
    on: str = "local",
    out: Path | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Return what `train` would do with the same arguments: packs, memory and estimated time. Nothing is written.

    With `out` that is what is left there to do, and a folder that `train` would refuse is refused.

    On a CPU a few steps are tried for the estimate; on a GPU, where a step is compiled first, they are counted.
    `progress` is told in words what is done next, which may take a while.
    """
    _require_place(on)
    there = device_named(device)
    clock = tried_seconds if there.type == "cpu" else counted_seconds(there)
    room = _memory(memory, there, on)
    plan = make_plan(_runs(grid, recipe), device=there, memory=room, step_seconds=clock, progress=progress)
    if out is None:
        return plan
    return replace(plan, packs=tuple(each.going_on(_num_steps_done(each, Path(out))) for each in plan.packs))


def saved_steps(out: Path | str) -> dict[str, int]:
    """Return the last step that is saved of each run in a folder, by name; empty where nothing is."""
    folders = sorted(Path(out).iterdir()) if Path(out).is_dir() else []
    return {folder.name: steps[-1] for folder in folders if (steps := steps_of(folder))}


def _require_place(on: str) -> None:
    if on not in PLACES:
        raise UnknownNameError("place to train", on, PLACES)
    if on == "ray":
        demand_ray()


def _memory(given: int | None, device: torch.device, on: str) -> int | None:
    """Return the bytes that one pack may take; on Ray a machine trains as many packs at a time as it has cores."""
    if given is not None or on == "local" or device.type == "cuda":
        return given
    return free_bytes(device) // (os.cpu_count() or 1)


def _runs(given: Mapping[str, Any] | None, recipe: str) -> tuple[grids.Run, ...]:
    """Return the grid of a recipe with the axes that were given."""
    chosen = recipes.recipe(recipe)
    return grids.grid(chosen.base, {**chosen.axes, **grids.axes_of(given or {})}, tuple(chosen.axes))


def _num_steps_done(plan: PackPlan, out: Path) -> int:
    """Return the steps that all runs of a pack have done, those aside that have ended."""
    members = [examined(run, out, extent(run.config)) for run in plan.pack.runs]
    return min((max(steps_of(each.folder), default=0) for each in members if each.is_open), default=plan.num_steps)


def _ended_before(plan: Plan, out: Path) -> frozenset[str]:
    """Return the names of runs that have ended already.

    Folders that hold other runs, or that another process writes to, are refused before any run is touched.
    """
    members = [examined(run, out, extent(run.config)) for run in plan.runs]
    return frozenset(member.name for member in members if not member.is_open)


def _trained(plan: Plan, out: Path, on: str, report: Callable[[Progress], None]) -> list[PackResult]:
    """Train the packs: here one after the other, on a cluster several at a time."""
    kind = torch.device(plan.device).type
    # Of the GPUs of another machine a task sees the one that it was given.
    device = plan.device if on == "local" else kind
    tasks = [_Task(pack=each.pack, folder=out.resolve(), device=device, owner=_owner(on)) for each in plan.packs]
    teller = _Teller(plan, report)
    results = []
    for position, result in run_tasks(_work, tasks, on=on, num_gpus=int(kind == "cuda"), told=teller.hear):
        results.append(result)
        teller.end(position)
    return results


def _owner(on: str) -> str:
    """Return fresh digits for a pack that Ray trains elsewhere when its worker is lost; none for this process."""
    return "" if on == "local" else token_hex(8)


class _Teller:
    """Makes one report of what the packs tell, in whatever order they are trained."""

    def __init__(self, plan: Plan, report: Callable[[Progress], None]) -> None:
        self._plan, self._report = plan, report
        self._done: set[int] = set()
        self._at_work: dict[int, PackProgress] = {}
        self._tell()

    def hear(self, position: int, pack: PackProgress) -> None:
        """Note how far a pack is."""
        self._at_work.pop(position, None)  # the one that was heard last stands at the end
        self._at_work[position] = pack
        self._tell()

    def end(self, position: int) -> None:
        """Note that a pack is done."""
        self._at_work.pop(position, None)
        self._done.add(position)
        self._tell()

    def _tell(self) -> None:
        heard = tuple(reversed(self._at_work.values()))
        self._report(
            Progress(
                plan=self._plan,
                num_packs_done=len(self._done),
                pack=heard[0] if heard else None,
                beside=heard[1:],
                seconds_done=self._seconds_done(),
            )
        )

    def _seconds_done(self) -> float:
        shares = dict.fromkeys(self._done, 1.0) | {at: pack.step / pack.num_steps for at, pack in self._at_work.items()}
        return math.fsum(share * self._plan.packs[position].seconds for position, share in shares.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """A pack to be trained: nothing but what can travel to another machine."""

    pack: Pack
    folder: Path
    device: str
    owner: str
    """Whose the folders of the runs are, at every try of this pack and of no other."""


def _work(task: _Task, tell: Callable[[PackProgress], None]) -> PackResult:
    return train_pack(task.pack, task.folder, device=task.device, progress=tell, owner=task.owner)


def _summary(result: RunResult, *, is_new: bool) -> TrainedRun:
    table, events = read(result.folder), read_events(result.folder)
    losses = _validation_losses(table)
    return TrainedRun(
        name=result.name,
        folder=result.folder,
        status=result.status,
        step=result.step,
        failed_at=result.failed_at,
        final_loss=float(losses.iloc[-1]) if len(losses) else None,
        best_loss=float(losses.min()) if len(losses) else None,
        entropy_regimes=_regimes(events),
        is_new=is_new,
    )


def _validation_losses(table: "pandas.DataFrame") -> "pandas.Series":
    rows = table[(table["metric"] == LOSS) & (table["site"] == VALIDATION)].sort_values("step")
    return rows.loc[rows["value"].abs() < float("inf"), "value"]


def _regimes(events: "pandas.DataFrame") -> tuple[str, ...]:
    """Return the regime of the entropy, layer by layer, as the last measurement named it."""
    told = [json.loads(evidence) for evidence in events.loc[events["kind"] == REGIME, "evidence"]]
    by_layer = {each["layer"]: each["kind"] for each in told if each.get("metric") == ENTROPY}
    return tuple(by_layer[layer] for layer in sorted(by_layer))
