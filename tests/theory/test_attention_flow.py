"""The flow under exp attention: field against autograd on the layer, exact solution and rates against the ODE."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import ACTIVATIONS_IN_TORCH
from scipy import special

from joma.theory.activations import ACTIVATIONS
from joma.theory.attention_flow import AttentionFlow, LinearAttentionFlow
from joma.theory.convergence import ConvergenceFlow
from joma.theory.integrate import integrate

targets = arrays(np.float64, 4, elements=st.floats(-6, 6))
starts = arrays(np.float64, 4, elements=st.floats(-1.5, 1.5))
logits = arrays(np.float64, 4, elements=st.floats(-0.5, 0.5))
scales = st.floats(0.6, 2.0)


@st.composite
def flows(draw) -> AttentionFlow:
    return AttentionFlow(
        mu=draw(targets),
        v0=draw(starts),
        z0=draw(st.none() | logits),
        normalisation=draw(scales),
        temperature=draw(scales),
        rate_ratio=draw(scales),
    )


@given(flows(), st.sampled_from(sorted(ACTIVATIONS_IN_TORCH)), starts, st.integers(0, 2**32 - 1))
def test_field_is_the_gradient_of_the_layer(flow, name, v, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.dirichlet(np.ones(4), size=7), rng.normal(size=7)

    def uniform_field(u):
        return (g * ACTIVATIONS[name].derivative(u @ x.T)) @ x

    weights = torch.tensor(v, requires_grad=True)
    attention = torch.tensor(np.exp(flow.logits(v) / flow.temperature) / flow.normalisation)
    h = (weights * attention * torch.tensor(x)).sum(dim=1)
    (torch.tensor(g) * ACTIVATIONS_IN_TORCH[name](h)).sum().backward()

    tied = replace(flow, uniform_field=uniform_field)
    np.testing.assert_allclose(tied.field(v), weights.grad.numpy(), rtol=1e-10, atol=1e-10)


@settings(max_examples=15)
@given(flows(), st.floats(0.01, 2.0))
def test_solution_solves_the_joint_flow_of_weights_and_logits(flow, t):
    def joint(_, state):
        a = np.exp(state["z"] / flow.temperature) / flow.normalisation
        v_dot = a * (flow.mu - state["v"] * a)
        return {"v": v_dot, "z": flow.rate_ratio / flow.temperature * state["v"] * v_dot}

    start = {"v": flow.start, "z": flow.logits(flow.start)}
    run = integrate(joint, start, np.array([0.0, t]))
    # The bound asked of closed forms against the ODE.
    np.testing.assert_allclose(flow.solution(np.array([t]))[0], run["v"][-1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(flow.logits(run["v"][-1]), run["z"][-1], rtol=1e-9, atol=1e-9)


@given(flows())
def test_critical_point_is_where_the_weights_seen_through_attention_reach_the_target(flow):
    v = flow.critical_point()
    np.testing.assert_allclose(v * flow.attention(v), flow.mu, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(flow.field(v), 0, atol=1e-9)


def test_critical_point_is_lambert_of_the_squared_target():
    mu = np.array([0.0, 1.0, -4.0, 1e3])
    for normalisation in (1.0, 2.5):
        v = AttentionFlow(mu=mu, normalisation=normalisation).critical_point()
        np.testing.assert_allclose(v**2, special.lambertw((normalisation * mu) ** 2).real, rtol=1e-13)
    assert np.isfinite(AttentionFlow(mu=np.array([1e200])).critical_point()).all()


def test_golden_rates_beside_those_of_eqn_6():
    mu = np.array([1.0, 4.0])
    np.testing.assert_allclose(AttentionFlow(mu=mu).local_rates(), [2.763, 23.79], rtol=2e-4)
    np.testing.assert_allclose(ConvergenceFlow(mu=mu).local_rates(), [1.649, 2981], rtol=2e-4)


near_targets = arrays(np.float64, 4, elements=st.floats(-3, 3))


@st.composite
def linear_flows(draw) -> LinearAttentionFlow:
    return LinearAttentionFlow(
        mu=draw(near_targets),
        v0=draw(st.none() | near_targets),
        charge=draw(st.just(0.0) | st.floats(0.01, 2)),
        temperature=draw(scales),
        rate_ratio=draw(scales),
    )


@settings(max_examples=15)
@given(linear_flows(), st.floats(0.01, 5.0))
def test_solution_under_linear_attention_solves_the_joint_flow(flow, t):
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


def test_zero_is_stuck_without_a_charge_and_free_with_one():
    t = np.array([0.0, 1.0, 1e4])
    np.testing.assert_array_equal(LinearAttentionFlow(mu=np.array([2.0, -1.0])).solution(t), 0)
    free = LinearAttentionFlow(mu=np.array([2.0, -1.0]), charge=0.1).solution(t)
    np.testing.assert_allclose(free[-1], [2.0, -1.0])
