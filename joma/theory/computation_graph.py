r"""The multi-layer note: how a gradient that has learned one latent reaches the nodes that learn another.

A node $j$ of a computation graph combines its precedents, $f_j = \sigma_j(\sum_k w_{jk} f_k)$ (note, Eqn 1). Over the
data, signals are vectors and $\operatorname{corr}(x, y) = \sum_i x[i]\,y[i]$. One gradient step from zero sets
$w_{jk} = \operatorname{corr}(f_k, s_j)$ with the gated gradient $s_j = \sigma_j' g_j$, and the gradient
$g_{j\to k} = w_{jk}s_j$ goes down to node $k$, so that
$\operatorname{corr}(z_\beta, g_{j\to k}) = \operatorname{corr}(f_k, s_j)\,\operatorname{corr}(z_\beta, s_j)$.

The note says that this is positive whenever three correlations are. It is not: what decides are the angles
$A_i = \arccos C_i$ of *normalised* correlations, and they must sum to less than $\pi/2$.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, broadcast, finite, positive, shaped, within
from joma.theory.activations import Activation
from joma.types import Real, keep

Signal = Float[np.ndarray, "*batch samples"]
"""Values of a node, a gradient or a latent over the data."""
Nodes = Float[np.ndarray, "V samples"]
"""The same for all nodes of a graph."""


def correlation(x: Signal, y: Signal) -> Float[np.ndarray, "*batch"]:
    r"""$\operatorname{corr}(x,y) = \sum_i x[i]\,y[i]$ over the data, as the note defines it: not normalised."""
    return np.asarray(np.multiply(x, y).sum(axis=-1))


def cosine(x: Signal, y: Signal) -> Float[np.ndarray, "*batch"]:
    r"""Normalised correlation, $\operatorname{corr}(x,y)/(\|x\|\|y\|)$."""
    return np.asarray(correlation(x, y) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)))


class Forward(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    f: Nodes
    """Activation of every node."""
    slope: Nodes
    r"""$\sigma_j'$ at the pre-activation of every node; one for inputs."""


@dataclass(frozen=True, kw_only=True)
class ComputationGraph:
    r"""A computational directed acyclic graph with nodes in an order in which precedents come first (note, Eqn 1).

    Weights are a matrix $w_{jk}$ over all nodes, of which only the entries of edges count.
    """

    precedents: tuple[tuple[int, ...], ...]
    """ch(j) of every node; a node without any is an input."""
    activations: tuple[Activation, ...]
    r"""$\sigma_j$ of every node; that of an input is not used."""

    def __post_init__(self) -> None:
        if len(self.activations) != self.num_nodes:
            raise ValueError(f"`activations` must be one for each node, {self.num_nodes}; got {len(self.activations)}.")
        for j, below in enumerate(self.precedents):
            if late := [k for k in below if not 0 <= k < j]:
                raise ValueError(f"Precedents must come before their node, got {late[0]} for {j}. Number inputs first.")

    @property
    def num_nodes(self) -> int:
        """V."""
        return len(self.precedents)

    @property
    def inputs(self) -> list[int]:
        """Nodes that take the input."""
        return [j for j, below in enumerate(self.precedents) if not below]

    def forward(self, w: Float[np.ndarray, "V V"], x: Float[np.ndarray, "inputs samples"]) -> Forward:
        r"""$f_j = \sigma_j(\sum_{k\in ch(j)} w_{jk} f_k)$, and the slopes $\sigma_j'$; row i of x is the i-th input."""
        V = self.num_nodes
        w, x = shaped(f"{V} {V}, {len(self.inputs)} samples", w=w, x=x)
        f = np.empty((V, x.shape[1]))
        slope = np.ones_like(f)
        f[self.inputs] = x
        for j, below in enumerate(self.precedents):
            if below:
                a = w[j, list(below)] @ f[list(below)]
                f[j], slope[j] = self.activations[j].value(a), self.activations[j].derivative(a)
        return Forward(f=f, slope=slope)

    def backward(self, w: Float[np.ndarray, "V V"], forward: Forward, received: Nodes) -> Nodes:
        r"""$g_k = \sum_{j\in pa(k)} w_{jk}\sigma_j' g_j$, plus what a node receives from the loss itself."""
        w, received, _ = shaped("V V, V N, V N", w=w, received=received, f=forward.f)
        g = received.copy()
        for j in reversed(range(self.num_nodes)):
            for k in self.precedents[j]:
                g[k] += w[j, k] * forward.slope[j] * g[j]
        return g

    def weight_gradient(self, forward: Forward, g: Nodes) -> Float[np.ndarray, "V V"]:
        r"""$\operatorname{corr}(f_k, \sigma_j' g_j)$ on every edge: what one unit step adds to $w_{jk}$."""
        g, _ = shaped("V N, V N", g=g, f=forward.f)
        on_edge = np.array([[k in below for k in range(self.num_nodes)] for below in self.precedents])
        return on_edge * ((forward.slope * g) @ forward.f.T)


@dataclass(frozen=True, kw_only=True)
class Edge:
    r"""The four signals of the note's Theorem 1 on the edge from node $j$ down to node $k$."""

    z_alpha: Signal
    """Latent that node j learns."""
    z_beta: Signal
    """Latent that node k is to learn."""
    f: Signal
    r"""Activation $f_k$."""
    gated_gradient: Signal
    r"""$s_j = \sigma_j' g_j$."""

    def __post_init__(self) -> None:
        signals = shaped("*B N, *B N, *B N, *B N", **vars(self))
        keep(self, **dict(zip(vars(self), signals, strict=True)))

    @property
    def weight(self) -> np.ndarray:
        r"""$w_{jk} = \operatorname{corr}(f_k, s_j)$: one gradient step of unit rate from zero."""
        return correlation(self.f, self.gated_gradient)

    @property
    def gradient(self) -> np.ndarray:
        r"""$g_{j\to k} = w_{jk}\,s_j$."""
        return self.weight[..., None] * self.gated_gradient

    @property
    def cosines(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""Normalised $C_1, C_2, C_3$: $z_\alpha$ with $s_j$, $z_\beta$ with $f_k$, and $|\cos|$ of the two latents."""
        overlap = np.asarray(np.abs(cosine(self.z_alpha, self.z_beta)))
        return cosine(self.z_alpha, self.gated_gradient), cosine(self.z_beta, self.f), overlap

    @property
    def backpropagated_correlation(self) -> np.ndarray:
        r"""$\operatorname{corr}(z_\beta, g_{j\to k})$, not normalised."""
        return correlation(self.z_beta, self.gradient)

    @property
    def backpropagated_cosine(self) -> np.ndarray:
        r"""$\cos(f_k, s_j)\cos(z_\beta, s_j)$: the correlation divided by $\|f_k\|\,\|s_j\|^2\,\|z_\beta\|$."""
        return np.asarray(cosine(self.f, self.gated_gradient) * cosine(self.z_beta, self.gated_gradient))


def worst_edge(C1: float, C2: float, C3: float) -> Edge:
    """Return planar unit vectors, correlated by at least C₁, C₂, C₃, that attain `least_backpropagated_cosine`."""
    A1, A2, A3 = (float(A) for A in _angles(C1, C2, C3))
    reach = A1 + A3
    turn = min(reach, (np.pi - A2) / 2)  # angle between z_β and s
    share = turn / reach if reach > 0 else 0.0
    s, z_alpha, z_beta, f = (np.array([np.cos(a), np.sin(a)]) for a in (0.0, share * A1, turn, turn + A2))
    return Edge(gated_gradient=s, z_alpha=z_alpha, z_beta=z_beta, f=f)


def counterexample() -> Edge:
    """Return signals of integers with correlations 1, 3 and 1 on which the note's Theorem 1 fails.

    >>> float(counterexample().backpropagated_correlation)
    -9.0
    """
    signals = {"z_alpha": [1.0, 0.0], "z_beta": [1.0, 2.0], "f": [3.0, 0.0], "gated_gradient": [1.0, -2.0]}
    return Edge(**{name: np.array(signal) for name, signal in signals.items()})


def angle_sum(C1: Real, C2: Real, C3: Real) -> np.ndarray:
    r"""$A_1+A_2+A_3$ with $A_i = \arccos C_i$; the note's Theorem 1 is true where it is below $\pi/2$.

    Three equal correlations must exceed $\cos(\pi/6) = \sqrt3/2$.
    """
    return np.asarray(sum(_angles(C1, C2, C3)))


def backpropagated_correlation_bound(C1: Real, C2: Real, C3: Real) -> np.ndarray:
    r"""$\cos(z_\beta, s_j)\cos(f_k, s_j) \ge \cos(A_1+A_3)\cos(A_1+A_2+A_3) > 0$, the note's Theorem 1 made exact.

    Hypotheses: normalised correlations of at least $C_1, C_2, C_3$ (the last in absolute value) and
    $A_1+A_2+A_3 < \pi/2$. Sharp: `worst_edge` attains it. The correlation itself has the further
    factor $\|f_k\|\|s_j\|^2\|z_\beta\|$.

    >>> float(backpropagated_correlation_bound(0.95, 0.95, 0.95).round(6))
    0.466497
    """
    _require_acute(angle_sum(C1, C2, C3), "The note's Thm. 1 needs arccos C₁ + arccos C₂ + arccos C₃", "Raise them")
    return least_backpropagated_cosine(C1, C2, C3)


def least_backpropagated_cosine(C1: Real, C2: Real, C3: Real) -> np.ndarray:
    r"""Least $\cos(z_\beta, s_j)\cos(f_k, s_j)$ over all signals, $\frac12[C_2 + \cos\min(\pi, 2A_1+A_2+2A_3)]$.

    With $a$ the angle between $z_\beta$ and $s_j$, the product is least when $f_k$ lies $A_2$ beyond:
    $\cos a\cos(a+A_2) = \frac12[\cos A_2 + \cos(2a+A_2)]$, and $a \le A_1+A_3$. Needs no hypothesis; it is positive if
    and only if $A_1+A_2+A_3 < \pi/2$, and then equal to $\cos(A_1+A_3)\cos(A_1+A_2+A_3)$.

    >>> float(least_backpropagated_cosine(0.1, 0.1, 0.1))
    -0.45
    """
    A1, A2, A3 = _angles(C1, C2, C3)
    return np.asarray((np.cos(A2) + np.cos(np.minimum(np.pi, 2 * (A1 + A3) + A2))) / 2)


def summed_cosine_bound(C4: Float[np.ndarray, "*batch parents"]) -> Float[np.ndarray, "*batch"]:
    r"""Bound on $\cos(z_\beta, g_k)$, $g_k = \sum_j g_{j\to k}$: the least $\cos(z_\beta, g_{j\to k})$ of the parents.

    $z_\beta\cdot g_k \ge \sum_j C_{4j}\|g_{j\to k}\| \ge \min_j C_{4j}\,\|g_k\|$ by the triangle inequality, where no
    $C_{4j}$ is negative.
    """
    return np.asarray(within("C4", C4, 0, 1).min(axis=-1))


def gated_cosine_bound(C2: Real, C4: Real) -> np.ndarray:
    r"""Least $\cos(z_\beta, \sigma_k' g_k)$ after a ReLU: $\sqrt{C_2^2 + C_4^2 - 1}$, for $A_2 + A_4 < \pi/2$.

    Given $\cos(z_\beta, f_k) \ge C_2$ and $\cos(z_\beta, g_k) \ge C_4$. Since $f_k$ is zero where the gate is shut, the
    component of $z_\beta$ there has norm at most $\sin A_2$, and the worst gradient puts all it can there. Sharp. The
    note's recursion takes this for granted; with $C_2^2 + C_4^2 \le 1$ the sign is open.

    >>> float(gated_cosine_bound(0.8, 1.0))
    0.8
    """
    C2, C4 = within("C2", C2, 0, 1), within("C4", C4, 0, 1)
    room = np.asarray(C2**2 + C4**2 - 1)
    if (room <= 0).any():
        raise AssumptionError(
            f"A ReLU needs C₂² + C₄² > 1, got {room.min() + 1:.4f}. Raise both, or use a leaky slope."
        )
    return np.asarray(np.sqrt(room))


def sloped_cosine_bound(C4: Real, lowest: float, highest: float) -> np.ndarray:
    r"""Least $\cos(z_\beta, \sigma_k' g_k)$ when $\sigma_k'$ lies in [lowest, highest], both positive.

    $\cos(A_4 + \phi)$ with $\sin\phi = \frac{h-l}{h+l}$, the largest angle by which such slopes can turn a vector
    (Kantorovich's inequality); needs $A_4 + \phi < \pi/2$. A linear activation has $\phi = 0$.

    >>> float(sloped_cosine_bound(1.0, 1.0, 4.0).round(12))
    0.8
    """
    lowest, highest = float(finite("lowest", lowest)), float(finite("highest", highest))
    if not 0 < lowest <= highest:
        raise ValueError(f"Slopes must satisfy 0 < lowest ≤ highest, got {lowest} and {highest}. Swap or raise them.")
    angle = np.arccos(within("C4", C4, 0, 1)) + np.arcsin((highest - lowest) / (highest + lowest))
    _require_acute(angle, "The recursion needs arccos C₄ + arcsin((h−l)/(h+l))", "Raise C₄, or narrow the slopes")
    return np.asarray(np.cos(angle))


def recursed_cosines(
    C1: float, C2: Float[np.ndarray, " levels"], C3: Float[np.ndarray, " levels"], activation: Activation
) -> Float[np.ndarray, " levels"]:
    r"""Lower bounds on $\cos(z, \sigma' g)$ level after level, from the top node's $C_1$: the note's recursion, exact.

    Each level needs $A_1+A_2+A_3 < \pi/2$ with the $A_1$ that the level above leaves. Then every parent sends
    $\cos(z_\beta, g_{j\to k}) \ge C_4 = \cos(A_1+A_3)$, and the next $C_1$ is $C_4$ after a linear activation,
    $\sqrt{C_2^2+C_4^2-1}$ after a ReLU, $\cos(A_1+A_3+\phi)$ for two positive slopes. Angles add up, so a fixed
    $C_3 < 1$ carries the recursion through finitely many levels only. Several parents: pass the least $C_1$ and $C_3$.

    >>> from joma.theory.activations import linear, relu
    >>> recursed_cosines(1.0, np.full(3, 0.95), np.full(3, 0.98), linear).round(4)
    array([0.98  , 0.9208, 0.8248])
    >>> recursed_cosines(1.0, np.full(1, 0.95), np.full(1, 0.98), relu).round(4)
    array([0.9289])
    """
    C2, C3 = shaped("levels, levels", C2=C2, C3=C3)
    slopes = activation.require_homogeneous("The recursion")
    bounds = []
    for level, (c2, c3) in enumerate(zip(C2, C3, strict=True)):
        _require_acute(angle_sum(C1, c2, c3), f"Level {level} needs A₁ + A₂ + A₃", f"Pass only {level}, or raise C")
        C4 = float(np.cos(np.arccos(C1) + np.arccos(c3)))
        shut = min(slopes) == 0
        C1 = float(gated_cosine_bound(float(c2), C4) if shut else sloped_cosine_bound(C4, min(slopes), max(slopes)))
        bounds.append(C1)
    return np.array(bounds)


@dataclass(frozen=True, kw_only=True)
class TwoValuedInput:
    r"""A node whose input is $x_+$ when its latent is one and $x_-$ when it is zero (note, Eqns 2 and 3).

    >>> from joma.theory.activations import linear
    >>> node = TwoValuedInput(x_plus=np.array([1.0]), x_minus=np.array([2.0]), p1=0.8, activation=linear)
    >>> round(node.linear_gap_rate(), 12)
    -0.4
    """

    x_plus: Float[np.ndarray, " d"]
    x_minus: Float[np.ndarray, " d"]
    p1: float
    r"""$P[z_\alpha = 1]$."""
    activation: Activation
    g_plus: float = 1.0
    r"""$E[g_j \mid z_\alpha=1]$; Eqn 3 takes 1."""
    g_minus: float = -1.0
    r"""$E[g_j \mid z_\alpha=0]$; Eqn 3 takes −1."""

    def __post_init__(self) -> None:
        x_plus, x_minus = shaped("d, d", x_plus=self.x_plus, x_minus=self.x_minus)
        keep(self, x_plus=x_plus, x_minus=x_minus, p1=float(within("p1", self.p1, 0, 1)))
        keep(self, **{name: float(finite(name, getattr(self, name))) for name in ("g_plus", "g_minus")})

    def field(self, w: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch d"]:
        r"""$\dot w = \sigma'(w\cdot x_+)E[g|1]P_1x_+ + \sigma'(w\cdot x_-)E[g|0]P_0x_-$ (Eqn 2).

        Exact when x takes two values; with $E[g|\cdot] = \pm1$ it is Eqn 3.
        """
        slope, w = self.activation.derivative, shaped(f"* {self.x_plus.size}", w=w)
        plus = np.asarray(slope(w @ self.x_plus) * self.g_plus * self.p1)
        minus = np.asarray(slope(w @ self.x_minus) * self.g_minus * (1 - self.p1))
        return plus[..., None] * self.x_plus + minus[..., None] * self.x_minus

    def outputs(self, w: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch 2"]:
        r"""$f_j$ for $z_\alpha = 0$ and for $z_\alpha = 1$; learning the latent means $[0, 1]$."""
        w = shaped(f"* {self.x_plus.size}", w=w)
        return np.stack([self.activation.value(w @ self.x_minus), self.activation.value(w @ self.x_plus)], axis=-1)

    def linear_gap_rate(self) -> float:
        r"""Speed at which $f_j(x_+)-f_j(x_-)$ grows with a linear activation: constant, and negative for some inputs.

        $P_1\|x_+\|^2+P_0\|x_-\|^2-x_+\cdot x_-$ at $E[g|\cdot]=\pm1$. With either sign the outputs are linear in time
        and do not converge to 0 and 1.
        """
        if self.activation.slopes is None or len(set(self.activation.slopes)) > 1:
            raise AssumptionError(f"A steady gap needs a linear activation, got {self.activation.name}. Use `linear`.")
        drift = self.field(np.zeros_like(self.x_plus))
        return float(self.activation.slopes[0] * drift @ (self.x_plus - self.x_minus))

    def sigmoid_learns(self) -> bool:
        r"""Whether $x_+\cdot x_- < \min(\|x_+\|^2, \|x_-\|^2)$, so that a sigmoid's $f_j \to z_\alpha$ from any start.

        Sufficient, given $E[g|1] > 0 > E[g|0]$ and $0 < P_1 < 1$. With $a = w\cdot x_+$ and
        $b = w\cdot x_-$, $a-b$ only grows; where $a$ falls, $a-b$ gains at least in proportion, until the pull of $x_+$
        wins: $a\to\infty$ and likewise $b\to-\infty$. Without it both outputs may end at the same value.
        """
        if not (self.g_plus > 0 > self.g_minus and 0 < self.p1 < 1):
            given = f"{self.g_plus}, {self.g_minus} and {self.p1}"
            raise AssumptionError(f"Learning needs E[g|1] > 0 > E[g|0] and 0 < P₁ < 1, got {given}. Change these.")
        plus, minus = self.x_plus @ self.x_plus, self.x_minus @ self.x_minus
        return bool(self.x_plus @ self.x_minus < min(plus, minus))


def sigmoid_learning_time(a: Real, pull: Real) -> np.ndarray:
    r"""Time for $\dot a = P\|x\|^2\sigma'(a)$ to go from zero to $a$: $2(a+\sinh a)$ over the `pull` $P\|x\|^2$.

    Eqn 3 integrated for orthogonal $x_\pm$ and a sigmoid: $1-f_j$ falls as $1/(P\|x\|^2t)$.
    """
    a, pull = broadcast(a=finite("a", a), pull=positive("pull", pull)).values()
    return np.asarray(2 * (a + np.sinh(a)) / pull)


def _require_acute(angle: Real, need: str, advice: str) -> None:
    if np.max(angle) >= np.pi / 2:
        raise AssumptionError(f"{need} below π/2, got {np.max(angle):.4f}. {advice}.")


def _angles(C1: Real, C2: Real, C3: Real) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    given = {"C1": C1, "C2": C2, "C3": C3}
    A1, A2, A3 = map(np.arccos, broadcast(**{name: within(name, C, 0, 1) for name, C in given.items()}).values())
    return np.asarray(A1), np.asarray(A2), np.asarray(A3)
