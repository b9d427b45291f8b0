r"""The flow that a nonlinear node really has under exp attention, of which Eqn 6 is an ansatz.

The node sees $h = v\cdot(a\circ x) + \xi$ with the attention factor $a = e^{z/T}/A$. So attention enters twice: in
front of the gradient, and inside the activation. With $\Phi$ the field of v under uniform attention,

$$\dot v = a \circ \Phi(v\circ a), \qquad a = e^{\kappa v^2/2 + b}, \quad \kappa = \frac{\eta_z}{\eta_wT^2},$$

and the critical point is where $v\circ a$, not v, equals the zero $\mu$ of $\Phi$:
$v^* = \operatorname{sgn}(\mu)\sqrt{W(\kappa\mu^2e^{-2b})/\kappa}$ with Lambert's W, that is
$\operatorname{sgn}(\mu)\sqrt{W(A^2\mu^2)}$ at $T = 1$ and
equal rates. Eqn 6 keeps the first factor only, hence its critical point $\mu$.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError
from joma.theory.relaxation import efolds_at
from joma.theory.tied_attention import TiedFlow, times
from joma.types import Real

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

    def attention(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$a = e^{z/T}/A$."""
        return np.exp(self.log_attention(v))

    def field(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\dot v = a\circ\Phi(v\circ a)$."""
        a = self.attention(v)
        return a * (self.mu - v * a if self.uniform_field is None else self.uniform_field(v * a))

    def lambert(self) -> Float[np.ndarray, " M"]:
        r"""$W(\kappa\mu^2e^{-2b}) = \kappa v^{*2}$, by Wright's omega of the logarithm, which does not overflow."""
        with np.errstate(divide="ignore"):
            return special.wrightomega(np.log(self.gain) + 2 * np.log(np.abs(self.mu)) - 2 * self.log_scale)

    def critical_point(self) -> Float[np.ndarray, " M"]:
        r"""$v^* = \operatorname{sgn}(\mu)\sqrt{W/\kappa}$, the solution of $v^*\circ a(v^*) = \mu$."""
        return np.sign(self.mu) * np.sqrt(self.lambert() / self.gain)

    def local_rates(self) -> Float[np.ndarray, " M"]:
        r"""Rates for $\Phi = \mu - u$, $a^2(1+W) = \kappa\mu^2(1+W)/W$, where Eqn 6 has $e^{\kappa\mu^2/2}$.

        For another $\Phi$ they are the eigenvalues of minus the `jacobian`.
        """
        self._require_decoupled("Rates token by token need")
        return np.square(self.attention(self.critical_point())) * (1 + self.lambert())

    def jacobian(self, C: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
        r"""Derivative of the field at $v^*$, $-\mathrm{diag}(a)\,C\,\mathrm{diag}(a\circ(1+W))$.

        C is minus the derivative of $\Phi$ at $\mu$, Theorem 3's $C(\mu)$. Attention keeps the signs of the
        eigenvalues of a symmetric C, hence stability, and changes the rates.
        """
        a = self.attention(self.critical_point())
        return -a[:, None] * C * (a * (1 + self.lambert()))

    def efolds(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"]:
        r"""$\ln(1/\delta)$ with $\delta = (v^* - v)/(v^* - v_0)$, exact for the default $\Phi = \mu - u$.

        There $\dot v = a\,(v^*a^* - va) = (v^* - v)\,a\,q[v, v^*]$, with the divided difference of $q(v) = v\,a(v)$.
        """
        self._require_decoupled("The exact solution needs")
        v0, end = self.start, self.critical_point()
        nearest = np.where(v0 * end <= 0, 0.0, np.minimum(np.abs(v0), np.abs(end)))
        farthest = np.maximum(np.abs(v0), np.abs(end))
        return efolds_at(
            times(t)[:, None],
            v0,
            end,
            self._log_speed,
            (end, self.log_scale),
            slowest=self._log_slope(nearest),
            fastest=self._log_slope(farthest),
            gain=self.gain,
        )

    def _require_decoupled(self, what: str) -> None:
        if self.uniform_field is not None:
            raise AssumptionError(
                f"{what} Φ(u) = μ − u, under which the tokens decouple; another `uniform_field` was given. "
                "Integrate `field`, or take the `jacobian`."
            )

    def _log_slope(self, v: np.ndarray) -> np.ndarray:
        r"""$\ln(a\,q')$, which grows with |v|; by the mean value theorem it bounds $\ln(a\,q[v, v^*])$."""
        return 2 * self.log_attention(v) + np.log1p(self.gain * np.square(v))

    def _log_speed(self, v: Real, end: Real, log_scale: Real) -> Real:
        r"""$\ln(a\,q[v, v^*])$ with $q[v, v^*]/a^* = 1 + \tfrac\kappa2 v(v + v^*)\,(e^c - 1)/c$, $c = \ln(a/a^*)$."""
        half = self.gain / 2
        relative = half * v * (v + end) * special.exprel(half * (np.square(v) - np.square(end)))
        return half * (np.square(v) + np.square(end)) + 2 * log_scale + np.log1p(relative)
