"""Packs spread over a Ray cluster end as in this process, also when a machine is lost half-way."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pandas
import pytest

from engine.small_runs import pack
from joma.engine import training
from joma.engine.loop import train_pack
from joma.engine.snapshots import steps_of
from joma.engine.training import plan_training, train
from joma.store import RunLockedError, info, is_open, lock, open_run, read

GRID = {
    "rho": [0.6], "depth": [1, 2, 3], "seed": [1, 2], "width": 8, "hidden": 8, "batch": 4, "steps": 300,
    "snapshot_every": 20, "measure_every": 150, "precision": "float64",
}  # fmt: skip
"""Three packs."""


def kill_a_worker(out, killed, is_over):
    """Wait for a run that has gone some way, and kill the process that its lock names."""
    while not is_over.is_set():
        for held in out.glob("*/writer.json"):
            snapshots = [path.name for path in (held.parent / "snapshots").glob("step-*.safetensors")]
            if max(snapshots, default="") <= "step-000000.safetensors":
                continue
            with suppress(OSError, ValueError):  # it may end at this very moment
                pid = json.loads(held.read_text())["pid"]
                os.kill(pid, signal.SIGKILL)
                killed.append((held.parent.name, pid))
                return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("as_a_user_runs_it", "cluster")
def test_a_machine_lost_half_way_loses_and_doubles_nothing(tmp_path):
    out, killed, is_over, told = tmp_path / "ray", [], threading.Event(), []
    killer = threading.Thread(target=kill_a_worker, args=(out, killed, is_over))
    try:
        killer.start()
        done = train(GRID, recipe="trees", out=out, on="ray", device="cpu", progress=told.append)
    finally:
        is_over.set()
        killer.join()
    assert len(killed) == 1 and killed[0][1] != os.getpid()
    here = train(GRID, recipe="trees", out=tmp_path / "here", device="cpu")
    assert [run.name for run in done.runs] == [run.name for run in here.runs]
    for ours, theirs in zip(done.runs, here.runs, strict=True):
        assert (ours.status, ours.step, ours.is_new) == (info(ours.folder).status, 300, True) == ("finished", 300, True)
        assert not is_open(ours.folder)
        # Another number of threads may add in another order.
        pandas.testing.assert_frame_equal(read(ours.folder), read(theirs.folder), rtol=1e-8)
    assert (told[-1].num_packs_done, told[-1].packs) == (3, ())
    assert told[-1].seconds_done == pytest.approx(told[-1].plan.seconds)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("as_a_user_runs_it", "cluster")
def test_a_pack_is_heard_while_it_is_trained_and_ctrl_c_has_its_worker_save_and_let_go(tmp_path):
    endless = {**GRID, "depth": [1, 2], "steps": 10**7, "snapshot_every": 10**7, "measure_every": 10**7}
    told = []

    def interrupt(at):
        told.append(at)
        if len(at.packs) == 2 and at.packs[0].step > at.packs[0].num_steps / 10**5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(endless, recipe="trees", out=tmp_path, on="ray", device="cpu", progress=interrupt)
    assert all(at.num_packs_done == 0 for at in told)
    assert told[0].seconds_done == 0 < told[-1].seconds_done < told[-1].plan.seconds / 100
    folders = [path.parent for path in tmp_path.glob("*/run.json")]
    assert len(folders) == len(told[0].plan.runs)
    assert not any(is_open(folder) for folder in folders)  # though they were locked on other machines
    reached = max(max(steps_of(folder)) for folder in folders)
    assert reached >= told[-1].packs[0].step and all(info(folder).status == "running" for folder in folders)
    more = train({**endless, "steps": reached + 1}, recipe="trees", out=tmp_path, device="cpu")
    assert all(run.status == "finished" for run in more.runs)


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

    def run_tasks(function, items, *, on, num_gpus, report):
        asked.append((on, num_gpus, function(items[0], report)))
        return iter(())

    monkeypatch.setattr(training, "run_tasks", run_tasks)
    monkeypatch.setattr(training, "train_pack", lambda pack, folder, *, device, progress, owner: (device, len(owner)))
    for device in ("cuda:3", "cpu"):
        list(training._train_packs(replace(plan, device=device), tmp_path, "ray", None, lambda _: None))
    assert asked == [("ray", 1, ("cuda", 16)), ("ray", 0, ("cpu", 16))]


@pytest.fixture
def lost(tmp_path, monkeypatch):
    """The writer of a run on another machine, for the first try of a task."""
    own = pack(seeds=(1,), steps=4)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_host", lambda: "lost")
        writer = open_run(tmp_path / "seed1", kind="train", config=own.config.as_dict(), owner="task")
    writer.add(0, "loss", 1.0)
    yield writer
    writer.abandon()


def test_the_next_try_of_a_pack_goes_on_at_once_and_the_lost_one_writes_no_more(tmp_path, lost):
    def come_back(_):
        with pytest.raises(RunLockedError, match="taken over"):
            lost.flush()

    result = train_pack(pack(seeds=(1, 2), steps=4), tmp_path, owner="task", progress=come_back)
    assert [run.status for run in result] == ["finished", "finished"]
    with pytest.raises(RunLockedError, match="taken over"):
        lost.flush()
    assert not read(tmp_path / "seed1").duplicated(["step", "site", "head", "metric"]).any()
    assert "loss" not in set(read(tmp_path / "seed1").query("site == ''")["metric"])  # what the lost one would write
