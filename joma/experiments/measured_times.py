"""How long pieces of work took beside what was counted beforehand, kept in a folder, so that others can be foretold."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from joma.store.files import write_text

FILE_NAME = "times.json"
USUAL_RATIO = 2.0
"""Time taken over time counted, where nothing comparable was measured yet: counting gives a lower bound."""
COMPARABLE = 4.0
"""Pieces this many times shorter say little: what they took is fixed cost for the most part."""
MOST_KEPT = 100
"""Pieces of one kind that are remembered."""

_Times = dict[str, dict[str, dict[str, list[list[float]]]]]
"""Counted and measured seconds by device, experiment and kind."""


def device_label(device: str) -> str:
    """Return a device as a record names it: a GPU with its make."""
    if torch.device(device).type == "cpu":
        return "cpu"
    return f"{device} ({torch.cuda.get_device_name(device)})"


def tried_once(work: Callable[[], object], device: str) -> float:
    """Return the seconds that work takes, by doing it; on a GPU a second time, since the first loads what it needs.

    The work must wait for its numbers, as what returns them does.
    """
    if torch.device(device).type != "cpu":
        work()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


class MeasuredTimes:
    """Counted and measured seconds of the pieces that one device has done, by experiment and kind."""

    def __init__(self, path: Path | None = None, device: str = "cpu") -> None:
        """Go on from the file, if there is one; without a path nothing is kept."""
        self._path, self._device = path, device
        self._by_device = _read(path)

    def expected(self, owner: str, kind: str, seconds: float, setup: float = 0.0) -> float:
        """Return how long a piece will take: its setup, and what was counted times the worst ratio known.

        That of comparable pieces of its kind, else of other kinds of the same experiment, else the usual one.

        >>> times = MeasuredTimes()
        >>> times.expected("figure5", "packs", 100.0)
        200.0
        >>> times.note("figure5", "packs", 80.0, took=120.0)
        >>> times.expected("figure5", "packs", 100.0)
        150.0
        """
        for pairs in (self._pairs(owner, kind), self._pairs(owner)):
            ratios = [took / counted for counted, took in pairs if COMPARABLE * counted >= seconds]
            if ratios:
                return setup + seconds * max(ratios)
        return setup + seconds * USUAL_RATIO

    def knows(self, owner: str) -> bool:
        """Whether a piece of an experiment was measured."""
        return bool(self._pairs(owner))

    def note(self, owner: str, kind: str, seconds: float, *, took: float, setup: float = 0.0) -> None:
        """Remember what a piece took, less its setup."""
        if seconds <= 0:
            return
        by_kind = self._by_device.setdefault(self._device, {}).setdefault(owner, {})
        by_kind[kind] = [*by_kind.get(kind, []), [seconds, max(took - setup, 0.0)]][-MOST_KEPT:]
        if self._path is not None:
            write_text(self._path, json.dumps(self._by_device, indent=1) + "\n")

    def _pairs(self, owner: str, kind: str | None = None) -> list[list[float]]:
        by_kind = self._by_device.get(self._device, {}).get(owner, {})
        return by_kind.get(kind, []) if kind is not None else [pair for own in by_kind.values() for pair in own]


def _read(path: Path | None) -> _Times:
    """Return what the file holds; nothing where there is none to trust."""
    try:
        found: Any = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        return {device: {owner: _of_owner(own) for owner, own in owners.items()} for device, owners in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _of_owner(by_kind: Any) -> dict[str, list[list[float]]]:
    return {kind: [[float(a), float(b)] for a, b in pairs if a > 0] for kind, pairs in by_kind.items()}
