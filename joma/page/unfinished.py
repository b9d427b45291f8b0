"""What a page says of an experiment that is not done: what is missing, and which command goes on with it.

How long the rest would take where the page was written, and how much time that call had, is no news to a reader.
"""

import re
from pathlib import Path

from joma.experiments.record import Record, Status

_OUT_OF_TIME = re.compile(r"(?P<left>.* left), about .*: run the same command again.*")
"""What a call says that ran out of time: how much is left, and then an estimate for whoever made it."""


def reason(record: Record) -> str:
    """Return why an experiment is not done, without the estimate of the call that came last.

    >>> told = "3 of 4 packs left, about 2 h 5 min: run the same command again."
    >>> known = dict.fromkeys(("id", "title", "place", "question", "preset", "device"), "figure6")
    >>> left = Record(**known, seconds=1.0, status=Status.UNFINISHED, reason=told)
    >>> reason(left)
    '3 of 4 packs left.'
    """
    found = _OUT_OF_TIME.fullmatch(record.reason)
    if record.status is not Status.UNFINISHED or not found:
        return record.reason
    if record.part:
        return f"Done are {record.part}; the others have not been computed yet."
    return f"{found['left']}."


def going_on(record: Record, folder: Path, root: Path) -> str:
    """Return the command that goes on with an unfinished experiment, in the folder of the page; nothing for others."""
    if record.status is not Status.UNFINISHED:
        return ""
    return f"joma reproduce {record.id} --preset {record.preset} --out {folder.relative_to(root).as_posix()}"
