"""Runs as the page shows them: read once, and those that differ only in their seed gathered in groups."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.store import RunInfo, info, is_open, read, read_events

if TYPE_CHECKING:
    import pandas

SEED_KEY = re.compile(r"(^|[_.-])seeds?$", re.IGNORECASE)
"""Names of settings that are seeds: seed, seeds, data_seed."""
SEED_IN_NAME = re.compile(r"seed[-_= ]?(\d+)", re.IGNORECASE)
"""A seed in the name of a folder, a file or a repository: seed-3, pythia-70m-seed3."""
ANY_SEED = "seed*"
COST = "cost"
"""Kind of the rows that tell what measuring took."""
_WORDS = ("site", "kind", "metric", "flag")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run with its tables, and what became of it."""

    name: str
    """Path below the folder of the report."""
    info: RunInfo
    values: "pandas.DataFrame"
    events: "pandas.DataFrame"
    """What happened and was not withdrawn; `evidence` is a dictionary."""
    status: str
    """finished, failed, interrupted (nobody writes it any more) or being written."""
    seed: str
    """Empty when no setting and no name tells it."""

    @property
    def num_measurements(self) -> int:
        """Steps with a measured value; what was not loaded has a cost alone."""
        return int(self.measured["step"].nunique())

    @property
    def measured(self) -> "pandas.DataFrame":
        """Rows of what was measured, without what that took."""
        return self.values[self.values["kind"] != COST]

    @property
    def seconds(self) -> float:
        """What measuring took, all in all."""
        return float(self.cost["value"].sum())

    @property
    def cost(self) -> "pandas.DataFrame":
        """Rows of what measuring took."""
        rows = self.values
        return rows[(rows["kind"] == COST) & (rows["metric"] == "seconds")]

    @property
    def wall_seconds(self) -> float | None:
        """Time from start to end, of a run that went through in one piece."""
        if self.info.ended is None or self.info.resumed:
            return None
        begun, ended = (datetime.fromisoformat(time) for time in (self.info.started, self.info.ended))
        return (ended - begun).total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs of one kind and configuration that differ only in their seed; often a single one."""

    name: str
    runs: tuple[Run, ...]

    @property
    def is_averaged(self) -> bool:
        """Whether there is more than one seed."""
        return len(self.runs) > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """A folder that holds a run which cannot be read, and why."""

    name: str
    reason: str


def load(folders: Sequence[Path], root: Path) -> tuple[list[Run], list[Unreadable]]:
    """Read the runs in these folders; one that cannot be read is told and does not stop the others."""
    runs, unreadable = [], []
    for folder in folders:
        name = _name(folder, root)
        try:
            runs.append(_load(folder, name))
        except (ValueError, OSError) as error:
            unreadable.append(Unreadable(name=name, reason=" ".join(str(error).split())))
    return runs, unreadable


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Gather runs of the same kind and configuration, each seed once; the others stay alone. In order of name."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_identity(run), []).append(run)
    groups = []
    for members in alike.values():
        seeds = {run.seed for run in members}
        if len(members) > 1 and "" not in seeds and len(seeds) == len(members):
            groups.append(Group(name=_common_name(members), runs=tuple(sorted(members, key=_by_seed))))
        else:
            groups += [Group(name=run.name, runs=(run,)) for run in members]
    return sorted(groups, key=lambda group: group.name)


def trusted(values: "pandas.DataFrame") -> "pandas.Series[bool]":
    """Return which values are to be trusted: those that have no flag and are finite."""
    return (values["flag"] == "") & np.isfinite(values["value"])


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Walk through nested settings and yield each with its path.

    >>> list(flat({"alarm": {"patience": 3}, "measures": ["entropy", "ranks"], "text": None}))
    [('alarm.patience', '3'), ('measures', 'entropy, ranks'), ('text', 'none')]
    """
    if isinstance(value, dict) and (value or not name):
        for key, entry in value.items():
            yield from flat(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        for index, entry in enumerate(value):
            yield from flat(entry, f"{name}[{index}]")
    else:
        yield name, _shown(value)


def _load(folder: Path, name: str) -> Run:
    about = info(folder)
    values = read(folder).astype(dict.fromkeys(_WORDS, "category"))
    status: str = about.status
    if status == "running":
        status = "being written" if is_open(folder) else "interrupted"
    seed = ", ".join(dict.fromkeys([*_seeds(about.config), *_seeds(about.about)]))
    seed = seed or ", ".join(SEED_IN_NAME.findall(name))
    return Run(name=name, info=about, values=values, events=_events(folder), status=status, seed=seed)


def _events(folder: Path) -> "pandas.DataFrame":
    table = read_events(folder)
    evidence = [_parsed(text) for text in table["evidence"]]
    stands = [not each.get("withdrawn") for each in evidence]
    return table.assign(evidence=evidence).loc[stands]


def _parsed(text: str) -> dict[str, Any]:
    """Read evidence; what is no JSON object is kept as it is."""
    try:
        evidence = json.loads(text)
    except ValueError:
        evidence = text
    return evidence if isinstance(evidence, dict) else {"evidence": evidence}


def _name(folder: Path, root: Path) -> str:
    path = folder.resolve().name if folder == root else folder.relative_to(root)
    return os.fsencode(path).decode("utf-8", "replace")


def _identity(run: Run) -> str:
    """What runs of one group have in common, as text; the name counts where it alone tells the seed."""
    told = any(_seeds(run.info.config)) or any(_seeds(run.info.about))
    name = "" if told else SEED_IN_NAME.sub(ANY_SEED, run.name)
    parts = [run.info.kind, name, _seedless(run.info.config), _seedless(run.info.about)]
    return json.dumps(parts, sort_keys=True)


def _seeds(value: Any) -> Iterator[str]:
    """Yield the seeds among settings: under names that say so, and inside of names such as pythia-70m-seed3."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if SEED_KEY.search(key) and entry is not None:
                yield _shown(entry)
            else:
                yield from _seeds(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _seeds(entry)
    elif isinstance(value, str):
        yield from SEED_IN_NAME.findall(value)


def _seedless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _seedless(entry) for key, entry in value.items() if not SEED_KEY.search(key)}
    if isinstance(value, list):
        return [_seedless(entry) for entry in value]
    return SEED_IN_NAME.sub(ANY_SEED, value) if isinstance(value, str) else value


def _common_name(runs: Sequence[Run]) -> str:
    patterns = {SEED_IN_NAME.sub(ANY_SEED, run.name) for run in runs}
    if len(patterns) == 1:
        return patterns.pop()
    return f"{runs[0].name} and {len(runs) - 1} more seed{'s' if len(runs) > 2 else ''}"  # noqa: PLR2004 (a plural)


def _by_seed(run: Run) -> tuple[bool, int, str]:
    is_number = run.seed.isdecimal()
    return not is_number, int(run.seed) if is_number else 0, run.seed


def _shown(value: Any) -> str:
    if isinstance(value, list) and value:
        return ", ".join(_shown(entry) for entry in value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else json.dumps(value)
