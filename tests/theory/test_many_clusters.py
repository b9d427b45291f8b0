"""Critical points of any number of clusters with the bias frozen."""

import numpy as np
import pytest

from joma.errors import AssumptionError
from joma.theory import Gaussian, Mixture, StudentT, critical_points, homogeneous, integrate, rest_points, two_clusters

LEAKY = homogeneous(0.1, 1.3)


@pytest.mark.parametrize(("noise", "xi"), [(Gaussian(dim=3, scale=0.8), -1.2), (StudentT(dim=3, dof=3.0), 0.9)])
def test_two_clusters_give_the_points_of_theorem_3(noise, xi):
    mixture = two_clusters(np.array([1.0, 0.4, -0.3]), a_plus=1.3, a_minus=5.2, noise=noise, activation=LEAKY)
    expected = critical_points(mixture, xi)
    found = rest_points(mixture, xi)
    np.testing.assert_allclose([point.mu for point in found], [point.mu for point in expected], rtol=1e-9)
    for point, known in zip(found, expected, strict=True):
        np.testing.assert_allclose(point.matrix, known.linearised.matrix, atol=1e-9)
        assert point.stable == known.linearised.stable


def three_clusters():
    centers = np.array([[1.0, 0.2, 0.1], [0.3, 1.1, -0.2], [0.1, 0.0, 0.2]])
    return Mixture(centers=centers, weights=np.array([1.0, 0.8, -6.0]), noise=Gaussian(dim=3), activation=LEAKY)


def test_weights_return_to_a_stable_point():
    mixture = three_clusters()
    [point] = rest_points(mixture, -1.0)
    assert point.stable
    run = integrate(mixture.frozen_flow(-1.0), {"v": point.mu + np.array([0.05, -0.04, 0.03])}, np.array([0.0, 60.0]))
    np.testing.assert_allclose(run.states["v"][-1], point.mu, atol=1e-9)


def test_points_scale_with_the_bias_and_turn_with_the_data():
    mixture = three_clusters()
    [point] = rest_points(mixture, -1.0)
    [scaled] = rest_points(mixture, -2.5)
    np.testing.assert_allclose(scaled.mu, 2.5 * point.mu, rtol=1e-9)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    turned = Mixture(
        centers=mixture.centers @ turn, weights=mixture.weights, noise=mixture.noise, activation=mixture.activation
    )
    [moved] = rest_points(turned, -1.0)
    np.testing.assert_allclose(moved.mu, point.mu @ turn, rtol=1e-9)


@pytest.mark.parametrize(("xi", "activation"), [(0.0, LEAKY), (-1.0, homogeneous(1.0, 1.0))])
def test_fields_without_isolated_zeros_are_refused(xi, activation):
    mixture = two_clusters(np.ones(2), a_minus=4.0, noise=Gaussian(dim=2), activation=activation)
    with pytest.raises(AssumptionError, match="ξ ≠ 0"):
        rest_points(mixture, xi)
