r"""Theorem 1: what training conserves when the weights and the attention logits move together.

With $b = \sigma(z/T)\circ x/A$, learning rates $\eta_w, \eta_z$ and $v_k = U_C^\top w_k$, the flow of Eqn 2 has

$$\dot v_k = \eta_w\, G\, E[g_{h_k}h'_k b], \qquad
  \frac{\sigma}{\sigma'} \circ \dot z = \eta_z \sum_k E[g_{h_k}h'_k b]\circ v_k \quad\text{(Eqn 14)},$$

where $G = U_C^\top U_C$ is the Gram matrix of the embeddings. For $G = s^2 I$ the two integrate token by token:

$$\text{linear: } z^2 - \frac{\eta_z}{\eta_w s^2}\sum_k v_k^2, \qquad
  \text{exp: } z - \frac{\eta_z}{2\,\eta_w s^2\,T}\sum_k v_k^2.$$

Nothing is asked of the data, of the activation or of the backpropagated gradient, which may change over time
(Assumption 1 is not needed). The hypotheses are: gradient flow; orthogonal embeddings, the query's orthogonal to all
contextual ones; every consumer of f among the K nodes; one query, or the sum over all queries that share w.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, finite, positive, shaped, whole, within
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Layer
from joma.types import keep

WEIGHTS_AND_LOGITS = "*T K M, *T Q M"
ORTHOGONALITY = 1e-9  # largest inner product of two embeddings that counts as zero, over the largest squared norm


@dataclass(frozen=True, kw_only=True)
class Invariant:
    r"""The conserved quantity of linear or exp attention, one number for each contextual token (Theorem 1).

    >>> exp = Invariant(attention=Attention(kind=AttentionKind.EXP, temperature=0.5))
    >>> exp.value(v=np.array([[1.0, 2.0]]), z=np.array([[1.5, 4.5]]))
    array([0.5, 0.5])
    """

    attention: Attention
    rate_ratio: float = 1.0
    r"""$\eta_z/\eta_w$, the learning rate of the logits over that of the weights."""
    gram: Float[np.ndarray, "M M"] | None = None
    r"""$G = U_C^\top U_C$; the identity when None, as in the paper."""
    query_weights: Float[np.ndarray, " Q"] | None = None
    r"""Weight of each query in the sum over queries, one when None.

    One is right when $\dot z_m$ is the gradient of the full objective, $E[1_{q=m}\cdots]$. Where $\dot z_m$ uses
    conditional expectations $E_{q=m}$ (Eqn 2 for every query) the weight is the query's probability.
    """

    def __post_init__(self) -> None:
        keep(self, rate_ratio=float(positive("rate_ratio", self.rate_ratio)))
        if self.query_weights is not None:
            keep(self, query_weights=positive("query_weights", self.query_weights))
        if self.gram is not None:
            gram = shaped("M M", gram=self.gram)
            positive("diagonal of gram", np.diag(gram))
            gap = float(np.abs(gram - gram.T).max())
            if gap > ORTHOGONALITY * np.diag(gram).max():
                raise ValueError(f"`gram` must be symmetric, got max |G - Gᵀ| of {gap:.1e}. Pass U_CᵀU_C.")
            keep(self, gram=gram)

    def value(self, v: Float[np.ndarray, "*T K M"], z: Float[np.ndarray, "*T Q M"]) -> Float[np.ndarray, "*T M"]:
        r"""Return the conserved quantity, the logits' part minus `coefficient` times $\sum_k v_k^2$.

        The logits' part is $\sum_m p_m z_m^2$ for linear and $\sum_m p_m z_m$ for exp attention. Theorem 1 has one
        query; several queries that share w conserve only this sum over queries, M numbers and not M·Q.
        """
        v, z = shaped(WEIGHTS_AND_LOGITS, v=v, z=z)
        return self._logit_part(z) - self.coefficient() * np.square(v).sum(axis=-2)

    def coefficient(self) -> Float[np.ndarray, " M"] | float:
        r"""Return the factor of $\sum_k v_k^2$: $\eta_z/(\eta_w s^2)$ for linear, $\eta_z/(2\eta_w s^2T)$ for exp."""
        scale = self._per_square() * self.rate_ratio
        if self.gram is None:
            return scale
        squared_norms = np.diag(self.gram)
        overlap = float(np.abs(self.gram - np.diag(squared_norms)).max())
        if overlap > ORTHOGONALITY * squared_norms.max():
            raise AssumptionError(f"Thm. 1 needs orthogonal embeddings: max |u_l·u_l'| is {overlap:.1e}. Use `total`.")
        return scale / squared_norms

    def logits(
        self, v: Float[np.ndarray, "*T K M"], v0: Float[np.ndarray, "K M"], z0: Float[np.ndarray, " M"]
    ) -> Float[np.ndarray, "*T M"]:
        r"""Return the logits that the weights imply under exp attention and one query: attention integrated out.

        Linear attention is refused: its invariant fixes $z^2$ alone, and the logit may pass through zero.
        """
        if self.attention.kind == AttentionKind.LINEAR:
            raise AssumptionError("Thm. 1 fixes z for exp attention, got linear, where it fixes z² alone. Use `value`.")
        v, v0, z0 = shaped("*T K M, K M, M", v=v, v0=v0, z0=z0)
        return self.value(v0, z0[None]) + self.coefficient() * np.square(v).sum(axis=-2)

    def step_change(
        self, delta_v: Float[np.ndarray, "*T K M"], delta_z: Float[np.ndarray, "*T Q M"]
    ) -> Float[np.ndarray, "*T M"]:
        r"""Return the exact change of the invariant in one step of plain SGD, of any size and on any minibatch.

        First-order terms cancel sample by sample. What is left is $-c\sum_k(\Delta v_k)^2$ for exp attention, never
        positive, and $\sum_m p_m(\Delta z_m)^2 - c\sum_k(\Delta v_k)^2$ for linear, with c the `coefficient`: second
        order in the step, so first order over a training run of fixed length.
        """
        delta_v, delta_z = shaped(WEIGHTS_AND_LOGITS, delta_v=delta_v, delta_z=delta_z)
        lost = -self.coefficient() * np.square(delta_v).sum(axis=-2)
        return lost + self._logit_part(delta_z) if self.attention.kind == AttentionKind.LINEAR else lost

    def total(self, v: Float[np.ndarray, "*T K M"], z: Float[np.ndarray, "*T Q M"]) -> Float[np.ndarray, "*T"]:
        r"""Return the one number that embeddings of any Gram matrix conserve, summed over tokens.

        $\mathbf 1^\top z - \tfrac{\eta_z}{2\eta_wT}\sum_k v_k^\top G^+ v_k$ for exp attention,
        $\mathbf 1^\top z^2 - \tfrac{\eta_z}{\eta_w}\sum_k v_k^\top G^+v_k$ for linear; $v_k^\top G^+v_k$ is the squared
        norm of $w_k$ within the span of the contextual embeddings. The queries' embeddings must be orthogonal to it.
        """
        v, z = shaped(WEIGHTS_AND_LOGITS, v=v, z=z)
        inverse = np.eye(v.shape[-1]) if self.gram is None else np.linalg.pinv(self.gram, hermitian=True)
        in_span = np.einsum("...kl,lm,...km->...", v, inverse, v)
        return self._logit_part(z).sum(axis=-1) - self._per_square() * self.rate_ratio * in_span

    def _logit_part(self, z: np.ndarray) -> np.ndarray:
        weights = np.ones(z.shape[-2]) if self.query_weights is None else self.query_weights
        shaped(f"{z.shape[-2]}", query_weights=weights)
        return np.einsum("m,...ml->...l", weights, z**2 if self.attention.kind == AttentionKind.LINEAR else z)

    def _per_square(self) -> float:
        """Factor of v² for equal rates and orthonormal embeddings."""
        match self.attention.kind:
            case AttentionKind.LINEAR:
                return 1.0
            case AttentionKind.EXP:
                return 1 / (2 * self.attention.temperature)
            case AttentionKind.SOFTMAX:
                raise AssumptionError(
                    "Thm. 1 has an invariant per token for linear and exp attention, got softmax. "
                    "Use `logit_sums` (or `balance`), which softmax conserves, or the estimate of `softmax_estimate`."
                )


def layer_invariant(layer: Layer, *, rate_ratio: float = 1.0) -> Invariant:
    """Return the invariant of a layer's gradient flow, refusing queries that are not orthogonal to the context."""
    contextual, queries = layer.embeddings.contextual, layer.embeddings.queries
    gram = contextual.T @ contextual
    overlap = float(np.abs(contextual.T @ queries).max())
    if overlap > ORTHOGONALITY * np.diag(gram).max():
        raise AssumptionError(
            f"Thm. 1 needs queries orthogonal to the contextual tokens: max |u_l·u_m| is {overlap:.1e}. "
            "Orthogonalise them, or build an `Invariant` yourself and leave out the tokens that overlap."
        )
    return Invariant(attention=layer.attention, rate_ratio=rate_ratio, gram=gram)


def logit_sums(z: Float[np.ndarray, "*T Q M"]) -> Float[np.ndarray, "*T Q"]:
    r"""Return $\mathbf 1^\top z_m$, which softmax attention conserves for each query by itself.

    $\mathbf 1^\top\partial b/\partial z = 0$ because softmax scores sum to one. It holds without any hypothesis on
    embeddings, rates or the number of queries, and for every step that is linear in past gradients: SGD of any step
    size, momentum included. Not in the paper. Adam breaks it; weight decay λ multiplies it by $e^{-\lambda t}$.

    >>> logit_sums(np.array([[1.0, -3.0, 2.5]]))
    array([0.5])
    """
    return finite("z", z).sum(axis=-1)


def momentum_drift_factor(momentum: float) -> float:
    r"""Return how much more heavy-ball momentum β drifts than plain SGD at the same effective rate $\eta/(1-\beta)$.

    $\frac{1+\beta}{1-\beta}$ to leading order in the step: the velocity is delayed by $\beta/(1-\beta)$ steps, which
    adds $\tfrac{\beta}{1-\beta}\sum_k(\Delta v_k)^2$ to the $\tfrac12\sum_k(\Delta v_k)^2$ that every step loses.

    >>> round(momentum_drift_factor(0.9), 12)
    19.0
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must lie in [0, 1), got {momentum}. Pass the β of heavy ball.")
    return (1 + momentum) / (1 - momentum)


def minibatch_drift_factor(signal: float, noise: float, batch_size: int) -> float:
    r"""Return how much more SGD on minibatches of B samples drifts than full-batch SGD, under exp attention.

    $1 + \frac1B\,\frac{\int\operatorname{tr}\operatorname{Var}[g_{h_k}h'_kb]\,dt}{\int\sum_k\|\dot v_k\|^2\,dt}$: every
    step loses $\tfrac12\sum_k(\Delta v_k)^2$ of the sum over tokens, and a mean over B samples has the full batch's
    square plus the variance over B. `signal` and `noise` are the two integrals, or their sums over steps. To leading
    order in the step. There is no bound: the signal vanishes where training has converged, the noise need not.

    >>> minibatch_drift_factor(1.0, 100.0, 4)
    26.0
    """
    ratio = float(within("noise", noise, 0, np.inf)) / float(positive("signal", signal))
    return 1 + ratio / int(whole("batch_size", batch_size, low=1))


def weight_decay_factor(t: Float[np.ndarray, "*T"], weight_decay: float) -> Float[np.ndarray, "*T"]:
    r"""Return $e^{-2\lambda t}$, by which decay λ of weights and logits shrinks linear attention's invariant.

    $\frac{d}{dt}(z^2 - \sum_k v_k^2) = -2\lambda(z^2 - \sum_k v_k^2)$ for equal learning rates. Exp attention has no
    such factor: $\dot I = -\lambda I + \tfrac{\lambda}{2T}\sum_k v_k^2$.
    """
    return np.exp(-2 * float(finite("weight_decay", weight_decay)) * finite("t", t))


def invariant_drift(
    v: Float[np.ndarray, "T K M"], z: Float[np.ndarray, "T Q M"], invariant: Invariant
) -> Float[np.ndarray, "T C"]:
    r"""Return how far Theorem 1's quantity drifts from its start along a run, for each token.

    `v` is $U_C^\top w_k$ over time, `z` the logits of every query that shares w. Softmax attention has no invariant per
    token; its $\mathbf 1^\top z$ is reported, for each query.

    >>> exp = Invariant(attention=Attention(kind=AttentionKind.EXP))
    >>> invariant_drift(v=np.array([[[0.0]], [[1.0]]]), z=np.array([[[0.0]], [[2.0]]]), invariant=exp)
    array([[0. ],
           [1.5]])
    """
    v, z = shaped("T K M, T Q M", v=v, z=z)
    values = logit_sums(z) if invariant.attention.kind == AttentionKind.SOFTMAX else invariant.value(v, z)
    return values - values[0]
