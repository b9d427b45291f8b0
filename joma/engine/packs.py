"""Packs: runs of one shape that are trained at once, as many as fit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from joma.engine.config import RunConfig
from joma.engine.grid import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Runs of one shape (`RunConfig.shape`): they differ in rates, seeds and the like. Their configs are complete."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        """Refuse a pack of nothing, of several shapes, or with a run twice."""
        if not self.runs:
            raise ValueError("A pack needs a run at least, got none. Give the grid a value on every axis.")
        if len({run.config.shape for run in self.runs}) > 1:
            raise ValueError("Runs of a pack must have one shape, got several. Form packs with `packs_of`.")
        if len(set(self.names)) < len(self.runs):
            raise ValueError("Runs of a pack must have names of their own, got one twice. Form packs with `packs_of`.")

    @property
    def num_runs(self) -> int:
        """R, the runs trained at once."""
        return len(self.runs)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the runs, which are the names of their folders."""
        return tuple(run.name for run in self.runs)

    @property
    def configs(self) -> tuple[RunConfig, ...]:
        """Configs of the runs."""
        return tuple(run.config for run in self.runs)

    @property
    def config(self) -> RunConfig:
        """Config of the first run, for everything that the runs share."""
        return self.runs[0].config


def packs_of(runs: Iterable[Run], most: Callable[[RunConfig], int]) -> tuple[Pack, ...]:
    """Return packs with the runs of each shape in their order, split evenly where more than `most` runs would not fit.

    `most` is asked once for each shape, with its first run.
    """
    by_shape: dict[str, list[Run]] = {}
    for run in runs:
        by_shape.setdefault(run.config.shape, []).append(run)
    return tuple(pack for same in by_shape.values() for pack in _split(same, most(same[0].config)))


def _split(runs: list[Run], most: int) -> list[Pack]:
    if most < 1:
        raise ValueError(f"The run {runs[0].name} does not fit on its own. Make the model or the batch smaller.")
    num_packs = -(-len(runs) // most)
    sizes = [len(runs) // num_packs + (i < len(runs) % num_packs) for i in range(num_packs)]
    starts = [sum(sizes[:i]) for i in range(num_packs)]
    return [Pack(runs=tuple(runs[at : at + size])) for at, size in zip(starts, sizes, strict=True)]
