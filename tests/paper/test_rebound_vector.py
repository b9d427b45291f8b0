"""Taking the vector away and putting it back: claims that hold and fail on made tables."""

import numpy as np
import pandas as pd
import pytest

from joma.claims import Outcome, judge
from joma.paper.experiment import Measured
from joma.paper.rebound_cause import BASE, CENTRED, MEAN, NONE
from joma.paper.rebound_vector import CONSTANT, EXPERIMENTS, FULL, PUT_BACK, rises

RISES = {BASE: 0.45, CENTRED: 0.1, MEAN: 0.4, CONSTANT: 0.4, NONE: 0.1, PUT_BACK: 0.42}


def made(fall: float = 0.6, **changed: float) -> Measured:
    """Runs of five seeds with these rises."""
    rng = np.random.default_rng(0)
    rows = [
        {"condition": arm, "depth": 1, "layer": 0, "metric": "entropy", "seed": seed, "fall": fall, "end": 2.0}
        | {"rise": rise + 0.02 * rng.standard_normal(), "dip_step": 2000.0}
        for arm, rise in (RISES | changed).items()
        for seed in FULL.seeds
    ]
    runs = pd.DataFrame([{"condition": arm, "seed": seed, "end_loss": 5.5} for arm in RISES for seed in FULL.seeds])
    t = Measured(effects=pd.DataFrame(rows), runs=runs)
    t.config.arms = FULL.arms
    return t


def outcomes(t: Measured) -> list[Outcome]:
    return [answer.outcome for answer in judge(EXPERIMENTS[0].claims, t, tested_by="rebound-vector")]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, [Outcome.HOLDS] * 3),
        ({NONE: 0.41}, [Outcome.REFUTED, Outcome.MATCHES_CONTROL, Outcome.HOLDS]),
        ({CONSTANT: 0.1}, [Outcome.HOLDS, Outcome.REFUTED, Outcome.HOLDS]),
        ({PUT_BACK: 0.12}, [Outcome.HOLDS, Outcome.HOLDS, Outcome.REFUTED]),
        ({CENTRED: 0.44}, [Outcome.HOLDS, Outcome.HOLDS, Outcome.MATCHES_CONTROL]),
    ],
    ids=str,
)
def test_claims_follow_the_rises(changed, found):
    assert outcomes(made(**changed)) == [*found, Outcome.REPORTED]


def test_runs_that_do_not_fall_decide_nothing():
    t = made(fall=0.05)
    assert rises(t).isna().all(axis=None)
    assert outcomes(t)[:3] == [Outcome.UNDECIDED] * 3


def test_seeds_are_fresh():
    assert min(FULL.seeds) > 155  # the last of the answer's
