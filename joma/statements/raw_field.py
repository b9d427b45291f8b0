"""The side that statements on mixtures are compared with: the field by quadrature of densities from scipy.stats."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from scipy.integrate import tanhsinh

from joma.theory.isotropic import Gaussian, Isotropic, StudentT, UniformBall
from joma.theory.mixture import Mixture

Joint = tuple[np.ndarray, float | np.ndarray]
"""Time derivatives of v and ξ."""
FieldFormula = Callable[[Mixture, np.ndarray, float], Joint]
"""A claim about the field of a mixture at (v, ξ)."""
Scalar = Callable[[Mixture, np.ndarray, float], float]
"""A claim about a number at (v, ξ)."""


def marginal_of(noise: Isotropic) -> Any:
    """Distribution of one component along a unit vector, from scipy.stats."""
    if isinstance(noise, Gaussian):
        return stats.norm(scale=noise.scale)
    if isinstance(noise, StudentT):
        return stats.t(noise.dof, scale=noise.scale)
    assert isinstance(noise, UniformBall)
    shape = (noise.dim + 1) / 2
    return stats.beta(shape, shape, loc=-noise.radius, scale=2 * noise.radius)


def raw_field(mixture: Mixture, v: np.ndarray, xi: float) -> Joint:
    """E[g ψ(v·x + ξ) x] and E[g ψ(v·x + ξ)], integrated along v over the half-line where the node is active."""
    c_minus, c_plus = mixture.activation.require_homogeneous("the raw field")
    norm = np.linalg.norm(v)
    v_dot, xi_dot = np.zeros_like(v), 0.0
    for center, weight, noise in zip(mixture.centers, mixture.weights, mixture.noises, strict=True):
        marginal = marginal_of(noise)
        low, high = marginal.support()
        edge = np.clip(-(v @ center + xi) / norm, low, high)
        moments = tanhsinh(
            lambda y, k, p=marginal.pdf: p(y) * y**k, edge, high, args=(np.array([0, 1]),), rtol=1e-13
        ).integral
        mass, first = np.array([c_minus, 0.0]) + (c_plus - c_minus) * moments
        v_dot = v_dot + weight * (mass * center + first * v / norm)
        xi_dot = xi_dot + weight * mass
    return v_dot, xi_dot


def joined(derivatives: Joint) -> np.ndarray:
    """Return v̇ and ξ̇ in one vector."""
    return np.append(*derivatives)


def one_percent_off(formula: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the formula with its value 1 % too large: a mutation."""
    return lambda *arguments: 1.01 * np.asarray(formula(*arguments))
