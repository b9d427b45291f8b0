"""One writer per run or folder of runs: a lock file that names its process, and what becomes of it when that one dies.

The process that holds the lock shows life by renewing the file's date at every flush. A lock is stale, and is taken
over, when its process is dead on this host, or when another host has not renewed it for `STALE_SECONDS`. A process that
was taken for dead but goes on finds at its next flush that the lock is no longer its own, and writes nothing more.

A task that another machine runs again, because its worker was lost, does not wait for that: it carries an owner, random
digits that the lock names, and takes over at once what was locked by an earlier try of itself.

A folder copied from another machine brings along the lock of whoever was killed there, which is respected until it is
`STALE_SECONDS` old: nothing in it says safely that it is a copy. Numbers of devices and boots differ between hosts that
share one folder, and so do numbers of files on file systems that make them up at each mount (sshfs, drives of clouds,
folders shared with virtual machines). Between two local disks they would tell a copy, but also one that a program keeps
in step with the original, where a take-over ends up in the run that is alive. An hour's wait costs less than that, and
the refusal says which file to delete.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex

from joma.store.files import beside, full_disk_explained, write_text

LOCK_NAME = "run.lock"
STALE_SECONDS = 3600.0
"""Age of the last sign of life from another host after which its lock is taken over; far above any difference of
clocks, and above the time between two measurements of a slow run."""
RENEW_SECONDS = 60.0
"""Time between two signs of life of a process that holds a folder of runs."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_DEAD_STATES = ("Z", "X")
"""States in /proc of a process that has ended but was not yet collected by its parent."""
_START_TIME = 19
"""Position of the start time in /proc/PID/stat, counted from the state."""


class RunLockedError(OSError):
    """Another writer holds the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    host: str
    started: str
    """When the process started, as its kernel counts, so that a later process of the same number is not taken for it;
    empty where the kernel does not say."""
    token: str
    """Tells two locks of one process apart."""
    owner: str = ""
    """Digits of the task that the process works on, the same at every try; empty for work that is not tried again."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_local(self) -> bool:
        """Whether the process runs, or ran, on this host."""
        return self.host == _host()

    def succeeds(self, other: "Holder | None") -> bool:
        """Whether the other one was lost at an earlier try of the task that this process works on."""
        if other is None or not self.owner or other.owner != self.owner:
            return False
        return (self.pid, self.host, self.started) != (other.pid, other.host, other.started)

    def lives(self) -> bool:
        """Whether the process is alive; only for processes of this host."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # alive, and somebody else's
        state, started = _process(self.pid)
        return state not in _DEAD_STATES and started in (self.started, "")


class Lock:
    """The lock of a run's folder, held by this process."""

    def __init__(self, folder: Path, *, owner: str = "") -> None:
        """Take the lock, also from an earlier try of the same owner, or say in one line who holds it."""
        self._path = folder / LOCK_NAME
        self._holder = _this_process(owner)
        with _alone(folder):
            if self._holder.succeeds(_read(self._path)):
                # By one rename: there is no moment without a lock, in which the other could place its own again.
                write_text(self._path, _content(self._holder))
                return
            _remove_if_stale(self._path)
            try:
                _place(self._path, self._holder)
            except FileExistsError:
                raise RunLockedError(_refusal(self._path, _read(self._path), age=0.0)) from None

    def renew(self) -> None:
        """Show life; refuse when another process has taken the lock over. A lock that was deleted is placed again.

        Not so the lock of an owner: a later try of the task may have taken it over, and have come to the end.
        """
        if not self._holder.owner and not self._path.exists():
            with suppress(FileExistsError):
                _place(self._path, self._holder)
        self.demand()
        os.utime(self._path)

    def demand(self) -> None:
        """Refuse when the lock is no longer ours."""
        holder = _read(self._path)
        if holder != self._holder:
            raise RunLockedError(
                f"{self._path.parent} was taken over by {holder or 'another process'}, which took this one for dead. "
                "Nothing more is written from here; stop one of the two."
            )

    def release(self) -> None:
        """Remove the lock if it is still ours."""
        if _read(self._path) == self._holder:
            self._path.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[Callable[[], None]]:
    """Keep other processes from writing into a folder of runs; yields what to call now and then as a sign of life."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder)
    last = time.monotonic()

    def show_life() -> None:
        nonlocal last
        if time.monotonic() - last >= RENEW_SECONDS:
            last = time.monotonic()
            lock.renew()

    try:
        yield show_life
    finally:
        lock.release()


def demand_closed(folder: Path | str, *, owner: str = "") -> None:
    """Refuse a run that a living writer holds, saying who that is; an earlier try of the same owner does not count."""
    path = Path(folder) / LOCK_NAME
    with suppress(FileNotFoundError):
        age, holder = _age(path), _read(path)
        if _is_held(holder, age) and not _this_process(owner).succeeds(holder):
            raise RunLockedError(_refusal(path, holder, age))


def is_open(folder: Path | str, *, owner: str = "") -> bool:
    """Whether a living writer holds the run: one whose status is `running` without that was interrupted.

    An earlier try of the same owner does not count.
    """
    try:
        demand_closed(folder, owner=owner)
    except RunLockedError:
        return True
    return False


def _this_process(owner: str) -> Holder:
    pid = os.getpid()
    return Holder(pid=pid, host=_host(), started=_process(pid)[1], token=token_hex(8), owner=owner)


def _place(path: Path, holder: Holder) -> None:
    """Put the lock there, name and content at once; FileExistsError when there is one already."""
    content = _content(holder)
    candidate = beside(path)
    try:
        with full_disk_explained(path):
            candidate.write_text(content, encoding="utf-8")
            os.link(candidate, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        with path.open("x", encoding="utf-8") as file:  # as on some cloud drives: the next best
            file.write(content)
    finally:
        with suppress(OSError):  # the lock counts, and the next to open the run clears up
            candidate.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep the other processes of this host from judging a lock while we do: two of them must not both take it over.

    Not every file system locks folders; where it does not, the loser finds out at its first flush.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_if_stale(path: Path) -> None:
    """Remove the lock if nobody holds it any more, else raise; nothing to do without one."""
    with suppress(FileNotFoundError):
        age, holder = _age(path), _read(path)
        if _is_held(holder, age):
            raise RunLockedError(_refusal(path, holder, age))
        path.unlink()


def _is_held(holder: Holder | None, age: float) -> bool:
    if holder is not None and holder.is_local:
        return holder.lives()
    return age < STALE_SECONDS


def _refusal(path: Path, holder: Holder | None, age: float) -> str:
    if holder is not None and holder.pid == os.getpid() and holder.is_local:
        return (
            f"{path.parent} is being written by this very process. Close the writer that is open, or take a new folder."
        )
    message = (
        f"{path.parent} is being written by {holder or 'another process'}. Wait for its end, or take a new folder."
    )
    if holder is not None and holder.is_local:
        return message
    return (
        f"{message} Its last sign of life is {age:.0f} s old and counts for {STALE_SECONDS:.0f} s; if you know that it "
        f"is dead, or that this folder is a copy of the one it writes to, delete {path} "
        f"and any {LOCK_NAME} in folders below."
    )


def _content(holder: Holder) -> str:
    return json.dumps(asdict(holder))


def _read(path: Path) -> Holder | None:
    """Return who holds the lock; None when there is no lock or no name in it."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _host() -> str:
    return os.uname().nodename


def _process(pid: int) -> tuple[str, str]:
    """Return a process's state and start time from /proc; both empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return fields[0], fields[_START_TIME]
