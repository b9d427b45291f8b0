"""Section 5 and Appendix A.5: chains of latents (Lemmas 8 and 9), Theorem 5 and what follows from it."""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from joma import theory
from joma.checks.check import as_printed, check, over, rejects
from joma.checks.reference import EXACT_RATIONALS, MONTE_CARLO
from joma.theory import LatentTree, chain_parameter, cooccurrence_limit, edge_matrix, regular_tree, root_parameter


@dataclass(frozen=True, kw_only=True)
class RationalTree:
    """A latent tree whose probabilities are whole numbers over `base`, so that enumeration is exact."""

    base: int = 10
    parents: tuple[int, ...]
    same: tuple[int, ...]  # P[child = parent] = (1 + ρ)/2 above every node; `base` for the root and its children
    classes: tuple[int, ...]
    zero: tuple[tuple[int, ...], ...]  # P[y_1 = 0 | y_0 = k], a row for every class

    def tree(self) -> LatentTree:
        """Return the same model in floats."""
        return LatentTree(
            parents=np.array(self.parents),
            rho=np.array([float(self.rho(node)) for node in range(len(self.parents))]),
            class_probabilities=np.array(self.classes) / self.base,
            zero_given_class=np.array(self.zero) / self.base,
        )

    def rho(self, node: int) -> Fraction:
        """Return ρ of the edge above a node."""
        return Fraction(2 * self.same[node], self.base) - 1

    def path(self, node: int) -> list[int]:
        """The node, its parent, and so on up to the root."""
        return [node] if node == 0 else [node, *self.path(self.parents[node])]

    def ancestor(self, first: int, second: int) -> int:
        """Return the lowest latent above both nodes."""
        return max(set(self.path(first)) & set(self.path(second)))

    def rho_below(self, ancestor: int, node: int) -> Fraction:
        """Product of ρ over the edges between a latent and a node below it."""
        path = self.path(node)
        return math.prod((self.rho(n) for n in path[: path.index(ancestor)]), start=Fraction(1))

    def leaves(self) -> tuple[int, ...]:
        """Nodes without children."""
        return tuple(node for node in range(1, len(self.parents)) if node not in self.parents)

    def height(self, first: int, second: int) -> int:
        """Edges between a leaf and the common ancestor, for trees whose leaves have one depth."""
        return self.path(first).index(self.ancestor(first, second))


@cache
def _enumerated(model: RationalTree) -> np.ndarray:
    """Whole-numbered weight of every configuration (y_0, y_1, ..., y_N), by the definition of the model."""
    tops = [node for node, parent in enumerate(model.parents) if parent == 0]
    table = np.array(model.classes)
    for node, parent in enumerate(model.parents[1:], start=1):
        same = model.same[node]
        zeros = [row[tops.index(node)] for row in model.zero] if parent == 0 else [same, model.base - same]
        shape = [1] * (node + 1)
        shape[parent], shape[node] = len(zeros), 2
        table = table[..., None] * np.array([[zero, model.base - zero] for zero in zeros]).reshape(shape)
    return table


@cache
def exact_law(model: RationalTree, *nodes: int) -> np.ndarray:
    """Exact joint law of different nodes, in the order given, as fractions."""
    table = _enumerated(model)
    kept = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in nodes))
    in_order, total = np.transpose(kept, np.argsort(np.argsort(nodes))), int(kept.sum())
    return np.vectorize(lambda weight: Fraction(int(weight), total), otypes=[object])(in_order)


def exact_cooccurrence(model: RationalTree, node: int, given: int) -> Fraction:
    """P[node = 1 | given = 1], by enumeration."""
    if node == given:
        return Fraction(1)
    joint = exact_law(model, node, given)
    return joint[1, 1] / joint[:, 1].sum()


def _regular(same: int, classes: tuple[int, ...], zero: tuple[tuple[int, ...], ...]) -> RationalTree:
    """Depth 3, two children each: 14 binary nodes, 8 leaves; probabilities in tenths."""
    parents = (-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6)
    return RationalTree(parents=parents, same=(10,) * 3 + (same,) * 12, classes=classes, zero=zero)


DEPTH = 3
REGULAR = _regular(9, (5, 3, 2), ((3, 9), (7, 1), (5, 4)))
NEGATIVE = _regular(1, (5, 3, 2), ((3, 6), (7, 2), (5, 5)))
UNEQUAL_TOPS = _regular(9, (5, 5), ((1, 9), (0, 8)))
EQUAL_TOPS = _regular(9, (5, 5), ((9, 1), (1, 9)))
IRREGULAR = RationalTree(
    parents=(-1, 0, 1, 1, 2, 2, 3, 0, 7, 7, 9, 9),
    same=(10, 10, 9, 2, 7, 10, 0, 10, 6, 9, 5, 8),
    classes=(5, 3, 2),
    zero=((3, 9), (7, 1), (5, 4)),
)
UNEVEN = RationalTree(parents=(-1, 0, 1, 1, 2, 2, 3, 3), same=(10, 10, 9, 9, 9, 6, 9, 9), classes=(10,), zero=((6,),))
"""A weak edge among strong ones."""
CHAIN = RationalTree(parents=(-1, 0, 1, 2, 3, 4), same=(10, 10, 9, 3, 8, 6), classes=(7, 3), zero=((9,), (2,)))
"""One path."""


def _step(rho: Fraction) -> np.ndarray:
    """P[child | parent] by Definition 2, (1 ± ρ)/2."""
    return np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]], dtype=object) / 2


@check("lemma8", EXACT_RATIONALS, (edge_matrix, theory.node_distribution))
@over(list(itertools.product([Fraction(n, 5) for n in range(-5, 6)], repeat=2)))
@rejects("ρ of M 1 % off", (lambda rho: edge_matrix(0.99 * rho), theory.node_distribution))
@rejects("ρ of p 1 % off", (edge_matrix, lambda rho: theory.node_distribution(0.99 * rho)))
def product_of_edges(claims, a, b):
    """M(ρ₁)M(ρ₂), M(ρ₁ρ₂) and p(ρ₁ρ₂) against sums over the middle variable, 121 pairs."""
    (matrix, distribution), exact = claims, _step(a) @ _step(b)
    law = _step(a) @ np.array([(1 + b) / 2, (1 - b) / 2], dtype=object)
    gaps = matrix(float(a * b)) - exact, matrix(float(a)) @ matrix(float(b)) - exact
    return *gaps, distribution(float(a * b)) - law


def _conditional(child: int, parent: int) -> np.ndarray:
    """P[y_child | y_parent] of any two nodes of the path, whichever is above: child by row."""
    joint = exact_law(CHAIN, child, parent)
    return joint / joint.sum(axis=0)


# Tolerance: fractions on both sides
@check("lemma9", EXACT_RATIONALS, lambda downwards: downwards[::-1], 0.0, printed=lambda downwards: downwards)
@rejects("last two of the chain exchanged", lambda downwards: (downwards[2], downwards[0], downwards[1]))
def product_along_a_path(order):
    """Product of enumerated conditional laws along a path of five nodes."""
    steps = [_conditional(child, parent) for child, parent in itertools.pairwise((5, *order((2, 3, 4)), 1))]
    return np.linalg.multi_dot(steps) - _conditional(5, 1)


@check("lemma9", EXACT_RATIONALS, lambda rho: edge_matrix(chain_parameter(rho)))
@rejects("product 1 % off", lambda rho: edge_matrix(0.99 * chain_parameter(rho)))
def matrix_of_a_path(matrix):
    """M of the product of ρ against the enumerated P(γ|α)."""
    return matrix(np.array([float(CHAIN.rho(node)) for node in (2, 3, 4, 5)])) - _conditional(5, 1)


def pairs_below_a_latent(rng):
    """ρ from the common ancestor to each node, ρ_c = 2P[y_c = 0] − 1, and the enumerated law of the two nodes."""
    for i, j in itertools.permutations(range(1, len(IRREGULAR.parents)), 2):
        c = IRREGULAR.ancestor(i, j)
        if c != 0:
            rho = *(IRREGULAR.rho_below(c, node) for node in (i, j)), 2 * exact_law(IRREGULAR, c)[0] - 1
            yield tuple(map(float, rho)), exact_law(IRREGULAR, i, j)


def _expanded_pair(rho_l: float, rho_m: float, rho_c: float) -> np.ndarray:
    one, e = np.ones(2), np.array([1.0, -1.0])
    terms = ((1.0, one, one), (rho_l * rho_m, e, e), (rho_l * rho_c, e, one), (rho_m * rho_c, one, e))
    return np.asarray(sum(weight * np.outer(left, right) for weight, left, right in terms) / 4)


@check("eqn98", EXACT_RATIONALS, (theory.pair_distribution, _expanded_pair), over=pairs_below_a_latent)
@rejects("ρ_c 1 % off", (lambda a, b, c: theory.pair_distribution(a, b, 0.99 * c), _expanded_pair))
@rejects("the last two terms exchanged", (theory.pair_distribution, lambda *rho: _expanded_pair(*rho).T))
def law_of_a_pair(laws, rho, exact):
    """Product of Eqn 94 and expansion of Eqn 98 over all pairs of an irregular tree."""
    return tuple(law(*rho) - exact for law in laws)


@check("eqn103", EXACT_RATIONALS, root_parameter, over=(IRREGULAR, UNEQUAL_TOPS))
@as_printed(lambda p, zero: p @ zero)
@rejects("ρ₀ 1 % off", lambda p, zero: 0.99 * root_parameter(p, zero))
def parameter_of_every_node(rho0, model):
    """2P[y_c=0] − 1 of every latent and leaf of two trees, and the library's marginals."""
    tree = model.tree()
    by_top = dict(zip(tree.tops.tolist(), rho0(tree.class_probabilities, tree.zero_given_class), strict=True))
    nodes = range(1, len(model.parents))
    laws = np.array([exact_law(model, node) for node in nodes])
    tops = [model.path(node)[-2] for node in nodes]
    claimed = [float(model.rho_below(top, node)) * by_top[top] for top, node in zip(tops, nodes, strict=True)]
    library = tree.marginals(np.array(nodes)) - laws, tree.root_parameters - list(by_top.values())
    return claimed - (2 * laws[:, 0] - 1), *library


def _theorem5(H, L, rho, p, zero_l, zero_m):
    return float(theory.cooccurrence(H, L, rho, root_parameter(p, zero_m)))


def _printed_formula(H: int, L: int, rho: float, rho0: float) -> float:
    return (1 + rho ** (2 * H) - 2 * rho ** (L - 1) * rho0) / (1 - rho ** (L - 1) * rho0) / 2


def _printed_theorem5(H, L, rho, p, zero_l, zero_m):
    return _printed_formula(H, L, rho, float(p @ zero_m))


def _theorem5_at_the_root(H, L, rho, p, zero_l, zero_m):
    """Theorem 5 with H = L, ρ₀ already mended: what the statement says without the condition H ≤ L − 1."""
    return _printed_formula(L, L, rho, float(root_parameter(p, zero_m)))


TREES = (REGULAR, NEGATIVE, UNEQUAL_TOPS)
BELOW_THE_ROOT = [(model, True) for model in TREES]
AT_THE_ROOT = "All pairs of leaves below different children of the root, three trees"


def _root(H, *rest):
    return theory.root_cooccurrence(*rest)


@check("thm5-root", EXACT_RATIONALS, _root, printed=_theorem5_at_the_root, over=BELOW_THE_ROOT, name=AT_THE_ROOT)
@check("thm5", EXACT_RATIONALS, _theorem5, printed=_printed_theorem5, over=[(model, False) for model in TREES])
@rejects("ρ 1 % off", lambda H, L, rho, *rest: (_root if H == L else _theorem5)(H, L, 0.99 * rho, *rest))
def cooccurrence_of_leaves(formula, model, at_root):
    """All pairs of leaves below a latent, three trees of 14 binary nodes with ρ = ±0.8."""
    tree = model.tree()
    for i, j in itertools.permutations(model.leaves(), 2):
        H = model.height(i, j)
        if (H == DEPTH) == at_root:
            zeros = (tree.zero_given_class[:, model.path(node)[-2] - 1] for node in (i, j))
            claimed = formula(H, DEPTH, float(model.rho(i)), tree.class_probabilities, *zeros)
            yield float(claimed) - float(exact_cooccurrence(model, i, j))


@check("thm5", EXACT_RATIONALS, LatentTree.cooccurrence_matrix, over=(IRREGULAR, UNEVEN))
@rejects("transposed: P[y_m=1|y_l=1]", lambda tree, nodes=None: tree.cooccurrence_matrix(nodes).T)
def cooccurrence_in_any_tree(matrix, model):
    """Matrix of all leaves, and of leaves and latents in any order, of two uneven trees, pair by pair as well."""
    tree = model.tree()
    for nodes in (None, np.array([len(model.parents) - 1, 2, 4, 1])):
        chosen = list(model.leaves()) if nodes is None else nodes.tolist()
        exact = np.array([[float(exact_cooccurrence(model, i, j)) for j in chosen] for i in chosen])
        by_pair = np.array([[tree.cooccurrence(i, j) for j in chosen] for i in chosen])
        yield matrix(tree, nodes) - exact
        yield by_pair - exact


def sampled_trees(rng):
    """H with L, ρ and the classes of a tree of depth 5; frequency of y_l = 1 given y_m = 1, and its standard error."""
    depth, rho, p, zero = 5, 0.9, np.array([0.5, 0.5]), np.array([0.9, 0.6])
    tree = regular_tree(depth, (1, 2, 2, 2, 2), rho, class_probabilities=p, zero_given_class=zero)
    y = tree.sample(rng, 200_000)[:, tree.leaves]
    given = y[y[:, 0] == 1]
    for H in range(1, depth):
        both = given[:, 2 ** (H - 1)]  # the first leaf whose common ancestor with leaf 0 has height H
        yield H, (depth, rho, p, zero, zero), both.mean(), both.std() / np.sqrt(len(both))


@check("thm5", MONTE_CARLO, _theorem5, printed=_printed_theorem5, over=sampled_trees)
@rejects("ρ 2 % off", lambda H, L, rho, *rest: _theorem5(H, L, 0.98 * rho, *rest))
def cooccurrence_in_samples(formula, H, rest, frequency, error):
    """200,000 sampled trees of depth 5, H = 1 to 4."""
    return abs(frequency - formula(H, *rest)) / error


@cache
def _near_one(H: int, L: int, epsilon: Fraction, c: int | Fraction) -> Fraction:
    """Exact co-occurrence with ρ = 1 − ε and ρ₀ = 1 − cε: laws carried down edge by edge, then a sum over y_c."""
    step, zero = _step(1 - epsilon), 1 - c * epsilon / 2
    ancestor, on_given = np.array([zero, 1 - zero], dtype=object), _step(Fraction(1))
    for _ in range(L - 1 - H):
        ancestor = step @ ancestor
    for _ in range(H):
        on_given = step @ on_given
    ones = on_given[1]
    return (ancestor * ones * ones).sum() / (ancestor * ones).sum()


def _to_first_order(H: int, L: int, c: float, e: float, *, factor: float = 1.0) -> float:
    return float(cooccurrence_limit(H, L, c) + factor * e * theory.cooccurrence_slope(H, L, c))


# Tolerance: the coefficient of ε² is at most 3; without the first-order term the ratio is 10⁶
@check("eqn8", EXACT_RATIONALS, _to_first_order, 10.0, unit="error / ε²")
@over([(H, L, c) for H, L in ((1, 5), (2, 5), (4, 5), (1, 3), (3, 8)) for c in (0, 1, 2, 5)])
@as_printed(lambda H, L, c, e: 1 - H / L)
@rejects("first-order coefficient 1 % off", lambda *case: _to_first_order(*case, factor=1.01))
@rejects("c of the limit 1 % off", lambda H, L, c, e: _to_first_order(H, L, 1.01 * c, e))
def error_of_second_order(approximation, H, L, c):
    """Error over ε² for ε = 10⁻², 10⁻⁴, 10⁻⁶, and so the limit to 10⁻¹¹, five pairs of H and L, c = 0, 1, 2, 5."""
    epsilons = [Fraction(1, 10**n) for n in (2, 4, 6)]
    errors = ((_near_one(H, L, e, c) - Fraction(approximation(H, L, c, float(e)))) / e**2 for e in epsilons)
    return max(abs(float(error)) for error in errors)


def _one_rho(model: RationalTree, query: int, leaf: int) -> bool:
    return model is not UNEVEN


def _comparable(model: RationalTree, query: int, leaf: int) -> bool:
    """Whether the common ancestor is binary, or the two leaves are equally frequent."""
    return model.ancestor(query, leaf) != 0 or exact_law(model, query)[1] == exact_law(model, leaf)[1]


# Tolerance: a strict fall: equality would give zero
@check(
    "thm5-monotone", EXACT_RATIONALS, lambda *leaf: _one_rho(*leaf) and _comparable(*leaf), -1e-3, unit="largest rise"
)
@over((*TREES, EQUAL_TOPS, UNEVEN))
@as_printed(_one_rho)
@rejects("different ρ on different edges allowed", _comparable)
def rise_with_height(covers, model):
    """Largest rise of co-occurrence with the height, over five trees."""
    rises = [-1.0]
    for query in model.leaves():
        leaves = [leaf for leaf in model.leaves() if leaf != query and covers(model, query, leaf)]
        for low, high in itertools.permutations(leaves, 2):
            if model.height(query, low) < model.height(query, high):
                rises.append(exact_cooccurrence(model, high, query) - exact_cooccurrence(model, low, query))
    return float(max(rises))


@check("thm5-sparse", EXACT_RATIONALS, lambda D: root_parameter(np.full(D, 1 / D), theory.one_latent_per_class(D)))
@over(range(2, 7))
@rejects("ρ₀ 1 % off", lambda D: np.full(D, 0.99 * (1 - 2 / D)))
def one_latent_for_each_class(rho0, D):
    """ρ₀ of D = 2 to 6 classes with one latent each."""
    zero = tuple(tuple(0 if k == r else D for r in range(D)) for k in range(D))
    model = RationalTree(base=D, parents=(-1,) + (0,) * D, same=(D,) * (D + 1), classes=(1,) * D, zero=zero)
    return rho0(D) - [float(2 * exact_law(model, node)[0] - 1) for node in range(1, D + 1)]


@check("thm5-sparse", EXACT_RATIONALS, (200, 10**5), 0.01, unit="1 − P")  # H/(L−1+c) is 0.005
@rejects("the deep hierarchy dropped: L = 3", (3, 10**5))
def distance_from_one(depth_and_classes):
    """1 − P[y_l=1|y_m=1] at H = 1, L = 200, ρ = 1 − 10⁻⁴ and 10⁵ classes."""
    L, D = depth_and_classes
    epsilon = Fraction(1, 10**4)
    return 1 - _near_one(1, L, epsilon, Fraction(2, D) / epsilon)
