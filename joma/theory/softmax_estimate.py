r"""Softmax attention: the estimate of the logits from the weights (Theorem 1, Eqns 17 and 18), and what it leaves out.

The exact law is $\dot z = \tfrac1T\big[\sum_k \dot v_k\circ v_k - E(b\,b^\top\sum_k g_{h_k}h'_kv_k)\big]$. Eqn 17 has
$\bar b\sum_k \dot v_k^\top v_k$ for the last term. That is exact for one sample, and wherever
$E[g_{h_k}h'_k\,b b^\top] = \bar b\,E[g_{h_k}h'_k\,b]^\top$ for *each* node k. The paper asks this of the sum over k,
which is not enough. Where Eqn 17 holds, integration by parts gives, with $\eta = \eta_z/\eta_w$,

$$z = c + \frac{\eta}{2T}\Big[\sum_k\big(v_k^2 - \|v_k\|^2\,\bar b\big) + \int \sum_k\|v_k\|^2\,d\bar b\Big],$$

and Eqn 18 is this without the integral, for $\bar b$ that does not move.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.interpolate import make_interp_spline

from joma.errors import broadcast, finite, positive, shaped
from joma.types import Tabular

Nodes = Float[np.ndarray, "*T K M"]
"""$v_k$ of every hidden node, or its rate."""
Tokens = Float[np.ndarray, "*#T M"]
"""The mean attention, by itself or at every time."""

DEGREE = 7  # of the splines through a path: errors fall with the eighth power of the spacing of its times


def logit_velocity(
    v: Nodes, v_dot: Nodes, b_mean: Tokens, *, temperature: float = 1.0, rate_ratio: float = 1.0
) -> Float[np.ndarray, "*T M"]:
    r"""Return Eqn 17, $\dot z = \tfrac{\eta}{T}\sum_k(\dot v_k\circ v_k - \bar b\,\dot v_k^\top v_k)$.

    Hypotheses: orthonormal embeddings, and either one sample or b uncorrelated with $g_{h_k}h'_kb$ for each k.

    >>> logit_velocity(np.array([[1.0, 2.0]]), np.array([[1.0, 0.5]]), np.array([0.5, 0.5]))
    array([0., 0.])
    """
    v, v_dot, b_mean = shaped("*T K M, *T K M, * M", v=v, v_dot=v_dot, b_mean=b_mean)
    growth = v_dot * v
    scale = float(positive("rate_ratio", rate_ratio) / positive("temperature", temperature))
    return scale * (growth.sum(axis=-2) - b_mean * growth.sum(axis=(-2, -1))[..., None])


@dataclass(frozen=True, kw_only=True)
class LogitEstimate(Tabular):
    r"""Eqn 18 without its constant, $\hat z = \hat z_1 + \hat z_2$, split as in the caption of figure 2."""

    own: Float[np.ndarray, "*T M"]
    r"""$\hat z_1 = \tfrac{\eta}{2T}\sum_k v_k^2$."""
    mean: Float[np.ndarray, "*T M"]
    r"""$\hat z_2 = -\tfrac{\eta}{2T}\sum_k\|v_k\|^2\,\bar b$."""

    @property
    def total(self) -> Float[np.ndarray, "*T M"]:
        r"""$\hat z_1 + \hat z_2$, which sums to zero over the tokens when $\bar b$ sums to one."""
        return self.own + self.mean


def estimate(v: Nodes, b_mean: Tokens, *, temperature: float = 1.0, rate_ratio: float = 1.0) -> LogitEstimate:
    r"""Return the two parts of Eqn 18, $\hat z = \tfrac{\eta}{2T}\sum_k(v_k^2 - \|v_k\|^2\,\bar b)$ up to a constant.

    `b_mean` is the mean attention $\bar b$. Figure 2 has the mean token frequencies instead.

    >>> estimate(np.array([[1.0, 3.0]]), np.array([0.5, 0.5])).total
    array([-2.,  2.])
    """
    v, b_mean = shaped("*T K M, * M", v=v, b_mean=b_mean)
    squares = np.square(v)
    scale = float(positive("rate_ratio", rate_ratio) / (2 * positive("temperature", temperature)))
    mean = -scale * squares.sum(axis=(-2, -1))[..., None] * b_mean
    return LogitEstimate(own=scale * squares.sum(axis=-2), mean=mean)


def moving_mean_term(
    t: Float[np.ndarray, " T"],
    v: Float[np.ndarray, "T K M"],
    b_mean: Float[np.ndarray, "T M"],
    *,
    temperature: float = 1.0,
    rate_ratio: float = 1.0,
) -> Float[np.ndarray, "T M"]:
    r"""Return $\tfrac{\eta}{2T}\int_0^t\sum_k\|v_k\|^2\,d\bar b$, what Eqn 18 lacks when the mean attention moves.

    The integral runs along splines through the reported times, so these should be dense where the path bends.
    """
    t, v, b_mean = shaped("T, T K M, T M", t=t, v=v, b_mean=b_mean)
    if t.size <= DEGREE:
        raise ValueError(f"`t` must hold more than {DEGREE} times for the spline, got {t.size}. Report more times.")
    scale = float(positive("rate_ratio", rate_ratio) / (2 * positive("temperature", temperature)))
    speed = make_interp_spline(t, b_mean, k=DEGREE).derivative()(t)
    integrand = np.square(v).sum(axis=(1, 2))[:, None] * speed
    return scale * make_interp_spline(t, integrand, k=DEGREE).antiderivative()(t)


def anchored(estimated: Float[np.ndarray, "T M"], z0: Float[np.ndarray, " M"]) -> Float[np.ndarray, "T M"]:
    r"""Return the estimate with its constant c fixed at the first time, where it equals `z0`."""
    estimated = shaped("T M", estimated=estimated)
    moved, z0 = broadcast(estimated=estimated - estimated[0], z0=finite("z0", z0)).values()
    return moved + z0


def normalised_correlation(a: Float[np.ndarray, "*T M"], b: Float[np.ndarray, "*#T M"]) -> Float[np.ndarray, "*T"]:
    """Return the correlation over tokens of two vectors, both centred, at each time; NaN for a constant vector.

    >>> normalised_correlation(np.array([[1.0, 2.0, 3.0]]), np.array([[5.0, 4.0, 3.0]])).round(12)
    array([-1.])
    """
    a, b = broadcast(a=finite("a", a), b=finite("b", b)).values()
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return (a * b).sum(axis=-1) / np.sqrt(np.square(a).sum(axis=-1) * np.square(b).sum(axis=-1))
