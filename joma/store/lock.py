"""One writer to a folder: the system's lock on `run.lock`, and `writer.json`, which names the process that holds it.

The system's lock goes with its process, however that ends, and holds across machines where the file system has such
locks (NFS has them). A task that Ray runs again elsewhere, because its machine was lost, cannot wait for that. It
carries an owner, random digits, and takes over from an earlier try of itself: it replaces both files. Whoever finds
another name than its own in `writer.json` writes nothing more.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from joma.store.files import write_text

LOCK_NAME = "run.lock"
WRITER_NAME = "writer.json"
WAIT_SECONDS = 0.5
"""How long to wait for a lock: whoever asks whether a folder is being written holds it for a moment."""


class RunLockedError(OSError):
    """Another process writes to the folder."""


class Writer(BaseModel):
    """The process that holds a lock."""

    model_config = ConfigDict(frozen=True)

    pid: int
    host: str
    token: str
    """Tells two locks of one process apart."""
    owner: str = ""
    """Digits of the task that the process works on, the same at every try; empty for work that is not tried again."""

    def succeeds(self, other: "Writer | None") -> bool:
        """Whether the other process was an earlier try of the same task."""
        if other is None or not self.owner or self.owner != other.owner:
            return False
        return (self.pid, self.host) != (other.pid, other.host)


class Lock:
    """The lock of a folder, held by this process."""

    def __init__(self, folder: Path, *, owner: str = "") -> None:
        """Take the lock, also from an earlier try of the same owner; `RunLockedError` if another process has it."""
        self._folder = folder
        self._writer = _this_process(owner)
        self._lock = _system_lock(folder)
        try:
            self._lock.acquire(timeout=WAIT_SECONDS)
        except Timeout:
            if not self._writer.succeeds(_read(folder)):
                raise _refusal(folder) from None
            self._write()  # from here on the other one writes nothing
            (folder / LOCK_NAME).unlink(missing_ok=True)
            self._lock.acquire(timeout=WAIT_SECONDS)
            return
        try:
            self._write()
        except BaseException:
            self._lock.release()
            raise

    def demand(self) -> None:
        """Refuse when another process has taken over."""
        if _read(self._folder) != self._writer:
            raise RunLockedError(
                f"{self._folder}: another process has taken over this folder. This one writes nothing more; "
                "stop one of the two."
            )

    def release(self) -> None:
        """Let go of the folder, and remove the lock unless another process has taken over; can be tried again."""
        if _read(self._folder) in (self._writer, None):
            (self._folder / WRITER_NAME).unlink(missing_ok=True)
            with suppress(OSError):  # Windows does not remove what is open; left there, it locks nothing
                (self._folder / LOCK_NAME).unlink(missing_ok=True)
        self._lock.release()

    def _write(self) -> None:
        write_text(self._folder / WRITER_NAME, self._writer.model_dump_json() + "\n")


@contextmanager
def alone_in(folder: Path) -> Iterator[Callable[[], None]]:
    """Keep other processes from writing into a folder of runs; yields what refuses once one has taken over."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder)
    try:
        yield lock.demand
    finally:
        lock.release()


def demand_closed(folder: Path | str, *, owner: str = "") -> None:
    """Refuse a folder that another process is writing; an earlier try of the same owner does not count."""
    if is_open(folder, owner=owner):
        raise _refusal(Path(folder))


def is_open(folder: Path | str, *, owner: str = "") -> bool:
    """Whether a process is writing to a folder: a run with the status `running` that is not open was interrupted.

    An earlier try of the same owner does not count.
    """
    folder = Path(folder)
    if not all((folder / name).exists() for name in (LOCK_NAME, WRITER_NAME)):
        return False
    try:
        with _system_lock(folder).acquire(blocking=False):
            return False  # its writer is dead
    except OSError:  # held (Timeout is an OSError), or on a disk that cannot be written
        return not _this_process(owner).succeeds(_read(folder))


def _system_lock(folder: Path) -> FileLock:
    return FileLock(folder / LOCK_NAME, thread_local=False)


def _this_process(owner: str) -> Writer:
    return Writer(pid=os.getpid(), host=_host(), token=token_hex(8), owner=owner)


def _host() -> str:
    return platform.node()


def _read(folder: Path) -> Writer | None:
    """Return who writes to a folder; None where nothing says so."""
    try:
        return Writer.model_validate_json((folder / WRITER_NAME).read_bytes())
    except (OSError, ValueError):
        return None


def _refusal(folder: Path) -> RunLockedError:
    writer = _read(folder)
    if writer is None:
        who = "Another process"
    elif writer.host != _host():
        who = f"Another process (pid {writer.pid} on {writer.host})"
    elif writer.pid != os.getpid():
        who = f"Another process (pid {writer.pid})"
    else:
        who = "Another part of this program"
    return RunLockedError(f"{folder}: {who} is writing to this folder. Wait for it, or choose another --out.")
