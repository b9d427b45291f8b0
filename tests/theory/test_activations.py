"""Activations: values and derivatives against torch, and the homogeneous family."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import ACTIVATIONS_IN_TORCH

from joma.theory.activations import ACTIVATIONS, activation, homogeneous

points = arrays(np.float64, 8, elements=st.floats(-30, 30))
slopes = st.floats(-3, 3)


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(x=points)
def test_value_and_derivatives_agree_with_autograd(name, x):
    phi, tensor = activation(name), torch.tensor(x, requires_grad=True)
    value = ACTIVATIONS_IN_TORCH[name](tensor)
    [derivative] = torch.autograd.grad(value.sum(), tensor, create_graph=True)
    # Rounding of numbers up to 30.
    np.testing.assert_allclose(phi.value(x), value.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(phi.derivative(x), derivative.detach().numpy(), rtol=1e-12, atol=1e-14)
    if phi.curvature is not None:
        [curvature] = torch.autograd.grad(derivative.sum(), tensor)
        np.testing.assert_allclose(phi.curvature(x), curvature.numpy(), rtol=1e-12, atol=1e-13)


@given(slopes, slopes, points)
def test_homogeneous_activations_equal_their_slope_times_x(c_minus, c_plus, x):
    phi = homogeneous(c_minus, c_plus)
    np.testing.assert_array_equal(phi.value(x), phi.derivative(x) * x)
    assert phi.require_homogeneous("Lemma 5") == (c_minus, c_plus)
    assert (phi.value(0.0), phi.derivative(0.0)) == (0, c_minus)  # at the kink the slope is the left one


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_out_nothing_overflows(name):
    phi, far = activation(name), np.array([-1e6, 1e6])
    assert np.isfinite(phi.value(far)).all()
    limits = {"tanh": (0, 0), "sigmoid": (0, 0), "linear": (1, 1)}.get(name, (0, 1))
    np.testing.assert_allclose(phi.derivative(far), limits, atol=1e-300)
