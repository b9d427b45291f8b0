r"""Linear attention with a nonlinear activation: the case that Theorem 4's remark leaves to the reader.

For linear attention Theorem 1 keeps $z^2 - \tfrac{\eta_z}{\eta_w}v^2 = c$, so Eqn 6's ansatz becomes

$$\dot v = (\mu - v)\circ z/T, \qquad z = \sqrt{qv^2 + c}, \quad q = \eta_z/\eta_w,$$

a logistic equation for $c = 0$. Near the target the rate is $\sqrt{q\mu^2 + c}/T$: linear in $|\mu|$, where exp
attention has $e^{\mu^2/2}$.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import finite, positive, same_shape, with_axes, within
from joma.theory.tied_attention import times


@dataclass(frozen=True, kw_only=True)
class LinearAttentionFlow:
    r"""The flow $\dot v = (\mu - v)\circ\sqrt{qv^2 + c}/T$ for M components.

    From $v_0 = 0$ with $c = 0$ nothing moves: linear attention needs a start other than zero.

    >>> flow = LinearAttentionFlow(mu=np.array([2.0, 1.0]), v0=np.array([0.1, 0.1]))
    >>> flow.solution(np.array([1.0, 8.0])).round(4)
    array([[0.56 , 0.232],
           [2.   , 0.997]])
    """

    mu: Float[np.ndarray, " M"]
    """Target."""
    v0: Float[np.ndarray, " M"] | None = None
    """Start of v; zero when None."""
    charge: float = 0.0
    r"""$c = z^2 - qv^2$, not negative, so that the attention never changes sign."""
    temperature: float = 1.0
    """T in z / T."""
    rate_ratio: float = 1.0
    r"""$q = \eta_z / \eta_w$."""

    def __post_init__(self) -> None:
        """Refuse shapes that disagree, NaN, a negative charge, scales that are not positive; keep float64 arrays."""
        given = {"mu": with_axes("mu", self.mu, "M")}
        if self.v0 is not None:
            given["v0"] = finite("v0", self.v0)
            same_shape(**given)
        for name, array in given.items():
            object.__setattr__(self, name, array)
        within("charge", self.charge, 0.0, np.inf)
        for name in ("temperature", "rate_ratio"):
            positive(name, getattr(self, name))

    @property
    def start(self) -> Float[np.ndarray, " M"]:
        """v at time zero."""
        return np.zeros_like(self.mu) if self.v0 is None else self.v0

    def logits(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$z = \sqrt{qv^2 + c}$."""
        return np.sqrt(self.rate_ratio * np.square(v) + self.charge)

    def field(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\dot v = (\mu - v)\circ z/T$."""
        return (self.mu - v) * self.logits(v) / self.temperature

    def local_rates(self) -> Float[np.ndarray, " M"]:
        r"""$\sqrt{q\mu^2 + c}/T$: the limit of $\ln(1/\delta_j)/\ln(1/\delta_k)$ is the ratio of two of them."""
        return self.logits(self.mu) / self.temperature

    def solution(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"]:
        r"""Exact v(t); from $v_0$ of the target's sign with $c = 0$, $v = \mu v_0/(v_0 + (\mu - v_0)e^{-\mu t})$.

        In $s = V + \sqrt{V^2 + c}$, $V = \sqrt q\,v$, the flow is Riccati's $\dot s = [R^2 - (s - \sqrt q\mu)^2]/2T$
        with $R^2 = q\mu^2 + c$, and $V = (s - c/s)/2$.
        """
        root, c = np.sqrt(self.rate_ratio), self.charge
        side = np.where(self.start < 0, -1.0, 1.0)  # the flow is odd: solve from a start that is not negative
        V0, M = root * side * self.start, root * side * self.mu
        R, s0 = np.sqrt(np.square(M) + c), V0 + np.sqrt(np.square(V0) + c)
        # s = [s0 (C + M S) + c S] / [C - M S + s0 S] with C = cosh(Rt/2T), S = sinh(Rt/2T)/R, all times 2 exp(-Rt/2T);
        # (R - M)/R and (R + M)/R are written without cancellation.
        clock = times(t)[:, None] / self.temperature
        e, S = np.exp(-R * clock), clock * special.exprel(-R * clock)
        behind, ahead = _without_cancellation(M, R, c), _without_cancellation(-M, R, c)
        s = s0 * (ahead + behind * e) + c * S
        s = np.divide(s, behind + ahead * e + s0 * S, out=np.zeros_like(s), where=s > 0)
        V = (s - np.divide(c, s, out=np.zeros_like(s), where=s > 0)) / 2
        return side * V / root


def _without_cancellation(M: np.ndarray, R: np.ndarray, c: float) -> np.ndarray:
    r"""$(R - M)/R$ for $R = \sqrt{M^2 + c}$; 1 where both vanish."""
    difference = np.where(M > 0, c / np.where(M > 0, R + M, 1.0), R - M)
    return np.divide(difference, R, out=np.ones_like(R), where=R > 0)
