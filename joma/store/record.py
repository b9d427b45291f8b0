"""The record of a run on disk: a folder that pandas, polars and DuckDB read without joma.

```text
run.json            schema version, kind, status, config, about, versions, git commit, times
metrics/*.parquet   step, site, kind, layer, head, metric, value, flag
events/*.parquet    step, site, level, kind, message, evidence (JSON)
run.lock            only while it is written: the writing process
```
A process killed at any moment leaves whole files and loses the rows of the last few seconds (`flush_seconds`); the next
`open_run` goes on. Until the run is closed the parts may hold a key twice: of rows with the same step, site, head and
metric, the one in the part with the highest number counts. `read` sees to that, and closing merges the parts into one.
A run that is begun again at an earlier step (`begin_again`) takes away what was recorded from that step on.
"""

import atexit
import json
import os
import platform
import subprocess
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from math import isfinite
from operator import index
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex, get_args

from joma.store import tables
from joma.store.files import remove_leftovers, write_text
from joma.store.lock import LOCK_NAME, Lock
from joma.store.tables import EVENTS, METRICS, Table

if TYPE_CHECKING:
    import pandas

FILE_NAME = "run.json"
FORMAT = "joma run"
SCHEMA = 1
"""Version of the layout of the folder; a reader refuses a newer one."""

Kind = Literal["watch", "scan", "train"]
Status = Literal["running", "finished", "failed"]

PACKAGES = ("joma", "torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "lightning", "ray")
"""Packages whose versions are written down."""
_GIT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What `run.json` says of a run. Values are plain JSON types; times are ISO 8601 in UTC."""

    folder: Path
    kind: str
    status: str
    """`running` until the writer was closed, whether or not its process lives; then `finished` or `failed`."""
    started: str
    ended: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    """Commit of the folder in which the run was started, if that is a git repository."""
    resumed: list[str] = field(default_factory=list)
    """When the run was opened again."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """Config, versions and commit before a reopening that changed them, oldest first, each with its time."""
    schema: int = SCHEMA


def load(folder: Path | str) -> RunInfo:
    """Read `run.json`, refusing what is no run and what a newer joma wrote."""
    folder = Path(folder)
    try:
        record = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{folder} is no run: it has no {FILE_NAME}. Pass the folder of a run; find_runs lists them."
        ) from None
    except ValueError as error:
        raise ValueError(f"{folder / FILE_NAME} is not JSON ({error}). Restore it from a copy.") from None
    if not is_record(record):
        raise ValueError(f"{folder / FILE_NAME} was not written by joma. Pass the folder of a run.")
    schema = record["schema"]
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ValueError(
            f"{folder} was written by a newer joma: its schema is {schema}, this one reads up to {SCHEMA}. Update joma."
        )
    missing = {"kind", "status", "started"} - record.keys()
    if missing:
        raise ValueError(f"{folder / FILE_NAME} lacks {', '.join(sorted(missing))}. Restore it from a copy.")
    known = {each.name for each in fields(RunInfo)}
    return RunInfo(**{key: value for key, value in record.items() if key in known} | {"folder": folder})


def save(info: RunInfo) -> None:
    """Write `run.json`, whole or not at all."""
    record = {each.name: getattr(info, each.name) for each in fields(info) if each.name != "folder"}
    write_text(info.folder / FILE_NAME, json.dumps({"format": FORMAT} | record, indent=1, allow_nan=False) + "\n")


def is_record(record: Any) -> bool:
    """Whether parsed JSON is a run's description, of whatever schema."""
    return isinstance(record, dict) and record.get("format") == FORMAT and "schema" in record


def started(folder: Path, kind: str, config: Any, about: Mapping[str, Any] | None) -> RunInfo:
    """Describe a run that begins now."""
    return RunInfo(
        folder=folder,
        kind=kind,
        status="running",
        started=now(),
        config=plain(config),
        about=plain(about or {}),
        versions=versions(),
        git_commit=git_commit(),
    )


def reopened(
    info: RunInfo, kind: str, config: Any, about: Mapping[str, Any] | None, known_by: Collection[str] = ()
) -> RunInfo:
    """Describe a run that goes on now; refuse one of another kind, and one of other values in what it is known by."""
    if kind != info.kind:
        raise ValueError(f"{info.folder} holds a run of kind {info.kind!r}, not {kind!r}. Take a new folder.")
    now = started(info.folder, kind, config, about)
    _demand_same(info, now, known_by)
    before = {name: getattr(info, name) for name in ("config", "versions", "git_commit")}
    changed = any(getattr(now, name) != value for name, value in before.items())
    return replace(
        now,
        started=info.started,
        about=info.about | now.about,
        resumed=[*info.resumed, now.started],
        earlier=[*info.earlier, {"until": now.started, **before}] if changed else info.earlier,
    )


def _demand_same(earlier: RunInfo, now: RunInfo, known_by: Collection[str]) -> None:
    """Refuse to go on with another run; what only one of them tells does not set them apart."""
    was, comes = earlier.config | earlier.about, now.config | now.about
    others = [name for name in known_by if name in was and name in comes and was[name] != comes[name]]
    if others:
        there, here = (", ".join(f"`{name}` {values[name]}" for name in others) for values in (was, comes))
        raise ValueError(
            f"{earlier.folder} holds another run, with {there}; this one has {here}. "
            "Take another folder as `out`, or remove that one."
        )


def ended(info: RunInfo, status: Status) -> RunInfo:
    """Describe the run as it ends now."""
    if status not in get_args(Status):
        raise ValueError(f"`status` must be one of {', '.join(get_args(Status))}, got {status!r}.")
    return replace(info, status=status, ended=None if status == "running" else now())


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: dataclasses and mappings become objects, arrays and sets become lists.

    Numbers that are not finite become words, since JSON has none, and anything unknown becomes its `str`.

    >>> plain({"lr": (1e-3, float("inf")), "out": Path("runs")})
    {'lr': [0.001, 'inf'], 'out': 'runs'}
    """
    if isinstance(value, Enum):
        value = value.value
    elif is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif hasattr(value, "tolist"):  # NumPy and PyTorch, without importing them
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(entry) for entry in value), key=str)
    exact = value is None or isinstance(value, int | str) or (isinstance(value, float) and isfinite(value))
    return value if exact else str(value)


def now() -> str:
    """Return the time as records spell it, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def versions() -> dict[str, str]:
    """Return what is installed, which a process looks up once: a grid opens many records."""
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
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


Level = Literal["info", "warning", "error"]
_STEPS = range(-(2**63), 2**63)
_INDICES = range(-(2**31), 2**31)


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
    """Open a run for writing: a new one, or one that was finished, interrupted or killed, which goes on where it was.

    Only one writer at a time: while another lives this raises `RunLockedError`. `config` and `about` go into
    `run.json` (any JSON, dataclasses too). A run that has other values in the entries it is `known_by`, names of those
    of `config` and `about`, is another run: it is refused, and left as it is. Rows are written `flush_seconds` after
    the last time, or by `flush`; a process that is killed loses at most those seconds. `owner` is for tasks that are
    run again elsewhere when their machine is lost: a writer takes over at once from an earlier one with the same
    owner, any random digits.

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
        if (folder / FILE_NAME).exists():
            info = reopened(load(folder), kind, config, about, known_by)
        else:
            info = started(folder, kind, config, about)
        remove_leftovers(folder, FILE_NAME)
        remove_leftovers(folder, LOCK_NAME)
        save(info)
        return RunWriter(info, lock, flush_seconds)
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
        self._metrics = Table(info.folder, METRICS)
        self._events = Table(info.folder, EVENTS)
        self._mutex = threading.RLock()
        self._open = True
        self._last_step = 0
        self._has_begun_again = False
        self._begins_again_at: int | None = None
        """Step from which on the next value takes the place of earlier rows."""
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

        `site` is a module path or the name of a tensor, `layer` -1 without one, `head` -1 for the mean over heads,
        `flag` says why the value is not to be trusted.
        """
        step, layer, head = index(step), index(layer), index(head)
        if step not in _STEPS or layer not in _INDICES or head not in _INDICES:
            raise ValueError(f"`step` must fit 64 bits, `layer` and `head` 32 bits, got {step}, {layer} and {head}.")
        _demand_text(site=site, kind=kind, metric=metric, flag=flag)
        row = (step, site, kind, layer, head, metric, float(value), flag)
        with self._mutex:
            if self._begins_again_at is not None:
                self._events.begin_again(self._begins_again_at)
                self._metrics.begin_again(self._begins_again_at)
                self._begins_again_at = None
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

        An event that is told again, with the same step, site, kind and message, counts once.
        """
        if level not in get_args(Level):
            raise ValueError(f"`level` must be one of {', '.join(get_args(Level))}, got {level!r}.")
        if index(step) not in _STEPS:
            raise ValueError(f"`step` must fit 64 bits, got {step}.")
        _demand_text(kind=kind, message=message, site=site)
        told = json.dumps({} if evidence is None else plain(evidence), allow_nan=False)
        self._append(self._events, (index(step), site, level, kind, message, told))

    def begin_again(self, step: SupportsIndex) -> None:
        """Put what this writer adds in the place of what was recorded before it, from a step on; other rows stay.

        The earlier values and events go when the next value is written, those of a table all at once. A writer that
        adds no value replaces nothing. Once for a writer: what it has replaced and what it has kept is its own then.
        """
        if index(step) not in _STEPS:
            raise ValueError(f"`step` must fit 64 bits, got {step}.")
        with self._mutex:
            self._demand_open()
            if self._has_begun_again:
                raise ValueError(f"The run {self.folder} was begun again already. Open it again to do so once more.")
            self._has_begun_again, self._begins_again_at = True, index(step)

    def flush(self) -> None:
        """Write what is in memory. When that fails (`DiskFullError`) the rows stay in memory for another try."""
        with self._mutex:
            self._demand_open()
            self._due = monotonic() + self._flush_seconds  # after a failure too: not at every row
            self._lock.renew()
            self._events.flush()  # first: who finds a step's values and goes on behind them has its events too
            self._metrics.flush()
            # Whoever took over meanwhile has not seen this part and may write another in its place: nothing that
            # builds upon these rows, as a snapshot does, may follow.
            self._lock.demand()

    def close(self, status: Status = "finished") -> None:
        """Write what is left, merge the parts, note the end in `run.json` and let go of the folder.

        When that fails the writer stays open, and closing can be tried again. Closing twice does nothing. The status
        `running` is for a run that another process will go on with.
        """
        with self._mutex:
            if not self._open:
                return
            info = ended(self._info, status)
            self.flush()
            self._metrics.compact()
            self._events.compact()
            save(info)
            self._let_go()

    def abandon(self) -> None:
        """Let go of the folder and of the rows in memory, for whoever cannot write them; nothing to do when closed.

        The run stays as it is on disk, and the next writer goes on with it.
        """
        with self._mutex:
            if self._open:
                self._let_go()

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

    def _append(self, table: Table, row: tuple[Any, ...]) -> None:
        with self._mutex:
            self._demand_open()
            table.append(row)
            self._last_step = row[0]
            if monotonic() >= self._due:
                self.flush()

    def _demand_open(self) -> None:
        if not self._open:
            raise ValueError(f"The run {self.folder} is closed. Open it again with open_run to add to it.")
        if os.getpid() != self._pid:
            raise ValueError(f"The run {self.folder} belongs to process {self._pid}, which forked. Write from there.")

    def _let_go(self) -> None:
        self._lock.release()
        self._open = False
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Save what a program that ends without closing has left; its run stays `running`, as interrupted."""
        if os.getpid() != self._pid:
            return
        try:
            self.flush()
        finally:
            self._let_go()


def _demand_text(**texts: str) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"`{name}` must be a string, got {text!r}.")


def read(folder: Path | str | Iterable[Path | str]) -> "pandas.DataFrame":
    """Return a run's measured values: each (step, site, head, metric) once, sorted by step and layer.

    Several folders give one table with a first column `run`, the shortest part of the path that tells them apart.
    A run that is being written can be read at any moment.
    """
    return _read(folder, tables.METRICS)


def read_events(folder: Path | str | Iterable[Path | str]) -> "pandas.DataFrame":
    """Return what happened in a run, in the order it was told; `evidence` is JSON. Several folders as for `read`."""
    return _read(folder, tables.EVENTS)


def info(folder: Path | str) -> RunInfo:
    """Return what `run.json` says of a run."""
    return load(folder)


def find_runs(root: Path | str) -> list[Path]:
    """Return the folders of all runs at or below `root`, sorted; none is an empty list."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}. Pass a folder that holds runs.")
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in (tables.METRICS.name, tables.EVENTS.name)]
        if FILE_NAME in files and _may_be_run(Path(place)):
            found.append(Path(place))
    return sorted(found)


def _may_be_run(folder: Path) -> bool:
    """Whether `run.json` is ours; one that cannot be parsed counts, so that whoever reads it is told."""
    try:
        return is_record(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))
    except ValueError:
        return True


def _read(folder: Path | str | Iterable[Path | str], layout: tables.Layout) -> "pandas.DataFrame":
    if isinstance(folder, str | os.PathLike):
        return _frame(Path(folder), layout)
    import pandas

    folders = [Path(each) for each in folder]
    if not folders:
        raise ValueError("There is no run to read: the list of folders is empty. Pass at least one.")
    frames = [_frame(each, layout) for each in folders]
    for name, frame in zip(_labels(folders), frames, strict=True):
        frame.insert(0, "run", name)
    return pandas.concat(frames, ignore_index=True)


def _frame(folder: Path, layout: tables.Layout) -> "pandas.DataFrame":
    load(folder)
    return tables.load(folder, layout).to_pandas()


def _labels(folders: Sequence[Path]) -> list[str]:
    """Name the folders by their last names, with as many of those above as are needed to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [str(Path(*each[-length:])) for each in parts]
        if len(set(labels)) == len(set(parts)):
            break
    return labels
