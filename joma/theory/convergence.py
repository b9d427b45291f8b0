r"""Eqn 6 and Theorem 4: with a nonlinear activation every component reaches its target, the salient ones first.

Eqn 6, $\dot v = (\mu - v)\circ e^{v^2/2}$, is taken here as the paper states it: a model whose critical point stays at
$\mu$. (The flow that exp attention really gives is `attention_flow.AttentionFlow`.) Its solution from zero is exact and
implicit: with $r = v/\mu$ and $\delta = 1 - r$,

$$t = F(r, \mu) = \int_0^r \frac{e^{-\mu^2x^2/2}}{1-x}dx = e^{-\mu^2/2}\ln\frac1\delta + \rho(r, \mu),$$

with a $\rho$ that lies in $[0, B^*)$, $B^* = 0.8643$. From this all of Theorem 4 follows.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import finite, positive, within
from joma.theory.relaxation import efolds_at, elapsed_time, transient_time
from joma.theory.tied_attention import TiedFlow, times
from joma.types import Real

SUP_RHO = 0.8643247772318799
r"""$B^* = \sup\rho(r, \mu)$, approached as $r\to1$: the sharp constant of Eqn 88 and of Theorem 4."""
SUP_RHO_AT = 1.8721995871378647
r"""The $|\mu|$ at which $\rho(1, \mu) = B^*$."""
SUP_ZETA = 1.6327913528073903
r"""$\sup\zeta(r, \mu)$, at $r = 1$."""
SUP_ZETA_AT = 2.1617876779476073
r"""The $\mu$ at which $\zeta(1, \mu)$ is largest."""


@dataclass(frozen=True, kw_only=True)
class ConvergenceFlow(TiedFlow):
    r"""The flow of Eqn 6 for M components, $\dot v = (\mu - v)\circ e^{\kappa v^2/2 + b}$.

    >>> flow = ConvergenceFlow(mu=np.array([3.0, 1.5]))
    >>> flow.solution(np.array([0.5, 1.5])).round(4)
    array([[1.6387, 0.6235],
           [3.    , 1.358 ]])
    """

    def field(self, v: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\dot v = (\mu - v)\circ e^{\kappa v^2/2 + b}$; Eqn 6 at $\kappa = 1$, $b = 0$."""
        return (self.mu - v) * np.exp(self.log_attention(v))

    def critical_point(self) -> Float[np.ndarray, " M"]:
        r"""$\mu$, by the ansatz of Eqn 6."""
        return self.mu

    def local_rates(self) -> Float[np.ndarray, " M"]:
        r"""$e^{\kappa\mu^2/2 + b}$: the ratio of two of them is the limit of Theorem 4; infinite beyond all floats."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_attention(self.mu))

    def efolds(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"]:
        r"""$\ln(1/\delta)$ of every component: `efolds` at $\sqrt\kappa\mu$ and time $e^b t$."""
        root = np.sqrt(self.gain)
        return efolds(times(t)[:, None] * np.exp(self.log_scale), root * self.mu, v0=root * self.start)


def normalised_field(
    v: Float[np.ndarray, "*T M"], mu: Float[np.ndarray, " M"], temperature: float = 3.0
) -> Float[np.ndarray, "*T M"]:
    r"""The variant behind the paper's figure 4, $\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/T)$."""
    return (mu - v) * special.softmax(np.square(v) / float(positive("temperature", temperature)), axis=-1)


def time_to_efolds(efolds: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""$F$ as a function of $y = \ln(1/\delta)$, exact also where $\delta$ is far below the spacing of floats.

    $\delta = (\mu - v)/(\mu - v_0)$ is the part of the way that is left; from zero it is Theorem 4's $1 - v/\mu$.
    """
    y, mu, v0 = finite("efolds", efolds), finite("mu", mu), finite("v0", v0)
    if (y < 0).any():
        raise ValueError(f"`efolds` must be at least 0, got {y.min()}. It is ln(1/δ) with δ ≤ 1.")
    with np.errstate(divide="ignore"):
        return np.asarray(elapsed_time(np.log(y), v0, mu, _log_speed))


def learning_time(r: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""Time to cover the fraction r of the way, $F(r, \mu) = \int_0^r e^{-\mu^2x^2/2}/(1-x)\,dx$ (Eqns 79, 80).

    The paper states that F is equal for all components; it equals the time itself. For a start other than zero the
    exponent is $-(v_0 + (\mu - v_0)x)^2/2$, the difference of two F where start and target lie on one side of zero.

    >>> learning_time(0.9, np.array([1.5, 3.0])).round(4)
    array([1.478 , 0.6298])
    """
    r = within("r", r, 0.0, 1.0)
    if (r == 1).any():
        raise ValueError("`r` must be below 1, got 1: the target is only approached. Use `time_to_efolds` near it.")
    return time_to_efolds(-np.log1p(-r), mu, v0=v0)


def efolds(t: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""$\ln(1/\delta(t))$, the inverse of `time_to_efolds`; at late times $(t - \rho)\,e^{\mu^2/2}$.

    >>> efolds(2.0, np.array([0.0, 1.0, 2.0])).round(4)
    array([2.    , 2.4987, 8.4354])
    """
    t, mu, v0 = times(t), finite("mu", mu), finite("v0", v0)
    least = np.where(mu * v0 <= 0, 0.0, np.minimum(mu**2, v0**2))
    return efolds_at(t, v0, mu, _log_speed, slowest=least / 2, fastest=np.maximum(mu**2, v0**2) / 2)


def fraction_learned(t: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""Fraction of the way covered at time t, $r = F^{-1}(t, \mu)$; from zero, $r = v/\mu$.

    The backward error is a few roundings of t. For $|\mu|$ above 6 that shows in r while a component jumps to its
    target, since it then covers a part $10^{-10}$ of the way in one rounding of t.
    """
    return np.asarray(-np.expm1(-efolds(t, mu, v0=v0)))


def rho(r: Real, mu: Real) -> np.ndarray:
    r"""$\rho(r, \mu) = F(r, \mu) - e^{-\mu^2/2}\ln\frac{1}{1-r}$, bounded on all of $0\le r\le1$ (Eqn 88).

    $\rho = \int_0^r (e^{-\mu^2x^2/2} - e^{-\mu^2/2})/(1-x)\,dx$ increases in r; its supremum is `SUP_RHO`.

    >>> rho(1.0, SUP_RHO_AT).round(10)
    np.float64(0.8643247772)
    """
    return np.asarray(transient_time(within("r", r, 0.0, 1.0), np.zeros(()), finite("mu", mu), _log_speed))


def zeta(r: Real, mu: Real) -> np.ndarray:
    r"""$\zeta(r, \mu) = \sqrt{\pi/2}\operatorname{erf}(r\mu/\sqrt2) + (1 - e^{-r^2\mu^2/2})/\mu$ (Eqns 84-86).

    $\partial_\mu(e^{\mu^2/2}F) = \zeta e^{\mu^2/2}$. Odd in $\mu$; its supremum is `SUP_ZETA`.
    """
    r, mu = within("r", r, 0.0, 1.0), finite("mu", mu)
    half = np.square(r * mu) / 2
    rise = r**2 * mu / 2 * special.exprel(-half)
    return np.asarray(np.sqrt(np.pi / 2) * special.erf(r * mu / np.sqrt(2)) + rise)


def rate_offset(t: Real, mu_j: Real, mu_k: Real) -> np.ndarray:
    r"""Theorem 4's $\lambda_{jk}(t) = \rho(r_k, \mu_k) - \rho(r_j, \mu_j)$, with $|\lambda_{jk}| <$ `SUP_RHO`.

    Both $\rho$ lie in $[0, B^*)$, so their difference is below $B^*$; the paper adds the two bounds to
    $\sqrt{2\pi} + 2 = 4.507$. No smaller constant does: take $\mu_j\to0$, $\mu_k$ = `SUP_RHO_AT`, $t\to\infty$.
    """
    return np.asarray(rho(fraction_learned(t, mu_k), mu_k) - rho(fraction_learned(t, mu_j), mu_j))


def rate_correction(t: Real, mu_j: Real, mu_k: Real) -> np.ndarray:
    r"""Theorem 4's $\Lambda(t) = \lambda_{jk}\,e^{\mu_k^2/2}/\ln(1/\delta_k)$.

    It is small once $\ln(1/\delta_k)$ far exceeds `efolds_to_asymptote`, not before.

    >>> rate_correction(np.array([0.5, 1.0, 10.0]), 3.0, 2.0).round(4)
    array([-0.8872,  0.5779,  0.0265])
    """
    t = positive("t", t)
    return np.asarray(rate_offset(t, mu_j, mu_k) * np.exp(np.square(mu_k) / 2) / efolds(t, mu_k))


def convergence_ratio(t: Real, mu_j: Real, mu_k: Real) -> np.ndarray:
    r"""Theorem 4, Eqn 7: $\frac{\ln1/\delta_j}{\ln1/\delta_k} = e^{(\mu_j^2-\mu_k^2)/2}(1 + \Lambda(t))$ from zero."""
    rates = np.exp((np.square(mu_j) - np.square(mu_k)) / 2)
    return np.asarray(rates * (1 + rate_correction(t, mu_j, mu_k)))


def efolds_to_asymptote(mu_k: Real, tolerance: float = 1.0) -> np.ndarray:
    r"""The $\ln(1/\delta_k)$ from which on $|\Lambda| <$ `tolerance`, whatever $\mu_j$: $B^*e^{\mu_k^2/2}$/`tolerance`.

    Theorem 4's condition is therefore $\ln(1/\delta_k) \gg B^*e^{+\mu_k^2/2}$, a $\delta_k$ below a high power of
    $\exp[-B^*e^{+\mu_k^2/2}]$; the paper prints $\delta_k \ll \exp[-(\sqrt{2\pi}+2)e^{-\mu_k^2}]$.

    >>> efolds_to_asymptote(np.array([2.0, 3.0])).round(4)
    array([ 6.3865, 77.804 ])
    """
    return np.asarray(SUP_RHO * np.exp(np.square(finite("mu_k", mu_k)) / 2) / float(positive("tolerance", tolerance)))


def shared_field(v: Float[np.ndarray, "*T K M"], mu: Float[np.ndarray, "K M"]) -> Float[np.ndarray, "*T K M"]:
    r"""Eqn 6 for K hidden nodes, $\dot v_k = (\mu_k - v_k)\circ\exp(\tfrac12\sum_kv_k^2)$: they share one attention."""
    return (mu - v) * np.exp(np.square(v).sum(axis=-2, keepdims=True) / 2)


def shared_solution(t: Float[np.ndarray, " T"], mu: Float[np.ndarray, "K M"]) -> Float[np.ndarray, "T K M"]:
    r"""Exact solution of `shared_field` from zero: $v_{kl} = \mu_{kl}\,F^{-1}(t, \|\mu_{\cdot l}\|)$.

    All nodes see the same attention to token l, so a column of v keeps the direction of its target and moves as one
    component whose target is the column's norm.
    """
    mu = finite("mu", mu)
    return mu * fraction_learned(times(t)[:, None], np.linalg.norm(mu, axis=0))[:, None, :]


def _log_speed(v: Real) -> Real:
    return np.square(v) / 2
