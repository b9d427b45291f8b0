"""Lemma 4 and Theorem 3: rays of joint critical points, the ratio they force, and points with the bias frozen."""

from dataclasses import replace

import numpy as np
import pytest

import joma.theory as jt
from joma.errors import AssumptionError
from joma.theory.critical_points import all_roots

T3 = jt.StudentT(dim=2, dof=3.0)


def test_one_dimension_has_no_direction_across():
    p = jt.StudentT(dof=3.0)
    pair = jt.critical_pairs(p, 2.0)[0]
    ray = jt.forced_ray(jt.two_clusters(np.array([2.0]), noise=p), pair)
    expected = (p.density(pair.s_plus) - pair.ratio * p.density(pair.s_minus)) * (1 + pair.s_minus**2) / 0.7
    np.testing.assert_allclose(ray.eigenvalues(0.7), np.sort([0.0, expected]), atol=1e-14)


def test_a_continuum_of_pairs_is_refused():
    laplace = jt.RadialProfile(profile=lambda r: np.exp(-r))
    assert abs(jt.lowest_slope(laplace)) < 1e-10  # rounding of the profile's quadrature
    with pytest.raises(AssumptionError, match="Laplace"):
        jt.critical_pairs(laplace, 1.0)
    assert jt.critical_pairs(jt.Gaussian(), 2.0, jt.homogeneous(-1.0, 1.0))  # a pole between


@pytest.mark.parametrize("c_minus", [0.0, 0.01])
@pytest.mark.parametrize("distance", [0.5, 4.0])
def test_every_pair_is_found(c_minus, distance):
    noise, leaky, s = jt.StudentT(dof=3.0), jt.homogeneous(c_minus, 1.0), np.linspace(-40, 40, 80_001)
    rise = jt.mean_ratio(noise, s + distance, leaky) - jt.mean_ratio(noise, s, leaky)
    assert len(jt.critical_pairs(noise, distance, leaky)) == 2 * (np.diff(np.sign(rise)) != 0).sum()


def test_a_mixture_has_a_ray_only_with_the_forced_ratio():
    pair = jt.critical_pairs(T3, 2.0)[0]
    forced = jt.forced_ray(jt.two_clusters(np.array([0.0, 2.0]), noise=T3), pair)
    [ray] = jt.critical_rays(forced.mixture)
    assert ray.pair == pair
    off = replace(forced.mixture, weights=forced.mixture.weights * [1, 1.01])
    assert jt.critical_rays(off) == ()
    [near] = jt.critical_rays(off, tolerance=0.02)
    assert near.pair == pair
    exchanged = replace(forced.mixture, weights=np.array([1.0, -1 / pair.ratio]))
    assert [r.pair.orientation for r in jt.critical_rays(exchanged)] == [-1]


@pytest.mark.parametrize(
    ("noise", "slope"),
    [(jt.UniformBall(dim=n), b) for n, b in [(1, 0.5), (2, 0.4), (5, 0.25), (20, 0.087)]]
    + [(jt.StudentT(dof=dof), -1 / (dof - 1)) for dof in (2.0, 3.0, 5.0, 30.0)],
    ids=lambda value: type(value).__name__ if isinstance(value, jt.Isotropic) else f"{value:.3g}",
)
def test_lowest_slopes(noise, slope):
    assert jt.lowest_slope(noise) == pytest.approx(slope, abs=1e-3)


def test_roots_at_grid_points_and_gaps_are_handled():
    cubic = lambda x: np.tanh((x - 1) * x * (x + 2))  # noqa: E731
    np.testing.assert_allclose(all_roots(cubic, np.linspace(-3, 3, 13)), [-2, 0, 1], atol=1e-12)
    assert all_roots(lambda x: np.where(x > 0, 1.0, np.nan), np.linspace(-1, 1, 9)).size == 0
    assert all_roots(lambda x: np.full_like(x, 1e-15), np.linspace(-1, 1, 9)).size == 0


BALLS = (jt.UniformBall(dim=2, radius=0.5), jt.UniformBall(dim=2, radius=2.0))
WIDTHS = (jt.Gaussian(dim=2), jt.Gaussian(dim=2, scale=1.4))


@pytest.mark.parametrize("noise", [*BALLS, T3, WIDTHS], ids=["small balls", "balls", "Student", "two widths"])
@pytest.mark.parametrize(("a_plus", "a_minus"), [(-1.0, 2.8), (1.0, 2.8), (-2.0, -1.0), (1.0, -0.3), (1.0, 9.0)])
def test_every_critical_point_is_found_and_is_one(noise, a_plus, a_minus):
    """Between two balls there are weights that see no sample: a sign that changes across them is no zero."""
    leaky = jt.relu if isinstance(noise, jt.UniformBall) else jt.homogeneous(0.1, 1.2)
    mixture = jt.two_clusters(np.array([2.5, 0.0]), a_plus=a_plus, a_minus=a_minus, noise=noise, activation=leaky)
    for xi in (-1.0, 1.0):
        sizes = np.geomspace(1e-3, 1e3, 20_001)
        along = np.array([[1.0, 0.0], [-1.0, 0.0]])[:, None] * sizes[:, None]
        signs = np.sign(mixture.field(along, xi)[0][..., 0])
        expected = sum((line[1:] * line[:-1] < 0).sum() for line in signs)  # a brute search for zeros
        try:
            found = jt.critical_points(mixture, xi)
        except AssumptionError:
            found = ()
        assert len(found) == expected
        for point in found:
            np.testing.assert_allclose(mixture.field(point.mu, xi)[0], 0, atol=1e-9)


LEAKY = jt.homogeneous(0.1, 1.3)


@pytest.mark.parametrize(("noise", "xi"), [(jt.Gaussian(dim=3, scale=0.8), -1.2), (jt.StudentT(dim=3, dof=3.0), 0.9)])
def test_two_clusters_give_the_points_of_theorem_3(noise, xi):
    mixture = jt.two_clusters(np.array([1.0, 0.4, -0.3]), a_plus=1.3, a_minus=5.2, noise=noise, activation=LEAKY)
    expected, found = jt.critical_points(mixture, xi), jt.rest_points(mixture, xi)
    np.testing.assert_allclose([point.mu for point in found], [point.mu for point in expected], rtol=1e-9)
    for point, known in zip(found, expected, strict=True):
        np.testing.assert_allclose(point.matrix, known.linearised.matrix, atol=1e-9)
        assert point.stable == known.linearised.stable


def test_points_scale_with_the_bias_and_turn_with_the_data():
    centers, weights = np.array([[1.0, 0.2, 0.1], [0.3, 1.1, -0.2], [0.1, 0.0, 0.2]]), np.array([1.0, 0.8, -6.0])
    mixture = jt.Mixture(centers=centers, weights=weights, noise=jt.Gaussian(dim=3), activation=LEAKY)
    [point], [scaled] = jt.rest_points(mixture, -1.0), jt.rest_points(mixture, -2.5)
    np.testing.assert_allclose(scaled.mu, 2.5 * point.mu, rtol=1e-9)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    [turned] = jt.rest_points(replace(mixture, centers=centers @ turn), -1.0)
    np.testing.assert_allclose(turned.mu, point.mu @ turn, rtol=1e-9)
