"""A training killed at any moment leaves whole files, and the next call makes of it what one in peace would have been.

Numbers are held against those of the uninterrupted training bit for bit, at every death for whatever is on disk, and in
the end for everything.
"""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import torch

from engine.small_runs import folders, pack
from joma.engine import snapshots
from joma.engine.snapshots import load_snapshot
from joma.runs.record import info, is_open, read, read_events

NUM_KILLS = 60
SHORT = {"seeds": [1, 2], "steps": 2, "snapshot_every": 1, "measure_every": 2, "checkpoint_every": 2}
"""A training that dies at every operation in turn."""
LONGER = {"seeds": [1, 2, 3], "diverging": [3], "steps": 24, "snapshot_every": 5, "checkpoint_every": 8}
"""A training that is killed at random moments; one of its runs fails."""


@pytest.fixture(scope="module")
def train_mortally():
    """A function that has a child of another process train and die, and returns how it ended and how long it lived."""
    script = Path(__file__).with_name("mortal_train.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def order(settings, folder, **death):
            process.stdin.write(json.dumps({"settings": settings, "folder": str(folder), **death}) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            return answer["ended"], answer["seconds"]

        yield order
        process.stdin.close()


def rows_of(folder):
    """Rows by key, with their values exactly."""
    table = read(folder)
    assert not table.duplicated(["step", "site", "head", "metric"]).any()
    return {
        (row.step, row.site, row.head, row.metric): (row.value.hex(), row.kind, row.layer, row.flag)
        for row in table.itertuples()
    }


def assert_part_of(folder, whole):
    """Whatever is on disk is as in the uninterrupted run; nothing up to the last snapshot is missing."""
    if not (folder / "run.json").exists():
        return
    found, expected = rows_of(folder), rows_of(whole)
    assert found.items() <= expected.items()
    steps = snapshots.steps_of(folder)
    for step in steps:
        assert load_snapshot(snapshots.path_of(folder, step)).step == step
    reached = max(steps, default=-1)
    assert {key for key in expected if key[0] <= reached} <= found.keys()


def files_in(folder):
    """All files but parts, which are numbered by flushes, and the lock: who dies behind the end leaves it, unlocked."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.suffix not in (".parquet", ".lock")}


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


@pytest.mark.slow
def test_dying_at_every_operation_in_turn(tmp_path, train_mortally):
    whole = tmp_path / "whole"
    assert train_mortally(SHORT, whole)[0] == 0
    at, ended = 0, None
    while ended != 0:
        at += 1
        out = tmp_path / str(at)
        ended, _ = train_mortally(SHORT, out, at=at)
        assert ended in (9, 0), at
        for own, reference in zip(folders(out, pack(**SHORT)), folders(whole, pack(**SHORT)), strict=True):
            assert_part_of(own, reference)
        assert train_mortally(SHORT, out)[0] == 0
        for own, reference in zip(folders(out, pack(**SHORT)), folders(whole, pack(**SHORT)), strict=True):
            assert_same(own, reference)
    assert at > 130  # opening, three snapshots and two checkpoints of two runs, parts, merging, the end


@pytest.mark.slow
def test_kill_9_at_random_moments(tmp_path, train_mortally):
    whole = tmp_path / "whole"
    ended, seconds = train_mortally(LONGER, whole)
    assert ended == 0
    assert [info(folder).status for folder in folders(whole, pack(**LONGER))] == ["finished", "finished", "failed"]
    rng = random.Random(1)
    num_kills = num_held = num_rounds = 0
    while num_kills < NUM_KILLS:
        out = tmp_path / f"out{num_rounds}"
        ended, _ = train_mortally(LONGER, out, kill_after=rng.uniform(0.0, 0.8 * seconds))
        assert ended in (-signal.SIGKILL, 0)
        num_kills += ended == -signal.SIGKILL
        pairs = list(zip(folders(out, pack(**LONGER)), folders(whole, pack(**LONGER)), strict=True))
        num_held += any((own / "run.lock").exists() for own, _ in pairs)
        for own, reference in pairs:
            assert_part_of(own, reference)
        if num_kills == NUM_KILLS:
            ended, _ = train_mortally(LONGER, out)
        if ended == 0:
            for own, reference in pairs:
                assert_same(own, reference)
            num_rounds += 1
    assert num_held > NUM_KILLS // 2  # the others came before the start or behind the end
    assert num_rounds > 1
