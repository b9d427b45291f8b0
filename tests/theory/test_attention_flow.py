"""The flow under exp attention: field against autograd on the layer, exact solution and rates against the ODE."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import ACTIVATIONS_IN_TORCH

import joma.theory as jt

targets = arrays(np.float64, 4, elements=st.floats(-6, 6))
starts = arrays(np.float64, 4, elements=st.floats(-1.5, 1.5))
logits = arrays(np.float64, 4, elements=st.floats(-0.5, 0.5))
scales = st.floats(0.6, 2.0)


@st.composite
def flows(draw) -> jt.AttentionFlow:
    return jt.AttentionFlow(
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
        return (g * jt.ACTIVATIONS[name].derivative(u @ x.T)) @ x

    weights = torch.tensor(v, requires_grad=True)
    attention = torch.tensor(np.exp(flow.logits(v) / flow.temperature) / flow.normalisation)
    h = (weights * attention * torch.tensor(x)).sum(dim=1)
    (torch.tensor(g) * ACTIVATIONS_IN_TORCH[name](h)).sum().backward()

    tied = replace(flow, uniform_field=uniform_field)
    np.testing.assert_allclose(tied.field(v), weights.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_zero_is_stuck_without_a_charge_and_free_with_one():
    t = np.array([0.0, 1.0, 1e4])
    np.testing.assert_array_equal(jt.LinearAttentionFlow(mu=np.array([2.0, -1.0])).solution(t), 0)
    free = jt.LinearAttentionFlow(mu=np.array([2.0, -1.0]), charge=0.1).solution(t)
    np.testing.assert_allclose(free[-1], [2.0, -1.0])
