"""The folder that results go to: whether it can be written is asked before anything is computed for it.

What the system says when a write fails later is put into words here too.
"""

import errno
import re
from pathlib import Path
from tempfile import TemporaryFile

_FULL = {errno.ENOSPC, errno.EDQUOT}
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.part")
"""The hidden names of `joma.runs.files.beside`."""


class UnwritableError(OSError):
    """A folder to write into cannot be made or written."""


def demand_writable(folder: Path | str, *, remedy: str = "Pass another `out`.") -> None:
    """Refuse a folder that cannot be made or written, with a remedy; nothing is made, and nothing is left behind.

    A nameless file is written into it, or into the nearest folder above it that exists: rights are not all that counts,
    since disks are mounted to be read alone, or full.

    >>> demand_writable("/dev/null/runs")
    Traceback (most recent call last):
    joma.runs.place.UnwritableError: /dev/null/runs cannot be written: /dev/null is not a folder. Pass another `out`.
    """
    folder = Path(folder)
    try:
        reason = _obstacle(folder)
    except OSError as error:
        reason = _reason(error)
    if reason:
        raise UnwritableError(f"{folder} cannot be written: {reason}. {remedy}")


def told(error: OSError) -> str:
    """Return an error of the system as one line that names the file that was asked for.

    It is written under a hidden name first, which says nothing to a user.

    >>> told(PermissionError(13, "Permission denied", "runs/.run.json.0123abcd.part"))
    'runs/run.json cannot be written: permission denied. Files written before are whole; mend that and try again.'
    """
    if error.errno is None or not isinstance(error.filename, str):
        return str(error)
    is_full, parts = error.errno in _FULL, Path(error.filename).parts
    path = Path(*map(_complete, parts))
    if not is_full and path.parts == parts:  # it may have been read
        return f"{path}: {_reason(error)}."
    remedy = "free some space" if is_full else "mend that"
    return f"{path} cannot be written: {_reason(error)}. Files written before are whole; {remedy} and try again."


def _obstacle(folder: Path) -> str:
    """Return why a folder cannot be written, empty where it can be."""
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


def _complete(name: str) -> str:
    """Return the name that a file or folder has once it is complete."""
    found = _UNFINISHED.fullmatch(name)
    return name if found is None else found["name"]
