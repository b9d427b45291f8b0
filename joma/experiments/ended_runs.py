"""Runs that have ended, by their records alone: neither weights nor data nor a GPU are needed to read them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joma.engine.config import RunConfig
from joma.engine.grid import UNNAMED, Run
from joma.engine.resume import DIVERGED
from joma.experiments.origins import UNKNOWN, joined
from joma.store import info, read_events
from joma.store.record import FILE_NAME, RunInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRun:
    """A run that was trained to its end, or diverged."""

    folder: Path
    config: RunConfig
    """As it was trained."""
    status: str
    """`finished`, or `failed` for a run that diverged."""
    step: int
    """Steps done."""
    failed_at: int | None
    """Step at which it diverged."""
    git_commit: str = UNKNOWN
    """The software that trained it; commits that did so one after the other are joined."""


def ended_run(run: Run, root: Path) -> EndedRun | None:
    """Return the run as its record below `root` has it; None if it has not ended there, or is another run."""
    folder = root / run.name
    if not (folder / FILE_NAME).exists():
        return None
    record = info(folder)
    config = RunConfig.from_dict(record.config)
    if _settings(config) != _settings(run.config):
        return None
    failed_at = _failed_at(folder) if record.status == "failed" else None
    if record.status != "finished" and failed_at is None:
        return None
    return EndedRun(
        folder=folder,
        config=config,
        status=record.status,
        step=int(record.about["num_steps"]) if failed_at is None else failed_at,
        failed_at=failed_at,
        git_commit=joined(_commits(record)),
    )


def _commits(record: RunInfo) -> Iterator[str]:
    """Return the commits that worked on a run, in their order."""
    for commit in (*(before.get("git_commit") for before in record.earlier), record.git_commit):
        yield commit or UNKNOWN


def _failed_at(folder: Path) -> int | None:
    """Return the step at which a run diverged; None for one that something else ended."""
    events = read_events(folder)
    steps = events.loc[events["kind"] == DIVERGED, "step"]
    return int(steps.iloc[0]) if len(steps) else None


def _settings(config: RunConfig) -> dict[str, object]:
    """Everything that makes a run what it is; its vocabulary follows from the data."""
    return {name: value for name, value in config.flat().items() if name not in UNNAMED}
