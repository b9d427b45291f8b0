"""Each task is done once, here or on Ray, also when a worker dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from joma.errors import UnknownNameError
from joma.tasks import run
from joma.tasks.run import run_tasks


def test_tasks_run_in_order_and_what_one_raises_is_raised():
    assert list(run_tasks(str, [3, 1])) == [(0, "3"), (1, "1")]
    assert list(run_tasks(str, [])) == []
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(lambda x: 1 / x, [1, 0]))
    with pytest.raises(UnknownNameError, match="There is no place to run tasks named 'slurm'"):
        list(run_tasks(str, [1], on="slurm"))


def tell_of_it(number, tell):
    for part in range(2):
        tell(part)
    return -number


def test_what_tasks_tell_arrives_before_their_end():
    heard = []
    for position, result in run_tasks(tell_of_it, [7, 8], report=lambda position, word: heard.append((position, word))):
        heard.append((position, result))
    assert heard == [(0, 0), (0, 1), (0, -7), (1, 0), (1, 1), (1, -8)]


def mortal_square(item: tuple[int, Path]) -> tuple[int, int]:
    """Square a number; the first worker that gets the number 2 is killed half-way."""
    number, folder = item
    with (folder / f"{number}.log").open("a") as log:
        log.write("begun\n")
    killed = folder / "killed"
    if number == 2 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return number, number**2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_worker_killed_half_way_loses_and_doubles_nothing(cluster, tmp_path):
    items = [(number, tmp_path) for number in range(8)]
    done = list(run_tasks(mortal_square, items, on="ray"))
    assert sorted(done) == [(number, (number, number**2)) for number in range(8)]
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "2.log").read_text().count("begun") == 2
    assert cluster.is_initialized()  # it is not ours to stop


def tell_until_heard(item: tuple[int, Path], tell) -> int:
    """Count in thousands of its own until somebody has heard it three times."""
    number, folder = item
    for part in range(1000):
        if (folder / f"heard{number}").exists():
            return number
        tell(1000 * number + part)
        time.sleep(0.06)
    raise TimeoutError("nobody hears")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tasks_on_ray_are_heard_while_they_work(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "HEAR_SECONDS", 0.2)
    heard, ended = {0: [], 1: [], 2: []}, set()

    def told(position, word):
        assert position not in ended
        heard[position].append(word)
        if len(heard[position]) == 3:
            (tmp_path / f"heard{position}").touch()

    items = [(number, tmp_path) for number in range(3)]
    for position, result in run_tasks(tell_until_heard, items, on="ray", report=told):
        assert result == position
        ended.add(position)
    assert ended == {0, 1, 2}
    for number, words in heard.items():
        assert len(words) >= 3 and words == sorted(words)
        assert set(words) <= set(range(1000 * number, 1000 * (number + 1)))


def refuse_to_stop(item: tuple[str, Path]) -> None:
    """Fail as soon as both others are at work: one that lets go when it is interrupted, and one that does not."""
    what, folder = item
    if what == "fail":
        while len(list(folder.glob("*.pid"))) < 2:
            time.sleep(0.05)
        raise ValueError("enough")
    (folder / f"{what}.pid").write_text(str(os.getpid()))
    for _ in range(1200):
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:
            (folder / f"{what}.interrupted").touch()
            if what == "careful":
                raise


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_others_are_asked_to_stop_and_then_made_to(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "STOP_SECONDS", 3.0)
    items = [("careful", tmp_path), ("stubborn", tmp_path), ("fail", tmp_path)]
    with pytest.raises(ValueError, match="enough"):
        list(run_tasks(refuse_to_stop, items, on="ray"))
    assert (tmp_path / "careful.interrupted").exists() and (tmp_path / "stubborn.interrupted").exists()
    stubborn = int((tmp_path / "stubborn.pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{stubborn}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{stubborn}").exists()


@pytest.mark.slow  # starts Ray, in a process that has not imported it
def test_a_cluster_of_our_own_listens_on_this_machine_alone():
    pytest.importorskip("ray")
    code = (
        "from joma.tasks import run\n"
        "run.check_place('ray')\n"
        "import ray\n"
        "with run._cluster(): print(*(node['NodeManagerAddress'] for node in ray.nodes()))"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
    assert done.stdout.split() == ["127.0.0.1"]
