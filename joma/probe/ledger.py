"""Where a watch writes: a run's folder, or memory."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joma.probe.readings import Row
from joma.store import RunWriter, read, read_events

if TYPE_CHECKING:
    import pandas

Level = Literal["info", "warning", "error"]
_COLUMNS = ("step", "site", "kind", "layer", "head", "metric", "value", "flag")
_KEY = ["step", "site", "head", "metric"]
_ORDER = ["step", "layer", "site", "head", "metric"]
_EVENT_COLUMNS = ("step", "site", "level", "kind", "message", "evidence")


class Ledger(ABC):
    """Takes rows and events, and gives them back as tables."""

    @abstractmethod
    def add(self, step: int, row: Row) -> None:
        """Take one value."""

    @abstractmethod
    def event(
        self, step: int, kind: str, message: str, *, level: Level = "info", site: str = "", evidence: Any = None
    ) -> None:
        """Take something that happened."""

    @abstractmethod
    def begin_again(self, step: int) -> None:
        """Put what comes in the place of what earlier sessions recorded from a step on, as of the next value."""

    @abstractmethod
    def frame(self) -> "pandas.DataFrame":
        """Return the values so far, in the columns of the record."""

    @abstractmethod
    def events(self) -> "pandas.DataFrame":
        """Return what happened so far."""

    @abstractmethod
    def close(self, status: Literal["finished", "failed"]) -> None:
        """End the record."""


class MemoryLedger(Ledger):
    """Keeps everything in memory."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: list[tuple[Any, ...]] = []
        self._events: list[tuple[Any, ...]] = []

    def add(self, step: int, row: Row) -> None:
        """Take one value."""
        self._rows.append((step, row.site, row.kind, row.layer, row.head, row.metric, row.value, row.flag))

    def event(
        self, step: int, kind: str, message: str, *, level: Level = "info", site: str = "", evidence: Any = None
    ) -> None:
        """Take something that happened."""
        self._events.append((step, site, level, kind, message, json.dumps(evidence or {}, default=str)))

    def begin_again(self, step: int) -> None:
        """Replace nothing: there is no earlier session."""

    def frame(self) -> "pandas.DataFrame":
        """Return the values so far, of several for one key the last."""
        import pandas

        table = pandas.DataFrame(self._rows, columns=_COLUMNS)
        return table.drop_duplicates(_KEY, keep="last").sort_values(_ORDER, ignore_index=True)

    def events(self) -> "pandas.DataFrame":
        """Return what happened so far."""
        import pandas

        return pandas.DataFrame(self._events, columns=_EVENT_COLUMNS)

    def close(self, status: Literal["finished", "failed"]) -> None:
        """Keep everything."""


class RunLedger(Ledger):
    """Writes a run's folder."""

    def __init__(self, writer: RunWriter) -> None:
        """Write by an open writer."""
        self._writer: RunWriter | None = writer
        self.folder: Path = writer.folder

    def add(self, step: int, row: Row) -> None:
        """Take one value."""
        assert self._writer is not None
        self._writer.add(
            step, row.metric, row.value, site=row.site, kind=row.kind, layer=row.layer, head=row.head, flag=row.flag
        )

    def event(
        self, step: int, kind: str, message: str, *, level: Level = "info", site: str = "", evidence: Any = None
    ) -> None:
        """Take something that happened."""
        assert self._writer is not None
        self._writer.event(step, kind, message, level=level, site=site, evidence=evidence)

    def begin_again(self, step: int) -> None:
        """Put what comes in the place of what earlier sessions recorded from a step on, as of the next value."""
        assert self._writer is not None
        self._writer.begin_again(step)

    def frame(self) -> "pandas.DataFrame":
        """Write what is in memory and read the run."""
        self._flush()
        return read(self.folder)

    def events(self) -> "pandas.DataFrame":
        """Write what is in memory and read what happened."""
        self._flush()
        return read_events(self.folder)

    def close(self, status: Literal["finished", "failed"]) -> None:
        """Close the run."""
        if self._writer is not None:
            self._writer.close(status)
            self._writer = None

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()
