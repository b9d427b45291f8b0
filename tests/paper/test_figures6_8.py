"""Figures 6 and 8: claims on made effects, and a tiny training through the store."""

from dataclasses import replace

import pandas as pd
import pytest
from paper.cases import answers, with_config

from joma.claims import Outcome
from joma.engine.training import runs_of
from joma.paper.experiment import Measured
from joma.paper.figures6_8 import (
    ABLATION_CLAIMS,
    FIGURE6_CLAIMS,
    FIGURE8_CLAIMS,
    FULL,
    QUICK,
    judged_layers,
    tasks,
)
from joma.paper.language_models import LINEAR, PAPER, measured
from joma.store import Store

SEEDS = (1, 2, 3, 4, 5)


def made(rises, *, lr=1e-4, end=1.5, dip=2000.0):
    """Return effects and runs in which every layer of a run rises by the value of its condition and depth."""
    effects = [
        {
            "text": "wikitext2", "condition": condition, "depth": depth, "lr": rate, "seed": seed, "metric": "entropy",
            "layer": layer, "start": 2.5, "lowest": end - rise, "dip_step": dip * 1e-4 / rate, "end": end,
            "fall": 2.5 - end + rise, "rise": rise + 0.01 * seed, "name": "rebounding",
        }
        for (condition, depth), rise in rises.items()
        for rate in (lr if isinstance(lr, tuple) else (lr,))
        for seed in SEEDS
        for layer in range(depth)
    ]  # fmt: skip
    runs = pd.DataFrame(effects).drop_duplicates(["condition", "depth", "lr", "seed"])
    runs = runs.assign(best_loss=5.1 + 0.001 * runs["seed"] + (runs["lr"] != 1e-4) * 0.2)
    return with_config(Measured(effects=pd.DataFrame(effects), runs=runs), FULL)


def test_only_the_upper_half_of_deep_models_is_judged():
    effects = pd.DataFrame({"depth": [1, 2, 2, 5, 5, 5], "layer": [0, 0, 1, 0, 2, 3]})
    assert judged_layers(effects)["layer"].tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize(("rise", "outcome"), [(0.4, Outcome.HOLDS), (0.0, Outcome.REFUTED)])
def test_rebound_is_judged_by_its_size(rise, outcome):
    found = answers(FIGURE6_CLAIMS, made({(PAPER, 1): rise, (PAPER, 5): rise}))["figure6-rebound"]
    assert set(found.settings.values()) == {outcome}


def test_frozen_attention_that_rises_as_well_takes_the_rebound_away():
    rises = {(PAPER, 1): 0.4, ("frozen attention", 1): 0.4}
    assert answers(FIGURE6_CLAIMS, made(rises))["figure6-rebound"].outcome is Outcome.MATCHES_CONTROL


@pytest.mark.parametrize(("linear", "outcome"), [(0.0, Outcome.HOLDS), (0.5, Outcome.REFUTED)])
def test_the_nonlinearity_is_needed_only_if_the_rise_vanishes_without_it(linear, outcome):
    rises = {(PAPER, 1): 0.5, (LINEAR, 1): linear}
    assert answers(ABLATION_CLAIMS, made(rises))["rebound-ingredients"].outcome is outcome


def test_dip_time_in_inverse_proportion_holds_and_the_best_rate_is_found():
    tables = made({(PAPER, 5): 0.4}, lr=(1e-5, 1e-4, 1e-3, 1e-2))
    found = answers(FIGURE8_CLAIMS, tables)
    assert found["figure8-dip"].outcome is Outcome.HOLDS
    assert found["figure8-best"].outcome is Outcome.HOLDS
    assert set(found["figure8-collapse"].settings.values()) == {Outcome.REFUTED}


def test_a_tiny_training_gives_a_curve_for_each_seed_and_figures_share_it(tmp_path):
    config = replace(
        QUICK, depths=(1,), rates=(3e-3,), rate_depth=1, controls=(), settings=QUICK.settings | {"steps": 20}
    )
    store = Store(tmp_path)
    tables = measured(store, tasks(config, "cpu", (PAPER,), (1,)))
    [artefact] = store.used
    assert set(tables.curves["seed"]) == set(config.seeds)
    assert len(tables.effects) == len(config.seeds) * 3
    again = Store(tmp_path)
    assert again.gather(tasks(config, "cpu", (PAPER,), (config.rate_depth,)))[0].provenance == artefact.provenance


def test_full_runs_are_measured_densely():
    [run] = runs_of({**FULL.settings, "data": "wikitext2", "depth": 1, "seed": 1, "lr": 1e-4}, "figure6")
    due = run.config.training.due_steps(58_560)
    assert len(due) >= 150
    assert sum(1000 <= step <= 4000 for step in due) >= 8
