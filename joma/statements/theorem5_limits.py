"""Eqn 8 and what follows from Theorem 5: its limit, how co-occurrence falls with height, sparse leaves."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np

from joma.statements.latent_models import (
    FLOAT_TOLERANCE,
    NEGATIVE,
    REGULAR,
    UNEQUAL_TOPS,
    Model,
    exact_cooccurrence,
    exact_law,
    float_gap,
    height_of_pair,
    largest_gap,
    leaves_of,
    regular_model,
)
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.latent_tree import cooccurrence_limit, cooccurrence_slope, one_latent_per_class, root_parameter
from joma.verdicts import Outcome

EQUAL_TOPS = regular_model(9, (5, 5), ((9, 1), (1, 9)))
UNEVEN = Model(base=10, parents=(-1, 0, 1, 1, 2, 2, 3, 3), same=(10, 10, 9, 9, 9, 6, 9, 9), classes=(10,), zero=((6,),))


@cache
def _near_one(H: int, L: int, epsilon: Fraction, c: int | Fraction) -> Fraction:
    """Exact co-occurrence with ρ = 1 − ε and ρ₀ = 1 − cε: laws carried down edge by edge, then a sum over y_c."""

    def step(law: list[Fraction]) -> list[Fraction]:
        stay = 1 - epsilon / 2
        return [stay * law[0] + (1 - stay) * law[1], stay * law[1] + (1 - stay) * law[0]]

    zero = 1 - c * epsilon / 2
    ancestor = [zero, 1 - zero]
    for _ in range(L - 1 - H):
        ancestor = step(ancestor)
    on_given = [[Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]]
    for _ in range(H):
        on_given = [step(law) for law in on_given]
    ones = [law[1] for law in on_given]
    together = sum((p * one * one for p, one in zip(ancestor, ones, strict=True)), Fraction(0))
    return together / sum((p * one for p, one in zip(ancestor, ones, strict=True)), Fraction(0))


HEIGHTS_AND_DEPTHS = [(1, 5), (2, 5), (4, 5), (1, 3), (3, 8)]


def _second_order_ratio(approximation: Callable[[int, int, float], float]) -> float:
    """Largest |error| / ε² over ε = 1/100 to 1/10⁶; bounded if and only if the error is of second order."""
    epsilons = [Fraction(1, 10**n) for n in (2, 4, 6)]
    return largest_gap(
        [
            abs(float((_near_one(H, L, e, 1) - Fraction(approximation(H, L, float(e)))) / e**2))
            for (H, L), e in itertools.product(HEIGHTS_AND_DEPTHS, epsilons)
        ]
    )


def _limit_gap(limit: Callable[[int, int, int], float]) -> float:
    return largest_gap(
        [
            float_gap(limit(H, L, c), _near_one(H, L, Fraction(1, 10**12), c))
            for (H, L), c in itertools.product(HEIGHTS_AND_DEPTHS, (0, 1, 2, 5))
        ]
    )


Covers = Callable[[Model, int, int], bool]
"""Whether a hypothesis covers the leaf of a tree, beside a query: tree, query, leaf."""


def _largest_rise_with_height(covers: Covers) -> float:
    """Largest excess of the co-occurrence at a higher common ancestor over that at a lower one, where covered."""
    rises = []
    for model in (REGULAR, NEGATIVE, EQUAL_TOPS, UNEQUAL_TOPS, UNEVEN):
        for query in leaves_of(model):
            leaves = [leaf for leaf in leaves_of(model) if leaf != query and covers(model, query, leaf)]
            for low, high in itertools.permutations(leaves, 2):
                if height_of_pair(model, query, low) < height_of_pair(model, query, high):
                    rises.append(exact_cooccurrence(model, high, query) - exact_cooccurrence(model, low, query))
    return float(max(rises))


def _one_rho(model: Model, query: int, leaf: int) -> bool:
    return model is not UNEVEN


def _comparable(model: Model, query: int, leaf: int) -> bool:
    """Whether the common ancestor is binary, or the two leaves are equally frequent."""
    return model.ancestor(query, leaf) != 0 or exact_law(model, query)[1] == exact_law(model, leaf)[1]


def _sparse_gap(rho0: Callable[[int], np.ndarray]) -> float:
    """Distance from 2 P[y_1 = 0] − 1 of D equal classes, each of which triggers one of D latents."""
    errors = []
    for D in range(2, 7):
        zero = tuple(tuple(0 if k == r else D for r in range(D)) for k in range(D))
        model = Model(base=D, parents=(-1,) + (0,) * D, same=(D,) * (D + 1), classes=(1,) * D, zero=zero)
        exact = np.array([2 * exact_law(model, node)[0] - 1 for node in range(1, D + 1)], dtype=object)
        errors.append(float_gap(rho0(D), exact))
    return largest_gap(errors)


def _distance_from_one(depth_and_classes: tuple[int, int]) -> float:
    """1 − P[y_l = 1 | y_m = 1] at H = 1, ρ = 1 − 10⁻⁴, one latent for each of D classes, exactly."""
    L, D = depth_and_classes
    epsilon = Fraction(1, 10**4)
    return float(1 - _near_one(1, L, epsilon, Fraction(2, D) / epsilon))


LIMITS = (
    Statement(
        id="eqn8",
        title="Co-occurrence when ρ and ρ₀ approach one",
        place="Section 5, remarks to Theorem 5, Eqn 8",
        printed="for ρ = ρ₀ = 1−ε, P[y_l=1|y_m=1] = 1 − H/L + O(ε²)",
        corrected="1 − H/L − εH(L−2H)/(2L) + O(ε²) for ρ₀ = 2P[y₁=0]−1 = 1−ε; 1 − H/(L−1+c) + O(ε) for ρ₀ = 1−cε",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The limit is right, the order of the error is not: numerator and denominator are both of order ε, so "
            "terms of order ε² in them change the quotient at order ε. Only for L = 2H does the term vanish, where the "
            "value is ½ exactly. With ρ₀ read as the probability P[y₁=0] = 1−ε, as Theorem 5 defines it, the limit is "
            "1 − H/(L+1) (c = 2): 0.8333 and not 0.8 at H = 1, L = 5."
        ),
        checks=(
            Check(
                name="error over ε² for ε = 10⁻², 10⁻⁴, 10⁻⁶, five pairs of H and L",
                against=Reference.EXACT_RATIONALS,
                measure=_second_order_ratio,
                formula=lambda H, L, e: float(cooccurrence_limit(H, L) + e * cooccurrence_slope(H, L)),
                printed=lambda H, L, e: 1 - H / L,
                tolerance=10.0,  # the coefficient of ε² is below 2; without the first-order term the ratio is 10⁶
                unit="error / ε²",
                mutation=Mutation(
                    description="first-order coefficient 1 % off",
                    formula=lambda H, L, e: float(cooccurrence_limit(H, L) + 1.01 * e * cooccurrence_slope(H, L)),
                ),
            ),
            Check(
                name="limit for ρ₀ = 1 − cε with c = 0, 1, 2, 5, at ε = 10⁻¹²",
                against=Reference.EXACT_RATIONALS,
                measure=_limit_gap,
                formula=lambda H, L, c: float(cooccurrence_limit(H, L, float(c))),
                printed=lambda H, L, c: 1 - H / L,
                tolerance=1e-11,  # what is left at first order in ε
                mutation=Mutation(
                    description="c 1 % off", formula=lambda H, L, c: float(cooccurrence_limit(H, L, 1.01 * c))
                ),
            ),
        ),
    ),
    Statement(
        id="thm5-monotone",
        title="The higher the common ancestor, the weaker the co-occurrence",
        place="Section 5, after Eqn 8",
        printed="tokens with a low common ancestor (H small) co-occur a lot, those with a high one much more weakly",
        corrected="P[y_l=1|y_m=1] falls with H ≤ L−1 for any ρ ≠ 0, ±1, and does not rise at H = L if l and m are "
        "equally frequent",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "In 1 − ½(1−ρ^{2H})/(1−ρ^{L−1}ρ₀) only ρ^{2H} depends on H, so the sign of ρ does not matter. Below "
            "different children of the root the frequency of the other token enters: one that is in most sequences "
            "co-occurs with everything (0.79 against 0.47 at H = 2 here). With one ρ per edge the order is lost as "
            "well."
        ),
        checks=(
            Check(
                name="largest rise of co-occurrence with the height, over five trees",
                against=Reference.EXACT_RATIONALS,
                measure=_largest_rise_with_height,
                formula=lambda *leaf: _one_rho(*leaf) and _comparable(*leaf),
                printed=_one_rho,
                tolerance=-1e-3,  # a strict fall: equality would give zero
                unit="largest rise",
                mutation=Mutation(description="different ρ on different edges allowed", formula=_comparable),
            ),
        ),
    ),
    Statement(
        id="thm5-sparse",
        title="Many classes, one latent each",
        place="Section 5, remarks to Theorem 5",
        printed="if each class triggers one latent, ρ₀ ≈ 1; if ρ ≈ 1 too, deep trees and shallow ancestors give P → 1",
        outcome=Outcome.HOLDS,
        explanation=(
            "With D equal classes that each trigger their own child of the root, P[y₁=0] = 1 − 1/D and ρ₀ = 1 − 2/D. "
            "Then 1 − P is about H/(L−1+c) with c = 2/(Dε): it goes to zero as ρ → 1 and L/H → ∞, and not without the "
            "deep hierarchy (0.45 at L = 3)."
        ),
        checks=(
            Check(
                name="ρ₀ of D = 2 to 6 classes with one latent each",
                against=Reference.EXACT_RATIONALS,
                measure=_sparse_gap,
                formula=lambda D: root_parameter(np.full(D, 1 / D), one_latent_per_class(D)),
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(description="ρ₀ 1 % off", formula=lambda D: np.full(D, 0.99 * (1 - 2 / D))),
            ),
            Check(
                name="1 − P[y_l=1|y_m=1] at H = 1, L = 200, ρ = 1 − 10⁻⁴ and 10⁵ classes",
                against=Reference.EXACT_RATIONALS,
                measure=_distance_from_one,
                formula=(200, 10**5),
                tolerance=0.01,  # H/(L−1+c) is 0.005
                unit="1 − P",
                mutation=Mutation(description="the deep hierarchy dropped: L = 3", formula=(3, 10**5)),
            ),
        ),
    ),
)
