r"""Theorem 1 with embeddings that are learned: what gradient flow conserves when U moves together with W and z.

With $f = U_Cb + u_q$ and $g_f = \sum_k g_{h_k}h'_kw_k$, gradient ascent on Eqn 9 in all parameters is

$$\dot w_k = \eta_w E[g_{h_k}h'_k f], \quad \dot u_l = \eta_u E[b_l\, g_f], \quad
  \dot u_m = \eta_q E[1_{q=m}\, g_f], \quad \dot z_m = \eta_z E[1_{q=m}(\partial b/\partial z_m)^\top U_C^\top g_f].$$

Not in the paper, which keeps the embeddings fixed (Section 7). `docs/learned_embeddings.md` has the proofs. Nothing is
asked of the data, of the activation, of the backpropagated gradient or of the embeddings: they may overlap, and there
may be fewer dimensions than tokens. Each query has an embedding of its own, apart from those of the context.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from joma.errors import finite, positive, shaped, within
from joma.theory.attention import Attention
from joma.theory.integrate import State, integrate
from joma.theory.invariants import Invariant
from joma.theory.layer import Backprop, Embeddings, Hidden, Layer, Logits, Samples, Weights
from joma.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class LearningRates:
    r"""Learning rate of each parameter; `queries` 0 keeps $u_m$ fixed."""

    w: float = 1.0
    z: float = 1.0
    contextual: float = 1.0
    queries: float = 1.0

    def __post_init__(self) -> None:
        for name in ("w", "z", "contextual"):
            positive(name, getattr(self, name))
        within("queries", self.queries, 0, np.inf)


EQUAL_RATES = LearningRates()


def embedding_gradient(layer: Layer, w: Weights, z: Logits, samples: Samples, g: Hidden) -> Embeddings:
    r"""Return $E[b_l\,g_f]$ and $E[1_{q=m}\,g_f]$, the gradient of Eqn 9 in the embeddings with g held constant."""
    stream_slope = layer.slopes(w, z, samples, g) @ finite("w", w)  # g_f, (N, d)
    by_token = samples.weights[:, None] * layer.scores(z, samples)
    by_query = samples.by_query(layer.embeddings.num_queries)
    return Embeddings(contextual=stream_slope.T @ by_token, queries=stream_slope.T @ by_query.T)


def learned_flow(
    layer: Layer,
    w0: Weights,
    z0: Logits,
    samples: Samples,
    backprop: Backprop,
    t: Float[np.ndarray, " T"],
    *,
    rates: LearningRates = EQUAL_RATES,
    **options: Any,
) -> Trajectory:
    """Integrate the flow of weights, logits and embeddings, and report "w", "z", "contextual" and "queries" over time.

    Args:
        layer: The layer with the embeddings of the start.
        w0: Weights at the start.
        z0: Logits at the start.
        samples: The data.
        backprop: Gives g from the time and the hidden values, as in `Layer.flow`.
        t: Ascending times.
        rates: Learning rate of each parameter.
        options: For `integrate`.
    """

    def field(time: float, state: State) -> State:
        now = replace(layer, embeddings=Embeddings(contextual=state["contextual"], queries=state["queries"]))
        w, z = state["w"], state["z"]
        g = backprop(time, now.hidden(w, z, samples))
        slope, moved = now.gradient(w, z, samples, g), embedding_gradient(now, w, z, samples, g)
        return {
            "w": rates.w * slope.w,
            "z": rates.z * slope.z,
            "contextual": rates.contextual * moved.contextual,
            "queries": rates.queries * moved.queries,
        }

    start = {"w": w0, "z": z0, "contextual": layer.embeddings.contextual, "queries": layer.embeddings.queries}
    return integrate(field, start, t, **options)


def token_invariant(
    z: Float[np.ndarray, "*T Q M"],
    contextual: Float[np.ndarray, "*T d M"],
    attention: Attention,
    rates: LearningRates = EQUAL_RATES,
) -> Float[np.ndarray, "*T M"]:
    r"""Return what linear and exp attention conserve for each token: its logit against the norm of its embedding.

    $\text{exp: } \sum_m z_m - \frac{\eta_z}{2\eta_uT}\|u_l\|^2, \qquad
    \text{linear: } \sum_m z_m^2 - \frac{\eta_z}{\eta_u}\|u_l\|^2.$ The weights do not appear. Softmax attention is
    refused: it conserves `logit_sums` and `balance`. It is Theorem 1 with the embedding in place of the weights.

    >>> from joma.theory.attention import AttentionKind
    >>> exp = Attention(kind=AttentionKind.EXP, temperature=0.5)
    >>> token_invariant(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0], [1.0, 1.0]]), exp)
    array([0., 0.])
    """
    z, contextual = shaped("*T Q M, *T d M", z=z, contextual=contextual)
    return Invariant(attention=attention, rate_ratio=rates.z / rates.contextual).value(contextual, z)


def balance(
    w: Float[np.ndarray, "*T K d"],
    contextual: Float[np.ndarray, "*T d M"],
    queries: Float[np.ndarray, "*T d Q"],
    rates: LearningRates = EQUAL_RATES,
) -> Float[np.ndarray, "*T d d"]:
    r"""Return what every attention conserves: the weights' second moment against that of the embeddings.

    $\tfrac1{\eta_w}\sum_k w_kw_k^\top - \tfrac1{\eta_u}U_CU_C^\top - \tfrac1{\eta_q}\sum_m u_mu_m^\top.$ It holds
    however the logits move. Fixed queries (rate 0) push w along $u_m$ without moving themselves: then the first two
    terms are conserved on the complement of their span, $P(\cdot)P$ with $Pu_m = 0$, which is returned.

    >>> balance(np.array([[2.0, 0.0]]), np.array([[1.0], [1.0]]), np.array([[1.0], [0.0]]))
    array([[ 2., -1.],
           [-1., -1.]])
    """
    w, contextual, queries = shaped("*T K d, *T d M, *T d Q", w=w, contextual=contextual, queries=queries)
    moved = np.einsum("...ki,...kj->...ij", w, w) / rates.w
    moved = moved - np.einsum("...il,...jl->...ij", contextual, contextual) / rates.contextual
    if rates.queries:
        return moved - np.einsum("...im,...jm->...ij", queries, queries) / rates.queries
    off = np.eye(w.shape[-1]) - queries @ np.linalg.pinv(queries)
    return off @ moved @ off


def softmax_leak(layer: Layer, w: Weights, z: Logits, samples: Samples, g: Hidden) -> Float[np.ndarray, " M"]:
    r"""Return the rate at which softmax attention breaks exp attention's law, $-E[b_l\,b^\top U_C^\top g_f]$.

    It is $\frac{d}{dt}\big(\frac{T}{\eta_z}\sum_m z_m - \frac1{2\eta_u}\|u_l\|^2\big)$: the normaliser moves one
    token's logit whenever another token is learned.
    """
    b = layer.scores(z, samples)
    along = layer.slopes(w, z, samples, g) @ finite("w", w) @ layer.embeddings.contextual
    return -samples.weights @ (b * (b * along).sum(axis=1, keepdims=True))
