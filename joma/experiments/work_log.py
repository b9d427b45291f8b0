"""What was spent on an experiment over all calls: time, and pieces of work by the device that did them."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joma.runs.files import write_text

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
        self.pieces: dict[str, dict[str, int]] = before["pieces"]
        """How many of each kind were done on each device."""
        self._begun = self._noted = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time spent until now."""
        return self._before + time.monotonic() - self._begun

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that have done a piece."""
        return tuple(self.pieces)

    def num_done(self, kind: str) -> int:
        """Pieces of a kind that were done, wherever that was."""
        return sum(by_kind.get(kind, 0) for by_kind in self.pieces.values())

    def add(self, kind: str, device: str, weight: float) -> None:
        """Write down that a piece was done."""
        by_kind = self.pieces.setdefault(device, {})
        by_kind[kind] = by_kind.get(kind, 0) + 1
        self.weight += weight
        self.save()

    def forget_pieces(self) -> None:
        """Take back what was done: it is done anew."""
        self.pieces.clear()
        self.weight = 0.0

    def note(self) -> None:
        """Write the time down, if that was not done in the last seconds."""
        if time.monotonic() - self._noted >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write everything down now."""
        self._noted = time.monotonic()
        if self._path is not None:
            content = {"seconds": self.seconds, "weight": self.weight, "pieces": self.pieces}
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
        "pieces": _pieces(found.get("pieces")),
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _pieces(value: Any) -> dict[str, dict[str, int]]:
    try:
        return {device: {kind: int(num) for kind, num in own.items()} for device, own in value.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
