"""Lemma 4: rays of joint critical points, the ratio they force, and where there are none."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.errors import AssumptionError
from joma.theory.activations import homogeneous, relu
from joma.theory.critical_points import (
    CriticalPoint,
    CriticalRay,
    LinearisedFlow,
    all_roots,
    critical_pairs,
    critical_points,
    critical_rays,
    forced_ray,
    lowest_slope,
    straddling_distance,
)
from joma.theory.hyperplane import mean_activation, theta1
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters

T3 = StudentT(dim=2, dof=3.0)

centers = arrays(np.float64, 3, elements=st.floats(-2, 2))
distances = st.floats(0.3, 6)
tails = st.floats(1.3, 8)
norms = st.floats(0.2, 4)
signs = st.sampled_from([0, 1])


def ray_of(dof: float, x_minus: np.ndarray, distance: float, which: int) -> CriticalRay:
    direction = np.array([0.6, 0.0, 0.8])
    noise = StudentT(dim=3, dof=dof)
    mixture = two_clusters(x_minus + distance * direction, a_plus=1.3, x_minus=x_minus, noise=noise)
    return forced_ray(mixture, critical_pairs(noise, distance)[which])


@given(tails, centers, distances, norms, signs)
def test_the_joint_field_vanishes_on_the_whole_ray(dof, x_minus, distance, norm, which):
    ray = ray_of(dof, x_minus, distance, which)
    v, xi = ray.point(norm)
    v_dot, xi_dot = ray.mixture.field(v, xi)
    # The root is found to rounding; the field at it is a difference of terms of the size of the weights.
    size = np.abs(ray.mixture.weights).max() * (1 + np.abs(ray.mixture.centers).max())
    np.testing.assert_allclose(np.append(v_dot, xi_dot), 0, atol=1e-11 * size)
    np.testing.assert_allclose(ray.mixture.distances(v, xi), [ray.pair.s_plus, ray.pair.s_minus], atol=1e-12)


@given(tails, centers, distances, norms, signs)
def test_eigenvalues_are_those_of_the_jacobian(dof, x_minus, distance, norm, which):
    ray = ray_of(dof, x_minus, distance, which)
    jacobian = ray.mixture.jacobian(*ray.point(norm))
    expected = np.linalg.eigvalsh(jacobian)
    np.testing.assert_allclose(ray.eigenvalues(norm), expected, atol=1e-10 * np.abs(jacobian).max())
    assert ray.attracts() == bool((expected < -1e-9 * np.abs(jacobian).max()).sum() == 3)


@given(tails, distances, norms, signs)
def test_eigenvalues_in_closed_form_for_a_negative_cluster_at_the_origin(dof, distance, norm, which):
    ray = ray_of(dof, np.zeros(3), distance, which)
    a_plus, a_minus = ray.mixture.opposed_weights("Eqn 56")
    p = ray.mixture.noise.density
    turn = (a_plus * p(ray.pair.s_plus) - a_minus * p(ray.pair.s_minus)) * (1 + ray.pair.s_minus**2) / norm
    expected = np.sort([-ray.beta1(norm), -ray.beta1(norm), turn, 0.0])
    np.testing.assert_allclose(ray.eigenvalues(norm), expected, rtol=1e-10, atol=1e-13)


def test_one_dimension_has_no_direction_across():
    ray = forced_ray(two_clusters(np.array([2.0]), noise=StudentT(dof=3.0)), critical_pairs(StudentT(dof=3.0), 2.0)[0])
    expected = np.linalg.eigvalsh(ray.mixture.jacobian(*ray.point(0.7)))
    np.testing.assert_allclose(ray.eigenvalues(0.7), expected, atol=1e-14)


@given(tails, distances)
def test_pairs_are_a_distance_apart_and_both_signs_mirror_each_other(dof, distance):
    there, back = critical_pairs(StudentT(dof=dof), distance)
    assert there.s_plus - there.s_minus == pytest.approx(distance)
    assert (there.orientation, back.orientation) == (1, -1)
    assert (there.s_minus, there.s_plus) == pytest.approx((back.s_plus, back.s_minus))
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ratio > 1  # θ₁ increases: the larger weight sits where the node is less active


@given(st.floats(0.05, 8), st.integers(1, 20), st.floats(0, 0.9))
def test_strictly_log_concave_marginals_have_no_pair(distance, n, c_minus):
    leaky = homogeneous(c_minus, 1.0)
    assert critical_pairs(Gaussian(dim=n), distance, leaky) == ()
    assert critical_pairs(UniformBall(dim=n), distance, leaky) == ()


@pytest.mark.parametrize("distance", [0.05, 1.0, 4.0])
def test_a_continuum_of_pairs_is_refused(distance):
    laplace = RadialProfile(profile=lambda r: np.exp(-r))
    assert abs(lowest_slope(laplace)) < 1e-10  # rounding of the profile's quadrature
    with pytest.raises(AssumptionError, match=r"at isolated places: .* as for a Laplace law"):
        critical_pairs(laplace, distance)
    # Every pair on the left is critical, at one ratio of weights.
    mixture = two_clusters(np.array([distance]), a_minus=float(np.exp(distance)), noise=laplace)
    for s_plus in (-0.5, -3.0):
        rates = mixture.field(np.array([1.0]), s_plus - distance)
        np.testing.assert_allclose(np.append(*rates), 0, atol=1e-11)


def naive_count(noise: Isotropic, distance: float, activation, num: int = 80_001) -> int:
    """Sign changes of F/θ₁(s + D) − F/θ₁(s) on an even grid."""
    s = np.linspace(-40, 40, num)
    h = mean_activation(noise, s, activation) / theta1(noise, s, activation)
    ahead = mean_activation(noise, s + distance, activation) / theta1(noise, s + distance, activation)
    return int((np.diff(np.sign(ahead - h)) != 0).sum())


@pytest.mark.parametrize("c_minus", [0.0, 0.001, 0.01, 0.1])
@pytest.mark.parametrize("distance", [0.5, 2.0, 4.0])
def test_every_pair_is_found(c_minus, distance):
    leaky = homogeneous(c_minus, 1.0)
    pairs = critical_pairs(StudentT(dof=3.0), distance, leaky)
    assert len(pairs) == 2 * naive_count(StudentT(dof=3.0), distance, leaky)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_a_profile_of_two_scales_has_two_pairs_for_each_sign(n):
    wide = 10.0
    noise = RadialProfile(
        dim=n, profile=lambda r: 0.9 * np.exp(-(r**2) / 2) + 0.1 * np.exp(-(r**2) / (2 * wide**2)) / wide**n
    )
    pairs = critical_pairs(noise, 2.0)
    assert len(pairs) == 2 * naive_count(noise, 2.0, relu, num=401) == 4
    for pair in pairs:
        ray = forced_ray(two_clusters(2 * np.eye(n)[0], noise=noise), pair)
        v, xi = ray.point(1.3)
        np.testing.assert_allclose(np.append(*ray.mixture.field(v, xi)), 0, atol=1e-11)
        np.testing.assert_allclose(ray.eigenvalues(1.3), np.linalg.eigvalsh(ray.mixture.jacobian(v, xi)), atol=1e-11)


def test_a_leak_removes_the_critical_points_of_heavy_tails():
    kept, lost = homogeneous(0.001, 1.0), homogeneous(0.03, 1.0)
    assert len(critical_pairs(StudentT(dof=3.0), 2.0, kept)) == 4
    assert critical_pairs(StudentT(dof=3.0), 2.0, lost) == ()


@given(st.floats(1.2, 4), st.floats(0.3, 3))
def test_gaussian_clusters_of_two_widths_do_have_a_critical_ray(width, distance):
    noise = (Gaussian(dim=2), Gaussian(dim=2, scale=width))
    mixture = two_clusters(np.array([distance, 0.0]), noise=noise)
    for pair in critical_pairs(noise, distance):
        ray = forced_ray(mixture, pair)
        np.testing.assert_allclose(np.append(*ray.mixture.field(*ray.point(1.7))), 0, atol=1e-11 * (1 + pair.ratio))
        expected = np.linalg.eigvalsh(ray.mixture.jacobian(*ray.point(1.7)))
        np.testing.assert_allclose(ray.eigenvalues(1.7), expected, atol=1e-10 * (1 + pair.ratio))
    assert critical_pairs(noise, distance)


@pytest.mark.parametrize(
    ("dof", "distance", "s_minus", "ratio"),
    [
        (3.0, 0.5, -0.69935, 1.59859),
        (3.0, 2.0, -1.53187, 5.95501),
        (3.0, 4.0, -2.74945, 24.0233),
        (2.0, 2.0, -1.0, 2 + np.sqrt(3)),
    ],
)
def test_forced_ratios_of_student_clusters(dof, distance, s_minus, ratio):
    pair = critical_pairs(StudentT(dof=dof), distance)[0]
    assert pair.s_minus == pytest.approx(s_minus, abs=1e-5)
    assert pair.ratio == pytest.approx(ratio, rel=1e-5)


def test_a_mixture_has_a_ray_only_with_the_forced_ratio():
    pair = critical_pairs(T3, 2.0)[0]
    forced = forced_ray(two_clusters(np.array([0.0, 2.0]), noise=T3), pair)
    [ray] = critical_rays(forced.mixture)
    assert ray.pair == pair
    off = replace(forced.mixture, weights=forced.mixture.weights * [1, 1.01])
    assert critical_rays(off) == ()
    [near] = critical_rays(off, tolerance=0.02)
    assert near.pair == pair
    exchanged = replace(forced.mixture, weights=np.array([1.0, -1 / pair.ratio]))
    assert [r.pair.orientation for r in critical_rays(exchanged)] == [-1]


def test_the_joint_flow_ends_on_the_ray_wherever_its_scale_takes_it():
    ray = forced_ray(two_clusters(np.array([2.0, 0.0]), noise=T3), critical_pairs(T3, 2.0)[0])
    assert ray.attracts()
    ends = []
    for scale in (0.5, 1.0, 2.0):
        v, xi = ray.point(scale)
        start = {"v": v + scale * np.array([0.1, 0.2]), "xi": np.array(xi + 0.1 * scale)}
        run = integrate(ray.mixture.flow, start, np.array([0.0, 60.0 * scale]))
        end_v, end_xi = run["v"][-1], run["xi"][-1]
        ends.append(np.linalg.norm(end_v))
        np.testing.assert_allclose(end_v / ends[-1], ray.direction, atol=1e-8)
        assert end_xi / ends[-1] == pytest.approx(ray.offset, abs=1e-8)
    # The field knows directions only: doubling the start doubles the end.
    np.testing.assert_allclose(np.array(ends) / ends[0], [1, 2, 4], rtol=1e-8)


def test_measured_decay_towards_the_ray_is_the_slowest_eigenvalue():
    ray = forced_ray(two_clusters(np.array([2.0, 0.0]), noise=T3), critical_pairs(T3, 2.0)[0])
    v, xi = ray.point(1.0)
    t = np.array([0.0, 1.0, 2.0])
    run = integrate(ray.mixture.flow, {"v": v + np.array([0.0, 1e-6]), "xi": np.array(xi)}, t)
    rates = -np.diff(np.log(np.abs(run["v"][:, 1]))) / np.diff(t)
    np.testing.assert_allclose(rates, ray.beta1(1.0), rtol=1e-5)  # second order in an offset of 1e-6


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_one_percent_off_the_forced_ratio_the_flow_leaves_or_collapses(factor):
    ray = forced_ray(two_clusters(np.array([2.0, 0.0]), noise=T3), critical_pairs(T3, 2.0)[0])
    off = replace(ray.mixture, weights=ray.mixture.weights * [1, factor])
    v, xi = ray.point(1.0)
    run = integrate(off.flow, {"v": v, "xi": np.array(xi)}, np.array([0.0, 10.0, 20.0]))
    drift = np.diff(np.linalg.norm(run["v"], axis=1))
    assert (np.sign(drift) == np.sign(1 - factor)).all()
    assert np.abs(drift).min() > 0.01


def test_signs_of_the_pair_change_at_the_straddling_distance():
    noise = StudentT(dof=3.0)
    threshold = straddling_distance(noise)
    h = mean_activation(noise, np.array([-threshold, 0.0])) / theta1(noise, np.array([-threshold, 0.0]))
    assert h[0] == pytest.approx(h[1], rel=1e-12)
    assert critical_pairs(noise, 0.99 * threshold)[0].s_plus < 0 < critical_pairs(noise, 1.01 * threshold)[0].s_plus


@pytest.mark.parametrize(
    ("noise", "slope"),
    [(UniformBall(dim=n), b) for n, b in [(1, 0.5), (2, 0.4), (5, 0.25), (20, 0.087)]]
    + [(StudentT(dof=dof), -1 / (dof - 1)) for dof in (2.0, 3.0, 5.0, 30.0)],
    ids=lambda value: type(value).__name__ if isinstance(value, Isotropic) else f"{value:.3g}",
)
def test_lowest_slopes(noise, slope):
    assert lowest_slope(noise) == pytest.approx(slope, abs=1e-3)


@pytest.mark.parametrize("c_minus", [0.0, 0.001, 0.01, 0.03, 0.3])
@pytest.mark.parametrize("noise", [Gaussian(), UniformBall(dim=3), StudentT(dof=2.0), StudentT(dof=5.0)])
def test_a_negative_slope_means_a_pair_at_some_distance(noise, c_minus):
    leaky = homogeneous(c_minus, 1.0)
    distances = (0.01, 0.1, 0.5)
    exists = any(critical_pairs(noise, distance, leaky) for distance in distances)
    assert exists == (lowest_slope(noise, leaky) < 0)


def test_no_slope_across_a_pole():
    with pytest.raises(AssumptionError, match=r"or it has a pole: got c₋ = -1, c₊ = 1"):
        lowest_slope(Gaussian(), homogeneous(-1.0, 1.0))
    assert critical_pairs(Gaussian(), 2.0, homogeneous(-1.0, 1.0))


def test_roots_at_grid_points_and_gaps_are_handled():
    cubic = lambda x: np.tanh((x - 1) * x * (x + 2))  # noqa: E731
    np.testing.assert_allclose(all_roots(cubic, np.linspace(-3, 3, 13)), [-2, 0, 1], atol=1e-12)
    assert all_roots(lambda x: np.where(x > 0, 1.0, np.nan), np.linspace(-1, 1, 9)).size == 0
    assert all_roots(lambda x: np.full_like(x, 1e-15), np.linspace(-1, 1, 9)).size == 0


GAUSSIAN = two_clusters(np.array([1.0, 0.0]), a_minus=4.0, noise=Gaussian(dim=2))
STUDENT = two_clusters(np.array([2.0, 0.0]), a_minus=4.0, noise=StudentT(dim=2, dof=3.0))

DISTRIBUTIONS = {
    "Gaussian": lambda: Gaussian(dim=3),
    "ball": lambda: UniformBall(dim=3, radius=2.5),
    "Student": lambda: StudentT(dim=3, dof=3.0),
    "two widths": lambda: (Gaussian(dim=3), Gaussian(dim=3, scale=1.4)),
}


# Mixtures are built in the tests, not in the strategies: the shape checker draws random numbers of its own.
@st.composite
def recipes(draw) -> Callable[[], Mixture]:
    noise = DISTRIBUTIONS[draw(st.sampled_from(list(DISTRIBUTIONS)))]()
    return partial(
        two_clusters,
        draw(st.floats(0.5, 2)) * np.array([2.0, -1.0, 2.0]) / 3,
        a_plus=draw(st.floats(0.5, 1.5)),
        a_minus=draw(st.floats(3, 10)),
        noise=noise,
        activation=homogeneous(draw(st.floats(0, 0.3)), 1.0),
    )


def found(mixture: Mixture, xi: float) -> tuple[CriticalPoint, ...]:
    """The critical points, none when there are none."""
    try:
        return critical_points(mixture, xi)
    except AssumptionError:
        return ()


def differences(point: CriticalPoint) -> np.ndarray:
    """−∂v̇/∂v at μ by central differences, with a step in proportion to ‖μ‖."""
    step = 1e-5 * point.norm
    columns = [
        (point.mixture.field(point.mu - e, point.xi)[0] - point.mixture.field(point.mu + e, point.xi)[0]) / (2 * step)
        for e in step * np.eye(point.mu.size)
    ]
    return np.stack(columns, axis=-1)


biases = st.floats(0.3, 3).flatmap(lambda size: st.sampled_from([-size, size]))


@given(recipes(), biases)
def test_the_frozen_field_vanishes_and_c_is_its_derivative(recipe, xi):
    mixture = recipe()
    for point in found(mixture, xi):
        size = np.abs(mixture.weights).max()
        np.testing.assert_allclose(mixture.field(point.mu, xi)[0], 0, atol=1e-12 * size)
        matrix = point.linearised.matrix
        np.testing.assert_allclose(matrix, -mixture.jacobian(point.mu, xi)[:-1, :-1], atol=1e-10 * np.abs(matrix).max())
        np.testing.assert_allclose(matrix, differences(point), atol=1e-7 * max(1, np.abs(matrix).max()))


@given(recipes(), biases)
def test_eigenvalues_are_those_of_c(recipe, xi):
    for point in found(recipe(), xi):
        flow = point.linearised
        expected = np.linalg.eigvalsh(flow.matrix)
        np.testing.assert_allclose(np.sort(flow.eigenvalues), expected, atol=1e-12 * np.abs(expected).max())
        assert flow.stable == bool(expected.min() > 0)
        # With c₋ ≥ 0 and a₊ > 0 the sign of β₁ is s_μ: only a point towards x̄₊ can be stable.
        assert np.sign(flow.across) == point.orientation


@given(recipes(), biases, st.floats(0.3, 3))
def test_the_scale_of_the_bias_is_the_scale_of_the_point(recipe, xi, factor):
    mixture = recipe()
    for one, other in zip(found(mixture, xi), found(mixture, factor * xi), strict=True):
        np.testing.assert_allclose(other.mu, factor * one.mu, rtol=1e-9)
        np.testing.assert_allclose(other.linearised.matrix, one.linearised.matrix / factor, rtol=1e-7, atol=1e-12)


@given(recipes(), biases)
def test_every_critical_point_is_found(recipe, xi):
    mixture = recipe()
    direction = mixture.centers[0] / np.linalg.norm(mixture.centers[0])
    norm = np.geomspace(0.05, 50, 4001) * abs(xi)
    for orientation in (1, -1):
        along = mixture.field(orientation * norm[:, None] * direction, xi)[0] @ direction
        scale = np.abs(mixture.weights).max() * 1e-12  # below it the sign is rounding, as for a ball out of reach
        along = along[np.abs(along) > scale]
        inside = [p for p in found(mixture, xi) if p.orientation == orientation and norm[0] < p.norm < norm[-1]]
        assert len(inside) == (np.diff(np.sign(along)) != 0).sum()


def test_golden_numbers_of_the_gaussian_point():
    [point] = critical_points(GAUSSIAN, -1.0)
    assert point.orientation == 1
    assert point.norm == pytest.approx(0.886703, abs=1e-6)
    np.testing.assert_allclose(point.linearised.eigenvalues, [0.644274, 0.506555], atol=1e-6)


@pytest.mark.parametrize(("offset", "which"), [((1e-5, 0.0), 0), ((0.0, 1e-5), 1)], ids=["along", "across"])
def test_measured_decay_rates_are_the_eigenvalues(offset, which):
    [point] = critical_points(GAUSSIAN, -1.0)
    t = np.array([0.0, 3.0, 6.0])
    run = integrate(GAUSSIAN.frozen_flow(-1.0), {"v": point.mu + offset}, t)
    rates = -np.diff(np.log(np.abs(run["v"] - point.mu)[:, which])) / np.diff(t)
    np.testing.assert_allclose(rates, point.linearised.decay_rates[which], rtol=1e-5)  # the offset is 1e-5


@pytest.mark.parametrize(
    "noise",
    [
        (Gaussian(dim=2, scale=0.6), Gaussian(dim=2, scale=1.4)),
        (StudentT(dim=2, dof=4.0), Gaussian(dim=2, scale=0.8)),
        (UniformBall(dim=2, radius=2.0), StudentT(dim=2, dof=3.0, scale=0.7)),
    ],
)
def test_the_linear_flow_is_the_derivative_for_unequal_noises(noise):
    mixture = two_clusters(
        np.array([0.8, -0.6]), a_plus=1.3, a_minus=8.0, noise=noise, activation=homogeneous(0.05, 0.9)
    )
    points = critical_points(mixture, -0.7)
    for point in points:
        np.testing.assert_allclose(mixture.field(point.mu, -0.7)[0], 0, atol=1e-10)
        np.testing.assert_allclose(-mixture.jacobian(point.mu, -0.7)[:2, :2], point.linearised.matrix, atol=1e-9)
        step = 1e-5 * np.eye(2)
        rise = mixture.field(point.mu + step, -0.7)[0] - mixture.field(point.mu - step, -0.7)[0]
        np.testing.assert_allclose(-rise / 2e-5, point.linearised.matrix, atol=1e-7)


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("a_plus", "a_minus"), [(-1.0, 2.8), (1.0, 2.8), (-2.0, -1.0), (1.0, -0.3)])
def test_every_critical_point_of_bounded_clusters_is_one(radius, a_plus, a_minus):
    """Between two balls there are weights that see no sample: a sign that changes across them is no zero."""
    mixture = two_clusters(
        np.array([2.5, 0.0]), a_plus=a_plus, a_minus=a_minus, noise=UniformBall(dim=2, radius=radius)
    )
    for xi in (-2.0, -1.0, 1.0):
        sizes = np.geomspace(1e-3, 1e3, 20_001)
        along = np.array([[1.0, 0.0], [-1.0, 0.0]])[:, None] * sizes[:, None]
        signs = np.sign(mixture.field(along, xi)[0][..., 0])
        expected = sum((line[1:] * line[:-1] < 0).sum() for line in signs)  # a brute search for zeros
        try:
            found = critical_points(mixture, xi)
        except AssumptionError:
            found = ()
        assert len(found) == expected
        for point in found:
            np.testing.assert_allclose(mixture.field(point.mu, xi)[0], 0, atol=1e-9)


def test_of_two_points_one_attracts_and_one_repels():
    repelling, attracting = critical_points(STUDENT, -1.0)
    assert (repelling.linearised.stable, attracting.linearised.stable) == (False, True)
    assert repelling.linearised.across > 0 > repelling.linearised.along  # along μ alone
    away = integrate(STUDENT.frozen_flow(-1.0), {"v": repelling.mu * 1.001}, np.array([0.0, 80.0]))["v"][-1]
    np.testing.assert_allclose(away, attracting.mu, rtol=1e-2)
    with pytest.raises(
        AssumptionError, match=r"Decay rates need a stable critical point: C\(μ\) has the eigenvalue -1"
    ):
        _ = repelling.linearised.decay_rates


@pytest.mark.parametrize("mixture", [GAUSSIAN, STUDENT], ids=["Gaussian", "Student"])
def test_remainder_is_of_second_order(mixture):
    point = critical_points(mixture, -1.0)[-1]
    direction = np.array([0.6, 0.8]) * point.norm

    def remainder(gamma: float) -> float:
        v = point.mu + gamma * direction
        return float(np.linalg.norm(mixture.field(v, -1.0)[0] - point.linearised.field(v)))

    ratio = remainder(1e-2) / remainder(1e-3)
    assert 80 < ratio < 120  # a tenth of the distance, a hundredth of the remainder


def test_remainder_is_no_scalar_factor():
    [point] = critical_points(GAUSSIAN, -1.0)
    v = point.mu + np.array([0.05, 0.05])
    exact, linear_part = GAUSSIAN.field(v, -1.0)[0], point.linearised.field(v)
    factors = exact / linear_part
    assert abs(factors[0] - factors[1]) > 0.02


@given(st.floats(-2, 2), st.floats(-1, 1), st.sampled_from([(0.8, 0.4), (0.5, -0.2), (-0.3, 0.1)]))
def test_linear_solution_solves_the_linear_field(along, across, betas):
    flow = LinearisedFlow(mu=np.array([0.9, 0.3, -0.4]), beta1=betas[0], beta2=betas[1])
    v0 = flow.mu * (1 + along) + across * np.array([0.4, 0.0, 0.9])
    t = np.linspace(0, 3, 4)
    run = integrate(lambda _, s: {"v": flow.field(s["v"])}, {"v": v0}, t)
    np.testing.assert_allclose(flow.solution(v0, t), run["v"], atol=1e-9, rtol=1e-9)


def test_linear_solution_describes_the_flow_near_the_point():
    [point] = critical_points(GAUSSIAN, -1.0)
    v0, t = point.mu + np.array([2e-4, -3e-4]), np.linspace(0, 5, 6)
    run = integrate(GAUSSIAN.frozen_flow(-1.0), {"v": v0}, t)
    np.testing.assert_allclose(run["v"], point.linearised.solution(v0, t), atol=1e-7)  # square of the offset


def test_with_the_bias_trained_the_weights_leave():
    [point] = critical_points(GAUSSIAN, -1.0)
    start = {"v": point.mu * 1.01, "xi": np.array(-1.0)}
    t = np.array([0.0, 50.0])
    frozen = integrate(GAUSSIAN.frozen_flow(-1.0), {"v": start["v"]}, t)["v"][-1]
    trained = integrate(GAUSSIAN.flow, start, t)["v"][-1]
    np.testing.assert_allclose(frozen, point.mu, atol=1e-10)
    assert np.linalg.norm(trained - point.mu) > 1
