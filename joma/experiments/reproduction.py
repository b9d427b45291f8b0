"""`reproduce`: runs experiments one after another, judges them, and keeps everything in one folder.

The folder, for each experiment by its id:

- `reproduction.json`: the summary of all experiments in the folder, in the paper's order:
  `{"preset", "started", "seconds", "experiments": [record, ...]}`, where a record is
  `{"id", "title", "place", "question", "preset", "config", "seeds", "device", "seconds", "status", "reason", "advice",
  "part", "notes", "verdicts", "charts", "tables"}`: `status` is `done`, `not run`, `unfinished` or `failed`, `reason`
  says why it is not `done`, `advice` what whoever made a call that ran out of time may do, with an estimate for that
  call, `part` what of an `unfinished` one is shown (`120 of 270 runs`, empty if nothing), `notes` are sentences on how
  the result came about, `verdicts` are `Verdict.as_dict()`, `charts` and `tables` are names, empty unless all or a part
  is done. `device` is what computed it, which need not be what judged and drew it. Older records have no `advice`:
  there `reason` held both.
- `times.json`: how long pieces of work took on each device, by which those of later calls are foretold.
- `<id>/result.json`: its record with `facts`, `versions`, `git_commit` and `computed`, the time of the computation.
  Where several states of the software worked on it, versions and commits are joined, and `origins` has each by itself.
- `<id>/tables/<name>.parquet` and `.csv`; `<id>/figures/<chart>.png`, `.pdf` and `.svg`.
- `<id>/kept/`: results under the hash of their settings, from which everything above is made again.
- `<id>/work/`: training runs and whatever else an interrupted computation goes on from. What is finished is found
  there by records in JSON and Parquet alone: weights (`*.safetensors`) may be left behind when a folder is moved.

`record.read` returns the summary, `charts_of` the charts of one experiment as values.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import fsum, inf
from pathlib import Path
from typing import Any

from joma.engine.plan import device_named
from joma.errors import UnknownNameError, positive
from joma.experiments import record
from joma.experiments.attempt import Attempt
from joma.experiments.experiment import PRESETS
from joma.experiments.measured_times import FILE_NAME as TIMES
from joma.experiments.measured_times import MeasuredTimes, device_label
from joma.experiments.parts import labelled
from joma.experiments.progress import Pace, Progress
from joma.experiments.publication import published, published_part
from joma.experiments.record import Record, Reproduction, Status
from joma.experiments.registry import MODULES, experiment, find, usual_seconds
from joma.experiments.timetable import Timetable
from joma.figures.chart import Chart
from joma.store.files import demand_writable, remove_leftovers
from joma.store.lock import alone_in
from joma.store.record import now

SECONDS_OF_A_MINUTE = 60.0


def reproduce(
    ids: str | Sequence[str] | None = None,
    *,
    preset: str = "quick",
    out: Path | str,
    device: str | None = None,
    minutes: float | int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Reproduction:
    """Rebuild figures and tables of the paper, with controls and verdicts; the same call goes on where it stopped.

    Args:
        ids: Experiments by id, one or several; all when None. `joma reproduce --list` shows them.
        preset: `quick` for minutes on two CPU cores, `full` for the paper's settings on one GPU.
        out: Folder for everything; what it holds already is not computed again.
        device: `cpu`, `cuda` or one GPU, `cuda:0`; the GPU if there is one when None.
        minutes: Begin nothing that is not expected to end within this time, for jobs that have a limit. What is left is
            told, and the same call goes on with it. Judging and drawing what is finished takes seconds beyond it.
        progress: Called every few seconds with how far it is and about how long the rest takes.

    Returns:
        A record for each experiment asked for. One that cannot run here is `not run`, one for which `minutes` were too
        few, or that was begun elsewhere and cannot go on here, is `unfinished` and shows what is finished if it can,
        one that raised an exception is `failed`; in each case the others go on.
    """
    limit = inf if minutes is None else SECONDS_OF_A_MINUTE * float(positive("minutes", minutes))
    clock = Timetable(limit=limit)
    wanted, out = find(ids), Path(out)
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    demand_writable(out)
    there = str(device_named(device))
    with alone_in(out):
        remove_leftovers(out, at_any_depth=True)
        started = now()
        label = device_label(there)
        clock = replace(clock, device=label, times=MeasuredTimes(out / TIMES, label))
        attempts = [Attempt(id=name, preset=preset, out=out, device=there) for name in wanted]
        expected = {each.id: _expected(each) for each in attempts}
        pace = Pace(expected, progress or (lambda at: None), lambda: clock.seconds_left)
        timetable = replace(clock, expect=pace.expect)
        found: list[Record] = []
        for each in attempts:
            pace.begin()
            found.append(replace(each, timetable=timetable).run(pace.tell))
            record.save(_summary(out, preset, started, _with_earlier(out, found)))
            pace.end(is_done=found[-1].status is Status.DONE)
        return _summary(out, preset, started, found)


def charts_of(folder: Path | str, name: str) -> tuple[Chart, ...]:
    """Return the charts of an experiment, whole or labelled as a part, from the tables in a folder of `reproduce`."""
    [known] = find(name)
    place = Path(folder) / known
    return labelled(experiment(known).draw(published(place)), published_part(place))


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """An experiment, and whether it can run here."""

    id: str
    title: str
    place: str
    question: str
    missing: dict[str, str]
    """For each preset what is missing here, empty when nothing is."""
    seconds: dict[str, float]
    """For each preset about how long it takes on this device from its beginning; 0 where its result is kept."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON."""
        return asdict(self)


def available(
    ids: str | Sequence[str] | None = None, *, out: Path | str, device: str | None = None
) -> list[Availability]:
    """Return experiments with what each of them lacks here, in the folder `out` and on this device."""
    there = str(device_named(device))
    return [_availability(name, Path(out), there) for name in find(ids)]


def _availability(name: str, out: Path, device: str) -> Availability:
    attempts = {preset: Attempt(id=name, preset=preset, out=out, device=device) for preset in PRESETS}
    title, place, question = attempts[PRESETS[0]].words()
    missing = {preset: attempt.missing() for preset, attempt in attempts.items()}
    seconds = {preset: _expected(attempt) for preset, attempt in attempts.items()}
    return Availability(id=name, title=title, place=place, question=question, missing=missing, seconds=seconds)


def _expected(attempt: Attempt) -> float:
    """Return about how long an experiment takes, be some of it done before; nothing for one that is kept."""
    return 0.0 if attempt.is_kept() else usual_seconds(attempt.id, attempt.preset, attempt.device)


def _summary(out: Path, preset: str, started: str, records: Sequence[Record]) -> Reproduction:
    return Reproduction(
        folder=out,
        preset=preset,
        started=started,
        seconds=fsum(each.seconds for each in records),
        experiments=tuple(records),
    )


def _with_earlier(out: Path, records: Sequence[Record]) -> list[Record]:
    """Return the records with those of other experiments in the folder, in the paper's order."""
    try:
        earlier = record.read(out).experiments
    except (FileNotFoundError, ValueError):  # a summary is made from scratch where there is none to go on from
        earlier = ()
    known = {each.id: each for each in (*earlier, *records)}
    return [known[name] for name in MODULES if name in known]
