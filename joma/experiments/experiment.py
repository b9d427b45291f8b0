"""What an experiment is: settings, a seeded computation, drawings without mathematics, and verdicts that can fail."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from joma.errors import UnknownNameError
from joma.experiments.timetable import Piece, Timetable
from joma.figures.chart import Chart
from joma.verdicts import Verdict

PRESETS = ("quick", "full")
"""Sizes that every experiment has: minutes on two CPU cores, and the paper's settings on one GPU."""
TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""Names of tables are names of files."""

NOT_FINISHED = "not_finished"
"""Fact of a part: what is left, in words; a whole result has none."""
FAILURE = "failure "
"""Beginning of the names of facts that say why something could not be had, such as a model of a hub that dropped out;
its name follows. What a later call could not have either is told by other facts."""

Fact = float | int | str | bool
"""A number, word or flag that verdicts and captions use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What an experiment measured: all that its drawings and its verdicts need, and nothing that they do not."""

    tables: Mapping[str, pd.DataFrame]
    """Long-form tables by name, small: what is drawn and judged. Their index is not kept."""
    facts: Mapping[str, Fact]
    """Single numbers, words and flags by name."""

    def __post_init__(self) -> None:
        """Refuse names of tables that are no names of files."""
        for name in self.tables:
            if not TABLE_NAME.fullmatch(name):
                raise ValueError(f"A table is named by letters, digits, `_` and `-`, got {name!r}. Rename it.")

    @property
    def failures(self) -> dict[str, str]:
        """Return by name what could not be had, with the reason: the rest is shown, and the same command tries again.

        >>> Result(tables={}, facts={"length": 3, "failure org/model": "The hub is gone."}).failures
        {'org/model': 'The hub is gone.'}
        """
        return {
            name.removeprefix(FAILURE): str(reason) for name, reason in self.facts.items() if name.startswith(FAILURE)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What can be said of an experiment that is not finished."""

    result: Result
    """From what is finished alone; it is drawn and judged like a whole one, and labelled as a part."""
    num_done: int
    num_all: int
    what: str = "runs"
    """What is counted, in the plural."""
    notes: tuple[str, ...] = ()
    """Sentences on what is absent or left out."""

    @classmethod
    def of(
        cls,
        result: Result,
        *,
        num_done: int,
        num_all: int,
        left: str,
        num_waiting: int,
        what: str = "runs",
        notes: Iterable[str] = (),
    ) -> "Part":
        """Put a part together of what is finished; `num_waiting` finished runs are not in it, for want of seeds."""
        facts: dict[str, Fact] = {"num_finished": num_done, "num_in_all": num_all, NOT_FINISHED: left}
        waiting = f"Finished runs that wait for other seeds of their setting, and are not shown: {num_waiting}."
        return cls(
            result=replace(result, facts={**result.facts, **facts}),
            num_done=num_done,
            num_all=num_all,
            what=what,
            notes=(*notes, *([waiting] if num_waiting else [])),
        )

    @property
    def words(self) -> str:
        """How much of it is finished.

        >>> Part(result=Result(tables={}, facts={}), num_done=120, num_all=270).words
        '120 of 270 runs'
        """
        return f"{self.num_done} of {self.num_all} {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """Where an experiment works."""

    folder: Path
    """The experiment's own folder: runs, snapshots and other work that can be resumed go below it."""
    device: str
    """`cpu` or `cuda`."""
    progress: Callable[[float, str], None]
    """To be called every few seconds with the share done, in [0, 1], and with what is being done."""
    timetable: Timetable = field(default_factory=Timetable)
    """Which pieces of work may begin."""

    def work_off(self, pieces: Sequence[Piece]) -> None:
        """Do all pieces, telling the progress; those that would not end in time are left, and `OutOfTime` is raised."""
        self.timetable.work_off(pieces, self.progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A figure or a table of the paper: how to compute it, draw it and judge it."""

    id: str
    """Short and typeable: `figure4`, `figures2-3`, `table1`."""
    title: str
    place: str
    """Where in the paper."""
    question: str
    """What is asked, in one or two sentences."""
    configs: Mapping[str, Callable[[], Any]]
    """For each preset, `quick` and `full`, the function that returns its frozen config."""
    compute: Callable[[Any, Workplace], Result]
    """Config and workplace in, result out: seeded, the same bit for bit on the CPU, and resumable. What could not be
    had is a fact of the result (`FAILURE`): the next call computes again, with all that is finished found done."""
    draw: Callable[[Result], tuple[Chart, ...]]
    """Result in, charts out; no mathematics."""
    verdicts: Callable[[Result, Any], tuple[Verdict, ...]]
    """Result and config in, verdicts out; their thresholds are constants that stand before the result."""
    missing: Callable[[Any, Workplace], str]
    """What is missing here to run at all, in one line (no hub, no GPU, no data); empty when nothing is."""
    in_pieces: bool = False
    """Whether `compute` does its long work in pieces (`Workplace.work_off`); otherwise all of it is one piece."""
    so_far: Callable[[Any, Workplace], Part | None] | None = None
    """What the finished pieces say while others are left, without computing them; None if nothing yet. `draw` and
    `verdicts` must cope with all that it returns."""
    schema: int = 1
    """To be counted up when `compute` changes what it returns for the same config: results kept before do not count."""

    def config(self, preset: str) -> Any:
        """Return the config of a preset, refusing unknown ones with the nearest match."""
        if preset not in self.configs:
            raise UnknownNameError("preset", preset, self.configs)
        return self.configs[preset]()


def nothing_missing(config: Any, workplace: Workplace) -> str:
    """Return the empty reason: for an experiment that runs anywhere."""
    return ""
