"""Theorem 3 beyond two clusters, a statement of our own: where a node rests with its bias frozen, and its rates."""

from dataclasses import replace

import numpy as np

from joma import theory
from joma.checks.check import check, rejects
from joma.checks.quadrature import jacobian, noises, raw_field
from joma.checks.reference import DIFFERENTIATION, QUADRATURE
from joma.theory import Mixture, homogeneous


def rest_points_of_mixtures(_):
    """A rest point of each of three mixtures: three and four clusters, none at the origin, unequal noises, a leak.

    Mixtures without a rest point are passed over.
    """
    rng, found = np.random.default_rng(1), []
    for num, xi in ((3, -1.2), (4, -1.0), (3, 0.9)):
        points: tuple = ()
        while not points:
            weights = rng.uniform(0.6, 1.4, num - 1)
            centers = np.array([1.0, 0.3, -0.2]) + 0.4 * rng.normal(size=(num - 1, 3))
            mixture = Mixture(
                centers=np.vstack([centers, 0.1 * rng.normal(size=(1, 3))]),
                weights=np.append(weights, -4.0 * weights.sum()),
                noise=tuple(noises(rng, dim=3)[i % 2] for i in range(num)),
                activation=homogeneous(rng.uniform(0.05, 0.15), rng.uniform(1.2, 1.5)),
            )
            points = theory.rest_points(mixture, xi)
        found.append(points[0])
    return found


@check("thm3-clusters", QUADRATURE, lambda point: point.mu, over=rest_points_of_mixtures)
@rejects("‖μ‖ 1 % off", lambda point: 1.01 * point.mu)
@rejects("a center left out", lambda point: point.mu - 0.01 * point.mixture.centers[0])
def field_at_rest(weights, point):
    """Field where the weights are said to rest, integrated cluster by cluster."""
    return raw_field(point.mixture, weights(point), point.xi)[:-1]


def _two_clusters_form(point):
    """β₁I + β₂μμᵀ with the right values along and across μ: all that two clusters allow."""
    unit = point.mu / np.linalg.norm(point.mu)
    along = unit @ point.matrix @ unit
    across = (np.trace(point.matrix) - along) / (unit.size - 1)
    return across * np.eye(unit.size) + (along - across) * np.outer(unit, unit)


@check("thm3-clusters", DIFFERENTIATION, lambda point: point.matrix, over=rest_points_of_mixtures)
@rejects("the form β₁I + β₂μμᵀ of two clusters", _two_clusters_form)
@rejects("bias 1 % off", lambda point: replace(point, xi=1.01 * point.xi).matrix)
def rates_at_rest(matrix, point):
    """C of the linear flow around the point against differences of the integrated field."""
    step = 2e-3 * float(np.linalg.norm(point.mu))
    return matrix(point) + jacobian(lambda v: raw_field(point.mixture, v, point.xi)[:-1], point.mu, step)
