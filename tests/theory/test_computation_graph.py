"""The multi-layer note: back-propagation against autograd, the angle bounds, and the node with a two-valued input."""

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import ACTIVATIONS_IN_TORCH

from joma.theory import ComputationGraph, angle_sum, least_backpropagated_cosine, linear, sigmoid, silu, tanh

ROUNDING = 1e-12
"""Products of a few cosines of order one."""

correlations = st.floats(0.0, 1.0)
seeds = st.integers(0, 2**32 - 1)


# Forward and backward pass


@st.composite
def graph_parts(draw) -> dict:
    num_inputs, num_nodes = draw(st.integers(1, 3)), draw(st.integers(4, 8))
    precedents = [()] * num_inputs
    for j in range(num_inputs, num_nodes):
        precedents.append(tuple(sorted(draw(st.sets(st.integers(0, j - 1), min_size=1)))))
    # ReLU is left to its own test: hypothesis likes zeros, where autograd and a kink may differ.
    activations = tuple(draw(st.sampled_from([tanh, sigmoid, silu, linear])) for _ in precedents)
    return {"precedents": tuple(precedents), "activations": activations}


@given(graph_parts(), seeds)
def test_passes_agree_with_autograd(parts, seed):
    graph = ComputationGraph(**parts)
    rng = np.random.default_rng(seed)
    num_nodes = len(graph.precedents)
    w, x = rng.standard_normal((num_nodes, num_nodes)), rng.standard_normal((len(graph.inputs), 5))
    received = rng.standard_normal((num_nodes, 5))

    w_t, f = torch.tensor(w, requires_grad=True), []
    for j, below in enumerate(graph.precedents):
        if below:
            f.append(ACTIVATIONS_IN_TORCH[graph.activations[j].name](sum(w_t[j, k] * f[k] for k in below)))
            f[j].retain_grad()
        else:
            f.append(torch.tensor(x[graph.inputs.index(j)], requires_grad=True))
    sum((torch.tensor(received[j]) * f[j]).sum() for j in range(num_nodes)).backward()

    forward = graph.forward(w, x)
    g = graph.backward(w, forward, received)
    np.testing.assert_allclose(forward.f, torch.stack(f).detach().numpy(), rtol=1e-12, atol=1e-12)
    # Gradients may grow with the paths of the graph, hence the relative part.
    np.testing.assert_allclose(g, torch.stack([node.grad for node in f]).numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(graph.weight_gradient(forward, g), w_t.grad.numpy(), rtol=1e-10, atol=1e-10)


# Theorem 1 of the note


@given(correlations, correlations, correlations)
def test_the_least_cosine_is_positive_exactly_below_a_right_angle(C1, C2, C3):
    total = angle_sum(C1, C2, C3)
    assume(abs(total - np.pi / 2) > 1e-9)
    assert (least_backpropagated_cosine(C1, C2, C3) > 0) == (total < np.pi / 2)
