"""Work that is done once, whole or not at all, within a time limit, and says where it was computed."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel
from store.mortality import ended

from joma.store import OutOfTime, RunLockedError, Store, Task, provenance, work


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    monkeypatch.setattr("joma.store.record.git_commit", lambda: "a1")


class Clock:
    """Stands still unless work takes its time."""

    def __init__(self, monkeypatch):
        """Take the place of the store's clock."""
        self.now = 100.0
        monkeypatch.setattr(work, "monotonic", lambda: self.now)

    def task(self, name, takes, *, expected=None, calls=None, **options):
        """A task that takes some seconds in ten steps."""

        def compute(place):
            for step in range(10):
                place.progress(step / 10, f"step {step}")
                self.now += takes / 10
            if calls is not None:
                calls.append(name)
            return {"t": pd.DataFrame({"name": [name]})}

        return Task(name, {"name": name}, compute, takes if expected is None else expected, **options)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def frame():
    return pd.DataFrame({"x": [0.1, np.nan, np.inf], "n": [1, 2, 3], "s": ["a", "b", "é"]})


def counting(key=None, calls=None, kind=""):
    def compute(place):
        calls.append(1)
        return {"first": frame(), "second": frame()[:0]}

    calls = [] if calls is None else calls
    return Task("a task", {"a": 1} if key is None else key, compute, 1.0, kind)


# Found and computed


def test_work_is_done_once_and_its_tables_come_back_exactly(tmp_path, monkeypatch):
    calls = []
    first = Store(tmp_path).get(counting(calls=calls))
    monkeypatch.setattr("joma.store.record.git_commit", lambda: "b2")  # another commit finds the same artefact
    again = Store(tmp_path).get(counting(calls=calls))
    assert calls == [1]
    for artefact in (first, again):
        pd.testing.assert_frame_equal(artefact.tables.first, frame())
        assert list(artefact.tables) == ["first", "second"] and len(artefact.tables.second) == 0
        assert (artefact.key, artefact.provenance.commit) == ({"a": 1}, "a1")
    assert sorted(os.listdir(tmp_path)) == sorted([counting().hash, "work"])
    assert not os.listdir(tmp_path / "work")


@dataclass(frozen=True)
class Settings:
    """A key."""

    lr: float = 0.5
    depths: tuple[int, ...] = (1, 2)


class Model(BaseModel):
    """The same key."""

    lr: float = 0.5
    depths: tuple[int, ...] = (1, 2)


def test_a_hash_is_the_same_in_every_process_and_version():
    """Frozen: another hash would throw away all work that people have stored."""
    assert counting({"lr": 1e-3, "depths": (1, 2), "data": "0f"}, kind="train").hash == "9a73c1521f742931"


def test_equal_keys_have_equal_hashes_and_others_do_not():
    keys = [Settings(), Model()]
    assert len({counting(key, kind="k").hash for key in [*keys, {"depths": [1, 2], "lr": np.float64(0.5)}]}) == 1
    assert len({counting(key).hash for key in keys}) == 2  # of different classes, without a kind
    others = [{}, {"a": 1}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": float("nan")}, {"a": 1e-9}, {"b": 1}]
    assert len({counting(key).hash for key in others}) == len(others)
    with pytest.raises(TypeError, match="hash that lasts"):
        counting({"a": object()}).hash  # noqa: B018


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden"])
def test_odd_names_of_tables_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="name of a table"):
        Store(tmp_path).get(Task("t", {}, lambda place: {name: frame()}, 1.0))


def test_what_a_frame_carries_along_is_not_stored_and_a_disk_that_fails_is_no_damage(tmp_path):
    with_attributes = frame()
    with_attributes.attrs["run"] = {"git_commit": "a1"}
    task = Task("t", {}, lambda place: {"t": with_attributes}, 1.0)
    assert Store(tmp_path).get(task).tables.t.attrs == {}
    path = tmp_path / task.hash / "t.parquet"
    path.unlink()
    path.mkdir()  # reading it is an error of the system, for root too
    with pytest.raises(OSError, match=r"t\.parquet"):
        Store(tmp_path).get(task)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1
    path.write_bytes(content)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES = {
    "bit in a table": lambda folder: flip(folder / "first.parquet", 100),
    "cut table": lambda folder: os.truncate(folder / "first.parquet", 50),
    "missing table": lambda folder: (folder / "second.parquet").unlink(),
    "missing description": lambda folder: (folder / "artefact.json").unlink(),
    "cut description": lambda folder: os.truncate(folder / "artefact.json", 50),
    "odd description": lambda folder: (folder / "artefact.json").write_text("[]"),
    "other provenance": lambda folder: edit(folder / "artefact.json", name="another"),
    "tables left out": lambda folder: edit(folder / "artefact.json", tables={}),
    "odd types": lambda folder: edit(folder / "artefact.json", tables=None, key=3),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_artefact_is_refused_and_computed_again(tmp_path, damage):
    calls = []
    task = counting(calls=calls)
    Store(tmp_path).get(task)
    damage(tmp_path / task.hash)
    with pytest.warns(RuntimeWarning, match="damaged") as warned:
        found = Store(tmp_path).get(task)
    assert calls == [1, 1] and len(warned) == 1 and "\n" not in str(warned[0].message)
    pd.testing.assert_frame_equal(found.tables.first, frame())
    assert Store(tmp_path).find(task) is not None


# Time


def test_only_what_fits_is_started_and_the_next_call_goes_on(tmp_path, clock):
    calls = []
    tasks = [clock.task(f"{takes} s", takes, calls=calls) for takes in (50, 100, 20, 10)]
    store = Store(tmp_path, minutes=1.5)  # 90 s
    assert [each.name for each in store.gather(tasks)] == ["50 s", "20 s", "10 s"]
    assert (store.left, calls) == (["100 s"], ["50 s", "20 s", "10 s"])
    with pytest.raises(OutOfTime, match="--minutes 2"):
        store.get(tasks[1])
    store = Store(tmp_path, minutes=2)
    assert [each.name for each in store.gather(tasks)] == [task.name for task in tasks]
    assert (store.left, calls[3:]) == ([], ["100 s"])


def test_what_was_measured_on_this_device_decides_what_fits(tmp_path, clock):
    """Tasks take three times as long as expected."""
    slow = [clock.task(f"task {i}", 30.0, expected=10.0, kind="train") for i in range(4)]
    store = Store(tmp_path, minutes=1)
    assert len(store.gather(slow)) == 2
    assert store.left == ["task 2", "task 3"]
    assert store.expected_seconds(slow[2]) == pytest.approx(30.0)
    store = Store(tmp_path, minutes=1)  # remembers the rate
    assert store.expected_seconds(slow[2]) == pytest.approx(30.0)
    assert store.expected_seconds(clock.task("other kind", 10.0)) == 10.0
    assert store.expected_seconds(clock.task("much longer", 1.0, expected=1000.0, kind="train")) == 1000.0
    assert len(store.gather(slow)) == 4


def test_progress_tells_elapsed_and_remaining_time(tmp_path, clock):
    told = []
    tasks = [clock.task("a", 20.0, expected=10.0, kind="k"), clock.task("b", 20.0, expected=10.0, kind="k")]
    Store(tmp_path, progress=told.append).gather(tasks)
    assert [at.task for at in told] == ["a"] * 11 + ["b"] * 11
    assert [at.doing for at in told[::11]] == ["", ""]  # announced when it begins
    told = [at for at in told if at.doing]
    shares = [at.share for at in told]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[10] == pytest.approx(0.5)
    assert [at.elapsed for at in told] == pytest.approx(np.arange(20) * 2.0)
    exact = 40.0 - np.array([at.elapsed for at in told])
    remaining = np.array([at.remaining for at in told])
    assert remaining[0] == pytest.approx(20.0)  # as expected, before anything is measured
    np.testing.assert_allclose(remaining[1:], exact[1:])  # its own pace, then the measured rate


# Interruptions and provenance


def test_scratch_survives_an_error_and_all_calls_are_in_the_provenance(tmp_path, clock, monkeypatch):
    def compute(place):
        state = place.folder / "state"
        clock.now += 10.0
        if not state.exists():
            state.write_text("half")
            raise RuntimeError("interrupted")
        return {"t": pd.DataFrame({"found": [state.read_text()]})}

    task = Task("long", {}, compute, 1.0, precision="bf16")
    with pytest.raises(RuntimeError):
        Store(tmp_path).get(task)
    assert os.listdir(Store(tmp_path).scratch(task)) == ["state"]
    monkeypatch.setattr("joma.store.record.git_commit", lambda: "b2")
    artefact = Store(tmp_path).get(task)
    assert artefact.tables.t["found"].tolist() == ["half"]
    assert not Store(tmp_path).scratch(task).exists()
    table = provenance([artefact])
    assert table["commit"].tolist() == ["a1", "b2"]
    assert table["seconds"].tolist() == pytest.approx([10.0, 10.0])
    assert set(table["precision"]) == {"bf16"} and set(table["device"]) == {"cpu"}
    assert {"task", "computed", "python", "numpy"} <= set(table.columns)
    assert len(provenance([])) == 0


def test_calls_of_the_same_software_are_added_up(tmp_path, clock):
    def compute(place):
        clock.now += 10.0
        if len(os.listdir(place.folder)) < 2:
            (place.folder / str(clock.now)).touch()
            raise RuntimeError("interrupted")
        return {}

    task = Task("long", {}, compute, 1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            Store(tmp_path).get(task)
    found = Store(tmp_path).get(task).provenance
    assert (found.earlier, found.seconds) == ((), pytest.approx(30.0))


def three_tasks():
    def compute(number, place):
        for step in range(3):
            place.progress(step / 3, "")
            (place.folder / str(step)).write_text(str(number))
        return {"t": pd.DataFrame({"n": [number] * 3})}

    return [Task(f"task {n}", {"n": n}, lambda place, n=n: compute(n, place), 1.0) for n in range(3)]


def test_dying_at_every_operation_leaves_what_is_complete_and_the_next_call_finishes(tmp_path):
    at, code, counts = 0, None, []
    while code != 0:
        at += 1
        folder = tmp_path / str(at)
        code = ended(lambda folder=folder: Store(folder).gather(three_tasks()), at=at)
        assert code in (-9, 0)
        store = Store(folder)
        counts.append(sum(store.find(task) is not None for task in three_tasks()))
        done = store.gather(three_tasks())
        assert [each.tables.t["n"].tolist() for each in done] == [[n] * 3 for n in range(3)]
        assert sorted(os.listdir(folder)) == sorted(["work", *(task.hash for task in three_tasks())])
        assert not os.listdir(folder / "work")
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3}
    assert at > 30


def test_a_task_that_another_process_works_on_is_refused(tmp_path):
    code = """
import sys
from joma.store import Store, Task
Store(sys.argv[1]).get(Task("t", {}, lambda place: print(flush=True) or input(), 1.0))
"""
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    task = Task("t", {}, lambda place: {}, 1.0)
    with pytest.raises(RunLockedError, match=str(other.pid)):
        Store(tmp_path).get(task)
    other.kill()
    other.communicate()
    assert Store(tmp_path).get(task).tables == {}
