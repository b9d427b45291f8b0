r"""Section 5: binary latent trees, and how often two of their tokens occur together (Theorem 5, Lemmas 8, 9, Eqn 8).

The root $y_0$ is a class label with $D$ values; every other node is binary, and a leaf $y_l = 1$ says that token $l$
is in the sequence. A binary parent passes its value to its child through the matrix $M(\rho)$ of their edge; a
child $y_1$ of the root is zero with probability $P[y_1=0 \mid y_0=k]$.

The paper defines $\rho_0$ by that probability, but uses $\rho_0 = 2\,P[y_1=0] - 1$, as here. Depth $L$ counts the edges
from the root to a leaf, so a common ancestor of two leaves is binary for heights $1 \le H \le L-1$ only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

from joma.errors import AssumptionError, broadcast, finite, shaped, whole, within
from joma.types import Real, keep

Classes = Float[np.ndarray, " D"]
"""A number for each class."""
Count = int | np.integer | Int[np.ndarray, "..."]
"""An integer or an array of them."""

FLIP = np.array([[1.0, -1.0], [-1.0, 1.0]])  # eeᵀ with e = [1, −1]ᵀ

SUM_TOLERANCE = 1e-12  # how far the class probabilities may sum from one: rounding of a thousand terms


def edge_matrix(rho: Real) -> Float[np.ndarray, "*edges 2 2"]:
    r"""$M(\rho) = \frac12\begin{bmatrix}1+\rho&1-\rho\\1-\rho&1+\rho\end{bmatrix}$: child by row, parent by column.

    Definition 1 and Lemma 8: symmetric, its rows sum to one, and $M(\rho_1)M(\rho_2) = M(\rho_1\rho_2)$.

    >>> edge_matrix(0.5) @ edge_matrix(-0.5)
    array([[0.375, 0.625],
           [0.625, 0.375]])
    """
    return (1 + within("rho", rho, -1, 1)[..., None, None] * FLIP) / 2


def node_distribution(rho: Real) -> Float[np.ndarray, "*nodes 2"]:
    r"""$p(\rho) = \frac12[1+\rho,\ 1-\rho]^\top$, the law of a node with $\rho = 2P[y=0]-1$ (Definition 1).

    Lemma 8: $M(\rho_1)\,p(\rho_2) = p(\rho_1\rho_2)$.

    >>> node_distribution(0.5)
    array([0.75, 0.25])
    """
    return (1 + within("rho", rho, -1, 1)[..., None] * FLIP[0]) / 2


def chain_parameter(rho: Float[np.ndarray, "*chains edges"]) -> Float[np.ndarray, "*chains"]:
    r"""$\rho_{\gamma|\alpha} = \prod \rho$ over the edges between a latent and its descendant (Lemma 9).

    The chain that Lemma 9's product walks is $\alpha \succ \beta_k \succ \dots \succ \beta_1 \succ \gamma$.
    """
    return np.asarray(within("rho", rho, -1, 1).prod(axis=-1))


def pair_distribution(rho_l: Real, rho_m: Real, rho_c: Real) -> Float[np.ndarray, "*pairs 2 2"]:
    r"""$P[y_l, y_m] = M(\rho_{l|c})\,\mathrm{diag}(p(\rho_c))\,M(\rho_{m|c})^\top$ below a binary ancestor $c$.

    Eqn 94; equal to $\frac14(11^\top + \rho_l\rho_m ee^\top + \rho_l\rho_c e1^\top + \rho_m\rho_c 1e^\top)$ (Eqn 98).

    >>> pair_distribution(0.5, 0.5, 0.0)
    array([[0.3125, 0.1875],
           [0.1875, 0.3125]])
    """
    return np.einsum("...ac,...c,...bc->...ab", edge_matrix(rho_l), node_distribution(rho_c), edge_matrix(rho_m))


def root_parameter(class_probabilities: Classes, zero_given_class: Float[np.ndarray, "D ..."]) -> np.ndarray:
    r"""$\rho_0 = 2P[y_1=0]-1 = \sum_k P[y_0=k]\,(2P[y_1=0 \mid y_0=k]-1)$ of a child of the root (Eqns 99-103).

    The paper's text leaves the $2(\cdot)-1$ out; its Eqn 101 needs it.

    >>> float(root_parameter(np.array([0.5, 0.5]), np.array([0.9, 0.8])).round(12))
    0.7
    """
    p = distribution("class_probabilities", class_probabilities)
    zero = within("zero_given_class", zero_given_class, 0, 1)
    if zero.shape[:1] != p.shape:
        raise ValueError(f"`zero_given_class` needs one row for each of {p.size} classes, got shape {zero.shape}.")
    return np.asarray(2 * np.tensordot(p, zero, axes=1) - 1)


def cooccurrence(H: Count, L: Count, rho: Real, rho0: Real) -> np.ndarray:
    r"""$P[y_l=1 \mid y_m=1] = 1 - \frac12\,\frac{1-\rho^{2H}}{1-\rho^{L-1}\rho_0}$ for a common ancestor of height $H$.

    Theorem 5 with $\rho_0 = 2P[y_1=0]-1$; the same as $\frac12(1+\rho^{2H}-2\rho^{L-1}\rho_0)/(1-\rho^{L-1}\rho_0)$,
    without the cancellation near $\rho = \rho_0 = 1$. Hypotheses: one $\rho$ on all edges, all leaves at depth $L$,
    $1 \le H \le L-1$, and $P[y_m=1] > 0$.

    >>> float(cooccurrence(1, 3, 0.8, -0.08).round(5))
    0.82877
    """
    H, L = _below_a_binary_ancestor(H, L)
    rho, rho0 = within("rho", rho, -1, 1), within("rho0", rho0, -1, 1)
    H, L, rho, rho0 = broadcast(H=H, L=L, rho=rho, rho0=rho0).values()
    twice_on = _one_minus(rho, L - 1, rho0)
    if (twice_on == 0).any():
        raise AssumptionError("Thm. 5 conditions on y_m = 1, which has probability ½(1 − ρ^(L−1) ρ₀) = 0. Lower |rho|.")
    return np.asarray(1 - _one_minus(rho, 2 * H, 1.0) / (2 * twice_on))


def root_cooccurrence(L: int, rho: float, class_probabilities: Classes, zero_l: Classes, zero_m: Classes) -> float:
    r"""$P[y_l=1 \mid y_m=1]$ when only the root is above both leaves ($H = L$), where Theorem 5 does not apply.

    $\frac12\,\frac{1 - t(\rho_l+\rho_m) + t^2\sum_k p_k q^l_k q^m_k}{1-t\rho_m}$ with $t=\rho^{L-1}$,
    $q_k = 2P[y_1=0 \mid y_0=k]-1$ of the child of the root above each leaf (`zero_l` and `zero_m` are these
    probabilities), and $\rho_l = \sum_k p_k q^l_k$.

    >>> round(root_cooccurrence(2, 0.8, np.array([0.5, 0.5]), np.array([0.0, 1.0]), np.array([1.0, 0.0])), 12)
    0.18
    """
    p = distribution("class_probabilities", class_probabilities)
    zeros = np.stack(shaped(f"{p.size}, {p.size}", zero_l=zero_l, zero_m=zero_m), axis=1)
    rho_l, rho_m = root_parameter(p, zeros)
    t = float(within("rho", rho, -1, 1)) ** (int(whole("L", L, low=1)) - 1)
    shared = p @ (2 * zeros - 1).prod(axis=1)
    if t * rho_m == 1:
        raise AssumptionError("Co-occurrence conditions on y_m = 1, which has probability 0. Lower `zero_m`.")
    return float((1 - t * (rho_l + rho_m) + t**2 * shared) / (1 - t * rho_m) / 2)


def cooccurrence_limit(H: Count, L: Count, c: Real = 1.0) -> np.ndarray:
    r"""Limit of Theorem 5 for $\rho = 1-\epsilon$, $\rho_0 = 1-c\epsilon$ as $\epsilon\to0$: $1-\frac{H}{L-1+c}$.

    Eqn 8 is $c = 1$; $c = 2$ belongs to $P[y_1=0] = 1-\epsilon$.

    >>> float(cooccurrence_limit(1, 5))
    0.8
    """
    H, L = _below_a_binary_ancestor(H, L)
    return np.asarray(1 - H / (L - 1 + within("c", c, 0, np.inf)))


def cooccurrence_slope(H: Count, L: Count, c: Real = 1.0) -> np.ndarray:
    r"""Coefficient of $\epsilon$ by which Theorem 5 leaves its limit, for $\rho = 1-\epsilon$, $\rho_0 = 1-c\epsilon$.

    $-\frac{H}{L-1+c}\left[\frac{(L-1)(L-2+2c)}{2(L-1+c)} - \frac{2H-1}{2}\right]$, which is $-\frac{H(L-2H)}{2L}$ at
    $c=1$: the error of Eqn 8 is of first order, but for $L = 2H$, where Theorem 5 gives ½ exactly.

    >>> float(cooccurrence_slope(1, 5).round(12))
    -0.3
    """
    (H, L), c = _below_a_binary_ancestor(H, L), within("c", c, 0, np.inf)
    denominator = L - 1 + c
    return np.asarray(-H / denominator * ((L - 1) * (L - 2 + 2 * c) / (2 * denominator) - (2 * H - 1) / 2))


def one_latent_per_class(num_classes: int) -> Float[np.ndarray, "D D"]:
    r"""$P[y_1=0 \mid y_0=k]$ when every class switches on its own child of the root and no other.

    The remark to Theorem 5: with equal classes $\rho_0 = 1 - 2/D$.

    >>> root_parameter(np.full(4, 0.25), one_latent_per_class(4))
    array([0.5, 0.5, 0.5, 0.5])
    """
    return 1 - np.eye(num_classes)


def distribution(name: str, value: np.ndarray) -> np.ndarray:
    """Return probabilities as an array, refusing numbers that are none or do not sum to one."""
    p = within(name, value, 0, 1)
    if p.ndim != 1 or abs(p.sum() - 1) > SUM_TOLERANCE:
        raise ValueError(f"`{name}` must be a list that sums to 1, got a sum of {p.sum():.12g}. Divide by it.")
    return p


def _below_a_binary_ancestor(H: Count, L: Count) -> tuple[np.ndarray, np.ndarray]:
    H, L = broadcast(H=whole("H", H, low=0), L=whole("L", L, low=0)).values()
    bad = (H < 1) | (H > L - 1)
    if bad.any():
        needed = "Thm. 5 needs a binary common ancestor, 1 ≤ H ≤ L − 1"
        raise AssumptionError(f"{needed}; got H = {H[bad][0]}, L = {L[bad][0]}. At the root use `root_cooccurrence`.")
    return H, L


def _one_minus(rho: np.ndarray, n: Count, factor: Real) -> np.ndarray:
    r"""$1 - \rho^n f$ to full relative accuracy, also where the product is near one."""
    product = np.power(rho, n) * factor
    with np.errstate(divide="ignore"):
        log_size = special.xlogy(n, np.abs(rho)) + np.log(np.abs(factor))
    return np.where(product > 0, -np.expm1(log_size), 1 - product)


Chances = Sequence[float] | Float[np.ndarray, "..."]
"""Of the classes; or P[y_1 = 0 | y_0 = k] for every class, or for every class and child of the root."""

Node = int | np.integer
"""Index of a node."""

Nested: TypeAlias = "Sequence[Nested]"
"""The children of a node, each given by its own children; a leaf is the empty tuple."""

ROOT = 0  # index of the class label y_0

NO_PARENT = -1  # parent of the root


@dataclass(frozen=True, kw_only=True)
class LatentTree:
    r"""A latent tree of any shape, with any $\rho$ on each edge and any number of classes (Definition 2).

    >>> tree = regular_tree(3, 2, 0.8, class_probabilities=[1.0], zero_given_class=[0.46])
    >>> tree.leaves
    array([ 7,  8,  9, 10, 11, 12, 13, 14])
    >>> round(tree.cooccurrence(7, 8), 5), round(tree.cooccurrence(7, 9), 5)
    (0.82877, 0.71918)
    """

    parents: Int[np.ndarray, " N"]
    """Parent of every node, which comes before its children; node 0 is the root, with parent -1."""
    rho: Float[np.ndarray, " N"]
    r"""$\rho_{\beta|\alpha}$ of the edge above every node; 1 for the root and its children, which have no such edge."""
    class_probabilities: Float[np.ndarray, " D"]
    """P[y_0 = k]."""
    zero_given_class: Float[np.ndarray, "D R"]
    """P[y_1 = 0 | y_0 = k] for the children of the root, in the order of their index."""

    def __post_init__(self) -> None:
        parents = np.asarray(self.parents)
        if parents.ndim != 1 or parents.size <= 1 or parents[ROOT] != NO_PARENT:
            raise ValueError(f"`parents` must be a list of {NO_PARENT} for the root and a parent each, got {parents}.")
        misplaced = np.flatnonzero((parents[1:] < ROOT) | (parents[1:] >= np.arange(1, parents.size))) + 1
        if misplaced.size:
            node = int(misplaced[0])
            found = f"{parents[node]} for node {node}"
            raise ValueError(f"Parents must come before their children, got {found}. Number from the root down.")
        p = distribution("class_probabilities", self.class_probabilities)
        rho, zero = within("rho", self.rho, -1, 1), within("zero_given_class", self.zero_given_class, 0, 1)
        keep(self, parents=parents, rho=rho, class_probabilities=p, zero_given_class=zero)
        shaped(f"{parents.size}, {p.size} {self.tops.size}", rho=rho, zero_given_class=zero)
        edgeless = np.flatnonzero(parents <= ROOT)
        if (rho[edgeless] != 1).any():
            raise ValueError(f"`rho` must be 1 for the root and its children, got {rho[edgeless].tolist()}. Set it.")

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return self.parents.size

    @cached_property
    def tops(self) -> Int[np.ndarray, " R"]:
        """Children of the root."""
        return np.flatnonzero(self.parents == ROOT)

    @cached_property
    def leaves(self) -> Int[np.ndarray, " n"]:
        """Nodes without children: the tokens."""
        return np.setdiff1d(np.arange(self.num_nodes), self.parents)

    @cached_property
    def depths(self) -> Int[np.ndarray, " N"]:
        """Number of edges between the root and every node."""
        depths = np.zeros(self.num_nodes, dtype=np.int64)
        for node in range(1, self.num_nodes):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    @cached_property
    def heights(self) -> Int[np.ndarray, " N"]:
        """Number of edges between every node and the deepest leaf below it."""
        heights = np.zeros(self.num_nodes, dtype=np.int64)
        for node in range(self.num_nodes - 1, ROOT, -1):
            parent = self.parents[node]
            heights[parent] = max(heights[parent], heights[node] + 1)
        return heights

    @cached_property
    def root_parameters(self) -> Float[np.ndarray, " R"]:
        r"""$\rho_0$ of every child of the root."""
        return root_parameter(self.class_probabilities, self.zero_given_class)

    def common_ancestor(self, first: Node, second: Node) -> int:
        """Return the lowest node that is above, or is, both of two nodes."""
        i, j = (int(node) for node in self._nodes(np.array([first, second])))
        while i != j:  # a parent has the smaller index, so the larger of the two moves up
            i, j = min(i, j), int(self.parents[max(i, j)])
        return i

    def ancestor_heights(self) -> Int[np.ndarray, "n n"]:
        """Height H of the common ancestor of every pair of leaves."""
        is_above = self._is_above(self.leaves)
        table = np.full((self.num_nodes, self.leaves.size), self.heights[ROOT])
        for node in range(1, self.num_nodes):
            table[node] = np.where(is_above[node], self.heights[node], table[self.parents[node]])
        return table[self.leaves]

    def marginals(self, nodes: Int[np.ndarray, " n"] | None = None) -> Float[np.ndarray, "n 2"]:
        """Return [P[y=0], P[y=1]] of every one of `nodes` (the leaves when None)."""
        return self._laws[self._nodes(nodes)]

    def joint(self, first: Node, second: Node) -> Float[np.ndarray, "2 2"]:
        r"""$P[y_l, y_m]$ of any two binary nodes: Eqn 94 below a binary ancestor, a sum over classes below the root."""
        one, other = self._nodes(np.array([first, second]))
        return np.stack([self._with_value(value, np.array([one]))[other, 0] for value in (0, 1)])

    def cooccurrence(self, node: Node, given: Node) -> float:
        r"""$P[y_l=1 \mid y_m=1]$ of any two binary nodes, $l$ and the given $m$; an $m$ that is never 1 is refused."""
        return float(self.joint(node, given)[1, 1] / self._chance_of_one(np.array([given]))[0])

    def joint_ones(self, nodes: Int[np.ndarray, " n"] | None = None) -> Float[np.ndarray, "n n"]:
        r"""$P[y_l=1, y_m=1]$ of all pairs of `nodes` (the leaves when None), in time of order $nN$."""
        nodes = self._nodes(nodes)
        return self._with_value(1, nodes)[nodes, :, 1]

    def cooccurrence_matrix(self, nodes: Int[np.ndarray, " n"] | None = None) -> Float[np.ndarray, "n n"]:
        """P[y_l = 1 | y_m = 1], l by row and m by column, of all pairs of `nodes` (the leaves when None)."""
        nodes = self._nodes(nodes)
        return self.joint_ones(nodes) / self._chance_of_one(nodes)

    def sample(self, rng: np.random.Generator, size: int) -> Int[np.ndarray, "size N"]:
        """Draw `size` trees from the root down; column 0 is the class label, the others are 0 or 1."""
        y = np.empty((size, self.num_nodes), dtype=np.int64)
        y[:, ROOT] = rng.choice(self.class_probabilities.size, size=size, p=self.class_probabilities)
        for node in range(1, self.num_nodes):
            y[:, node] = rng.random(size) < self._given_parent[node][1][y[:, self.parents[node]]]
        return y

    @cached_property
    def _given_parent(self) -> list[Float[np.ndarray, "2 _"]]:
        """P[y | y_parent] of every node but the root, child by row."""
        laws = list(edge_matrix(self.rho))
        for top, zero in zip(self.tops, self.zero_given_class.T, strict=True):
            laws[top] = np.stack([zero, 1 - zero])
        return laws

    @cached_property
    def _laws(self) -> Float[np.ndarray, "N 2"]:
        """Law of every binary node; the row of the root is not one and holds NaN."""
        laws = np.full((self.num_nodes, 2), np.nan)
        for node in range(1, self.num_nodes):
            parent = self.parents[node]
            laws[node] = self._given_parent[node] @ (self.class_probabilities if parent == ROOT else laws[parent])
        return laws

    def _is_above(self, nodes: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "N n"]:
        """Whether a node of the tree, by row, is above or is one of `nodes`."""
        is_above = np.equal.outer(np.arange(self.num_nodes), nodes)
        for node in range(self.num_nodes - 1, ROOT, -1):
            is_above[self.parents[node]] |= is_above[node]
        return is_above

    def _with_value(self, value: int, nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, "N n 2"]:
        r"""$P[y_l = value, y_c]$ of `nodes` $l$ and every binary node $c$: sums of products, without cancellation."""
        table = np.zeros((self.num_nodes, nodes.size, 2))
        table[nodes, np.arange(nodes.size), value] = 1
        by_class = np.zeros((nodes.size, self.class_probabilities.size))
        # Upwards: P[y_l = value | y_c] for every c above l, zero for other c.
        for node in range(self.num_nodes - 1, ROOT, -1):
            above = by_class if self.parents[node] == ROOT else table[self.parents[node]]
            above += table[node] @ self._given_parent[node]
        by_class *= self.class_probabilities
        # Downwards: given its parent, a node that is not above l is independent of l.
        is_above = self._is_above(nodes)[..., None]
        for node in range(1, self.num_nodes):
            above = by_class if self.parents[node] == ROOT else table[self.parents[node]]
            by_parent = above @ self._given_parent[node].T
            table[node] = np.where(is_above[node], table[node] * self._laws[node], by_parent)
        return table

    def _nodes(self, nodes: Int[np.ndarray, " n"] | None) -> Int[np.ndarray, " n"]:
        """Return the nodes asked for, refusing the root, which is not binary, and indices out of range."""
        if nodes is None:
            return self.leaves
        return whole("nodes", shaped("n", nodes=nodes), low=ROOT + 1, high=self.num_nodes - 1)

    def _chance_of_one(self, nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        chance = self._laws[nodes, 1]
        if (chance == 0).any():
            raise AssumptionError(
                f"Co-occurrence given y_m = 1: node {nodes[chance == 0][0]} is never 1. Leave it out."
            )
        return chance


def regular_tree(
    depth: int,
    branching: int | Sequence[int],
    rho: float | Sequence[float],
    *,
    class_probabilities: Chances,
    zero_given_class: Chances,
) -> LatentTree:
    r"""Tree with all leaves at depth $L$, numbered level by level, and the same number of children within a level.

    `branching` is one number, or one for each of the `depth` levels from the root down; `rho` is one number, or one
    for each of the `depth - 1` levels of edges below the children of the root. `zero_given_class` holds
    P[y_1 = 0 | y_0 = k] for every class, or for every class and child of the root.
    """
    depth = int(whole("depth", depth, low=1))
    fan_out = whole("branching", broadcast(branching=np.asarray(branching), levels=np.empty(depth))["branching"], low=1)
    by_level = within("rho", broadcast(rho=np.asarray(rho), edges=np.empty(depth - 1))["rho"], -1, 1)
    parents, level = [NO_PARENT], range(1)
    for num_children in fan_out:
        parents += [node for node in level for _ in range(num_children)]
        level = range(level.stop, len(parents))
    rhos = np.repeat([1.0, 1.0, *by_level], [1, *np.cumprod(fan_out)])
    return _tree(parents, rhos, class_probabilities, zero_given_class)


def nested_tree(children: Nested, rho: float, *, class_probabilities: Chances, zero_given_class: Chances) -> LatentTree:
    r"""Tree of any shape from the nested children of its root, numbered depth first, with one $\rho$ on all edges.

    >>> tree = nested_tree([[(), ()], ()], 0.9, class_probabilities=[1.0], zero_given_class=[0.5])
    >>> tree.parents
    array([-1,  0,  1,  1,  0])
    """
    parents = [NO_PARENT]
    pending = [(ROOT, child) for child in reversed(children)]
    while pending:
        parent, below = pending.pop()
        node = len(parents)
        parents.append(parent)
        pending += [(node, child) for child in reversed(below)]
    return _tree(parents, np.where(np.less_equal(parents, ROOT), 1.0, rho), class_probabilities, zero_given_class)


def _tree(parents: list[int], rho: np.ndarray, p: Chances, zero_given_class: Chances) -> LatentTree:
    p, zero = np.asarray(p), finite("zero_given_class", zero_given_class)
    if zero.ndim == 1:
        zero = np.repeat(zero[:, None], parents.count(ROOT), axis=1)
    return LatentTree(parents=np.array(parents), rho=rho, class_probabilities=p, zero_given_class=zero)
