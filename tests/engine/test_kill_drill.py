"""A training killed at any moment leaves whole files, and the next call makes of it what one in peace would have been.

Numbers are held against those of the uninterrupted training bit for bit, at every death for whatever is on disk, and in
the end for everything.
"""

import functools
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import pandas
import pytest
import torch
from store.mortality import orders

from engine.small_runs import DIVERGING_RATE
from joma.engine import snapshots
from joma.engine.snapshots import load_snapshot
from joma.store import info, is_open, read, read_events

NUM_KILLS = 60
SHORT = {"seeds": [1, 2], "steps": 2, "snapshot_every": 1, "measure_every": 2, "checkpoint_every": 2}
"""A training that dies at every operation in turn."""
LONGER = {
    "num_latents": [[4, 5]],
    "num_children": 2,
    "num_tokens": 12,
    "num_classes": 4,
    "window": 8,
    "batch": 16,
    "width": 8,
    "hidden": 8,
    "heads": 2,
    "dropout": 0.1,
    "depth": [1, 2],
    "lr": [1e-2, DIVERGING_RATE, 3e-2],
    "seed": 1,
    "precision": "float64",
    "steps": 12,
    "snapshot_every": 3,
    "measure_every": 4,
    "checkpoint_every": 8,
}
"""A grid that is killed at random moments: two depths, the deeper one split into two packs; two of its runs fail."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """How a training ended."""

    ended: int
    """Exit code, or minus the signal that killed it."""
    seconds: float
    packs: list[list[str]]
    """Names of the runs in each pack."""


@pytest.fixture(scope="module")
def train_mortally():
    """A function that has a child of another process train and die, and returns how that went."""
    with orders(Path(__file__).with_name("mortal_train.py")) as order:
        yield lambda folder, **what: Death(**order({"folder": str(folder), **what}))


def rows_of(folder):
    """Rows by key, with their values exactly."""
    table = read(folder)
    assert not table.duplicated(["step", "site", "head", "metric"]).any()
    return {
        (row.step, row.site, row.head, row.metric): (row.value.hex(), row.kind, row.layer, row.flag)
        for row in table.itertuples()
    }


@functools.cache
def rows_of_whole(folder):
    """Rows of a run that ended in peace, read once."""
    return rows_of(folder)


def assert_part_of(folder, whole):
    """Whatever is on disk is as in the uninterrupted run; nothing up to the last snapshot is missing."""
    if not (folder / "run.json").exists():
        return
    found, expected = rows_of(folder), rows_of_whole(whole)
    assert found.items() <= expected.items()
    steps = snapshots.steps_of(folder)
    for step in steps:
        assert load_snapshot(snapshots.path_of(folder, step)).step == step
    reached = max(steps, default=-1)
    assert {key for key in expected if key[0] <= reached} <= found.keys()


def files_in(folder):
    """All files but parts, which are numbered by flushes, and the lock: who dies behind the end leaves it, unlocked."""
    paths = {path.relative_to(folder) for path in folder.rglob("*")}
    return {path for path in paths if path.suffix != ".parquet" and path.name not in ("run.lock", "writer.json")}


def assert_same(folder, whole):
    """The run ended as the uninterrupted one did: rows, events, weights and files."""
    pandas.testing.assert_frame_equal(read(folder), read(whole), check_exact=True)
    pandas.testing.assert_frame_equal(read_events(folder), read_events(whole))
    assert info(folder).status == info(whole).status
    assert not is_open(folder)
    paths = files_in(whole)
    assert files_in(folder) == paths
    for path in paths:
        if path.suffix == ".safetensors":
            ours, theirs = load_snapshot(folder / path).tensors, load_snapshot(whole / path).tensors
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def locks_in(out):
    """What the locks say; no two that were ever placed say the same."""
    return {path.read_text() for path in out.glob("*/writer.json")}


def ended_packs(out, packs):
    """Which packs have ended: all runs of theirs."""
    statuses = {path.parent.name: info(path.parent).status for path in out.glob("*/run.json")}
    return [all(statuses.get(name) in ("finished", "failed") for name in names) for names in packs]


@pytest.mark.slow
def test_dying_at_every_operation_in_turn(tmp_path, train_mortally):
    whole = tmp_path / "whole"
    peace = train_mortally(whole, settings=SHORT)
    assert peace.ended == 0
    [names] = peace.packs
    at, ended = 0, None
    while ended != 0:
        at += 1
        out = tmp_path / str(at)
        ended = train_mortally(out, settings=SHORT, at=at).ended
        assert ended in (9, 0), at
        for name in names:
            assert_part_of(out / name, whole / name)
        assert train_mortally(out, settings=SHORT).ended == 0
        for name in names:
            assert_same(out / name, whole / name)
    assert at > 130  # opening, three snapshots and two checkpoints of two runs, parts, merging, the end


@pytest.mark.slow
def test_kill_9_at_random_moments_of_a_grid_of_several_packs(tmp_path, train_mortally):
    task = {"grid": LONGER, "recipe": "table1"}
    whole = tmp_path / "whole"
    peace = train_mortally(whole, **task)
    names = sorted(name for pack in peace.packs for name in pack)
    assert peace.ended == 0 and [len(pack) for pack in peace.packs] == [3, 2, 1]
    assert sorted(info(whole / name).status for name in names) == ["failed"] * 2 + ["finished"] * 4
    rng, longest = random.Random(1), 0.8 * peace.seconds
    num_kills = num_held = num_between = num_rounds = 0
    while num_kills < NUM_KILLS:
        out = tmp_path / f"out{num_rounds}"
        is_new, before = not out.exists(), locks_in(out)
        ended = train_mortally(out, **task, kill_after=rng.uniform(0.0, longest)).ended
        assert ended in (-signal.SIGKILL, 0)
        num_kills += ended == -signal.SIGKILL
        num_held += not locks_in(out) <= before
        num_between += 0 < sum(ended_packs(out, peace.packs)) < len(peace.packs)
        for name in names:
            assert_part_of(out / name, whole / name)
        if num_kills == NUM_KILLS:
            ended = train_mortally(out, **task).ended
        if ended == 0:
            assert sorted(path.name for path in out.iterdir()) == names
            for name in names:
                assert_same(out / name, whole / name)
            num_rounds += 1
            longest *= 0.8 if is_new else 1.0  # the machine has become quicker, and nobody was killed
    assert num_held > NUM_KILLS // 2  # the others came before the start or behind the end
    assert num_between > NUM_KILLS // 4  # one pack had ended, and another had not
    assert num_rounds > 1
