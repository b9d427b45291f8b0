"""What the rebound needs: arms that the engine knows, and claims that hold and fail on made tables."""

import numpy as np
import pandas as pd
import pytest

from joma.claims import Outcome, judge
from joma.engine.training import runs_of
from joma.paper.experiment import Measured
from joma.paper.rebound_cause import (
    ARMS,
    BASE,
    CENTRED,
    DISPLACED,
    EXPERIMENTS,
    LINEAR,
    MEAN,
    NONE,
    ReboundCauseConfig,
    rises,
)

FULL = ReboundCauseConfig()
ANSWER = next(each for each in EXPERIMENTS if each.id == "rebound-answer")


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_setting_that_changes_the_run(arm):
    base, own = ({"steps": 10, "seed": 1, **settings} for settings in ({}, ARMS[arm]))
    names = [runs_of(grid, "figure6")[0].config.hash for grid in (base, own)]
    assert (names[0] == names[1]) == (arm == BASE)


def made(rise: dict[str, float], fall: float = 1.0) -> Measured:
    """Runs of five seeds whose rise is that of their arm, the base's where none is given."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "condition": arm, "depth": depth, "layer": 0, "metric": "entropy", "seed": seed,
            "fall": 1.0 if arm == BASE else fall,
            "rise": rise.get(arm, rise[BASE]) + 0.01 * rng.standard_normal(),
            "dip_step": 1000.0, "end": 2.0,
        }
        for arm in ARMS
        for depth in FULL.depths
        for seed in FULL.seeds
    ]  # fmt: skip
    t = Measured(effects=pd.DataFrame(rows))
    t.config.depths, t.config.arms, t.config.settings = FULL.depths, FULL.arms, FULL.settings
    return t


@pytest.mark.parametrize(
    ("rise", "positions", "nonlinearity"),
    [
        ({BASE: 0.6, CENTRED: 0.05, MEAN: 0.55, NONE: 0.02, LINEAR: 0.5}, Outcome.HOLDS, Outcome.REFUTED),
        ({BASE: 0.6, CENTRED: 0.5, MEAN: 0.1, NONE: 0.5, LINEAR: 0.05}, Outcome.REFUTED, Outcome.HOLDS),
        ({BASE: 0.6, CENTRED: 0.05, DISPLACED: 0.05, NONE: 0.02, LINEAR: 0.2}, Outcome.REFUTED, Outcome.UNDECIDED),
    ],
)  # fmt: skip
def test_claims_follow_the_rises(rise, positions, nonlinearity):
    answers = judge(EXPERIMENTS[0].claims, made(rise), tested_by="rebound-cause")
    assert [answer.outcome for answer in answers] == [positions, nonlinearity, Outcome.REPORTED]


def test_runs_that_hardly_fall_are_not_comparable_and_decide_nothing():
    t = made({BASE: 0.6, CENTRED: 0.0}, fall=0.4)
    assert not rises(t)["depth 1"].query("arm == @CENTRED")["comparable"].any()
    answers = judge(EXPERIMENTS[0].claims, t, tested_by="rebound-cause")
    assert answers[0].outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("rise", "outcome"),
    [
        ({BASE: 0.6, CENTRED: 0.1, MEAN: 0.7}, Outcome.HOLDS),
        ({BASE: 0.6, CENTRED: 0.3, MEAN: 0.7}, Outcome.REFUTED),
        ({BASE: 0.6, CENTRED: 0.1, MEAN: 0.3}, Outcome.REFUTED),
        ({BASE: 0.6, CENTRED: 0.2, MEAN: 0.7}, Outcome.UNDECIDED),
    ],
)
def test_the_answer_needs_both_that_the_vector_is_needed_and_that_it_is_enough(rise, outcome):
    answer, dip = judge(ANSWER.claims, made(rise), tested_by="rebound-answer")
    assert (answer.outcome, dip.outcome) == (outcome, Outcome.REPORTED)
