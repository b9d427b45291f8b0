"""Any activation: slopes against differences, what survives of Lemma 3, agreement with homogeneous closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.errors import AssumptionError
from joma.theory.activations import gelu, homogeneous, relu, sigmoid, silu, softplus, tanh
from joma.theory.hyperplane import (
    gate_level,
    gate_mass,
    gate_mass_slope,
    gate_mean,
    gate_mean_at_level,
    gate_mean_at_level_slope,
    gate_moment,
    gate_moment_slope,
    mean_at_level,
)
from joma.theory.isotropic import Gaussian, StudentT, UniformBall

SMOOTH = [tanh, sigmoid, silu, gelu, softplus]
NOISE = [Gaussian(), UniformBall(dim=5, radius=2.0), StudentT(dim=3, dof=4.0, scale=1.0)]
STEP = 1e-4
"""Of central differences: their error is its square times a third derivative of order one."""

activations = st.sampled_from([*SMOOTH, relu, homogeneous(0.1, 1.5)])
noises = st.sampled_from(NOISE)
distances, lengths = st.floats(-1.9, 1.9), st.floats(0.5, 2.0)


def difference(f, x: float) -> float:
    return float((f(x + STEP) - f(x - STEP)) / (2 * STEP))


@settings(max_examples=40)
@given(noises, activations, distances, lengths)
def test_f_has_the_gate_as_its_slopes(p, phi, r, norm):
    """Lemma 3 in the form that every activation obeys."""
    assert difference(lambda x: gate_mean(p, x, norm=norm, phi=phi), r) == pytest.approx(
        float(gate_mass(p, r, norm=norm, psi=phi)), abs=1e-6
    )
    assert difference(lambda x: gate_mean(p, r, norm=x, phi=phi), norm) == pytest.approx(
        float(gate_moment(p, r, norm=norm, psi=phi)), abs=1e-6
    )


@settings(max_examples=40)
@given(st.sampled_from(NOISE[:1] + NOISE[2:]), activations, distances, lengths)
def test_slopes_of_the_gate_are_those_of_differences(p, phi, r, norm):
    mass = difference(lambda x: gate_mass(p, x, norm=norm, psi=phi), r)
    moment = difference(lambda x: gate_moment(p, x, norm=norm, psi=phi), r)
    assert mass == pytest.approx(float(gate_mass_slope(p, r, norm=norm, phi=phi)), abs=1e-6)
    assert moment == pytest.approx(float(gate_moment_slope(p, r, norm=norm, phi=phi)), abs=1e-6)


@given(noises, st.floats(0.05, 0.95), lengths)
def test_levels_are_inverted_and_g_scales_for_relu(p, y, norm):
    for phi in (relu, softplus):
        r = gate_level(p, y, norm=norm, phi=phi)
        assert float(gate_mass(p, r, norm=norm, psi=phi)) == pytest.approx(y, abs=1e-9)
    assert float(gate_mean_at_level(p, y, norm=norm, phi=relu)) == pytest.approx(
        norm * float(mean_at_level(p, y)), rel=1e-7
    )


def test_g_is_vectorised_and_its_slope_is_that_of_differences():
    p, y = Gaussian(), np.array([0.2, 0.5, 0.8])
    slope = gate_mean_at_level_slope(p, y, norm=1.5, phi=softplus)
    ends = [gate_mean_at_level(p, y + step, norm=1.5, phi=softplus) for step in (STEP, -STEP)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * STEP), rtol=1e-5)


@pytest.mark.parametrize("phi", SMOOTH, ids=lambda phi: phi.name)
def test_curvatures_are_derivatives_of_derivatives(phi):
    x = np.linspace(-4, 4, 41)
    np.testing.assert_allclose(
        phi.curvature(x), (phi.derivative(x + STEP) - phi.derivative(x - STEP)) / (2 * STEP), atol=1e-7
    )


def test_a_level_that_is_never_reached_is_refused():
    with pytest.raises(AssumptionError, match="G needs a mean gate that passes every level: none of 'sigmoid'"):
        gate_level(Gaussian(), 0.9, phi=sigmoid)
