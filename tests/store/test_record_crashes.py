"""Dying at any moment costs at most the rows of the last interval, and the next writer finishes the run."""

import errno
import json
import os
import random
import signal
import time
from functools import partial

import pandas
import pytest
from store.faults import Faults
from store.mortality import end_of, ended, forked

from joma.store import DiskFullError, RunLockedError, files, info, is_open, open_run, read, read_events, tables

NUM_STEPS = 6
"""Steps of the short run that dies at every operation in turn."""
AGAIN_AT = 3
"""Step at which another one begins again."""
NUM_KILLS = 25
"""Kills that must hit a writer while it holds the run."""
FLUSH_SECONDS = 0.01


@pytest.fixture
def merging_often(monkeypatch):
    """To be killed in the middle of it."""
    monkeypatch.setattr(tables, "MAX_SMALL_PARTS", 4)


# What the children do that die on the way.


def noting(log):
    """A function that notes what a child has done, as a line of JSON that survives it."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda **entry: os.write(handle, (json.dumps(entry) + "\n").encode())


def write_step(run, step):
    """Add a row of its own, rewrite a row of all steps, and tell an event."""
    run.event(step, "audit", f"step {step}", evidence={"step": step})
    run.add(step, "loss", step / 2, site="a", layer=0)
    run.add(-1, "latest", step, site="a")


def last_step(folder):
    table = tables.load(folder, tables.METRICS, {})
    return max(table["step"].to_pylist(), default=-1)


def short_run(folder, log):
    """Write a short run in three parts."""
    note = noting(log)
    with open_run(folder, kind="train", config={}, flush_seconds=1e9) as run:
        for step in range(max(last_step(folder), 0), NUM_STEPS):
            write_step(run, step)
            if step % 2:
                run.flush()
                note(durable=step)
    note(durable=NUM_STEPS - 1)


def run_again(folder):
    """Begin a run again in its middle, with other values, in three parts."""
    with open_run(folder, kind="train", config={}, flush_seconds=1e9) as run:
        run.begin_again(AGAIN_AT)
        for step in range(AGAIN_AT, NUM_STEPS):
            run.event(step, "audit", "again")
            run.add(step, "loss", -step)
            run.flush()


def endless_run(folder, log, seed):
    """Write steps for ever, closing and opening the run every now and then."""
    note = noting(log)
    rng = random.Random(seed)
    while True:
        with open_run(folder, kind="train", config={}, flush_seconds=FLUSH_SECONDS) as run:
            first = max(last_step(folder), 0)  # again: only part of its rows may have been written
            for step in range(first, first + rng.randrange(2, 60)):
                begun = time.monotonic()
                write_step(run, step)
                note(step=step, begun=begun, done=time.monotonic())
                time.sleep(rng.random() * 1e-3)
        note(durable=step)


def contender(folder, log, start, num_losers):
    """Try to open a run at the same moment as others; hold it until all of those have given up."""
    note = noting(log)
    while time.monotonic() < start:
        pass
    try:
        run = open_run(folder, kind="train", config={})
    except RunLockedError:
        note(loser=os.getpid())
        return
    note(winner=os.getpid())
    while log.read_text().count("loser") < num_losers:
        time.sleep(1e-3)
    run.flush()
    os._exit(9)  # leaves its lock to the next round


# What they leave.


def entries(log):
    """What the child noted; a line that it could not end is left out."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def steps_on_disk(folder):
    """The steps of a run, after checking that each is there once, with its values, and none before it is missing."""
    table = read(folder)
    rows = table[table["metric"] == "loss"]
    steps = rows["step"].tolist()
    assert steps == list(range(len(steps)))
    assert (rows["value"] == rows["step"] / 2).all()
    latest = table.loc[table["metric"] == "latest", "value"].tolist()
    assert not steps or latest in ([steps[-1]], [steps[-1] - 1] if steps[-1] else [])
    return steps


def events_on_disk(folder):
    events = read_events(folder)
    assert events["step"].is_unique
    assert [json.loads(evidence)["step"] for evidence in events["evidence"]] == events["step"].tolist()
    return set(events["step"])


def assert_whole(folder, num_steps):
    """The run is finished, with every row once, and nothing lies about."""
    assert steps_on_disk(folder) == list(range(num_steps))
    assert (info(folder).status, is_open(folder)) == ("finished", False)
    names = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert names - {"run.lock"} == {"events", "metrics", "run.json"}  # a lock that could not be removed locks nothing


def finish(folder, num_steps):
    """Go on with a run as whoever takes it over does: from its last step."""
    with open_run(folder, kind="train", config={}) as run:
        for step in range(max(len(steps_on_disk(folder)) - 1, 0), num_steps):
            write_step(run, step)


@pytest.mark.usefixtures("merging_often")
def test_dying_at_every_operation_in_turn(tmp_path):
    at, code = 0, None
    while code != 0:
        at += 1
        folder, log = tmp_path / str(at), tmp_path / f"{at}.log"
        code = ended(partial(short_run, folder, log), at=at)
        assert code in (-9, 0)
        durable = max((entry["durable"] for entry in entries(log)), default=-1)
        if not (folder / "run.json").exists():
            assert durable == -1
        else:
            assert set(range(durable + 1)) <= set(steps_on_disk(folder)) <= events_on_disk(folder)
        finish(folder, NUM_STEPS)
        assert_whole(folder, NUM_STEPS)
        assert events_on_disk(folder) == set(range(NUM_STEPS))
    assert at > 70  # opening, three parts of two tables, two merges, the end


@pytest.mark.usefixtures("merging_often")
def test_dying_at_every_operation_of_a_run_that_is_begun_again(tmp_path):
    """What was recorded from its first step on is there as it was, or gone and made anew so far: never both."""
    length = NUM_STEPS + 2  # further than the second one comes
    losses = states(list(range(length)), [-step for step in range(NUM_STEPS)])
    words = states(["first"] * length, ["again"] * NUM_STEPS)
    at, code, seen = 0, None, []
    while code != 0:
        at += 1
        folder = tmp_path / str(at)
        with open_run(folder, kind="train", config={}) as run:
            for step in range(length):
                run.event(step, "audit", "first")
                run.add(step, "loss", step)
        code = ended(partial(run_again, folder), at=at)
        assert code in (-9, 0)
        written = losses.index(read(folder)["value"].tolist())
        told = words.index(read_events(folder)["message"].tolist())
        assert told - written in (0, 1)  # events come first
        seen.append((written, told))
        assert ended(partial(run_again, folder)) == 0
        assert read(folder)["value"].tolist() == losses[-1]
        assert pandas.read_parquet(folder / "metrics").equals(read(folder))
        assert read_events(folder)["message"].tolist() == words[-1]
    assert seen == sorted(seen) and len(set(seen)) == 2 * len(losses) - 1


def states(first, again):
    """A column before a run is begun again, and behind every step of that."""
    return [first, *(first[:AGAIN_AT] + again[AGAIN_AT : step + 1] for step in range(AGAIN_AT, len(again)))]


@pytest.mark.usefixtures("merging_often")
def test_kill_9_at_random_moments(tmp_path):
    folder = tmp_path / "run"
    rng = random.Random(1)
    num_hits = number = known = 0
    while num_hits < NUM_KILLS:
        number += 1
        log = tmp_path / f"{number}.log"
        code = ended(partial(endless_run, folder, log, number), kill_after=rng.uniform(0.0, 0.25))
        assert code == -signal.SIGKILL
        num_hits += (folder / "writer.json").exists()
        if not (folder / "run.json").exists():
            assert not entries(log)
            continue
        steps = set(steps_on_disk(folder))
        assert must_be_there(entries(log)) <= steps, number
        assert steps <= events_on_disk(folder), number
        assert len(steps) >= known, number
        known = len(steps)
    assert known > 0
    finish(folder, known + 50)
    assert_whole(folder, known + 50)


def must_be_there(noted):
    """Steps that were closed, or were done an interval before the last step that was begun and done."""
    closed = max((entry["durable"] for entry in noted if "durable" in entry), default=-1)
    steps = [entry for entry in noted if "step" in entry]
    limit = steps[-1]["begun"] - FLUSH_SECONDS if steps else 0.0
    first = min((entry["step"] for entry in steps), default=0)
    return {entry["step"] for entry in steps if entry["done"] < limit} | set(range(first, closed + 1))


def test_of_many_that_open_a_dead_run_at_once_one_wins(tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    for number in range(1, 11):
        work = partial(contender, folder, log, time.monotonic() + 0.2, 5 * number)
        assert sorted(map(end_of, [forked(work) for _ in range(6)])) == [0] * 5 + [9]
        assert sum("winner" in entry for entry in entries(log)) == number


def test_a_full_disk_at_any_point_can_be_tried_again(tmp_path):
    at = 1
    while fail_once(tmp_path / str(at), at):
        at += 1
    assert at > 70


def fail_once(folder, at):
    """Write a run while the operation number `at` finds no room, trying again what failed; whether it came so far."""
    failures = []

    def insisting(action):
        try:
            return action()
        except OSError as error:
            failures.append(error)
            return action()

    with Faults(at=at, code=errno.ENOSPC) as faults:
        run = insisting(lambda: open_run(folder, kind="train", config={}, flush_seconds=1e9))
        for step in range(NUM_STEPS):
            write_step(run, step)
            if step % 2:
                insisting(run.flush)
                assert step in steps_on_disk(folder)
        insisting(run.close)
    assert_whole(folder, NUM_STEPS)
    assert events_on_disk(folder) == set(range(NUM_STEPS))
    if failures and faults.trace[at - 1] != "unlink":  # which needs no room
        assert isinstance(failures[0], DiskFullError)
    return len(faults.trace) >= at


def test_a_full_disk_costs_no_row_and_is_not_tried_at_every_row(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("joma.store.record.monotonic", lambda: now)
    run = open_run(tmp_path, kind="train", config={}, flush_seconds=10.0)
    run.add(0, "loss", 0.0)
    run.flush()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    now = 11.0
    run.add(1, "loss", 1.0)
    with Faults(at=3, code=errno.ENOSPC), pytest.raises(DiskFullError, match="The disk is full"):
        run.add(2, "loss", 2.0)
    run.add(3, "loss", 3.0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before
    now = 22.0
    run.add(4, "loss", 4.0)
    assert read(tmp_path)["step"].tolist() == [0, 1, 2, 3]
    run.end_step()
    assert 4 not in read(tmp_path)["step"].tolist()  # nothing is due
    now = 33.0
    run.end_step()
    assert read(tmp_path)["step"].tolist() == [0, 1, 2, 3, 4]
    run.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_the_real_error_of_a_full_device_is_recognised(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "open", lambda *_: open("/dev/full", "wb"), raising=False)
    with pytest.raises(DiskFullError, match="The disk is full"):
        files.write_bytes(tmp_path / "file", b"content")
    assert not os.listdir(tmp_path)
