"""Rows of runs on data with latents: each run is trained once, whatever it is packed with, and weights are not kept."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from engine.small_runs import pack as small_pack

from joma.engine.loop import train_pack
from joma.engine.plan import make_plan
from joma.experiments import latent_neurons, pack_pieces, timetable
from joma.experiments.experiment import Workplace
from joma.experiments.latent_neurons import AllDivergedError, measured_packs
from joma.experiments.timetable import OutOfTime, Timetable

SEEDS = (1, 2, 3, 4, 5)


class KilledError(BaseException):
    """The process dies."""


def packs_of(most, **changes):
    """Plans of packs of at most so many runs."""
    runs = small_pack(SEEDS, **changes).runs
    [whole] = make_plan(runs, device=torch.device("cpu")).packs
    parts = [runs[at : at + most] for at in range(0, len(runs), most)]
    return [replace(whole, pack=replace(whole.pack, runs=part)) for part in parts]


def place(folder, **changes):
    return Workplace(folder=folder, device="cpu", progress=lambda share, doing: None, **changes)


def measure(run, folder, parameters):
    """Something that depends on every weight."""
    total = sum(float(tensor.sum()) for tensor in parameters.values())
    return [{"seed": run.config.seed, "level": level, "sum": total} for level in range(2)]


@pytest.fixture
def trained(monkeypatch):
    """Seeds in the order in which they are trained."""
    seeds = []

    def watched(pack, *arguments, **options):
        seeds.extend(run.config.seed for run in pack.runs)
        return train_pack(pack, *arguments, **options)

    monkeypatch.setattr(latent_neurons, "train_pack", watched)
    return seeds


def rows(folder, most=5, measure=measure, settings="s", **changes):
    return measured_packs(packs_of(most, **changes), place(folder), measure, settings=settings)


def test_another_packing_finds_the_rows(tmp_path, trained):
    first = rows(tmp_path, most=5)
    assert trained == list(SEEDS)
    assert first["seed"].tolist() == [seed for seed in SEEDS for _ in range(2)]
    for most in (2, 3, 1):
        pd.testing.assert_frame_equal(rows(tmp_path, most=most), first)
    assert trained == list(SEEDS)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".safetensors" or path.is_dir()]


def test_other_settings_are_measured_anew(tmp_path, trained):
    rows(tmp_path)
    rows(tmp_path, settings="t")
    assert trained == 2 * list(SEEDS)


def test_killed_while_measuring_no_run_is_measured_twice(tmp_path, trained):
    measured = []

    def mortal(run, folder, parameters):
        if len(measured) == 3:
            raise KilledError
        measured.append(run.config.seed)
        return measure(run, folder, parameters)

    def watched(run, folder, parameters):
        measured.append(run.config.seed)
        return measure(run, folder, parameters)

    with pytest.raises(KilledError):
        rows(tmp_path, most=5, measure=mortal)
    measured.clear()
    again = rows(tmp_path, most=2, measure=watched)
    assert measured == [4, 5] == trained[5:]
    pd.testing.assert_frame_equal(again, rows(tmp_path / "whole"), check_exact=True)


def test_runs_whose_weights_were_lost_before_they_were_measured_are_trained_again(tmp_path, trained):
    def dies(run, folder, parameters):
        raise KilledError

    with pytest.raises(KilledError):
        rows(tmp_path, measure=dies)
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    again = rows(tmp_path)
    assert trained == 2 * list(SEEDS)
    pd.testing.assert_frame_equal(again, rows(tmp_path / "whole"), check_exact=True)


def test_runs_that_diverge_have_no_rows_and_are_not_trained_again(tmp_path, trained):
    first = rows(tmp_path, diverging=(2,))
    assert set(first["seed"]) == {1, 3, 4, 5}
    rows(tmp_path, diverging=(2,))
    assert trained == list(SEEDS)


def test_where_all_runs_diverge_it_is_told_now_and_later(tmp_path, trained):
    for _ in range(2):
        with pytest.raises(AllDivergedError, match=r"finite to be measured, but all 5 runs diverged\. Lower their"):
            rows(tmp_path, diverging=SEEDS)
    assert trained == list(SEEDS)


def test_a_limit_leaves_packs_and_the_next_call_does_them(tmp_path, trained, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timetable, "monotonic", lambda: now[0])
    monkeypatch.setattr(pack_pieces, "_pace", lambda plan, device: 1.0)  # the plans say how long they take

    def slow(run, folder, parameters):
        now[0] += 10.0
        return measure(run, folder, parameters)

    packs = [replace(pack, seconds=5.0 * pack.pack.num_runs) for pack in packs_of(2)]

    def call(limit):
        limited = Timetable(limit=limit, begun=now[0])
        return measured_packs(packs, place(tmp_path, timetable=limited), slow, settings="s")

    with pytest.raises(OutOfTime, match=r"1 of 3 packs left\. That takes about 20 s: run the same command again"):
        call(35.0)
    assert trained == [1, 2, 5]  # the last pack has a single run, and fits where the second does not
    found = call(math.inf)
    assert trained == [1, 2, 5, 3, 4]
    pd.testing.assert_frame_equal(found, rows(tmp_path / "whole"), check_exact=True)
