r"""Exp attention whose logits Theorem 1 ties to the weights of one hidden node: what the flows of Section 4 share.

$$a = \frac{e^{z/T}}{A} = e^{\kappa v^2/2 + b}, \qquad \kappa = \frac{\eta_z}{\eta_wT^2}, \qquad
  b = \frac{z_0}{T} - \frac{\kappa v_0^2}{2} - \ln A.$$
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from joma.errors import finite, positive, same_shape, with_axes
from joma.types import Real


@dataclass(frozen=True, kw_only=True)
class TiedFlow(ABC):
    """A flow of v over M tokens towards a target, with exp attention tied to v."""

    mu: Float[np.ndarray, " M"]
    """The critical point without attention."""
    v0: Float[np.ndarray, " M"] | None = None
    """Start of v; zero when None, as in the paper."""
    z0: Float[np.ndarray, " M"] | None = None
    """Start of the logits; when None the one for which exp(z/T) is exp(κv²/2), as Eqn 6 prints it. Zero if v0 is."""
    normalisation: float = 1.0
    """The constant A of exp attention."""
    temperature: float = 1.0
    """T in exp(z / T)."""
    rate_ratio: float = 1.0
    r"""$\eta_z / \eta_w$, the learning rate of the logits over that of the weights."""

    def __post_init__(self) -> None:
        """Refuse shapes that disagree, NaN, and scales that are not positive; keep float64 arrays."""
        given = {"mu": with_axes("mu", self.mu, "M")}
        for name in ("v0", "z0"):
            value = getattr(self, name)
            if value is not None:
                given[name] = finite(name, value)
                same_shape(**{"mu": given["mu"], name: given[name]})
        for name, array in given.items():
            object.__setattr__(self, name, array)
        for name in ("normalisation", "temperature", "rate_ratio"):
            positive(name, getattr(self, name))

    @abstractmethod
    def field(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\dot v$."""

    @abstractmethod
    def critical_point(self) -> Float[np.ndarray, " M"]:
        """Where the flow ends."""

    @abstractmethod
    def local_rates(self) -> Float[np.ndarray, " M"]:
        """Rates of the exponential approach to the critical point."""

    @abstractmethod
    def efolds(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"]:
        r"""$\ln(1/\delta)$ of every token, $\delta = (v^* - v)/(v^* - v_0)$ the part of the way that is left."""

    def solution(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"]:
        """Exact v(t), by inverting the quadrature that separates the flow."""
        return self.start - (self.critical_point() - self.start) * np.expm1(-self.efolds(t))

    @property
    def gain(self) -> float:
        r"""$\kappa = \eta_z / (\eta_w T^2)$: the attention factor is $e^{\kappa v^2/2}$ times a constant."""
        return self.rate_ratio / self.temperature**2

    @property
    def start(self) -> Float[np.ndarray, " M"]:
        """v at time zero."""
        return np.zeros_like(self.mu) if self.v0 is None else self.v0

    @property
    def log_scale(self) -> Float[np.ndarray, " M"]:
        r"""$b = z_0/T - \kappa v_0^2/2 - \ln A$."""
        charge = 0.0 if self.z0 is None else self.z0 / self.temperature - self.gain * np.square(self.start) / 2
        return charge - np.log(self.normalisation) + np.zeros_like(self.mu)

    def log_attention(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\ln a = \kappa v^2/2 + b$."""
        return self.gain * np.square(v) / 2 + self.log_scale

    def logits(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""Logits that Theorem 1 ties to v, $z = T(\ln a + \ln A)$."""
        return self.temperature * (self.log_attention(v) + np.log(self.normalisation))


def times(t: Real) -> np.ndarray:
    """Return `t` as an array, refusing times before the start."""
    t = finite("t", t)
    if (t < 0).any():
        raise ValueError(f"`t` must be at least 0, got {t.min()}. Times count from the start.")
    return t
