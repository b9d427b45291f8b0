"""A common vector: broadcasting, limits and refusals; `joma verify common-vector thm1-common` has the laws."""

from dataclasses import replace

import numpy as np
import pytest

from joma.errors import AssumptionError
from joma.theory import (
    Attention,
    AttentionKind,
    QueriesFlow,
    common_invariant,
    common_velocity,
    dip_window,
    entropy_rebound,
    shared_gain,
    simulate,
)

MU = np.array([[4.0, 1.0, 2.0], [3.0, 1.5, 1.0]])


def test_velocities_and_windows_broadcast():
    pull = np.random.default_rng(0).normal(size=(5, 2, 3, 4))
    s = np.linspace(0.1, 2.0, 5)
    together = common_velocity(pull, s[:, None], common_keys=0.3)
    np.testing.assert_allclose(together[2], common_velocity(pull[2], s[2], common_keys=0.3), rtol=1e-14)
    first, second = dip_window(MU, np.array([1e3, 1e5]))
    assert first.shape == second.shape == (2,) and (first < second).all()
    assert shared_gain(np.array([0.0, 1.0]), np.array([[3.0], [5.0]])).shape == (2, 2)


def test_queries_agree_to_first_order_in_the_inverse_of_s():
    t = np.linspace(0.0, 1.0, 5)

    def apart(s):
        return np.ptp(QueriesFlow(mu=MU, common=s, rate_ratio=1 / s).run(t).z, axis=1).max()

    assert apart(1e4) / apart(2e4) == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("s", [30.0, 1000.0])
def test_the_flow_of_a_single_query_predicts_the_dip(s):
    """Within 5 %, though targets differ between the queries."""
    run = QueriesFlow(mu=MU, common=s).run(np.append(0.0, np.geomspace(1e-3, 3.0, 800)))
    said = entropy_rebound(run.flow.limit())
    assert run.shared.time == pytest.approx(said.time, rel=0.05)
    assert run.shared.lowest == pytest.approx(said.lowest, rel=0.05)


def test_time_is_in_units_of_the_learning_rate():
    """Ten times the rate of both parameters is ten times the speed: the flow knows their ratio alone."""
    flow, t = QueriesFlow(mu=MU, common=20.0), np.linspace(0.0, 0.5, 6)
    state = {"v": np.full(3, 0.3), "z": np.full((2, 3), 0.1)}
    rates, ten = flow.field(0.0, state), replace(flow, rate_ratio=10.0).field(0.0, state)
    np.testing.assert_allclose(ten["z"], 10 * rates["z"], rtol=1e-14)
    np.testing.assert_array_equal(ten["v"], rates["v"])
    assert flow.run(t).columns()["query_1"].shape == (6,)


def test_simulate_has_the_flow_and_its_control():
    runs = [simulate(flow="common", common=s, num_queries=4, temperature=0.7, targets=[3.0, 1.0]) for s in (50.0, 0.0)]
    assert all(run.closed_form_distance < 1e-9 and run.drift.max() < 1e-9 for run in runs)
    assert runs[0].rebound.drop > 10 * runs[1].rebound.drop
    model = simulate(flow="model", rate_ratio=50.25, temperature=0.7, targets=[3.0, 1.0])
    assert runs[0].rebound.lowest == pytest.approx(model.rebound.lowest, rel=1e-9)
    with pytest.raises(ValueError, match="common"):
        simulate(flow="model", common=1.0)


def test_what_is_not_known_is_refused():
    softmax = Attention(kind=AttentionKind.SOFTMAX)
    with pytest.raises(AssumptionError, match="exp"):
        common_invariant(np.array([[1.0]]), np.array([[1.0]]), softmax, 0.5)
    with pytest.raises(AssumptionError, match="exp"):
        QueriesFlow(mu=MU, attention=softmax).limit()
    with pytest.raises(AssumptionError, match="linear"):
        QueriesFlow(mu=MU, attention=Attention(kind=AttentionKind.LINEAR))
    with pytest.raises(AssumptionError, match="ties"):
        dip_window(np.array([2.0, -2.0, 1.0]), 1e3)
    with pytest.raises(ValueError, match="common"):
        QueriesFlow(mu=MU, common=-1.0)
