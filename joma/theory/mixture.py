r"""Lemma 2: what a hidden node learns from a mixture of isotropic clusters, under uniform attention (Eqns 42-53).

A node with weights $v$ and implicit bias $\xi$ sees cluster $j$ at the normalised distance $s_j$ and is pulled by it in
proportion to $a_j = E[g \mid j]\,P[j]$. For a homogeneous activation this is gradient ascent on a potential of degree
one, so the field depends on the direction of $(v, \xi)$ alone: critical points come as rays, or not at all. The paper
evaluates $\theta$ and $F$ at $r_j = \|v\|s_j$ and divides by $\|v\|$ and $\|v\|^3$ (Eqns 42, 43 and 50), which is right
at $\|v\| = 1$ only. For any other activation $\theta_i(s_j)$ becomes $\Theta_i(r_j, \|v\|)$.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

from joma.errors import AssumptionError, finite, shaped
from joma.theory.activations import Activation, relu
from joma.theory.hyperplane import gate_mass, gate_mass_slope, gate_mean, gate_moment
from joma.theory.integrate import Field, State
from joma.theory.isotropic import Isotropic
from joma.types import Real, Tabular, as_columns, keep

Noise = Isotropic | tuple[Isotropic, ...]
"""One distribution for all clusters, or one for each."""

NUM_OPPOSED = 2  # clusters of Lemma 4 and Theorem 3: a positive and a negative one
NUM_DIRECTIONS = 512  # directions of (v, ξ) at which the search for the steepest one begins
NUM_CLIMBS = 6  # how many of the best of them are climbed from
GRADIENT_TOLERANCE = 1e-11
"""Slope along the sphere at which a climb ends; the rate is then exact to rounding, being flat there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth(Tabular):
    """Where the joint flow of weights and bias heads, and how fast."""

    rate: float
    r"""$\max L$ over the unit sphere: the limit of $\|(v, \xi)\| / t$."""
    v: Float[np.ndarray, " n"]
    """Weights of the unit vector (v, ξ) that attains it."""
    xi: float
    """Bias of that unit vector."""

    def columns(self) -> dict[str, np.ndarray]:
        """Return one row."""
        return as_columns({"rate": self.rate, "v": self.v[None], "xi": self.xi})


@dataclass(frozen=True, kw_only=True)
class Mixture:
    r"""C isotropic clusters and the gradient that each of them sends back to one hidden node.

    Lemma 2. Hypothesis: the backpropagated gradient is constant within a cluster.

    >>> from joma.theory.isotropic import Gaussian
    >>> mixture = Mixture(centers=np.array([[2.0, 0.0], [0.0, 0.0]]), weights=np.array([1.0, -4.0]),
    ...                   noise=Gaussian(dim=2))
    >>> v_dot, xi_dot = mixture.field(np.array([0.8, 0.0]), -1.0)
    >>> v_dot.round(4), float(xi_dot.round(4))
    (array([1.1173, 0.    ]), 0.3508)
    >>> round(mixture.growth().rate, 6)
    0.660203
    """

    centers: Float[np.ndarray, "C n"]
    r"""$\bar x_j$, one row for each cluster."""
    weights: Float[np.ndarray, " C"]
    r"""$a_j = E[g \mid j]\,P[j]$; negative where the gradient pushes the node down."""
    noise: Noise
    """Distribution around the centers, common to all clusters or one for each."""
    activation: Activation = relu
    r"""$\phi$; `jacobian` and `growth` need a homogeneous one."""

    def __post_init__(self) -> None:
        centers, weights = shaped("C n, C", centers=self.centers, weights=self.weights)
        if centers.size == 0:
            raise ValueError(f"`centers` must not be empty, got shape {centers.shape}. Pass one row for each cluster.")
        keep(self, centers=centers, weights=weights)
        if len(self.noises) != len(centers):
            raise ValueError(f"`noise` must be one or {len(centers)}, one each; got {len(self.noises)}. Pass them all.")
        for noise in self.noises:
            if noise.dim != self.dim:
                raise ValueError(f"`noise` must have dim={self.dim} like `centers`, got dim={noise.dim}. Change it.")

    @property
    def num_clusters(self) -> int:
        """C."""
        return len(self.centers)

    @property
    def dim(self) -> int:
        """n, the length of v."""
        return int(self.centers.shape[1])

    @cached_property
    def noises(self) -> tuple[Isotropic, ...]:
        """The distribution of every cluster."""
        return self.noise if isinstance(self.noise, tuple) else (self.noise,) * len(self.centers)

    @property
    def kink(self) -> float:
        r"""$c_+ - c_-$, the jump of $\psi$ of a homogeneous activation."""
        c_minus, c_plus = self.activation.require_homogeneous("c₊ − c₋")
        return c_plus - c_minus

    def opposed_weights(self, statement: str) -> tuple[float, float]:
        r"""Return $(a_+, a_-)$ of a positive and a negative cluster, or refuse any other mixture for `statement`.

        The positive cluster comes first, and the weights are $(a_+, -a_-)$.
        """
        if self.num_clusters != NUM_OPPOSED:
            raise AssumptionError(f"{statement} needs two clusters, got {self.num_clusters}. Use `two_clusters`.")
        if (self.centers[0] == self.centers[1]).all():
            raise AssumptionError(f"{statement} needs two centers that differ, got {self.centers[0]} twice. Move one.")
        return float(self.weights[0]), float(-self.weights[1])

    def distances(self, v: Float[np.ndarray, "*T n"], xi: Real) -> Float[np.ndarray, "*T C"]:
        r"""$s_j = (v^\top\bar x_j + \xi)/\|v\|$, signed distances from the centers to the hyperplane of the node."""
        return self._geometry(v, xi)[0]

    def field(
        self, v: Float[np.ndarray, "*T n"], xi: Real
    ) -> tuple[Float[np.ndarray, "*T n"], Float[np.ndarray, "*T"]]:
        r"""$\dot v = \sum_j a_j[\theta_1(s_j)\bar x_j + \theta_2(s_j)v/\|v\|]$ and $\dot\xi = \sum_j a_j\theta_1(s_j)$.

        Eqns 42 and 43, with the normalisation corrected.
        """
        pull, push = self.parts(v, xi)
        normal = v / np.hypot.reduce(v, axis=-1, keepdims=True)
        v_dot = pull @ self.centers + push.sum(axis=-1, keepdims=True) * normal
        return v_dot, np.asarray(pull.sum(axis=-1))

    def parts(
        self, v: Float[np.ndarray, "*T n"], xi: Real
    ) -> tuple[Float[np.ndarray, "*T C"], Float[np.ndarray, "*T C"]]:
        r"""Return $a_j\theta_1(s_j)$ and $a_j\theta_2(s_j)$: each cluster's pull to its center, and push along $v$."""
        s, _, norm = self._geometry(v, xi)
        gates = (self._each(gate, s, norm, psi=self.activation) for gate in (gate_mass, gate_moment))
        pull, push = (self.weights * gate for gate in gates)
        return pull, push

    def potential(self, v: Float[np.ndarray, "*T n"], xi: Real) -> Float[np.ndarray, "*T"]:
        r"""$L(v, \xi) = \sum_j a_jE\,\phi(v^\top x + \xi)$, whose gradient is the field.

        For a homogeneous activation $L = \|v\|\sum_j a_jF(s_j)$, homogeneous of degree one, hence
        $v^\top\dot v + \xi\dot\xi = L$: Eqn 53 corrected.
        """
        s, _, norm = self._geometry(v, xi)
        return np.asarray(self._each(gate_mean, s, norm, phi=self.activation) @ self.weights)

    def jacobian(self, v: Float[np.ndarray, "*T n"], xi: Real) -> Float[np.ndarray, "*T n+1 n+1"]:
        r"""Derivative of $(\dot v, \dot\xi)$ by $(v, \xi)$: what Eqns 67-70 give with the normalisation corrected.

        $\frac{1}{\|v\|}\sum_j a_j\left[(c_+ - c_-)\,p(s_j)\,q_jq_j^\top + \theta_2(s_j)\,\Pi\right]$ with
        $q_j = (\bar x_j - s_jn,\; 1)$, $n = v/\|v\|$ and $\Pi$ the projection of $v$ orthogonal to $n$.
        Hypothesis: a homogeneous activation.
        """
        self.activation.require_homogeneous("The derivative of the field")
        s, normal, norm = self._geometry(v, xi)
        feet = self.centers - s[..., None] * normal[..., None, :]
        q = np.concatenate([feet, np.ones((*s.shape, 1))], axis=-1)
        bend = self.weights * self._each(gate_mass_slope, s, norm, phi=self.activation)
        turn = self.weights * self._each(gate_moment, s, norm, psi=self.activation) / norm
        across = np.eye(self.dim) - normal[..., :, None] * normal[..., None, :]
        jacobian = np.einsum("...c,...ci,...cj->...ij", bend, q, q)
        jacobian[..., :-1, :-1] += turn.sum(axis=-1, keepdims=True)[..., None] * across
        return jacobian

    def flow(self, t: float, state: State) -> State:
        """Field of weights `v` and bias `xi` trained together (Eqn 50), as `integrate` takes it."""
        v_dot, xi_dot = self.field(state["v"], state["xi"])
        return {"v": v_dot, "xi": xi_dot}

    def frozen_flow(self, xi: float) -> Field:
        """Return the field of the weights `v` alone, the bias held at `xi`: the setting of Theorem 3."""
        return lambda t, state: {"v": self.field(state["v"], xi)[0]}

    def growth(self) -> Growth:
        r"""Rate and direction in which the joint flow escapes where it has no critical point: $\max L$ on the sphere.

        With $\rho = \|(v, \xi)\|$ and $u$ its direction, $\dot\rho = L(u)$ and $u$ climbs $L$ on the sphere, so $\rho$
        grows linearly at the maximum that $u$ reaches; this is the global one. A rate of zero or less says that no
        direction is unstable. Hypothesis: a homogeneous activation.
        """
        self.activation.require_homogeneous("Growth at the rate max L")
        basis = spanned(self.centers, across=1)  # the potential knows one direction across the centers
        starts = spread_directions(basis.shape[1] + 1)
        heights = self.potential(starts[:, :-1] @ basis.T, starts[:, -1])
        climbed = [self._climb(basis, starts[i]) for i in np.argsort(-heights)[:NUM_CLIMBS]]
        # At v = 0 the potential is Σ a_j φ(ξ), by continuity: the poles of the sphere, where the field has a kink.
        poles = self.activation.value(np.array([-1.0, 1.0])) * self.weights.sum()
        best = max(climbed, key=lambda growth: growth.rate)
        if poles.max() >= best.rate - GRADIENT_TOLERANCE:
            pole = int(poles.argmax())
            return Growth(rate=float(poles[pole]), v=np.zeros(self.dim), xi=(-1.0, 1.0)[pole])
        return best

    def _climb(self, basis: Float[np.ndarray, "n k"], start: Float[np.ndarray, " k1"]) -> Growth:
        """Climb the potential on the unit sphere of the coordinates `(v in basis, ξ)`."""

        def descent(x: np.ndarray) -> tuple[float, np.ndarray]:
            size = np.linalg.norm(x)
            u = x / size
            v_dot, xi_dot = self.field(basis @ u[:-1], u[-1])
            gradient = np.append(v_dot @ basis, xi_dot)
            height = gradient @ u
            return -float(height), -(gradient - height * u) / size

        x = optimize.minimize(descent, start, jac=True, method="BFGS", options={"gtol": GRADIENT_TOLERANCE}).x
        u = x / np.linalg.norm(x)
        v, xi = basis @ u[:-1], float(u[-1])
        return Growth(rate=float(self.potential(v, xi)), v=v, xi=xi)

    def _each(self, gate: Callable[..., np.ndarray], s: np.ndarray, norm: np.ndarray, **phi: Activation) -> np.ndarray:
        """Evaluate a `gate_...` function at r = s‖v‖ for every cluster, at once where they share a distribution."""
        r = s * norm
        if not isinstance(self.noise, tuple):
            return gate(self.noise, r, norm=norm, **phi)
        return np.stack([gate(p, r[..., j], norm=norm[..., 0], **phi) for j, p in enumerate(self.noise)], axis=-1)

    def _geometry(self, v: np.ndarray, xi: Real) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return s, v/‖v‖ and ‖v‖ (its last axis kept), refusing NaN, another length and v = 0."""
        v, xi = shaped(f"*T {self.dim}", v=v), finite("xi", xi)
        norm = np.hypot.reduce(v, axis=-1, keepdims=True)  # of any v whose entries are floats
        if (norm == 0).any():
            raise AssumptionError("Lemma 2 needs v ≠ 0: the node has no hyperplane otherwise. Start from a small v.")
        with np.errstate(over="ignore"):
            return v / norm @ self.centers.T + xi[..., None] / norm, v / norm, norm


def two_clusters(
    x_plus: Float[np.ndarray, " n"],
    *,
    a_plus: float = 1.0,
    a_minus: float = 1.0,
    noise: Noise,
    x_minus: Float[np.ndarray, " n"] | None = None,
    activation: Activation = relu,
) -> Mixture:
    r"""Return the mixture of one positive and one negative cluster (Lemma 4, Theorem 3): weights $(a_+, -a_-)$.

    The negative one lies at the origin when `x_minus` is None, as in Theorem 3.
    """
    x_plus, x_minus = shaped("n, n", x_plus=x_plus, x_minus=x_minus)
    centers = np.stack([x_plus, np.zeros_like(x_plus) if x_minus is None else x_minus])
    weights = np.array([a_plus, -a_minus], dtype=np.float64)
    return Mixture(centers=centers, weights=weights, noise=noise, activation=activation)


def spanned(centers: Float[np.ndarray, "C n"], across: int = 0) -> Float[np.ndarray, "n k"]:
    """Return orthonormal columns that span the centers, and up to so many across them."""
    _, sizes, rows = np.linalg.svd(centers)
    rank = int((sizes > sizes.max(initial=0) * centers.shape[1] * np.finfo(float).eps).sum())
    return rows[: min(rank + across, centers.shape[1])].T


def spread_directions(dim: int) -> Float[np.ndarray, "num dim"]:
    """Unit vectors spread evenly over the sphere: a Halton sequence through the normal quantile."""
    from scipy.stats import qmc  # noqa: PLC0415 (takes longer to import than all of joma.theory)

    sequence = qmc.Halton(dim, scramble=False)
    sequence.fast_forward(2)  # its first point is the corner at zero, its second has v = 0 where v has one component
    normal = special.ndtri(sequence.random(NUM_DIRECTIONS))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)
