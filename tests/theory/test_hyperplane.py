"""Half-spaces of isotropic distributions: closed forms, quadrature of any gate, and the curve of figure 9."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joma.theory import Gaussian, RadialProfile, StudentT, UniformBall, homogeneous, hyperplane, tanh

RING = RadialProfile(dim=2, profile=lambda r: np.exp(-(((r - 3) / 0.1) ** 2) / 2))
TWO_SCALES = RadialProfile(dim=5, profile=lambda r: 0.9 * np.exp(-(r**2) / 2) + 0.1 * np.exp(-(r**2) / 200) / 10**5)

BALLS = [UniformBall(dim=1), UniformBall(dim=2, radius=2.0), UniformBall(dim=5), UniformBall(dim=20, radius=3.0)]
HEAVY = [StudentT(dim=2, dof=1.5), StudentT(dim=4, dof=3.0, scale=2.0)]
distributions = st.sampled_from([Gaussian(), Gaussian(dim=3, scale=0.3), *BALLS, *HEAVY, RING, TWO_SCALES])
slopes = st.floats(-2.0, 2.0)
kinked = st.builds(homogeneous, slopes, slopes)
places = st.floats(-4.0, 4.0)


@given(distributions, places, st.floats(0.01, 100.0))
def test_quadrature_of_a_step_is_the_closed_form(p, s, norm):
    step = {"norm": norm, "psi": lambda x: 1.0 * (x > 0)}
    np.testing.assert_allclose(hyperplane.gate_mass(p, s * norm, **step), hyperplane.theta1(p, s), 1e-11, 1e-13)
    np.testing.assert_allclose(hyperplane.gate_moment(p, s * norm, **step), hyperplane.theta2(p, s), 1e-11, 1e-13)


def test_a_gate_with_kinks_of_its_own_and_of_one_number():
    ramp = {"psi": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0), "kinks": (-3.0, 3.0)}
    clipped = hyperplane.gate_mass(Gaussian(), 0.3, norm=2.0, **ramp)
    s = np.array([(3 + 0.3) / 2, (-3 + 0.3) / 2])
    rise = 2 * np.diff(hyperplane.mean_activation(Gaussian(), s))[0] / 6  # ψ is a difference of two ramps
    assert float(clipped) == pytest.approx(-rise, rel=1e-13)


def test_a_vector_of_length_zero_leaves_the_gate_of_the_bias():
    assert float(hyperplane.gate_mass(StudentT(), 0.7, norm=0.0, psi=tanh)) == pytest.approx(1 / math.cosh(0.7) ** 2)
    assert float(hyperplane.gate_moment(StudentT(), 0.7, norm=0.0, psi=tanh)) == pytest.approx(0, abs=1e-15)
    np.testing.assert_array_equal(hyperplane.gate_mass(Gaussian(), np.array([0.7, -0.7]), norm=0.0), [1, 0])
    found = hyperplane.half_space_mean(Gaussian(dim=2), np.zeros(2), xi=0.7, center=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found.mean, [1, 2])


@given(distributions, st.floats(1e-6, 1 - 1e-6), kinked)
def test_the_inverse_of_theta1_undoes_it(p, share, phi):
    c_minus, c_plus = phi.slopes
    assume(abs(c_plus - c_minus) > 0.01)
    y = c_minus + share * (c_plus - c_minus)
    s = hyperplane.theta1_inverse(p, y, phi)
    # Where P is near 0 or 1, y is known to a rounding of the slopes only.
    np.testing.assert_allclose(hyperplane.theta1(p, s, phi), y, rtol=1e-13, atol=1e-14)


def test_the_curve_of_a_thin_ring_is_not_convex():
    circle = RadialProfile(dim=2, profile=lambda r: np.exp(-(((r - 1) / 1e-4) ** 2) / 2))
    slopes = hyperplane.mean_at_level_slope(circle, np.array([0.6, 0.8, 0.95]))
    np.testing.assert_allclose(slopes, [1.79, 1.48, 0.47], atol=5e-3)  # not convex: the slope falls
