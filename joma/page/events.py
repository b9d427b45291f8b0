"""What happened in runs, as tables: alarms, findings of the audit, what was not seen, exceptions and the rest."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from joma.page.layers import layer_cell
from joma.page.records import Group, flat
from joma.page.table import Cell, number, table, words

MAX_ROWS = 300
"""Events that one table shows."""
MAX_EVIDENCE = 160
"""Characters of evidence that are shown at once."""
NO_STEP = -1
_TONES = {"error": "bad", "warning": "warned", "info": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTable:
    """Events of one kind, as a part of a page."""

    title: str
    note: str
    body: Markup


def of_kind(group: Group, kind: str) -> pd.DataFrame:
    """Return the events of one kind, as `all_events` does."""
    events = all_events(group)
    return events[events["kind"] == kind]


def all_events(group: Group) -> pd.DataFrame:
    """Return what happened in the runs of a group, with a column `run`, its position in the group."""
    return pd.concat([run.events.assign(run=index) for index, run in enumerate(group.runs)], ignore_index=True)


def tables(group: Group) -> list[EventTable]:
    """Return the tables that have rows, the gravest first."""
    events = all_events(group)
    known = {"alarm", "audit", "unseen", "effects", "regime"}  # the table of layers has these; 0.1 called them regimes
    other = events[~events["kind"].isin(known)]
    found = [
        _table("Alarms", _alarms(group, events[events["kind"] == "alarm"])),
        _table("Audit of the checkpoints", _findings(group, events[events["kind"] == "audit"])),
        _table("Not seen", _unseen(group, events[events["kind"] == "unseen"])),
        _table("Other events", _others(group, other)),
    ]
    return [each for each in found if each is not None]


Rows = tuple[list[str], list[list[Cell]]]


def _table(title: str, rows: Rows) -> EventTable | None:
    columns, cells = rows
    if not cells:
        return None
    note = f"The first {MAX_ROWS} of {len(cells)}; the record has all of them." if len(cells) > MAX_ROWS else ""
    return EventTable(title=f"{title} ({len(cells)})", note=note, body=table(columns, cells[:MAX_ROWS]))


def _alarms(group: Group, events: pd.DataFrame) -> Rows:
    columns = ["step", "layer", "site", "alarm", *_run_column(group)]
    return columns, [
        [
            _step(row.step),
            layer_cell(row.evidence["layer"]) if isinstance(row.evidence.get("layer"), int) else words(""),
            words(row.site),
            words(row.message, tone=_TONES.get(row.level, "")),
            *_run(group, row.run),
        ]
        for row in events.sort_values(["step", "site"]).itertuples()
    ]


def _findings(group: Group, events: pd.DataFrame) -> Rows:
    columns = ["step", "finding", "what was found", "evidence", *_run_column(group)]
    return columns, [
        [
            _step(row.step),
            words(str(row.evidence.get("finding", row.level)), tone=_TONES.get(row.level, "")),
            words(row.message),
            _evidence({key: value for key, value in row.evidence.items() if key != "finding"}),
            *_run(group, row.run),
        ]
        for row in events.sort_values("step", kind="stable").itertuples()
    ]


def _unseen(group: Group, events: pd.DataFrame) -> Rows:
    columns = ["site", "why", "steps", *_run_column(group)]
    return columns, [
        [words(site or "the model"), words(message), words(_steps(own["step"])), *_run(group, run)]
        for (site, message, run), own in events.groupby(["site", "message", "run"], sort=True)
    ]


def _others(group: Group, events: pd.DataFrame) -> Rows:
    columns = ["kind", "steps", "site", "what happened", "evidence", *_run_column(group)]
    return columns, [
        [
            words(kind, tone=_TONES.get(own["level"].iloc[-1], "")),
            words(_steps(own["step"])),
            words(site),
            words(message),
            _evidence(own["evidence"].iloc[-1]),
            *_run(group, run),
        ]
        for (kind, site, message, run), own in events.groupby(["kind", "site", "message", "run"], sort=True)
    ]


def _run_column(group: Group) -> list[str]:
    return ["run"] if group.is_averaged else []


def _run(group: Group, index: int) -> list[Cell]:
    return [words(group.runs[index].name)] if group.is_averaged else []


def _step(step: int) -> Cell:
    return number(None) if step == NO_STEP else number(int(step))


def _steps(steps: pd.Series) -> str:
    """Name the steps of an event that was told again and again.

    >>> _steps(pd.Series([100, 300, 200])), _steps(pd.Series([100]))
    ('3 times, 100 to 300', '100')
    """
    first, last = steps.min(), steps.max()
    return str(first) if len(steps) == 1 else f"{len(steps)} times, {first} to {last}"


def _evidence(evidence: dict[str, Any]) -> Cell:
    parts = [f"{name}: {value}" for name, value in flat(evidence) if name and value != "[]"]
    text = "; ".join(parts)
    if len(text) <= MAX_EVIDENCE and "\n" not in text:
        return words(text)
    return words("", more="\n".join(parts))
