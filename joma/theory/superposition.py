r"""The bias that a query writes into the weights, and several patterns in one weight vector (Appendix A.4).

Nodes have no bias parameter, yet $w_k^\top f = v_k^\top b + \xi_{km}$ under query m, with the implicit bias
$\xi_{km} = w_k^\top u_m$. It includes $w_k(0)^\top u_m$; the paper's $\xi_k(t) = \int_0^t E[g_{h_k}h'_k]$ does not.
"""

import numpy as np
from jaxtyping import Float, Int

from joma.errors import broadcast, shaped, whole
from joma.theory.layer import Embeddings, Hidden, Layer, Logits, Samples, Weights


def implicit_bias(embeddings: Embeddings, w: Float[np.ndarray, "*T K d"]) -> Float[np.ndarray, "*T K Q"]:
    r"""Return $\xi_{km} = w_k^\top u_m$, the bias of node k under query m."""
    return shaped(f"*T K {len(embeddings.queries)}", w=w) @ embeddings.queries


def implicit_bias_rate(layer: Layer, w: Weights, z: Logits, samples: Samples, g: Hidden) -> Float[np.ndarray, "K Q"]:
    r"""Return $\dot\xi_{km} = E[1_{q=m}\,g_{h_k}h'_k]$, for orthonormal embeddings (A.2, above Eqn 11)."""
    return (samples.by_query(layer.embeddings.num_queries) @ layer.slopes(w, z, samples, g)).T


def weights_from_parts(
    embeddings: Embeddings, w0: Weights, v_change: Float[np.ndarray, "*T K M"], xi_change: Float[np.ndarray, "*T K Q"]
) -> Float[np.ndarray, "*T K d"]:
    r"""Return $w(t) = w(0) + U_C[v(t)-v(0)] + \sum_m u_m[\xi_m(t)-\xi_m(0)]$ (Eqn 60, there for one query).

    Exact along the flow of Eqn 2 for orthonormal embeddings: w moves in the span of the tokens alone.
    """
    M, Q, d = embeddings.num_contextual, embeddings.num_queries, len(embeddings.queries)
    w0, v, xi = shaped(f"K {d}, * K {M}, * K {Q}", w0=w0, v_change=v_change, xi_change=xi_change)
    return np.add.reduce(list(broadcast(w0=w0, v=v @ embeddings.contextual.T, xi=xi @ embeddings.queries.T).values()))


def superpose(
    embeddings: Embeddings,
    patterns: Float[np.ndarray, "P M"],
    biases: Float[np.ndarray, " P"],
    queries: Int[np.ndarray, " P"],
) -> Float[np.ndarray, " d"]:
    r"""Return one weight vector that holds several patterns, $w = U_C\sum_p v_p + \sum_p \xi_p u_{m_p}$ ($\xi_p<0$).

    The paper prints $-\xi_p$, and so, with its $\xi<0$, a node that every query fires by itself.
    """
    queries = whole("queries", queries, low=0, high=embeddings.num_queries - 1)
    axes = f"P {embeddings.num_contextual}, P, P"
    patterns, biases, _ = shaped(axes, patterns=patterns, biases=biases, queries=queries)
    return embeddings.contextual @ patterns.sum(axis=0) + embeddings.queries[:, queries] @ biases


def response(
    layer: Layer, w: Float[np.ndarray, " d"], z: Logits, contexts: Float[np.ndarray, "P M"]
) -> Float[np.ndarray, "P Q"]:
    r"""Return the pre-activation $w^\top(U_C b + u_m)$ for every context p under every query m."""
    contexts, w = shaped("P M, d", contexts=contexts, w=w)
    num_contexts, num_queries = len(contexts), layer.embeddings.num_queries
    samples = Samples(x=np.repeat(contexts, num_queries, axis=0), q=np.tile(np.arange(num_queries), num_contexts))
    return layer.preactivation(w[None], z, samples).reshape(num_contexts, num_queries)


def query_interaction(response: Float[np.ndarray, "P Q"]) -> Float[np.ndarray, "P Q"]:
    r"""Return the part of a response that is not context effect plus query effect: what gates a context by its query.

    It vanishes for every w whenever the attention is the same under all queries, as the response is then
    $v^\top b_p + \xi_m$: one node can hold several patterns, but it cannot tie each to its own query. Only
    attention logits that differ between queries can.

    >>> query_interaction(np.array([[1.0, 2.0], [4.0, 5.0]]))
    array([[0., 0.],
           [0., 0.]])
    """
    r = shaped("P Q", response=response)
    return r - r.mean(axis=0) - r.mean(axis=1, keepdims=True) + r.mean()
