"""Section 5: latent trees, Lemmas 8 and 9, Theorem 5 and its limit, against enumeration in whole numbers."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.latent_tree import (
    LatentTree,
    chain_parameter,
    cooccurrence,
    cooccurrence_limit,
    cooccurrence_slope,
    edge_matrix,
    node_distribution,
    one_latent_per_class,
    pair_distribution,
    regular_tree,
    root_cooccurrence,
    root_parameter,
)
from joma.verdicts import Outcome

# Probabilities are compared with the floats nearest to exact rationals, after a few roundings of numbers below one.
FLOAT_TOLERANCE = 1e-15


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A latent tree whose probabilities are whole numbers over `base`, so that enumeration is exact."""

    base: int
    parents: tuple[int, ...]
    same: tuple[int, ...]
    """P[child = parent] = (1 + ρ)/2 above every node; `base` for the root and its children."""
    classes: tuple[int, ...]
    zero: tuple[tuple[int, ...], ...]
    """P[y_1 = 0 | y_0 = k], a row for every class."""

    def tree(self) -> LatentTree:
        return LatentTree(
            parents=np.array(self.parents),
            rho=np.array([float(self.rho(node)) for node in range(len(self.parents))]),
            class_probabilities=np.array(self.classes) / self.base,
            zero_given_class=np.array(self.zero) / self.base,
        )

    def rho(self, node: int) -> Fraction:
        return Fraction(2 * self.same[node], self.base) - 1

    def path(self, node: int) -> list[int]:
        """The node, its parent, and so on up to the root."""
        above = [node]
        while above[-1] != 0:
            above.append(self.parents[above[-1]])
        return above

    def ancestor(self, first: int, second: int) -> int:
        return max(set(self.path(first)) & set(self.path(second)))

    def rho_below(self, ancestor: int, node: int) -> Fraction:
        """Product of ρ over the edges between a latent and a node below it."""
        path = self.path(node)
        return math.prod((self.rho(n) for n in path[: path.index(ancestor)]), start=Fraction(1))


@cache
def _enumerate(model: _Model) -> np.ndarray:
    """Whole-numbered weight of every configuration (y_0, y_1, ..., y_N), by the definition of the model."""
    tops = [node for node, parent in enumerate(model.parents) if parent == 0]
    table = np.array(model.classes, dtype=object)
    for node, parent in enumerate(model.parents[1:], start=1):
        if parent == 0:
            rows = [(row[tops.index(node)], model.base - row[tops.index(node)]) for row in model.zero]
        else:
            rows = [(model.same[node], model.base - model.same[node])]
            rows.append(rows[0][::-1])
        law = np.array(rows, dtype=object)
        shape = [1] * (node + 1)
        shape[parent], shape[node] = law.shape
        table = table[..., None] * law.reshape(shape)
    return table


@cache
def _law(model: _Model, *nodes: int) -> np.ndarray:
    """Exact joint law of different nodes, in the order given, as fractions."""
    wanted = sorted(nodes)
    table = _enumerate(model)
    if len(nodes) < len(_leaves(model)) and set(nodes) <= set(_leaves(model)):
        table, wanted = _law(model, *_leaves(model)), [_leaves(model).index(node) for node in wanted]
    kept = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in wanted))
    in_order = np.transpose(kept, np.argsort(np.argsort(nodes)))
    return np.vectorize(Fraction, otypes=[object])(in_order) / Fraction(kept.sum())


@cache
def _leaves(model: _Model) -> tuple[int, ...]:
    return tuple(node for node in range(1, len(model.parents)) if node not in model.parents)


def _cooccurrence(model: _Model, node: int, given: int) -> Fraction:
    if node == given:
        return Fraction(1)
    joint = _law(model, node, given)
    return joint[1, 1] / joint[:, 1].sum()


def _height(model: _Model, first: int, second: int) -> int:
    """Edges between a leaf and the common ancestor, for trees whose leaves have one depth."""
    return model.path(first).index(model.ancestor(first, second))


def _regular(same: int, classes: tuple[int, ...], zero: tuple[tuple[int, ...], ...]) -> _Model:
    """Depth 3, two children each: 14 binary nodes, 8 leaves; probabilities in tenths."""
    parents = (-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6)
    return _Model(base=10, parents=parents, same=(10,) * 3 + (same,) * 12, classes=classes, zero=zero)


DEPTH = 3
REGULAR = _regular(9, (5, 3, 2), ((3, 9), (7, 1), (5, 4)))
NEGATIVE = _regular(1, (5, 3, 2), ((3, 6), (7, 2), (5, 5)))
EQUAL_TOPS = _regular(9, (5, 5), ((9, 1), (1, 9)))
UNEQUAL_TOPS = _regular(9, (5, 5), ((1, 9), (0, 8)))
IRREGULAR = _Model(
    base=10,
    parents=(-1, 0, 1, 1, 2, 2, 3, 0, 7, 7, 9, 9),
    same=(10, 10, 9, 2, 7, 10, 0, 10, 6, 9, 5, 8),
    classes=(5, 3, 2),
    zero=((3, 9), (7, 1), (5, 4)),
)
UNEVEN = _Model(
    base=10, parents=(-1, 0, 1, 1, 2, 2, 3, 3), same=(10, 10, 9, 9, 9, 6, 9, 9), classes=(10,), zero=((6,),)
)
CHAIN = _Model(base=10, parents=(-1, 0, 1, 2, 3, 4), same=(10, 10, 9, 3, 8, 6), classes=(7, 3), zero=((9,), (2,)))
"""Trees in tenths; CHAIN is one path, UNEVEN has a weak edge beside strong ones."""

TENTHS = [Fraction(n, 5) for n in range(-5, 6)]
"""Values of ρ whose M(ρ) is in tenths."""


def _largest(errors: list[float]) -> float:
    return float(max(errors))


def _gap(claimed: np.ndarray | float, exact: np.ndarray | Fraction) -> float:
    return float(np.abs(np.asarray(claimed, dtype=np.float64) - np.asarray(exact, dtype=np.float64)).max())


def _two_steps(rho_1: Fraction, rho_2: Fraction) -> np.ndarray:
    """P[y_γ | y_α] over α → β → γ by a sum over y_β; equal to (1 ± ρ)/2 on each step by Definition 2."""

    def step(rho: Fraction, child: int, parent: int) -> Fraction:
        return (1 + rho) / 2 if child == parent else (1 - rho) / 2

    return np.array(
        [[sum(step(rho_1, c, b) * step(rho_2, b, a) for b in (0, 1)) for a in (0, 1)] for c in (0, 1)], dtype=object
    )


def _edge_matrix_gap(matrix: Callable[[float], np.ndarray]) -> float:
    pairs = list(itertools.product(TENTHS, TENTHS))
    single = [_gap(matrix(float(a * b)), _two_steps(a, b)) for a, b in pairs]
    product = [_gap(matrix(float(a)) @ matrix(float(b)), _two_steps(a, b)) for a, b in pairs]
    return _largest(single + product)


def _node_distribution_gap(distribution: Callable[[float], np.ndarray]) -> float:
    def exact(a: Fraction, b: Fraction) -> np.ndarray:
        return _two_steps(a, Fraction(1)) @ np.array([(1 + b) / 2, (1 - b) / 2], dtype=object)

    return _largest([_gap(distribution(float(a * b)), exact(a, b)) for a, b in itertools.product(TENTHS, TENTHS)])


def _conditional(model: _Model, child: int, parent: int) -> np.ndarray:
    """P[y_child | y_parent] of any two nodes, whichever is above: child by row."""
    joint = _law(model, child, parent)
    return joint / joint.sum(axis=0)


def _chain_gap(order: Callable[[tuple[int, ...]], tuple[int, ...]]) -> float:
    """Distance of the product P(γ|β₁) P(β₁|β₂) … P(β_k|α) from P(γ|α), all enumerated on a path α = 1 to γ = 5."""
    nodes = (5, *order((2, 3, 4)), 1)
    product = np.array([[1, 0], [0, 1]], dtype=object)
    for child, parent in itertools.pairwise(nodes):
        product = product @ _conditional(CHAIN, child, parent)
    return _gap(product, _conditional(CHAIN, 5, 1))


def _chain_matrix_gap(matrix: Callable[[np.ndarray], np.ndarray]) -> float:
    rho = np.array([float(CHAIN.rho(node)) for node in (2, 3, 4, 5)])
    return _gap(matrix(rho), _conditional(CHAIN, 5, 1))


def _pairs_below_a_latent(model: _Model) -> list[tuple[int, int]]:
    pairs = itertools.permutations(range(1, len(model.parents)), 2)
    return [(i, j) for i, j in pairs if model.ancestor(i, j) != 0]


def _ancestor_parameters(model: _Model, first: int, second: int) -> tuple[float, float, float]:
    """ρ from the common ancestor to each node, and ρ_c = 2 P[y_c = 0] − 1 from the enumeration."""
    c = model.ancestor(first, second)
    return (
        float(model.rho_below(c, first)),
        float(model.rho_below(c, second)),
        float(2 * _law(model, c)[0] - 1),
    )


def _pair_gap(law: Callable[[float, float, float], np.ndarray]) -> float:
    return _largest(
        [
            _gap(law(*_ancestor_parameters(IRREGULAR, i, j)), _law(IRREGULAR, i, j))
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
            errors.append(_gap(claimed, 2 * _law(model, node)[0] - 1))
    return _largest(errors)


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
        for i, j in itertools.permutations(_leaves(model), 2):
            H = _height(model, i, j)
            if H < DEPTH:
                zero = tree.zero_given_class[:, model.path(j)[-2] - 1]
                claimed = formula(H, DEPTH, float(model.rho(i)), tree.class_probabilities, zero)
                errors.append(_gap(claimed, _cooccurrence(model, i, j)))
    return _largest(errors)


def _any_tree_gap(matrix: Callable[[LatentTree], np.ndarray]) -> float:
    leaves = _leaves(IRREGULAR)
    exact = np.array([[_cooccurrence(IRREGULAR, i, j) for j in leaves] for i in leaves], dtype=object)
    return _gap(matrix(IRREGULAR.tree()), exact)


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
        for i, j in itertools.permutations(_leaves(model), 2):
            if _height(model, i, j) == DEPTH:
                zero_i, zero_j = (tree.zero_given_class[:, model.path(node)[-2] - 1] for node in (i, j))
                claimed = formula(DEPTH, float(model.rho(i)), tree.class_probabilities, zero_i, zero_j)
                errors.append(_gap(claimed, _cooccurrence(model, i, j)))
    return _largest(errors)


def _theorem5_at_the_root(L: int, rho: float, p: np.ndarray, zero_l: np.ndarray, zero_m: np.ndarray) -> float:
    """Theorem 5 with H = L, ρ₀ already mended: what the statement says without the condition H ≤ L − 1."""
    return _printed_formula(L, L, rho, float(root_parameter(p, zero_m)))


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
    return _largest(
        [
            abs(float((_near_one(H, L, e, 1) - Fraction(approximation(H, L, float(e)))) / e**2))
            for (H, L), e in itertools.product(HEIGHTS_AND_DEPTHS, epsilons)
        ]
    )


def _limit_gap(limit: Callable[[int, int, int], float]) -> float:
    return _largest(
        [
            _gap(limit(H, L, c), _near_one(H, L, Fraction(1, 10**12), c))
            for (H, L), c in itertools.product(HEIGHTS_AND_DEPTHS, (0, 1, 2, 5))
        ]
    )


Covers = Callable[[_Model, int, int], bool]
"""Whether a hypothesis covers the leaf of a tree, beside a query: tree, query, leaf."""


def _largest_rise_with_height(covers: Covers) -> float:
    """Largest excess of the co-occurrence at a higher common ancestor over that at a lower one, where covered."""
    rises = []
    for model in (REGULAR, NEGATIVE, EQUAL_TOPS, UNEQUAL_TOPS, UNEVEN):
        for query in _leaves(model):
            leaves = [leaf for leaf in _leaves(model) if leaf != query and covers(model, query, leaf)]
            for low, high in itertools.permutations(leaves, 2):
                if _height(model, query, low) < _height(model, query, high):
                    rises.append(_cooccurrence(model, high, query) - _cooccurrence(model, low, query))
    return float(max(rises))


def _one_rho(model: _Model, query: int, leaf: int) -> bool:
    return model is not UNEVEN


def _comparable(model: _Model, query: int, leaf: int) -> bool:
    """Whether the common ancestor is binary, or the two leaves are equally frequent."""
    return model.ancestor(query, leaf) != 0 or _law(model, query)[1] == _law(model, leaf)[1]


def _sparse_gap(rho0: Callable[[int], np.ndarray]) -> float:
    """Distance from 2 P[y_1 = 0] − 1 of D equal classes, each of which triggers one of D latents."""
    errors = []
    for D in range(2, 7):
        zero = tuple(tuple(0 if k == r else D for r in range(D)) for k in range(D))
        model = _Model(base=D, parents=(-1,) + (0,) * D, same=(D,) * (D + 1), classes=(1,) * D, zero=zero)
        exact = np.array([2 * _law(model, node)[0] - 1 for node in range(1, D + 1)], dtype=object)
        errors.append(_gap(rho0(D), exact))
    return _largest(errors)


def _distance_from_one(depth_and_classes: tuple[int, int]) -> float:
    """1 − P[y_l = 1 | y_m = 1] at H = 1, ρ = 1 − 10⁻⁴, one latent for each of D classes, exactly."""
    L, D = depth_and_classes
    epsilon = Fraction(1, 10**4)
    return float(1 - _near_one(1, L, epsilon, Fraction(2, D) / epsilon))


STATEMENTS = (
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
