"""Lemma 4: rays of joint critical points, the ratio they force, and where there are none."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.errors import AssumptionError
from joma.theory.activations import homogeneous
from joma.theory.critical_points import (
    CriticalPoint,
    all_roots,
    critical_pairs,
    critical_points,
    critical_rays,
    forced_ray,
    lowest_slope,
)
from joma.theory.hyperplane import mean_activation, theta1
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters

T3 = StudentT(dim=2, dof=3.0)

distances = st.floats(0.3, 6)
tails = st.floats(1.3, 8)


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


def test_a_continuum_of_pairs_is_refused():
    laplace = RadialProfile(profile=lambda r: np.exp(-r))
    assert abs(lowest_slope(laplace)) < 1e-10  # rounding of the profile's quadrature
    with pytest.raises(AssumptionError, match="Laplace"):
        critical_pairs(laplace, 1.0)


def naive_count(noise: Isotropic, distance: float, activation, num: int = 80_001) -> int:
    """Sign changes of F/θ₁(s + D) − F/θ₁(s) on an even grid."""
    s = np.linspace(-40, 40, num)
    h = mean_activation(noise, s, activation) / theta1(noise, s, activation)
    ahead = mean_activation(noise, s + distance, activation) / theta1(noise, s + distance, activation)
    return int((np.diff(np.sign(ahead - h)) != 0).sum())


@pytest.mark.parametrize("c_minus", [0.0, 0.01])
@pytest.mark.parametrize("distance", [0.5, 4.0])
def test_every_pair_is_found(c_minus, distance):
    leaky = homogeneous(c_minus, 1.0)
    pairs = critical_pairs(StudentT(dof=3.0), distance, leaky)
    assert len(pairs) == 2 * naive_count(StudentT(dof=3.0), distance, leaky)


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


@pytest.mark.parametrize(
    ("noise", "slope"),
    [(UniformBall(dim=n), b) for n, b in [(1, 0.5), (2, 0.4), (5, 0.25), (20, 0.087)]]
    + [(StudentT(dof=dof), -1 / (dof - 1)) for dof in (2.0, 3.0, 5.0, 30.0)],
    ids=lambda value: type(value).__name__ if isinstance(value, Isotropic) else f"{value:.3g}",
)
def test_lowest_slopes(noise, slope):
    assert lowest_slope(noise) == pytest.approx(slope, abs=1e-3)


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


biases = st.floats(0.3, 3).flatmap(lambda size: st.sampled_from([-size, size]))


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


@pytest.mark.parametrize("radius", [0.5, 2.0])
@pytest.mark.parametrize(("a_plus", "a_minus"), [(-1.0, 2.8), (1.0, 2.8), (-2.0, -1.0), (1.0, -0.3)])
def test_every_critical_point_of_bounded_clusters_is_one(radius, a_plus, a_minus):
    """Between two balls there are weights that see no sample: a sign that changes across them is no zero."""
    mixture = two_clusters(
        np.array([2.5, 0.0]), a_plus=a_plus, a_minus=a_minus, noise=UniformBall(dim=2, radius=radius)
    )
    for xi in (-1.0, 1.0):
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


def test_the_linear_flow_is_the_derivative_for_unequal_noises():
    noise = (StudentT(dim=2, dof=4.0), Gaussian(dim=2, scale=0.8))
    leaky = homogeneous(0.05, 0.9)
    mixture = two_clusters(np.array([0.8, -0.6]), a_plus=1.3, a_minus=8.0, noise=noise, activation=leaky)
    for point in critical_points(mixture, -0.7):
        np.testing.assert_allclose(-mixture.jacobian(point.mu, -0.7)[:2, :2], point.linearised.matrix, atol=1e-9)
