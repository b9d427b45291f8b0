"""Curves up to the lowest loss of their own run: each is cut at its own step, whatever other seeds do."""

import numpy as np
import pandas as pd
import pytest

from experiments.language_model_cases import place, toy, write_text_folder
from joma.engine.measuring import ALL_HEADS, ENTROPY, LOSS
from joma.engine.sources import VALIDATION
from joma.experiments import language_model_runs
from joma.experiments.ended_runs import EndedRun
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import LINEAR, PAPER, UNTRAINED
from joma.experiments.language_model_runs import Found, planned_runs
from joma.experiments.language_model_settings import Setting
from joma.experiments.language_models import compute
from joma.experiments.rebound_until_best import COLUMNS, TABLE, UntilBest, regimes_until_best

STEPS = np.arange(0, 60_001, 1000)
EARLY, LATE = 20_000, 50_000
CONFIG = toy("a text", seeds=(1, 2, 3))


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make a run of depth 1 that has its lowest loss at a step, and an entropy over `STEPS`."""
    records = {}
    monkeypatch.setattr(language_model_runs, "read", records.__getitem__)
    planned = {
        (*suite.setting_of(run)[1:3], run.config.get("seed")): run for suite, run in planned_runs(CONFIG).values()
    }

    def make(seed, *, best_step, entropy, condition=PAPER):
        run = planned[condition, 1, seed]
        ended = EndedRun(
            folder=tmp_path / run.name, config=run.config, status="finished", step=int(STEPS[-1]), failed_at=None
        )
        rows = {"step": STEPS, "head": ALL_HEADS}
        losses = {**rows, "metric": LOSS, "site": VALIDATION, "layer": -1, "value": 5 + abs(STEPS - best_step) / 1e5}
        entropies = {**rows, "metric": ENTROPY, "site": "attention", "layer": 0, "value": entropy}
        records[ended.folder] = pd.concat(map(pd.DataFrame, (losses, entropies)), ignore_index=True)
        return Found(run=ended, text=CONFIG.texts[0], condition=condition)

    return make


def dips_at(step, *, then=0.0):
    """An entropy that falls until a step, rises until ten thousand steps later, and goes on as told."""
    return np.interp(STEPS, [0, step, step + 10_000, 60_000], [2.5, 1.5, 2.0, 2.0 + then])


def counts(table, condition=PAPER):
    setting = Setting(CONFIG.texts[0], condition, 1, CONFIG.rate)
    found = UntilBest.of(Result(tables={TABLE: table}, facts={}), setting)
    return str(found.own), str(found.usual)


def test_each_curve_is_cut_at_the_lowest_loss_of_its_own_run(made):
    early, late = dips_at(5000, then=-1.8), dips_at(35_000)
    table = regimes_until_best(
        [
            made(1, best_step=EARLY, entropy=early),
            made(2, best_step=LATE, entropy=late),
            made(3, best_step=EARLY, entropy=late),  # its dip comes after the lowest loss
        ],
        CONFIG,
    )
    assert list(table.columns) == COLUMNS
    assert dict(zip(table["seed"], table["best_step"], strict=True)) == {1: EARLY, 2: LATE, 3: EARLY}
    assert list(table["kind"]) == ["rebounding", "rebounding", "falling"]
    assert counts(table) == ("2 of 3", "2 of 3")


def test_what_comes_after_the_lowest_loss_changes_nothing(made):
    one, other = (
        regimes_until_best([made(1, best_step=EARLY, entropy=dips_at(5000, then=then))], CONFIG) for then in (0.0, -1.8)
    )
    pd.testing.assert_frame_equal(one, other)


def test_runs_of_the_paper_are_cut_where_those_with_an_ingredient_less_are(made):
    late = dips_at(35_000)
    table = regimes_until_best(
        [
            made(1, best_step=LATE, entropy=late),
            made(2, best_step=LATE, entropy=dips_at(5000)),
            made(1, best_step=EARLY, entropy=late, condition=LINEAR),
            made(2, best_step=EARLY, entropy=late, condition=LINEAR),
        ],
        CONFIG,
    )
    assert counts(table) == ("2 of 2", "2 of 2")
    assert counts(table, LINEAR) == ("0 of 2", "1 of 2")  # the first run of the paper has not dipped there either
    steps = table[table["condition"] == PAPER].groupby("best_of")["best_step"].unique()
    assert {name: list(own) for name, own in steps.items()} == {PAPER: [LATE], LINEAR: [EARLY]}


def test_without_the_runs_of_the_paper_the_others_stand_alone(made):
    table = regimes_until_best([made(1, best_step=LATE, entropy=dips_at(5000), condition=LINEAR)], CONFIG)
    assert counts(table, LINEAR) == ("1 of 1", "0 of 0")


def test_a_lowest_loss_after_few_points_leaves_a_curve_unclear(made):
    [kind] = regimes_until_best([made(1, best_step=3000, entropy=dips_at(2000))], CONFIG)["kind"]
    assert kind == "unclear"


def test_runs_that_are_no_controls_are_left_out(made):
    found = [made(1, best_step=LATE, entropy=dips_at(5000), condition=UNTRAINED)]
    table = regimes_until_best(found, CONFIG)
    assert table.empty and list(table.columns) == COLUMNS


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = toy(write_text_folder(tmp_path_factory.mktemp("text")), control_depths=(1, 2), controls=(LINEAR,))
    return config, compute(config, place(tmp_path_factory.mktemp("work")))


def test_every_layer_and_seed_is_there_with_the_step_of_its_run(trained):
    config, result = trained
    table = result.tables[TABLE]
    assert len(table) == 3 * (1 + 2) * len(config.seeds)  # of the paper, with less, and of the paper cut there
    runs = result.tables["runs"].rename(columns={"condition": "best_of", "best_step": "of_run"})
    together = table.merge(runs, on=["text", "best_of", "depth", "lr", "seed"])
    assert len(together) == len(table) and (together["best_step"] == together["of_run"]).all()


def test_a_run_that_is_best_at_its_end_does_there_what_it_does_in_all(trained):
    _, result = trained
    keys = ["text", "condition", "depth", "lr", "seed"]
    at_end = result.tables["runs"].query("best_step == num_steps")[keys]
    own = result.tables[TABLE].query("best_of == condition").merge(at_end)
    regimes = result.tables["regimes"].query("metric == @ENTROPY")
    both = own.merge(regimes, on=[*keys, "layer"], suffixes=("", "_in_all"))
    assert len(both) == len(own) > 0 and (both["kind"] == both["kind_in_all"]).all()
