"""Lemma 4, Eqns 54-59 and the signs of Section A.4: critical points of weights and bias trained together."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
from scipy import optimize, stats
from scipy.integrate import tanhsinh

from joma.statements.raw_field import Scalar, joined, marginal_of, raw_field
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.critical_points import critical_pairs, forced_ray, lowest_slope, straddling_distance
from joma.theory.hyperplane import central_product, mean_activation
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, Isotropic, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters
from joma.verdicts import Outcome

Intervals = tuple[tuple[float, float], ...]

T3 = StudentT(dim=2, dof=3.0)
GAUSSIAN = two_clusters(np.array([1.0, 0.0]), a_minus=4.0, noise=Gaussian(dim=2))
LOG_CONCAVE = (Gaussian(), *(UniformBall(dim=n) for n in (1, 2, 5, 20)))
HEAVY = tuple(StudentT(dof=dof) for dof in (1.5, 2.0, 3.0, 5.0, 10.0))
DISTANCES = (0.5, 2.0, 4.0)
"""Distances of the centers."""
DIGITS = 1e-15
"""Smallest share of active samples at which F, a difference, still has digits."""
AT_REST, AWAY = 1e-9, 0.1
"""Speed below which weights have come to rest, and length from which they have not vanished."""


@cache
def _stationary(distance: float, norm: float = 0.6) -> tuple[Mixture, np.ndarray, float]:
    """A stationary (v, ξ) of two t₃ clusters with ‖v‖ given, and the ratio of weights it needs: root finding."""

    def at(unknown: np.ndarray) -> tuple[Mixture, np.ndarray, float]:
        mixture = two_clusters(np.array([distance, 0.0]), a_minus=float(np.exp(unknown[3])), noise=T3)
        return mixture, unknown[:2], float(unknown[2])

    def residual(unknown: np.ndarray) -> np.ndarray:
        mixture, v, xi = at(unknown)
        return np.append(joined(raw_field(mixture, v, xi)), v @ v - norm**2)

    start = np.array([0.9 * norm, 0.1 * norm, -0.7 * norm, np.log(2 * distance + 1)])
    solution = optimize.root(residual, start, tol=1e-12)
    assert solution.success
    return at(solution.x)


def _imbalance_at_rest(condition: Scalar) -> float:
    return max(abs(float(condition(*_stationary(distance)))) for distance in DISTANCES)


def _speed_where(solve: Callable[[float], tuple[Mixture, np.ndarray, float]]) -> float:
    """Largest speed of the raw field at points that a condition declares critical."""
    return max(float(np.linalg.norm(joined(raw_field(*solve(distance))))) for distance in DISTANCES)


def _on_the_ray(distance: float, *, ratio_factor: float = 1.0) -> tuple[Mixture, np.ndarray, float]:
    ray = forced_ray(two_clusters(np.array([0.0, distance]), noise=T3), critical_pairs(T3, distance)[0])
    v, xi = ray.point(0.7)
    return replace(ray.mixture, weights=ray.mixture.weights * [1, ratio_factor]), v, xi


def _scalar_equations_alone(distance: float) -> tuple[Mixture, np.ndarray, float]:
    """Both equalities of Eqn 56 hold, at ‖v‖ = 1, but v is tilted: the centers lie 0.6 D apart along it."""
    pair = critical_pairs(T3, 0.6 * distance)[0]
    mixture = two_clusters(np.array([distance, 0.0]), a_minus=pair.ratio, noise=T3)
    return mixture, np.array([0.6, 0.8]), pair.s_minus


def _error_of_ratio(ratio: Callable[[float], float]) -> float:
    exact = {distance: -_stationary(distance)[0].weights[1] for distance in DISTANCES}
    return max(abs(ratio(distance) / exact[distance] - 1) for distance in DISTANCES)


@cache
def _is_monotone(noise: Isotropic) -> bool:
    """Whether F/θ₁ of ReLU increases on a grid: F is E[y; y > −s] + s P(y > −s), by scipy.stats and quadrature."""
    marginal = marginal_of(noise)
    low, high = marginal.support()
    s = np.linspace(max(0.97 * low, -12.0), min(1.5 * high, 12.0), 961)
    s = s[marginal.sf(-s) > DIGITS]
    first = tanhsinh(lambda y: y * marginal.pdf(y), np.clip(np.abs(s), low, high), high, rtol=1e-12).integral
    return bool((np.diff(s + first / marginal.sf(-s)) > 0).all())


def _wrong_answers_on_existence(exists: Callable[[Isotropic], bool]) -> float:
    """Distributions for which the answer differs from whether F/θ₁ takes some value twice on the grid."""
    return float(sum(exists(noise) == _is_monotone(noise) for noise in LOG_CONCAVE + HEAVY))


def _speed_of_laplace_clusters(ratio: Callable[[float], float]) -> float:
    """Largest speed of (v, ξ) with both centers of Laplace clusters behind the hyperplane, for a claimed a₋/a₊."""
    law = stats.laplace()

    def speed(distance: float) -> float:
        # A unit v along the line of the centers, 0 and D; s₊ = −1 and s₋ = −1 − D; a₊ = 1.
        edges = np.array([1.0, 1.0 + distance])
        mass, first = (tanhsinh(lambda y, k=k: law.pdf(y) * y**k, edges, np.inf, rtol=1e-13).integral for k in (0, 1))
        a_minus = ratio(distance)
        v_dot = mass[0] * distance + first[0] - a_minus * first[1]
        return float(np.hypot(v_dot, mass[0] - a_minus * mass[1]))

    return max(speed(distance) for distance in DISTANCES)


@cache
def _measured_growth(a_minus: float) -> tuple[Mixture, float]:
    """Slope of ‖(v, ξ)‖ along the integrated joint flow of Gaussian clusters, late."""
    mixture = two_clusters(np.array([2.0, 0.0]), a_minus=a_minus, noise=Gaussian(dim=2))
    start = {"v": np.array([0.3, 0.2]), "xi": np.array(0.1)}
    run = integrate(mixture.flow, start, np.array([0.0, 2000.0, 4000.0]), rtol=1e-10, atol=1e-10)
    size = np.hypot(np.linalg.norm(run["v"], axis=1), run["xi"])
    return mixture, float(size[2] - size[1]) / 2000.0


def _error_of_growth(rate: Callable[[Mixture], float]) -> float:
    return max(abs(slope - rate(mixture)) for mixture, slope in map(_measured_growth, (0.7, 1.5, 4.0)))


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


def _ratios_outside(intervals: Intervals) -> float:
    """How many of the ratios of Eqn 59, of t₃ and in both orders, lie outside the intervals."""
    y1, y2 = _ratios_on_lines(3.0)
    return _outside(np.concatenate([y1 / y2, y2 / y1]), intervals)


def _upper_ratios_outside(intervals: Intervals) -> float:
    """The same for t₁.₅, and only for lines that meet G twice at y ≥ ½: Eqn 58 holds there."""
    y1, y2 = _ratios_on_lines(1.5)
    upper = y1 >= 1 / 2
    assert upper.any()
    return _outside(np.concatenate([y1 / y2, y2 / y1])[np.tile(upper, 2)], intervals)


def _outside(ratios: np.ndarray, intervals: Intervals) -> float:
    inside = [(low < ratios) & (ratios < high) for low, high in intervals]
    return float((~np.any(inside, axis=0)).sum())


def _wrong_signs(straddles: Callable[[float], bool]) -> float:
    """Distances at which the claim r₊* > 0 > ξ* differs from a stationary point that root finding gives, for t₃."""
    wrong = 0
    for distance in (0.3, 0.5, 0.8, 0.9, 0.95, 1.0, 2.0, 4.0):
        mixture, v, xi = _stationary(distance)
        wrong += straddles(distance) != bool(v @ mixture.centers[0] + xi > 0 > xi)
    return float(wrong)


@cache
def _comes_to_rest(xi: float) -> bool:
    """Whether the weights end at rest away from zero, Gaussian clusters, the bias frozen."""
    start, end = abs(xi) * np.array([0.6, 0.2]), abs(xi) * 60.0  # the flow has the scale of ξ, in v and in time
    v = integrate(GAUSSIAN.frozen_flow(xi), {"v": start}, np.array([0.0, end]))["v"][-1]
    return bool(np.linalg.norm(raw_field(GAUSSIAN, v, xi)[0]) < AT_REST and np.linalg.norm(v) > AWAY)


def _wrong_biases(attracts: Callable[[float], bool]) -> float:
    """Frozen biases for which the claim differs from whether the weights come to rest."""
    return float(sum(attracts(xi) != _comes_to_rest(xi) for xi in (-2.0, -1.0, 1.0, 2.0)))


STATEMENTS = (
    Statement(
        id="lemma4",
        title="What holds at a stationary point",
        place="Appendix A.3.1, Lemma 4, Eqns 54 and 55",
        printed="any stationary point satisfies Σ_j a_j F(r_j) = 0",
        corrected="any stationary point with v ≠ 0 satisfies Σ_j a_j F(r_j/‖v‖) = 0",
        outcome=Outcome.REFUTED,
        explanation=(
            "By Euler's identity L = ‖v‖ Σ_j a_j F(s_j) vanishes with the field. At r_j in place of s_j the sum "
            "does not, unless ‖v‖ = 1. The stationary points tested were found by root finding on the raw field of "
            "two t₃ clusters with ‖v‖ = 0.6, the ratio of the weights being an unknown too, as it has to be."
        ),
        checks=(
            Check(
                name="Σ_j a_j F at stationary points with ‖v‖ = 0.6, D = 0.5, 2 and 4",
                against=Reference.ROOT_FINDING,
                measure=_imbalance_at_rest,
                formula=lambda mixture, v, xi: mixture.potential(v, xi) / np.linalg.norm(v),
                printed=lambda mixture, v, xi: mixture.weights @ mean_activation(T3, mixture.centers @ v + xi),
                tolerance=1e-9,  # the roots are solved to 1e-12 and weights reach 24
                unit="residual",
                mutation=Mutation(
                    description="distances 1 % off",
                    formula=lambda mixture, v, xi: (
                        mixture.weights @ mean_activation(T3, 1.01 * mixture.distances(v, xi))
                    ),
                ),
            ),
        ),
    ),
    Statement(
        id="eqn56",
        title="Which points are critical for two clusters",
        place="Appendix A.3.1, Eqn 56",
        printed="(v, ξ) is critical if and only if F(r₊)/F(r₋) = θ₁(r₊)/θ₁(r₋) = a₋/a₊",
        corrected=(
            "also v ∥ x̄₊ − x̄₋ is needed, at s = r/‖v‖: s₊ − s₋ = ±D with D = ‖x̄₊ − x̄₋‖, F/θ₁(s₋ ± D) = "
            "F/θ₁(s₋) fixes s₋, and a₋/a₊ = θ₁(s₊)/θ₁(s₋) is forced"
        ),
        outcome=Outcome.REFUTED,
        explanation=(
            "With ξ̇ = 0 the rest of v̇ is a₊θ₁(s₊)(x̄₊ − x̄₋) plus a multiple of v: it vanishes only if v is "
            "parallel to x̄₊ − x̄₋. A tilted v that satisfies both scalar equations keeps the speed a₊θ₁(s₊)√(D² − "
            "δ²), δ the distance of the centers along v. Parallel, s₊ − s₋ is given by the data, so one equation "
            "fixes s₋ and the other the ratio of the weights: critical points exist for one exact ratio, 1.59859, "
            "5.95501 and 24.0233 at D = 0.5, 2 and 4 for t₃ clusters, and 2 + √3 at D = 2 for t₂."
        ),
        checks=(
            Check(
                name="speed of the raw field where the conditions hold, D = 0.5, 2 and 4",
                against=Reference.QUADRATURE,
                measure=_speed_where,
                formula=_on_the_ray,
                printed=_scalar_equations_alone,
                tolerance=1e-9,  # quadrature of 1e-12 times weights up to 24
                unit="speed",
                mutation=Mutation(
                    description="ratio of the weights 1 % off the forced one",
                    formula=partial(_on_the_ray, ratio_factor=1.01),
                ),
            ),
            Check(
                name="forced ratio a₋/a₊ against root finding on the raw field in all unknowns",
                against=Reference.ROOT_FINDING,
                measure=_error_of_ratio,
                formula=lambda distance: critical_pairs(T3, distance)[0].ratio,
                tolerance=1e-9,  # the roots are solved to 1e-12
                unit="relative error",
                mutation=Mutation(
                    description="ratio 1 % off", formula=lambda distance: 1.01 * critical_pairs(T3, distance)[0].ratio
                ),
            ),
        ),
    ),
    Statement(
        id="existence",
        title="Where the joint flow has a critical point",
        remark=(
            "strictly log-concave marginals have no critical point and power tails have one only where both clusters "
            "share the marginal and, for tails, with ReLU: Gaussian clusters of widths 1 and 2 at D = 1 have a ray, at "
            "a₋/a₊ = 1.43977; t₃ clusters with c₋ = 0.03 have none (lowest slope of F/θ₁: +0.184)"
        ),
        place="Appendix A.3.1 (after Eqn 57), Theorem 3",
        printed=(
            "the joint dynamics (Eqn 50) of two isotropic clusters have a critical point (μ, ξ*), μ ≠ 0, to "
            "linearise at"
        ),
        corrected=(
            "not if both clusters have the same strictly log-concave marginal, Gaussian or ball, dead nodes aside; "
            "Gaussian clusters then diverge linearly, at the rate max L over the unit sphere. Laplace clusters have "
            "them at a₋/a₊ = e^D; ReLU with power tails has one for each D, at the forced ratio"
        ),
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "A critical point needs F/θ₁ = F/F' to take one value twice. F/F' increases exactly where F is "
            "log-concave; a log-concave p has a log-concave θ₁ and so F (Prékopa), for 0 ≤ c₋ < c₊. It has to be "
            "strictly so: the Laplace law has F/θ₁ = 1 for all s ≤ 0, and there every pair is critical at one ratio. A "
            "ball leaves room for dead nodes, s ≤ −R for both clusters, which do not move either. The lowest "
            "slope of F/θ₁ is positive for the Gaussian (tending to 0 far out) and for balls of 1, 2, 5, 20 "
            "dimensions (0.50, 0.40, 0.25, 0.087), and −1/(ν − 1) for Student's t, reached far out on the left. "
            "Beyond these cases: Gaussian clusters of two different widths do have a critical ray, and a leaky "
            "ReLU with c₋ ≥ 0.03 has none even for t₃."
        ),
        checks=(
            Check(
                name="existence by the slope of F/θ₁ against its values on a grid, 10 distributions",
                against=Reference.ENUMERATION,
                measure=_wrong_answers_on_existence,
                formula=lambda noise: lowest_slope(noise) < 0,
                printed=lambda noise: True,
                tolerance=0.0,
                unit="wrong answers",
                mutation=Mutation(
                    description="Eqn 58's sufficient condition taken as necessary",
                    formula=lambda noise: central_product(noise) > 1 / 4,
                ),
            ),
            Check(
                name="growth of ‖(v, ξ)‖ for Gaussian clusters, a₋ = 0.7, 1.5 and 4, against the integrated flow",
                against=Reference.ODE,
                measure=_error_of_growth,
                formula=lambda mixture: mixture.growth().rate,
                tolerance=1e-7,  # the direction still turns a little at t = 4000
                unit="rate",
                mutation=Mutation(description="rate 1 % off", formula=lambda mixture: 1.01 * mixture.growth().rate),
            ),
            Check(
                name="speed of the field of Laplace clusters, both centers behind the hyperplane, D = 0.5, 2 and 4",
                against=Reference.QUADRATURE,
                measure=_speed_of_laplace_clusters,
                formula=lambda distance: float(np.exp(distance)),
                tolerance=1e-10,  # quadrature of 1e-13 times weights up to 55
                unit="speed",
                mutation=Mutation(description="ratio 1 % off", formula=lambda distance: 1.01 * float(np.exp(distance))),
            ),
        ),
    ),
    Statement(
        id="eqn59",
        title="Ratios of weights that allow critical points",
        place="Appendix A.3.1, Eqn 59 and after",
        printed="every s ∈ S lies in (½, 1) ∪ (1, 2), and Eqn 42 has critical points if a₊/a₋ ∈ S",
        corrected="S ⊂ (½, 1) ∪ (1, 2) for pairs with both y ≥ ½; in general S ⊂ (0, 1) ∪ (1, ∞), without bound",
        outcome=Outcome.REFUTED,
        explanation=(
            "y = θ₁ ∈ (0, 1), so a ratio lies within (½, 2) if both y are at least ½, which is where the paper "
            "looks when it derives Eqn 58. Lines through the origin usually meet the curve G once on each side of "
            "½, and y₋ may be as small as one likes: for t₃ the ratios pass 10⁶. Membership in S is not enough for "
            "a critical point either: the ratio has to be the one that belongs to the distance of the centers (Eqn "
            "56)."
        ),
        checks=(
            Check(
                name="ratios of t₃ over 12 lines, from nearly tangent to steep, outside the intervals",
                against=Reference.ENUMERATION,
                measure=_ratios_outside,
                formula=((0.0, 1.0), (1.0, np.inf)),
                printed=((0.5, 1.0), (1.0, 2.0)),
                tolerance=0.0,
                unit="ratios outside",
                mutation=Mutation(description="ratios bounded by 1000", formula=((1e-3, 1.0), (1.0, 1e3))),
            ),
            Check(
                name="ratios of t₁.₅ whose line meets G twice at y ≥ ½, outside the intervals",
                against=Reference.ENUMERATION,
                measure=_upper_ratios_outside,
                formula=((0.5, 1.0), (1.0, 2.0)),
                tolerance=0.0,
                unit="ratios outside",
                mutation=Mutation(description="ratios bounded by 1.1", formula=((1 / 1.1, 1.0), (1.0, 1.1))),
            ),
        ),
    ),
    Statement(
        id="a4-signs",
        title="The positive cluster is seen, the bias is negative",
        place="Appendix A.4, first remark",
        printed="it is often the case that r₊* > 0 and r₋* = ξ* < 0",
        corrected=(
            "for t₃ clusters with a₋ > a₊, if and only if D > D₀ = 0.92687, F/θ₁(−D₀) = F/θ₁(0); with the bias "
            "frozen, stable points exist for either sign of ξ*"
        ),
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The two distances s₋ < s₊ = s₋ + D lie on both sides of the valley of F/θ₁, which for t₃ is at s < 0. "
            "Close centers therefore have both of them negative: s₊ = −0.199 at D = 0.5, but s = (0.468, −1.532) "
            "at D = 2. If a₋ < a₊ the ray points the other way and the signs are exchanged. With ξ frozen nothing "
            "fixes its sign: Gaussian clusters with a₋ = 4a₊ have a stable critical point at ξ* = 1 as well as at "
            "−1."
        ),
        checks=(
            Check(
                name="signs at 8 distances from 0.3 to 4, against stationary points by root finding",
                against=Reference.ROOT_FINDING,
                measure=_wrong_signs,
                formula=lambda distance: distance > straddling_distance(T3),
                printed=lambda distance: True,
                tolerance=0.0,
                unit="wrong answers",
                mutation=Mutation(
                    description="threshold 5 % off", formula=lambda distance: distance > 1.05 * straddling_distance(T3)
                ),
            ),
            Check(
                name="frozen biases −2, −1, 1, 2 at which the weights come to rest",
                against=Reference.ODE,
                measure=_wrong_biases,
                formula=lambda xi: xi != 0,
                printed=lambda xi: xi < 0,
                tolerance=0.0,
                unit="wrong answers",
                mutation=Mutation(description="positive biases only", formula=lambda xi: xi > 0),
            ),
        ),
    ),
)
