"""The side that statements on half-spaces are compared with: Gauss rules over densities from scipy.stats."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy import special

from joma.statements.raw_field import marginal_of
from joma.theory.activations import Activation
from joma.theory.isotropic import Isotropic

Law = Isotropic | Any
"""An isotropic distribution, standing for its marginal in scipy.stats, or any continuous law of scipy.stats."""

NUM_NODES = 16
GROWTH = np.concatenate([2.0 ** np.arange(-30, 20), 4.0 ** np.arange(10, 61)])
"""Distances from a kink, from zero and from the ends of a support at which panels are cut.

They end at 10^36: the first moment of a t with 1.5 degrees of freedom falls like an inverse root."""
STEP = 1e-3
FIVE_POINTS = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
"""Weights of the central difference of fourth order."""


def panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss nodes and weights between ascending edges, along the last axis."""
    nodes, weights = special.roots_legendre(NUM_NODES)
    begin, half = edges[..., :-1, None], np.diff(edges, axis=-1)[..., None] / 2
    shape = (*edges.shape[:-1], -1)
    return (begin + half * (1 + nodes)).reshape(shape), (half * weights).reshape(shape)


@cache
def _rule(law: Law, kink: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights such that sums over them are means under the law."""
    law = marginal_of(law) if isinstance(law, Isotropic) else law
    low, high = law.support()
    centers = [c for c in (0.0, kink, low, high) if np.isfinite(c)]
    edges = [np.concatenate([c - GROWTH, [c], c + GROWTH]) for c in centers]
    y, weight = panels(np.unique(np.clip(np.concatenate(edges), low, high)))
    return y, weight * law.pdf(y)


def difference(function: Callable[[float], Any], x: float) -> Any:
    """Derivative of a number or an array by the central difference of fourth order."""
    return sum(weight * function(x + k * STEP) for k, weight in FIVE_POINTS) / STEP


def expectation(law: Law, function: Callable[[np.ndarray], np.ndarray], kink: float = 0.0) -> float:
    """Mean of a function that is smooth but for one kink."""
    y, weight = _rule(law, kink)
    return float(weight @ function(y))


def shifted_mean(law: Law, function: Callable[[np.ndarray], np.ndarray], s: float) -> float:
    """E f(y + s) for a function with a kink at zero."""
    return expectation(law, lambda y: function(y + s), -s)


def thetas(law: Law, s: float, phi: Activation) -> tuple[float, float]:
    """θ₁(s) and θ₂(s)."""
    return shifted_mean(law, phi.derivative, s), expectation(law, lambda y: y * phi.derivative(y + s), -s)


def mean_of(law: Law, s: float, phi: Activation) -> float:
    """F(s) = E φ(y + s)."""
    return shifted_mean(law, phi.value, s)
