"""How long pieces of work took beside what was counted beforehand, kept in a folder, so that others can be foretold."""

import json
from pathlib import Path
from typing import Any

import torch

from joma.runs.files import write_text

FILE_NAME = "times.json"
USUAL_RATIO = 2.0
"""Time taken over time counted, where nothing comparable was measured yet: counting gives a lower bound."""
COMPARABLE = 4.0
"""Pieces this many times shorter say little: what they took is fixed cost for the most part."""
MOST_KEPT = 100
"""Pieces of one kind that are remembered."""


def device_label(device: str) -> str:
    """Return a device as a record names it: a GPU with its make."""
    if torch.device(device).type == "cpu":
        return "cpu"
    return f"{device} ({torch.cuda.get_device_name(device)})"


class MeasuredTimes:
    """Counted and measured seconds of the pieces that one device has done, by kind."""

    def __init__(self, path: Path | None = None, device: str = "cpu") -> None:
        """Go on from the file, if there is one; without a path nothing is kept."""
        self._path, self._device = path, device
        self._by_device = _read(path)

    def expected(self, kind: str, seconds: float, setup: float = 0.0) -> float:
        """Return how long a piece will take: its setup, and what was counted times the worst ratio of its kind.

        >>> times = MeasuredTimes()
        >>> times.expected("packs", 100.0)
        200.0
        >>> times.note("packs", 80.0, took=120.0)
        >>> times.expected("packs", 100.0)
        150.0
        """
        ratios = [took / counted for counted, took in self._pairs(kind) if COMPARABLE * counted >= seconds > 0]
        return setup + seconds * max(ratios, default=USUAL_RATIO)

    def note(self, kind: str, seconds: float, *, took: float, setup: float = 0.0) -> None:
        """Remember what a piece took, less its setup."""
        if seconds <= 0:
            return
        by_kind = self._by_device.setdefault(self._device, {})
        by_kind[kind] = [*self._pairs(kind), [seconds, max(took - setup, 0.0)]][-MOST_KEPT:]
        if self._path is not None:
            write_text(self._path, json.dumps(self._by_device, indent=1) + "\n")

    def _pairs(self, kind: str) -> list[list[float]]:
        return self._by_device.get(self._device, {}).get(kind, [])


def _read(path: Path | None) -> dict[str, dict[str, list[list[float]]]]:
    """Return what the file holds; nothing where there is none to trust."""
    try:
        found: Any = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        return {
            str(device): {str(kind): [[float(a), float(b)] for a, b in pairs if a > 0] for kind, pairs in own.items()}
            for device, own in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
