r"""Saliency of a token, $\Delta_{lm} = E_{q=m}[g_{h_k}x_l]$: discriminancy times frequency, and whether it stays put.

Everything is conditional on the query, so the first axis is the query m; `saliency(samples, g)[m]` is the `delta` that
Theorem 2 needs. For a nonlinear activation pass $g_{h_k}h'_k$ for $g_{h_k}$ ($\Delta_m$ of Eqn 3).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, shaped
from joma.theory.layer import ROUNDING, Backprop, Layer, Samples
from joma.types import Tabular, Trajectory


def saliency(samples: Samples, g: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "Q K M"]:
    r"""Return $\Delta_{mkl} = E_{q=m}[g_{h_k}x_l]$ (Section 3.1), for any real x.

    >>> samples = Samples(x=np.array([[0.75, 0.25], [0.25, 0.75]]), q=np.array([0, 0]))
    >>> saliency(samples, np.array([[1.0], [-1.0]]))
    array([[[ 0.25, -0.25]]])
    """
    g = shaped(f"{samples.q.size} K", g=g)
    return np.einsum("mi,ik,il->mkl", _given_query(samples), g, samples.x)


def frequency(samples: Samples) -> Float[np.ndarray, "Q M"]:
    r"""Return the token frequency $P(l|m) = E_{q=m}[x_l]$, with $x_l[i] = P(l|m,i)$ the frequency in one sample."""
    gap = np.abs(samples.x.sum(axis=1) - 1).max()
    if samples.x.min() < 0 or gap > ROUNDING:
        raise AssumptionError(
            f"Frequencies need x ≥ 0 with rows that sum to one: the least x is {samples.x.min():.3g}, the sums are off "
            f"by up to {gap:.1e}. Divide each row of `x` by its sum."
        )
    return _given_query(samples) @ samples.x


def discriminancy(samples: Samples, g: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "Q K M"]:
    r"""Return the token discriminancy $E_{l,q=m}[g_{h_k}] = \sum_i g_{h_k}[i]\,P(i|l,m)$, NaN for tokens never seen.

    $P(i|l,m) = P(l|m,i)P(i|m)/P(l|m)$ by Bayes; the footnote of Section 3.1 prints $P(l|\cdot)$ for $P(i|\cdot)$.

    >>> samples = Samples(x=np.array([[0.75, 0.25], [0.25, 0.75]]), q=np.array([0, 0]))
    >>> discriminancy(samples, np.array([[1.0], [-1.0]]))  # of what token 0 is seen in, 3/4 has g = 1
    array([[[ 0.5, -0.5]]])
    """
    with np.errstate(invalid="ignore"):
        return saliency(samples, g) / frequency(samples)[:, None, :]


@dataclass(frozen=True, kw_only=True)
class StationarityDrift(Tabular):
    """How far the saliency moves along a trajectory, relative to the largest norm that it has there."""

    per_node: Float[np.ndarray, "Q K"]
    """For each query and hidden node."""
    overall: float
    """For all queries, nodes and tokens together."""


def saliency_along(
    layer: Layer, trajectory: Trajectory, samples: Samples, backprop: Backprop
) -> Float[np.ndarray, "T Q K M"]:
    r"""Return $E_{q=m}[g_{h_k}x_l]$ at every time of a trajectory of `Layer.flow`."""
    states = zip(trajectory.t, trajectory["w"], trajectory["z"], strict=True)
    return np.stack([saliency(samples, backprop(float(t), layer.hidden(w, z, samples))) for t, w, z in states])


def stationarity_drift(saliencies: Float[np.ndarray, "T Q K M"]) -> StationarityDrift:
    r"""Measure Assumption 1, $\max_t\|\Delta(t)-\Delta(0)\| / \max_t\|\Delta(t)\|$: zero when it holds, at most 2.

    A saliency that decays to nothing, or grows from nothing, has drift 1.

    >>> decay = np.exp(-np.array([0.0, 0.1, 0.2])).reshape(3, 1, 1, 1)
    >>> round(stationarity_drift(decay).overall, 4)
    0.1813
    """
    delta = shaped("T Q K M", saliencies=saliencies)

    def relative_change(axis: tuple[int, ...]) -> np.ndarray:
        moved, size = (np.sqrt(np.square(change).sum(axis=axis)).max(axis=0) for change in (delta - delta[0], delta))
        return np.divide(moved, size, out=np.zeros_like(moved), where=size > 0)

    return StationarityDrift(per_node=relative_change((3,)), overall=float(relative_change((1, 2, 3))))


def _given_query(samples: Samples) -> np.ndarray:
    """Return P(i|m), the weights renormalised within each query."""
    weights = samples.by_query(int(samples.q.max()) + 1)
    total = weights.sum(axis=1, keepdims=True)
    if (total == 0).any():
        raise ValueError(
            f"Every query below {len(total)} needs a sample, got none for query {int(total.argmin())}. "
            "Number the queries without gaps, and give their samples positive weight."
        )
    return weights / total
