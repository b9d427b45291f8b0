"""Reading runs back as tables."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joma.runs import description, tables
from joma.runs.description import RunInfo

if TYPE_CHECKING:
    import pandas


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
    return description.load(folder)


def find_runs(root: Path | str) -> list[Path]:
    """Return the folders of all runs at or below `root`, sorted; none is an empty list."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}. Pass a folder that holds runs.")
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in (tables.METRICS.name, tables.EVENTS.name)]
        if description.FILE_NAME in files and _may_be_run(Path(place)):
            found.append(Path(place))
    return sorted(found)


def _may_be_run(folder: Path) -> bool:
    """Whether `run.json` is ours; one that cannot be parsed counts, so that whoever reads it is told."""
    try:
        return description.is_record(json.loads((folder / description.FILE_NAME).read_text(encoding="utf-8")))
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
    description.load(folder)
    return tables.load(folder, layout).to_pandas()


def _labels(folders: Sequence[Path]) -> list[str]:
    """Name the folders by their last names, with as many of those above as are needed to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [str(Path(*each[-length:])) for each in parts]
        if len(set(labels)) == len(set(parts)):
            break
    return labels
