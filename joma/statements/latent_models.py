"""Small latent trees, enumerated in exact rationals: the references of Theorem 5."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from joma.theory.latent_tree import LatentTree

# Probabilities are compared with the floats nearest to exact rationals, after a few roundings of numbers below one.
FLOAT_TOLERANCE = 1e-15


@dataclass(frozen=True, kw_only=True)
class Model:
    """A latent tree whose probabilities are whole numbers over `base`, so that enumeration is exact."""

    base: int
    parents: tuple[int, ...]
    same: tuple[int, ...]
    """P[child = parent] = (1 + ρ)/2 above every node; `base` for the root and its children."""
    classes: tuple[int, ...]
    zero: tuple[tuple[int, ...], ...]
    """P[y_1 = 0 | y_0 = k], a row for every class."""

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
        above = [node]
        while above[-1] != 0:
            above.append(self.parents[above[-1]])
        return above

    def ancestor(self, first: int, second: int) -> int:
        """Return the lowest latent above both nodes."""
        return max(set(self.path(first)) & set(self.path(second)))

    def rho_below(self, ancestor: int, node: int) -> Fraction:
        """Product of ρ over the edges between a latent and a node below it."""
        path = self.path(node)
        return math.prod((self.rho(n) for n in path[: path.index(ancestor)]), start=Fraction(1))


@cache
def enumerated(model: Model) -> np.ndarray:
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
def exact_law(model: Model, *nodes: int) -> np.ndarray:
    """Exact joint law of different nodes, in the order given, as fractions."""
    wanted = sorted(nodes)
    table = enumerated(model)
    if len(nodes) < len(leaves_of(model)) and set(nodes) <= set(leaves_of(model)):
        table, wanted = exact_law(model, *leaves_of(model)), [leaves_of(model).index(node) for node in wanted]
    kept = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in wanted))
    in_order = np.transpose(kept, np.argsort(np.argsort(nodes)))
    return np.vectorize(Fraction, otypes=[object])(in_order) / Fraction(kept.sum())


@cache
def leaves_of(model: Model) -> tuple[int, ...]:
    """Nodes without children."""
    return tuple(node for node in range(1, len(model.parents)) if node not in model.parents)


def exact_cooccurrence(model: Model, node: int, given: int) -> Fraction:
    """P[node = 1 | given = 1], by enumeration."""
    if node == given:
        return Fraction(1)
    joint = exact_law(model, node, given)
    return joint[1, 1] / joint[:, 1].sum()


def height_of_pair(model: Model, first: int, second: int) -> int:
    """Edges between a leaf and the common ancestor, for trees whose leaves have one depth."""
    return model.path(first).index(model.ancestor(first, second))


def regular_model(same: int, classes: tuple[int, ...], zero: tuple[tuple[int, ...], ...]) -> Model:
    """Depth 3, two children each: 14 binary nodes, 8 leaves; probabilities in tenths."""
    parents = (-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6)
    return Model(base=10, parents=parents, same=(10,) * 3 + (same,) * 12, classes=classes, zero=zero)


REGULAR = regular_model(9, (5, 3, 2), ((3, 9), (7, 1), (5, 4)))
NEGATIVE = regular_model(1, (5, 3, 2), ((3, 6), (7, 2), (5, 5)))
UNEQUAL_TOPS = regular_model(9, (5, 5), ((1, 9), (0, 8)))
IRREGULAR = Model(
    base=10,
    parents=(-1, 0, 1, 1, 2, 2, 3, 0, 7, 7, 9, 9),
    same=(10, 10, 9, 2, 7, 10, 0, 10, 6, 9, 5, 8),
    classes=(5, 3, 2),
    zero=((3, 9), (7, 1), (5, 4)),
)


def largest_gap(errors: list[float]) -> float:
    """Return the largest error of a list that must not be empty."""
    return float(max(errors))


def float_gap(claimed: np.ndarray | float, exact: np.ndarray | Fraction) -> float:
    """Return the largest difference of floats from exact numbers."""
    return float(np.abs(np.asarray(claimed, dtype=np.float64) - np.asarray(exact, dtype=np.float64)).max())
