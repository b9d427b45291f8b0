r"""Scalar flows that relax to a target, solved exactly by one quadrature: $\dot v = (v_\infty - v)\,\nu(v)$.

Every component of Eqn 6, and of the flow that exp attention really has, is of this kind. With the gap
$\delta = (v_\infty - v)/(v_\infty - v_0)$ that is left and its number of e-folds $y = \ln(1/\delta)$ the flow reads
$\dot y = \nu(v)$, so that

$$t = \int_0^y \frac{dy'}{\nu} = \frac{y}{\nu(v_\infty)} + \rho(1 - \delta), \qquad
  \rho(r) = \int_0^r \Big[\frac{1}{\nu(v(s))} - \frac{1}{\nu(v_\infty)}\Big] \frac{ds}{1-s}, \qquad
  v(s) = v_0 + (v_\infty - v_0)s.$$

The integrand of $\rho$ is smooth, also at $s = 1$: a fixed Gauss-Legendre rule does it. Working with $\ln y$ keeps the
relative accuracy of y from the first instant to a gap far below the spacing of floats. All arguments broadcast.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from scipy import special
from scipy.optimize import elementwise

from joma.types import Real

LogSpeed = Callable[..., Real]
r"""$\ln\nu$, elementwise: v first, then one array for each parameter of the flow."""

NUM_NODES = 40
"""Points of the Gauss-Legendre rule: a Gaussian over 18 standard deviations is then exact to 2e-14."""
NEGLIGIBLE = 81.0
r"""Where $\kappa v^2$ exceeds its least value on the path by this much, $1/\nu$ is below $e^{-40}$ of its peak."""
BRACKET_MARGIN = 1e-9
"""Widening of the bracket of ln y, above the rounding of the quadrature."""
ROOT_TOLERANCE = 1e-15
"""Absolute tolerance of the root in ln y."""
CHUNK = 8192
"""Elements solved at a time: bounds the memory of the rule at a few megabytes."""


def transient_time(
    r: Real,
    v0: Real,
    target: Real,
    log_speed: LogSpeed,
    params: Sequence[Real] = (),
    *,
    gain: float = 1.0,
) -> Real:
    r"""$\rho(r)$: the time to cover the fraction r of the way, in excess of $\ln\frac{1}{1-r}/\nu(v_\infty)$.

    `gain` is a $\kappa$ for which $\nu$ grows at least as fast as $e^{\kappa v^2/2}$.
    """
    low, high = _window(r, v0, target, gain)
    nodes, weights = _rule()
    s = low + (high - low) * nodes.reshape(-1, *[1] * np.ndim(low))
    slowness, steady = np.exp(-log_speed(v0 + (target - v0) * s, *params)), np.exp(-log_speed(target, *params))
    within = (high - low) * np.tensordot(weights, (slowness - steady) / (1 - s), axes=1)
    # Before the window 1/nu is negligible, 1/nu(target) is not; behind it both are.
    return within + steady * np.log1p(-low)


def elapsed_time(
    log_y: Real,
    v0: Real,
    target: Real,
    log_speed: LogSpeed,
    params: Sequence[Real] = (),
    *,
    gain: float = 1.0,
) -> Real:
    r"""Time at which the gap has shrunk by $y = \ln(1/\delta)$ e-folds; takes $\ln y$, so that y may overflow."""
    with np.errstate(over="ignore"):
        r = -np.expm1(-np.exp(log_y))
    steady = np.exp(log_y - log_speed(target, *params))
    return steady + transient_time(r, v0, target, log_speed, params, gain=gain)


def efolds_at(
    t: Real,
    v0: Real,
    target: Real,
    log_speed: LogSpeed,
    params: Sequence[Real] = (),
    *,
    slowest: Real,
    fastest: Real,
    gain: float = 1.0,
) -> np.ndarray:
    r"""Inverse of `elapsed_time`: $y = \ln(1/\delta)$ at time t; infinite where y exceeds the largest float.

    `slowest` and `fastest` bound $\ln\nu$ between start and target, which brackets y between two multiples of t.
    """

    def lateness(log_y: Real, t: Real, v0: Real, target: Real, *rest: Real) -> Real:
        with np.errstate(over="ignore"):  # far to the right of the root
            return elapsed_time(log_y, v0, target, log_speed, rest, gain=gain) / t - 1

    t, low, high, *args = np.broadcast_arrays(t, slowest, fastest, v0, target, *params)
    y = np.zeros(t.shape)
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
        with np.errstate(over="ignore"):
            y[at] = np.exp(found.x)
    return y


def _window(r: Real, v0: Real, target: Real, gain: float) -> tuple[Real, Real]:
    """Ends of the part of [0, r] on which the slowness is not negligible beside its peak there."""
    span = target - v0
    v = v0 + span * r
    least = np.where(v * v0 <= 0, 0.0, np.minimum(np.square(v), np.square(v0)))
    reach = np.sqrt(least + NEGLIGIBLE / gain)
    ahead = v0 * np.sign(span)
    with np.errstate(divide="ignore", over="ignore"):
        low, high = (-reach - ahead) / np.abs(span), (reach - ahead) / np.abs(span)
    return np.clip(low, 0.0, r), np.clip(high, 0.0, r)


@cache
def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [0, 1], with a Newton step in extended precision.

    The library's rule is off by some twenty roundings near the ends, where the slowness has its peak.
    """
    legendre = np.polynomial.Legendre.basis(NUM_NODES)
    x = special.roots_legendre(NUM_NODES)[0].astype(np.longdouble)
    x -= legendre(x) / legendre.deriv()(x)
    weights = 2 / ((1 - x**2) * legendre.deriv()(x) ** 2)
    return ((x + 1) / 2).astype(np.float64), (weights / 2).astype(np.float64)
