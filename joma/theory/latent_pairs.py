r"""Section 5 in closed form: two nodes of a latent tree and their common ancestor (Theorem 5, Lemmas 8, 9, Eqn 8).

The paper defines $\rho_0$ by the probability $P[y_1=0 \mid y_0=k]$, but uses $\rho_0 = 2\,P[y_1=0] - 1$, as here. Depth
$L$ counts the edges from the root to a leaf, so a common ancestor of two leaves is binary for heights
$1 \le H \le L-1$ only. A tree of any shape is `joma.theory.latent_tree.LatentTree`.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from joma.errors import AssumptionError, same_shape, whole, within
from joma.types import Real

Count = int | np.integer | Int[np.ndarray, "..."]
"""A whole number or an array of them."""

FLIP = np.array([[1.0, -1.0], [-1.0, 1.0]])
r"""$ee^\top$ with $e = [1, -1]^\top$."""

SUM_TOLERANCE = 1e-12
"""How far the class probabilities may sum from one: rounding of a thousand terms."""


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


def root_parameter(
    class_probabilities: Float[np.ndarray, " D"], zero_given_class: Float[np.ndarray, "D ..."]
) -> Float[np.ndarray, "..."]:
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
    _require_binary_ancestor(H, L)
    rho, rho0 = within("rho", rho, -1, 1), within("rho0", rho0, -1, 1)
    twice_on = _one_minus(rho, np.asarray(L) - 1, rho0)
    if (twice_on == 0).any():
        raise AssumptionError(
            "Thm. 5 conditions on y_m = 1, which has probability ½(1 − ρ^(L−1) ρ₀) = 0 here. "
            "Pass |rho| or |rho0| below 1."
        )
    return np.asarray(1 - _one_minus(rho, 2 * np.asarray(H), 1.0) / (2 * twice_on))


def root_cooccurrence(
    L: int,
    rho: float,
    class_probabilities: Float[np.ndarray, " D"],
    zero_l: Float[np.ndarray, " D"],
    zero_m: Float[np.ndarray, " D"],
) -> float:
    r"""$P[y_l=1 \mid y_m=1]$ when only the root is above both leaves ($H = L$), where Theorem 5 does not apply.

    $\frac12\,\frac{1 - t(\rho_l+\rho_m) + t^2\sum_k p_k q^l_k q^m_k}{1-t\rho_m}$ with $t=\rho^{L-1}$,
    $q_k = 2P[y_1=0 \mid y_0=k]-1$ of the child of the root above each leaf (`zero_l` and `zero_m` are these
    probabilities), and $\rho_l = \sum_k p_k q^l_k$.

    >>> round(root_cooccurrence(2, 0.8, np.array([0.5, 0.5]), np.array([0.0, 1.0]), np.array([1.0, 0.0])), 12)
    0.18
    """
    zero_l, zero_m = within("zero_l", zero_l, 0, 1), within("zero_m", zero_m, 0, 1)
    same_shape(class_probabilities=class_probabilities, zero_l=zero_l, zero_m=zero_m)
    zeros = np.stack([zero_l, zero_m], axis=1)
    rho_l, rho_m = root_parameter(class_probabilities, zeros)
    t = float(within("rho", rho, -1, 1)) ** (int(whole("L", L, low=1)) - 1)
    shared = class_probabilities @ (2 * zeros - 1).prod(axis=1)
    if t * rho_m == 1:
        raise AssumptionError("Co-occurrence conditions on y_m = 1, which has probability 0 here. Lower `zero_m`.")
    return float((1 - t * (rho_l + rho_m) + t**2 * shared) / (1 - t * rho_m) / 2)


def cooccurrence_limit(H: Count, L: Count, c: Real = 1.0) -> np.ndarray:
    r"""Limit of Theorem 5 for $\rho = 1-\epsilon$, $\rho_0 = 1-c\epsilon$ as $\epsilon\to0$: $1-\frac{H}{L-1+c}$.

    Eqn 8 is $c = 1$; $c = 2$ belongs to $P[y_1=0] = 1-\epsilon$.

    >>> float(cooccurrence_limit(1, 5))
    0.8
    """
    _require_binary_ancestor(H, L)
    c = within("c", c, 0, np.inf)
    return np.asarray(1 - np.asarray(H) / (np.asarray(L) - 1 + c))


def cooccurrence_slope(H: Count, L: Count, c: Real = 1.0) -> np.ndarray:
    r"""Coefficient of $\epsilon$ by which Theorem 5 leaves its limit, for $\rho = 1-\epsilon$, $\rho_0 = 1-c\epsilon$.

    $-\frac{H}{L-1+c}\left[\frac{(L-1)(L-2+2c)}{2(L-1+c)} - \frac{2H-1}{2}\right]$, which is $-\frac{H(L-2H)}{2L}$ at
    $c=1$: the error of Eqn 8 is of first order, but for $L = 2H$, where Theorem 5 gives ½ exactly.

    >>> float(cooccurrence_slope(1, 5).round(12))
    -0.3
    """
    _require_binary_ancestor(H, L)
    H, L, c = np.asarray(H), np.asarray(L), within("c", c, 0, np.inf)
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
        raise ValueError(
            f"`{name}` must be a list of numbers that sum to 1, got a sum of {p.sum():.12g}. Divide by it."
        )
    return p


def _require_binary_ancestor(H: Count, L: Count) -> None:
    H, L = np.broadcast_arrays(whole("H", H, low=0), whole("L", L, low=0))
    bad = (H < 1) | (H > L - 1)
    if bad.any():
        raise AssumptionError(
            f"Thm. 5 needs a binary common ancestor, 1 ≤ H ≤ L − 1; got H = {H[bad][0]}, L = {L[bad][0]}. "
            "For a common ancestor at the root use `root_cooccurrence` or a `LatentTree`."
        )


def _one_minus(rho: np.ndarray, n: Count, factor: Real) -> np.ndarray:
    r"""$1 - \rho^n f$ to full relative accuracy, also where the product is near one."""
    product = np.power(rho, n) * factor
    with np.errstate(divide="ignore"):
        log_size = special.xlogy(n, np.abs(rho)) + np.log(np.abs(factor))
    return np.where(product > 0, -np.expm1(log_size), 1 - product)
