"""Whatever ends a training early, the next call goes on, and the record is that of one that was left in peace."""

import errno
import json
import shutil
import signal
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from store.faults import Faults

from engine.small_runs import config, folders, pack
from joma.engine import loop, resume, snapshots
from joma.engine.config import RunConfig
from joma.engine.grid import Run
from joma.engine.loop import train_pack
from joma.engine.plan import Pack
from joma.store import DiskFullError, RunLockedError, info, is_open, open_run, read, read_events
from joma.store.lock import Lock

STEPS = 12


class Stopped(RuntimeError):
    """What a test ends a training with."""


@pytest.fixture
def stopping(monkeypatch):
    """A function that makes the training raise behind a step, as a crash would that runs handlers."""
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)

    def at(step, error=Stopped):
        def report(progress):
            if progress.step == step:
                raise error

        return report

    return at


def assert_as_in_peace(tmp_path, folder, wanted, ends=None):
    """Every row and snapshot, or end that was taken, is what an uninterrupted training of the same pack writes."""
    train_pack(wanted, tmp_path / "peace")
    for own, reference in zip(folders(folder, wanted), folders(tmp_path / "peace", wanted), strict=True):
        pandas.testing.assert_frame_equal(read(own), read(reference), check_exact=True)
        assert info(own).status == info(reference).status
        steps = snapshots.steps_of(reference)
        assert ends is not None or snapshots.steps_of(own) == steps
        for step in steps:
            theirs = snapshots.load_snapshot(snapshots.path_of(reference, step)).tensors
            taken = None if ends is None else theirs | ends[own.name]
            ours = taken or snapshots.load_snapshot(snapshots.path_of(own, step)).tensors
            assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize(("stop", "every", "extra"), [(4, 3, False), (11, 100, False), (7, 3, True)])
def test_going_on_after_an_exception(tmp_path, stopping, stop, every, extra):
    more = {"measure_extra": extra, "measure_states": extra, "gradient_batches": 2 * extra}
    wanted = pack(seeds=(1, 2, 7), diverging=(7,), steps=STEPS, snapshot_every=every, **more)
    with pytest.raises(Stopped):
        train_pack(wanted, tmp_path / "out", progress=stopping(stop))
    assert [info(folder).status for folder in folders(tmp_path / "out", wanted)] == ["failed"] * 3
    assert "Stopped" in read_events(tmp_path / "out" / "seed1")["message"].item()
    train_pack(wanted, tmp_path / "out")
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


def test_what_has_ended_is_left_alone(tmp_path):
    wanted = pack(seeds=(1, 7), diverging=(7,), steps=4)
    first = train_pack(wanted, tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*")}
    again = train_pack(wanted, tmp_path)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*")} == before
    assert [run.is_new for run in first + again] == [True, True, False, False]
    assert [replace(run, is_new=False) for run in first] == list(again)


def spoil(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.fixture
def stopped(tmp_path, stopping):
    """A pack of two runs that was stopped at step 8 with snapshots of steps 3 and 6, and its folders."""
    wanted = pack(seeds=(1, 2), steps=STEPS, snapshot_every=3)
    with pytest.raises(Stopped):
        train_pack(wanted, tmp_path / "out", progress=stopping(8))
    own = folders(tmp_path / "out", wanted)
    assert [snapshots.steps_of(folder) for folder in own] == [[3, 6], [3, 6]]
    return wanted, own


@pytest.mark.parametrize("spoilt", [((0, 6), (1, 6)), ((0, 3), (0, 6))], ids=str)
def test_a_damaged_snapshot_is_told_and_the_one_before_it_used(tmp_path, stopped, spoilt):
    wanted, own = stopped
    for run, step in spoilt:
        spoil(snapshots.path_of(own[run], step))
    with pytest.warns(RuntimeWarning, match="checksum"):
        train_pack(wanted, tmp_path / "out")
    for run, folder in enumerate(own):
        events = read_events(folder).query("kind == 'snapshot'")
        damaged = [step for each, step in spoilt if each == run]
        assert sorted(events["step"]) == damaged and set(events["level"]) <= {"warning"}
        assert len(list((folder / "snapshots").glob("*.damaged"))) == len(damaged)
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


@pytest.mark.parametrize("damage", ["missing", "a bit"])
def test_lost_rows_are_found_before_training_goes_on(tmp_path, stopped, damage):
    wanted, own = stopped
    for path in own[1].glob("metrics/*.parquet"):
        path.unlink() if damage == "missing" else spoil(path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises((ValueError, FileNotFoundError), match=r"seed2/metrics/\d+\.parquet"):
        train_pack(wanted, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_snapshot_of_another_run_is_not_taken(tmp_path, stopped):
    wanted, own = stopped
    one, other = (snapshots.path_of(folder, 6) for folder in own)
    one.write_bytes(other.read_bytes())
    with pytest.warns(RuntimeWarning, match="belongs to another run"):
        train_pack(wanted, tmp_path / "out")
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


def count_groups(monkeypatch):
    """The runs and the steps of every group that is trained."""
    seen = []
    original = loop._Trainer.train

    def train(trainer, start, stop):
        seen.append(([member.name for member in trainer._group], start, stop))
        original(trainer, start, stop)

    monkeypatch.setattr(loop._Trainer, "train", train)
    return seen


def test_a_pack_that_grows_is_formed_anew_by_steps_and_groups_let_go_of_their_memory(tmp_path, stopping, monkeypatch):
    with pytest.raises(Stopped):
        train_pack(pack(seeds=(1, 2), steps=STEPS, snapshot_every=5), tmp_path / "out", progress=stopping(7))
    groups, known, left = count_groups(monkeypatch), [], []

    class Watched(loop.Stepper):
        def __init__(self, *args, **kwargs):
            left.append(sum(each() is not None for each in known))
            super().__init__(*args, **kwargs)
            known.append(weakref.ref(self))

    wanted = pack(seeds=(1, 2, 3), steps=STEPS, snapshot_every=5)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Stepper", Watched)
        train_pack(wanted, tmp_path / "out")
    assert groups == [(["seed3"], 0, 5), (["seed1", "seed2", "seed3"], 5, STEPS)] and left == [0, 0]
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


def test_runs_that_died_between_their_snapshots_go_on_together(tmp_path, stopped, monkeypatch):
    wanted, own = stopped
    snapshots.path_of(own[1], 6).unlink()  # as if it had not been written yet
    groups = count_groups(monkeypatch)
    train_pack(wanted, tmp_path / "out")
    assert groups == [(["seed1", "seed2"], 3, STEPS)]
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


def test_a_finished_run_is_made_longer(tmp_path):
    train_pack(pack(seeds=(1, 2), steps=8), tmp_path / "out")
    longer = pack(seeds=(1, 2), steps=STEPS)
    result = train_pack(longer, tmp_path / "out")
    assert [(run.step, run.is_new) for run in result] == [(STEPS, True)] * 2
    assert_as_in_peace(tmp_path, tmp_path / "out", longer)
    events = read_events(tmp_path / "out" / "seed1")
    withdrawn = events["evidence"].str.contains("withdrawn")
    assert set(events.loc[withdrawn, "step"]) == {8}
    assert set(events.loc[~withdrawn, "step"]) == {STEPS}
    assert info(tmp_path / "out" / "seed1").about["num_steps"] == STEPS
    shorter = train_pack(pack(seeds=(1, 2), steps=8), tmp_path / "out")
    assert [(run.step, run.is_new) for run in shorter] == [(STEPS, False)] * 2


def refused(tmp_path, error, match, **changes):
    """The pack is refused, and nothing in the folder is touched."""
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(error, match=match):
        train_pack(pack(seeds=(1, 3), **changes), tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_another_run_in_the_folder_is_refused_before_anything_is_written(tmp_path):
    train_pack(pack(seeds=(1,), steps=4, schedule="cosine"), tmp_path)
    refused(tmp_path, ValueError, "holds a run with `lr` 0.01, not 0.5", steps=4, schedule="cosine", lr=0.5)
    refused(tmp_path, ValueError, "goes down to zero at step 4, so the run cannot have 9", steps=9, schedule="cosine")
    (tmp_path / "seed3").mkdir()
    open_run(tmp_path / "seed3", kind="watch", config={}).close()
    refused(tmp_path, ValueError, "kind 'watch', not 'train'", steps=4, schedule="cosine")


def test_fewer_steps_than_were_done_are_refused(tmp_path, stopping):
    with pytest.raises(Stopped):
        train_pack(pack(seeds=(1,), steps=STEPS, snapshot_every=3), tmp_path, progress=stopping(8))
    refused(tmp_path, ValueError, "has done 6 steps, more than the 4", steps=4)
    train_pack(pack(seeds=(1,), steps=STEPS), tmp_path)
    assert info(tmp_path / "seed1").status == "finished"


def test_other_data_are_refused(tmp_path, monkeypatch):
    train_pack(pack(seeds=(1,), steps=4), tmp_path)
    run = Run(name="seed1", config=config(1, steps=4))
    size = loop.data_size(run.config)
    monkeypatch.setattr(resume, "data_hash", lambda data: "f00")
    with pytest.raises(ValueError, match="have changed since it was begun"):
        resume.inspect_run(run, tmp_path, size)


def test_a_lock_that_comes_in_between_lets_go_of_the_others(tmp_path, monkeypatch):
    wanted = pack(seeds=(1, 2), steps=4)
    (tmp_path / "seed2").mkdir()
    lock = Lock(tmp_path / "seed2")
    with pytest.raises(RunLockedError, match="is writing to this folder"):
        train_pack(wanted, tmp_path)
    assert not is_open(tmp_path / "seed1")
    assert info(tmp_path / "seed1").status == "running"
    lock.release()
    train_pack(wanted, tmp_path)
    assert_as_in_peace(tmp_path / "other", tmp_path, wanted)


@pytest.mark.parametrize("at", [80, 140])
def test_a_full_disk_is_told_and_what_was_written_is_whole(tmp_path, at):
    wanted = pack(seeds=(1, 2), steps=STEPS, snapshot_every=2)
    with pytest.raises(DiskFullError, match="The disk is full"), FullDisk(at):
        train_pack(wanted, tmp_path / "out")
    for folder in folders(tmp_path / "out", wanted):
        steps = snapshots.steps_of(folder)
        assert steps
        assert all(snapshots.load_snapshot(snapshots.path_of(folder, step)).step == step for step in steps)
        assert len(read(folder)) > 0
        assert not is_open(folder)  # though this process lives, and could not close the record
    train_pack(wanted, tmp_path / "out")
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


class FullDisk(Faults):
    """From an operation on, everything that needs room finds none."""

    def __init__(self, at):
        """Fill the disk at operation number `at`."""
        super().__init__(at=at, code=errno.ENOSPC)

    def count(self, operation):
        self.trace.append(operation)
        if len(self.trace) >= self.at and operation in ("write", "flush", "fsync"):
            self._fail(operation)


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize(
    ("at", "times", "while_saving", "saved"),
    [
        (5, 1, False, [[0, 6], [0, 6]]),  # the step that was asked in is finished
        (5, 2, False, [[0], [0]]),
        (5, 1, True, [[0, 6], [0]]),  # a second one waits for no other run
        (STEPS, 1, False, [[STEPS], [STEPS]]),  # or whoever trains several packs would go on with the next
    ],
    ids=["once", "twice", "while saving", "at the end"],
)
def test_ctrl_c_saves_and_goes_up(tmp_path, monkeypatch, at, times, while_saving, saved):
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    wanted, save = pack(seeds=(1, 2), steps=STEPS), snapshots.save_snapshot

    def press(progress):
        for _ in range(times if progress.step == at else 0):
            press_ctrl_c()

    def save_and_press(folder, snapshot, kind):
        path = save(folder, snapshot, kind)
        if while_saving and snapshot.step > 0:
            press_ctrl_c()
        return path

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(snapshots, "save_snapshot", save_and_press)
        train_pack(wanted, tmp_path / "out", progress=press)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    both = folders(tmp_path / "out", wanted)
    assert [snapshots.steps_of(folder) for folder in both] == saved
    status = "finished" if at == STEPS else "running"
    assert [(info(folder).status, is_open(folder)) for folder in both] == [(status, False)] * 2
    assert [run.is_new for run in train_pack(wanted, tmp_path / "out")] == [at < STEPS] * 2
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted)


@pytest.fixture
def taking():
    """What takes the ends of runs, and where it puts them."""
    ends = {}

    def take(name, parameters):
        ends[name] = {f"parameters.{key}": tensor[0].clone() for key, tensor in parameters.items()}

    return take, ends


@pytest.mark.parametrize("num_left", [0, 3, 9, 33])
def test_ends_are_taken_whatever_fails_while_runs_finish(tmp_path, taking, num_left):
    """Two runs finish one after the other in some sixty operations on the disk, and it fails at one of the last."""
    take, ends = taking
    wanted = pack(seeds=(1, 2), steps=STEPS, snapshot_every=8)
    with Faults(at=0) as all_of_them:
        train_pack(wanted, tmp_path / "counted", take=take)
    ends.clear()
    with pytest.raises(OSError, match="Input/output error"), Faults(at=len(all_of_them.trace) - num_left):
        train_pack(wanted, tmp_path / "out", take=take)
    train_pack(wanted, tmp_path / "out", take=take)
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted, ends)


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_at_the_last_step_leaves_the_end_to_be_taken(tmp_path, monkeypatch, taking):
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    take, ends = taking
    wanted = pack(seeds=(1, 2), steps=STEPS)
    with pytest.raises(KeyboardInterrupt):
        train_pack(wanted, tmp_path / "out", take=take, progress=lambda each: each.step == STEPS - 1 and press_ctrl_c())
    assert not ends and [snapshots.steps_of(each)[-1] for each in folders(tmp_path / "out", wanted)] == [STEPS] * 2
    train_pack(wanted, tmp_path / "out", take=take)
    assert_as_in_peace(tmp_path, tmp_path / "out", wanted, ends)
    assert [snapshots.steps_of(each) for each in folders(tmp_path / "out", wanted)] == [[], []]


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


# Folders of version 0.1 and odd JSON.

OLD = Path(__file__).parents[1] / "store" / "folders-0.1" / "train"


def test_a_training_of_version_0_1_goes_on_as_if_it_had_never_stopped(tmp_path):
    config = RunConfig.from_dict(info(OLD).config).update({"steps": 16})
    wanted = Pack(runs=(Run(name="train", config=config),))
    shutil.copytree(OLD, tmp_path / "old" / "train")
    for folder in ("old", "new"):
        assert [run.status for run in train_pack(wanted, tmp_path / folder)] == ["finished"]
    old, new = read(tmp_path / "old" / "train"), read(tmp_path / "new" / "train")
    names = ["step", "site", "layer", "head", "metric"]
    assert old[names].equals(new[names])
    np.testing.assert_allclose(old["value"], new["value"], rtol=1e-9)  # another torch may round otherwise


@pytest.mark.parametrize(
    "odd",
    [
        {"config": {}},
        {"config": {"model": 3}},
        {"about": []},
        {"about": {"num_steps": "4"}},
        {"about": {"num_steps": None}},
        {"about": {"num_steps": 4, "data_hash": 3}},
        {"resumed": None},
    ],
    ids=str,
)
def test_odd_json_is_refused_in_one_line_and_left_as_it_is(tmp_path, odd):
    train_pack(pack(seeds=(1,), steps=4), tmp_path)
    path = tmp_path / "seed1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Restore it from a copy") as caught:
        train_pack(pack(seeds=(1, 2), steps=8), tmp_path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before and not (tmp_path / "seed2").exists()
