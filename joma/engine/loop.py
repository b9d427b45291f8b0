"""`train_pack`: the runs of a pack from wherever they stand to their end, measured, recorded and saved on the way.

The order of writing makes a death at any moment harmless. The rows of a run reach the disk before the snapshot that
stands behind them, so that whoever goes on from a snapshot finds every row up to it; rows behind it are measured again,
and the last write of a key wins. All runs of a pack are saved before the oldest snapshots go.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from joma.engine import snapshots
from joma.engine.measuring import LOSS, TRAINING, Values, measure, on_host
from joma.engine.plan import Pack
from joma.engine.resume import DIVERGED, KIND, Member, RunStatus, identity, inspect_run, place, placeholder
from joma.engine.snapshots import NUM_KEPT, Snapshot
from joma.engine.sources import DataSize, Source, data_hash, data_size, source_of
from joma.engine.step import NOT_FAILED, Stepper
from joma.measure.curve_effects import curve_effects
from joma.metrics import METRICS
from joma.models.batch import Parameters
from joma.models.decoder import Decoder
from joma.store import RunLockedError, open_run, read, read_events
from joma.store.record import plain


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C was pressed; a second one does not wait to be asked for.

    One that came behind the last question is raised at the end, so that whatever would come next is not begun.
    """
    asked = threading.Event()
    before: Any = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and before is signal.default_int_handler

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if is_ours:
        signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


REPORT_SECONDS = 1.0
"""Time between two reports of progress: reading losses waits for the device."""
SAVE_SHARE = 0.03
"""Part of the time that saving by the clock may take: large packs are saved less often than `snapshot_seconds`."""
NUM_WRITERS = 8
"""Snapshots that are written at a time while a GPU waits; each is in the host's memory up to three times."""
MANY_MEASUREMENTS = 30
"""Those of a run from which on they are compiled for, on a GPU."""
EFFECTS = "effects"
"""Kind of the events that describe the curves of a finished run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackProgress:
    """How far the runs that are trained together are."""

    names: tuple[str, ...]
    """Runs that go on."""
    step: int
    """Steps done."""
    num_steps: int
    tokens_per_second: float
    """Of all runs together, since the last report."""
    losses: dict[str, float]
    """Training losses by name, of the last step."""
    failed: tuple[str, ...] = ()
    """Runs of the pack that have diverged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How a run ended."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class PackResult:
    """How the runs of a pack ended, in their order."""

    runs: tuple[RunResult, ...]

    @property
    def num_failed(self) -> int:
        """Runs that diverged."""
        return sum(run.status == "failed" for run in self.runs)


Report = Callable[[PackProgress], None]
Take = Callable[[str, Parameters], None]
"""Gets the name of a run and its parameters at the end, with the run axis in front, on their device."""


def train_pack(
    pack: Pack,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
    take: Take | None = None,
    owner: str = "",
) -> PackResult:
    """Train the runs of a pack to their end, each recorded in the folder of its name below `folder`.

    Runs go on from their snapshots; those that have ended are left alone. Runs that stand at different steps are
    trained in groups, which join where they meet. `progress` is told about once a second how far they are. Ctrl-C saves
    the runs before it ends the call; a second one does not wait for that. `take` gets the parameters of every run that
    reaches its end; what it makes of them is all that is left, for then the end is not saved. `owner`, as of
    `open_run`, is for a pack that is trained elsewhere again when its machine is lost.
    """
    size = data_size(pack.config)
    members = [inspect_run(run, Path(folder), size, owner=owner) for run in pack.runs]
    going = [member for member in members if member.is_open]
    with interruptions() as is_asked_to_stop, ExitStack() as stack:
        if going:
            _open_records(going, size, owner, stack)
            place(members)
            _hold_places(members)
            caller = _Caller(report=progress or (lambda _: None), take=take, is_asked_to_stop=is_asked_to_stop)
            try:
                _train_groups(members, size, torch.device(device), caller)
            except KeyboardInterrupt:
                _leave_open(going)
                raise
    return PackResult(runs=tuple(_result(member, is_new=member in going) for member in members))


def _open_records(going: Sequence[Member], size: DataSize, owner: str, stack: ExitStack) -> None:
    """Open all records, or none."""
    shared = {"num_steps": size.num_steps, "steps_per_epoch": size.steps_per_epoch}
    try:
        for member in going:
            about = {**shared, "data_hash": data_hash(member.config.data)}
            record = open_run(member.folder, kind=KIND, config=member.config.as_dict(), about=about, owner=owner)
            stack.callback(record.abandon)  # when it could not even be closed, as on a full disk
            member.record = stack.enter_context(record)
    except RunLockedError:
        _leave_open(going)
        raise


def _leave_open(members: Sequence[Member]) -> None:
    """Let go of the folders; the runs stay unfinished, and the next call goes on with them."""
    for member in members:
        if member.record is not None:
            member.record.close("running")


def _hold_places(members: Sequence[Member]) -> None:
    """Keep failed runs in their place when the others go on all together from where the pack was."""
    going = [member for member in members if member.is_open]
    if len({member.step for member in going}) == 1:
        for member in members:
            if member.status is RunStatus.FAILED:
                placeholder(member, going[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Caller:
    """What whoever trains a pack wants to hear and to get, and whether it wants to stop."""

    report: Report
    take: Take | None
    is_asked_to_stop: Callable[[], bool]


def _train_groups(members: Sequence[Member], size: DataSize, device: torch.device, caller: _Caller) -> None:
    """Train those that are furthest behind until they meet the next ones, and so on to the end."""
    while going := [member for member in members if member.is_open]:
        start = min(member.step for member in going)
        further = [member.step for member in going if member.step > start]
        group = [member for member in members if member.step == start and member.status is not RunStatus.FINISHED]
        # Without a name for it: the next one must not be built while this one still holds its memory.
        _Trainer(group, size, device, caller).train(start, min(further, default=size.num_steps))


class _Trainer:
    """Trains runs that stand at one step."""

    def __init__(self, group: Sequence[Member], size: DataSize, device: torch.device, caller: _Caller) -> None:
        """Build the model, and put every run where it stands."""
        self._group = tuple(group)
        self._configs = [member.config for member in group]
        self._size = size
        self._training = self._configs[0].training
        self._caller = caller
        self._source: Source = source_of(self._configs, device)
        self._due = frozenset(self._training.due_steps(size.num_steps))
        self._stepper = self._started(device)
        self._saved_at = self._reported_at = monotonic()
        self._reported_step = 0
        self._save_seconds = 0.0

    def train(self, start: int, stop: int) -> None:
        """Train from one step to another; at the last one the runs are finished."""
        self._reported_step = start
        if start == 0:
            self._begin()
        for step in range(start, stop):
            self._stepper.advance(self._source.batch(step))
            self._attend_to(step + 1, stop)
            if not self._going:
                return
        if stop == self._size.num_steps:
            self._note_failures()
            for run, member in enumerate(self._group):
                if member.is_open:
                    self._finish(run, member)
        else:
            self._part(stop)

    def _started(self, device: torch.device) -> Stepper:
        stepper = Stepper(
            Decoder(self._configs[0].model),
            [config.seed for config in self._configs],
            [config.optimiser for config in self._configs],
            num_steps=self._size.num_steps,
            steps_per_epoch=self._size.steps_per_epoch,
            precision=self._training.precision,
            device=device,
        )
        for run, member in enumerate(self._group):
            if member.state is not None:
                stepper.load_run_state(run, member.state)
                member.state = None
        return stepper

    @property
    def _going(self) -> list[Member]:
        return [member for member in self._group if member.is_open]

    def _begin(self) -> None:
        """Measure the start, and on a CPU save it, so that there is always a snapshot that all runs have.

        Then all go on together, and sums are taken in the same order. A GPU would be held up by writing what follows
        from the seeds.
        """
        self._measure(0)
        if self._training.checkpoint_every is not None:
            self._keep(0)
        if self._source.device.type == "cpu":
            self._save(0)

    def _attend_to(self, step: int, stop: int) -> None:
        """Do whatever is due behind a step; nothing of it waits for the device unless it is."""
        every = self._training.checkpoint_every
        if step in self._due:
            self._measure(step)
        if every is not None and step % every == 0:
            self._keep(step)
        is_stopping = self._caller.is_asked_to_stop()
        is_taken = step == self._size.num_steps and self._caller.take is not None
        if is_stopping or (not is_taken and (step == stop or self._is_save_due(step))):
            self._save(step)
        if is_stopping:
            raise KeyboardInterrupt
        if monotonic() - self._reported_at >= REPORT_SECONDS or step == stop:
            self._tell(step)

    def _is_save_due(self, step: int) -> bool:
        every = self._training.snapshot_every
        if every is not None and step % every == 0:
            return True
        wanted = max(self._training.snapshot_seconds, self._save_seconds / SAVE_SHARE)
        return monotonic() - self._saved_at >= wanted

    def _measure(self, step: int) -> None:
        """Measure the runs that go on and add the numbers to their records."""
        self._note_failures()
        if not self._going:
            return
        stepper = self._stepper
        found = measure(
            stepper.model,
            stepper.parameters,
            self._source,
            self._training.precision,
            working=stepper.working_parameters,
            often=len(self._due) >= MANY_MEASUREMENTS,
        )
        if step > 0:
            found.append(Values(metric=LOSS, by_run=stepper.losses, site=TRAINING, kind="loss"))
        numbers = on_host(found)
        for run, member in enumerate(self._group):
            if member.is_open:
                for values, by_run in zip(found, numbers, strict=True):
                    _add(member, step, values, by_run[run])

    def _note_failures(self) -> None:
        """Wait for the device, and end the records of runs that have diverged."""
        for member, failed_at in zip(self._group, self._stepper.state.failed_at.tolist(), strict=True):
            if member.is_open and failed_at != NOT_FAILED:
                assert member.record is not None
                message = f"The loss or its gradient was no longer finite at step {failed_at}."
                member.record.event(failed_at, DIVERGED, message, level="error")
                member.record.close("failed")
                member.status, member.failed_at = RunStatus.FAILED, failed_at

    def _save(self, step: int) -> None:
        """Write rows, then snapshots of all runs, then remove the oldest ones."""
        self._note_failures()
        begun = monotonic()  # not before: steps that a GPU had queued are done by now, and are no part of saving
        for member in self._going:
            assert member.record is not None
            member.record.flush()
        self._write(step, self._stepper.run_state, snapshots.save_snapshot)
        for member in self._going:
            member.step, member.kept = step, tuple(sorted({*member.kept, step}))[-NUM_KEPT:]
            snapshots.prune(member.folder, member.kept)
        self._saved_at = monotonic()
        self._save_seconds = self._saved_at - begun

    def _keep(self, step: int) -> None:
        """Write the parameters alone, to be kept."""
        self._note_failures()
        self._write(step, self._own_parameters, snapshots.save_checkpoint)

    def _own_parameters(self, run: int) -> dict[str, Tensor]:
        named = self._stepper.parameters.items()
        return {name: tensor[run].detach().to("cpu", copy=True).contiguous() for name, tensor in named}

    def _write(
        self, step: int, state_of: Callable[[int], dict[str, Tensor]], save: Callable[[Path, Snapshot], Path]
    ) -> None:
        """Write a file of every run that goes on: one after the other, or beside a GPU several at a time."""

        def write(run: int) -> None:
            member = self._group[run]
            save(member.folder, Snapshot(step=step, tensors=state_of(run), run=identity(member.config)))

        going = [run for run, member in enumerate(self._group) if member.is_open]
        if self._source.device.type == "cpu":
            for run in going:
                write(run)
        else:
            with ThreadPoolExecutor(NUM_WRITERS) as writers:
                list(writers.map(write, going))

    def _part(self, step: int) -> None:
        """Take the runs out of this group, to go on in a larger one."""
        for run, member in enumerate(self._group):
            if member.is_open:
                member.step, member.state = step, self._stepper.run_state(run)

    def _finish(self, run: int, member: Member) -> None:
        """Describe the curves and end the record; of the snapshots the last one stays, unless somebody took the end."""
        assert member.record is not None
        take = self._caller.take
        if take is not None:
            take(member.name, {name: each[run : run + 1].detach() for name, each in self._stepper.parameters.items()})
        member.record.flush()
        member.step = self._size.num_steps
        _describe_curves(member)
        if take is None:
            snapshots.prune(member.folder, member.kept[-1:])
        member.record.close("finished")
        if take is not None:  # not before: one that is killed on the way goes on from them
            snapshots.prune(member.folder, ())
        member.status = RunStatus.FINISHED

    def _tell(self, step: int) -> None:
        """Report progress; this waits for the device."""
        now = monotonic()
        losses = self._stepper.losses.tolist()
        alive = [(member.name, loss) for member, loss in zip(self._group, losses, strict=True) if member.is_open]
        done = (step - self._reported_step) * len(alive) * self._source.tokens_per_step
        self._caller.report(
            PackProgress(
                names=tuple(name for name, _ in alive),
                step=step,
                num_steps=self._size.num_steps,
                tokens_per_second=done / max(now - self._reported_at, 1e-9),
                losses=dict(alive),
                failed=tuple(member.name for member in self._group if member.status is RunStatus.FAILED),
            )
        )
        self._reported_at, self._reported_step = now, step


def _add(member: Member, step: int, values: Values, number: float) -> None:
    assert member.record is not None
    member.record.add(
        step, values.metric, number, site=values.site, kind=values.kind, layer=values.layer, head=values.head
    )


def _describe_curves(member: Member) -> None:
    """Record effects and names of the run's curves as events; those of an earlier, shorter run are withdrawn."""
    record = member.record
    assert record is not None
    earlier = read_events(member.folder)
    for event in earlier[earlier["kind"] == EFFECTS].itertuples():
        if event.step != member.step:
            record.event(event.step, EFFECTS, event.message, site=event.site, evidence={"withdrawn": True})
    for each in curve_effects(read(member.folder)):
        evidence = {"metric": each.metric, "layer": each.layer, "name": each.name.value, **plain(each.effects)}
        message = f"{METRICS[each.metric].label}: {each.name.value}"
        record.event(member.step, EFFECTS, message, site=each.site, evidence=evidence)


def _result(member: Member, *, is_new: bool) -> RunResult:
    failed = member.status is RunStatus.FAILED
    return RunResult(
        name=member.name,
        folder=member.folder,
        status="failed" if failed else "finished",
        step=member.failed_at if failed else member.step,
        failed_at=member.failed_at if failed else None,
        is_new=is_new,
    )
