"""Lemmas 2 and 4, Eqns 42 to 59 and the signs of Section A.4: the field of a mixture, and where it vanishes.

Weights and bias are trained together here; Theorem 3, which freezes the bias, is in `theorem3`.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.integrate import tanhsinh

from joma.checks.check import Reference, as_printed, check, over, rejects, scaled
from joma.checks.quadrature import jacobian, marginal_of, noises, raw_field, slopes_of, two_slopes
from joma.theory.activations import Activation, homogeneous, linear, relu, softplus
from joma.theory.critical_points import (
    CriticalRay,
    critical_pairs,
    critical_rays,
    forced_ray,
    lowest_slope,
    straddling_distance,
)
from joma.theory.hyperplane import central_product, gate_mass, gate_moment, mean_activation
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, Isotropic, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters

Point = tuple[Mixture, np.ndarray, float]
"""A mixture, v and ξ."""

NUM_SAMPLES = 30_000
"""Samples of each cluster."""
ZERO = 1e-6
"""An eigenvalue or a speed below this is zero but for the differences or the integrator."""
DISTANCES = (0.5, 2.0, 4.0)
"""Distances of the centers."""


# Lemma 2


def mixtures(rng: np.random.Generator) -> list[Point]:
    """Three clusters with a distribution each, or one for all; ReLU, two slopes and a smooth activation; ‖v‖ ≠ 1."""
    kinds = noises(rng, 3)
    cases = []
    for noise, activation in (
        (kinds, relu),
        (kinds[1], two_slopes(rng)),
        (kinds[::-1], two_slopes(rng)),
        (kinds, softplus),
    ):
        for norm in (0.5, 2.5):
            mixture = Mixture(
                centers=rng.normal(size=(3, 3)),
                weights=rng.uniform(0.7, 1.6, 3) * [1, -1, 1],
                noise=noise,
                activation=activation,
            )
            v = rng.normal(size=3)
            cases.append((mixture, norm * v / np.linalg.norm(v), rng.uniform(-0.8, -0.2)))
    return cases


def homogeneous_mixtures(rng: np.random.Generator) -> list[Point]:
    """Those of them whose activation has two slopes."""
    return [case for case in mixtures(rng) if case[0].activation.slopes is not None]


def printed_field(mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """Eqns 42, 43 and 50: Θ at r, over ‖v‖ and ‖v‖³."""
    norm = np.linalg.norm(v)
    total = np.zeros(v.size + 1)
    for center, weight, noise in zip(mixture.centers, mixture.weights, mixture.noises, strict=True):
        pull, push = (gate(noise, v @ center + xi, psi=mixture.activation) for gate in (gate_mass, gate_moment))
        total += weight * np.append(pull * center / norm + push * v / norm**3, pull / norm)
    return total


def _field(mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    return np.append(*mixture.field(v, xi))


@check("lemma2", Reference.MONTE_CARLO, _field, printed=printed_field, over=homogeneous_mixtures)
@rejects(*scaled(_field, 1.1))
def field_against_samples(field, mixture, v, xi):
    """Field of three clusters with a distribution each against samples, six mixtures with ‖v‖ = 0.5 and 2.5."""
    rng = np.random.default_rng(2310_00535)
    terms = np.zeros((NUM_SAMPLES, v.size + 1))
    for center, weight, noise in zip(mixture.centers, mixture.weights, mixture.noises, strict=True):
        x = np.c_[center + noise.sample(rng, NUM_SAMPLES), np.ones(NUM_SAMPLES)]
        terms += weight * mixture.activation.derivative(x @ np.append(v, xi))[:, None] * x
    error = terms.std(axis=0, ddof=1) / np.sqrt(NUM_SAMPLES)
    return np.abs((field(mixture, v, xi) - terms.mean(axis=0)) / error).max()


@check("lemma2", Reference.QUADRATURE, _field, printed=printed_field, over=mixtures)
def field_against_quadrature(field, *case):
    """Field of three clusters against quadrature of the marginal densities, with a smooth activation as well."""
    return np.abs(field(*case) - raw_field(*case)).max()


def _constant_field(mixture: Mixture) -> np.ndarray:
    return np.append(mixture.weights @ mixture.centers, mixture.weights.sum())


@check("lemma2-linear", Reference.QUADRATURE, _constant_field, over=mixtures)
def constant_field(field, mixture, v, xi):
    """Constant field of a linear activation against quadrature, and of the library, eight mixtures."""
    made_linear = replace(mixture, activation=linear)
    claimed = field(made_linear)
    return max(float(np.abs(claimed - found(made_linear, v, xi)).max()) for found in (raw_field, _field))


def _cluster_weight(g: np.ndarray, cluster: np.ndarray, j: int) -> float:
    return float(g[cluster == j].mean() * (cluster == j).mean())


@check("eqns44-47", Reference.ENUMERATION, _cluster_weight, 1e-14)  # rounding of sums of order one
@rejects("a_j without the probability of the cluster", lambda g, cluster, j: float(g[cluster == j].mean()))
def split_into_clusters(weight):
    """Split by clusters against the plain average over 60 samples of 3 clusters."""
    rng = np.random.default_rng(44)
    cluster = rng.choice(3, size=60, p=[0.5, 0.3, 0.2])
    x, g = rng.normal(size=(60, 4)) + cluster[:, None], np.array([1.0, -0.7, 0.4])[cluster]
    active = (x @ np.array([0.5, -0.3, 0.2, 0.4]) - 0.5 > 0)[:, None] * x
    split = sum(weight(g, cluster, j) * active[cluster == j].mean(axis=0) for j in range(3))
    return np.abs(split - (g[:, None] * active).mean(axis=0)).max()


def _printed_power(mixture: Mixture, v: np.ndarray, xi: float) -> float:
    """Eqn 53: Σ_j a_j F(r_j) / ‖v‖."""
    terms = zip(mixture.centers @ v + xi, mixture.weights, mixture.noises, strict=True)
    return sum(a * float(mean_activation(p, r, mixture.activation)) for r, a, p in terms) / np.linalg.norm(v)


@check("eqn50", Reference.QUADRATURE, Mixture.potential, printed=_printed_power, over=homogeneous_mixtures)
def power_of_the_field(power, mixture, v, xi):
    """v·v̇ + ξ ξ̇ against quadrature of the field."""
    return abs(float(power(mixture, v, xi)) - float(np.append(v, xi) @ raw_field(mixture, v, xi)))


# Tolerance: differences of fourth order in steps of 1e-3
@check("eqn50", Reference.DIFFERENTIATION, Mixture.potential, 1e-8, over=mixtures)
def gradient_of_the_potential(potential, mixture, v, xi):
    """Gradient of the potential by differences against quadrature of the field, with a smooth activation as well."""
    gradient = jacobian(lambda x: np.array([potential(mixture, x[:-1], x[-1])]), np.append(v, xi))[0]
    return np.abs(gradient - raw_field(mixture, v, xi)).max()


def _derivative(mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """Derivative of (v̇, ξ̇) by (v, ξ), by differences of the raw field."""
    return jacobian(lambda x: raw_field(mixture, x[:-1], float(x[-1])), np.append(v, xi))


# Tolerance: differences of fourth order in steps of 1e-3, near the edge of a ball
@check("eqn50", Reference.DIFFERENTIATION, Mixture.jacobian, 1e-7, over=homogeneous_mixtures)
def derivative_of_the_field(matrix, *case):
    """Jacobian of (v̇, ξ̇) against differences of the field by quadrature."""
    return np.abs(matrix(*case) - _derivative(*case)).max()


# Lemma 4 and Eqn 56: two clusters of Student's t


def _random_pair(rng: np.random.Generator, distance: float, noise: Any) -> Mixture:
    """Two clusters at a distance, neither at the origin, nor along an axis, with a₊ ≠ 1."""
    x_minus, way = rng.normal(size=(2, 2))
    x_plus = x_minus + distance * way / np.linalg.norm(way)
    return two_clusters(x_plus, x_minus=x_minus, a_plus=rng.uniform(1.3, 1.8), noise=noise)


def _stationary(mixture: Mixture, distance: float, norm: float = 0.6) -> Point:
    """A stationary (v, ξ) with ‖v‖ given, and the ratio of weights it needs: root finding in all unknowns."""
    a_plus = mixture.weights[0]
    way = (mixture.centers[0] - mixture.centers[1]) / distance

    def at(unknown: np.ndarray) -> Point:
        weights = np.array([a_plus, -a_plus * np.exp(unknown[3])])
        return replace(mixture, weights=weights), unknown[:2], float(unknown[2])

    def residual(unknown: np.ndarray) -> np.ndarray:
        mixture, v, xi = at(unknown)
        return np.append(raw_field(mixture, v, xi), v @ v - norm**2)

    v = norm * (0.98 * way + 0.1 * way[::-1] * [-1, 1])
    start = np.array([*v, -0.7 * norm - v @ mixture.centers[1], np.log(2 * distance + 1)])
    solution = optimize.root(residual, start, tol=1e-12)
    assert solution.success
    return at(solution.x)


def stationary_points(rng: np.random.Generator) -> list[tuple[float, Point]]:
    """Stationary points at three distances of the centers, t₃ of width 1."""
    return [(D, _stationary(_random_pair(rng, D, StudentT(dim=2, dof=3.0)), D)) for D in DISTANCES]


@check(
    "lemma4",
    Reference.ROOT_FINDING,
    lambda mixture, v, xi: mixture.weights @ mean_activation(mixture.noise, mixture.distances(v, xi)),
    unit="residual",
)
@over(stationary_points)
@as_printed(lambda mixture, v, xi: mixture.weights @ mean_activation(mixture.noise, mixture.centers @ v + xi))
@rejects(
    "distances 1 % off",
    lambda mixture, v, xi: mixture.weights @ mean_activation(mixture.noise, 1.01 * mixture.distances(v, xi)),
)
def imbalance_at_rest(condition, distance, point):
    """Σ_j a_j F at stationary points with ‖v‖ = 0.6 that root finding gives, D = 0.5, 2 and 4, x̄₋ ≠ 0."""
    return abs(condition(*point))


def pairs_of_clusters(rng: np.random.Generator) -> list[tuple[float, Mixture]]:
    """Two clusters off the origin: of one t, of t and a wider t, and of two normals."""
    t, wider = StudentT(dim=2, dof=2.6, scale=1.2), StudentT(dim=2, dof=3.5, scale=1.7)
    unequal = ((t, t), (t, wider), (wider, t), (Gaussian(dim=2), Gaussian(dim=2, scale=2.0)))
    return [(D, _random_pair(rng, D, noise)) for D in (0.8, 2.2) for noise in unequal]


def _on_the_ray(mixture: Mixture, distance: float, *, ratio_factor: float = 1.0) -> list[Point]:
    """Points of all rays, found anew for the forced weights and the centers of the mixture."""
    points = []
    for pair in critical_pairs(mixture.noise, distance):
        forced = forced_ray(mixture, pair).mixture
        off = replace(forced, weights=forced.weights * [1, ratio_factor])
        rays = [ray for ray in critical_rays(forced) if np.isclose(ray.pair.s_minus, pair.s_minus, rtol=1e-9)]
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
@check("eqn56", Reference.QUADRATURE, _on_the_ray, 1e-9, unit="speed", over=pairs_of_clusters)
@as_printed(_scalar_equations_alone)
@rejects("ratio of the weights 1 % off", lambda *case: _on_the_ray(*case, ratio_factor=1.01))
def speed_where_critical(points, distance, mixture):
    """Speed of the raw field where the conditions hold, two distances, equal and unequal noises, x̄₋ ≠ 0."""
    return max((float(np.linalg.norm(raw_field(*point))) for point in points(mixture, distance)), default=np.inf)


@check(
    "eqn56",
    Reference.ROOT_FINDING,
    lambda noise, distance: critical_pairs(noise, distance)[0].ratio,
    unit="relative error",
)
@over(stationary_points)
def forced_ratio(ratio, distance, point):
    """Forced ratio a₋/a₊ against root finding on the raw field in all unknowns."""
    mixture = point[0]
    return abs(ratio(mixture.noises[0], distance) * mixture.weights[0] / -mixture.weights[1] - 1)


# Tolerance: differences of fourth order in steps of 1e-3
@check("eqn56", Reference.DIFFERENTIATION, CriticalRay.eigenvalues, 1e-7, over=pairs_of_clusters)
def eigenvalues_on_the_ray(eigenvalues, distance, mixture):
    """Eigenvalues of the joint flow on its rays, and whether they attract, against differences of the field."""
    worst = 0.0
    for pair in critical_pairs(mixture.noise, distance):
        ray = forced_ray(mixture, pair)
        v, xi = ray.point(1.3)
        exact = np.sort(np.linalg.eigvals(_derivative(ray.mixture, v, xi)).real)
        attracts = (exact < -ZERO).sum() == mixture.dim
        worst = max(worst, float(np.abs(eigenvalues(ray, 1.3) - exact).max()), float(attracts != ray.attracts()))
    return worst


# Existence

LOG_CONCAVE = (Gaussian(scale=1.4), *(UniformBall(dim=n, radius=0.8) for n in (1, 2, 5, 20)))
HEAVY = tuple(StudentT(dof=dof, scale=1.3) for dof in (1.5, 2.0, 3.0, 5.0, 10.0))
DIGITS = 1e-15
"""Smallest share of active samples at which F, a difference, still has digits."""


def monotone_ratios(rng: np.random.Generator) -> list[tuple[Isotropic, Activation, bool]]:
    """Whether F/θ₁ increases on a grid, from E[y; y > −s] and P(y > −s) by scipy.stats; two leaks besides ReLU."""
    t = StudentT(dof=3.0, scale=1.3)
    leaks = [(t, homogeneous(0.05, 1.2)), (t, homogeneous(0.005, 1.2))]
    cases = []
    for noise, phi in [*((noise, relu) for noise in LOG_CONCAVE + HEAVY), *leaks]:
        c_minus, c_plus = slopes_of(phi)
        marginal = marginal_of(noise)
        low, high = marginal.support()
        s = np.linspace(max(0.97 * low, -12.0), min(1.5 * high, 12.0), 961)
        s = s[marginal.sf(-s) > DIGITS]
        first = tanhsinh(lambda y, p=marginal.pdf: y * p(y), np.clip(np.abs(s), low, high), high, rtol=1e-12).integral
        theta = c_minus + (c_plus - c_minus) * marginal.sf(-s)
        cases.append((noise, phi, bool((np.diff(s + (c_plus - c_minus) * first / theta) > 0).all())))
    return cases


@check("existence", Reference.ENUMERATION, lambda noise, phi: lowest_slope(noise, phi) < 0, unit="wrong answers")
@over(monotone_ratios)
@as_printed(lambda noise, phi: True)
@rejects("Eqn 58's sufficient condition taken as necessary", lambda noise, phi: central_product(noise) > 1 / 4)
def existence_of_rays(exists, noise, phi, is_monotone):
    """Existence by the slope of F/θ₁ against its values on a grid, 10 distributions and two leaky activations."""
    return exists(noise, phi) == is_monotone


def escaping_mixtures(rng: np.random.Generator) -> list[tuple[Mixture, float]]:
    """Normal clusters without a critical point, with the late slope of ‖(v, ξ)‖ along the integrated joint flow."""
    cases = []
    for a_minus in (0.7, 1.5, 4.0):
        mixture = two_clusters(
            np.array([1.6, -1.1]),
            x_minus=np.array([-0.2, 0.3]),
            a_plus=1.2,
            a_minus=a_minus,
            noise=Gaussian(dim=2, scale=0.9),
        )

        def field(_: float, state: dict[str, np.ndarray], mixture: Mixture = mixture) -> dict[str, np.ndarray]:
            return {"y": raw_field(mixture, state["y"][:-1], float(state["y"][-1]))}

        start, t = {"y": np.array([0.3, 0.2, 0.1])}, np.array([0.0, 200.0, 400.0])
        y = integrate(field, start, t, rtol=1e-9, atol=1e-9)["y"]
        cases.append((mixture, float(np.diff(np.linalg.norm(y, axis=1))[-1]) / 200.0))
    return cases


# Tolerance: the direction still turns a little at t = 400
@check("existence", Reference.ODE, lambda mixture: mixture.growth().rate, 1e-6, unit="rate", over=escaping_mixtures)
def growth_without_critical_point(rate, mixture, slope):
    """Growth of ‖(v, ξ)‖ for normal clusters, a₋ = 0.7, 1.5 and 4, against the integrated raw field."""
    return abs(slope - rate(mixture))


@check("existence", Reference.QUADRATURE, lambda distance: float(np.exp(distance)), unit="speed", over=DISTANCES)
def speed_of_laplace_clusters(ratio, distance):
    """Speed of the field of Laplace clusters, both centers behind the hyperplane, D = 0.5, 2 and 4."""
    # A unit v along the line of the centers, 0 and D; s₊ = −1 and s₋ = −1 − D; a₊ = 1.
    law, edges = stats.laplace(), np.array([1.0, 1.0 + distance])
    mass, first = (tanhsinh(lambda y, k=k: law.pdf(y) * y**k, edges, np.inf, rtol=1e-13).integral for k in (0, 1))
    a_minus = ratio(distance)
    v_dot = mass[0] * distance + first[0] - a_minus * first[1]
    return np.hypot(v_dot, mass[0] - a_minus * mass[1])


# Eqn 59


@cache
def _ratios_on_lines(dof: float) -> tuple[np.ndarray, np.ndarray]:
    """Lines through the origin that meet the curve G twice: the two abscissas y₁ < y₂ = θ₁, for Student's t."""
    marginal = stats.t(dof)

    def slope(s: float) -> float:  # G(y)/y at y = θ₁(s)
        first = tanhsinh(lambda y: y * marginal.pdf(y), abs(s), np.inf, rtol=1e-12).integral
        return float(s + first / marginal.cdf(s))

    valley = optimize.minimize_scalar(slope, bounds=(-5, 5), method="bounded")
    found = []
    for right in valley.x + np.geomspace(0.05, 150, 12):
        k = slope(right)
        left = optimize.brentq(lambda s, k=k: slope(s) - k, -1e4, valley.x)
        found.append(marginal.cdf([left, right]))
    y1, y2 = np.array(found).T
    return y1, y2


def _outside(ratios: np.ndarray, intervals: tuple[tuple[float, float], ...]) -> float:
    inside = [(low < ratios) & (ratios < high) for low, high in intervals]
    return float((~np.any(inside, axis=0)).sum())


@check("eqn59", Reference.ENUMERATION, ((0.0, 1.0), (1.0, np.inf)), unit="ratios outside")
@as_printed(((0.5, 1.0), (1.0, 2.0)))
@rejects("ratios bounded by 1000", ((1e-3, 1.0), (1.0, 1e3)))
def ratios_outside(intervals):
    """Ratios of t₃ over 12 lines, from nearly tangent to steep, outside the intervals."""
    y1, y2 = _ratios_on_lines(3.0)
    return _outside(np.concatenate([y1 / y2, y2 / y1]), intervals)


@check("eqn59", Reference.ENUMERATION, ((0.5, 1.0), (1.0, 2.0)), unit="ratios outside")
@rejects("ratios bounded by 1.1", ((1 / 1.1, 1.0), (1.0, 1.1)))
def upper_ratios_outside(intervals):
    """Ratios of t₁.₅ whose line meets G twice at y ≥ ½, outside the intervals."""
    y1, y2 = _ratios_on_lines(1.5)
    upper = y1 >= 1 / 2
    assert upper.any()
    return _outside(np.concatenate([y1 / y2, y2 / y1])[np.tile(upper, 2)], intervals)


# Signs of Section A.4


def near_the_threshold(rng: np.random.Generator) -> list[tuple[Isotropic, float, bool]]:
    """Distances around D₀ and whether s₊ > 0 > s₋ at a stationary point that root finding gives, t₃ of width 1.4."""
    noise, width = StudentT(dim=2, dof=3.0, scale=1.4), 1.4
    cases: list[tuple[Isotropic, float, bool]] = []
    for distance in width * np.array([0.3, 0.8, 0.91, 0.95, 1.0, 2.0]):
        mixture = two_clusters(np.array([distance, 0.0]), noise=noise)
        found, v, xi = _stationary(mixture, distance)
        cases.append((noise, distance, bool(v @ found.centers[0] + xi > 0 > xi)))
    return cases


@check(
    "a4-signs",
    Reference.ROOT_FINDING,
    lambda noise, distance: distance > straddling_distance(noise),
    0.0,
    unit="wrong answers",
)
@over(near_the_threshold)
@as_printed(lambda noise, distance: True)
@rejects("threshold 5 % off", lambda noise, distance: distance > 1.05 * straddling_distance(noise))
def signs_at_rest(straddles, noise, distance, found):
    """Signs of s₊ and s₋ at six distances around D₀, against stationary points by root finding."""
    return straddles(noise, distance) != found


def frozen_biases(rng: np.random.Generator) -> list[tuple[float, bool]]:
    """Frozen biases, and whether the weights end at rest away from zero, normal clusters."""
    mixture = two_clusters(np.array([0.9, 0.5]), a_plus=1.2, a_minus=4.5, noise=Gaussian(dim=2, scale=0.9))
    cases = []
    for xi in (-2.0, -1.0, 1.0, 2.0):
        start, end = abs(xi) * np.array([0.6, 0.2]), abs(xi) * 60.0  # the flow has the scale of ξ, in v and in time
        v = integrate(mixture.frozen_flow(xi), {"v": start}, np.array([0.0, end]))["v"][-1]
        at_rest = np.linalg.norm(raw_field(mixture, v, xi)[:-1]) < ZERO
        cases.append((xi, bool(at_rest and np.linalg.norm(v) > np.sqrt(ZERO))))
    return cases


@check("a4-signs", Reference.ODE, lambda xi: xi != 0, 0.0, unit="wrong answers", over=frozen_biases)
@as_printed(lambda xi: xi < 0)
@rejects("positive biases only", lambda xi: xi > 0)
def signs_of_frozen_biases(attracts, xi, found):
    """Frozen biases −2, −1, 1, 2 at which the weights come to rest."""
    return attracts(xi) != found
