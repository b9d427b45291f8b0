"""A common vector: limits; `joma verify common-vector thm1-common` has the laws."""

import numpy as np
import pytest

from joma.theory import QueriesFlow, entropy_rebound, simulate

MU = np.array([[4.0, 1.0, 2.0], [3.0, 1.5, 1.0]])


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


def test_simulate_has_the_flow_and_its_control():
    runs = [simulate(flow="common", common=s, num_queries=4, temperature=0.7, targets=[3.0, 1.0]) for s in (50.0, 0.0)]
    assert all(run.closed_form_distance < 1e-9 and run.drift.max() < 1e-9 for run in runs)
    assert runs[0].rebound.drop > 10 * runs[1].rebound.drop
    model = simulate(flow="model", rate_ratio=50.25, temperature=0.7, targets=[3.0, 1.0])
    assert runs[0].rebound.lowest == pytest.approx(model.rebound.lowest, rel=1e-9)
