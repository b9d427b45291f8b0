"""Packs spread over a Ray cluster end as in this process, also when a worker is killed half-way."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pandas
import pytest

from joma.engine import train as training
from joma.engine.train import plan_training, train
from joma.runs.record import info, is_open, read

GRID = {
    "depth": [1, 2, 3],
    "seed": [1, 2],
    "width": 8,
    "hidden": 8,
    "batch": 4,
    "steps": 300,
    "snapshot_every": 20,
    "measure_every": 150,
    "precision": "float64",
}
"""Three packs."""


def kill_a_worker(out, killed, is_over):
    """Wait for a run that has gone some way, and kill the process that its lock names."""
    while not is_over.is_set():
        for lock in out.glob("*/run.lock"):
            snapshots = [path.name for path in (lock.parent / "snapshots").glob("step-*.safetensors")]
            if max(snapshots, default="") <= "step-000000.safetensors":
                continue
            with suppress(OSError, ValueError):  # it may end at this very moment
                pid = json.loads(lock.read_text())["pid"]
                os.kill(pid, signal.SIGKILL)
                killed.append((lock.parent.name, pid))
                return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_worker_killed_half_way_loses_and_doubles_nothing(tmp_path):
    ray = pytest.importorskip("ray")
    out, killed, is_over = tmp_path / "ray", [], threading.Event()
    killer = threading.Thread(target=kill_a_worker, args=(out, killed, is_over))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    try:
        killer.start()
        done = train(GRID, recipe="trees", out=out, on="ray", device="cpu")
    finally:
        is_over.set()
        killer.join()
        ray.shutdown()
    assert len(killed) == 1 and killed[0][1] != os.getpid()
    here = train(GRID, recipe="trees", out=tmp_path / "here", device="cpu")
    assert [run.name for run in done.runs] == [run.name for run in here.runs]
    for ours, theirs in zip(done.runs, here.runs, strict=True):
        assert (ours.status, ours.step) == (info(ours.folder).status, 300) == ("finished", 300)
        assert not is_open(ours.folder)
        # Another number of threads may add in another order.
        pandas.testing.assert_frame_equal(read(ours.folder), read(theirs.folder), rtol=1e-8)


def test_a_pack_is_planned_for_the_share_of_a_core(monkeypatch):
    monkeypatch.setattr(training, "free_bytes", lambda device: 2**30)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    few = {"seed": [1], "steps": 1}
    assert plan_training(few, recipe="trees", device="cpu", on="ray").free_bytes == 2**28
    assert plan_training(few, recipe="trees", device="cpu", on="ray", memory=2**29).free_bytes == 2**29


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_pack_for_a_gpu_asks_for_one_and_takes_the_one_that_it_gets(tmp_path, monkeypatch):
    asked = []
    plan = plan_training({"seed": [1], "steps": 1}, recipe="trees", device="cpu")

    def run_tasks(function, items, *, on, num_gpus):
        asked.append((on, num_gpus, function(items[0])))
        return iter(())

    monkeypatch.setattr(training, "run_tasks", run_tasks)
    monkeypatch.setattr(training, "train_pack", lambda pack, folder, *, device, progress, owner: (device, len(owner)))
    for device, on in (("cuda:3", "ray"), ("cuda:3", "local"), ("cpu", "ray")):
        training._trained(replace(plan, device=device), tmp_path, on, lambda _: None)
    assert asked == [("ray", 1, ("cuda", 16)), ("local", 1, ("cuda:3", 0)), ("ray", 0, ("cpu", 16))]
