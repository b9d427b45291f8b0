"""Long work that is done once: its tables are stored under a hash of its settings, and found by the next call.

```text
STORE/
  HASH/              an artefact: a Parquet file for each table; artefact.json with key, provenance, checksums
  work/HASH/         scratch of work that has not finished; removed when its artefact is complete
```
The hash covers the kind of work and its key, never the commit, the device or the time: where and how an artefact was
computed is its provenance. A process killed at any moment leaves complete artefacts and the scratch of the task that it
was working on, and the next call continues from there.
"""

import gc
import json
import math
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, JsonValue

from joma.store import record
from joma.store.files import remove_leftovers, write_folder, write_text
from joma.store.lock import Lock

if TYPE_CHECKING:
    import pandas

FILE_NAME = "artefact.json"
SCHEMA = 1
"""Version of the layout of an artefact; part of every hash."""
COMPARABLE = 4.0
"""Tasks this many times shorter say little about a long one: most of their time is fixed cost."""
MOST_OF_A_CALL = 0.9
"""Share of a call that one task may take; something always comes before it."""
TRUSTED_SHARE = 0.1
"""Progress after which a task's own pace says how long it takes."""
SAVE_SECONDS = 5.0
"""How often the time spent is saved; a process that is killed forgets at most that much."""
_HASH_LETTERS = 16
_MINUTE = 60.0


class OutOfTime(Exception):
    """The work does not fit the time limit. Nothing is wrong: the same command continues."""


class DamagedArtefactError(ValueError):
    """An artefact cannot be read, or is not what was written."""


class Tables(dict[str, "pandas.DataFrame"]):
    """Tables by name, also as attributes: `Tables(curves=frame).curves`."""

    def __getattr__(self, name: str) -> "pandas.DataFrame":
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"There is no table {name!r}, only {', '.join(self)}.") from None


@dataclass(frozen=True)
class Workspace:
    """What a task works with."""

    folder: Path
    """Scratch of its own, which survives kills: what the task finds there, an earlier call has left."""
    device: str
    progress: Callable[[float, str], None]
    """Takes the share done, in [0, 1], and a few words on what is being done."""


@dataclass(frozen=True, kw_only=True)
class WorkProgress:
    """How far the tasks of a call are."""

    task: str
    doing: str
    share: float
    """Of all tasks, those found done included."""
    elapsed: float
    """Seconds since the call began."""
    remaining: float
    """Expected seconds until all tasks are done, by the rate measured on this device."""


@dataclass(frozen=True)
class Task:
    """One unit of work, such as one pack of runs.

    Args:
        name: Shown in progress and tables, e.g. "depth 5, 21 runs".
        key: Everything that decides the result: settings and hashes of data. A mapping, dataclass or pydantic model of
            plain values. Neither commit nor device, time or network.
        work: Computes the tables.
        seconds: How long it is expected to take on this device, until tasks of its kind have been measured.
        kind: What kind of work it is, e.g. "train"; part of the hash. Tasks of one kind share a measured rate. Without
            one, the name of the key's class.
        precision: Of the numbers it computes with, for its provenance.
        device: For work that does not use the store's device, e.g. "cpu".
    """

    name: str
    key: Any
    work: Callable[[Workspace], Mapping[str, "pandas.DataFrame"]]
    seconds: float | int
    kind: str = ""
    precision: str = "float64"
    device: str | None = None

    @property
    def hash(self) -> str:
        """The name under which its artefact is stored."""
        canonical = json.dumps([SCHEMA, self.rate_group, record.plain(self.key, strict=True)], sort_keys=True)
        return sha256(canonical.encode()).hexdigest()[:_HASH_LETTERS]

    @property
    def rate_group(self) -> str:
        """What it shares its measured rate with."""
        own = type(self.key)
        return self.kind or ("" if isinstance(self.key, Mapping) else f"{own.__module__}.{own.__qualname__}")


class Provenance(BaseModel):
    """Where and how an artefact was computed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    commit: str | None
    precision: str
    device: str
    versions: dict[str, str]
    seconds: float
    computed: str
    """When the work ended or was last seen alive; ISO 8601, UTC."""
    earlier: tuple["Provenance", ...] = ()
    """Calls that worked on it before and were interrupted, if they ran elsewhere or with other software."""


@dataclass(frozen=True)
class Artefact:
    """Finished work."""

    name: str
    key: Any
    """In plain JSON types."""
    tables: Tables
    provenance: Provenance


class _Description(BaseModel):
    """Content of `artefact.json`."""

    name: str
    kind: str
    key: JsonValue
    provenance: Provenance
    expected_seconds: float
    measured_seconds: float
    """In the call that finished it."""
    tables: dict[str, str]
    """SHA-256 of each table's file."""
    checksum: str = ""
    """SHA-256 of the other fields."""

    def own_checksum(self) -> str:
        return sha256(self.model_dump_json(exclude={"checksum"}).encode()).hexdigest()


class Store:
    """A folder of finished work, and what computes the rest within a time limit.

    >>> from tempfile import TemporaryDirectory
    >>> import pandas
    >>> task = Task("squares", {"upto": 3}, lambda place: {"t": pandas.DataFrame({"n": [0, 1, 4]})}, seconds=1.0)
    >>> with TemporaryDirectory() as folder:
    ...     computed = Store(folder).get(task)
    ...     found = Store(folder).get(task)
    >>> found.tables.t["n"].tolist(), found.provenance == computed.provenance
    ([0, 1, 4], True)
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        device: str = "cpu",
        minutes: float | int | None = None,
        progress: Callable[[WorkProgress], None] | None = None,
    ) -> None:
        """Use a folder, which is created when needed.

        Args:
            folder: Where artefacts are, or will be.
            device: Given to tasks.
            minutes: Only tasks that are expected to end within so many minutes from now are started; None for no limit.
            progress: Called while tasks are computed.
        """
        self.folder = Path(folder)
        self.device = device
        self.progress = progress or (lambda at: None)
        self._limit = math.inf if minutes is None else _MINUTE * minutes
        self.started = monotonic()
        self._left: dict[str, str] = {}
        self.used: list[Artefact] = []
        """What was found or computed in this call."""
        self._measured: list[_Description] = []
        for path in self.folder.glob(f"*/{FILE_NAME}"):
            with suppress(OSError, ValueError):  # damaged: it says so when it is asked for
                self._measured.append(_Description.model_validate_json(path.read_bytes()))

    @property
    def left(self) -> list[str]:
        """Names of the tasks that were asked for and did not fit the time limit."""
        return list(self._left.values())

    def get(self, task: Task) -> Artefact:
        """Return the artefact of a task, found or computed; raises `OutOfTime` if it may not start."""
        found = self.gather([task])
        if not found:
            needed = math.ceil(self.expected_seconds(task) / MOST_OF_A_CALL / _MINUTE)
            raise OutOfTime(
                f"{task.name}: this takes about {needed} min, longer than the time left. "
                f"Run the same command again with --minutes {needed} or more."
            )
        return found[0]

    def gather(self, tasks: Iterable[Task]) -> list[Artefact]:
        """Find or compute artefacts, in order, and return those that are finished.

        A task that would not end in time is passed over; `left` names it, and the next call goes on with it.
        """
        tasks = list(tasks)
        found = {task.hash: self.find(task) for task in tasks}
        for task in tasks:
            if found[task.hash] is None:
                if self.expected_seconds(task) > self.started + self._limit - monotonic():
                    self._left[task.hash] = task.name
                    continue
                waiting = [each for each in tasks if found[each.hash] is None and each.hash != task.hash]
                found[task.hash] = self._compute(task, self._meter(task, tasks, waiting))
            self._left.pop(task.hash, None)
            shutil.rmtree(self.scratch(task).parent, ignore_errors=True)
        finished = [artefact for task in tasks if (artefact := found[task.hash]) is not None]
        self.used += finished
        return finished

    def find(self, task: Task) -> Artefact | None:
        """Return the artefact of a task if there is one; a damaged one is refused with a warning."""
        try:
            return _read(self.folder / task.hash)
        except DamagedArtefactError as error:
            warnings.warn(f"{error} It will be computed again.", RuntimeWarning, stacklevel=2)
            return None

    def scratch(self, task: Task) -> Path:
        """Return the folder that a task works in, for those who want to know how far it is."""
        return self.folder / "work" / task.hash / "files"

    def expected_seconds(self, task: Task) -> float:
        """Return how long a task will take here, by the slowest comparable task of its kind on the same device."""
        group = (_device_name(task.device or self.device), task.rate_group)
        ratios = [
            done.measured_seconds / done.expected_seconds
            for done in self._measured
            if (done.provenance.device, done.kind) == group
            and done.expected_seconds > 0
            and COMPARABLE * done.expected_seconds >= task.seconds
        ]
        return task.seconds * max(ratios, default=1.0)

    def _meter(self, task: Task, tasks: Sequence[Task], waiting: Sequence[Task]) -> Callable[[float | int, str], None]:
        """Report that a task begins, and return what reports how far it is, and with it all tasks of a call."""
        expected, later = self.expected_seconds(task), math.fsum(map(self.expected_seconds, waiting))
        total = math.fsum(each.seconds for each in tasks)
        before = total - task.seconds - math.fsum(each.seconds for each in waiting)
        begun, first = monotonic(), math.nan  # the share that was reported first, which an earlier call may have done

        def report(share: float | int, doing: str) -> None:
            nonlocal first
            first = share if math.isnan(first) else first
            spent, gained, slowness = monotonic() - begun, share - first, 1.0
            if expected > 0:  # too little is done at first to say that it is fast
                slowness = spent / gained / expected if gained >= TRUSTED_SHARE else max(1.0, spent / expected)
            self.progress(
                WorkProgress(
                    task=task.name,
                    doing=doing,
                    share=min(max((before + share * task.seconds) / total, 0.0), 1.0) if total else share,
                    elapsed=monotonic() - self.started,
                    remaining=(max(1.0 - share, 0.0) * expected + later) * slowness,
                )
            )

        report(0.0, "")
        first = math.nan
        return report

    def _compute(self, task: Task, report: Callable[[float, str], None]) -> Artefact:
        scratch = self.scratch(task)
        scratch.mkdir(parents=True, exist_ok=True)
        lock = Lock(scratch.parent)
        try:
            with suppress(DamagedArtefactError):
                if (artefact := _read(self.folder / task.hash)) is not None:  # another process was quicker
                    return artefact
            device = _device_name(task.device or self.device)
            log = _WorkLog(scratch.parent / "spent.json", task.precision, device)

            def progress(share: float | int, doing: str) -> None:
                log.note()
                report(share, doing)

            begun = monotonic()
            try:
                tables = task.work(Workspace(scratch, task.device or self.device, progress))
            finally:
                log.save()
            remove_leftovers(self.folder, task.hash)
            seconds = monotonic() - begun
            self._measured.append(_write(self.folder / task.hash, task, tables, log.provenance(), seconds))
        finally:
            lock.release()
            _free_gpu_memory()
        artefact = _read(self.folder / task.hash)  # what is judged is what is stored, the first time as every other
        assert artefact is not None
        return artefact


def provenance(artefacts: Iterable[Artefact]) -> "pandas.DataFrame":
    """Return where and how artefacts were computed: a row for each, and for each interrupted call before."""
    import pandas

    rows = [
        {"task": each.name, **part.model_dump(exclude={"versions", "earlier"}), **part.versions}
        for each in artefacts
        for part in (*each.provenance.earlier, each.provenance)
    ]
    return pandas.DataFrame(rows, columns=None if rows else ["task", *Provenance.model_fields])


def _write(
    folder: Path, task: Task, tables: Mapping[str, "pandas.DataFrame"], provenance: Provenance, seconds: float
) -> _Description:
    import pyarrow
    from pyarrow import parquet

    files: dict[str, bytes] = {}
    for name, frame in tables.items():
        if not re.fullmatch(r"[A-Za-z0-9_][\w-]*", name):
            raise ValueError(f"The name of a table must be letters, digits, - and _, got {name!r}.")
        sink = pyarrow.BufferOutputStream()
        bare = frame.copy(deep=False)
        bare.attrs = {}  # such as what a run's description says, which is no part of the result
        table = pyarrow.Table.from_pandas(bare, preserve_index=False)
        parquet.write_table(table, sink, compression="zstd")
        files[f"{name}.parquet"] = sink.getvalue().to_pybytes()
    description = _Description(
        name=task.name,
        kind=task.rate_group,
        key=record.plain(task.key, strict=True),
        provenance=provenance,
        expected_seconds=task.seconds,
        measured_seconds=seconds,
        tables={name: sha256(files[f"{name}.parquet"]).hexdigest() for name in tables},
    )
    description.checksum = description.own_checksum()
    files[FILE_NAME] = description.model_dump_json(indent=1).encode() + b"\n"
    write_folder(folder, files)
    return description


def _read(folder: Path) -> Artefact | None:
    """Read an artefact; None where there is none, `DamagedArtefactError` where it is not what was written."""
    from pyarrow import BufferReader, parquet

    if not folder.exists():
        return None
    try:
        description = _Description.model_validate_json((folder / FILE_NAME).read_bytes())
        contents = {name: (folder / f"{name}.parquet").read_bytes() for name in description.tables}
    except (FileNotFoundError, ValueError) as error:  # not other errors of a disk: it may be well tomorrow
        raise DamagedArtefactError(f"{folder} is damaged ({' '.join(str(error).split())}).") from None
    checksums = {name: sha256(content).hexdigest() for name, content in contents.items()}
    if description.checksum != description.own_checksum() or checksums != description.tables:
        raise DamagedArtefactError(f"{folder} is damaged: it does not match its checksums.")
    tables = Tables({name: parquet.read_table(BufferReader(each)).to_pandas() for name, each in contents.items()})
    return Artefact(description.name, description.key, tables, description.provenance)


class _WorkLog:
    """Time spent on a task over all calls, with the software and device of each, kept in a file."""

    def __init__(self, path: Path, precision: str, device: str) -> None:
        self._path = path
        place: dict[str, Any] = {"commit": record.git_commit(), "versions": record.versions()}
        place |= {"precision": precision, "device": device}
        try:
            before = [Provenance.model_validate(each) for each in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            before = []
        here = [each for each in before if all(getattr(each, name) == value for name, value in place.items())]
        self._place = Provenance(**place, seconds=math.fsum(each.seconds for each in here), computed="")
        self._earlier = tuple(each for each in before if each not in here)
        self._begun = self._saved = monotonic()

    def note(self) -> None:
        if monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        self._saved = monotonic()
        content = [each.model_dump(mode="json") for each in (*self._earlier, self._own())]
        write_text(self._path, json.dumps(content, indent=1) + "\n")

    def provenance(self) -> Provenance:
        return self._own().model_copy(update={"earlier": self._earlier})

    def _own(self) -> Provenance:
        spent = self._place.seconds + monotonic() - self._begun
        return self._place.model_copy(update={"seconds": spent, "computed": record.now()})


@cache
def _device_name(device: str) -> str:
    """Return a device as provenance names it: a GPU with its model."""
    if device == "cpu":
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


def _free_gpu_memory() -> None:
    """Let the next task find as much free memory as this one did."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
