"""Writing files so that a reader finds the whole file or none, even when the writer dies half way."""

import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile

_FULL = {errno.ENOSPC, errno.EDQUOT}
_WINDOWS = os.name == "nt"
_NO_NAME_ON_WINDOWS = re.compile(
    r"""(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?   # devices, with any ending
    |.*[<>:"|?*\x00-\x1f].*                        # a:b would be a hidden stream of the file a
    |(?!\.\.?$).*[. ]                              # dots and blanks at the end are dropped""",
    re.IGNORECASE | re.VERBOSE,
)


class DiskFullError(OSError):
    """There is no room for a file; every file that was whole before still is."""


def write_bytes(path: Path | str, *parts: bytes | memoryview) -> Path:
    """Write the parts under another name in the same folder, then rename it to `path`; folders are made as needed.

    Whoever reads `path` sees the old file until the new one is complete, after a power failure too. A write that
    fails leaves nothing; one that is killed leaves a hidden file that `remove_leftovers` takes away.
    """
    path = Path(path)
    unfinished = hidden_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())  # the rename must not reach the disk before the content
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.errno in _FULL:
            message = "The disk is full. Files written before are whole; free some space and try again"
            raise DiskFullError(error.errno, message, str(path)) from error
        if error.errno is not None and error.filename is None:  # as of a write
            error.filename = str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a folder of files, complete or not at all, in place of one that may be there."""
    unfinished = hidden_name(folder)
    try:
        for name, content in files.items():
            write_bytes(unfinished / name, content)
        if folder.exists():  # a folder with files cannot be renamed over
            old = hidden_name(folder)
            os.replace(folder, old)
            shutil.rmtree(old, ignore_errors=True)
        os.replace(unfinished, folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def write_text(path: Path | str, content: str) -> Path:
    """Write text as UTF-8, line ends as they are; see `write_bytes`."""
    return write_bytes(path, content.encode("utf-8"))


def hidden_name(path: Path) -> Path:
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
    if _WINDOWS:  # which opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class UnwritableError(OSError):
    """A folder to write into cannot be made or written."""


def demand_writable(folder: Path | str, *, remedy: str = "Pass another `out`.") -> None:
    """Refuse a folder that cannot be made or written, with a remedy; nothing is made, and nothing is left.

    A nameless file is written into it, or into the nearest folder above it that exists: a disk may be read-only, or
    full.

    >>> demand_writable("/dev/null/runs")
    Traceback (most recent call last):
    joma.store.files.UnwritableError: /dev/null/runs cannot be written: /dev/null is not a folder. Pass another `out`.
    """
    folder = Path(folder)
    try:
        reason = _obstacle(folder)
    except OSError as error:
        reason = _reason(error)
    if reason:
        raise UnwritableError(f"{folder} cannot be written: {reason}. {remedy}")


def explained(error: OSError) -> str:
    """Return an error of the system as one line that names the file that was asked for.

    It is written under a hidden name first, which says nothing to a user.

    >>> explained(PermissionError(13, "Permission denied", "runs/.run.json.0123abcd.part"))
    'runs/run.json cannot be written: permission denied. Files written before are whole; mend that and try again.'
    """
    if error.errno is None or not isinstance(error.filename, str):
        return str(error)
    is_full, parts = error.errno in _FULL, Path(error.filename).parts
    path = Path(*(re.sub(r"^\.(.+)\.[0-9a-f]{8}\.part$", r"\1", part) for part in parts))  # by `hidden_name`
    if not is_full and path.parts == parts:  # it may have been read
        return f"{path}: {_reason(error)}."
    remedy = "free some space" if is_full else "mend that"
    return f"{path} cannot be written: {_reason(error)}. Files written before are whole; {remedy} and try again."


def _obstacle(folder: Path) -> str:
    """Return why a folder cannot be written, empty where it can be."""
    if _WINDOWS:
        bad = [part for part in folder.parts if part != folder.anchor and _NO_NAME_ON_WINDOWS.fullmatch(part)]
        if bad:
            return f"Windows has no folder called {bad[0]!r}"
    place = _nearest(folder)
    if not place.is_dir():
        return f"{'it' if place == folder else place} is not a folder"
    try:
        with TemporaryFile(dir=place) as trial:
            trial.write(b"joma")
            trial.flush()
    except OSError as error:
        return _reason(error) + ("" if place == folder else f" in {place}")
    return ""


def _nearest(folder: Path) -> Path:
    """Return the folder, or what is nearest above it where there is none yet."""
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return place
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(folder))


def _reason(error: OSError) -> str:
    """Return what the system says, as a part of a sentence."""
    if error.errno in _FULL:
        return "the disk is full"
    words = error.strerror or str(error)
    return words[:1].lower() + words[1:]
