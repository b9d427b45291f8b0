"""Packs as pieces: what is left of them, and none longer than a call."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from engine.small_runs import pack as small_pack

from joma.engine.loop import train_pack
from joma.engine.plan import make_plan
from joma.engine.resume import identity
from joma.experiments import pack_pieces as module
from joma.experiments import work_log
from joma.experiments.ended_runs import ended_run
from joma.experiments.pack_pieces import pack_pieces
from joma.experiments.timetable import MOST_OF_A_CALL, SETUP_SECONDS, USUAL_RATIO, Timetable
from joma.experiments.work_log import WorkLog

NUM_RUNS = 7


@pytest.fixture(scope="module")
def plan():
    [found] = make_plan(small_pack(tuple(range(NUM_RUNS))).runs, device=torch.device("cpu")).packs
    return replace(found, seconds=100.0)


@pytest.fixture(autouse=True)
def _as_planned(monkeypatch):
    """Plans here say themselves how long they take: no steps are tried."""
    monkeypatch.setattr(module, "_pace", lambda plan, device: 1.0)


def pieces_in(folder, plan, limit, trained=None, device="cpu", **options):
    return pack_pieces(
        [plan],
        folder,
        device=device,
        timetable=Timetable(limit=limit),
        name="small",
        work=lambda pack, tell: trained.append(pack),
        **options,
    )


def test_on_a_gpu_packs_are_saved_seldom_and_are_the_same_runs(plan, tmp_path):
    trained = []
    for device in ("cpu", "cuda"):
        [piece] = pieces_in(tmp_path, plan, math.inf, trained, device)
        piece.work(lambda share, doing: None)
    here, there = trained
    assert here.config.training.snapshot_seconds < module.SNAPSHOT_SECONDS
    assert all(run.config.training.snapshot_seconds == module.SNAPSHOT_SECONDS for run in there.runs)
    assert [run.name for run in here.runs] == [run.name for run in there.runs]
    assert all(identity(a.config) == identity(b.config) for a, b in zip(here.runs, there.runs, strict=True))


@pytest.mark.parametrize("limit", [math.inf, 300.0, 150.0, 80.0, 50.0])
def test_a_pack_that_is_longer_than_a_call_is_split_evenly(plan, tmp_path, limit):
    trained = []
    pieces = pieces_in(tmp_path, plan, limit, trained)
    for each in pieces:
        each.work(lambda share, doing: None)
    assert [run for pack in trained for run in pack.runs] == list(plan.pack.runs)  # each once
    sizes = [pack.num_runs for pack in trained]
    assert max(sizes) - min(sizes) <= 1
    assert sum(each.seconds for each in pieces) == pytest.approx(100.0)
    longest = max(USUAL_RATIO * each.seconds + each.setup for each in pieces)
    assert longest <= MOST_OF_A_CALL * limit
    if len(pieces) > 1:  # one pack fewer would have been too few
        fewer = math.ceil(NUM_RUNS / (len(pieces) - 1)) / NUM_RUNS
        assert USUAL_RATIO * 100 * fewer + SETUP_SECONDS["cpu"] > MOST_OF_A_CALL * limit


def test_where_not_even_a_run_fits_there_is_a_piece_for_each(plan, tmp_path):
    assert len(pieces_in(tmp_path, plan, 1.0)) == NUM_RUNS


def test_what_comes_behind_the_training_counts_for_every_run(plan, tmp_path):
    asked = []
    behind = {"afterwards": lambda config: asked.append(config) or 10.0}
    [whole] = pieces_in(tmp_path, plan, math.inf, **behind)
    assert whole.seconds == pytest.approx(100.0 + 10.0 * NUM_RUNS) and len(asked) == 1
    limit = 1.1 * (USUAL_RATIO * 100.0 + SETUP_SECONDS["cpu"]) / MOST_OF_A_CALL  # enough for the training alone
    assert len(pieces_in(tmp_path, plan, limit)) == 1
    parts = pieces_in(tmp_path, plan, limit, **behind)
    assert len(parts) > 1 and sum(each.seconds for each in parts) == pytest.approx(whole.seconds)


def test_what_is_tried_to_foretell_the_time_is_no_work_on_the_experiment(plan, tmp_path, monkeypatch):
    now = [1000.0]

    def passing(seconds, returned):
        now[0] += seconds
        return returned

    monkeypatch.setattr(work_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "_pace", lambda plan, device: passing(30.0, 1.0))
    log = WorkLog(tmp_path / "log.json")
    timetable = Timetable(limit=1000.0, log=log)
    pack_pieces(
        [plan, plan],
        tmp_path,
        device="cpu",
        timetable=timetable,
        name="small",
        work=lambda pack, tell: None,
        afterwards=lambda config: passing(7.0, 10.0),
    )
    assert now == [1074.0] and log.seconds == 0.0
    now[0] += 5.0  # work
    log.save()
    assert log.seconds == WorkLog(tmp_path / "log.json").seconds == 5.0


def test_what_was_trained_before_does_not_count(plan, tmp_path):
    class StoppedError(Exception):
        pass

    def stop(progress):
        raise StoppedError

    longer = small_pack(tuple(range(NUM_RUNS)), steps=5000, snapshot_every=1)
    [whole] = make_plan(longer.runs, device=torch.device("cpu")).packs
    [fresh] = pieces_in(tmp_path, whole, math.inf)
    with pytest.raises(StoppedError):
        train_pack(longer, tmp_path, progress=stop)  # after a second
    [rest] = pieces_in(tmp_path, whole, math.inf)
    assert 0 < rest.seconds < fresh.seconds == whole.seconds
    [measured_too] = pieces_in(tmp_path, whole, math.inf, afterwards=lambda config: 10.0)
    assert measured_too.seconds == pytest.approx(rest.seconds + 10.0 * NUM_RUNS)  # none of it was done


def test_runs_that_ended_are_known_by_their_records_alone(tmp_path):
    pack = small_pack((1, 2), diverging=(2,))
    assert [ended_run(run, tmp_path) for run in pack.runs] == [None, None]
    train_pack(pack, tmp_path)
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    assert [run.is_new for run in train_pack(pack, tmp_path).runs] == [False, False]  # nothing is trained again
    first, second = (ended_run(run, tmp_path) for run in pack.runs)
    assert (first.status, first.step, first.failed_at) == ("finished", 12, None)
    assert second.status == "failed" and second.failed_at == second.step > 0
    [other] = [replace(run, config=run.config.update({"beta1": 0.5})) for run in pack.runs[:1]]
    assert ended_run(other, tmp_path) is None  # the folder holds another run
