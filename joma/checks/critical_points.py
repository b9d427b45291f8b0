"""Lemmas 2 and 4, Eqns 42 to 59 and the signs of Section A.4: the field of a mixture, and where it vanishes.

Weights and bias are trained together here; Theorem 3, which freezes the bias, is in `theorem3`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.integrate import tanhsinh

from joma import theory
from joma.checks.check import Mutation, as_printed, check, over, rejects
from joma.checks.quadrature import jacobian, marginal_of, noises, raw_field, solved, two_slopes
from joma.checks.reference import DIFFERENTIATION, ENUMERATION, ODE, QUADRATURE, ROOT_FINDING
from joma.theory import Gaussian, Mixture, StudentT, critical_pairs, homogeneous, mean_activation, two_clusters

Point = tuple[Mixture, np.ndarray, float]
"""A mixture, v and ξ."""

ZERO = 1e-6  # an eigenvalue or a speed below this is zero but for the differences or the integrator
DISTANCES = (0.5, 2.0, 4.0)  # distances of the centers


def mixtures(rng: np.random.Generator) -> Iterator[Point]:
    """Three clusters with a distribution each, or one for all; ReLU, two slopes and a smooth activation; ‖v‖ ≠ 1."""
    kinds, leaky = noises(rng, 3), (two_slopes(rng), two_slopes(rng))
    noise_and_phi = ((kinds, theory.relu), (kinds[1], leaky[0]), (kinds[::-1], leaky[1]), (kinds, theory.softplus))
    for (noise, phi), norm in ((each, norm) for each in noise_and_phi for norm in (0.5, 2.5)):
        weights = rng.uniform(0.7, 1.6, 3) * [1, -1, 1]
        mixture = Mixture(centers=rng.normal(size=(3, 3)), weights=weights, noise=noise, activation=phi)
        v = rng.normal(size=3)
        yield mixture, norm * v / np.linalg.norm(v), rng.uniform(-0.8, -0.2)


def homogeneous_mixtures(rng: np.random.Generator) -> list[Point]:
    """Those of them whose activation has two slopes."""
    return [case for case in mixtures(rng) if case[0].activation.slopes is not None]


def printed_field(mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """Eqns 42, 43 and 50: Θ at r, over ‖v‖ and ‖v‖³."""
    norm = np.linalg.norm(v)
    total = np.zeros(v.size + 1)
    for center, weight, noise in zip(mixture.centers, mixture.weights, mixture.noises, strict=True):
        at = {"r": v @ center + xi, "psi": mixture.activation}
        pull, push = theory.gate_mass(noise, **at), theory.gate_moment(noise, **at)
        total += weight * np.append(pull * center / norm + push * v / norm**3, pull / norm)
    return total


def _field(mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    return np.append(*mixture.field(v, xi))


@check("lemma2", QUADRATURE, _field, printed=printed_field, over=mixtures)
def field_against_quadrature(field, *case):
    """Field of three clusters against quadrature of the marginal densities, with a smooth activation as well."""
    return field(*case) - raw_field(*case)


@check("lemma2-linear", QUADRATURE, lambda mix: np.append(mix.weights @ mix.centers, mix.weights.sum()), over=mixtures)
def constant_field(field, mixture, *at):
    """Constant field of a linear activation against quadrature, and of the library, eight mixtures."""
    mixture = replace(mixture, activation=theory.linear)
    return field(mixture) - raw_field(mixture, *at), field(mixture) - _field(mixture, *at)


# Tolerance: rounding of sums of order one
@check("eqns44-47", ENUMERATION, lambda g, own: float(g[own].mean() * own.mean()), 1e-14)
@rejects("a_j without the probability of the cluster", lambda g, own: float(g[own].mean()))
def split_into_clusters(weight):
    """Split by clusters against the plain average over 60 samples of 3 clusters."""
    rng = np.random.default_rng(44)
    cluster = rng.choice(3, size=60, p=[0.5, 0.3, 0.2])
    x, g = rng.normal(size=(60, 4)) + cluster[:, None], np.array([1.0, -0.7, 0.4])[cluster]
    active = (x @ np.array([0.5, -0.3, 0.2, 0.4]) - 0.5 > 0)[:, None] * x
    split = sum(weight(g, cluster == j) * active[cluster == j].mean(axis=0) for j in range(3))
    return split - (g[:, None] * active).mean(axis=0)


def _printed_power(mixture: Mixture, v: np.ndarray, xi: float) -> float:
    """Eqn 53: Σ_j a_j F(r_j) / ‖v‖."""
    terms = zip(mixture.centers @ v + xi, mixture.weights, mixture.noises, strict=True)
    return sum(a * float(mean_activation(p, r, mixture.activation)) for r, a, p in terms) / np.linalg.norm(v)


@check("eqn50", QUADRATURE, Mixture.potential, printed=_printed_power, over=homogeneous_mixtures)
def power_of_the_field(power, mixture, v, xi):
    """v·v̇ + ξ ξ̇ against quadrature of the field."""
    return abs(float(power(mixture, v, xi)) - float(np.append(v, xi) @ raw_field(mixture, v, xi)))


# Tolerance: differences of fourth order in steps of 1e-3
@check("eqn50", DIFFERENTIATION, Mixture.potential, 1e-8, over=mixtures)
def gradient_of_the_potential(potential, mixture, v, xi):
    """Gradient of the potential by differences against quadrature of the field, with a smooth activation as well."""
    gradient = jacobian(lambda x: potential(mixture, x[:-1], x[-1]), np.append(v, xi))
    return gradient - raw_field(mixture, v, xi)


def _derivative(mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """Derivative of (v̇, ξ̇) by (v, ξ), by differences of the raw field."""
    return jacobian(lambda x: raw_field(mixture, x[:-1], float(x[-1])), np.append(v, xi))


# Tolerance: differences of fourth order in steps of 1e-3, near the edge of a ball
@check("eqn50", DIFFERENTIATION, Mixture.jacobian, 1e-7, over=homogeneous_mixtures)
def derivative_of_the_field(matrix, *case):
    """Jacobian of (v̇, ξ̇) against differences of the field by quadrature."""
    return matrix(*case) - _derivative(*case)


def _random_pair(rng: np.random.Generator, distance: float, noise: Any) -> Mixture:
    """Two clusters at a distance, neither at the origin, nor along an axis, with a₊ ≠ 1."""
    x_minus, way = rng.normal(size=(2, 2))
    x_plus = x_minus + distance * way / np.linalg.norm(way)
    return two_clusters(x_plus, x_minus=x_minus, a_plus=rng.uniform(1.3, 1.8), noise=noise)


def _stationary(mixture: Mixture, distance: float, norm: float = 0.6) -> Point:
    """A stationary (v, ξ) with ‖v‖ given, and the ratio of weights it needs: root finding in all unknowns."""
    way = (mixture.centers[0] - mixture.centers[1]) / distance

    def at(unknown):
        weights = mixture.weights[0] * np.array([1, -np.exp(unknown[3])])
        return replace(mixture, weights=weights), unknown[:2], float(unknown[2])

    v = norm * (0.98 * way + 0.1 * way[::-1] * [-1, 1])
    start = np.array([*v, -0.7 * norm - v @ mixture.centers[1], np.log(2 * distance + 1)])
    solution = optimize.root(lambda x: np.append(raw_field(*at(x)), x[:2] @ x[:2] - norm**2), start, tol=1e-12)
    assert solution.success
    return at(solution.x)


def stationary_points(rng):
    """Stationary points at three distances of the centers, t₃ of width 1."""
    return [(D, _stationary(_random_pair(rng, D, StudentT(dim=2, dof=3.0)), D)) for D in DISTANCES]


def _imbalance(mixture: Any, distances: np.ndarray) -> float:
    return float(mixture.weights @ mean_activation(mixture.noise, distances))


@check("lemma4", ROOT_FINDING, lambda mix, v, xi: _imbalance(mix, mix.distances(v, xi)), unit="residual")
@over(stationary_points)
@as_printed(lambda mix, v, xi: _imbalance(mix, mix.centers @ v + xi))
@rejects("distances 1 % off", lambda mix, v, xi: _imbalance(mix, 1.01 * mix.distances(v, xi)))
def imbalance_at_rest(condition, distance, point):
    """Σ_j a_j F at stationary points with ‖v‖ = 0.6 that root finding gives, D = 0.5, 2 and 4, x̄₋ ≠ 0."""
    return abs(condition(*point))


def pairs_of_clusters(rng):
    """Two clusters off the origin: of one t, of t and a wider t, and of two normals."""
    t, wider = StudentT(dim=2, dof=2.6, scale=1.2), StudentT(dim=2, dof=3.5, scale=1.7)
    unequal = ((t, t), (t, wider), (wider, t), (Gaussian(dim=2), Gaussian(dim=2, scale=2.0)))
    return [(D, _random_pair(rng, D, noise)) for D in (0.8, 2.2) for noise in unequal]


def _on_the_ray(mixture: Mixture, distance: float, *, ratio_factor: float = 1.0) -> list[Point]:
    """Points of all rays, found anew for the forced weights and the centers of the mixture."""
    points = []
    for pair in critical_pairs(mixture.noise, distance):
        forced = theory.forced_ray(mixture, pair).mixture
        off = replace(forced, weights=forced.weights * [1, ratio_factor])
        rays = [ray for ray in theory.critical_rays(forced) if np.isclose(ray.pair.s_minus, pair.s_minus, rtol=1e-9)]
        points += [(off, *ray.point(0.7)) for ray in rays]
    return points


def _scalar_equations_alone(mixture: Mixture, distance: float) -> list[Point]:
    """Both equalities of Eqn 56 hold, at ‖v‖ = 1, but v is tilted: the centers lie 0.6 D apart along it."""
    pair = critical_pairs(mixture.noise, 0.6 * distance)[0]
    along = (mixture.centers[0] - mixture.centers[1]) / distance
    v = pair.orientation * 0.6 * along + 0.8 * along[::-1] * [-1, 1]
    forced = replace(mixture, weights=mixture.weights[0] * np.array([1, -pair.ratio]))
    return [(forced, v, pair.s_minus - float(v @ mixture.centers[1]))]


# Tolerance: quadrature of 1e-12 times weights up to 40
@check("eqn56", QUADRATURE, _on_the_ray, 1e-9, unit="speed", over=pairs_of_clusters)
@as_printed(_scalar_equations_alone)
@rejects("ratio of the weights 1 % off", lambda *case: _on_the_ray(*case, ratio_factor=1.01))
def speed_where_critical(points, distance, mixture):
    """Speed of the raw field where the conditions hold, two distances, equal and unequal noises, x̄₋ ≠ 0."""
    return max((float(np.linalg.norm(raw_field(*point))) for point in points(mixture, distance)), default=np.inf)


# Tolerance: differences of fourth order in steps of 1e-3
@check("eqn56", DIFFERENTIATION, theory.CriticalRay.eigenvalues, 1e-7, over=pairs_of_clusters)
def eigenvalues_on_the_ray(eigenvalues, distance, mixture):
    """Eigenvalues of the joint flow on its rays, and whether they attract, against differences of the field."""
    for pair in critical_pairs(mixture.noise, distance):
        ray = theory.forced_ray(mixture, pair)
        exact = np.sort(np.linalg.eigvals(_derivative(ray.mixture, *ray.point(1.3))).real)
        yield eigenvalues(ray, 1.3) - exact
        yield float(((exact < -ZERO).sum() == mixture.dim) != ray.attracts())


LOG_CONCAVE = (Gaussian(scale=1.4), *(theory.UniformBall(dim=n, radius=0.8) for n in (1, 2, 5, 20)))
HEAVY = tuple(StudentT(dof=dof, scale=1.3) for dof in (1.5, 2.0, 3.0, 5.0, 10.0))
DIGITS = 1e-15  # smallest share of active samples at which F, a difference, still has digits


def monotone_ratios(rng):
    """Whether F/θ₁ increases on a grid, from E[y; y > −s] and P(y > −s) by scipy.stats; ReLU and two leaks."""
    relus = [(noise, theory.relu) for noise in LOG_CONCAVE + HEAVY]
    for noise, phi in [*relus, (HEAVY[2], homogeneous(0.05, 1.2)), (HEAVY[2], homogeneous(0.005, 1.2))]:
        (c_minus, c_plus), marginal = phi.require_homogeneous("This check"), marginal_of(noise)
        low, high = marginal.support()
        s = np.linspace(max(0.97 * low, -12.0), min(1.5 * high, 12.0), 961)
        s = s[marginal.sf(-s) > DIGITS]
        first = tanhsinh(lambda y, p=marginal.pdf: y * p(y), np.clip(np.abs(s), low, high), high, rtol=1e-12).integral
        theta = c_minus + (c_plus - c_minus) * marginal.sf(-s)
        yield noise, phi, bool((np.diff(s + (c_plus - c_minus) * first / theta) > 0).all())


@check("existence", ENUMERATION, lambda noise, phi: theory.lowest_slope(noise, phi) < 0, unit="wrong answers")
@over(monotone_ratios)
@as_printed(lambda noise, phi: True)
@rejects("Eqn 58's sufficient condition taken as necessary", lambda noise, phi: theory.central_product(noise) > 1 / 4)
def existence_of_rays(exists, noise, phi, is_monotone):
    """Existence by the slope of F/θ₁ against its values on a grid, 10 distributions and two leaky activations."""
    return exists(noise, phi) == is_monotone


@cache
def _late_growth(a_minus: float) -> tuple[Mixture, float]:
    """Normal clusters without a critical point, with the late slope of ‖(v, ξ)‖ along the integrated joint flow."""
    x_plus, x_minus, noise = np.array([1.6, -1.1]), np.array([-0.2, 0.3]), Gaussian(dim=2, scale=0.9)
    mixture = two_clusters(x_plus, x_minus=x_minus, a_plus=1.2, a_minus=a_minus, noise=noise)
    t, options = [0.0, 200.0, 400.0], {"rtol": 1e-9, "atol": 1e-9}
    [y] = solved(lambda y: (raw_field(mixture, y[:-1], float(y[-1])),), ([0.3, 0.2, 0.1],), t, **options)
    return mixture, float(np.diff(np.linalg.norm(y, axis=1))[-1]) / 200.0


# Tolerance: the direction still turns a little at t = 400
@check("existence", ODE, lambda mixture: mixture.growth().rate, 1e-6, unit="rate", over=(0.7, 1.5, 4.0))
def growth_without_critical_point(rate, a_minus):
    """Growth of ‖(v, ξ)‖ for normal clusters, a₋ = 0.7, 1.5 and 4, against the integrated raw field."""
    mixture, slope = _late_growth(a_minus)
    return abs(slope - rate(mixture))


@check("existence", QUADRATURE, lambda distance: float(np.exp(distance)), unit="speed", over=DISTANCES)
def speed_of_laplace_clusters(ratio, distance):
    """Speed of the field of Laplace clusters, both centers on the inactive side, D = 0.5, 2 and 4."""
    # A unit v along the line of the centers, 0 and D; s₊ = −1 and s₋ = −1 − D; a₊ = 1.
    law, edges = stats.laplace(), np.array([1.0, 1.0 + distance])
    mass, first = (tanhsinh(lambda y, k=k: law.pdf(y) * y**k, edges, np.inf, rtol=1e-13).integral for k in (0, 1))
    a_minus = ratio(distance)
    return np.hypot(mass[0] * distance + first[0] - a_minus * first[1], mass[0] - a_minus * mass[1])


@cache
def _ratios_on_lines(dof: float) -> tuple[np.ndarray, np.ndarray]:
    """Lines through the origin that meet the curve G twice: the two abscissas y₁ < y₂ = θ₁, for Student's t."""
    marginal = stats.t(dof)

    def slope(s):  # G(y)/y at y = θ₁(s)
        first = tanhsinh(lambda y: y * marginal.pdf(y), abs(s), np.inf, rtol=1e-12).integral
        return float(s + first / marginal.cdf(s))

    valley = optimize.minimize_scalar(slope, bounds=(-5, 5), method="bounded").x
    rights = valley + np.geomspace(0.05, 150, 12)
    lefts = [optimize.brentq(lambda s, k=k: slope(s) - k, -1e4, valley) for k in map(slope, rights)]
    return marginal.cdf(lefts), marginal.cdf(rights)


BY_1000 = Mutation("ratios bounded by 1000", 1e3)
UPPER = "Ratios of t₁.₅ whose line meets G twice at y ≥ ½, outside [1/2, 2]"


@check("eqn59", ENUMERATION, np.inf, printed=2.0, mutation=BY_1000, unit="ratios outside", over=((3.0, 0.0),))
@check("eqn59", ENUMERATION, 2.0, unit="ratios outside", over=((1.5, 0.5),), name=UPPER)
@rejects("ratios bounded by 1.1", 1.1)
def ratios_outside(bound, dof, lowest):
    """Ratios of t₃ over 12 lines, from nearly tangent to steep, outside the intervals."""
    y1, y2 = _ratios_on_lines(dof)
    ratios = (y2 / y1)[y1 >= lowest]
    return ((ratios <= 1) | (ratios >= bound)).sum() if ratios.size else np.inf


WIDE = StudentT(dim=2, dof=3.0, scale=1.4)


@check("a4-signs", ROOT_FINDING, lambda D: D > theory.straddling_distance(WIDE), 0.0, unit="wrong answers")
@over(1.4 * np.array([0.3, 0.8, 0.91, 0.95, 1.0, 2.0]))
@as_printed(lambda D: True)
@rejects("threshold 5 % off", lambda D: D > 1.05 * theory.straddling_distance(WIDE))
def signs_at_rest(straddles, distance):
    """Signs of s₊ and s₋ at six distances around D₀, against stationary points by root finding."""
    found, v, xi = _stationary(two_clusters(np.array([distance, 0.0]), noise=WIDE), distance)
    return straddles(distance) != bool(v @ found.centers[0] + xi > 0 > xi)


@check("a4-signs", ODE, lambda xi: xi != 0, 0.0, unit="wrong answers", over=(-2.0, -1.0, 1.0, 2.0))
@as_printed(lambda xi: xi < 0)
@rejects("positive biases only", lambda xi: xi > 0)
def signs_of_frozen_biases(attracts, xi):
    """Frozen biases −2, −1, 1, 2 at which the weights come to rest away from zero, normal clusters."""
    mixture = two_clusters(np.array([0.9, 0.5]), a_plus=1.2, a_minus=4.5, noise=Gaussian(dim=2, scale=0.9))
    start, end = abs(xi) * np.array([0.6, 0.2]), abs(xi) * 60.0  # the flow has the scale of ξ, in v and in time
    v = theory.integrate(mixture.frozen_flow(xi), {"v": start}, np.array([0.0, end]))["v"][-1]
    at_rest = np.linalg.norm(raw_field(mixture, v, xi)[:-1]) < ZERO
    return attracts(xi) != bool(at_rest and np.linalg.norm(v) > np.sqrt(ZERO))
