"""What was spent on an experiment over all calls: time, and pieces of work by the software and device that did them."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joma.experiments.origins import Origin, Pieces, this_process
from joma.store.files import write_text

SAVE_SECONDS = 5.0
"""Time between two notes of the time spent; a process that is killed forgets at most that much."""


class WorkLog:
    """Time and pieces of an experiment, noted in a file now and then."""

    def __init__(self, path: Path | None = None) -> None:
        """Go on from what the file says; without a path nothing is kept."""
        self._path = path
        before = _read(path)
        self._before: float = before["seconds"]
        self.weight: float = before["weight"]
        """Of the pieces done, as `Piece.weight` counts it."""
        self.origins: list[Origin] = before["origins"]
        """The software that has worked on it, oldest first, with the pieces that each did."""
        self._own: Origin | None = None
        self._begun = self._noted = time.monotonic()
        self._aside = 0.0

    @property
    def seconds(self) -> float:
        """Time spent on it until now."""
        return self._before + time.monotonic() - self._begun - self._aside

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do what is no work on the experiment, as foretelling how long that takes: its time is not counted."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._aside += time.monotonic() - begun

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that have done a piece."""
        return tuple(dict.fromkeys(device for origin in self.origins for device in origin.pieces))

    def num_done(self, kind: str) -> int:
        """Pieces of a kind that were done, wherever that was."""
        return sum(by_kind.get(kind, 0) for origin in self.origins for by_kind in origin.pieces.values())

    def begin(self) -> Origin:
        """Name this process's software among that which worked on the experiment, whatever comes of it."""
        if self._own is None:
            self._own = this_process()
        same = [each for each in self.origins if each.is_same_software(self._own)]
        if not same:
            self.origins.append(self._own)
        return same[0] if same else self._own

    def add(self, kind: str, device: str, weight: float) -> None:
        """Write down that a piece was done."""
        self.begin().add(kind, device)
        self.weight += weight
        self.save()

    def forget_pieces(self) -> None:
        """Take back what was done: it is done anew."""
        self.origins.clear()
        self._own = None
        self.weight = 0.0

    def note(self) -> None:
        """Write the time down, if that was not done in the last seconds."""
        if time.monotonic() - self._noted >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write everything down now."""
        self._noted = time.monotonic()
        if self._path is not None:
            content = {
                "seconds": self.seconds,
                "weight": self.weight,
                "origins": [asdict(each) for each in self.origins],
            }
            write_text(self._path, json.dumps(content, indent=1) + "\n")


def _read(path: Path | None) -> dict[str, Any]:
    """Return what the file says, part by part; the start where it says nothing that can be trusted."""
    try:
        found: Any = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    found = found if isinstance(found, Mapping) else {}
    return {
        "seconds": _number(found.get("seconds")),
        "weight": _number(found.get("weight")),
        "origins": _origins(found),
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _origins(found: Mapping[str, Any]) -> list[Origin]:
    """Return the software that worked, unknown in a log that counts pieces without saying whose they are."""
    if "origins" not in found:
        pieces = _pieces(found.get("pieces"))
        return [Origin(pieces=pieces)] if pieces else []
    try:
        return [_origin(each) for each in found["origins"]]
    except (ValueError, TypeError, AttributeError, KeyError):
        return []


def _origin(value: Any) -> Origin:
    commit = value["git_commit"]
    return Origin(
        versions={str(name): str(version) for name, version in value["versions"].items()},
        git_commit=None if commit is None else str(commit),
        pieces=_pieces(value["pieces"]),
    )


def _pieces(value: Any) -> Pieces:
    try:
        return {device: {kind: int(num) for kind, num in own.items()} for device, own in value.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
