"""The layer: Eqn 1 against loops, Eqn 2 against loops and autograd, and its flow."""

from dataclasses import dataclass

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.activations import Activation, gelu, homogeneous, linear, relu, sigmoid, silu, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import (
    Embeddings,
    Layer,
    Samples,
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
