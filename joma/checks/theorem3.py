"""Section 4 and Appendix A.4, Theorem 3: the weights near a critical point, with the bias frozen; also beyond it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize

from joma import theory
from joma.checks.check import as_printed, cases, check, over, rejects, scaled
from joma.checks.critical_points import printed_field
from joma.checks.quadrature import jacobian, noises, raw_field, solved
from joma.checks.reference import DIFFERENTIATION, ODE, QUADRATURE
from joma.theory import CriticalPoint, Gaussian, Mixture, StudentT, UniformBall, homogeneous, theta1, two_clusters

Point = tuple[CriticalPoint, np.ndarray]
"""A critical point, and what the raw field gives for it: C(μ) by differences, or rates."""
ASIDE = np.array([0.6, 0.64, 0.48])  # direction in which v is moved off the critical points


def points(_: np.random.Generator) -> tuple[Point, ...]:
    """Critical points of both signs of ξ, equal and unequal noises, a heavy tail (one stable, one not), a leak.

    The first lies along an axis, as Eqn 71 needs to be refuted; x̄₊ of the others is drawn.
    """
    rng = np.random.default_rng(3)  # statements.toml quotes numbers of these points
    normal, ball, t = Gaussian(dim=3, scale=0.9), UniformBall(dim=3, radius=2.2), StudentT(dim=3, dof=3.0, scale=1.1)
    relu, steep, leaky = homogeneous(0.0, 1.0), homogeneous(0.0, 1.3), homogeneous(0.1, 1.3)
    mixtures: tuple[tuple[Any, float, float, float, Any], ...] = (
        (normal, 1.0, 4.0, -1.2, relu),
        (normal, 1.0, 4.0, 0.9, steep),
        (ball, 1.0, 4.0, -1.2, steep),
        (t, 2.0, 4.0, -0.8, relu),
        (normal, 1.0, 4.0, -1.5, leaky),
        ((ball, normal), 1.0, 4.5, -1.1, leaky),
        ((t, normal), 1.3, 6.0, -0.9, leaky),
        ((normal, t), 1.3, 3.5, 1.2, leaky),
    )
    found: list[Point] = []
    for noise, size, ratio, xi, phi in mixtures:
        way = rng.normal(size=3) if found else np.array([1.0, 0.0, 0.0])
        a_plus = rng.uniform(1.2, 1.7)
        x_plus = size * way / np.linalg.norm(way)
        mixture = two_clusters(x_plus, a_plus=a_plus, a_minus=ratio * a_plus, noise=noise, activation=phi)
        every = theory.critical_points(mixture, xi)
        found += [(point, -_derivative(raw_field, mixture, point.mu, xi)) for point in every]
    return tuple(found)


def _derivative(field: Callable[..., np.ndarray], mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """∂v̇/∂v with ξ held, by fourth-order central differences."""
    return jacobian(lambda x: field(mixture, x, xi)[:-1], v, step=2e-3 * float(np.linalg.norm(v)))


def _printed_matrix(point: CriticalPoint) -> np.ndarray:
    """Eqns 72-74: θ₁ and its derivative at r₊* = μ·x̄₊ + ξ*, over powers of ‖μ‖."""
    mixture, mu = point.mixture, point.mu
    at = mixture.noises[0], mu @ mixture.centers[0] + point.xi, mixture.activation
    y, y_dot = theta1(*at), theory.theta1_slope(*at)
    common = point.orientation * mixture.weights[0] * np.linalg.norm(mixture.centers[0])
    beta1 = common * y / point.norm**2
    beta2 = common * (point.xi * y_dot - 2 * y) / point.norm**4
    return beta1 * np.eye(mu.size) + beta2 * np.outer(mu, mu)


def _matrix(point: CriticalPoint) -> np.ndarray:
    return point.linearised.matrix


def _nearby(point: CriticalPoint, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """A point v at distance γ‖μ‖ from μ, off its axis, and the raw field there."""
    v = point.mu + gamma * point.norm * ASIDE
    return v, raw_field(point.mixture, v, point.xi)[:-1]


# Tolerance: third-order terms at γ = 1e-3; a wrong C gives order 1
@check("thm3", QUADRATURE, _matrix, 0.05, printed=_printed_matrix, unit="order", over=points)
def order_of_the_remainder(matrix, point, _):
    """Order in γ of v̇ − C(μ)(μ − v), distance from 2, critical points of eight mixtures."""
    coarse, fine = (_nearby(point, gamma) for gamma in (1e-3, 1e-4))
    sizes = [np.linalg.norm(v_dot - matrix(point) @ (point.mu - v)) for v, v_dot in (coarse, fine)]
    return abs(np.log10(sizes[0] / sizes[1]) - 2)


# Tolerance: differences in the linear term, 1e-10, over a remainder of 1e-3
@check("thm3", QUADRATURE, lambda point, v: np.stack([point.mu, v - point.mu], axis=-1), 1e-6, unit="share")
@over(points)
@as_printed(lambda point, v: point.linearised.field(v)[:, None])
@rejects("remainder along μ alone", lambda point, v: point.mu[:, None])
def remainder_outside(basis, point, matrix):
    """Share of the remainder outside the directions allowed to it, in three dimensions."""
    v, v_dot = _nearby(point, 0.05)
    remainder = v_dot - matrix @ (point.mu - v)
    columns = basis(point, v)
    rest = remainder - columns @ np.linalg.lstsq(columns, remainder)[0]
    return np.linalg.norm(rest) / np.linalg.norm(remainder)


@check("thm3", ODE, theory.LinearisedFlow.solution, 1e-7, over=points)  # C by differences, as in eqns72-74
@rejects("time 1 % off", lambda flow, v0, t: flow.solution(v0, 1.01 * t))
def linear_solution(solution, point, matrix):
    """Solution of the linear flow from off the axis of μ, against v̇ = C(μ)(μ − v) with C by differences."""
    t, v0, flow = np.array([0.0, 0.3, 1.0]), point.mu + ASIDE, point.linearised
    [v] = solved(lambda v: (matrix @ (point.mu - v),), (v0,), t)
    return solution(flow, v0, t) - v, flow.field(v0) - matrix @ (point.mu - v0)


def _axes(point: CriticalPoint) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors along μ and across it."""
    along = point.mu / point.norm
    across = np.cross(along, ASIDE)
    return along, across / np.linalg.norm(across)


def points_with_rates(rng):
    """Every critical point with the rates at which offsets along and across μ shrink in the integrated raw field."""

    def rate(point, direction):
        offset = 1e-6 * point.norm
        start = (point.mu + offset * direction,)
        [v] = solved(lambda v: (raw_field(point.mixture, v, point.xi)[:-1],), start, [0.0, 0.5], rtol=1e-11)
        return -np.log(np.abs((v[-1] - point.mu) @ direction) / offset) / 0.5

    return [(point, np.array([rate(point, direction) for direction in _axes(point)])) for point, _ in cases(points)]


def _stable(point: CriticalPoint) -> bool:
    return point.linearised.stable


# Tolerance: offsets of 1e-6‖μ‖ leave second-order terms of that size, in rates up to 3; a wrong answer counts 1
@check("thm3-stability", ODE, (_matrix, _stable), 1e-4, unit="rate", over=points_with_rates)
@as_printed((_printed_matrix, _stable))
@rejects("C(μ) 1 % off", (scaled(_matrix).formula, _stable))
@rejects("only s_μ a₊ > 0 asked for", (_matrix, lambda point: point.orientation * point.mixture.weights[0] > 0))
def rates_near_the_point(claims, point, rates):
    """Eigenvalues of C(μ) along and across μ, and its test of stability, against rates in the integrated flow."""
    (matrix, stable), found = claims, point.linearised.eigenvalues[:2]
    along_and_across = [e @ matrix(point) @ e for e in _axes(point)]
    return along_and_across - rates, found - rates, float(stable(point) != (rates > 0).all())


@check("thm3-frozen", ODE, 0.0, printed=1.0, unit="distance")
@rejects("ξ learns at a hundredth of the rate of v", 0.01)
def distance_from_mu(bias_rate):
    """‖v − μ‖ at t = 50 from 1 % off, normal clusters, over the learning rate of ξ."""
    point, _ = cases(points)[0]

    def field(v, xi):
        flow = point.mixture.flow(0.0, {"v": v, "xi": xi})
        return flow["v"], bias_rate * flow["xi"]

    return np.linalg.norm(solved(field, (1.01 * point.mu, point.xi), [0.0, 50.0])[0][-1] - point.mu)


def settings(rng):
    """A distribution, v, x̄₊, ξ and the power p at which the identities of Eqns 67-69 are checked."""
    kinds = ((Gaussian(scale=0.8), 3), (StudentT(dof=3.0, scale=1.2), 2))
    return [(p, *rng.normal(size=(2, 3)), rng.uniform(-0.6, -0.2), power) for p, power in kinds]


def _eqn67(p, v, center, xi, power):
    norm, r = np.linalg.norm(v), v @ center + xi
    return (theory.theta1_slope(p, r) * center * norm**2 - power * v * theta1(p, r)) / norm ** (power + 2)


def _eqn68(p, v, center, xi, power):
    norm = np.linalg.norm(v)
    return (norm**2 * np.eye(v.size) - power * np.outer(v, v)) / norm ** (power + 2)


@check("eqns66-68", DIFFERENTIATION, (_eqn67, _eqn68), over=settings)
def gradients_of_eqns_67_and_68(gradients, p, v, center, xi, power):
    """Eqns 67 and 68 at p = 3 and 2 against differences."""
    by_67 = jacobian(lambda v: theta1(p, v @ center + xi) / np.linalg.norm(v) ** power, v)
    by_68 = jacobian(lambda v: v / np.linalg.norm(v) ** power, v)
    first, second = (gradient(p, v, center, xi, power) for gradient in gradients)
    return first - by_67, second - by_68


def _eqn69(p, v, center, xi, power, *, as_printed=False):
    norm, r = np.linalg.norm(v), v @ center + xi
    bracket = theory.theta2_slope(p, r) * center * norm**2 - power * v * theory.theta2(p, r)
    factor = norm * np.ones(v.size) if as_printed else v
    return (np.outer(factor, bracket) + theory.theta2(p, r) * norm**2 * np.eye(v.size)) / norm ** (power + 2)


@check("eqn69", DIFFERENTIATION, _eqn69, printed=lambda *case: _eqn69(*case, as_printed=True), over=settings)
def gradient_of_eqn_69(gradient, p, v, center, xi, power):
    """Eqn 69 at p = 3 and 2 against differences, ‖v‖ read as in every component."""
    exact = jacobian(lambda v: v * theory.theta2(p, v @ center + xi) / np.linalg.norm(v) ** power, v)
    return gradient(p, v, center, xi, power) - exact


def _smallest_singular_value(matrix: np.ndarray) -> float:
    return float(np.linalg.svd(matrix, compute_uv=False).min())


# Tolerance: what ≪ is taken to mean
@check("eqn71", QUADRATURE, _smallest_singular_value, 0.1, unit="ratio", over=points)
@as_printed(lambda matrix: float(np.abs(matrix).min()))
@rejects(*scaled(_smallest_singular_value, 0.01))
def remainder_over_linear_term(linear_term, point, matrix):
    """Remainder over the guaranteed linear term at γ = 0.01‖μ‖."""
    v, v_dot = _nearby(point, 0.01)
    guaranteed = linear_term(matrix) * np.linalg.norm(point.mu - v)
    remainder = float(np.linalg.norm(v_dot - matrix @ (point.mu - v)))
    return remainder / guaranteed if guaranteed > np.finfo(float).eps else np.inf


# Tolerance: fourth order in steps of 2e-3‖μ‖, with derivatives of 1e3 at the smallest ‖μ‖
@check("eqns72-74", DIFFERENTIATION, _matrix, 1e-7, printed=_printed_matrix, over=points)
def matrix_against_differences(matrix, point, exact):
    """C(μ) against differences of the field by quadrature, and the field at μ, equal and unequal noises."""
    return raw_field(point.mixture, point.mu, point.xi)[:-1], matrix(point) - exact


@check("eqns72-74", DIFFERENTIATION, _printed_matrix, 1e-7)  # fourth order in steps of 2e-3
def matrix_of_the_printed_flow(matrix):
    """Eqns 73-74 against differences of the field as printed, at its own critical point."""
    mixture = two_clusters(np.array([1.0, 0.0, 0.0]), a_minus=4.0, noise=Gaussian(dim=3))
    norm = optimize.brentq(lambda norm: printed_field(mixture, np.array([norm, 0, 0]), -1.0)[0], 0.2, 3.0, xtol=1e-14)
    point = CriticalPoint(mixture=mixture, xi=-1.0, norm=norm, orientation=1)
    return matrix(point) + _derivative(printed_field, mixture, point.mu, point.xi)


def rest_points_of_mixtures(_):
    """A rest point of each of three mixtures: three and four clusters, none at the origin, unequal noises, a leak.

    Mixtures without a rest point are passed over.
    """
    rng = np.random.default_rng(1)
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
        yield points[0]


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
