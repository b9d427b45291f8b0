"""Lemmas 6 and 7: two bounded functions of a Gaussian."""

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import optimize
from scipy.differentiate import derivative
from scipy.integrate import quad

from joma.statements.extremes import bound, maximum, sharp_constant
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.convergence import G_SUP, SMALL_G_SUP, small_g
from joma.types import Real
from joma.verdicts import Outcome


def _small_g(y: Real) -> np.ndarray:
    return np.asarray((1 - np.exp(-np.square(y))) / y)


@cache
def _largest_small_g() -> float:
    return maximum(lambda y: float(_small_g(y)), (1e-3, 10.0))


@cache
def _largest_gaussian_g() -> float:
    return maximum(lambda y: quad(lambda x: np.exp((x**2 - y**2) / 2), 0, y, epsabs=1e-13)[0], (1e-3, 10.0))


def _stationary_gap(value_at_stationary: Callable[[float], float]) -> float:
    """Distance from g where its numerical derivative vanishes (Eqns 75, 76)."""
    y = optimize.brentq(lambda y: float(derivative(_small_g, y, initial_step=0.1).df), 0.5, 2.0)
    return abs(value_at_stationary(y) - float(_small_g(y)))


def _dominance(bound: Callable[[np.ndarray], np.ndarray]) -> float:
    """How far G(y), by quadrature, exceeds a function claimed to dominate it."""
    y = np.linspace(0.05, 8, 60)
    G = np.array([quad(lambda x, top=top: np.exp((x**2 - top**2) / 2), 0, top, epsabs=1e-13)[0] for top in y])
    return max(0.0, float((G - bound(y)).max()))


LEMMAS = (
    Statement(
        id="lemma6",
        title="Bound of (1 − exp(−y²))/y",
        place="Appendix A.4.1, Lemma 6",
        printed="max over y ≥ 0 of g(y) = (1 − e^{−y²})/y is at most 1/√2",
        outcome=Outcome.HOLDS,
        explanation="The maximum is 0.6382, a tenth below the bound; see lemma6-sharp.",
        checks=(
            bound("how far the maximum of g exceeds the bound", _largest_small_g, 1 / np.sqrt(2), sharp=SMALL_G_SUP),
        ),
    ),
    Statement(
        id="lemma6-sharp",
        title="Stationary point of g, and the sharp constant",
        place="Appendix A.4.1, Eqns 75 and 76",
        printed="at a stationary point e^{−y²} = 1/(2y²+1) and g = 2y/(2y²+1)",
        outcome=Outcome.HOLDS,
        explanation=(
            "Eqn 75 has one root besides zero, y = √(−½ − W₋₁(−½e^{−1/2})) = 1.1209064228, and there g = 0.6381726863: "
            "the sharp constant of Lemma 6."
        ),
        checks=(
            Check(
                name="g where its numerical derivative vanishes",
                against=Reference.ROOT_FINDING,
                measure=_stationary_gap,
                formula=lambda y: 2 * y / (2 * y**2 + 1),
                tolerance=1e-9,  # the root of a numerical derivative is good to 1e-10
                mutation=Mutation(description="1 % off", formula=lambda y: 2.02 * y / (2 * y**2 + 1)),
            ),
            sharp_constant("sharp constant", _largest_small_g, SMALL_G_SUP),
        ),
    ),
    Statement(
        id="lemma7",
        title="Bound of a Gaussian integral",
        place="Appendix A.4.1, Lemma 7",
        printed="0 ≤ G(y) = e^{−y²/2} ∫₀^y e^{x²/2} dx ≤ 1 for y ≥ 0",
        outcome=Outcome.HOLDS,
        explanation="The supremum is 0.7652; G(y) = √2·D(y/√2) with Dawson's integral D.",
        checks=(bound("how far the maximum of G exceeds the bound", _largest_gaussian_g, 1.0, sharp=G_SUP),),
    ),
    Statement(
        id="lemma7-sharp",
        title="The step from Lemma 6 to Lemma 7, and the sharp constant",
        place="Appendix A.4.1, proof of Lemma 7",
        printed="G(y) ≤ (2/y)(1 − e^{−y²/2}) = √2·g(y/√2)",
        outcome=Outcome.HOLDS,
        explanation=(
            "x² ≤ xy on 0 ≤ x ≤ y. Since G' = 1 − yG, the maximum is where G = 1/y: y = 1.3069297277, G = 0.7651520803."
        ),
        checks=(
            Check(
                name="how far G exceeds √2·g(y/√2)",
                against=Reference.QUADRATURE,
                measure=_dominance,
                formula=lambda y: np.sqrt(2) * small_g(y / np.sqrt(2)),
                tolerance=1e-12,  # rounding of the quadrature where both sides meet, at y → 0
                unit="excess",
                mutation=Mutation(description="g without √2", formula=lambda y: small_g(y / np.sqrt(2))),
            ),
            sharp_constant("sharp constant", _largest_gaussian_g, G_SUP),
        ),
    ),
)
