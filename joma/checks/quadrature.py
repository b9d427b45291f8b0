"""The independent side of checks: Gauss rules over densities from scipy.stats, differences, and integrated flows."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special, stats

from joma import theory
from joma.theory import Activation, Gaussian, Isotropic, StudentT, UniformBall

Law = Isotropic | Any
"""An isotropic distribution, standing for its marginal in scipy.stats, or any continuous law of scipy.stats."""

# Composite Gauss rules agree with one another to 1e-12.
QUADRATURE_TOLERANCE = 1e-9
NUM_NODES = 16
GROWTH = np.concatenate([2.0 ** np.arange(-30, 20), 4.0 ** np.arange(10, 61)])
"""Distances from a kink, from zero and from the ends of a support at which panels are cut.

They end at 10^36: the first moment of a t with 1.5 degrees of freedom falls like an inverse root."""
STEP = 1e-3
FIVE_POINTS = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))  # central difference of fourth order


def noises(rng: np.random.Generator, dim: int = 1) -> tuple[Isotropic, ...]:
    """Draw a normal, a ball and a Student's t, none of unit size."""
    scale, radius, dof, wide = rng.uniform([0.6, 1.3, 2.5, 1.2], [0.9, 2.5, 4.5, 1.6])
    return Gaussian(dim=dim, scale=scale), UniformBall(dim=dim, radius=radius), StudentT(dim=dim, dof=dof, scale=wide)


def two_slopes(rng: np.random.Generator) -> Activation:
    """Draw a homogeneous activation with c₋ ≠ 0 and c₊ ≠ 1."""
    return theory.homogeneous(rng.uniform(0.1, 0.4), rng.uniform(1.2, 1.8))


def marginal_of(noise: Isotropic) -> Any:
    """Distribution of one component along a unit vector, from scipy.stats."""
    if isinstance(noise, Gaussian):
        return stats.norm(scale=noise.scale)
    if isinstance(noise, StudentT):
        return stats.t(noise.dof, scale=noise.scale)
    assert isinstance(noise, UniformBall)
    shape = (noise.dim + 1) / 2
    return stats.beta(shape, shape, loc=-noise.radius, scale=2 * noise.radius)


def panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss nodes and weights between ascending edges, along the last axis."""
    nodes, weights = special.roots_legendre(NUM_NODES)
    begin, half = edges[..., :-1, None], np.diff(edges, axis=-1)[..., None] / 2
    shape = (*edges.shape[:-1], -1)
    return (begin + half * (1 + nodes)).reshape(shape), (half * weights).reshape(shape)


@lru_cache(maxsize=256)
def _rule(law: Law, kink: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights such that sums over them are means under the law."""
    law = marginal_of(law) if isinstance(law, Isotropic) else law
    low, high = law.support()
    centers = [c for c in (0.0, kink, low, high) if np.isfinite(c)]
    edges = [np.concatenate([c - GROWTH, [c], c + GROWTH]) for c in centers]
    y, weight = panels(np.unique(np.clip(np.concatenate(edges), low, high)))
    return y, weight * law.pdf(y)


def gate_means(law: Law, gate: Callable[[np.ndarray], np.ndarray], r: float, norm: float = 1.0) -> np.ndarray:
    """E f(‖v‖y + r) and E y f(‖v‖y + r) for a function with a kink at zero."""
    y, weight = _rule(law, -r / norm)
    values = weight * gate(norm * y + r)
    return np.array([values.sum(), values @ y])


def difference(function: Callable[[float], Any], x: float, step: float = STEP) -> Any:
    """Derivative of a number or an array by the central difference of fourth order."""
    return sum(weight * function(x + k * step) for k, weight in FIVE_POINTS) / step


def raw_field(mixture: theory.Mixture, v: np.ndarray, xi: float) -> np.ndarray:
    """E[g ψ(v·x + ξ) x] and E[g ψ(v·x + ξ)] in one vector, integrated along v cluster by cluster."""
    norm = float(np.linalg.norm(v))
    total = np.zeros(v.size + 1)
    for center, weight, noise in zip(mixture.centers, mixture.weights, mixture.noises, strict=True):
        mass, first = gate_means(noise, mixture.activation.derivative, float(v @ center + xi), norm)
        total += weight * np.append(mass * center + first * v / norm, mass)
    return total


def jacobian(function: Callable[[np.ndarray], Any], x: np.ndarray, step: float = STEP) -> np.ndarray:
    """Derivative of a number or an array by every entry of another, by central differences of fourth order."""
    units = np.eye(x.size).reshape(-1, *x.shape)

    def along(e):
        return np.asarray(difference(lambda h: function(x + h * e), 0.0, step))

    slopes = list(map(along, units))
    return np.stack(slopes, axis=-1).reshape(*slopes[0].shape, *x.shape)


def solved(field: Callable[..., Any], start: tuple[Any, ...], t: Any, **options: Any) -> tuple[np.ndarray, ...]:
    """Integrate dy/dt = field(y) for a tuple y of arrays, and return each at the times `t`."""
    run = theory.integrate(
        lambda _, state: dict(zip(state, field(*state.values()), strict=True)),
        {str(index): np.asarray(each, dtype=float) for index, each in enumerate(start)},
        np.asarray(t),
        **options,
    )
    return tuple(run.states.values())
