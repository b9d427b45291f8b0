"""What a page says of an experiment that is not done: what is missing, and which command goes on with it.

How long the rest would take where the page was written, and how much time that call had, is no news to a reader.
"""

from pathlib import Path

from joma.experiments.record import Record, Status


def reason(record: Record) -> str:
    """Return why an experiment is not done; where time alone was missing, what is there in the words of its part.

    >>> known = dict.fromkeys(("id", "title", "place", "question", "preset", "device"), "figure6")
    >>> left = {"reason": "3 of 4 packs left.", "advice": "That takes about 2 h 5 min: run the same command again."}
    >>> reason(Record(**known, **left, seconds=1.0, status=Status.UNFINISHED))
    '3 of 4 packs left.'
    >>> reason(Record(**known, **left, seconds=1.0, status=Status.UNFINISHED, part="9 of 35 runs"))
    'Done are 9 of 35 runs; the others have not been computed yet.'
    """
    if record.part and record.advice:
        return f"Done are {record.part}; the others have not been computed yet."
    return record.reason


def going_on(record: Record, folder: Path, root: Path) -> str:
    """Return the command that goes on with an unfinished experiment, in the folder of the page; nothing for others."""
    if record.status is not Status.UNFINISHED:
        return ""
    return f"joma reproduce {record.id} --preset {record.preset} --out {folder.relative_to(root).as_posix()}"
