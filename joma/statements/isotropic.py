"""Appendix A.3.1, Lemmas 1, 3 and 5, Eqns 57 and 58: half-spaces of isotropic distributions.

Lemma 1 and the marginal density are in `lemma1` and `marginals`, the curve G in `figure9`; here are Lemmas 3 and 5.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.differentiate import derivative

from joma.statements import figure9, lemma1, marginals
from joma.statements.lemma1 import NOISES, QUADRATURE_TOLERANCE
from joma.statements.quadrature import difference, mean_of, panels, thetas
from joma.statements.raw_field import marginal_of
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import Activation, homogeneous, linear, relu
from joma.theory.hyperplane import mean_activation, theta1, theta1_slope, theta2, theta2_slope
from joma.theory.isotropic import Gaussian, Isotropic
from joma.verdicts import Outcome

OfDistance = Callable[[Isotropic, float, Activation], np.ndarray]
"""A claim about a function of s."""
Slopes = Callable[[Isotropic, float, Activation], tuple[float, float]]
"""A claim about the derivatives of θ₁ and θ₂."""
OfActivation = Callable[[float, float], bool]
"""A claim about an activation with slopes c₋ and c₊."""

PLACES = (-1.7, -0.4, 0.0, 0.6, 2.3)
# The fourth-order difference errs by 1e-12 times a fifth derivative, and by the rounding of quadratures over 1e-3.
DIFFERENCE_TOLERANCE = 1e-8
FAR_LEFT, NEAR_ZERO = -1e4, 1e-3
"""Where F is looked at for its limit, and what counts as zero there: under t₃ it falls like the inverse square."""

ACTIVATIONS = (
    relu,
    homogeneous(0.1, 1.0, name="leaky"),
    linear,
    homogeneous(-1.0, 1.0, name="absolute value"),
    homogeneous(1.0, 0.0, name="minus ReLU of minus x"),
    homogeneous(-0.5, 2.0),
    homogeneous(-1.0, -1.0, name="minus x"),
)


def _worst(error: Callable[[Isotropic, float, Activation], float]) -> float:
    """Largest error over distributions, places and activations."""
    return max(error(p, s, phi) for p in NOISES for s in PLACES for phi in ACTIVATIONS)


def _error_of_derivative(mean: OfDistance) -> float:
    """d/ds of F, by differences of the formula, against θ₁ by quadrature."""

    def error(p: Isotropic, s: float, phi: Activation) -> float:
        slope = derivative(lambda s: mean(p, s, phi), s, initial_step=0.05).df
        return abs(float(slope) - thetas(p, s, phi)[0])

    return _worst(error)


def _error_of_eqn_49(second: OfDistance) -> float:
    """θ₂(s) against θ₂(0) − sθ₁(s) + ∫₀^s θ₁, all by quadrature."""
    leaky = ACTIVATIONS[1]
    c_minus, c_plus = _slopes(leaky)
    # Panels shrink towards the edges of the balls.
    near = np.concatenate([[0.0], 2.0 ** -np.arange(30)])
    cuts = np.concatenate([-1 - near, -1 + near, 1 - near, 1 + near])

    def error(p: Isotropic, s: float) -> float:
        x, weight = panels(np.unique(np.clip(np.append(cuts, [0.0, s]), min(0, s), max(0, s))))
        between = np.sign(s) * weight @ (c_minus + (c_plus - c_minus) * marginal_of(p).cdf(x))
        exact = thetas(p, 0.0, leaky)[1] - s * thetas(p, s, leaky)[0] + between
        return abs(float(second(p, s, leaky)) - exact)

    return max(error(p, s) for p in NOISES for s in PLACES)


def _wrong_on_growth(grows: OfActivation) -> float:
    """Activations for which a claim that F increases without bound differs from F by quadrature."""
    grid = np.linspace(-4, 8, 25)
    wrong = 0
    for phi in ACTIVATIONS:
        steps = np.diff([mean_of(Gaussian(), float(s), phi) for s in grid])
        wrong += grows(*_slopes(phi)) != bool((steps > -QUADRATURE_TOLERANCE).all() and steps[-1] > NEAR_ZERO)
    return float(wrong)


def _wrong_on_vanishing(vanishes: OfActivation) -> float:
    """Activations for which a claim that F(−∞) = 0 differs from F by quadrature, normal and t₃."""
    return float(
        sum(
            vanishes(*_slopes(phi)) != (abs(mean_of(p, FAR_LEFT, phi)) < NEAR_ZERO)
            for phi in ACTIVATIONS
            for p in (NOISES[0], NOISES[-1])
        )
    )


def _slopes(phi: Activation) -> tuple[float, float]:
    return phi.require_homogeneous("Lemma 3")


def _error_of_slopes(slopes: Slopes) -> float:
    """Against differences of θ₁ and θ₂ by quadrature."""

    def error(p: Isotropic, s: float, phi: Activation) -> float:
        found = difference(lambda x: np.array(thetas(p, x, phi)), s)
        return float(np.abs(found - slopes(p, s, phi)).max())

    return _worst(error)


def _error_of_homogeneity(phi: Callable[[float, float, np.ndarray], np.ndarray]) -> float:
    """φ(x) − φ'(x)·x with φ' by differences, on either side of zero."""
    x = np.array([-2.0, -0.3, 0.5, 1.7])
    worst = 0.0
    for c_minus, c_plus in ((0.0, 1.0), (0.1, 1.0), (-1.0, 2.0)):
        slope = derivative(partial(phi, c_minus, c_plus), x, initial_step=0.1).df
        worst = max(worst, float(np.abs(phi(c_minus, c_plus, x) - slope * x).max()))
    return worst


def _lemma5(p: Isotropic, s: float, phi: Activation) -> tuple[float, float]:
    return float(theta1_slope(p, s, phi)), float(theta2_slope(p, s, phi))


def _printed_lemma5(p: Isotropic, s: float, phi: Activation) -> tuple[float, float]:
    total = sum(_slopes(phi)) * float(p.density(s))
    return total, -s * total


LEMMAS = (
    Statement(
        id="lemma3",
        title="F is an antiderivative of θ₁",
        place="Appendix A.3.1, Lemma 3, Eqns 48 and 49",
        printed="d/dr(θ₂ + rθ₁) = θ₁, and θ₂(r) = θ₂(0) − rθ₁(r) + ∫₀^r θ₁",
        outcome=Outcome.HOLDS,
        explanation=(
            "F(s) = θ₂ + sθ₁ = E φ(y + s) for homogeneous φ, and differentiation under the mean gives E ψ(y + s). "
            "It holds for the functions themselves; for a v of any length they are to be taken at s = r/‖v‖."
        ),
        checks=(
            Check(
                name="derivative of F against θ₁, 4 distributions × 5 places × 7 activations",
                against=Reference.QUADRATURE,
                measure=_error_of_derivative,
                formula=mean_activation,
                tolerance=DIFFERENCE_TOLERANCE,
                mutation=Mutation(
                    description="θ₂ 1 % off", formula=lambda p, s, phi: 1.01 * theta2(p, s, phi) + s * theta1(p, s, phi)
                ),
            ),
            Check(
                name="Eqn 49 for a leaky ReLU, 4 distributions × 5 places",
                against=Reference.QUADRATURE,
                measure=_error_of_eqn_49,
                formula=theta2,
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(description="θ₂ 1 % off", formula=lambda p, s, phi: 1.01 * theta2(p, s, phi)),
            ),
        ),
    ),
    Statement(
        id="lemma3-limits",
        title="F grows from zero to infinity",
        place="Appendix A.3.1, Lemma 3, after Eqn 49; Lemma 4",
        printed="F is monotonously increasing with F(+∞) = +∞; if rθ₁(r) → 0 at −∞ then F(−∞) = 0 and F ≥ 0",
        corrected="F increases to infinity if and only if c₋ ≥ 0 < c₊; F(−∞) = 0 if and only if c₋ = 0, given a mean",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "F' = θ₁ lies between c₋ and c₊ and approaches them, so F increases for all s if and only if neither is "
            "negative: not for |x|, which is homogeneous. On the left F ≈ c₋s, so the condition rθ₁ → 0 says "
            "c₋ = 0. A finite mean is needed for θ₂, and so F, to exist at all."
        ),
        checks=(
            Check(
                name="whether F increases without bound, 7 activations",
                against=Reference.QUADRATURE,
                measure=_wrong_on_growth,
                formula=lambda c_minus, c_plus: c_minus >= 0 and c_plus > 0,
                printed=lambda c_minus, c_plus: True,
                tolerance=0.0,
                unit="wrong answers",
                mutation=Mutation(description="c₊ > 0 alone", formula=lambda c_minus, c_plus: c_plus > 0),
            ),
            Check(
                name="whether F(−∞) = 0, 7 activations, normal and t₃",
                against=Reference.QUADRATURE,
                measure=_wrong_on_vanishing,
                formula=lambda c_minus, c_plus: c_minus == 0,
                tolerance=0.0,
                unit="wrong answers",
                mutation=Mutation(description="c₋ ≥ 0", formula=lambda c_minus, c_plus: c_minus >= 0),
            ),
        ),
    ),
    Statement(
        id="lemma5",
        title="Derivatives of θ₁ and θ₂",
        place="Appendix A.4, Lemma 5, Eqns 61-65",
        printed="φ = c₋1[x<0] + c₊1[x>0], and dθ₁/dr = (c₋+c₊)p_n(r), dθ₂/dr = −(c₋+c₊)r p_n(r)",
        corrected="φ' = c₋1[x<0] + c₊1[x>0], and dθ₁/ds = (c₊−c₋)p(s), dθ₂/ds = −(c₊−c₋)s p(s)",
        outcome=Outcome.REFUTED,
        explanation=(
            "φ(x) = φ'(x)x makes φ' constant on either side of zero (Eqns 62-65 are right), so it is φ' that is a "
            "step; a step φ is not homogeneous. θ₁ = c₋ + (c₊−c₋)P(s) gives the difference of the slopes. For a "
            "linear activation both derivatives vanish; as printed they are 2p and −2rp. The two agree for c₋ = 0."
        ),
        checks=(
            Check(
                name="derivatives, 4 distributions × 5 places × 7 activations, against differences of quadratures",
                against=Reference.DIFFERENTIATION,
                measure=_error_of_slopes,
                formula=_lemma5,
                printed=_printed_lemma5,
                tolerance=DIFFERENCE_TOLERANCE,
                mutation=Mutation(
                    description="1 % off", formula=lambda p, s, phi: tuple(1.01 * x for x in _lemma5(p, s, phi))
                ),
            ),
            Check(
                name="whether the claimed φ is homogeneous: φ − φ'x",
                against=Reference.DIFFERENTIATION,
                measure=_error_of_homogeneity,
                formula=lambda c_minus, c_plus, x: homogeneous(c_minus, c_plus).value(x),
                printed=lambda c_minus, c_plus, x: c_minus * (x < 0) + c_plus * (x > 0),
                tolerance=DIFFERENCE_TOLERANCE,
                mutation=Mutation(
                    description="power 1.01 of x",
                    formula=lambda c_minus, c_plus, x: np.where(x > 0, c_plus, -c_minus) * np.abs(x) ** 1.01,
                ),
            ),
        ),
    ),
)

STATEMENTS: tuple[Statement, ...] = (*lemma1.STATEMENTS, *marginals.STATEMENTS, *LEMMAS, *figure9.STATEMENTS)
