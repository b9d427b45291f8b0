"""Speeds of convergence: predicted times, slopes of made tables, and claims that hold and fail on them."""

import numpy as np
import pandas as pd
import pytest

from joma.claims import Outcome, judge
from joma.paper.convergence_speeds import (
    EXPERIMENTS,
    FRACTIONS,
    FROZEN,
    MODEL,
    PRINTED,
    TRAINED,
    SpeedsConfig,
    model_time,
    one_run,
    slopes,
)
from joma.paper.experiment import Measured
from joma.theory import AttentionFlow, integrate, learning_time


def test_predicted_times_of_the_model_are_those_of_its_integrated_flow():
    end = np.array([0.3, 1.2, 2.5])
    flow = AttentionFlow(mu=end * np.exp(np.square(end) / 2))
    for column, time in enumerate(model_time(np.array([[0.5]]), end)[0]):
        path = integrate(lambda t, state: {"v": flow.field(state["v"])}, {"v": np.zeros(3)}, np.array([0.0, time]))
        assert path["v"][-1, column] / end[column] == pytest.approx(0.5, rel=1e-4)  # the grid of times


def test_a_run_measures_later_times_for_larger_fractions_and_the_same_tokens_with_frozen_attention():
    config = SpeedsConfig(num_tokens=6, num_classes=3, end=200.0)
    for kind in (TRAINED, FROZEN):
        table = one_run(config, kind, 1)
        assert set(table["token"]) == set(range(6))
        assert table["measured"].between(0, 100).all()
        assert table.groupby("token")["measured"].apply(lambda of: of.is_monotonic_increasing).all()


def made(power: float, frozen: float) -> Measured:
    """Times that are powers of those of Eqn 6, times a power of the frequency, which is no business of the slope."""
    rng = np.random.default_rng(0)
    tables = []
    for kind, exponent in ((TRAINED, power), (FROZEN, frozen)):
        for seed in range(5):
            size, frequency = rng.uniform(0.5, 3, 30), rng.uniform(-4, -1, 30)
            predicted = learning_time(FRACTIONS[:, None], size)
            noise = np.exp(0.01 * rng.standard_normal(predicted.shape))
            columns = {"measured": 7 * predicted**exponent * np.exp(-0.8 * frequency) * noise}
            columns |= {PRINTED: predicted, MODEL: predicted**2, "log_frequency": frequency}
            columns |= {"fraction": FRACTIONS[:, None], "kind": kind, "seed": seed, "token": np.arange(30)}
            flat = {name: np.broadcast_to(value, predicted.shape).ravel() for name, value in columns.items()}
            tables.append(pd.DataFrame(flat))
    return Measured(times=pd.concat(tables, ignore_index=True))


@pytest.mark.parametrize(
    ("power", "frozen", "outcomes"),
    [
        (1.0, 0.0, [Outcome.HOLDS, Outcome.REFUTED]),
        (2.0, 0.0, [Outcome.REFUTED, Outcome.HOLDS]),
        (1.0, 0.9, [Outcome.REFUTED, Outcome.REFUTED]),
    ],
)
def test_claims_follow_the_slopes_and_need_a_distance_from_frozen_attention(power, frozen, outcomes):
    t = made(power, frozen)
    found = slopes(t.times, TRAINED, PRINTED).mean()
    assert found["predicted"] == pytest.approx(power, abs=0.02)
    assert found["frequency"] == pytest.approx(-0.8, abs=0.01)
    answers = judge(EXPERIMENTS[0].claims, t, tested_by="convergence-speeds")
    assert [answer.outcome for answer in answers] == outcomes
