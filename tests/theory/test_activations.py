"""Activations: values and derivatives against torch, and the homogeneous family."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import ACTIVATIONS_IN_TORCH

from joma.theory.activations import ACTIVATIONS, activation, homogeneous, linear, relu, silu

points = arrays(np.float64, 8, elements=st.floats(-30, 30))
slopes = st.floats(-3, 3)


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(x=points)
def test_value_and_derivative_agree_with_autograd(name, x):
    phi, tensor = activation(name), torch.tensor(x, requires_grad=True)
    value = ACTIVATIONS_IN_TORCH[name](tensor)
    [derivative] = torch.autograd.grad(value.sum(), tensor)
    # Rounding of numbers up to 30.
    np.testing.assert_allclose(phi.value(x), value.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(phi.derivative(x), derivative.numpy(), rtol=1e-12, atol=1e-14)


@given(slopes, slopes, points)
def test_homogeneous_activations_equal_their_slope_times_x(c_minus, c_plus, x):
    phi = homogeneous(c_minus, c_plus)
    np.testing.assert_array_equal(phi.value(x), phi.derivative(x) * x)
    assert phi.require_homogeneous("Lemma 5") == (c_minus, c_plus)


@given(slopes, slopes)
def test_at_the_kink_the_slope_is_the_left_one(c_minus, c_plus):
    phi = homogeneous(c_minus, c_plus)
    assert phi.derivative(np.array([0.0])) == c_minus
    assert phi.value(np.array([0.0])) == 0


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_out_nothing_overflows(name):
    phi, far = activation(name), np.array([-1e6, 1e6])
    assert np.isfinite(phi.value(far)).all()
    limits = {"tanh": (0, 0), "sigmoid": (0, 0), "linear": (1, 1)}.get(name, (0, 1))
    np.testing.assert_allclose(phi.derivative(far), limits, atol=1e-300)


def test_scalars_are_taken():
    assert silu.value(0.0) == 0 and silu.derivative(0.0) == 0.5
    assert linear.value(2.0) == 2 and relu.value(-2.0) == 0
