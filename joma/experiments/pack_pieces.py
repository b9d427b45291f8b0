"""Packs of runs as pieces of work: what is left of each, and none longer than a call."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from joma.engine.config import RunConfig
from joma.engine.plan import Pack, PackPlan, counted_seconds, packs_of, tried_seconds
from joma.engine.snapshots import steps_of
from joma.experiments.ended_runs import ended_run
from joma.experiments.timetable import SETUP_SECONDS, Piece, Tell, Timetable
from joma.figures.numbers import counted

PACKS = "packs"
"""Kind of these pieces."""
SNAPSHOT_SECONDS = 300.0
"""Between snapshots on a GPU, where a pack takes a few minutes: one of twenty networks is 3 to 9 GB, and to write it in
the middle of a pack takes longer than what it might save."""


def pack_pieces(
    plans: Iterable[PackPlan],
    folder: Path,
    *,
    device: str,
    timetable: Timetable,
    name: str,
    work: Callable[[Pack, Tell], None],
    afterwards: Callable[[RunConfig], float] = lambda config: 0.0,
) -> list[Piece]:
    """Return a piece for each pack, whose runs lie below `folder`; one that no call has time for is split.

    `afterwards` says how many seconds each run of a pack takes behind its training; it is asked once for a pack.
    """
    setup = SETUP_SECONDS[torch.device(device).type]
    is_limited = math.isfinite(timetable.limit)

    def pieces_of(plan: PackPlan) -> list[Piece]:
        with timetable.log.aside():  # what is tried to foretell the work
            paced = replace(plan, seconds=plan.seconds * _pace(plan, device)) if is_limited else plan
            after = afterwards(plan.pack.config)

        def piece(part: PackPlan) -> Piece:
            return Piece(
                kind=PACKS,
                name=f"{name}: {counted(part.pack.num_runs, 'run')}",
                seconds=part.seconds * _share_left(part, folder) + after * part.pack.num_runs,
                setup=setup,
                work=lambda tell: work(_seldom_saved(part.pack, device), tell),
            )

        parts = _parts(paced, lambda part: timetable.expected(piece(part)), timetable.longest)
        return [piece(part) for part in parts]

    return [each for plan in plans for each in pieces_of(plan)]


def _seldom_saved(pack: Pack, device: str) -> Pack:
    """Return the pack with its snapshots as far apart as suits the device."""
    if torch.device(device).type == "cpu":
        return pack
    seldom = {"snapshot_seconds": SNAPSHOT_SECONDS}
    return Pack(runs=tuple(replace(run, config=run.config.update(seldom)) for run in pack.runs))


def _pace(plan: PackPlan, device: str) -> float:
    """Return what a step takes over what was counted, which on a CPU that others use too can be far off."""
    there, first = torch.device(device), plan.pack.config
    return tried_seconds(first, 1) / counted_seconds(there)(first, 1) if there.type == "cpu" else 1.0


def _parts(plan: PackPlan, expected: Callable[[PackPlan], float], longest: float) -> list[PackPlan]:
    """Split a pack into as few even ones as are expected to take no longer than that, or into its runs."""
    num_runs = plan.pack.num_runs
    for most in sorted({math.ceil(num_runs / parts) for parts in range(1, num_runs + 1)}, reverse=True):
        found = _split(plan, most)
        if all(expected(each) <= longest for each in found):
            break
    return found


def _split(plan: PackPlan, most: int) -> list[PackPlan]:
    return [part_of(plan, pack) for pack in packs_of(plan.pack.runs, lambda config: most)]


def part_of(plan: PackPlan, pack: Pack) -> PackPlan:
    """Return what a part of a pack takes."""
    share = pack.num_runs / plan.pack.num_runs
    return replace(
        plan,
        pack=pack,
        tokens_per_step=round(plan.tokens_per_step * share),
        num_bytes=round(plan.num_bytes * share),
        seconds=plan.seconds * share,
    )


def _share_left(plan: PackPlan, folder: Path) -> float:
    """Return the part of its steps that a pack has before it.

    It goes on from where the last of its runs stands that did not diverge.
    """
    ends = {run.name: ended_run(run, folder) for run in plan.pack.runs}
    going = [name for name, end in ends.items() if end is None or end.failed_at is None]
    done = min((max(steps_of(folder / name), default=0) for name in going), default=plan.num_steps)
    return 1 - min(done / plan.num_steps, 1.0)
