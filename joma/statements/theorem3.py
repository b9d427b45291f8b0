"""Lemmas 2 and 4, Theorem 3: mixtures of isotropic clusters and their critical points.

The statements on the field and on joint critical points are in `lemma2` and `lemma4`; here are Theorem 3 and its proof.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
from scipy import differentiate, optimize

from joma.statements import lemma2, lemma4
from joma.statements.lemma2 import printed_field
from joma.statements.raw_field import FieldFormula, one_percent_off, raw_field
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import homogeneous
from joma.theory.critical_points import CriticalPair, CriticalPoint, critical_pairs, critical_points, forced_ray
from joma.theory.hyperplane import mean_ratio_slope, theta1, theta1_slope, theta2, theta2_slope
from joma.theory.integrate import integrate
from joma.theory.isotropic import Gaussian, Isotropic, StudentT, UniformBall
from joma.theory.mixture import Mixture, two_clusters
from joma.verdicts import Outcome

Matrix = Callable[[CriticalPoint], np.ndarray]
"""A claim about C(μ)."""

Gradient = Callable[[np.ndarray], np.ndarray]
"""A claim about the derivative by every v_j, which comes on the last axis."""

GAUSSIAN = two_clusters(np.array([1.0, 0.0, 0.0]), a_minus=4.0, noise=Gaussian(dim=3))
STUDENT = two_clusters(np.array([2.0, 0.0, 0.0]), a_minus=4.0, noise=StudentT(dim=3, dof=3.0))
ASIDE = np.array([0.6, 0.64, 0.48])
"""Direction in which v is moved off the critical points."""

NODE = np.array([0.7, -0.4, 0.5])
CENTER = np.array([1.0, 0.5, -0.3])
BIAS = -0.3
POWER = 3
NOISE = Gaussian()
"""v, x̄₊, ξ, p and the distribution at which the identities of Eqns 67-69 are checked."""


@cache
def _points() -> tuple[CriticalPoint, ...]:
    """Critical points of six kinds: two signs of ξ, a ball, a heavy tail (one stable, one not), a leaky activation."""
    ball = replace(GAUSSIAN, noise=UniformBall(dim=3, radius=2.0))
    leaky = replace(GAUSSIAN, activation=homogeneous(0.1, 1.0))
    cases = ((GAUSSIAN, -1.0), (GAUSSIAN, 1.0), (ball, -1.0), (STUDENT, -1.0), (leaky, -1.5))
    return tuple(point for mixture, xi in cases for point in critical_points(mixture, xi))


def _printed_matrix(point: CriticalPoint) -> np.ndarray:
    """Eqns 72-74: θ₁ and its derivative at r₊* = μ·x̄₊ + ξ*, over powers of ‖μ‖."""
    mixture, mu = point.mixture, point.mu
    size = np.linalg.norm(mixture.centers[0])
    r_plus = mu @ mixture.centers[0] + point.xi
    y = theta1(mixture.noises[0], r_plus, mixture.activation)
    y_dot = theta1_slope(mixture.noises[0], r_plus, mixture.activation)
    common = point.orientation * mixture.weights[0] * size
    beta1 = common * y / point.norm**2
    beta2 = common * (point.xi * y_dot - 2 * y) / point.norm**4
    return beta1 * np.eye(mu.size) + beta2 * np.outer(mu, mu)


def _corrected_matrix(point: CriticalPoint) -> np.ndarray:
    return point.linearised.matrix


def _derivative(field: FieldFormula, mixture: Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """∂v̇/∂v with ξ held, by fourth-order central differences."""
    step = 2e-3 * np.linalg.norm(v)

    def slope(e: np.ndarray) -> np.ndarray:
        near, far = (field(mixture, v + k * e, xi)[0] - field(mixture, v - k * e, xi)[0] for k in (1, 2))
        return (8 * near - far) / (12 * step)

    return np.stack([slope(e) for e in step * np.eye(v.size)], axis=-1)


@cache
def _raw_matrices() -> list[np.ndarray]:
    return [-_derivative(raw_field, point.mixture, point.mu, point.xi) for point in _points()]


def _distance_from_differences(matrix: Matrix) -> float:
    cases = zip(_points(), _raw_matrices(), strict=True)
    return max(float(np.abs(matrix(point) - exact).max()) for point, exact in cases)


@cache
def _nearby(gamma: float) -> list[tuple[CriticalPoint, np.ndarray, np.ndarray]]:
    """Points v at distance γ‖μ‖ from each critical point, off its axis, with the raw field there."""
    near = [(point, point.mu + gamma * point.norm * ASIDE) for point in _points()]
    return [(point, v, raw_field(point.mixture, v, point.xi)[0]) for point, v in near]


def _distance_from_second_order(matrix: Matrix) -> float:
    """How far the order in γ of v̇ − C(μ)(μ − v) is from two, at the worst of the points."""
    coarse, fine = (
        np.array([np.linalg.norm(v_dot - matrix(point) @ (point.mu - v)) for point, v, v_dot in _nearby(gamma)])
        for gamma in (1e-3, 1e-4)
    )
    return float(np.abs(np.log10(coarse / fine) - 2).max())


def _remainder_left_by(basis: Callable[[CriticalPoint, np.ndarray], np.ndarray]) -> float:
    """Share of the remainder v̇ − C(μ)(μ − v) outside the span of the columns that the claim allows it."""
    worst = 0.0
    for (point, v, v_dot), matrix in zip(_nearby(0.05), _raw_matrices(), strict=True):
        remainder = v_dot - matrix @ (point.mu - v)
        columns = basis(point, v)
        rest = remainder - columns @ np.linalg.lstsq(columns, remainder)[0]
        worst = max(worst, float(np.linalg.norm(rest) / np.linalg.norm(remainder)))
    return worst


@cache
def _measured_rates(index: int) -> np.ndarray:
    """Rates at which offsets along and across μ shrink (or, negative, grow) in the integrated frozen flow."""
    point = _points()[index]
    t = np.array([0.0, 0.5])
    rates = []
    for direction in np.eye(3)[:2]:  # μ lies along the first axis
        offset = 1e-6 * point.norm
        run = integrate(point.mixture.frozen_flow(point.xi), {"v": point.mu + offset * direction}, t)
        rates.append(-np.log(np.abs((run["v"][-1] - point.mu) @ direction) / offset) / t[-1])
    return np.array(rates)


def _error_of_rates(matrix: Matrix) -> float:
    """Distance of the diagonal of C(μ), its eigenvalues with μ along the first axis, from the measured rates."""
    cases = enumerate(_points())
    return max(float(np.abs(np.diag(matrix(point))[:2] - _measured_rates(i)).max()) for i, point in cases)


def _wrong_on_stability(stable: Callable[[CriticalPoint], bool]) -> float:
    """Points for which the claim differs from whether offsets shrink in the integrated flow."""
    return float(sum(stable(point) != (_measured_rates(i) > 0).all() for i, point in enumerate(_points())))


PairTest = Callable[[Isotropic, CriticalPair], bool]


@cache
def _stable_pairs() -> tuple[tuple[Isotropic, CriticalPair, bool], ...]:
    """Joint critical pairs at three distances, and whether v is stable there with ξ held, by differences."""
    cases = []
    for dof, distance in product((2.0, 3.0), (0.5, 2.0, 4.0)):
        noise = StudentT(dim=2, dof=dof)
        for pair in critical_pairs(noise, distance):
            ray = forced_ray(two_clusters(np.array([distance, 0.0]), noise=noise), pair)
            slopes = np.linalg.eigvals(_derivative(raw_field, ray.mixture, *ray.point(1.0)))
            cases.append((noise, pair, bool((slopes.real < 0).all())))
    return tuple(cases)


def _wrong_on_pairs(stable: PairTest) -> float:
    return float(sum(stable(noise, pair) != found for noise, pair, found in _stable_pairs()))


def _falls_then_rises(noise: Isotropic, pair: CriticalPair) -> bool:
    return bool(mean_ratio_slope(noise, pair.s_minus) < 0 < mean_ratio_slope(noise, pair.s_plus))


def _distance_from_mu(bias_rate: float) -> float:
    """How far v is from μ at t = 50, from 1 % off, when ξ learns at `bias_rate` times the rate of v."""
    point = _points()[0]

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        v_dot, xi_dot = GAUSSIAN.field(state["v"], state["xi"])
        return {"v": v_dot, "xi": bias_rate * xi_dot}

    start = {"v": 1.01 * point.mu, "xi": np.array(point.xi)}
    return float(np.linalg.norm(integrate(field, start, np.array([0.0, 50.0]))["v"][-1] - point.mu))


def _over_power(theta: Callable[..., np.ndarray], times_v: bool) -> Callable[[np.ndarray], np.ndarray]:
    """θ(v·x̄ + ξ)/‖v‖^p, times v if asked for, for `scipy.differentiate`: v on the first axis."""

    def value(v: np.ndarray) -> np.ndarray:
        scalar = theta(NOISE, np.tensordot(CENTER, v, 1) + BIAS) / np.linalg.norm(v, axis=0) ** POWER
        return v * scalar if times_v else scalar

    return value


def _one(p: Isotropic, r: np.ndarray) -> np.ndarray:
    return np.ones_like(r)


def _error_of_gradient(theta: Callable[..., np.ndarray], times_v: bool, gradient: Gradient) -> float:
    exact = differentiate.jacobian(_over_power(theta, times_v), NODE, initial_step=0.05).df
    return float(np.abs(gradient(NODE) - exact).max())


def _eqn67(v: np.ndarray) -> np.ndarray:
    norm, r = np.linalg.norm(v), v @ CENTER + BIAS
    slope = theta1_slope(NOISE, r)
    return (slope * CENTER * norm**2 - POWER * v * theta1(NOISE, r)) / norm ** (POWER + 2)


def _eqn68(v: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(v)
    return (norm**2 * np.eye(v.size) - POWER * np.outer(v, v)) / norm ** (POWER + 2)


def _eqn69(v: np.ndarray, *, as_printed: bool = False) -> np.ndarray:
    norm, r = np.linalg.norm(v), v @ CENTER + BIAS
    bracket = theta2_slope(NOISE, r) * CENTER * norm**2 - POWER * v * theta2(NOISE, r)
    factor = norm * np.ones(v.size) if as_printed else v
    return (np.outer(factor, bracket) + theta2(NOISE, r) * norm**2 * np.eye(v.size)) / norm ** (POWER + 2)


def _remainder_over_linear_term(linear_term: Callable[[np.ndarray], float]) -> float:
    """Largest remainder at distance 0.01‖μ‖, over the size that the claim guarantees to the linear term."""
    worst = 0.0
    for (point, v, v_dot), matrix in zip(_nearby(0.01), _raw_matrices(), strict=True):
        remainder = np.linalg.norm(v_dot - matrix @ (point.mu - v))
        guaranteed = linear_term(matrix) * np.linalg.norm(point.mu - v)
        worst = max(worst, float(remainder / guaranteed) if guaranteed else np.inf)
    return worst


@cache
def _printed_point() -> CriticalPoint:
    """Where the field as printed vanishes with ξ = −1 frozen, along x̄₊: root finding."""

    def along(norm: float) -> float:
        return float(printed_field(GAUSSIAN, np.array([norm, 0.0, 0.0]), -1.0)[0][0])

    norm = optimize.brentq(along, 0.2, 3.0, xtol=1e-14)
    return CriticalPoint(mixture=GAUSSIAN, xi=-1.0, norm=norm, orientation=1)


def _distance_from_printed_flow(matrix: Matrix) -> float:
    """Distance from the derivative of the field as printed, at the critical point that it would have."""
    point = _printed_point()
    exact = -_derivative(printed_field, GAUSSIAN, point.mu, point.xi)
    return float(np.abs(matrix(point) - exact).max())


def _largest_printed_eigenvalue(bound: float) -> float:
    """How far ξ p(r) − θ₁(r), the sign of Eqn 74's eigenvalue along μ, rises above the bound for r > ξ."""
    xi = np.linspace(-20, 20, 401)[:, None]
    r = xi + np.geomspace(1e-3, 20, 200)
    noises = (Gaussian(), *(UniformBall(dim=n) for n in (2, 5, 20)), StudentT(dof=2.0), StudentT(dof=3.0))
    return max(float((xi * noise.density(r) - theta1(noise, r)).max()) for noise in noises) - bound


STATEMENTS = (
    *lemma2.STATEMENTS,
    *lemma4.STATEMENTS,
    Statement(
        id="thm3",
        title="Linear dynamics near the critical point",
        place="Section 4, Theorem 3, Eqn 5",
        printed="v̇ = C(μ)(1 + λ(μ, γ))·(μ − v) for ‖v − μ‖ ≤ γ, C(μ) = s_μ{β₁I + β₂μμᵀ}, |λ| ≪ 1",
        corrected=(
            "with ξ frozen at ξ*: v̇ = C(μ)(μ − v) + O(γ²), C(μ) = β₁I + β₂μμᵀ with β₁, β₂ as corrected in eqns72-74"
        ),
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The form β₁I + β₂μμᵀ is right, the values are not (see eqns72-74), and the remainder is a vector of "
            "second order, not a multiple of the linear term: by symmetry it lies in the plane of μ and v. At a "
            "hundredth of ‖μ‖ it is 0.2 to 1.1 % of the linear term. The theorem needs the bias frozen "
            "(thm3-frozen), and s_μ is counted once: Eqns 73 and 74 already contain it."
        ),
        checks=(
            Check(
                name="order in γ of v̇ − C(μ)(μ − v), six critical points, distance from 2",
                against=Reference.QUADRATURE,
                measure=_distance_from_second_order,
                formula=_corrected_matrix,
                printed=_printed_matrix,
                tolerance=0.05,  # third-order terms at γ = 1e-3; a wrong C gives order 1
                unit="order",
                mutation=Mutation(description="C(μ) 1 % off", formula=one_percent_off(_corrected_matrix)),
            ),
            Check(
                name="share of the remainder outside the directions allowed to it, in three dimensions",
                against=Reference.QUADRATURE,
                measure=_remainder_left_by,
                formula=lambda point, v: np.stack([point.mu, v - point.mu], axis=-1),
                printed=lambda point, v: point.linearised.field(v)[:, None],
                tolerance=1e-6,  # differences behind the linear term, 1e-10, over a remainder of 1e-3
                unit="share",
                mutation=Mutation(description="remainder along μ alone", formula=lambda point, v: point.mu[:, None]),
            ),
        ),
    ),
    Statement(
        id="thm3-stability",
        title="Stability of the critical point",
        place="Section 4, Theorem 3; Appendix A.4, after Eqn 74",
        printed=(
            "if C(μ), with the β₁ > 0 and β₂ of Eqns 73 and 74, is positive definite then μ is stable; it needs s_μ > 0"
        ),
        corrected=(
            "with ξ frozen, μ is stable if β₁ > 0, that is s_μ a₊ > 0, and λ_μ = (c₊ − c₋)(ξ*²/‖μ‖³)(a₋p(s₋) − "
            "a₊p(s₊)) > 0, and unstable if one is negative"
        ),
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The eigenvalue along μ by Eqn 74 is a multiple of ξ*θ₁' − θ₁, negative for every unimodal marginal: "
            "the paper's own C(μ) is never positive definite, and says nothing where the flow does converge "
            "(Gaussian clusters, ξ* = −1: true 0.6443 along and 0.5066 across, Eqns 73-74 −1.0827 and 0.5786). "
            "With the corrected C(μ) positive definiteness decides: of the two critical points of t₃ clusters at D "
            "= 2, a₋ = 4, ξ* = −1 one is stable and one is not, though β₁ > 0 and s_μ > 0 at both. The printed "
            "implication itself is empty, since its premise never holds. At a joint critical pair λ_μ > 0 is automatic "
            "where h = F/θ₁ falls at s₋ and rises at s₊: p/θ₁ = (1 − h')/h and a₋θ₁(s₋) = a₊θ₁(s₊)."
        ),
        checks=(
            Check(
                name="eigenvalues of C(μ) against rates measured in the integrated flow, six critical points",
                against=Reference.ODE,
                measure=_error_of_rates,
                formula=_corrected_matrix,
                printed=_printed_matrix,
                tolerance=1e-4,  # offsets of 1e-6‖μ‖ leave second-order terms of that size, in rates up to 2
                unit="rate",
                mutation=Mutation(description="C(μ) 1 % off", formula=one_percent_off(_corrected_matrix)),
            ),
            Check(
                name="positive definite C(μ) as a test of stability against the integrated flow, six critical points",
                against=Reference.ODE,
                measure=_wrong_on_stability,
                formula=lambda point: point.linearised.stable,
                tolerance=0.0,
                unit="wrong answers",
                mutation=Mutation(
                    description="only s_μ a₊ > 0 asked for",
                    formula=lambda point: bool(point.orientation * point.mixture.weights[0] > 0),
                ),
            ),
            Check(
                name="joint critical pairs, t₂ and t₃: stable with ξ frozen where F/θ₁ falls at s₋ and rises at s₊",
                against=Reference.DIFFERENTIATION,
                measure=_wrong_on_pairs,
                formula=_falls_then_rises,
                tolerance=0.0,
                unit="wrong answers of 12",
                mutation=Mutation(description="s₋ < 0 asked for", formula=lambda noise, pair: pair.s_minus < 0),
            ),
        ),
    ),
    Statement(
        id="thm3-frozen",
        title="Convergence to μ needs a frozen bias",
        place="Section 4, Theorem 3 and Eqn 6",
        printed="near the critical point μ of (v, ξ) the weights converge to μ",
        corrected="v → μ with ξ frozen at ξ*; with ξ trained the pair (v, ξ) has rays of critical points, or diverges",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The proof takes (μ, ξ*) as a critical point of Eqn 50 and then fixes ξ. For Gaussian clusters the "
            "joint flow has no critical point, so ξ̇ ≠ 0 at every frozen μ, and v leaves with it. Where joint "
            "critical points exist they form a ray, and the flow ends anywhere along it, depending on its start. "
            "Even a bias that learns a hundred times more slowly carries v away."
        ),
        checks=(
            Check(
                name="‖v − μ‖ at t = 50 from 1 % off, Gaussian clusters, over the learning rate of ξ",
                against=Reference.ODE,
                measure=_distance_from_mu,
                formula=0.0,
                printed=1.0,
                tolerance=1e-9,  # what e^{-25} leaves of the start, and the integrator
                unit="distance",
                mutation=Mutation(description="ξ learns at a hundredth of the rate of v", formula=0.01),
            ),
        ),
    ),
    Statement(
        id="eqns66-68",
        title="Taylor expansion and the derivatives of θ₁(r₊)/‖v‖ᵖ and v/‖v‖ᵖ",
        place="Appendix A.4, proof of Theorem 3, Eqns 66-68",
        printed="∂[θ₁/‖v‖ᵖ]/∂v_j = [θ₁'(x̄₊)_j‖v‖² − p v_jθ₁]/‖v‖ᵖ⁺²; ∂[v/‖v‖ᵖ]/∂v_j = [‖v‖²e_j − p v_j v]/‖v‖ᵖ⁺²",
        outcome=Outcome.HOLDS,
        explanation=(
            "Both identities hold for functions of r = v·x̄ + ξ. With the corrected field, functions of s = r/‖v‖, "
            "the derivative is θ'(s)(x̄ − s v/‖v‖)/‖v‖ instead. Eqn 66 is Taylor's theorem with ξ held."
        ),
        checks=(
            Check(
                name="Eqn 67 at p = 3 against scipy.differentiate",
                against=Reference.DIFFERENTIATION,
                measure=partial(_error_of_gradient, theta1, False),
                formula=_eqn67,
                tolerance=1e-9,  # differences of order eight
                mutation=Mutation(description="gradient 1 % off", formula=one_percent_off(_eqn67)),
            ),
            Check(
                name="Eqn 68 at p = 3 against scipy.differentiate",
                against=Reference.DIFFERENTIATION,
                measure=partial(_error_of_gradient, _one, True),
                formula=_eqn68,
                tolerance=1e-9,  # differences of order eight
                mutation=Mutation(description="gradient 1 % off", formula=one_percent_off(_eqn68)),
            ),
        ),
    ),
    Statement(
        id="eqn69",
        title="Derivative of θ₂(r₊)v/‖v‖ᵖ",
        place="Appendix A.4, proof of Theorem 3, Eqn 69",
        printed="∂[θ₂v/‖v‖ᵖ]/∂v_j = {[θ₂'(x̄₊)_j‖v‖² − p v_jθ₂]·‖v‖ + θ₂‖v‖²e_j}/‖v‖ᵖ⁺²",
        corrected="∂[θ₂v/‖v‖ᵖ]/∂v_j = {[θ₂'(x̄₊)_j‖v‖² − p v_jθ₂]·v + θ₂‖v‖²e_j}/‖v‖ᵖ⁺²",
        outcome=Outcome.REFUTED,
        explanation="A slip: the bracket multiplies the vector v, where its norm is printed.",
        checks=(
            Check(
                name="Eqn 69 at p = 3 against scipy.differentiate, ‖v‖ read as in every component",
                against=Reference.DIFFERENTIATION,
                measure=partial(_error_of_gradient, theta2, True),
                formula=_eqn69,
                printed=partial(_eqn69, as_printed=True),
                tolerance=1e-9,  # differences of order eight
                mutation=Mutation(description="gradient 1 % off", formula=one_percent_off(_eqn69)),
            ),
        ),
    ),
    Statement(
        id="eqn71",
        title="Size of the remainder",
        place="Appendix A.4, proof of Theorem 3, Eqn 71",
        printed="(∇f_i(μ))_j ≫ ½H̄(μ, γ)(v − μ)ᵀ1 for all i and j, for γ small enough",
        corrected="‖v̇ − C(μ)(μ − v)‖ ≪ σ_min(C(μ))·‖v − μ‖ for γ small enough, if C(μ) is regular",
        outcome=Outcome.REFUTED,
        explanation=(
            "No entry of the Jacobian is guaranteed: with μ along an axis its off-diagonal entries are zero for "
            "every γ. What Taylor's theorem gives is a remainder of order γ², to compare with the smallest "
            "singular value of C(μ) times γ."
        ),
        checks=(
            Check(
                name="remainder over the guaranteed linear term at γ = 0.01‖μ‖, six critical points",
                against=Reference.QUADRATURE,
                measure=_remainder_over_linear_term,
                formula=lambda matrix: float(np.linalg.svd(matrix, compute_uv=False).min()),
                printed=lambda matrix: float(np.abs(matrix).min()),
                tolerance=0.1,  # what ≪ is taken to mean
                unit="ratio",
                mutation=Mutation(
                    description="a hundredth of the smallest singular value",
                    formula=lambda matrix: 0.01 * float(np.linalg.svd(matrix, compute_uv=False).min()),
                ),
            ),
        ),
    ),
    Statement(
        id="eqns72-74",
        title="The matrix C(μ)",
        place="Appendix A.4, proof of Theorem 3, Eqns 70 and 72-74",
        printed=("C(μ) = β₁I + β₂μμᵀ, β₁ = s_μa₊‖x̄₊‖θ₁(r₊*)/‖μ‖² > 0, β₂ = s_μ(a₊‖x̄₊‖/‖μ‖⁴)(ξ*θ₁'(r₊*) − 2θ₁(r₊*))"),
        corrected=(
            "β₁ = s_μa₊‖x̄₊‖θ₁(s₊)/‖μ‖, β₂ = −[β₁ + (c₊ − c₋)(ξ*²/‖μ‖³)(a₊p(s₊) − a₋p(s₋))]/‖μ‖², s₋ = ξ*/‖μ‖, s₊ "
            "= s₋ + s_μ‖x̄₊‖, where ‖μ‖ solves s_μa₊θ₁(s₊)‖x̄₊‖ + a₊θ₂(s₊) = a₋θ₂(s₋)"
        ),
        outcome=Outcome.REFUTED,
        explanation=(
            "The algebra is right for Eqn 50 as printed, whose linearisation these β do give; but Eqn 50 is not "
            "the field of the samples. The printed C(μ) is off by 0.4 to 21 over the six points and has the wrong "
            "sign along μ at every stable one. β₁ > 0 with s_μ inside β₁ holds for s_μ > 0 only. Sign of the "
            "printed eigenvalue along μ: ξp(r) − θ₁(r) ≤ 0 for every unimodal p, since ξp(r) ≤ r p(r) ≤ ½ ≤ θ₁(r) "
            "for r > ξ > 0."
        ),
        checks=(
            Check(
                name="C(μ) against differences of the field by quadrature, six critical points",
                against=Reference.DIFFERENTIATION,
                measure=_distance_from_differences,
                formula=_corrected_matrix,
                printed=_printed_matrix,
                tolerance=1e-7,  # fourth order in steps of 2e-3, with derivatives of 1e3 at the smallest ‖μ‖
                mutation=Mutation(description="C(μ) 1 % off", formula=one_percent_off(_corrected_matrix)),
            ),
            Check(
                name="Eqns 73-74 against differences of the field as printed, at its own critical point",
                against=Reference.DIFFERENTIATION,
                measure=_distance_from_printed_flow,
                formula=_printed_matrix,
                tolerance=1e-7,  # fourth order in steps of 2e-3
                mutation=Mutation(description="C(μ) 1 % off", formula=one_percent_off(_printed_matrix)),
            ),
            Check(
                name="largest ξp(r) − θ₁(r) over ξ in [−20, 20], r > ξ, six unimodal marginals, above 0",
                against=Reference.ENUMERATION,
                measure=_largest_printed_eigenvalue,
                formula=0.0,
                tolerance=1e-15,  # the bound is attained in the limit ξ → −∞
                unit="excess",
                mutation=Mutation(description="bound −0.01", formula=-0.01),
            ),
        ),
    ),
)
