"""The record of a run: a folder that pandas, polars and DuckDB read without joma.

```text
run.json            schema version, kind, status, config, about, versions, git commit, times, files with checksums
metrics/*.parquet   step, site, kind, layer, head, metric, value, flag
events/*.parquet    step, site, level, kind, message, evidence (JSON)
run.lock, writer.json    only while it is written: the lock, and the process that holds it
```
Training, watching and scanning write the same record, and one reader serves all. A process killed at any moment leaves
complete files and loses the rows of the last few seconds (`flush_seconds`); the next `open_run` continues. The rows of
a step are written together, so whoever goes on from the last recorded step finds all of its rows or none. Until the run
is closed several Parquet files may hold the same key: of rows with the same step, site, head and metric, the one in
the file with the highest number counts. `read` takes care of that, and closing merges the files into one. `run.json`
lists the files with their checksums: one that is missing or damaged is refused when the run is read or continued.
"""

import atexit
import json
import os
import platform
import subprocess
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from math import isfinite
from operator import index
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, SupportsFloat, SupportsIndex, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from joma.store import tables
from joma.store.files import remove_leftovers, write_text
from joma.store.lock import WRITER_NAME, Lock
from joma.store.tables import EVENTS, METRICS, FileEntry, Table

if TYPE_CHECKING:
    import pandas
    import pyarrow

FILE_NAME = "run.json"
FORMAT = "joma run"
SCHEMA = 1
"""Version of the layout of the folder; a reader refuses a newer one."""

Kind = Literal["watch", "scan", "train"]
Status = Literal["running", "finished", "failed"]
Level = Literal["info", "warning", "error"]

PACKAGES = ("joma", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "lightning", "ray")
"""Packages whose versions are recorded."""
_GIT_SECONDS = 30.0
_STEPS = range(-(2**63), 2**63)
_INDICES = range(-(2**31), 2**31)


def _is_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time must name its zone")
    return text


Time = Annotated[str, AfterValidator(_is_time)]
"""ISO 8601, in UTC."""


class RunInfo(BaseModel):
    """What `run.json` says of a run. Values are plain JSON types."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, allow_inf_nan=True)

    folder: Path = Field(exclude=True)
    kind: str
    status: Status
    """`running` until the writer was closed, whether or not its process lives; then `finished` or `failed`."""
    started: Time
    ended: Time | None = None
    config: dict[str, Any] = {}
    about: dict[str, Any] = {}
    versions: dict[str, str] = {}
    git_commit: str | None = None
    """Commit of the folder in which the run was started, if that is a git repository."""
    resumed: list[Time] = []
    """When the run was opened again."""
    earlier: list[dict[str, Any]] = []
    """Config, versions and commit before a reopening that changed them, oldest first, each with its time."""
    files: dict[str, FileEntry] = {}
    """Files of rows by path; empty in a folder of version 0.1."""
    schema_version: int = Field(default=SCHEMA, alias="schema")


def info(folder: Path | str) -> RunInfo:
    """Read `run.json`; a `ValueError` says in one line what is wrong with it."""
    folder = Path(folder)
    path = folder / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{folder} is no run: it has no {FILE_NAME}. Pass the folder of a run; `joma.store.find_runs` lists them."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}). Restore it from a copy.") from None
    if not _is_record(content):
        raise ValueError(f"{path} was not written by joma. Pass the folder of a run.")
    schema = content["schema"]
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(
            f"{folder} was written by a newer joma: its schema is {schema!r}, this one reads up to {SCHEMA}. "
            "Update joma."
        )
    try:
        return RunInfo.model_validate(content | {"folder": folder})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: `{where}` is wrong ({first['msg']}). Restore it from a copy.") from None


def plain(value: Any, *, strict: bool = False) -> Any:
    """Turn a value into what JSON can hold: dataclasses and mappings become objects, arrays and sets become lists.

    Numbers that are not finite become words, since JSON has none. Anything unknown becomes its `str`, or a `TypeError`
    if it is `strict`.

    >>> plain({"lr": (1e-3, float("inf")), "out": Path("runs")})
    {'lr': [0.001, 'inf'], 'out': 'runs'}
    """
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    elif is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif hasattr(value, "tolist"):  # NumPy and PyTorch, without importing them
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry, strict=strict) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, strict=strict) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(entry, strict=strict) for entry in value), key=str)
    if value is None or isinstance(value, int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    if strict and not isinstance(value, float):
        raise TypeError(f"Only numbers, strings, lists and mappings of them have a hash that lasts, got {value!r}.")
    return str(value)


def now() -> str:
    """Return the time as records spell it, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Return the commit of the current folder; None where that is no git repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, encoding="ascii", timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# Writing


def open_run(
    folder: Path | str,
    *,
    kind: Kind,
    config: Any,
    about: Mapping[str, Any] | None = None,
    known_by: Collection[str] = (),
    flush_seconds: float = 10.0,
    owner: str = "",
) -> "RunWriter":
    """Open a run for writing: a new one, or one that was finished, interrupted or killed, which continues.

    Only one process writes at a time: while another does, this raises `RunLockedError`.

    Args:
        folder: Where the record is, or will be.
        kind: What writes it.
        config: Goes into `run.json`; any JSON, dataclasses too.
        about: The same, for facts that are no settings.
        known_by: Names of entries of `config` and `about` that make a run what it is: a folder that has other values
            there holds another run and is refused.
        flush_seconds: Rows are written so many seconds after the last time, when their step has ended; a killed process
            loses at most those. 0 writes every row at once.
        owner: Random digits of a task that is run again elsewhere when its machine is lost: a writer takes over at
            once from an earlier one with the same owner.

    >>> from tempfile import TemporaryDirectory
    >>> from joma.store import read
    >>> with TemporaryDirectory() as folder:
    ...     with open_run(folder, kind="watch", config={"every": 100}) as run:
    ...         run.add(0, "entropy", 2.3, site="layers.0.attention", kind="attention", layer=0)
    ...         run.add(100, "entropy", 1.9, site="layers.0.attention", kind="attention", layer=0)
    ...     read(folder)["value"].tolist()
    [2.3, 1.9]
    """
    folder = Path(folder)
    if kind not in get_args(Kind):
        raise ValueError(f"`kind` must be one of {', '.join(get_args(Kind))}, got {kind!r}.")
    if not flush_seconds >= 0:
        raise ValueError(f"`flush_seconds` must be 0 or more, got {flush_seconds}. 0 writes every row at once.")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, and a run is a folder. Take another name.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder, owner=owner)
    try:
        described = RunInfo(
            folder=folder,
            kind=kind,
            status="running",
            started=now(),
            config=plain(config),
            about=plain(about or {}),
            versions=versions(),
            git_commit=git_commit(),
        )
        if (folder / FILE_NAME).exists():
            described = _reopened(info(folder), described, known_by)
            check_rows(folder)
        for name in (FILE_NAME, WRITER_NAME):
            remove_leftovers(folder, name)
        _save(described)
        return RunWriter(described, lock, flush_seconds)
    except BaseException:
        lock.release()
        raise


class RunWriter:
    """The writer of a run, from `open_run`. Any thread may add rows; a forked process may not."""

    def __init__(self, info: RunInfo, lock: Lock, flush_seconds: float) -> None:
        """Write to a folder whose lock is held."""
        self.folder = info.folder
        self._info = info
        self._lock = lock
        self._pid = os.getpid()
        self._flush_seconds = flush_seconds
        self._due = monotonic() + flush_seconds
        self._metrics, self._events = (
            Table(info.folder, layout, info.files, self._list_files) for layout in (METRICS, EVENTS)
        )
        self._mutex = threading.RLock()
        self._open = True
        self._last_step = 0
        self._has_begun_again = False
        self._begins_again_at: int | None = None
        """Step from which on the next value replaces earlier rows."""
        atexit.register(self._at_exit)

    def add(
        self,
        step: SupportsIndex,
        metric: str,
        value: SupportsFloat,
        *,
        site: str = "",
        kind: str = "",
        layer: SupportsIndex = -1,
        head: SupportsIndex = -1,
        flag: str = "",
    ) -> None:
        """Add one measured value; of several for one (step, site, head, metric) the last counts. NaN and infinity stay.

        Args:
            step: Training step.
            metric: Name of the quantity.
            value: Its value.
            site: A module path or the name of a tensor.
            kind: What kind of site that is.
            layer: -1 without one.
            head: -1 for the mean over heads.
            flag: Why the value should not be trusted; empty for one that should.
        """
        step, layer, head = index(step), index(layer), index(head)
        if step not in _STEPS or layer not in _INDICES or head not in _INDICES:
            raise ValueError(f"`step` must fit 64 bits, `layer` and `head` 32 bits, got {step}, {layer} and {head}.")
        _demand_text(site=site, kind=kind, metric=metric, flag=flag)
        row = (step, site, kind, layer, head, metric, float(value), flag)
        self._append(self._metrics, row)

    def event(
        self,
        step: SupportsIndex,
        kind: str,
        message: str,
        *,
        level: Level = "info",
        site: str = "",
        evidence: Any = None,
    ) -> None:
        """Add something that happened: an alarm, an exception, a finding of an audit, with its evidence as JSON.

        An event that is added again, with the same step, site, kind and message, counts once.
        """
        if level not in get_args(Level):
            raise ValueError(f"`level` must be one of {', '.join(get_args(Level))}, got {level!r}.")
        if index(step) not in _STEPS:
            raise ValueError(f"`step` must fit 64 bits, got {step}.")
        _demand_text(kind=kind, message=message, site=site)
        content = json.dumps({} if evidence is None else plain(evidence), allow_nan=False)
        self._append(self._events, (index(step), site, level, kind, message, content))

    def begin_again(self, step: SupportsIndex) -> None:
        """Overwrite what earlier writers recorded from a step on, as of the next value.

        The earlier rows of a table go all at once, when the next value is written; a writer that adds no value replaces
        nothing. Once for a writer.
        """
        if index(step) not in _STEPS:
            raise ValueError(f"`step` must fit 64 bits, got {step}.")
        with self._mutex:
            self._demand_open()
            if self._has_begun_again:
                raise ValueError(f"The run {self.folder} was begun again already. Open it again to do so once more.")
            self._has_begun_again, self._begins_again_at = True, index(step)

    def end_step(self) -> None:
        """Say that a step has all its rows: they are written now if `flush_seconds` have passed since the last time.

        A row of another step says the same of the step before it.
        """
        with self._mutex:
            self._demand_open()
            if (self._metrics.rows or self._events.rows) and monotonic() >= self._due:
                self.flush()

    def flush(self) -> None:
        """Write what is in memory. When that fails (`DiskFullError`) the rows stay in memory for another try."""
        with self._mutex:
            self._demand_open()
            self._due = monotonic() + self._flush_seconds  # after a failure too: not at every row
            self._lock.demand()
            self._events.flush()  # first: who finds a step's values and goes on from there has its events too
            self._metrics.flush()
            # Whoever took over meanwhile may write other rows in place of these: nothing that builds upon them, as a
            # snapshot does, may follow.
            self._lock.demand()

    def close(self, status: Status = "finished") -> None:
        """Write what is left, merge the files, note the end in `run.json` and let go of the folder.

        When that fails the writer stays open, and closing can be tried again. Closing twice does nothing. The status
        `running` is for a run that another process will go on with.
        """
        if status not in get_args(Status):
            raise ValueError(f"`status` must be one of {', '.join(get_args(Status))}, got {status!r}.")
        with self._mutex:
            if not self._open:
                return
            ended = None if status == "running" else now()
            self.flush()
            self._metrics.merge()
            self._events.merge()
            _save(self._info.model_copy(update={"status": status, "ended": ended}))
            self.abandon()

    def abandon(self) -> None:
        """Let go of the folder and of the rows in memory; the next writer goes on with what is on disk."""
        with self._mutex:
            if self._open:
                self._lock.release()
                self._open = False
                atexit.unregister(self._at_exit)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close as finished, or as failed with the exception as an event."""
        if error is None:
            self.close()
            return
        try:
            if self._open:
                self.event(self._last_step, "exception", f"{type(error).__name__}: {error}", level="error")
            self.close("failed")
        except (OSError, ValueError) as second:
            error.add_note(f"The record of the run could not be closed: {second}")

    def _list_files(self) -> None:
        """Write `run.json` with the files that are there now."""
        self._lock.demand()
        self._info = self._info.model_copy(update={"files": self._events.files | self._metrics.files})
        _save(self._info)

    def _append(self, table: Table, row: tuple[Any, ...]) -> None:
        with self._mutex:
            self._demand_open()
            try:
                if row[0] != self._last_step:
                    self.end_step()
            finally:  # a full disk costs no row
                if table is self._metrics and self._begins_again_at is not None:
                    self._events.begin_again_at = self._metrics.begin_again_at = self._begins_again_at
                    self._begins_again_at = None
                table.rows.append(row)
                self._last_step = row[0]
            if self._flush_seconds == 0:
                self.flush()

    def _demand_open(self) -> None:
        if not self._open:
            raise ValueError(f"The run {self.folder} is closed. Open it again with open_run to add to it.")
        if os.getpid() != self._pid:
            raise ValueError(f"The run {self.folder} belongs to process {self._pid}, which forked. Write from there.")

    def _at_exit(self) -> None:
        """Save what a program that ends without closing has left; its run stays `running`, as interrupted."""
        if os.getpid() != self._pid:
            return
        try:
            self.flush()
        finally:
            self.abandon()


# Reading


def read(folder: Path | str | Iterable[Path | str]) -> "pandas.DataFrame":
    """Return a run's measured values: each (step, site, head, metric) once, sorted by step and layer.

    What `run.json` says is in `attrs["run"]`. Several folders give one table with a first column `run`, the shortest
    part of the path in which they differ, and `attrs["runs"]` by the same names. A run that is being written can be
    read at any moment.
    """
    return _read(folder, METRICS)


def read_events(folder: Path | str | Iterable[Path | str]) -> "pandas.DataFrame":
    """Return the events of a run in their order; `evidence` is JSON. Several folders as for `read`."""
    return _read(folder, EVENTS)


def find_runs(root: Path | str) -> list[Path]:
    """Return the folders of all runs at or below `root`, sorted; none is an empty list."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}. Pass a folder that holds runs.")
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in (METRICS.name, EVENTS.name)]
        if FILE_NAME in files and _may_be_run(Path(place)):
            found.append(Path(place))
    return sorted(found)


def _read(folder: Path | str | Iterable[Path | str], layout: tables.TableLayout) -> "pandas.DataFrame":
    if isinstance(folder, str | os.PathLike):
        about, table = _load(Path(folder), layout)
        frame = table.to_pandas()
        frame.attrs["run"] = _Description({"format": FORMAT} | about.model_dump(mode="json", by_alias=True))
        return frame
    import pandas

    folders = [Path(each) for each in folder]
    if not folders:
        raise ValueError("There is no run to read: the list of folders is empty. Pass at least one.")
    parts = [each.resolve().parts for each in folders]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [str(Path(*each[-length:])) for each in parts]
        if len(set(labels)) == len(set(parts)):
            break
    frames = [_read(each, layout) for each in folders]
    for name, frame in zip(labels, frames, strict=True):
        frame.insert(0, "run", name)
    runs = {name: frame.attrs.pop("run") for name, frame in zip(labels, frames, strict=True)}
    together = pandas.concat(frames, ignore_index=True)
    together.attrs["runs"] = _Description(runs)
    return together


def check_rows(folder: Path | str) -> None:
    """Refuse a run with a file of rows that is missing or damaged."""
    for layout in (METRICS, EVENTS):
        _load(Path(folder), layout)


def _load(folder: Path, layout: tables.TableLayout) -> "tuple[RunInfo, pyarrow.Table]":
    about = info(folder)
    while True:
        try:
            return about, tables.load(folder, layout, about.files)
        except FileNotFoundError as error:
            before, about = about, info(folder)
            if about.files == before.files:  # else a writer has just merged the files
                raise FileNotFoundError(
                    f"{error.filename} is missing, and {FILE_NAME} lists it. Restore it from a copy, or remove the "
                    "folder and start the run again."
                ) from None


class _Description(dict[str, Any]):
    """What `run.json` says, for the attributes of a table; pandas copies those deeply at every operation."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Description":
        return self


def _is_record(content: Any) -> bool:
    """Whether parsed JSON is a run's description, of whatever schema."""
    return isinstance(content, dict) and content.get("format") == FORMAT and "schema" in content


def _may_be_run(folder: Path) -> bool:
    """Whether `run.json` is ours; one that cannot be read counts, so that the reader hears of it."""
    try:
        return _is_record(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))
    except (ValueError, OSError, RecursionError):
        return True


def _save(about: RunInfo) -> None:
    content = {"format": FORMAT} | about.model_dump(mode="json", by_alias=True)
    write_text(about.folder / FILE_NAME, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _reopened(before: RunInfo, after: RunInfo, known_by: Collection[str]) -> RunInfo:
    """Describe a run that continues; refuse one of another kind, and one with other values in what it is known by."""
    if before.kind != after.kind:
        raise ValueError(f"{before.folder} holds a run of kind {before.kind!r}, not {after.kind!r}. Take a new folder.")
    was, comes = before.config | before.about, after.config | after.about
    others = [name for name in known_by if name in was and name in comes and was[name] != comes[name]]
    if others:
        there, here = (", ".join(f"`{name}` {values[name]}" for name in others) for values in (was, comes))
        raise ValueError(
            f"{before.folder} holds another run, with {there}; this one has {here}. "
            "Take another folder as `out`, or remove that one."
        )
    names = ("config", "versions", "git_commit")
    changed = any(getattr(before, name) != getattr(after, name) for name in names)
    software = {"until": after.started, **{name: getattr(before, name) for name in names}}
    return after.model_copy(
        update={
            "started": before.started,
            "files": before.files,
            "about": before.about | after.about,
            "resumed": [*before.resumed, after.started],
            "earlier": [*before.earlier, software] if changed else before.earlier,
        }
    )


def _demand_text(**texts: str) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"`{name}` must be a string, got {text!r}.")
