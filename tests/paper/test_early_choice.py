"""Choosing the learning rate early: regrets of made sweeps, claims that hold and fail, and the quick preset."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from paper.cases import answers, outcomes, with_config

from joma.claims import Outcome
from joma.paper.early_choice import (
    BEFORE,
    BOTH,
    ENTROPY_SLOPE,
    EXPERIMENTS,
    PREDICTORS,
    QUICK,
    SHUFFLED,
    TIMES,
    EarlyChoiceConfig,
    choices,
    compute,
    features_of,
)
from joma.paper.experiment import Measured, select
from joma.store import Store

FULL = EarlyChoiceConfig()
CLAIMS = EXPERIMENTS[0].claims


def made(entropy, *, wrong=0.15):
    """Sweeps whose early loss is the final one but for an error that `entropy` times the entropy's slope shows.

    At the three highest rates the early loss is too low, by as much as `wrong` and a share that depends on the seed.
    """
    rng, rows = np.random.default_rng(0), []
    x = np.log(FULL.rates)
    for depth in FULL.depths:
        for seed in FULL.seeds:
            final = 5.0 + 0.1 * (x - x[7] + 0.2 * rng.standard_normal()) ** 2
            error = np.where(np.arange(len(x)) > 8, wrong * (np.arange(len(x)) - 8), 0.0) * rng.uniform(0.8, 1.2)
            for time in TIMES:
                columns = {name: rng.standard_normal(len(x)) for name in PREDICTORS}
                columns |= {"loss": 1.0 + final - error, ENTROPY_SLOPE: entropy * error + 0.02 * columns[ENTROPY_SLOPE]}
                about = {"depth": depth, "seed": seed, "lr": FULL.rates, "time": time, "final": final}
                rows.append(pd.DataFrame(about | columns))
    return pd.concat(rows, ignore_index=True)


def measured(features):
    return with_config(Measured(features=features, choices=choices(features, FULL.fitted)), FULL)


def regret(found, predictor):
    return select(found, predictor=predictor, time=0.1)["regret"]


def test_the_final_loss_as_predictor_has_no_regret():
    features = made(1.0)
    found = choices(features.assign(loss=features["final"]), 5)
    assert set(found["depth"]) == {2, 10}
    assert (regret(found, "loss") == 0).all() and (regret(found, BOTH) == 0).all()
    highest = choices(features.assign(**{"gradient rank": -features["final"]}), 5)
    assert (regret(highest, "gradient rank") == 0).all()  # the sign is fitted


def test_entropy_that_shows_the_error_removes_the_regret_and_that_of_other_rates_does_not():
    found = choices(made(1.0), 5)
    assert regret(found, "loss").mean() > 0.1
    assert regret(found, BOTH).mean() < 0.2 * regret(found, "loss").mean()
    assert regret(found, SHUFFLED).mean() == pytest.approx(regret(found, "loss").mean(), rel=0.25)
    assert regret(found, BEFORE).mean() < regret(found, "loss").mean()
    assert (select(found, predictor=BOTH)["factor"] > 0).all()


def test_an_entropy_that_is_constant_leaves_the_loss_alone():
    found = choices(made(1.0).assign(**{ENTROPY_SLOPE: 0.0}), None)
    both, loss = (select(found, predictor=name) for name in (BOTH, "loss"))
    assert set(found["depth"]) == set(FULL.depths) and (both["factor"] == 0).all()
    assert both["regret"].tolist() == loss["regret"].tolist()


def test_a_run_that_is_known_to_have_diverged_is_not_chosen():
    features = made(1.0)
    lowest = features["final"] == features.groupby(["depth", "seed", "time"])["final"].transform("min")
    found = choices(features.assign(loss=features["final"].mask(lowest)), 5)
    assert (regret(found, "loss") > 0).all() and np.isfinite(found["regret"]).all()


@pytest.mark.parametrize(
    ("entropy", "wrong", "outcome"),
    [(1.0, 0.15, Outcome.HOLDS), (0.0, 0.15, Outcome.REFUTED), (1.0, 0.0, Outcome.REPORTED)],
)
def test_the_claim_follows_the_regrets_and_needs_room(entropy, wrong, outcome):
    features = made(entropy, wrong=wrong)
    if not entropy:
        features[ENTROPY_SLOPE] = 0.0
    found = answers(CLAIMS, measured(features))
    assert found["early-choice-entropy"].outcome is outcome
    room = next(number for number in found["early-choice-entropy"].numbers if number.key == "room")
    assert room.value == (wrong > 0)
    assert found["early-choice-predictors"].outcome is Outcome.REPORTED


def test_predictors_of_a_run_are_read_at_the_time_and_from_half_of_it_on():
    steps = np.array([0, 10, 50, 80, 100, 200])
    curves = {
        ("loss", -1): 6 - np.log1p(steps), ("entropy", 0): 2.0 - 0.3 * np.log(np.maximum(steps, 1)),
        ("entropy", 1): steps * 1.0, ("max_logit", 0): steps * 0.0, ("max_logit", 1): np.log(np.maximum(steps, 1)),
        ("gradient_stable_rank", 0): steps * 1.0, ("gradient_stable_rank", 1): steps * 3.0,
    }  # fmt: skip
    table = pd.concat(
        pd.DataFrame({"metric": metric, "layer": layer, "step": steps, "value": values})
        for (metric, layer), values in curves.items()
    )
    found = features_of(table, 100.0)
    assert found["loss"] == 6 - np.log(101)
    assert found[ENTROPY_SLOPE] == pytest.approx(-0.3)
    assert found["slope of the largest logit"] == pytest.approx(1.0)
    assert found["gradient rank"] == 200.0


def test_the_quick_preset_gives_both_claims_and_charts(tmp_path):
    config = replace(QUICK, settings={**QUICK.settings, "steps": 60})
    t = with_config(compute(config, Store(tmp_path, device="cpu")), config)
    assert len(t.features) == len(t.runs) * len(TIMES) == 4 * 2 * 2 * 3
    assert set(outcomes(CLAIMS, t)) == {"early-choice-entropy", "early-choice-predictors"}
    assert len(EXPERIMENTS[0].draw(t)) == 3
