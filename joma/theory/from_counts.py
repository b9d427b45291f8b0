r"""From co-occurrence to μ (Section 4): what a count of query, next token and context says about Theorem 3's target.

Windows of one length have query m, next token k and context frequencies x, and $P(\cdot)$ are their shares. Node k is
the logit of next token k under cross-entropy, and $\pi_k(m)$ is predicted before it has learned. Then
$g_k = 1[y=k] - \pi_k$ and

$$\Delta_{mkl} = E_{q=m}[g_kx_l] = P(k,l|m) - \pi_k(m)\,P(l|m).$$

The node's two clusters are the windows that end in k and the others, with centers $\bar x_\pm$. Theorem 3's
$\mu$ is parallel to $\bar x_+ - \bar x_-$ once contexts are measured from $\bar x_-$, and

$$(\bar x_+ - \bar x_-)_l = P(l|m,k) - P(l|m,\neg k) = \frac{P(k,l|m) - P(k|m)P(l|m)}{P(k|m)(1 - P(k|m))}:$$

the saliency of a calibrated prediction, $\pi_k = P(k|m)$. A token that comes with every next token alike has
$\mu_l = 0$, however often it co-occurs with the query.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Num

from joma.errors import AssumptionError, shaped, within
from joma.theory.activations import Activation, relu
from joma.theory.mixture import Mixture, Noise, two_clusters
from joma.types import Tabular

ROUNDING = 1e-14
"""Distance of two centers below which they agree."""

Counts = Num[np.ndarray, "Q K M"]
"""How often query m, next token k and context token l occur together."""


def saliency_from_counts(counts: Counts, prediction: Float[np.ndarray, "Q K"] | None = None) -> Counts:
    r"""Return $\Delta_{mkl} = P(k,l|m) - \pi_k(m)P(l|m)$, the gradient of the log likelihood in $v_k$ at $v = 0$.

    Args:
        counts: Of query, next token and context token, over windows of one length.
        prediction: $\pi_k(m)$ of a model without context; uniform, that of zero logits, when None.

    >>> saliency_from_counts(np.array([[[3.0, 1.0], [1.0, 3.0]]]))
    array([[[ 0.125, -0.125],
            [-0.125,  0.125]]])
    """
    joint, pi = _shares(counts, prediction)
    return np.asarray(joint - pi[:, :, None] * joint.sum(axis=1, keepdims=True))


def centers_from_counts(counts: Counts) -> tuple[Counts, Counts]:
    r"""Return $\bar x_+ = P(l|m,k)$ and $\bar x_- = P(l|m,\neg k)$, the contexts with next token k and with others.

    >>> [center.tolist() for center in centers_from_counts(np.array([[[3.0, 1.0], [1.0, 3.0]]]))]
    [[[[0.75, 0.25], [0.25, 0.75]]], [[[0.25, 0.75], [0.75, 0.25]]]]
    """
    joint, _ = _shares(counts)
    others = joint.sum(axis=1, keepdims=True) - joint
    sizes = joint.sum(axis=2, keepdims=True), others.sum(axis=2, keepdims=True)
    if min(size.min() for size in sizes) <= 0:
        raise AssumptionError(
            "A center needs windows: every next token must occur with every query, and not always. Leave it out."
        )
    return joint / sizes[0], others / sizes[1]


def target_direction(counts: Counts) -> Counts:
    r"""Return $\mu/\|\mu\|$ for every query and node, along $\bar x_+ - \bar x_-$; zero where the two agree.

    >>> target_direction(np.array([[[6.0, 2.0, 2.0], [2.0, 6.0, 2.0]]])).round(4) + 0.0
    array([[[ 0.7071, -0.7071,  0.    ],
            [-0.7071,  0.7071,  0.    ]]])
    """
    x_plus, x_minus = centers_from_counts(counts)
    size = np.linalg.norm(x_plus - x_minus, axis=-1, keepdims=True)
    return np.asarray((x_plus - x_minus) / np.where(size > ROUNDING, size, np.inf))


@dataclass(frozen=True, kw_only=True)
class TokensOfNode(Tabular):
    """What counts say of the context tokens of one node under one query, the most frequent token first."""

    token: Int[np.ndarray, " M"]
    frequency: Float[np.ndarray, " M"]
    """P(l|m)."""
    saliency: Float[np.ndarray, " M"]
    r"""$\Delta_{mkl}$."""
    direction: Float[np.ndarray, " M"]
    r"""$\mu_l/\|\mu\|$."""


def tokens_of_node(
    counts: Counts, query: int, token: int, *, prediction: Float[np.ndarray, "Q K"] | None = None
) -> TokensOfNode:
    """Return frequency, saliency and target of every context token, for a table or a chart.

    >>> found = tokens_of_node(np.array([[[6.0, 2.0, 8.0], [2.0, 6.0, 8.0]]]), 0, 0)
    >>> found.token, found.frequency, found.direction.round(2) + 0.0
    (array([2, 0, 1]), array([0.5 , 0.25, 0.25]), array([ 0.  ,  0.71, -0.71]))
    """
    frequency = _shares(counts)[0].sum(axis=1)[query]
    order = np.argsort(-frequency, kind="stable")
    saliency, direction = saliency_from_counts(counts, prediction), target_direction(counts)
    columns = {"saliency": saliency[query, token, order], "direction": direction[query, token, order]}
    return TokensOfNode(token=order, frequency=frequency[order], **columns)


def clusters_from_counts(
    counts: Counts,
    query: int,
    token: int,
    noise: Noise,
    *,
    prediction: Float[np.ndarray, "Q K"] | None = None,
    activation: Activation = relu,
) -> Mixture:
    r"""Return the clusters of one node under one query: `critical_points` of them gives μ, with its length.

    Contexts are measured from $\bar x_-$. The weights are $a_+ = P(k|m)(1-\pi_k)$ and $a_- = (1-P(k|m))\,\pi_k$. With
    ReLU and a negative bias a rest point along $+(\bar x_+ - \bar x_-)$ needs $a_- > a_+$: a next token that is
    predicted too often, $\pi_k > P(k|m)$.

    Args:
        counts: Of query, next token and context token, over windows of one length.
        query: m.
        token: k.
        noise: Spread of the contexts around their centers.
        prediction: $\pi_k(m)$; uniform when None.
        activation: Of the node, homogeneous.

    >>> from joma.theory.critical_points import critical_points
    >>> from joma.theory.isotropic import Gaussian
    >>> mixture = clusters_from_counts(np.array([[[12.0, 4.0], [44.0, 100.0]]]), 0, 0, Gaussian(dim=2))
    >>> [point] = [point for point in critical_points(mixture, -1.0) if point.linearised.stable]
    >>> point.mu.round(3)
    array([ 0.201, -0.201])
    """
    joint, prediction = _shares(counts, prediction)
    chance, pi = joint[query, token].sum(), prediction[query, token]
    x_plus, x_minus = (center[query, token] for center in centers_from_counts(counts))
    a_plus, a_minus = float(chance * (1 - pi)), float((1 - chance) * pi)
    return two_clusters(x_plus - x_minus, a_plus=a_plus, a_minus=a_minus, noise=noise, activation=activation)


def _shares(counts: Counts, prediction: np.ndarray | None = None) -> tuple[Counts, Float[np.ndarray, "Q K"]]:
    """Return P(k, l | m), and the prediction, uniform when None."""
    counts = shaped("Q K M", counts=counts)
    total = counts.sum(axis=(1, 2), keepdims=True)
    if (counts < 0).any() or (total == 0).any():
        raise ValueError(f"`counts` must be at least 0, some for every query; got {counts.min()}. Drop the others.")
    num_queries, num_next, _ = counts.shape
    prediction = np.full((num_queries, num_next), 1 / num_next) if prediction is None else prediction
    return counts / total, shaped(f"{num_queries} {num_next}", prediction=within("prediction", prediction, 0, 1))
