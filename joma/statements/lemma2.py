"""Lemma 2 and Eqns 44-53: the field of a mixture of isotropic clusters, and its potential."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from scipy import differentiate

from joma.statements.raw_field import FieldFormula, Joint, Scalar, joined, one_percent_off, raw_field
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import homogeneous, linear
from joma.theory.hyperplane import mean_activation, theta1, theta2
from joma.theory.isotropic import Gaussian, Isotropic, StudentT, UniformBall
from joma.theory.mixture import Mixture
from joma.verdicts import Outcome

CENTERS = np.array([[1.0, 0.5, -0.3], [-0.2, 0.1, 0.4]])
WEIGHTS = np.array([1.0, -1.5])
DIRECTION = np.array([0.6, -0.64, 0.48])
BIAS = -0.3
NORMS = (0.5, 2.5)
"""Lengths of v at which the normalisation shows; at length one the printed forms are right."""
SAMPLES = 30_000
"""Samples of each cluster and distribution: 180,000 in all."""

# Tanh-sinh quadrature of the marginal densities reaches 1e-12 of a field of order one.
QUADRATURE_TOLERANCE = 1e-10
# Family-wise: 24 standard scores stay within 4.5 but for one seed in 6,000.
STANDARD_ERRORS = 4.5


def _mixture(noise: Isotropic) -> Mixture:
    return Mixture(centers=CENTERS, weights=WEIGHTS, noise=noise)


def _three_noises() -> tuple[Isotropic, ...]:
    return Gaussian(dim=3), UniformBall(dim=3, radius=2.0), StudentT(dim=3, dof=3.0)


def _configurations() -> list[tuple[Mixture, np.ndarray, float]]:
    leaky = replace(_mixture(Gaussian(dim=3)), activation=homogeneous(0.2, 1.0))
    return [
        (mixture, norm * DIRECTION, BIAS)
        for mixture in (*map(_mixture, _three_noises()), leaky)
        for norm in NORMS
    ]  # fmt: skip


@cache
def _raw_fields() -> list[np.ndarray]:
    return [joined(raw_field(*configuration)) for configuration in _configurations()]


@cache
def _sampled() -> list[tuple[Mixture, np.ndarray, np.ndarray, np.ndarray]]:
    """Mixture, v, and mean and standard error of g ψ (x, 1) over samples, for every distribution and length of v."""
    rng = np.random.default_rng(2310_00535)
    found = []
    for noise in _three_noises():
        mixture = _mixture(noise)
        x = [np.c_[center + noise.sample(rng, SAMPLES), np.ones(SAMPLES)] for center in CENTERS]
        for norm in NORMS:
            node = np.append(norm * DIRECTION, BIAS)
            terms = sum(a * xj * (xj @ node > 0)[:, None] for a, xj in zip(WEIGHTS, x, strict=True))
            error = terms.std(axis=0, ddof=1) / np.sqrt(SAMPLES)
            found.append((mixture, norm * DIRECTION, terms.mean(axis=0), error))
    return found


def _scores(field: FieldFormula) -> float:
    return max(
        float(np.abs((joined(field(mixture, v, BIAS)) - mean) / error).max())
        for mixture, v, mean, error in _sampled()
    )  # fmt: skip


def _distance_from_raw(field: FieldFormula) -> float:
    pairs = zip(_configurations(), _raw_fields(), strict=True)
    return max(float(np.abs(joined(field(*configuration)) - exact).max()) for configuration, exact in pairs)


def printed_field(mixture: Mixture, v: np.ndarray, xi: float) -> Joint:
    """Eqns 42, 43 and 50: θ at r, over ‖v‖ and ‖v‖³."""
    norm = np.linalg.norm(v)
    r = mixture.centers @ v + xi
    pull = mixture.weights * theta1(mixture.noises[0], r, mixture.activation)
    push = mixture.weights * theta2(mixture.noises[0], r, mixture.activation)
    return pull @ mixture.centers / norm + push.sum() * v / norm**3, pull.sum() / norm


def _scaled(factor: float, field: FieldFormula) -> FieldFormula:
    def changed(mixture: Mixture, v: np.ndarray, xi: float) -> Joint:
        v_dot, xi_dot = field(mixture, v, xi)
        return factor * v_dot, factor * xi_dot

    return changed


def _distance_for_linear(field: Callable[[Mixture], Joint]) -> float:
    mixture = replace(_mixture(Gaussian(dim=3)), activation=linear)
    exact = [joined(raw_field(mixture, norm * DIRECTION, xi)) for norm in NORMS for xi in (-1.0, 1.0)]
    return float(np.abs(joined(field(mixture)) - exact).max())


@cache
def _labelled_samples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples, their clusters, and a gradient that is constant within each cluster."""
    rng = np.random.default_rng(44)
    cluster = rng.choice(3, size=60, p=[0.5, 0.3, 0.2])
    return rng.normal(size=(60, 4)) + cluster[:, None], cluster, np.array([1.0, -0.7, 0.4])[cluster]


def _distance_of_decomposition(weight: Callable[[np.ndarray, np.ndarray, int], float]) -> float:
    """Distance of Σ_j a_j E_j[x ψ(v·x + ξ)] from the plain average of g ψ x, for the weights a_j that are claimed."""
    x, cluster, g = _labelled_samples()
    active = (x @ np.array([0.5, -0.3, 0.2, 0.4]) - 0.5 > 0)[:, None] * x
    split = sum(weight(g, cluster, j) * active[cluster == j].mean(axis=0) for j in range(3))
    return float(np.abs(split - (g[:, None] * active).mean(axis=0)).max())


def _cluster_weight(g: np.ndarray, cluster: np.ndarray, j: int) -> float:
    return float(g[cluster == j].mean() * (cluster == j).mean())


def _distance_of_power(power: Scalar) -> float:
    """Distance of a formula for v·v̇ + ξ ξ̇ from the raw field."""
    pairs = zip(_configurations(), _raw_fields(), strict=True)
    return max(abs(float(power(m, v, xi)) - float(np.append(v, xi) @ exact)) for (m, v, xi), exact in pairs)


def _printed_power(mixture: Mixture, v: np.ndarray, xi: float) -> float:
    """Eqn 53: Σ_j a_j F(r_j) / ‖v‖."""
    r = mixture.centers @ v + xi
    return float(mixture.weights @ mean_activation(mixture.noises[0], r, mixture.activation) / np.linalg.norm(v))


def _distance_of_gradient(potential: Scalar) -> float:
    """Distance of the gradient of a potential, by differences, from the raw field."""

    def error(mixture: Mixture, v: np.ndarray, xi: float, exact: np.ndarray) -> float:
        def at(x: np.ndarray) -> np.ndarray:
            flat = x.reshape(x.shape[0], -1).T
            return np.array([potential(mixture, row[:-1], row[-1]) for row in flat]).reshape(x.shape[1:])

        gradient = differentiate.jacobian(at, np.append(v, xi), initial_step=0.05).df
        return float(np.abs(gradient - exact).max())

    cases = zip(_configurations()[:4], _raw_fields()[:4], strict=True)
    return max(error(*configuration, exact) for configuration, exact in cases)


STATEMENTS = (
    Statement(
        id="lemma2",
        title="Dynamics of a mixture of isotropic clusters",
        place="Appendix A.3.1, Lemma 2, Eqns 42 and 43",
        printed="v̇ = Σ_j a_j θ₁(r_j) x̄_j/‖v‖ + Σ_j a_j θ₂(r_j) v/‖v‖³, ξ̇ = Σ_j a_j θ₁(r_j)/‖v‖, r_j = v·x̄_j + ξ",
        corrected="v̇ = Σ_j a_j[θ₁(s_j) x̄_j + θ₂(s_j) v/‖v‖], ξ̇ = Σ_j a_j θ₁(s_j), s_j = r_j/‖v‖, for homogeneous φ",
        outcome=Outcome.REFUTED,
        explanation=(
            "Along the unit vector v/‖v‖ the input has the density p and v·x + ξ = ‖v‖(y + s). A homogeneous φ has "
            "ψ(‖v‖(y + s)) = ψ(y + s), so θ₁ and θ₂ are functions of s = r/‖v‖ and no power of ‖v‖ is left but the "
            "one in v/‖v‖. The printed form substitutes y' = ‖v‖y and forgets that the density changes with it; "
            "the two agree at ‖v‖ = 1 only. Clusters of different profile need their own θ each."
        ),
        checks=(
            Check(
                name="field against samples: Gaussian, ball, t₃, with ‖v‖ = 0.5 and 2.5",
                against=Reference.MONTE_CARLO,
                measure=_scores,
                formula=Mixture.field,
                printed=printed_field,
                tolerance=STANDARD_ERRORS,
                unit="standard errors",
                mutation=Mutation(description="field 10 % off", formula=_scaled(1.1, Mixture.field)),
            ),
            Check(
                name="field against quadrature of the marginal densities, leaky ReLU included",
                against=Reference.QUADRATURE,
                measure=_distance_from_raw,
                formula=Mixture.field,
                printed=printed_field,
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(description="field 1 % off", formula=_scaled(1.01, Mixture.field)),
            ),
        ),
    ),
    Statement(
        id="lemma2-linear",
        title="A linear activation leaves a constant field",
        place="Appendix A.3.1, remarks to Lemma 2",
        printed="if φ is linear then ψ ≡ 1, θ₁ ≡ 1 and θ₂ ≡ 0",
        outcome=Outcome.HOLDS,
        explanation="With ψ ≡ 1 the field is Σ_j a_j x̄_j and Σ_j a_j whatever v and ξ are: the setting of Theorem 2.",
        checks=(
            Check(
                name="constant field against quadrature, two lengths of v and two biases",
                against=Reference.QUADRATURE,
                measure=_distance_for_linear,
                formula=lambda mixture: (mixture.weights @ mixture.centers, mixture.weights.sum()),
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(
                    description="field 1 % off",
                    formula=lambda mixture: (1.01 * mixture.weights @ mixture.centers, mixture.weights.sum()),
                ),
            ),
        ),
    ),
    Statement(
        id="eqns44-47",
        title="The gradient splits into clusters",
        place="Appendix A.3.1, proof of Lemma 2, Eqns 44-47",
        printed=(
            "Δ_m = Σ_j a_j E_j[x ψ(v·x + ξ)] with a_j = E[g | c = j] P[c = j], if g is constant within each cluster"
        ),
        outcome=Outcome.HOLDS,
        explanation=(
            "Total expectation over the clusters; a constant g comes out of each conditional mean. Where g varies "
            "within a cluster together with ψ or x, a covariance is left. ξ includes its start w(0)·u_m."
        ),
        checks=(
            Check(
                name="split by clusters against the plain average over 60 samples of 3 clusters",
                against=Reference.ENUMERATION,
                measure=_distance_of_decomposition,
                formula=_cluster_weight,
                tolerance=1e-14,  # rounding of sums of order one
                mutation=Mutation(
                    description="a_j without the probability of the cluster",
                    formula=lambda g, cluster, j: float(g[cluster == j].mean()),
                ),
            ),
        ),
    ),
    Statement(
        id="eqn50",
        title="The joint flow climbs a potential that is homogeneous of degree one",
        place="Appendix A.3.1, proof of Lemma 4, Eqns 50-53",
        printed="‖v‖ v·v̇ = Σ_j a_j F(r_j) − ‖v‖ ξ ξ̇",
        corrected="v·v̇ + ξ ξ̇ = L(v, ξ) = ‖v‖ Σ_j a_j F(s_j), and (v̇, ξ̇) = ∇L",
        outcome=Outcome.REFUTED,
        explanation=(
            "L = Σ_j a_j E φ(v·x + ξ) is what the node ascends. A homogeneous φ makes L homogeneous of degree one, "
            "so Euler's identity replaces Eqn 53, and the field depends on the direction of (v, ξ) alone. Critical "
            "points of the joint flow are therefore whole rays: ‖μ‖ is never determined. Eqn 53 inherits the "
            "normalisation of Eqn 42."
        ),
        checks=(
            Check(
                name="v·v̇ + ξ ξ̇ against quadrature of the field",
                against=Reference.QUADRATURE,
                measure=_distance_of_power,
                formula=Mixture.potential,
                printed=_printed_power,
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(description="potential 1 % off", formula=one_percent_off(Mixture.potential)),
            ),
            Check(
                name="gradient of the potential by differences against quadrature of the field",
                against=Reference.DIFFERENTIATION,
                measure=_distance_of_gradient,
                formula=Mixture.potential,
                tolerance=1e-8,  # differences of order eight, of values exact to 1e-16
                mutation=Mutation(description="potential 1 % off", formula=one_percent_off(Mixture.potential)),
            ),
        ),
    ),
)
