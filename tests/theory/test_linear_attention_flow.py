"""Linear attention: the exact solution against the ODE of the weights and the logits, its limits and its rates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.theory.attention_flow import LinearAttentionFlow
from joma.theory.integrate import integrate

targets = arrays(np.float64, 4, elements=st.floats(-3, 3))
scales = st.floats(0.6, 2.0)


@st.composite
def flows(draw) -> LinearAttentionFlow:
    return LinearAttentionFlow(
        mu=draw(targets),
        v0=draw(st.none() | targets),
        charge=draw(st.just(0.0) | st.floats(0.01, 2)),
        temperature=draw(scales),
        rate_ratio=draw(scales),
    )


@given(flows(), st.floats(0.01, 5.0))
def test_solution_solves_the_joint_flow_of_weights_and_logits(flow, t):
    def joint(_, state):
        gap = flow.mu - state["v"]
        return {
            "v": gap * state["z"] / flow.temperature,
            "z": flow.rate_ratio * gap * state["v"] / flow.temperature,
        }

    start = {"v": flow.start, "z": flow.logits(flow.start)}
    run = integrate(joint, start, np.array([0.0, t]))
    # The bound asked of closed forms against the ODE.
    np.testing.assert_allclose(flow.solution(np.array([t]))[0], run["v"][-1], rtol=1e-9, atol=1e-9)


def test_without_charge_it_is_logistic():
    flow = LinearAttentionFlow(mu=np.array([2.0]), v0=np.array([0.1]))
    t = np.linspace(0, 10, 21)
    logistic = 2.0 * 0.1 / (0.1 + 1.9 * np.exp(-2.0 * t))
    np.testing.assert_allclose(flow.solution(t)[:, 0], logistic, rtol=1e-14)


def test_zero_is_stuck_without_a_charge_and_free_with_one():
    t = np.array([0.0, 1.0, 1e4])
    np.testing.assert_array_equal(LinearAttentionFlow(mu=np.array([2.0, -1.0])).solution(t), 0)
    free = LinearAttentionFlow(mu=np.array([2.0, -1.0]), charge=0.1).solution(t)
    np.testing.assert_allclose(free[-1], [2.0, -1.0])


def test_a_start_on_the_other_side_ends_at_zero():
    flow = LinearAttentionFlow(mu=np.array([2.0, 0.0]), v0=np.array([-1.0, 1.0]))
    np.testing.assert_allclose(flow.solution(np.array([1e6])), 0, atol=2e-6)


@given(flows(), st.floats(0.1, 2))
def test_the_gap_closes_at_the_local_rate(flow, step):
    near = LinearAttentionFlow(
        mu=flow.mu,
        v0=flow.mu * (1 + 1e-7),
        charge=flow.charge,
        temperature=flow.temperature,
        rate_ratio=flow.rate_ratio,
    )
    gap = near.solution(np.array([step]))[0] - flow.mu
    # Second order in a relative gap of 1e-7, and the rounding of v.
    np.testing.assert_allclose(gap, 1e-7 * flow.mu * np.exp(-flow.local_rates() * step), rtol=1e-6, atol=1e-15)
