"""The layer: Eqn 1 against loops, Eqn 2 against loops and autograd, and its flow."""

from dataclasses import dataclass

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.theory.activations import Activation, gelu, homogeneous, linear, relu, sigmoid, silu, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import (
    Embeddings,
    Layer,
    Samples,
    cross_entropy_gradient,
    fixed_gradient,
    orthonormal_embeddings,
)

LEAK = 0.1
IN_TORCH = {**reference.ACTIVATIONS_IN_TORCH, "leaky": lambda x: torch.nn.functional.leaky_relu(x, LEAK)}
leaky = homogeneous(LEAK, 1.0, name="leaky")


@dataclass(frozen=True)
class Case:
    """A layer with parameters, data and a backpropagated gradient."""

    layer: Layer
    w: np.ndarray
    z: np.ndarray
    samples: Samples
    g: np.ndarray


def make_case(
    kind: AttentionKind,
    phi: Activation,
    *,
    num_queries: int = 1,
    num_nodes: int = 3,
    temperature: float = 1.0,
    normalisation: float = 1.0,
    orthonormal: bool = True,
    seed: int = 0,
) -> Case:
    rng = np.random.default_rng(seed)
    num_tokens, num_samples = 4, 9
    dim = num_tokens + num_queries + 2
    embeddings = orthonormal_embeddings(num_tokens, num_queries, dim=dim, rng=rng)
    if not orthonormal:
        embeddings = Embeddings(
            contextual=rng.normal(size=(dim, num_tokens)) / 2, queries=rng.normal(size=(dim, num_queries)) / 2
        )
    if kind == AttentionKind.SOFTMAX:
        normalisation = 1.0
    return Case(
        layer=Layer(
            embeddings=embeddings,
            attention=Attention(kind=kind, temperature=temperature, normalisation=normalisation),
            activation=phi,
        ),
        w=rng.normal(size=(num_nodes, dim)),
        z=rng.normal(size=(num_queries, num_tokens)),
        samples=Samples(
            x=rng.dirichlet(np.ones(num_tokens), size=num_samples),
            q=rng.integers(0, num_queries, size=num_samples),
            weights=rng.dirichlet(np.ones(num_samples)),
        ),
        g=rng.normal(size=(num_samples, num_nodes)),
    )


cases = st.builds(
    make_case,
    st.sampled_from(AttentionKind),
    st.sampled_from([linear, relu, leaky, tanh, sigmoid, silu, gelu]),
    num_queries=st.sampled_from([1, 3]),
    num_nodes=st.sampled_from([1, 4]),
    temperature=st.floats(0.4, 3),
    normalisation=st.floats(0.5, 4),
    orthonormal=st.booleans(),
    seed=st.integers(0, 10_000),
)


def torch_hidden(case: Case, w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Eqn 1 in torch, written from the paper and independent of joma."""
    attention, u = case.layer.attention, case.layer.embeddings
    x, logits = torch.tensor(case.samples.x), z[torch.tensor(case.samples.q)] / attention.temperature
    match attention.kind:
        case AttentionKind.LINEAR:
            b = logits * x / attention.normalisation
        case AttentionKind.EXP:
            b = logits.exp() * x / attention.normalisation
        case _:
            b = logits.exp() * x / (logits.exp() * x).sum(1, keepdim=True)
    f = b @ torch.tensor(u.contextual).T + torch.tensor(u.queries).T[torch.tensor(case.samples.q)]
    return IN_TORCH[case.layer.activation.name](f @ w.T)


@settings(max_examples=200)
@given(cases)
def test_field_agrees_with_autograd(case):
    w, z = torch.tensor(case.w, requires_grad=True), torch.tensor(case.z, requires_grad=True)
    hidden = torch_hidden(case, w, z)
    weights = torch.tensor(case.samples.weights)[:, None]
    objective = (weights * torch.tensor(case.g) * hidden).sum()
    w_dot, z_dot = torch.autograd.grad(objective, [w, z])

    field = case.layer.gradient(case.w, case.z, case.samples, case.g)
    np.testing.assert_allclose(case.layer.hidden(case.w, case.z, case.samples), hidden.detach().numpy(), atol=1e-10)
    assert case.layer.objective(case.w, case.z, case.samples, case.g) == pytest.approx(objective.item(), abs=1e-10)
    # The bound asked of fields against autograd, relative to scores that reach e^{8} at the lowest temperatures.
    np.testing.assert_allclose(field.w, w_dot.numpy(), atol=1e-10, rtol=1e-12)
    np.testing.assert_allclose(field.z, z_dot.numpy(), atol=1e-10, rtol=1e-12)


@given(cases)
def test_hidden_and_field_agree_with_naive_loops(case):
    arguments = (case.w, case.z, case.samples)
    np.testing.assert_allclose(case.layer.hidden(*arguments), reference.hidden(case.layer, *arguments), atol=1e-11)
    w_dot, z_dot = reference.gradient(case.layer, *arguments, case.g)
    field = case.layer.gradient(*arguments, case.g)
    np.testing.assert_allclose(field.w, w_dot, atol=1e-11, rtol=1e-12)
    np.testing.assert_allclose(field.z, z_dot, atol=1e-11, rtol=1e-12)


@given(cases)
def test_contextual_part_moves_by_the_scores_and_query_part_by_the_bias(case):
    u = case.layer.embeddings
    field = case.layer.gradient(case.w, case.z, case.samples, case.g)
    slope = case.g * case.layer.activation.derivative(case.layer.preactivation(case.w, case.z, case.samples))
    mean = np.einsum("i,ik,il->kl", case.samples.weights, slope, case.layer.scores(case.z, case.samples))
    bias = (case.samples.by_query(u.num_queries) @ slope).T
    # Eqn 11 with its assumption dropped: v̇ = E[g h' (U_C^T U_C b + U_C^T u_q)].
    expected = mean @ u.contextual.T @ u.contextual + bias @ u.queries.T @ u.contextual
    np.testing.assert_allclose(u.contextual_part(field.w), expected, atol=1e-10)
    if u.orthonormality_gap() < 1e-12:
        np.testing.assert_allclose(u.contextual_part(field.w), mean, atol=1e-10)
        np.testing.assert_allclose(u.query_part(field.w), bias, atol=1e-10)


@given(cases, st.integers(0, 99))
def test_the_order_of_samples_does_not_matter(case, seed):
    order = np.random.default_rng(seed).permutation(case.samples.num_samples)
    shuffled = Samples(x=case.samples.x[order], q=case.samples.q[order], weights=case.samples.weights[order])
    there = case.layer.gradient(case.w, case.z, shuffled, case.g[order])
    here = case.layer.gradient(case.w, case.z, case.samples, case.g)
    np.testing.assert_allclose(there.w, here.w, atol=1e-11)
    np.testing.assert_allclose(there.z, here.z, atol=1e-11)


@given(cases)
def test_queries_are_the_weighted_sum_of_their_conditional_gradients(case):
    total = np.zeros_like(case.w)
    field = case.layer.gradient(case.w, case.z, case.samples, case.g)
    for m in np.unique(case.samples.q):
        own = case.samples.q == m
        mass = case.samples.weights[own].sum()
        alone = Samples(x=case.samples.x[own], q=case.samples.q[own], weights=case.samples.weights[own] / mass)
        conditional = case.layer.gradient(case.w, case.z, alone, case.g[own])
        total += mass * conditional.w
        np.testing.assert_allclose(field.z[m], mass * conditional.z[m], atol=1e-11)
    np.testing.assert_allclose(field.w, total, atol=1e-11)


def test_weights_default_to_uniform():
    x, q = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    np.testing.assert_array_equal(Samples(x=x, q=q).weights, [0.5, 0.5])


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5), st.integers(0, 99))
def test_orthonormal_embeddings_are(num_contextual, num_queries, spare, seed):
    dim = num_contextual + num_queries + spare
    u = orthonormal_embeddings(num_contextual, num_queries, dim=dim, rng=np.random.default_rng(seed))
    assert (u.num_contextual, u.num_queries) == (num_contextual, num_queries)
    assert u.orthonormality_gap() < 1e-14
    bent = Embeddings(contextual=2 * u.contextual, queries=u.queries)
    assert bent.orthonormality_gap() == pytest.approx(3)


@given(st.sampled_from(AttentionKind), st.integers(0, 99))
def test_flow_ascends_the_objective_of_a_fixed_gradient(kind, seed):
    case = make_case(kind, tanh, num_queries=3, seed=seed)
    run = case.layer.flow(case.w, case.z, case.samples, fixed_gradient(case.g), np.linspace(0, 1, 6), rtol=1e-8)
    objective = [case.layer.objective(w, z, case.samples, case.g) for w, z in zip(run["w"], run["z"], strict=True)]
    assert (np.diff(objective) > 0).all()


@given(st.sampled_from(AttentionKind), st.integers(0, 99))
def test_flow_under_cross_entropy_raises_the_likelihood(kind, seed):
    case = make_case(kind, linear, num_queries=3, num_nodes=4, seed=seed)
    labels = np.arange(9) % 4
    run = case.layer.flow(case.w, case.z, case.samples, cross_entropy_gradient(labels), np.linspace(0, 1, 5), rtol=1e-8)
    likelihood = []
    for w, z in zip(run["w"], run["z"], strict=True):
        h = case.layer.hidden(w, z, case.samples)
        likelihood.append(case.samples.weights @ (h[np.arange(9), labels] - np.log(np.exp(h).sum(axis=1))))
    assert (np.diff(likelihood) > 0).all()


def test_flow_solves_its_field_and_takes_a_rate_ratio():
    case = make_case(AttentionKind.SOFTMAX, silu, num_queries=3)
    step = 1e-4
    for ratio in (1.0, 4.0):
        run = case.layer.flow(
            case.w,
            case.z,
            case.samples,
            lambda time, hidden: np.cos(time) * case.g - 0.1 * hidden,
            np.array([0.0, 0.5 - step, 0.5, 0.5 + step]),
            rate_ratio=ratio,
        )
        w, z = run["w"][2], run["z"][2]
        g = np.cos(0.5) * case.g - 0.1 * case.layer.hidden(w, z, case.samples)
        field = case.layer.gradient(w, z, case.samples, g)
        # Central differences of a smooth path: step² = 1e-8.
        np.testing.assert_allclose((run["w"][3] - run["w"][1]) / (2 * step), field.w, atol=1e-7)
        np.testing.assert_allclose((run["z"][3] - run["z"][1]) / (2 * step), ratio * field.z, atol=1e-7)


def test_flow_stops_at_a_blow_up_and_names_it():
    case = make_case(AttentionKind.EXP, linear, num_nodes=1)
    g = np.ones_like(case.g)
    t = np.array([0.0, 100.0])
    run = case.layer.flow(case.w, case.z, case.samples, fixed_gradient(g), t, blow_up=50.0)
    assert run.blow_up is not None and run.blow_up.state in ("w", "z") and run.blow_up.time < 100


GOOD = make_case(AttentionKind.EXP, relu)
X, Q, U = GOOD.samples.x, GOOD.samples.q, GOOD.layer.embeddings


def bad_weights(first: float) -> np.ndarray:
    return np.array([first, 1 - first, *np.zeros(7)])
