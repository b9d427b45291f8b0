"""Writing files so that a reader finds the whole file or none, even when the writer dies half way."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

_FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskFullError(OSError):
    """There is no room for a file; every file that was whole before still is."""


def write_bytes(path: Path | str, *parts: bytes | memoryview) -> Path:
    """Write the parts under another name in the same folder, then rename it to `path`; folders are made as needed.

    Whoever reads `path` sees the old file until the new one is complete, after a power failure too. A write that
    fails leaves nothing behind; one that is killed leaves a hidden file that `remove_leftovers` takes away.
    """
    path = Path(path)
    unfinished = beside(path)
    try:
        with full_disk_explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "xb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())  # the rename must not reach the disk before the content
            os.replace(unfinished, path)
            _sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def write_text(path: Path | str, content: str) -> Path:
    """Write text as UTF-8, line ends as they are; see `write_bytes`."""
    return write_bytes(path, content.encode("utf-8"))


@contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Turn the system's error of a full disk into `DiskFullError`, which says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        message = "The disk is full. Files written before are whole; free some space and try again"
        raise DiskFullError(error.errno, message, str(path)) from error


def beside(path: Path) -> Path:
    """Return a fresh hidden name in the folder of `path`, to be renamed to `path` or removed."""
    return path.with_name(f".{path.name}.{token_hex(4)}.part")


def remove_leftovers(folder: Path, name: str = "*", *, at_any_depth: bool = False) -> None:
    """Remove what killed writes of the files or folders called `name` left in a folder that nobody else writes to."""
    pattern = f".{name}.????????.part"
    for part in list(folder.rglob(pattern) if at_any_depth else folder.glob(pattern)):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the folder's list of names durable: until then a power failure could undo the rename."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
