"""What is written down of an experiment that was run, and of a whole reproduction, as plain JSON and back."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from joma.store.files import write_text
from joma.verdicts import Verdict

FILE_NAME = "reproduction.json"
NOT_ALL = "Not all of it has been computed yet."
"""Reason of an unfinished experiment whose record does not tell what is left from what to do."""


class Status(StrEnum):
    """How far an experiment came."""

    DONE = "done"
    NOT_RUN = "not run"
    """Something that it needs is missing here; this is no failure."""
    UNFINISHED = "unfinished"
    """Some of it is done: the time of a call was not enough, or it was begun where there is what is missing here. A
    later call goes on. What is finished may be shown."""
    FAILED = "failed"
    """It raised an exception that nobody expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One experiment of a reproduction."""

    id: str
    title: str
    place: str
    question: str
    preset: str
    config: dict[str, Any] = field(default_factory=dict)
    """All settings, in plain types."""
    seeds: tuple[int, ...] = ()
    """The seeds among the settings."""
    device: str
    """What computed it, wherever it was judged and drawn."""
    seconds: float
    """Time that the computation took, over all calls that worked on it."""
    status: Status
    reason: str = ""
    """Why it is not done: what is missing, what is left to do, or what went wrong."""
    advice: str = ""
    """What whoever made a call that ran out of time may do, with an estimate for that device and that limit: for the
    terminal, and no news to any other reader. Empty where time was not what was missing."""
    part: str = ""
    """What verdicts, charts and tables of an unfinished one rest on: `120 of 270 runs`. Empty where all of it is done,
    and where nothing can be shown."""
    notes: tuple[str, ...] = ()
    """Sentences on how the result came about."""
    verdicts: tuple[Verdict, ...] = ()
    charts: tuple[str, ...] = ()
    """Ids of its charts, which name their files."""
    tables: tuple[str, ...] = ()
    """Names of its tables, which name their files."""

    @property
    def sound(self) -> bool:
        """Whether nothing of our own went wrong: no exception, no failing check. A refuted claim is sound."""
        return self.status is not Status.FAILED and all(verdict.sound for verdict in self.verdicts)

    @property
    def is_shown(self) -> bool:
        """Whether there are claims, charts and tables to show: of all of it, or of a part."""
        return self.status is Status.DONE or bool(self.part)

    def said_of(self, verdict: Verdict) -> str:
        """Return what stands for one of its verdicts: the outcome, which an unfinished experiment does not have yet."""
        return self.status.value if self.status is Status.UNFINISHED else verdict.outcome.value

    @property
    def label(self) -> str:
        """How far it came, with the part that is shown: `unfinished: 120 of 270 runs`."""
        return f"{self.status.value}: {self.part}" if self.part else self.status.value

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        lists = {name: list(record[name]) for name in ("seeds", "notes", "charts", "tables")}
        verdicts = [verdict.as_dict() for verdict in self.verdicts]
        return record | lists | {"status": self.status.value, "verdicts": verdicts}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Record":
        """Rebuild a record from `as_dict`, leaving out what it does not know; an older one has no `advice`."""
        record = record if "advice" in record else _with_advice(record)
        known = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        lists = {name: tuple(record[name]) for name in ("seeds", "notes", "charts", "tables")}
        verdicts = tuple(Verdict.from_dict(row) for row in record["verdicts"])
        return cls(**known | lists | {"status": Status(record["status"]), "verdicts": verdicts})


def _with_advice(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an older record as one is written now: its reason was all that was told to whoever made the call."""
    told = record.get("reason", "")
    if record["status"] != Status.UNFINISHED or not told:
        return {**record, "advice": ""}
    verdicts = [row | {"explanation": NOT_ALL} if row["explanation"] == told else row for row in record["verdicts"]]
    return {**record, "reason": NOT_ALL, "advice": told, "verdicts": verdicts}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """What `reproduce` did: a record for each experiment, and the folder where everything lies."""

    folder: Path
    preset: str
    started: str
    """When the call began, ISO 8601 in UTC."""
    seconds: float
    """Time that the computations took, those of earlier calls included."""
    experiments: tuple[Record, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing of our own went wrong in any experiment."""
        return all(record.sound for record in self.experiments)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all experiments."""
        return tuple(verdict for record in self.experiments for verdict in record.verdicts)

    def counts(self) -> dict[Status, int]:
        """Return how many experiments came how far, for each status that occurs."""
        return Counter(record.status for record in self.experiments)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON: the content of the summary."""
        return {
            "preset": self.preset,
            "started": self.started,
            "seconds": self.seconds,
            "experiments": [record.as_dict() for record in self.experiments],
        }


def save(reproduction: Reproduction) -> Path:
    """Write the summary of a reproduction into its folder, whole or not at all."""
    text = json.dumps(reproduction.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return write_text(reproduction.folder / FILE_NAME, text)


def read(folder: Path | str) -> Reproduction:
    """Read the summary in a folder, refusing a file that holds anything else."""
    path = Path(folder) / FILE_NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Reproduction(
            folder=Path(folder),
            preset=record["preset"],
            started=record["started"],
            seconds=record["seconds"],
            experiments=tuple(Record.from_dict(row) for row in record["experiments"]),
        )
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has no {FILE_NAME}. Pass a folder of `joma reproduce --out`.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no summary of `joma reproduce`: {type(error).__name__}, {error}. Remove it, or write it again."
        ) from None


def seeds_in(config: Any) -> tuple[int, ...]:
    """Return the seeds among plain settings, wherever they are, each once.

    >>> seeds_in({"seeds": [1, 2], "small": {"seed": 2, "steps": 100}})
    (1, 2)
    """
    return tuple(dict.fromkeys(_seeds(config)))


def _seeds(value: Any, is_seed: bool = False) -> Iterator[int]:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _seeds(entry, name in ("seed", "seeds") or name.endswith(("_seed", "_seeds")))
    elif isinstance(value, list):
        for entry in value:
            yield from _seeds(entry, is_seed)
    elif is_seed and isinstance(value, int) and not isinstance(value, bool):
        yield value
