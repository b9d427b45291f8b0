"""`train_pack`: the runs of a pack from wherever they stand to their end, measured, recorded and saved on the way.

The order of writing makes a death at any moment harmless. The rows of a run reach the disk before the snapshot of
their step, so that whoever goes on from a snapshot finds every row up to it; later rows are measured again,
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
from joma.engine.measuring import (
    LOSS,
    TRAINING,
    Values,
    gradient_spectra,
    gradients_and_changes,
    gram_drifts,
    is_gated,
    measure,
    on_host,
    starts_of,
)
from joma.engine.plan import Pack
from joma.engine.resume import DIVERGED, EFFECTS, KIND, Member, TrainedRun, identity, inspect_run, load_snapshots
from joma.engine.snapshots import NUM_KEPT, Snapshot
from joma.engine.sources import DataSize, data_hash, data_size, source_of
from joma.engine.step import NOT_FAILED, Stepper, on_cpu
from joma.measure.effects import curve_effects
from joma.metrics import METRICS
from joma.models.batch import Parameters
from joma.models.decoder import EMBEDDING, Decoder
from joma.store import RunLockedError, open_run, read, read_events
from joma.store.record import plain


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C was pressed; a second one does not wait to be asked for.

    One that came after the last question is raised at the end, so that whatever would come next is not begun.
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
) -> tuple[TrainedRun, ...]:
    """Train the runs of a pack to their end, each recorded in the folder of its name below `folder`, and say how.

    Runs go on from their snapshots; those that have ended are left alone. Runs that have done different numbers of
    steps are trained in groups, which join where they meet. Ctrl-C saves the runs before it ends the call; a second one
    does not wait for that.

    Args:
        pack: The runs.
        folder: Folder of the runs' folders.
        device: Where to train.
        progress: Called about once a second with how far the runs are.
        take: Gets the parameters of every run that reaches its end, which is then not saved.
        owner: As of `open_run`: names a pack that another machine goes on with when one is lost.
    """
    size = data_size(pack.config)
    members = [inspect_run(run, Path(folder), size, owner=owner) for run in pack.runs]
    going = [member for member in members if member.is_open]
    with interruptions() as is_interrupted, ExitStack() as stack:
        if going:
            _open_records(going, size, owner, stack)
            load_snapshots(members)
            report = progress or (lambda _: None)
            try:
                while waiting := [member for member in members if member.is_open]:
                    # Those with the fewest steps, until they meet the next ones, and so on to the end.
                    start = min(member.step for member in waiting)
                    stop = min((member.step for member in waiting if member.step > start), default=size.num_steps)
                    group = [member for member in members if member.step == start and member.status != "finished"]
                    # Without a name for it: the next one must not be built while this one still holds its memory.
                    _Trainer(group, size, torch.device(device), report, take, is_interrupted).train(start, stop)
            except KeyboardInterrupt:
                _close_unfinished(going)
                raise
    return tuple(member.result(is_new=member in going) for member in members)


def _open_records(going: Sequence[Member], size: DataSize, owner: str, stack: ExitStack) -> None:
    """Open all records, or none."""
    try:
        for member in going:
            about = {
                "num_steps": size.num_steps,
                "steps_per_epoch": size.steps_per_epoch,
                "data_hash": data_hash(member.config.data),
            }
            record = open_run(member.folder, kind=KIND, config=member.config.as_dict(), about=about, owner=owner)
            stack.callback(record.abandon)  # when it could not even be closed, as on a full disk
            member.record = stack.enter_context(record)
    except RunLockedError:
        _close_unfinished(going)
        raise


def _close_unfinished(members: Sequence[Member]) -> None:
    """Let go of the folders; the next call goes on with the runs."""
    for member in members:
        if member.record is not None:
            member.record.close("running")


class _Trainer:
    """Trains runs that have done the same number of steps."""

    def __init__(
        self,
        group: Sequence[Member],
        size: DataSize,
        device: torch.device,
        report: Report,
        take: Take | None,
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Build the model, and put every run where it goes on."""
        configs = [member.config for member in group]
        self._group, self._num_steps = tuple(group), size.num_steps
        self._send, self._take, self._is_interrupted = report, take, is_interrupted
        self._training = configs[0].training
        self._source = source_of(configs, device)
        self._due = frozenset(self._training.due_steps(size.num_steps))
        self._stepper = Stepper.of(configs, size.num_steps, size.steps_per_epoch, device=device)
        for run, member in enumerate(group):
            if member.state is not None:
                self._stepper.load_run_state(run, member.state)
                member.state = None
        own, decoder = self._training, Decoder(configs[0].model)
        seeds, like = [config.seed for config in configs], self._stepper.state.parameters
        self._starts = starts_of(decoder, seeds, like, lower=own.measure_extra, embedding=own.measure_states)
        """Starts of the matrices whose change is measured."""
        self._saved_at = self._reported_at = monotonic()
        self._reported_step, self._save_seconds = group[0].step, 0.0

    @property
    def _going(self) -> list[tuple[int, Member]]:
        """Runs that go on, with their place in the group."""
        return [(run, member) for run, member in enumerate(self._group) if member.is_open]

    def train(self, start: int, stop: int) -> None:
        """Train from one step to another; at the last one the runs are finished."""
        if start == 0:
            self._measure(0)
            if self._training.checkpoint_every is not None:
                self._keep(0)
            # So there is always a snapshot that all runs have: they go on together, and sums are taken in the same
            # order. A GPU would be held up by writing what follows from the seeds.
            if self._source.device.type == "cpu":
                self._save(0)
        for step in range(start, stop):
            self._stepper.advance(self._source.batch(step))
            self._after_step(step + 1, stop)
            if not self._going:
                return
        if stop == self._num_steps:
            self._note_failures()
            for run, member in self._going:
                self._finish(run, member)
        else:  # they go on in a larger group
            for run, member in self._going:
                member.step, member.state = stop, self._stepper.run_state(run)

    def _after_step(self, step: int, stop: int) -> None:
        """Do whatever is due after a step; nothing of it waits for the device unless it is."""
        training = self._training
        if step in self._due:
            self._measure(step)
        if training.checkpoint_every is not None and step % training.checkpoint_every == 0:
            self._keep(step)
        is_stopping = self._is_interrupted()
        is_taken = step == self._num_steps and self._take is not None
        wait = max(training.snapshot_seconds, self._save_seconds / SAVE_SHARE)
        is_due = step == stop or monotonic() - self._saved_at >= wait
        is_due = is_due or (training.snapshot_every is not None and step % training.snapshot_every == 0)
        if is_stopping or (is_due and not is_taken):
            self._save(step)
        if is_stopping:
            raise KeyboardInterrupt
        if monotonic() - self._reported_at >= REPORT_SECONDS or step == stop:
            self._report(step)

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
            self._training,
            working=stepper.working_parameters,
            often=len(self._due) >= MANY_MEASUREMENTS,
        )
        found += gram_drifts(stepper.parameters, self._starts)
        lower = {name: start for name, start in self._starts.items() if name != EMBEDDING}
        num_batches, gated = self._training.gradient_batches, is_gated(stepper.model)
        if lower or num_batches:
            gradients = stepper.gradients(self._source.batch(step))
            found += gradients_and_changes(gradients, stepper.parameters, lower, gated=gated)
            if num_batches:
                found += gradient_spectra(gradients, gated=gated, ranked=lower)
        if num_batches > 1:
            gradients = stepper.gradients(*(self._source.batch(step + ahead) for ahead in range(num_batches)))
            found += gradient_spectra(gradients, gated=gated, prefix="mean_gradient")
        if step > 0:
            found.append(Values(metric=LOSS, by_run=stepper.losses, site=TRAINING, kind="loss"))
        for each, numbers in zip(found, on_host(found), strict=True):
            for run, member in self._going:
                member.writer.add(
                    step, each.metric, numbers[run], site=each.site, kind=each.kind, layer=each.layer, head=each.head
                )

    def _note_failures(self) -> None:
        """Wait for the device, and end the records of runs that have diverged."""
        for member, failed_at in zip(self._group, self._stepper.state.failed_at.tolist(), strict=True):
            if member.is_open and failed_at != NOT_FAILED:
                message = f"The loss or its gradient was no longer finite at step {failed_at}."
                member.writer.event(failed_at, DIVERGED, message, level="error")
                member.writer.close("failed")
                member.status, member.failed_at = "failed", failed_at

    def _save(self, step: int) -> None:
        """Write rows, then snapshots of all runs, then remove the oldest ones."""
        self._note_failures()
        begun = monotonic()  # not before: steps that a GPU had queued are done by now, and are no part of saving
        for _, member in self._going:
            member.writer.flush()
        self._write(step, self._stepper.run_state, snapshots.SNAPSHOTS)
        for _, member in self._going:
            member.step, member.kept = step, tuple(sorted({*member.kept, step}))[-NUM_KEPT:]
            snapshots.prune(member.folder, member.kept)
        self._saved_at = monotonic()
        self._save_seconds = self._saved_at - begun

    def _keep(self, step: int) -> None:
        """Write the parameters alone, to be kept."""
        self._note_failures()
        named = self._stepper.parameters.items()
        self._write(step, lambda run: {name: on_cpu(each[run]) for name, each in named}, snapshots.CHECKPOINTS)

    def _write(self, step: int, state_of: Callable[[int], dict[str, Tensor]], kind: str) -> None:
        """Write a file of every run that goes on: one after the other, or with a GPU several at a time."""

        def write(place: tuple[int, Member]) -> None:
            run, member = place
            snapshot = Snapshot(step=step, tensors=state_of(run), run=identity(member.config))
            snapshots.save_snapshot(member.folder, snapshot, kind)

        if self._source.device.type == "cpu":
            for place in self._going:
                write(place)
        else:
            with ThreadPoolExecutor(NUM_WRITERS) as writers:
                list(writers.map(write, self._going))

    def _finish(self, run: int, member: Member) -> None:
        """Describe the curves and end the record; of the snapshots the last one stays, unless somebody took the end."""
        take = self._take
        if take is not None:
            take(member.name, {name: each[run : run + 1].detach() for name, each in self._stepper.parameters.items()})
        member.writer.flush()
        member.step = self._num_steps
        _describe_curves(member)
        if take is None:
            snapshots.prune(member.folder, member.kept[-1:])
        member.writer.close("finished")
        if take is not None:  # not before: one that is killed on the way goes on from them
            snapshots.prune(member.folder, ())
        member.status = "finished"

    def _report(self, step: int) -> None:
        """Report progress; this waits for the device."""
        now, losses, data = monotonic(), self._stepper.losses.tolist(), self._source.data
        done = (step - self._reported_step) * len(self._going) * data.batch * data.length
        self._send(
            PackProgress(
                names=tuple(member.name for _, member in self._going),
                step=step,
                num_steps=self._num_steps,
                tokens_per_second=done / max(now - self._reported_at, 1e-9),
                losses={member.name: losses[run] for run, member in self._going},
                failed=tuple(member.name for member in self._group if member.status == "failed"),
            )
        )
        self._reported_at, self._reported_step = now, step


def _describe_curves(member: Member) -> None:
    """Record effects and names of the run's curves as events; those of an earlier, shorter run are withdrawn."""
    record = member.writer
    earlier = read_events(member.folder)
    for event in earlier[earlier["kind"] == EFFECTS].itertuples():
        if event.step != member.step:
            record.event(event.step, EFFECTS, event.message, site=event.site, evidence={"withdrawn": True})
    for each in curve_effects(read(member.folder)):
        evidence = {"metric": each.metric, "layer": each.layer, "name": each.name.value, **plain(each.effects)}
        message = f"{METRICS[each.metric].label}: {each.name.value}"
        record.event(member.step, EFFECTS, message, site=each.site, evidence=evidence)
