"""One writer at a time; the locks of the dead are taken over, those of the living are not."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from joma.store import lock as module
from joma.store import open_run
from joma.store.lock import LOCK_NAME, STALE_SECONDS, Holder, Lock, RunLockedError, demand_closed, is_open


def place(folder, *, age=0.0, content=None, **fields):
    """Leave a lock behind as some process did `age` seconds ago; ours, with other fields where given."""
    lock = Lock(folder)
    path = folder / LOCK_NAME
    path.write_text(json.dumps(asdict(replace(lock._holder, **fields))) if content is None else content)
    os.utime(path, (time.time() - age,) * 2)
    return path


def dead_pid():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_the_lock_names_its_process_and_goes_when_released(tmp_path):
    lock = Lock(tmp_path)
    content = json.loads((tmp_path / LOCK_NAME).read_text())
    assert (content["pid"], content["host"]) == (os.getpid(), os.uname().nodename)
    assert is_open(tmp_path)
    lock.release()
    assert not is_open(tmp_path)
    assert not os.listdir(tmp_path)


def test_this_process_cannot_lock_twice(tmp_path):
    Lock(tmp_path)
    with pytest.raises(RunLockedError, match=r"by this very process. Close the writer"):
        Lock(tmp_path)


def test_a_living_process_of_this_host_is_respected_however_long_it_is_silent(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place(tmp_path, pid=other.pid, started=module._process(other.pid)[1], age=10 * STALE_SECONDS)
    with pytest.raises(RunLockedError, match=rf"being written by process {other.pid} on .*Wait for its end"):
        Lock(tmp_path)
    assert is_open(tmp_path)
    other.communicate(b"\n")
    Lock(tmp_path)


def test_a_process_that_was_killed_but_not_collected_is_dead(tmp_path):
    zombie = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    place(tmp_path, pid=zombie.pid, started=module._process(zombie.pid)[1])
    zombie.kill()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert not is_open(tmp_path)
    Lock(tmp_path)
    zombie.wait()


@pytest.mark.parametrize(
    "fields", [pytest.param({"started": "1"}, id="number used again"), pytest.param({"pid": None}, id="dead")]
)
def test_the_dead_of_this_host_are_taken_over_at_once(tmp_path, fields):
    place(tmp_path, **({"pid": dead_pid()} if "pid" in fields else fields))
    assert not is_open(tmp_path)
    Lock(tmp_path).renew()


def test_a_process_of_another_user_is_alive(tmp_path, monkeypatch):
    def denied(pid, signal):
        raise PermissionError

    place(tmp_path, pid=1, started=module._process(1)[1])
    monkeypatch.setattr(os, "kill", denied)
    with pytest.raises(RunLockedError, match="process 1 on"):
        Lock(tmp_path)


@pytest.mark.parametrize("content", [None, "", "{}", "[1"], ids=["whole", "empty", "no fields", "cut"])
def test_another_host_is_respected_until_its_last_sign_of_life_is_old(tmp_path, content):
    path = place(tmp_path, host="elsewhere", content=content, age=STALE_SECONDS - 60)
    with pytest.raises(RunLockedError, match=rf"3540 s old and counts for 3600 s.*delete .*{LOCK_NAME}"):
        Lock(tmp_path)
    os.utime(path, (time.time() - STALE_SECONDS - 1,) * 2)
    Lock(tmp_path).renew()


def test_a_copy_from_another_machine_says_which_files_to_delete(tmp_path):
    """A copy cannot be told from a folder that two hosts share: nothing is taken over, and the way out is named."""
    here = tmp_path / "copied"
    for folder in (here, here / "run"):
        folder.mkdir()
        place(folder, host="elsewhere", age=60.0)
    moved = shutil.copytree(here, tmp_path / "again")  # other files of other numbers, as on any copy
    for demand in (Lock, demand_closed):
        with pytest.raises(RunLockedError, match="or that this folder is a copy") as refused:
            demand(moved)
        assert f"delete {moved / LOCK_NAME} and any {LOCK_NAME} in folders below" in str(refused.value)
        assert "elsewhere" in str(refused.value) and "\n" not in str(refused.value)
    assert is_open(moved) and is_open(moved / "run")
    for path in moved.rglob(LOCK_NAME):
        path.unlink()
    for folder in (moved, moved / "run"):
        demand_closed(folder)
        Lock(folder).renew()


def test_renewing_shows_life(tmp_path):
    lock = Lock(tmp_path)
    path = tmp_path / LOCK_NAME
    os.utime(path, (0, 0))
    lock.renew()
    assert time.time() - path.stat().st_mtime < 60


def test_whoever_was_taken_for_dead_finds_out_and_removes_nothing(tmp_path):
    slow = Lock(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    quick = Lock(tmp_path)
    with pytest.raises(RunLockedError, match=r"was taken over by process .* Nothing more is written"):
        slow.renew()
    slow.release()
    quick.renew()


def test_a_lock_that_someone_deleted_is_placed_again(tmp_path):
    lock = Lock(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    lock.renew()
    assert is_open(tmp_path)


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    lock = Lock(tmp_path)
    with pytest.raises(RunLockedError):
        Lock(tmp_path)
    lock.renew()
    lock.release()
    assert not os.listdir(tmp_path)


def test_another_host_that_is_quicker_wins(tmp_path, monkeypatch):
    remote = Holder(pid=1, host="elsewhere", started="", token="t")

    def overtake(source, target):
        target.write_text(json.dumps(asdict(remote)))
        raise FileExistsError(errno.EEXIST, "there already")

    monkeypatch.setattr(os, "link", overtake)
    with pytest.raises(RunLockedError, match="process 1 on elsewhere"):
        Lock(tmp_path)


def another_host(monkeypatch):
    """Make this process one of another host from now on."""
    monkeypatch.setattr(module, "_host", lambda: "elsewhere")


def test_the_next_try_of_a_task_takes_over_at_once_wherever_it_runs(tmp_path, monkeypatch):
    lost = Lock(tmp_path, owner="task")
    another_host(monkeypatch)
    assert is_open(tmp_path) and not is_open(tmp_path, owner="task")
    again = Lock(tmp_path, owner="task")
    again.renew()
    assert json.loads((tmp_path / LOCK_NAME).read_text())["host"] == "elsewhere"
    with pytest.raises(RunLockedError, match=r"taken over by process \d+ on elsewhere"):
        lost.renew()
    lost.release()
    again.renew()
    again.release()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("task", "other", id="another task"),
        pytest.param("task", "", id="a call of no task"),
        pytest.param("", "task", id="a task, of a call"),
        pytest.param("", "", id="two calls"),
    ],
)
def test_another_owner_is_refused(tmp_path, monkeypatch, first, second):
    lock = Lock(tmp_path, owner=first)
    another_host(monkeypatch)
    assert is_open(tmp_path, owner=second)
    with pytest.raises(RunLockedError, match="is being written by process"):
        Lock(tmp_path, owner=second)
    lock.renew()


def test_a_task_cannot_lock_twice_in_one_process(tmp_path):
    Lock(tmp_path, owner="task")
    assert is_open(tmp_path, owner="task")
    with pytest.raises(RunLockedError, match="by this very process"):
        Lock(tmp_path, owner="task")


def test_a_worker_that_was_given_up_is_succeeded_though_it_lives_on_this_host(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place(tmp_path, pid=other.pid, started=module._process(other.pid)[1], owner="task")
    with pytest.raises(RunLockedError, match="Wait for its end"):
        Lock(tmp_path)
    Lock(tmp_path, owner="task").renew()
    other.communicate(b"\n")


def test_whoever_wakes_up_behind_the_end_of_the_next_try_writes_nothing(tmp_path, monkeypatch):
    asleep = Lock(tmp_path, owner="task")
    another_host(monkeypatch)
    Lock(tmp_path, owner="task").release()
    with pytest.raises(RunLockedError, match="taken over by another process"):
        asleep.renew()
    assert not os.listdir(tmp_path)


def test_the_lock_of_an_earlier_version_names_its_process(tmp_path):
    path = place(tmp_path)
    path.write_text(json.dumps({name: text for name, text in json.loads(path.read_text()).items() if name != "owner"}))
    with pytest.raises(RunLockedError, match="by this very process"):
        Lock(tmp_path, owner="task")


def test_a_writer_that_loses_the_run_while_it_writes_says_so_at_once(tmp_path, monkeypatch):
    run = open_run(tmp_path, kind="train", config={}, owner="task", flush_seconds=1e9)
    write = run._metrics.flush

    def overtaken():
        with monkeypatch.context() as patch:
            another_host(patch)
            Lock(tmp_path, owner="task")
        write()

    monkeypatch.setattr(run._metrics, "flush", overtaken)
    run.add(0, "loss", 1.0)
    with pytest.raises(RunLockedError, match="taken over by process"):
        run.flush()
    run.abandon()
    assert is_open(tmp_path)
