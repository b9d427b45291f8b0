"""How far the runs of a pack are: new, unfinished, finished or failed, and from which snapshots they go on."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from joma.engine import snapshots
from joma.engine.config import LENGTHS, SAVING, RunConfig, digest
from joma.engine.grid import Run
from joma.engine.measuring import ENTROPY, LOSS, VALIDATION
from joma.engine.snapshots import DamagedSnapshotError
from joma.engine.sources import DataSize, data_hash
from joma.engine.step import NOT_FAILED
from joma.store import RunWriter, demand_closed, info, read, read_events
from joma.store.files import remove_leftovers
from joma.store.record import FILE_NAME, Kind, check_rows

KIND: Kind = "train"
DIVERGED, EFFECTS = "diverged", "effects"
"""Kinds of the events that say at which step a run failed, and that describe the curves of a finished one."""
NOWHERE = -1
"""Step of a run that had failed before and takes part no more."""
_RESUMABLE = (*SAVING, *LENGTHS)
"""Fields that may be other ones when a run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedRun:
    """How one run ended; all its numbers are in its record, `joma.read(folder)`."""

    name: str
    folder: Path
    status: str
    """`finished` or `failed`."""
    step: int
    """Steps done."""
    failed_at: int | None
    """Step at which it diverged."""
    is_new: bool
    """Whether this call trained it; otherwise it had ended before."""
    final_loss: float | None
    """Validation loss at the last measurement; None where nothing finite was measured."""
    best_loss: float | None
    """Lowest validation loss."""
    entropy_names: tuple[str, ...]
    """Name of the attention entropy's curve in each layer (`joma.measure.effects.Name`); empty for a failed run."""


@dataclass(slots=True, eq=False)
class Member:
    """A run of a pack, and how far it is."""

    name: str
    config: RunConfig
    folder: Path
    status: Literal["open", "finished", "failed"] = "open"
    step: int = 0
    """Steps done."""
    failed_at: int = NOT_FAILED
    state: Mapping[str, Tensor] | None = None
    """What to go on from; None is the start."""
    record: RunWriter | None = None
    """Held while the run is open."""
    kept: tuple[int, ...] = ()
    """Steps of the snapshots that are kept, ascending."""

    @property
    def is_open(self) -> bool:
        """Whether there is something left to do."""
        return self.status == "open"

    @property
    def writer(self) -> RunWriter:
        """The record of a run that is open."""
        assert self.record is not None
        return self.record

    def result(self, *, is_new: bool) -> TrainedRun:
        """Return how the run ended."""
        failed_at = self.failed_at if self.status == "failed" else None
        table, events = read(self.folder), read_events(self.folder)
        rows = table[(table["metric"] == LOSS) & (table["site"] == VALIDATION)].sort_values("step")
        losses = rows.loc[rows["value"].abs() < math.inf, "value"]
        found = [json.loads(evidence) for evidence in events.loc[events["kind"] == EFFECTS, "evidence"]]
        by_layer = {each["layer"]: each["name"] for each in found if each.get("metric") == ENTROPY}
        return TrainedRun(
            name=self.name,
            folder=self.folder,
            status=self.status,
            step=self.step if failed_at is None else failed_at,
            failed_at=failed_at,
            is_new=is_new,
            final_loss=float(losses.iloc[-1]) if len(losses) else None,
            best_loss=float(losses.min()) if len(losses) else None,
            entropy_names=tuple(by_layer[layer] for layer in sorted(by_layer)),
        )


def inspect_run(run: Run, root: Path, size: DataSize, *, owner: str = "") -> Member:
    """See where a run stands, without writing; refuses a folder that holds another run, or is being written.

    What an earlier try of the same owner was writing is ours to go on with.
    """
    folder = root / run.name
    member = Member(name=run.name, config=run.config, folder=folder)
    if not (folder / FILE_NAME).exists():
        return member
    record = info(folder)
    if record.kind != KIND:
        raise ValueError(f"{folder} holds a run of kind {record.kind!r}, not {KIND!r}. Take a new folder.")
    about: dict[str, Any] = {"num_steps": 0, "data_hash": ""} | record.about
    try:
        earlier = RunConfig.from_dict(record.config)
        for name, kind in (("num_steps", int), ("data_hash", str)):
            if not isinstance(about[name], kind):
                raise ValueError(f"`about` has `{name}` {about[name]!r}.")
    except ValueError as error:
        raise ValueError(f"{folder / FILE_NAME} is damaged: {error} Restore it from a copy.") from None
    _check_same(member, earlier, about["num_steps"], about["data_hash"], size)
    check_rows(folder)
    if record.status == "finished" and about["num_steps"] >= size.num_steps:
        member.status, member.step = "finished", about["num_steps"]
        return member
    if record.status == "failed":  # by its own numbers it would fail again; one that an exception ended goes on
        events = read_events(folder)
        steps = events.loc[events["kind"] == DIVERGED, "step"]
        if len(steps):
            member.status, member.step, member.failed_at = "failed", NOWHERE, int(steps.iloc[0])
            return member
    saved = snapshots.steps_of(folder)
    if saved and saved[-1] > size.num_steps:
        raise ValueError(
            f"{folder} has done {saved[-1]} steps, more than the {size.num_steps} that are asked for. "
            "Ask for as many, or take a new folder."
        )
    demand_closed(folder, owner=owner)
    return member


def _check_same(member: Member, earlier: RunConfig, length: int, was: str, size: DataSize) -> None:
    """Refuse to go on with a run under other settings, for another length if that matters, or on other data."""
    before = earlier.flat()
    for name, value in member.config.flat().items():
        if name not in _RESUMABLE and before[name] != value:
            raise ValueError(
                f"{member.folder} holds a run with `{name}` {before[name]}, not {value}. Take a new folder."
            )
    if length not in (0, size.num_steps) and member.config.optimiser.schedule != "constant":
        raise ValueError(
            f"The learning rate of {member.folder} goes down to zero at step {length}, so the run cannot have "
            f"{size.num_steps} steps. Take a new folder, or a constant `schedule`."
        )
    found = data_hash(member.config.data)
    if was not in ("", found):  # samples had no hash at first
        raise ValueError(
            f"The data of {member.folder} have changed since it was begun: their hash was {was[:12]}, and is "
            f"{found[:12]}. Restore them, or take a new folder."
        )


def identity(config: RunConfig) -> str:
    """Return digits that runs have in common which go through the same states, however far.

    >>> from joma.engine.grid import recipe
    >>> base = recipe("small").base
    >>> identity(base) == identity(base.update({"steps": 7})), identity(base) == identity(base.update({"lr": 7}))
    (True, False)
    """
    return digest(config.without(_RESUMABLE))


def load_snapshots(members: Sequence[Member]) -> None:
    """Put the open runs where they go on: at the last step that all have saved, else each at its own last one.

    Those that have saved nothing start. The runs of a pack are saved one after the other. When the process dies between
    two of them some have a newer snapshot, and all have the one before it: from there they go on together, as if
    nothing had happened. Failed runs then keep their place in the pack, masked: the others do the same sums as before.
    """
    going = [member for member in members if member.is_open]
    choices = {member.name: snapshots.steps_of(member.folder) for member in going}
    for member, name in product(going, (snapshots.SNAPSHOTS, snapshots.CHECKPOINTS)):
        remove_leftovers(member.folder / name)
    is_damaged = True
    while is_damaged:
        saved = [set(steps) for steps in choices.values() if steps]
        common = set.intersection(*saved) if saved else set()
        targets = {name: max(common or steps) for name, steps in choices.items() if steps}
        damaged = [member for member in going if not _load(member, targets.get(member.name))]
        for member in damaged:
            choices[member.name].remove(targets[member.name])
        is_damaged = bool(damaged)
    if len({member.step for member in going}) == 1:
        for member in members:
            if member.status == "failed":
                _hold_place(member, going[0].step)


def _hold_place(member: Member, at: int) -> None:
    """Let a failed run take part at a step, with whatever weights it has left."""
    member.step, member.kept = at, ()
    for step in reversed(snapshots.steps_of(member.folder)):
        try:
            tensors = snapshots.load_snapshot(snapshots.path_of(member.folder, step)).tensors
        except DamagedSnapshotError:
            continue
        member.state = {**tensors, "step": torch.tensor(at), "failed_at": torch.tensor(member.failed_at)}
        return


def _load(member: Member, step: int | None) -> bool:
    """Take the snapshot of a step, or the start; False when it is damaged, which is recorded and set aside."""
    if step is None:
        member.step, member.state, member.kept = 0, None, ()
        return True
    path = snapshots.path_of(member.folder, step)
    try:
        snapshot = snapshots.load_snapshot(path)
        if snapshot.run != identity(member.config):
            raise DamagedSnapshotError(f"{path} belongs to another run: {snapshot.run}, not {identity(member.config)}.")
    except DamagedSnapshotError as error:
        message = f"{error} It is set aside, and the run goes on from the one before it, or starts again."
        member.writer.event(step, "snapshot", message, level="warning", evidence={"file": path.name})
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        path.replace(path.with_name(path.name + snapshots.DAMAGED))
        return False
    member.step, member.state, member.kept = step, snapshot.tensors, (step,)
    return True
