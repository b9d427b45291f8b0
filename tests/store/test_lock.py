"""One writer at a time; the dead hold nothing, and the next try of a task takes over at once."""

import json
import os
import subprocess
import sys

import pytest

from joma.store import RunLockedError, demand_closed, is_open, lock, open_run
from joma.store.lock import LOCK_NAME, WRITER_NAME, Lock, alone_in

HOLD = """
import sys
from pathlib import Path
from joma.store.lock import Lock
lock = Lock(Path(sys.argv[1]), owner=sys.argv[2])
print(flush=True)
sys.stdin.readline()
lock.demand()
"""


@pytest.fixture
def other(tmp_path):
    """Start another process that holds the folder's lock; it ends when told."""
    started = []

    def hold(owner=""):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), owner], text=True, **pipes)
        started.append(process)
        process.stdout.readline()
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def elsewhere(monkeypatch):
    """Make this process one of another machine from now on."""
    monkeypatch.setattr(lock, "_host", lambda: "elsewhere")


def test_a_lock_names_its_process_and_leaves_nothing_when_released(tmp_path):
    held = Lock(tmp_path)
    assert json.loads((tmp_path / WRITER_NAME).read_text())["pid"] == os.getpid()
    assert is_open(tmp_path)
    with pytest.raises(RunLockedError):  # not even this process may lock twice
        Lock(tmp_path)
    held.demand()
    held.release()
    assert not is_open(tmp_path)
    assert not os.listdir(tmp_path)


def test_another_process_is_named_and_when_it_is_killed_its_lock_is_free(tmp_path, other):
    process = other()
    said = rf"Another process \(pid {process.pid}\) is writing to this folder\. Wait for it, or choose another --out\."
    for attempt in (Lock, demand_closed):
        with pytest.raises(RunLockedError, match=said):
            attempt(tmp_path)
    process.kill()
    process.wait()
    assert (tmp_path / LOCK_NAME).exists() and not is_open(tmp_path)
    demand_closed(tmp_path)
    Lock(tmp_path).release()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", "null", '{"pid": null}', '{"pid": "x", "host": "h", "token": "t"}', "[" * 9999]
    + [json.dumps({"pid": pid, "host": "h", "token": "t"}) for pid in (-1, 0, 10**30, 1.5, True, [1])],
)
@pytest.mark.parametrize("is_held", [False, True])
def test_odd_content_of_a_lock_is_neither_trusted_nor_fatal(tmp_path, content, is_held):
    held = Lock(tmp_path)
    if not is_held:
        held.release()
        (tmp_path / LOCK_NAME).write_text(content)
    (tmp_path / WRITER_NAME).write_text(content)
    assert is_open(tmp_path) == is_held
    if is_held:
        with pytest.raises(RunLockedError, match="Another process"):
            Lock(tmp_path)
    else:
        Lock(tmp_path).release()


def test_asking_whether_a_folder_is_open_writes_nothing_and_disturbs_nobody(tmp_path, other):
    assert not is_open(tmp_path) and not is_open(tmp_path / "nowhere")
    assert not os.listdir(tmp_path)
    process = other()
    before = sorted(os.listdir(tmp_path))
    for _ in range(20):
        assert is_open(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before
    process.stdin.write("\n")
    assert process.communicate()[1] == ""


# Tasks that are tried again


def test_the_next_try_of_a_task_takes_over_at_once_and_the_lost_one_writes_no_more(tmp_path, other):
    lost = other("task")  # lives, but was given up
    assert is_open(tmp_path) and not is_open(tmp_path, owner="task")
    again = Lock(tmp_path, owner="task")
    assert is_open(tmp_path)
    lost.stdin.write("\n")
    assert "taken over" in lost.communicate()[1]
    again.demand()
    again.release()
    assert not os.listdir(tmp_path)


def test_whoever_wakes_up_after_the_end_of_the_next_try_writes_nothing(tmp_path, monkeypatch):
    asleep = Lock(tmp_path, owner="task")
    elsewhere(monkeypatch)
    Lock(tmp_path, owner="task").release()
    with pytest.raises(RunLockedError, match="taken over"):
        asleep.demand()
    asleep.release()


@pytest.mark.parametrize(("first", "second"), [("task", "other"), ("task", ""), ("", "task"), ("", "")])
def test_another_owner_is_refused(tmp_path, monkeypatch, first, second):
    held = Lock(tmp_path, owner=first)
    elsewhere(monkeypatch)
    assert is_open(tmp_path, owner=second)
    with pytest.raises(RunLockedError, match=f"pid {os.getpid()} on "):
        Lock(tmp_path, owner=second)
    held.demand()


def test_a_writer_that_loses_the_run_while_it_writes_says_so_at_once(tmp_path, monkeypatch):
    run = open_run(tmp_path, kind="train", config={}, owner="task", flush_seconds=1e9)
    write = run._metrics.flush
    taken = []

    def overtaken():
        with monkeypatch.context() as patch:
            elsewhere(patch)
            taken.append(Lock(tmp_path, owner="task"))
        write()

    monkeypatch.setattr(run._metrics, "flush", overtaken)
    run.add(0, "loss", 1.0)
    with pytest.raises(RunLockedError, match="taken over"):
        run.flush()
    run.abandon()
    assert is_open(tmp_path)


def test_a_folder_of_runs_has_one_writer(tmp_path):
    with alone_in(tmp_path / "runs") as demand:
        demand()
        with pytest.raises(RunLockedError), alone_in(tmp_path / "runs"):
            pass
        with open_run(tmp_path / "runs" / "a", kind="train", config={}):
            pass
    assert os.listdir(tmp_path / "runs") == ["a"]


def test_systems_without_fcntl_and_proc_will_do(tmp_path):
    """As on Windows, as far as this can be tried elsewhere."""
    code = """
import sys, warnings
from pathlib import Path
sys.modules["fcntl"] = None
warnings.simplefilter("ignore")  # filelock says that its locks are files then
from joma.store import RunLockedError, is_open, open_run, read
folder = Path(sys.argv[1])
with open_run(folder, kind="train", config={}) as run:
    run.add(0, "loss", 1.0)
    assert is_open(folder)
    try:
        open_run(folder, kind="train", config={})
    except RunLockedError:
        pass
    else:
        sys.exit(3)
assert not is_open(folder) and len(read(folder)) == 1
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
