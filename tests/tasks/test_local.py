"""Each task is done once, here or on Ray, also when a worker dies."""

import os
import signal
import time
from pathlib import Path

import pytest

from joma.errors import UnknownNameError
from joma.tasks.local import run_tasks


def test_tasks_run_in_order_and_progress_counts_them():
    counts = []
    assert list(run_tasks(str, [3, 1], progress=lambda done, total: counts.append((done, total)))) == [
        (0, "3"),
        (1, "1"),
    ]
    assert counts == [(0, 2), (1, 2), (2, 2)]
    assert list(run_tasks(str, [])) == []


def test_what_a_task_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(lambda x: 1 / x, [1, 0]))


def test_an_unknown_place_is_refused():
    with pytest.raises(UnknownNameError, match="There is no place to run tasks named 'slurm'"):
        list(run_tasks(str, [1], on="slurm"))


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


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two workers on this machine."""
    ray = pytest.importorskip("ray")
    importable = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27, runtime_env=importable
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_worker_killed_half_way_loses_and_doubles_nothing(cluster, tmp_path):
    items = [(number, tmp_path) for number in range(8)]
    done = list(run_tasks(mortal_square, items, on="ray"))
    assert sorted(done) == [(number, (number, number**2)) for number in range(8)]
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "2.log").read_text().count("begun") == 2
    assert cluster.is_initialized()  # it is not ours to stop


def fail_on_one(number: int) -> int:
    if number == 1:
        raise ValueError("one is refused")
    return number


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_task_raises_on_ray_is_raised_here(cluster):
    with pytest.raises(ValueError, match="one is refused"):
        list(run_tasks(fail_on_one, [0, 1], on="ray"))
