"""Writing a run: rows are kept in memory for some seconds, then written whole."""

import atexit
import json
import os
import threading
from collections.abc import Collection, Mapping
from operator import index
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, SupportsFloat, SupportsIndex, get_args

from joma.runs import description
from joma.runs.description import Kind, RunInfo, Status, plain
from joma.runs.files import remove_leftovers
from joma.runs.lock import LOCK_NAME, Lock
from joma.runs.tables import EVENTS, METRICS, Table

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
    >>> from joma.runs.record import read
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
        if (folder / description.FILE_NAME).exists():
            info = description.reopened(description.load(folder), kind, config, about, known_by)
        else:
            info = description.started(folder, kind, config, about)
        remove_leftovers(folder, description.FILE_NAME)
        remove_leftovers(folder, LOCK_NAME)
        description.save(info)
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
            info = description.ended(self._info, status)
            self.flush()
            self._metrics.compact()
            self._events.compact()
            description.save(info)
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
