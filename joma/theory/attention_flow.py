r"""Flows that attention really gives a nonlinear node, where Eqn 6 is an ansatz; and Eqn 6 for linear attention.

**Exp attention.** The node sees $h = v\cdot(a\circ x) + \xi$ with the attention factor
$a = e^{z/T}/A = e^{\kappa v^2/2 + b}$. So attention enters twice, in front of the gradient and inside the activation:
$\dot v = a\circ\Phi(v\circ a)$ with $\Phi$ the field of v under uniform attention. The critical point is where
$v\circ a$, not v, equals the zero $\mu$ of $\Phi$; at $T = 1$ and equal rates
$v^* = \operatorname{sgn}(\mu)\sqrt{W(A^2\mu^2)}$ with Lambert's W. Eqn 6 keeps the first factor only, hence its
critical point $\mu$.

**Linear attention,** the case that Theorem 4's remark leaves to the reader. Theorem 1 keeps
$z^2 - \tfrac{\eta_z}{\eta_w}v^2 = c$, so Eqn 6's ansatz becomes a logistic equation for $c = 0$. Near the target the
rate is linear in $|\mu|$, where exp attention has $e^{\mu^2/2}$.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, broadcast, finite, positive, shaped, within
from joma.theory.convergence import TiedFlow, log_efolds_at, times
from joma.types import Real, keep

UniformField = Callable[[np.ndarray], np.ndarray]
r"""$\Phi$: the field of v under uniform attention, last axis the tokens."""


@dataclass(frozen=True, kw_only=True)
class AttentionFlow(TiedFlow):
    r"""The flow $\dot v = a\circ\Phi(v\circ a)$ of one hidden node over M tokens.

    >>> flow = AttentionFlow(mu=np.array([1.0, 4.0]))
    >>> flow.critical_point().round(4)
    array([0.7531, 1.4329])
    >>> flow.local_rates().round(4)
    array([ 2.7632, 23.7927])
    """

    uniform_field: UniformField | None = None
    r"""$\Phi$, zero at `mu`; $\mu - u$ when None, Theorem 3's linearisation with C = I."""

    def attention(self, v: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... M"]:
        r"""$a = e^{z/T}/A$."""
        return np.exp(self.log_attention(v))

    def field(self, v: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... M"]:
        r"""$\dot v = a\circ\Phi(v\circ a)$."""
        a = self.attention(v)
        return a * (self.mu - v * a if self.uniform_field is None else self.uniform_field(v * a))

    def lambert(self) -> Float[np.ndarray, "... M"]:
        r"""$W(\kappa\mu^2e^{-2b}) = \kappa v^{*2}$, by Wright's omega of the logarithm, which does not overflow."""
        with np.errstate(divide="ignore"):
            return special.wrightomega(np.log(self.gain) + 2 * np.log(np.abs(self.mu)) - 2 * self.log_scale)

    def critical_point(self) -> Float[np.ndarray, "... M"]:
        r"""$v^* = \operatorname{sgn}(\mu)\sqrt{W/\kappa}$, the solution of $v^*\circ a(v^*) = \mu$."""
        return np.sign(self.mu) * np.sqrt(self.lambert() / self.gain)

    def local_rates(self) -> Float[np.ndarray, "... M"]:
        r"""Rates for $\Phi = \mu - u$, $a^2(1+W) = \kappa\mu^2(1+W)/W$, where Eqn 6 has $e^{\kappa\mu^2/2}$.

        For another $\Phi$ they are the eigenvalues of minus the `jacobian`.
        """
        self._require_decoupled("Rates token by token need")
        return np.square(self.attention(self.critical_point())) * (1 + self.lambert())

    def jacobian(self, C: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "... M M"]:
        r"""Derivative of the field at $v^*$, $-\mathrm{diag}(a)\,C\,\mathrm{diag}(a\circ(1+W))$.

        C is minus the derivative of $\Phi$ at $\mu$, Theorem 3's $C(\mu)$. Attention keeps the signs of the
        eigenvalues of a symmetric C, hence stability, and changes the rates.
        """
        a = self.attention(self.critical_point())
        return -a[..., :, None] * shaped("M M", C=C) * (a * (1 + self.lambert()))[..., None, :]

    def log_efolds(self, t: Float[np.ndarray, "..."]) -> Float[np.ndarray, "... M"]:
        r"""Logarithm of $\ln(1/\delta)$, $\delta = (v^* - v)/(v^* - v_0)$, exact for the default $\Phi = \mu - u$.

        There $\dot v = a\,(v^*a^* - va) = (v^* - v)\,a\,q[v, v^*]$, with the divided difference of $q(v) = v\,a(v)$.
        """
        self._require_decoupled("The exact solution needs")
        v0, end = self.v0, self.critical_point()
        nearest = np.where(v0 * end <= 0, 0.0, np.minimum(np.abs(v0), np.abs(end)))
        # ln(a q') grows with |v|; by the mean value theorem it bounds ln(a q[v, v*]).
        slowest, fastest = (
            2 * self.log_attention(v) + np.log1p(self.gain * np.square(v))
            for v in (nearest, np.maximum(np.abs(v0), np.abs(end)))
        )
        params = (end, self.log_scale, self.gain)
        return log_efolds_at(t, v0, end, _log_speed, params, slowest=slowest, fastest=fastest, gain=self.gain)

    def _require_decoupled(self, what: str) -> None:
        if self.uniform_field is not None:
            raise AssumptionError(f"{what} Φ(u) = μ − u, got another one. Integrate `field`, or take `jacobian`.")


def _log_speed(v: Real, end: Real, log_scale: Real, gain: Real) -> Real:
    r"""$\ln(a\,q[v, v^*])$ with $q[v, v^*]/a^* = 1 + \tfrac\kappa2 v(v + v^*)\,(e^c - 1)/c$, $c = \ln(a/a^*)$."""
    half = gain / 2
    relative = half * v * (v + end) * special.exprel(half * (np.square(v) - np.square(end)))
    return half * (np.square(v) + np.square(end)) + 2 * log_scale + np.log1p(relative)


@dataclass(frozen=True, kw_only=True)
class LinearAttentionFlow:
    r"""The flow $\dot v = (\mu - v)\circ\sqrt{qv^2 + c}/T$ for M components.

    From $v_0 = 0$ with $c = 0$ nothing moves: linear attention needs a start other than zero.

    >>> flow = LinearAttentionFlow(mu=np.array([2.0, 1.0]), v0=np.array([0.1, 0.1]))
    >>> flow.solution(np.array([1.0, 8.0])).round(4)
    array([[0.56 , 0.232],
           [2.   , 0.997]])
    """

    mu: Float[np.ndarray, "... M"]
    """Target; several targets, one a row, are as many flows."""
    v0: Float[np.ndarray, "... M"] = None  # type: ignore[assignment]
    """Start of v; zero when left out."""
    charge: Real = 0.0
    r"""$c = z^2 - qv^2$, one for all tokens or one each; not negative, so that the attention never changes sign."""
    temperature: float = 1.0
    """T in z / T."""
    rate_ratio: float = 1.0
    r"""$q = \eta_z / \eta_w$."""

    def __post_init__(self) -> None:
        mu, charge = np.atleast_1d(finite("mu", self.mu)), within("charge", self.charge, 0.0, np.inf)
        v0 = np.zeros_like(mu) if self.v0 is None else finite("v0", self.v0)
        keep(self, **broadcast(mu=mu, v0=v0, charge=charge))
        keep(self, **{name: float(positive(name, getattr(self, name))) for name in ("temperature", "rate_ratio")})

    def logits(self, v: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... M"]:
        r"""$z = \sqrt{qv^2 + c}$."""
        return np.sqrt(self.rate_ratio * np.square(v) + self.charge)

    def field(self, v: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... M"]:
        r"""$\dot v = (\mu - v)\circ z/T$."""
        return (self.mu - v) * self.logits(v) / self.temperature

    def local_rates(self) -> Float[np.ndarray, "... M"]:
        r"""$\sqrt{q\mu^2 + c}/T$: the limit of $\ln(1/\delta_j)/\ln(1/\delta_k)$ is the ratio of two of them."""
        return self.logits(self.mu) / self.temperature

    def solution(self, t: Real) -> Float[np.ndarray, "... M"]:
        r"""Exact v(t); from $v_0$ of the target's sign with $c = 0$, $v = \mu v_0/(v_0 + (\mu - v_0)e^{-\mu t})$.

        In $s = V + \sqrt{V^2 + c}$, $V = \sqrt q\,v$, the flow is Riccati's $\dot s = [R^2 - (s - \sqrt q\mu)^2]/2T$
        with $R^2 = q\mu^2 + c$, and $V = (s - c/s)/2$. The axes are those of `t`, then those of `mu`.
        """
        root, c = np.sqrt(self.rate_ratio), np.asarray(self.charge)
        side = np.where(self.v0 < 0, -1.0, 1.0)  # the flow is odd: solve from a start that is not negative
        V0, M = root * side * self.v0, root * side * self.mu
        R, s0 = np.sqrt(np.square(M) + c), V0 + np.sqrt(np.square(V0) + c)
        # s = [s0 (C + M S) + c S] / [C - M S + s0 S] with C = cosh(Rt/2T), S = sinh(Rt/2T)/R, all times 2 exp(-Rt/2T);
        # (R - M)/R and (R + M)/R are written without cancellation.
        clock = times(t, trailing=self.mu.ndim) / self.temperature
        e, S = np.exp(-R * clock), clock * special.exprel(-R * clock)
        minus, plus = _without_cancellation(M, R, c), _without_cancellation(-M, R, c)
        s = s0 * (plus + minus * e) + c * S
        s = np.divide(s, minus + plus * e + s0 * S, out=np.zeros_like(s), where=s > 0)
        V = (s - np.divide(c, s, out=np.zeros_like(s), where=s > 0)) / 2
        return side * V / root


def _without_cancellation(M: np.ndarray, R: np.ndarray, c: np.ndarray) -> np.ndarray:
    r"""$(R - M)/R$ for $R = \sqrt{M^2 + c}$; 1 where both vanish."""
    difference = np.where(M > 0, c / np.where(M > 0, R + M, 1.0), R - M)
    return np.divide(difference, R, out=np.ones_like(R), where=R > 0)
