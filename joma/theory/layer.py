r"""One layer of the paper: attention, residual and the lower half of the MLP (Eqn 1), and its gradient flow (Eqn 2).

$$h_k = \phi(w_k^\top f), \qquad f = U_C b + u_q, \qquad b = \sigma(z_q)\circ x/A.$$

Axes: N samples, M contextual tokens, Q queries, K hidden nodes, d embedding dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from joma.errors import AssumptionError, finite, positive, shaped, whole
from joma.theory.activations import Activation
from joma.theory.attention import Attention
from joma.theory.integrate import State, integrate
from joma.types import Trajectory, keep

Backprop = Callable[[float, Float[np.ndarray, "N K"]], Float[np.ndarray, "N K"]]
r"""Time and hidden values in, the backpropagated gradient $g_{h_k}[i]$ out."""

Weights = Float[np.ndarray, "K d"]
Logits = Float[np.ndarray, "Q M"]
Hidden = Float[np.ndarray, "N K"]
"""Hidden values, or a gradient of them."""

ROUNDING = 1e-9  # largest distance from 1 at which probabilities still count as summing to one


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """Embedding vectors of the contextual tokens and of the query tokens, as columns."""

    contextual: Float[np.ndarray, "d M"]
    """$U_C$."""
    queries: Float[np.ndarray, "d Q"]
    """One column $u_m$ for each query m."""

    def __post_init__(self) -> None:
        contextual, queries = shaped("d M, d Q", contextual=self.contextual, queries=self.queries)
        if not contextual.size * queries.size:
            raise ValueError(f"`contextual` and `queries` must not be empty, got {contextual.shape}, {queries.shape}.")
        keep(self, contextual=contextual, queries=queries)

    @property
    def num_contextual(self) -> int:
        """M, called M_C in the paper."""
        return self.contextual.shape[1]

    @property
    def num_queries(self) -> int:
        """Q, called M_Q in the paper."""
        return self.queries.shape[1]

    def contextual_part(self, w: Float[np.ndarray, "*T K d"]) -> Float[np.ndarray, "*T K M"]:
        r"""Return $v_k = U_C^\top w_k$."""
        return w @ self.contextual


def orthonormal_embeddings(num_contextual: int, num_queries: int, *, dim: int, rng: np.random.Generator) -> Embeddings:
    """Draw embeddings with orthonormal columns, in a random rotation of `dim` dimensions.

    >>> u = orthonormal_embeddings(4, 2, dim=8, rng=np.random.default_rng(0))
    >>> bool(np.abs(u.contextual.T @ u.contextual - np.eye(4)).max() < 1e-15)
    True
    """
    num_tokens = num_contextual + num_queries
    if not 0 < num_tokens <= dim:
        raise AssumptionError(f"{num_tokens} orthonormal embeddings need as many dimensions, got {dim}. Enlarge `dim`.")
    u, _ = np.linalg.qr(rng.standard_normal((dim, num_tokens)))
    return Embeddings(contextual=u[:, :num_contextual], queries=u[:, num_contextual:])


@dataclass(frozen=True, kw_only=True)
class Samples:
    r"""The data distribution: samples i with token frequencies $x[i]$, query $q[i]$ and probability.

    Samples of a single query with weights that sum to one make the conditional expectation $E_{q=m}$ of Eqn 2.
    """

    x: Float[np.ndarray, "N M"]
    """Frequency of each contextual token in each sample."""
    q: Int[np.ndarray, " N"]
    """Index of each sample's query."""
    weights: Float[np.ndarray, " N"] = None  # type: ignore[assignment]
    """Probability of each sample; uniform when left out."""

    def __post_init__(self) -> None:
        x, q, weights = shaped("N M, N, N", x=self.x, q=self.q, weights=self.weights)
        if not x.size:
            raise ValueError(f"`x` must be a matrix with entries, got shape {x.shape}. Pass a row for each sample.")
        weights = np.full(len(x), 1 / len(x)) if weights is None else weights
        keep(self, x=x, q=whole("q", q, low=0), weights=weights)
        if (weights < 0).any() or abs(weights.sum() - 1) > ROUNDING:
            raise ValueError(
                f"`weights` must be probabilities, got a sum of {weights.sum():.6g}, the least {weights.min():.6g}. "
                "Divide them by their sum, or leave them out for uniform ones."
            )

    @property
    def num_samples(self) -> int:
        """N."""
        return len(self.x)

    def by_query(self, num_queries: int) -> Float[np.ndarray, "Q N"]:
        """Return the weight of each sample in the row of its query, zero in the others."""
        return np.equal.outer(np.arange(num_queries), self.q) * self.weights


@dataclass(frozen=True, kw_only=True)
class LayerGradient:
    """Time derivative of the layer's parameters under gradient ascent on Eqn 9."""

    w: Weights
    """Of the lower MLP layer, summed over the samples of all queries."""
    z: Logits
    """Of the attention logits, each query over its own samples with their joint weights."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    r"""The layer of Eqn 1 with lower MLP weights w (K×d) and attention logits z (Q×M) as its parameters.

    >>> from joma.theory.activations import relu
    >>> from joma.theory.attention import AttentionKind
    >>> tokens = Embeddings(contextual=np.eye(3)[:, :2], queries=np.eye(3)[:, 2:])
    >>> layer = Layer(embeddings=tokens, attention=Attention(kind=AttentionKind.EXP), activation=relu)
    >>> samples = Samples(x=np.array([[0.5, 0.5], [1.0, 0.0]]), q=np.array([0, 0]))
    >>> layer.hidden(np.array([[2.0, 4.0, -1.5]]), np.zeros((1, 2)), samples)
    array([[1.5],
           [0.5]])
    """

    embeddings: Embeddings
    attention: Attention
    activation: Activation

    def scores(self, z: Logits, samples: Samples) -> Float[np.ndarray, "N M"]:
        r"""Return the attention scores $b[i]$ of every sample."""
        z, _ = self._checked(z, samples)
        return self._scores(z, samples)

    def preactivation(self, w: Weights, z: Logits, samples: Samples) -> Hidden:
        r"""Return $w_k^\top f = v_k^\top b + w_k^\top u_q$, for embeddings of any kind."""
        z, w = self._checked(z, samples, w)
        return self._preactivation(w, self._scores(z, samples), samples)

    def hidden(self, w: Weights, z: Logits, samples: Samples) -> Hidden:
        r"""Return $h_k = \phi(w_k^\top f)$ of every sample (Eqn 1)."""
        return self.activation.value(self.preactivation(w, z, samples))

    def slopes(self, w: Weights, z: Logits, samples: Samples, g: Hidden) -> Hidden:
        r"""Return $g_{h_k}h'_k$ of every sample, the gradient before the activation."""
        pre = self.preactivation(w, z, samples)
        return shaped(f"{pre.shape[0]} {pre.shape[1]}", g=g) * self.activation.derivative(pre)

    def objective(self, w: Weights, z: Logits, samples: Samples, g: Hidden) -> float:
        r"""Return $E[\sum_k g_{h_k} h_k]$ (Eqn 9), to be maximised with g held constant."""
        return float(samples.weights @ (finite("g", g) * self.hidden(w, z, samples)).sum(axis=1))

    def gradient(self, w: Weights, z: Logits, samples: Samples, g: Hidden) -> LayerGradient:
        r"""Return the right-hand side of Eqn 2, $\dot w_k$ and $\dot z_m$, for one query or several that share w.

        $\dot w_k = E[g_{h_k} h'_k f]$ and $\dot z_m = E[1_{q=m}(\partial b/\partial z_m)^\top U_C^\top g_f]$ with
        $g_f = \sum_k g_{h_k}h'_k w_k$: gradient ascent on Eqn 9 with g a constant (stop-gradient).
        """
        z, w = self._checked(z, samples, w)
        g = shaped(f"{samples.num_samples} {len(w)}", g=g)
        return self._field(w, z, samples, lambda _: g)

    def flow(
        self,
        w0: Weights,
        z0: Logits,
        samples: Samples,
        backprop: Backprop,
        t: Float[np.ndarray, " T"],
        *,
        rate_ratio: float = 1.0,
        **options: Any,
    ) -> Trajectory:
        r"""Integrate Eqn 2 from (w0, z0) and report the states "w" and "z" at the times `t`.

        `backprop` gives g from the time and the hidden values (`fixed_gradient`, `cross_entropy_gradient`, or any
        function); `rate_ratio` is $\eta_z/\eta_w$; `options` go to `integrate`.
        """
        z0, w0 = self._checked(z0, samples, w0)
        ratio = float(positive("rate_ratio", rate_ratio))

        def field(time: float, state: State) -> State:
            slope = self._field(state["w"], state["z"], samples, lambda hidden: backprop(time, hidden))
            return {"w": slope.w, "z": ratio * slope.z}

        return integrate(field, {"w": w0, "z": z0}, t, **options)

    def _scores(self, z: np.ndarray, samples: Samples) -> np.ndarray:
        return self.attention.scores(z[samples.q], samples.x, checked=False)

    def _preactivation(self, w: np.ndarray, b: np.ndarray, samples: Samples) -> np.ndarray:
        return b @ self.embeddings.contextual_part(w).T + (w @ self.embeddings.queries).T[samples.q]

    def _field(
        self, w: np.ndarray, z: np.ndarray, samples: Samples, g_of: Callable[[np.ndarray], np.ndarray]
    ) -> LayerGradient:
        """Eqn 2 without input checks: inside a step that the integrator will reject, w and z may overflow."""
        b = self._scores(z, samples)
        pre = self._preactivation(w, b, samples)
        slope = g_of(self.activation.value(pre)) * self.activation.derivative(pre)  # g_{h_k} h'_k, (N, K)
        by_query = samples.by_query(self.embeddings.num_queries)  # (Q, N)
        v_dot = (samples.weights[:, None] * slope).T @ b
        xi_dot = (by_query @ slope).T
        w_dot = v_dot @ self.embeddings.contextual.T + xi_dot @ self.embeddings.queries.T
        v_slope = slope @ self.embeddings.contextual_part(w)  # U_C^T g_f, (N, M)
        z_dot = by_query @ self.attention.pull_back(z[samples.q], samples.x, v_slope, checked=False)
        return LayerGradient(w=w_dot, z=z_dot)

    def _checked(self, z: np.ndarray, samples: Samples, w: np.ndarray | None = None) -> Any:
        """Return z and w as arrays, refusing NaN, shapes that do not fit the embeddings, and queries without one."""
        u = self.embeddings
        axes = f"{u.num_queries} {u.num_contextual}, K {len(u.contextual)}, N {u.num_contextual}"
        z, w, _ = shaped(axes, z=z, w=w, x=samples.x)
        whole("q", samples.q, low=0, high=u.num_queries - 1)
        return z, w


def fixed_gradient(g: Hidden) -> Backprop:
    """Return a backpropagated gradient that never changes: the layer-wise training of Assumption 1."""
    g = finite("g", g)
    return lambda time, hidden: g


def cross_entropy_gradient(labels: Int[np.ndarray, " N"]) -> Backprop:
    r"""Return $g_{h_k}[i] = 1[y[i]=k] - \mathrm{softmax}(h[i])_k$, ascent on the log likelihood with h as logits.

    >>> g = cross_entropy_gradient(np.array([1]))
    >>> g(0.0, np.array([[0.0, 0.0]]))
    array([[-0.5,  0.5]])
    """

    def gradient(time: float, hidden: np.ndarray) -> np.ndarray:
        num_nodes = hidden.shape[1]
        wanted = whole("labels", labels, low=0, high=num_nodes - 1)
        return np.eye(num_nodes)[wanted] - special.softmax(hidden, axis=1)

    return gradient
