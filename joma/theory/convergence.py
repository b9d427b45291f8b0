r"""Eqn 6 and Theorem 4: with a nonlinear activation every component reaches its target, the salient ones first.

Theorem 1 ties exp attention to the weights of one node,
$$a = \frac{e^{z/T}}{A} = e^{\kappa v^2/2 + b}, \qquad \kappa = \frac{\eta_z}{\eta_wT^2}, \qquad
  b = \frac{z_0}{T} - \frac{\kappa v_0^2}{2} - \ln A,$$
and Eqn 6, $\dot v = (\mu - v)\circ e^{v^2/2}$, is taken here as the paper states it: a model whose critical point
stays at $\mu$. (The flow that exp attention really gives is `AttentionFlow`.) Every component is a scalar flow that
relaxes to a target, $\dot v = (v_\infty - v)\,\nu(v)$. With the gap $\delta = (v_\infty - v)/(v_\infty - v_0)$ that is
left and its number of e-folds $y = \ln(1/\delta)$ it reads $\dot y = \nu(v)$, so that one quadrature solves it:

$$t = \int_0^y \frac{dy'}{\nu} = \frac{y}{\nu(v_\infty)} + \rho(1 - \delta), \qquad
  \rho(r) = \int_0^r \Big[\frac{1}{\nu(v(s))} - \frac{1}{\nu(v_\infty)}\Big] \frac{ds}{1-s}, \qquad
  v(s) = v_0 + (v_\infty - v_0)s.$$

The integrand of $\rho$ is smooth, also at $s = 1$: a fixed Gauss-Legendre rule does it. Working with $\ln y$ keeps the
relative accuracy of y from the first instant to a gap far below the spacing of floats. For Eqn 6 from zero
$\rho$ lies in $[0, B^*)$, $B^* = 0.8643$, and from this all of Theorem 4 follows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.optimize import elementwise

from joma.errors import broadcast, finite, positive, shaped, within
from joma.theory.radial import gauss
from joma.types import Real, keep

Tokens = Float[np.ndarray, "... M"]
"""A number for each token; other axes are flows and times."""


@dataclass(frozen=True, kw_only=True)
class TiedFlow(ABC):
    """A flow of v over M tokens towards a target, with exp attention tied to v.

    All fields broadcast: several rows of targets, or several temperatures, are several independent flows.
    """

    mu: Tokens
    """The critical point without attention."""
    v0: Tokens = None  # type: ignore[assignment]
    """Start of v; zero when left out, as in the paper."""
    z0: Tokens | None = None
    """Start of the logits; when None the one for which exp(z/T) is exp(κv²/2), as Eqn 6 prints it. Zero if v0 is."""
    normalisation: Real = 1.0
    """The constant A of exp attention."""
    temperature: Real = 1.0
    """T in exp(z / T)."""
    rate_ratio: Real = 1.0
    r"""$\eta_z / \eta_w$, the learning rate of the logits over that of the weights."""

    def __post_init__(self) -> None:
        given = {"mu": self.mu, "v0": 0.0 if self.v0 is None else self.v0, "z0": self.z0}
        arrays = {name: np.atleast_1d(finite(name, value)) for name, value in given.items() if value is not None}
        scales = {name: positive(name, getattr(self, name)) for name in ("normalisation", "temperature", "rate_ratio")}
        columns = {name: scale[..., None] for name, scale in scales.items() if scale.ndim}
        keep(self, **{name: array for name, array in broadcast(**arrays, **columns).items() if name in arrays})
        keep(self, **{name: scale if scale.ndim else float(scale) for name, scale in scales.items()})

    def __getitem__(self, which: Any) -> "TiedFlow":
        """Return one or some of several flows, by the leading axes of `mu`."""
        scales = {name: getattr(self, name) for name in ("normalisation", "temperature", "rate_ratio")}
        chosen = {name: np.broadcast_to(scale, self.mu.shape[:-1])[which] for name, scale in scales.items()}
        z0 = None if self.z0 is None else self.z0[which]
        return replace(self, mu=self.mu[which], v0=self.v0[which], z0=z0, **chosen)

    @abstractmethod
    def field(self, v: Tokens) -> Tokens:
        r"""$\dot v$."""

    @abstractmethod
    def critical_point(self) -> Tokens:
        """Where the flow ends."""

    @abstractmethod
    def local_rates(self) -> Tokens:
        """Rates of the exponential approach to the critical point."""

    @abstractmethod
    def log_efolds(self, t: Float[np.ndarray, "..."]) -> Tokens:
        r"""Logarithm of $\ln(1/\delta)$; elementwise, so `t` must broadcast against `mu`."""

    def efolds(self, t: Real) -> Tokens:
        r"""$\ln(1/\delta)$ of every token, $\delta = (v^* - v)/(v^* - v_0)$ the part of the way that is left.

        The axes of the result are those of `t`, then those of `mu`.
        """
        with np.errstate(over="ignore"):
            return np.exp(self.log_efolds(times(t, trailing=self.mu.ndim)))

    def solution(self, t: Real) -> Tokens:
        """Exact v(t), by inverting the quadrature that separates the flow; axes as in `efolds`."""
        return self.v0 - (self.critical_point() - self.v0) * np.expm1(-self.efolds(t))

    @property
    def gain(self) -> Real:
        r"""$\kappa = \eta_z / (\eta_w T^2)$: the attention factor is $e^{\kappa v^2/2}$ times a constant."""
        return _column(self.rate_ratio / self.temperature**2)

    @property
    def log_scale(self) -> Tokens:
        r"""$b = z_0/T - \kappa v_0^2/2 - \ln A$."""
        charge = np.zeros_like(self.mu)
        if self.z0 is not None:
            charge = self.z0 / _column(self.temperature) - self.gain * np.square(self.v0) / 2
        return charge - _column(np.log(self.normalisation))

    def log_attention(self, v: Tokens) -> Tokens:
        r"""$\ln a = \kappa v^2/2 + b$."""
        return self.gain * np.square(v) / 2 + self.log_scale

    def logits(self, v: Tokens) -> Tokens:
        r"""Logits that Theorem 1 ties to v, $z = T(\ln a + \ln A)$."""
        return _column(self.temperature) * (self.log_attention(v) + _column(np.log(self.normalisation)))


def _column(scale: Real) -> Real:
    """One number for each flow as a column, to broadcast over tokens."""
    return scale if np.ndim(scale) == 0 else np.asarray(scale)[..., None]


def times(t: Real, *, trailing: int = 0) -> np.ndarray:
    """Return `t` as an array with as many more axes of length one, refusing times before the start."""
    t = within("t", t, 0, np.inf)
    return t.reshape(t.shape + (1,) * trailing)


LogSpeed = Callable[..., Real]
r"""$\ln\nu$, elementwise: v first, then one array for each parameter of the flow."""

NUM_NODES = 40  # points of the Gauss-Legendre rule: a Gaussian over 18 standard deviations is then exact to 2e-14
NEGLIGIBLE = 81.0  # where κv² exceeds its least value on the path by this much, 1/ν is below e⁻⁴⁰ of its peak
BRACKET_MARGIN = 1e-9  # widening of the bracket of ln y, above the rounding of the quadrature
ROOT_TOLERANCE = 1e-15  # absolute tolerance of the root in ln y
CHUNK = 8192  # elements solved at a time: bounds the memory of the rule at a few megabytes


def transient_time(
    r: Real, v0: Real, target: Real, log_speed: LogSpeed, params: Sequence[Real] = (), *, gain: Real = 1.0
) -> Real:
    r"""$\rho(r)$: the time to cover the fraction r of the way, in excess of $\ln\frac{1}{1-r}/\nu(v_\infty)$.

    `gain` is a $\kappa$ for which $\nu$ grows at least as fast as $e^{\kappa v^2/2}$.
    """
    # Ends of the part of [0, r] on which the slowness 1/nu is not negligible compared with its peak there.
    span = target - v0
    v = v0 + span * r
    least = np.where(v * v0 <= 0, 0.0, np.minimum(np.square(v), np.square(v0)))
    reach, ahead = np.sqrt(least + NEGLIGIBLE / gain), v0 * np.sign(span)
    with np.errstate(divide="ignore", over="ignore"):
        low, high = (np.clip((end - ahead) / np.abs(span), 0.0, r) for end in (-reach, reach))
    nodes, weights = gauss(NUM_NODES)
    s = low + (high - low) * nodes.reshape(-1, *[1] * np.ndim(low))
    slowness, steady = np.exp(-log_speed(v0 + span * s, *params)), np.exp(-log_speed(target, *params))
    within = (high - low) * np.tensordot(weights, (slowness - steady) / (1 - s), axes=1)
    # Before the window 1/nu is negligible, 1/nu(target) is not; after it both are.
    return within + steady * np.log1p(-low)


def elapsed_time(
    log_y: Real, v0: Real, target: Real, log_speed: LogSpeed, params: Sequence[Real] = (), *, gain: Real = 1.0
) -> Real:
    r"""Time at which the gap has shrunk by $y = \ln(1/\delta)$ e-folds; takes $\ln y$, so that y may overflow."""
    with np.errstate(over="ignore"):
        r = -np.expm1(-np.exp(log_y))
    steady = np.exp(log_y - log_speed(target, *params))
    return steady + transient_time(r, v0, target, log_speed, params, gain=gain)


def log_efolds_at(
    t: Real,
    v0: Real,
    target: Real,
    log_speed: LogSpeed,
    params: Sequence[Real] = (),
    *,
    slowest: Real,
    fastest: Real,
    gain: Real = 1.0,
) -> np.ndarray:
    r"""Inverse of `elapsed_time`: $\ln y$ at time t, with $y = \ln(1/\delta)$; all arguments broadcast.

    `slowest` and `fastest` bound $\ln\nu$ between start and target, which brackets y between two multiples of t.
    """

    def lateness(log_y: Real, t: Real, v0: Real, target: Real, gain: Real, *rest: Real) -> Real:
        with np.errstate(over="ignore"):  # far to the right of the root
            return elapsed_time(log_y, v0, target, log_speed, rest, gain=gain) / t - 1

    t, low, high, *args = np.broadcast_arrays(t, slowest, fastest, v0, target, gain, *params)
    log_y = np.full(t.shape, -np.inf)
    moving = np.argwhere(t > 0)
    for first in range(0, len(moving), CHUNK):
        at = tuple(moving[first : first + CHUNK].T)
        log_t = np.log(t[at])
        bracket = (log_t + low[at] - BRACKET_MARGIN, log_t + high[at] + BRACKET_MARGIN)
        found = elementwise.find_root(
            lateness, bracket, args=(t[at], *(a[at] for a in args)), tolerances={"xatol": ROOT_TOLERANCE}
        )
        if not np.all(found.success):
            raise ArithmeticError(
                f"No time inverts {np.size(found.x) - np.sum(found.success)} of {np.size(found.x)} elements: the speed "
                "leaves [`slowest`, `fastest`] between start and target. Widen them."
            )
        log_y[at] = found.x
    return log_y


SUP_RHO = 0.8643247772318799  # B* = sup ρ(r, μ), as r → 1: the sharp constant of Eqn 88 and of Theorem 4
SUP_RHO_AT = 1.8721995871378647  # the |μ| at which ρ(1, μ) = B*
SUP_ZETA = 1.6327913528073903  # sup ζ(r, μ), at r = 1
SUP_ZETA_AT = 2.1617876779476073  # the μ at which ζ(1, μ) is largest


@dataclass(frozen=True, kw_only=True)
class ConvergenceFlow(TiedFlow):
    r"""The flow of Eqn 6 for M components, $\dot v = (\mu - v)\circ e^{\kappa v^2/2 + b}$.

    >>> flow = ConvergenceFlow(mu=np.array([3.0, 1.5]))
    >>> flow.solution(np.array([0.5, 1.5])).round(4)
    array([[1.6387, 0.6235],
           [3.    , 1.358 ]])
    """

    def field(self, v: Tokens) -> Tokens:
        r"""$\dot v = (\mu - v)\circ e^{\kappa v^2/2 + b}$; Eqn 6 at $\kappa = 1$, $b = 0$."""
        return (self.mu - v) * np.exp(self.log_attention(v))

    def critical_point(self) -> Tokens:
        r"""$\mu$, by the ansatz of Eqn 6."""
        return self.mu

    def local_rates(self) -> Tokens:
        r"""$e^{\kappa\mu^2/2 + b}$: the ratio of two of them is the limit of Theorem 4; infinite beyond all floats."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_attention(self.mu))

    def log_efolds(self, t: Float[np.ndarray, "..."]) -> Tokens:
        r"""`log_efolds` at $\sqrt\kappa\mu$ and time $e^b t$."""
        root = np.sqrt(self.gain)
        return log_efolds(t * np.exp(self.log_scale), root * self.mu, v0=root * self.v0)


def normalised_field(v: Tokens, mu: Float[np.ndarray, " M"], temperature: float = 3.0) -> Tokens:
    r"""The variant used for the paper's figure 4, $\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/T)$."""
    v, mu = broadcast(v=finite("v", v), mu=finite("mu", mu)).values()
    return (mu - v) * special.softmax(np.square(v) / float(positive("temperature", temperature)), axis=-1)


def time_to_efolds(efolds: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""$F$ as a function of $y = \ln(1/\delta)$, exact also where $\delta$ is far below the spacing of floats.

    $\delta = (\mu - v)/(\mu - v_0)$ is the part of the way that is left; from zero it is Theorem 4's $1 - v/\mu$.
    """
    y, mu, v0 = within("efolds", efolds, 0, np.inf), finite("mu", mu), finite("v0", v0)
    y, mu, v0 = broadcast(efolds=y, mu=mu, v0=v0).values()
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


def log_efolds(t: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""$\ln\ln(1/\delta(t))$, which stays finite where `efolds` exceeds the largest float; $-\infty$ at $t = 0$."""
    t, mu, v0 = broadcast(t=times(t), mu=finite("mu", mu), v0=finite("v0", v0)).values()
    least = np.where(mu * v0 <= 0, 0.0, np.minimum(mu**2, v0**2))
    return log_efolds_at(t, v0, mu, _log_speed, slowest=least / 2, fastest=np.maximum(mu**2, v0**2) / 2)


def efolds(t: Real, mu: Real, *, v0: Real = 0.0) -> np.ndarray:
    r"""$\ln(1/\delta(t))$, the inverse of `time_to_efolds`; at late times $(t - \rho)\,e^{\mu^2/2}$.

    >>> efolds(2.0, np.array([0.0, 1.0, 2.0])).round(4)
    array([2.    , 2.4987, 8.4354])
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(log_efolds(t, mu, v0=v0)))


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
    r, mu = broadcast(r=within("r", r, 0.0, 1.0), mu=finite("mu", mu)).values()
    return np.asarray(transient_time(r, np.zeros(()), mu, _log_speed))


def zeta(r: Real, mu: Real) -> np.ndarray:
    r"""$\zeta(r, \mu) = \sqrt{\pi/2}\operatorname{erf}(r\mu/\sqrt2) + (1 - e^{-r^2\mu^2/2})/\mu$ (Eqns 84-86).

    $\partial_\mu(e^{\mu^2/2}F) = \zeta e^{\mu^2/2}$. Odd in $\mu$; its supremum is `SUP_ZETA`.
    """
    r, mu = broadcast(r=within("r", r, 0.0, 1.0), mu=finite("mu", mu)).values()
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
    t, mu_k = positive("t", t), finite("mu_k", mu_k)
    return np.asarray(rate_offset(t, mu_j, mu_k) * np.exp(np.square(mu_k) / 2 - log_efolds(t, mu_k)))


def convergence_ratio(t: Real, mu_j: Real, mu_k: Real) -> np.ndarray:
    r"""Theorem 4, Eqn 7: $\frac{\ln1/\delta_j}{\ln1/\delta_k} = e^{(\mu_j^2-\mu_k^2)/2}(1 + \Lambda(t))$ from zero.

    $\delta = 1 - v(t)/\mu$ is what is left to learn of a component. The ratio starts at 1 and tends to that of the
    final rates, 29.22 here:

    >>> convergence_ratio(np.array([0.1, 1.0, 10.0]), 3.0, 1.5).round(2)
    array([ 1.01, 27.06, 29.83])
    """
    with np.errstate(over="ignore"):
        rates = np.exp((np.square(finite("mu_j", mu_j)) - np.square(finite("mu_k", mu_k))) / 2)
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
    v, mu = broadcast(v=shaped("*T K M", v=v), mu=shaped("K M", mu=mu)).values()
    return (mu - v) * np.exp(np.square(v).sum(axis=-2, keepdims=True) / 2)


def shared_solution(t: Real, mu: Float[np.ndarray, "K M"]) -> Float[np.ndarray, "... K M"]:
    r"""Exact solution of `shared_field` from zero: $v_{kl} = \mu_{kl}\,F^{-1}(t, \|\mu_{\cdot l}\|)$.

    All nodes see the same attention to token l, so a column of v keeps the direction of its target and moves as one
    component whose target is the column's norm.
    """
    mu = shaped("K M", mu=mu)
    return mu * fraction_learned(times(t, trailing=1), np.hypot.reduce(mu, axis=0))[..., None, :]


def _log_speed(v: Real) -> Real:
    return np.square(v) / 2


G_SUP_AT = 1.3069297277192810  # where Lemma 7's G is largest; there G = 1/y, since G' = 1 − yG
G_SUP = 0.7651520803227094  # sup G, the sharp constant of Lemma 7 (printed: 1)
SMALL_G_SUP_AT = 1.1209064227785341  # where g of Lemma 6 is largest, √(−½ − W₋₁(−½e^(−1/2))): a root of Eqn 75
SMALL_G_SUP = 0.6381726863389515  # max g, the sharp constant of Lemma 6 (printed: 1/√2 = 0.7071)


def small_g(y: Real) -> np.ndarray:
    r"""$g(y) = (1 - e^{-y^2})/y$, with $0 \le g \le$ `SMALL_G_SUP` on $y\ge0$ (Lemma 6).

    >>> bool(abs(small_g(SMALL_G_SUP_AT) - SMALL_G_SUP) < 1e-15)
    True
    """
    y = finite("y", y)
    return np.asarray(y * special.exprel(-np.square(y)))


def gaussian_g(y: Real) -> np.ndarray:
    r"""$G(y) = e^{-y^2/2}\int_0^y e^{x^2/2}dx = \sqrt2\,D(y/\sqrt2)$ with Dawson's D, $\le$ `G_SUP` (Lemma 7).

    >>> bool(abs(gaussian_g(G_SUP_AT) - G_SUP) < 1e-15)
    True
    """
    return np.asarray(np.sqrt(2) * special.dawsn(finite("y", y) / np.sqrt(2)))
