"""One writer at a time; the locks of the dead are taken over, those of the living are not."""

import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from joma.runs import lock as module
from joma.runs.lock import LOCK_NAME, STALE_SECONDS, Holder, Lock, RunLockedError, is_open


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
