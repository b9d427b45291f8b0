"""Lemmas 8 and 9, Eqns 93-103: chains of latents and the correlations that they leave."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from joma.statements.latent_models import (
    FLOAT_TOLERANCE,
    IRREGULAR,
    UNEQUAL_TOPS,
    Model,
    exact_law,
    float_gap,
    largest_gap,
)
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.latent_tree import chain_parameter, edge_matrix, node_distribution, pair_distribution, root_parameter
from joma.verdicts import Outcome

CHAIN = Model(base=10, parents=(-1, 0, 1, 2, 3, 4), same=(10, 10, 9, 3, 8, 6), classes=(7, 3), zero=((9,), (2,)))
"""Trees in tenths; CHAIN is one path, UNEVEN has a weak edge beside strong ones."""
TENTHS = [Fraction(n, 5) for n in range(-5, 6)]
"""Values of ρ whose M(ρ) is in tenths."""


def _two_steps(rho_1: Fraction, rho_2: Fraction) -> np.ndarray:
    """P[y_γ | y_α] over α → β → γ by a sum over y_β; equal to (1 ± ρ)/2 on each step by Definition 2."""

    def step(rho: Fraction, child: int, parent: int) -> Fraction:
        return (1 + rho) / 2 if child == parent else (1 - rho) / 2

    return np.array(
        [[sum(step(rho_1, c, b) * step(rho_2, b, a) for b in (0, 1)) for a in (0, 1)] for c in (0, 1)], dtype=object
    )


def _edge_matrix_gap(matrix: Callable[[float], np.ndarray]) -> float:
    pairs = list(itertools.product(TENTHS, TENTHS))
    single = [float_gap(matrix(float(a * b)), _two_steps(a, b)) for a, b in pairs]
    product = [float_gap(matrix(float(a)) @ matrix(float(b)), _two_steps(a, b)) for a, b in pairs]
    return largest_gap(single + product)


def _node_distribution_gap(distribution: Callable[[float], np.ndarray]) -> float:
    def exact(a: Fraction, b: Fraction) -> np.ndarray:
        return _two_steps(a, Fraction(1)) @ np.array([(1 + b) / 2, (1 - b) / 2], dtype=object)

    return largest_gap(
        [float_gap(distribution(float(a * b)), exact(a, b)) for a, b in itertools.product(TENTHS, TENTHS)]
    )


def _conditional(model: Model, child: int, parent: int) -> np.ndarray:
    """P[y_child | y_parent] of any two nodes, whichever is above: child by row."""
    joint = exact_law(model, child, parent)
    return joint / joint.sum(axis=0)


def _chain_gap(order: Callable[[tuple[int, ...]], tuple[int, ...]]) -> float:
    """Distance of the product P(γ|β₁) P(β₁|β₂) … P(β_k|α) from P(γ|α), all enumerated on a path α = 1 to γ = 5."""
    nodes = (5, *order((2, 3, 4)), 1)
    product = np.array([[1, 0], [0, 1]], dtype=object)
    for child, parent in itertools.pairwise(nodes):
        product = product @ _conditional(CHAIN, child, parent)
    return float_gap(product, _conditional(CHAIN, 5, 1))


def _chain_matrix_gap(matrix: Callable[[np.ndarray], np.ndarray]) -> float:
    rho = np.array([float(CHAIN.rho(node)) for node in (2, 3, 4, 5)])
    return float_gap(matrix(rho), _conditional(CHAIN, 5, 1))


def _pairs_below_a_latent(model: Model) -> list[tuple[int, int]]:
    pairs = itertools.permutations(range(1, len(model.parents)), 2)
    return [(i, j) for i, j in pairs if model.ancestor(i, j) != 0]


def _ancestor_parameters(model: Model, first: int, second: int) -> tuple[float, float, float]:
    """ρ from the common ancestor to each node, and ρ_c = 2 P[y_c = 0] − 1 from the enumeration."""
    c = model.ancestor(first, second)
    return (
        float(model.rho_below(c, first)),
        float(model.rho_below(c, second)),
        float(2 * exact_law(model, c)[0] - 1),
    )


def _pair_gap(law: Callable[[float, float, float], np.ndarray]) -> float:
    return largest_gap(
        [
            float_gap(law(*_ancestor_parameters(IRREGULAR, i, j)), exact_law(IRREGULAR, i, j))
            for i, j in _pairs_below_a_latent(IRREGULAR)
        ]
    )


def _expanded_pair(rho_l: float, rho_m: float, rho_c: float) -> np.ndarray:
    one, e = np.ones(2), np.array([1.0, -1.0])
    terms = ((1.0, one, one), (rho_l * rho_m, e, e), (rho_l * rho_c, e, one), (rho_m * rho_c, one, e))
    return np.asarray(sum(weight * np.outer(left, right) for weight, left, right in terms) / 4)


def _latent_parameter_gap(rho0: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Distance of ρ_{c|1} ρ₀ from 2 P[y_c = 0] − 1 for every binary node of two trees."""
    errors = []
    for model in (IRREGULAR, UNEQUAL_TOPS):
        tree = model.tree()
        by_top = dict(zip(tree.tops.tolist(), rho0(tree.class_probabilities, tree.zero_given_class), strict=True))
        for node in range(1, len(model.parents)):
            top = model.path(node)[-2]
            claimed = float(model.rho_below(top, node)) * by_top[top]
            errors.append(float_gap(claimed, 2 * exact_law(model, node)[0] - 1))
    return largest_gap(errors)


CHAINS = (
    Statement(
        id="lemma8",
        title="Products of edge matrices",
        place="Appendix A.5, Definitions 1 and 2, Lemma 8, Eqns 89 and 90",
        printed="M(ρ) is symmetric, M(ρ)1 = 1, M(ρ₁)M(ρ₂) = M(ρ₁ρ₂) and M(ρ₁)p(ρ₂) = p(ρ₁ρ₂)",
        outcome=Outcome.HOLDS,
        explanation=(
            "M(ρ) = ½(11ᵀ + ρeeᵀ) with e = [1, −1] orthogonal to 1, so products multiply the coefficient of eeᵀ only. "
            "The reference walks two edges by a sum over the middle variable, in exact rationals for 121 pairs of ρ."
        ),
        checks=(
            Check(
                name="M(ρ₁)M(ρ₂) and M(ρ₁ρ₂) against the sum over the middle variable",
                against=Reference.EXACT_RATIONALS,
                measure=_edge_matrix_gap,
                formula=edge_matrix,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(description="ρ 1 % off", formula=lambda rho: edge_matrix(0.99 * rho)),
            ),
            Check(
                name="p(ρ₁ρ₂) against the law of the child of a node with p(ρ₂)",
                against=Reference.EXACT_RATIONALS,
                measure=_node_distribution_gap,
                formula=node_distribution,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(description="ρ 1 % off", formula=lambda rho: node_distribution(0.99 * rho)),
            ),
        ),
    ),
    Statement(
        id="lemma9",
        title="A latent and its descendant",
        place="Appendix A.5, Lemma 9, Eqns 91 and 92",
        printed="P(γ|α) = P(γ|β₁)P(β₁|β₂)…P(β_k|α) = M(ρ_{γ|α}) for the chain α ≻ β₁ ≻ β₂ ≻ … ≻ β_k ≻ γ",
        corrected="the chain that this product walks is α ≻ β_k ≻ … ≻ β₂ ≻ β₁ ≻ γ",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The product conditions γ on β₁, so β₁ is the parent of γ and the lowest of the chain. In the order as "
            "printed P(β₁|β₂) would be the law of a latent given its child, which is not M(ρ) unless the latent is "
            "uniform. The parameter ρ_{γ|α} is the product over the edges and does not depend on the order."
        ),
        checks=(
            Check(
                name="product of enumerated conditional laws along a path of five nodes",
                against=Reference.EXACT_RATIONALS,
                measure=_chain_gap,
                formula=lambda downwards: downwards[::-1],
                printed=lambda downwards: downwards,
                tolerance=0.0,  # fractions on both sides
                mutation=Mutation(
                    description="last two of the chain exchanged",
                    formula=lambda downwards: (downwards[2], downwards[0], downwards[1]),
                ),
            ),
            Check(
                name="M of the product of ρ against the enumerated P(γ|α)",
                against=Reference.EXACT_RATIONALS,
                measure=_chain_matrix_gap,
                formula=lambda rho: edge_matrix(chain_parameter(rho)),
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(
                    description="product 1 % off", formula=lambda rho: edge_matrix(0.99 * chain_parameter(rho))
                ),
            ),
        ),
    ),
    Statement(
        id="eqn98",
        title="Joint law of two nodes below a latent",
        place="Appendix A.5, Eqns 93-98",
        printed="P(β₁,β₂) = M(ρ₁)D(c)M(ρ₂)ᵀ = ¼(11ᵀ + ρ₁ρ₂eeᵀ + ρ₁ρ_c e1ᵀ + ρ₂ρ_c 1eᵀ), ρ_c = 2P[y_c=0] − 1",
        outcome=Outcome.HOLDS,
        explanation=(
            "Given the common ancestor the two nodes are independent. Both the product and its expansion agree with "
            "enumeration for every pair of latents and leaves below a latent, with a different ρ on every edge; a node "
            "and its own ancestor are the case ρ = 1."
        ),
        checks=(
            Check(
                name="product of Eqn 94 over all pairs of an irregular tree",
                against=Reference.EXACT_RATIONALS,
                measure=_pair_gap,
                formula=pair_distribution,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(
                    description="ρ_c 1 % off", formula=lambda a, b, rho_c: pair_distribution(a, b, 0.99 * rho_c)
                ),
            ),
            Check(
                name="expansion of Eqn 98 over all pairs of an irregular tree",
                against=Reference.EXACT_RATIONALS,
                measure=_pair_gap,
                formula=_expanded_pair,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(
                    description="the last two terms exchanged",
                    formula=lambda rho_l, rho_m, rho_c: _expanded_pair(rho_l, rho_m, rho_c).T,
                ),
            ),
        ),
    ),
    Statement(
        id="eqn103",
        title="The parameter ρ₀ of the root",
        place="Appendix A.5, Eqns 99-103",
        printed="p_c = p(ρ_{c|1}ρ₀) with ρ₀ = Σ_k P[y₁=0|y₀=k] P[y₀=k]",
        corrected="p_c = p(ρ_{c|1}ρ₀) with ρ₀ = Σ_k (2P[y₁=0|y₀=k] − 1) P[y₀=k] = 2P[y₁=0] − 1",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "Eqn 101 writes P[y₁=0|y₀=k] as ½(1 + p_{k|0}), so p_{k|0} there is 2P − 1, while Theorem 5 defines "
            "p_{·|0} as the probability itself; the derivation is right with the first reading. Two slips: the sum "
            "over y₁ in Eqn 100 repeats what the matrix product does already, and Eqn 103 prints the matrix M(·) for "
            "the vector p(·)."
        ),
        checks=(
            Check(
                name="2P[y_c=0] − 1 of every latent and leaf of two trees",
                against=Reference.EXACT_RATIONALS,
                measure=_latent_parameter_gap,
                formula=root_parameter,
                printed=lambda p, zero: p @ zero,
                tolerance=FLOAT_TOLERANCE,
                mutation=Mutation(description="ρ₀ 1 % off", formula=lambda p, zero: 0.99 * root_parameter(p, zero)),
            ),
        ),
    ),
)
