"""The flow under exp attention: field against autograd on the layer, exact solution and rates against the ODE."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
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


@given(flows(), st.integers(0, 2**32 - 1))
def test_jacobian_is_the_derivative_of_the_field(flow, seed):
    C = np.random.default_rng(seed).normal(size=(4, 4))
    tied = replace(flow, uniform_field=lambda u: (flow.mu - u) @ C.T)
    v, h = tied.critical_point(), 1e-5
    columns = [(tied.field(v + h * e) - tied.field(v - h * e)) / (2 * h) for e in np.eye(4)]
    J = tied.jacobian(C)
    # Central differences: h² times a third derivative that grows as the square of the rates.
    np.testing.assert_allclose(np.array(columns).T, J, rtol=1e-5, atol=1e-6 * np.abs(J).max())


@given(flows())
def test_local_rates_are_the_jacobian_for_the_identity(flow):
    np.testing.assert_allclose(flow.local_rates(), -np.diag(flow.jacobian(np.eye(4))), rtol=1e-13)


@given(st.integers(0, 2**32 - 1))
def test_attention_keeps_stability(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    C = root @ root.T - 0.5 * np.eye(4)
    eigenvalues = np.linalg.eigvals(-AttentionFlow(mu=rng.normal(size=4)).jacobian(C)).real
    assert (eigenvalues > 0).sum() == (np.linalg.eigvalsh(C) > 0).sum()


def test_late_efolds_grow_at_the_local_rate():
    flow = AttentionFlow(mu=np.array([0.5, 1.0, 4.0]))
    y = flow.efolds(np.array([100.0, 101.0]))
    np.testing.assert_allclose(y[1] - y[0], flow.local_rates(), rtol=1e-11)


def test_golden_rates_beside_those_of_eqn_6():
    mu = np.array([1.0, 4.0])
    np.testing.assert_allclose(AttentionFlow(mu=mu).local_rates(), [2.763, 23.79], rtol=2e-4)
    np.testing.assert_allclose(ConvergenceFlow(mu=mu).local_rates(), [1.649, 2981], rtol=2e-4)


def test_a_zero_target_decays_from_its_start():
    flow = AttentionFlow(mu=np.zeros(1), v0=np.array([1.0]))
    v = integrate(lambda _, s: {"v": -s["v"] * np.exp(s["v"] ** 2)}, {"v": flow.start}, np.array([0.0, 3.0]))["v"]
    np.testing.assert_allclose(flow.solution(np.array([3.0])), v[-1:], rtol=1e-9)


targets_of_linear_attention_flow = arrays(np.float64, 4, elements=st.floats(-3, 3))
scales_of_linear_attention_flow = st.floats(0.6, 2.0)


@st.composite
def linear_flows(draw) -> LinearAttentionFlow:
    return LinearAttentionFlow(
        mu=draw(targets_of_linear_attention_flow),
        v0=draw(st.none() | targets_of_linear_attention_flow),
        charge=draw(st.just(0.0) | st.floats(0.01, 2)),
        temperature=draw(scales_of_linear_attention_flow),
        rate_ratio=draw(scales_of_linear_attention_flow),
    )


@given(linear_flows(), st.floats(0.01, 5.0))
def test_solution_solves_the_joint_flow_of_weights_and_logits_of_linear_attention_flow(flow, t):
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


@given(linear_flows(), st.floats(0.1, 2))
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
