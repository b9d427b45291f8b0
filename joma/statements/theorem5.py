"""Section 5, Theorem 5: which leaves of a latent tree occur together."""

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np

from joma.statements.latent_models import (
    FLOAT_TOLERANCE,
    IRREGULAR,
    NEGATIVE,
    REGULAR,
    exact_cooccurrence,
    float_gap,
    height_of_pair,
    largest_gap,
    leaves_of,
)
from joma.statements.lemmas8_9 import CHAINS
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.statements.theorem5_limits import LIMITS
from joma.theory.latent_tree import LatentTree, cooccurrence, regular_tree, root_cooccurrence, root_parameter
from joma.verdicts import Outcome

DEPTH = 3
Theorem5 = Callable[[int, int, float, np.ndarray, np.ndarray], float]
"""H, L, ρ, class probabilities and P[y_1 = 0 | y_0 = k] of the child of the root in; co-occurrence out."""


def _theorem5(H: int, L: int, rho: float, p: np.ndarray, zero: np.ndarray) -> float:
    return float(cooccurrence(H, L, rho, root_parameter(p, zero)))


def _printed_formula(H: int, L: int, rho: float, rho0: float) -> float:
    return (1 + rho ** (2 * H) - 2 * rho ** (L - 1) * rho0) / (1 - rho ** (L - 1) * rho0) / 2


def _printed_theorem5(H: int, L: int, rho: float, p: np.ndarray, zero: np.ndarray) -> float:
    return _printed_formula(H, L, rho, float(p @ zero))


def _theorem5_gap(formula: Theorem5) -> float:
    """Largest error over all ordered pairs of leaves with a binary common ancestor, for both signs of ρ."""
    errors = []
    for model in (REGULAR, NEGATIVE):
        tree = model.tree()
        for i, j in itertools.permutations(leaves_of(model), 2):
            H = height_of_pair(model, i, j)
            if H < DEPTH:
                zero = tree.zero_given_class[:, model.path(j)[-2] - 1]
                claimed = formula(H, DEPTH, float(model.rho(i)), tree.class_probabilities, zero)
                errors.append(float_gap(claimed, exact_cooccurrence(model, i, j)))
    return largest_gap(errors)


def _any_tree_gap(matrix: Callable[[LatentTree], np.ndarray]) -> float:
    leaves = leaves_of(IRREGULAR)
    exact = np.array([[exact_cooccurrence(IRREGULAR, i, j) for j in leaves] for i in leaves], dtype=object)
    return float_gap(matrix(IRREGULAR.tree()), exact)


MONTE_CARLO_DEPTH, MONTE_CARLO_RHO, MONTE_CARLO_SIZE = 5, 0.9, 200_000
MONTE_CARLO_CLASSES, MONTE_CARLO_ZERO = np.array([0.5, 0.5]), np.array([0.9, 0.6])


@cache
def _sampled_cooccurrence() -> tuple[np.ndarray, np.ndarray]:
    """Frequency of y_l = 1 among samples with y_m = 1, and its standard error, for H = 1 to 4 on a tree of depth 5."""
    tree = regular_tree(
        MONTE_CARLO_DEPTH,
        (1, 2, 2, 2, 2),
        MONTE_CARLO_RHO,
        class_probabilities=MONTE_CARLO_CLASSES,
        zero_given_class=MONTE_CARLO_ZERO,
    )
    query, *others = tree.leaves[[0, 1, 2, 4, 8]]
    y = tree.sample(np.random.default_rng(0), MONTE_CARLO_SIZE)
    together = y[y[:, query] == 1][:, others]
    frequency = together.mean(axis=0)
    return frequency, np.sqrt(frequency * (1 - frequency) / len(together))


def _monte_carlo_gap(formula: Theorem5) -> float:
    frequency, error = _sampled_cooccurrence()
    claimed = [
        formula(H, MONTE_CARLO_DEPTH, MONTE_CARLO_RHO, MONTE_CARLO_CLASSES, MONTE_CARLO_ZERO)
        for H in range(1, MONTE_CARLO_DEPTH)
    ]
    return float(np.abs((frequency - claimed) / error).max())


def _root_gap(formula: Callable[[int, float, np.ndarray, np.ndarray, np.ndarray], float]) -> float:
    """Largest error over all ordered pairs of leaves with nothing but the root above both."""
    errors = []
    for model in (REGULAR, NEGATIVE):
        tree = model.tree()
        for i, j in itertools.permutations(leaves_of(model), 2):
            if height_of_pair(model, i, j) == DEPTH:
                zero_i, zero_j = (tree.zero_given_class[:, model.path(node)[-2] - 1] for node in (i, j))
                claimed = formula(DEPTH, float(model.rho(i)), tree.class_probabilities, zero_i, zero_j)
                errors.append(float_gap(claimed, exact_cooccurrence(model, i, j)))
    return largest_gap(errors)


def _theorem5_at_the_root(L: int, rho: float, p: np.ndarray, zero_l: np.ndarray, zero_m: np.ndarray) -> float:
    """Theorem 5 with H = L, ρ₀ already mended: what the statement says without the condition H ≤ L − 1."""
    return _printed_formula(L, L, rho, float(root_parameter(p, zero_m)))


COOCCURRENCE = (
    Statement(
        id="thm5",
        title="Co-occurrence of two tokens",
        place="Section 5, Theorem 5, Eqns 104 and 105",
        printed="P[y_l=1|y_m=1] = ½(1+ρ^{2H}−2ρ^{L−1}ρ₀)/(1−ρ^{L−1}ρ₀), ρ₀ = Σ_k P[y₁=0|y₀=k] P[y₀=k]",
        corrected="the same with ρ₀ = 2P[y₁=0] − 1 and 1 ≤ H ≤ L−1; equal to 1 − ½(1−ρ^{2H})/(1−ρ^{L−1}ρ₀)",
        outcome=Outcome.REFUTED,
        explanation=(
            "With ρ₀ as the text defines it the formula is off: on a tree with L = 3, ρ = 0.8, P[y₁=0] = 0.46 two "
            "siblings occur together with 121/146 = 0.8288, not 0.7449. L counts the edges from the root to a leaf, "
            "and ρ₀ belongs to the child of the root above m. With a ρ of its own on every edge the height H does not "
            "decide; the library then computes the matrix of all pairs."
        ),
        checks=(
            Check(
                name="all pairs of leaves below a latent, two trees of 14 binary nodes with ρ = ±0.8",
                against=Reference.EXACT_RATIONALS,
                measure=_theorem5_gap,
                formula=_theorem5,
                printed=_printed_theorem5,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(
                    description="ρ 1 % off", formula=lambda H, L, rho, *k: _theorem5(H, L, 0.99 * rho, *k)
                ),
            ),
            Check(
                name="matrix of all leaves of an irregular tree, one ρ per edge, three classes",
                against=Reference.EXACT_RATIONALS,
                measure=_any_tree_gap,
                formula=LatentTree.cooccurrence_matrix,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(
                    description="matrix transposed: P[y_m=1|y_l=1]", formula=lambda tree: tree.cooccurrence_matrix().T
                ),
            ),
            Check(
                name="200,000 sampled trees of depth 5, H = 1 to 4",
                against=Reference.MONTE_CARLO,
                measure=_monte_carlo_gap,
                formula=_theorem5,
                printed=_printed_theorem5,
                tolerance=4.5,  # four dependent frequencies
                unit="standard errors",
                mutation=Mutation(
                    description="ρ 2 % off", formula=lambda H, L, rho, *k: _theorem5(H, L, 0.98 * rho, *k)
                ),
            ),
        ),
    ),
    Statement(
        id="thm5-root",
        title="Theorem 5 for tokens with nothing but the root above both",
        place="Section 5, Theorem 5 at H = L",
        printed="the formula of Theorem 5 holds for a common ancestor of any depth H up to the total depth L",
        corrected="½(1 − t(ρ_l+ρ_m) + t²Σ_k p_k q_k^l q_k^m)/(1 − tρ_m), t = ρ^{L−1}, q_k = 2P[y₁=0|y₀=k] − 1",
        outcome=Outcome.REFUTED,
        explanation=(
            "The proof takes a binary common ancestor. The root has D values and each of its children depends on it in "
            "its own way, so two tokens below different children need their joint law over the classes: it may be far "
            "above or far below what H = L gives in Theorem 5, even with ρ₀ mended."
        ),
        checks=(
            Check(
                name="all pairs of leaves below different children of the root, two trees",
                against=Reference.EXACT_RATIONALS,
                measure=_root_gap,
                formula=root_cooccurrence,
                printed=_theorem5_at_the_root,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(
                    description="ρ 1 % off", formula=lambda L, rho, *rest: root_cooccurrence(L, 0.99 * rho, *rest)
                ),
            ),
        ),
    ),
)

STATEMENTS = (*CHAINS, *COOCCURRENCE, *LIMITS)
