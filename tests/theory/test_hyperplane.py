"""Half-spaces of isotropic distributions: closed forms, quadrature of any gate, and the curve of figure 9."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special
from scipy.differentiate import derivative
from scipy.integrate import dblquad, quad
from scipy.stats import ortho_group

from joma.errors import AssumptionError
from joma.theory import hyperplane
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
from joma.theory.isotropic import Gaussian, RadialProfile, StudentT, UniformBall

RING = RadialProfile(dim=2, profile=lambda r: np.exp(-(((r - 3) / 0.1) ** 2) / 2))
TWO_SCALES = RadialProfile(dim=5, profile=lambda r: 0.9 * np.exp(-(r**2) / 2) + 0.1 * np.exp(-(r**2) / 200) / 10**5)
LAPLACE = RadialProfile(dim=1, profile=lambda r: np.exp(-r))

distributions = st.sampled_from(
    [
        Gaussian(),
        Gaussian(dim=3, scale=0.3),
        UniformBall(dim=1),
        UniformBall(dim=2, radius=2.0),
        UniformBall(dim=5),
        UniformBall(dim=20, radius=3.0),
        StudentT(dim=2, dof=1.5),
        StudentT(dim=4, dof=3.0, scale=2.0),
        RING,
        TWO_SCALES,
    ]
)
slopes = st.floats(-2.0, 2.0)
kinked = st.builds(homogeneous, slopes, slopes)
places = st.floats(-4.0, 4.0)
smooth_gates = st.sampled_from([tanh, sigmoid, silu, gelu, special.expit, special.ndtr])


def step(x):
    return 1.0 * (x > 0)


def near_an_edge(p, s) -> bool:
    """Finite differences need a neighbourhood in which the density is smooth."""
    return isinstance(p, UniformBall) and abs(abs(s) - p.radius) < 0.1 * p.radius


@given(distributions, places, kinked)
def test_slopes_are_derivatives(p, s, phi):
    assume(not near_an_edge(p, s))
    pairs = [
        (hyperplane.theta1, hyperplane.theta1_slope),
        (hyperplane.theta2, hyperplane.theta2_slope),
        (hyperplane.mean_activation, hyperplane.theta1),  # Lemma 3
    ]
    for function, slope in pairs:
        found = derivative(lambda s: function(p, s, phi), s, initial_step=0.03)  # noqa: B023
        # Differences of numbers of order one over steps of a few hundredths.
        assert found.df == pytest.approx(float(slope(p, s, phi)), rel=1e-7, abs=1e-8)


@given(distributions, places, kinked)
def test_the_mean_activation_is_the_mean_of_the_activation(p, s, phi):
    c_minus, c_plus = phi.slopes
    # E φ(y + s) by parts of the line: c₋ E min(y + s, 0) + c₊ E max(y + s, 0), each from one side alone.
    above = float(p.upper_moment(s) + s * p.cdf(s))
    below = float(-p.upper_moment(s) + s * p.cdf(-s))
    assert float(hyperplane.mean_activation(p, s, phi)) == pytest.approx(
        c_plus * above + c_minus * below, rel=1e-12, abs=1e-12
    )


@given(distributions, places, st.floats(0.01, 100.0), kinked)
def test_a_homogeneous_gate_sees_the_normalised_distance_alone(p, s, norm, phi):
    r = s * norm
    mass, moment = hyperplane.gate_mass(p, r, norm=norm, psi=phi), hyperplane.gate_moment(p, r, norm=norm, psi=phi)
    np.testing.assert_allclose(mass, hyperplane.theta1(p, s, phi), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(moment, hyperplane.theta2(p, s, phi), rtol=1e-12, atol=1e-13)


@given(distributions, places, st.floats(0.01, 100.0))
def test_quadrature_of_a_step_is_the_closed_form(p, s, norm):
    mass = hyperplane.gate_mass(p, s * norm, norm=norm, psi=step)
    moment = hyperplane.gate_moment(p, s * norm, norm=norm, psi=step)
    np.testing.assert_allclose(mass, hyperplane.theta1(p, s), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(moment, hyperplane.theta2(p, s), rtol=1e-11, atol=1e-13)


def by_pieces(f, p, r, norm):
    """Scalar adaptive quadrature, told where the gate and the distribution have their features."""
    size = float(p.upper_moment(0.0))
    center = -r / norm
    cuts = [center + k / norm for k in (-20, -5, -1, 0, 1, 5, 20)]
    cuts += [k * size for k in (-1e4, -300, -40, -10, -3, -1, 0, 1, 3, 10, 40, 300, 1e4)]
    if isinstance(p, UniformBall):
        cuts = [c for c in cuts if abs(c) < p.radius] + [-p.radius, p.radius]
    if p is RING:
        cuts += [sign * (3 + k / 10) for sign in (-1, 1) for k in (-5, -2, -1, 0, 1, 2, 5)]
    cuts = sorted(cuts)
    return sum(quad(f, a, b, epsabs=1e-15, epsrel=1e-12)[0] for a, b in itertools.pairwise(cuts))


@given(
    st.sampled_from([Gaussian(), UniformBall(dim=1), UniformBall(dim=5), StudentT(dof=5.0), RING]),
    places,
    st.floats(0.05, 20.0),
    smooth_gates,
)
@settings(max_examples=10)
def test_a_smooth_gate_against_adaptive_quadrature(p, r, norm, psi):
    gate = getattr(psi, "derivative", psi)
    mass = by_pieces(lambda y: gate(norm * y + r) * p.density(y), p, r, norm)
    moment = by_pieces(lambda y: y * gate(norm * y + r) * p.density(y), p, r, norm)
    # The pieces end at ten thousand times the mean distance, where a t with five degrees keeps 1e-16 of its moment.
    assert float(hyperplane.gate_mass(p, r, norm=norm, psi=psi)) == pytest.approx(mass, rel=1e-10, abs=1e-11)
    assert float(hyperplane.gate_moment(p, r, norm=norm, psi=psi)) == pytest.approx(moment, rel=1e-10, abs=1e-11)


@given(places, st.floats(0.01, 30.0), st.floats(0.1, 5.0))
@settings(max_examples=15)
def test_integration_by_parts_under_a_gaussian(r, norm, scale):
    """Stein: E y ψ(‖v‖y + r) = σ²‖v‖ E ψ'(‖v‖y + r)."""
    p = Gaussian(scale=scale)
    by_parts = scale**2 * norm * hyperplane.gate_mass(p, r, norm=norm, psi=sigmoid)
    np.testing.assert_allclose(hyperplane.gate_moment(p, r, norm=norm, psi=special.expit), by_parts, rtol=1e-11)


@given(distributions, st.floats(-40, 40), st.floats(0.02, 50.0))
def test_an_increasing_gate_gives_an_increasing_mass_and_a_moment_that_is_not_negative(p, r, norm):
    r = r + np.array([0.0, 0.1, 1.0])
    mass = hyperplane.gate_mass(p, r, norm=norm, psi=special.expit)
    assert (np.diff(mass) > 0).all() or mass.min() > 1 - 1e-12
    assert (mass >= 0).all() and (mass <= 1 + 1e-12).all()
    assert (hyperplane.gate_moment(p, r, norm=norm, psi=special.expit) >= -1e-13).all()


def test_a_gate_with_kinks_of_its_own_and_of_one_number():
    clipped = hyperplane.gate_mass(
        Gaussian(), 0.3, norm=2.0, psi=lambda x: min(max(x / 6 + 0.5, 0.0), 1.0), kinks=(-3.0, 3.0)
    )
    s = np.array([(3 + 0.3) / 2, (-3 + 0.3) / 2])
    ramp = 2 * np.diff(hyperplane.mean_activation(Gaussian(), s))[0] / 6  # ψ is a difference of two ramps
    assert float(clipped) == pytest.approx(-ramp, rel=1e-13)


def test_a_vector_of_length_zero_leaves_the_gate_of_the_bias():
    assert float(hyperplane.gate_mass(StudentT(), 0.7, norm=0.0, psi=tanh)) == pytest.approx(1 / math.cosh(0.7) ** 2)
    assert float(hyperplane.gate_moment(StudentT(), 0.7, norm=0.0, psi=tanh)) == pytest.approx(0, abs=1e-15)
    np.testing.assert_array_equal(hyperplane.gate_mass(Gaussian(), np.array([0.7, -0.7]), norm=0.0), [1, 0])
    found = hyperplane.half_space_mean(Gaussian(dim=2), np.zeros(2), xi=0.7, center=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found.mean, [1, 2])


def test_a_half_plane_against_integration_over_the_plane():
    v, xi, center = np.array([1.1, -0.6]), 0.3, np.array([0.4, 0.9])

    def integrand(x2, x1, k):
        x = np.array([x1, x2])
        weight = np.exp(-np.square(x - center).sum() / 2) / (2 * np.pi)
        return weight * special.expit(v @ x + xi) * (1.0, x1, x2)[k]

    exact = [dblquad(integrand, -9, 9, -9, 9, args=(k,), epsabs=1e-9)[0] for k in range(3)]
    found = hyperplane.half_space_mean(Gaussian(dim=2), v, xi=xi, center=center, psi=special.expit)
    np.testing.assert_allclose([found.mass, *found.mean], exact, atol=1e-8)


@given(st.integers(0, 2**32 - 1), st.sampled_from([relu, tanh]))
@settings(max_examples=10)
def test_a_rotation_of_everything_rotates_the_mean(seed, psi):
    rng = np.random.default_rng(seed)
    Q = ortho_group.rvs(5, random_state=rng)
    v, center = rng.normal(size=(2, 5))
    p = StudentT(dim=5)
    plain = hyperplane.half_space_mean(p, v, xi=0.2, center=center, psi=psi)
    turned = hyperplane.half_space_mean(p, Q @ v, xi=0.2, center=Q @ center, basis=Q, psi=psi)
    np.testing.assert_allclose(turned.mean, Q @ plain.mean, atol=1e-12)
    np.testing.assert_allclose(turned.mass, plain.mass, atol=1e-13)


def test_a_subspace_against_samples():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    p, v, center = UniformBall(dim=2, radius=2.0), rng.normal(size=6), rng.normal(size=6)
    x = center + p.sample(rng, 100_000) @ basis.T
    gated = x * step(x @ v - 0.4)[:, None]
    found = hyperplane.half_space_mean(p, v, xi=-0.4, center=center, basis=basis)
    errors = gated.std(axis=0) / np.sqrt(100_000)
    assert (np.abs(gated.mean(axis=0) - found.mean) <= 4.5 * errors).all()


def test_many_vectors_at_once_are_the_same_as_one_by_one():
    rng = np.random.default_rng(1)
    v, xi, center = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4)), rng.normal(size=2)
    for psi in (relu, silu):
        many = hyperplane.half_space_mean(RING, v, xi=xi, center=center, psi=psi)
        assert many.mass.shape == (3, 4) and many.mean.shape == (3, 4, 2)
        one = hyperplane.half_space_mean(RING, v[2, 1], xi=xi[2, 1], center=center, psi=psi)
        np.testing.assert_allclose(many.mean[2, 1], one.mean, rtol=1e-13)
        np.testing.assert_allclose(many.mass[2, 1], one.mass, rtol=1e-13)


@given(st.integers(0, 2**32 - 1))
def test_the_reflection_keeps_length_and_projection_and_undoes_itself(seed):
    rng = np.random.default_rng(seed)
    x, v = rng.normal(size=(7, 5)), rng.normal(size=5)
    mirrored = hyperplane.reflect(x, v)
    np.testing.assert_allclose(np.linalg.norm(mirrored, axis=1), np.linalg.norm(x, axis=1), rtol=1e-12)
    np.testing.assert_allclose(mirrored @ v, x @ v, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(hyperplane.reflect(mirrored, v), x, atol=1e-12)


@given(distributions, st.floats(1e-6, 1 - 1e-6), kinked)
def test_the_inverse_of_theta1_undoes_it(p, share, phi):
    c_minus, c_plus = phi.slopes
    assume(abs(c_plus - c_minus) > 0.01)
    y = c_minus + share * (c_plus - c_minus)
    s = hyperplane.theta1_inverse(p, y, phi)
    # Where P is near 0 or 1, y is known to a rounding of the slopes only.
    np.testing.assert_allclose(hyperplane.theta1(p, s, phi), y, rtol=1e-13, atol=1e-14)


@given(distributions, st.floats(0.05, 0.95))
def test_the_curve_of_figure_9(p, y):
    found = derivative(lambda y: hyperplane.mean_at_level(p, y), y, initial_step=0.01)
    slope = float(hyperplane.mean_at_level_slope(p, y))
    assert found.df == pytest.approx(slope, rel=1e-6)
    assert slope > 0
    ratio = float(hyperplane.mean_ratio(p, hyperplane.theta1_inverse(p, y)))
    assert ratio == pytest.approx(float(hyperplane.mean_at_level(p, y)) / y, rel=1e-10)


@given(distributions, places)
def test_the_slope_of_the_ratio(p, s):
    assume(not near_an_edge(p, s) and hyperplane.theta1(p, s) > 1e-6)
    found = derivative(lambda s: hyperplane.mean_ratio(p, s), s, initial_step=0.01)
    assert found.df == pytest.approx(float(hyperplane.mean_ratio_slope(p, s)), rel=1e-5, abs=1e-6)


LOG_CONCAVE = [Gaussian(), *(UniformBall(dim=n) for n in (1, 2, 5, 20))]


@pytest.mark.parametrize("p", LOG_CONCAVE, ids=["gaussian", "ball 1", "ball 2", "ball 5", "ball 20"])
def test_log_concave_marginals_have_no_line_that_meets_the_curve_twice(p):
    s = np.linspace(-7, 10, 500) if isinstance(p, Gaussian) else np.linspace(-0.99, 3, 500)
    assert hyperplane.mean_ratio_slope(p, s).min() > 0
    assert all(hyperplane.line_intersections(p, k).size <= 1 for k in (0.1, 0.4, 0.9, 2.0))
    assert hyperplane.central_product(p) < 0.25


@pytest.mark.parametrize("dof", [1.5, 3.0, 5.0, 30.0])
def test_power_tails_always_turn_the_ratio_around(dof):
    s = -1e5
    assert float(hyperplane.mean_ratio_slope(StudentT(dof=dof), s)) == pytest.approx(-1 / (dof - 1), rel=1e-6)


def test_intersections_lie_on_both_curves():
    p = StudentT()
    crossings = hyperplane.line_intersections(p, 1.2)
    assert crossings.size == 2
    np.testing.assert_allclose(hyperplane.mean_at_level(p, crossings), 1.2 * crossings, rtol=1e-12)
    assert hyperplane.line_intersections(p, 0.5).size == 0


def test_golden_numbers_of_the_curve():
    levels = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    expected = [0.04734, 0.14915, 0.39894, 0.82364, 1.32889]
    np.testing.assert_allclose(hyperplane.mean_at_level(Gaussian(), levels), expected, atol=5e-6)
    circle = RadialProfile(dim=2, profile=lambda r: np.exp(-(((r - 1) / 1e-4) ** 2) / 2))
    slopes = hyperplane.mean_at_level_slope(circle, np.array([0.6, 0.8, 0.95]))
    np.testing.assert_allclose(slopes, [1.79, 1.48, 0.47], atol=5e-3)  # not convex: the slope falls


@pytest.mark.parametrize(
    ("p", "product"),
    [
        (Gaussian(), 1 / (2 * np.pi)),
        (UniformBall(dim=2), 0.13509),
        (UniformBall(dim=5), 0.14648),
        (UniformBall(dim=20), 0.15541),
        (StudentT(dof=3.0), 2 / np.pi**2),
        (StudentT(dof=2.0), 0.25),
        (StudentT(dof=1.5), 0.3483),
        (LAPLACE, 0.25),
        (TWO_SCALES, 0.2752),
    ],
    ids=["gaussian", "ball 2", "ball 5", "ball 20", "t 3", "t 2", "t 1.5", "laplace", "two scales"],
)
def test_golden_numbers_of_eqn_58(p, product):
    assert hyperplane.central_product(p) == pytest.approx(product, abs=3e-5)


@pytest.mark.parametrize(
    ("p", "smallest", "places"),
    [
        (Gaussian(), 0.018, np.linspace(-7, 10, 2000)),
        (UniformBall(dim=1), 0.50, np.linspace(-0.99, 1.5, 2000)),
        (UniformBall(dim=2), 0.40, np.linspace(-0.999, 1.5, 2000)),
        (UniformBall(dim=5), 0.25, np.linspace(-0.999, 1.5, 2000)),
        (UniformBall(dim=20), 0.087, np.linspace(-0.999, 1.5, 2000)),
        (StudentT(dof=30.0), -0.034, -np.geomspace(1, 1e4, 200)),
        (StudentT(dof=5.0), -0.25, -np.geomspace(1, 1e4, 200)),
        (StudentT(dof=3.0), -0.50, -np.geomspace(1, 1e4, 200)),
    ],
    ids=["gaussian", "ball 1", "ball 2", "ball 5", "ball 20", "t 30", "t 5", "t 3"],
)
def test_golden_numbers_of_the_smallest_slope_of_the_ratio(p, smallest, places):
    assert hyperplane.mean_ratio_slope(p, places).min() == pytest.approx(smallest, abs=5e-4)


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
