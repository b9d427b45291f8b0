r"""F, G and slopes for any activation: what Lemmas 3 and 5 say once $\phi$ is not homogeneous.

Without homogeneity nothing is a function of $r/\|v\|$ alone, so the length of v stays an argument. Lemma 3 survives in
the form $\partial_r F = \Theta_1$ with $F = E\,\phi(\|v\|y + r)$; $F = \|v\|\Theta_2 + r\Theta_1$ does not. For a
homogeneous activation these are the functions of `hyperplane` at $s = r/\|v\|$, up to powers of $\|v\|$.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import elementwise

from joma.errors import AssumptionError, finite, positive
from joma.theory.activations import Activation
from joma.theory.hyperplane import gate_mass, gate_moment, mean_activation, theta1_slope, theta2_slope
from joma.theory.isotropic import Isotropic
from joma.types import Real


def gate_mean(p: Isotropic, r: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$F = E\,\phi(\|v\|y + r)$; for every $\phi$, $\partial_r F = \Theta_1$ and $\partial_{\|v\|} F = \Theta_2$.

    >>> from joma.theory.activations import relu, softplus
    >>> from joma.theory.isotropic import Gaussian
    >>> [float(gate_mean(Gaussian(), 0.5, norm=2.0, phi=phi).round(6)) for phi in (relu, softplus)]
    [1.072689, 1.336584]
    """
    if phi.slopes is not None:
        norm = positive("norm", norm)
        return np.asarray(norm * mean_activation(p, finite("r", r) / norm, phi))
    return gate_mass(p, r, norm=norm, psi=phi.value, kinks=())


def gate_mass_slope(p: Isotropic, r: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$\partial_r\Theta_1 = E\,\phi''(\|v\|y + r)$; $(c_+-c_-)\,p(s)/\|v\|$ for a homogeneous $\phi$ (Lemma 5)."""
    if phi.slopes is not None:
        norm = positive("norm", norm)
        return np.asarray(theta1_slope(p, finite("r", r) / norm, phi) / norm)
    return gate_mass(p, r, norm=norm, psi=_curvature(phi), kinks=())


def gate_moment_slope(p: Isotropic, r: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$\partial_r\Theta_2 = E\,y\,\phi''(\|v\|y + r)$; $-(c_+-c_-)\,s\,p(s)/\|v\|$, homogeneous $\phi$ (Lemma 5)."""
    if phi.slopes is not None:
        norm = positive("norm", norm)
        return np.asarray(theta2_slope(p, finite("r", r) / norm, phi) / norm)
    return gate_moment(p, r, norm=norm, psi=_curvature(phi), kinks=())


def gate_level(p: Isotropic, y: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$\Theta_1^{-1}(y)$, the r at which the mean gate is y; for a convex $\phi$, as $\Theta_1$ then rises."""
    y, norm = np.broadcast_arrays(finite("y", y), positive("norm", norm))

    def excess(r: np.ndarray, y: np.ndarray, norm: np.ndarray) -> np.ndarray:
        return np.asarray(gate_mass(p, r, norm=norm, psi=phi) - y)

    reach = norm * np.ones_like(y)
    bracket = elementwise.bracket_root(excess, -reach, reach, args=(y, norm))
    if not np.all(bracket.success):
        wrong = y[~np.asarray(bracket.success)].flat[0]
        raise AssumptionError(
            f"G needs a mean gate that passes every level: none of {phi.name!r} was found at {wrong:g}. "
            "Use a convex activation such as `softplus` or `relu`, and levels between its two limits."
        )
    return np.asarray(elementwise.find_root(excess, bracket.bracket, args=(y, norm)).x)


def gate_mean_at_level(p: Isotropic, y: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$G(y) = F(\Theta_1^{-1}(y))$, figure 9's curve for any convex $\phi$; for ReLU $\|v\|$ times `mean_at_level`."""
    return gate_mean(p, gate_level(p, y, norm=norm, phi=phi), norm=norm, phi=phi)


def gate_mean_at_level_slope(p: Isotropic, y: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$G'(y) = y \,/\, (\partial\Theta_1/\partial r)$ at $r = \Theta_1^{-1}(y)$."""
    return np.asarray(finite("y", y) / gate_mass_slope(p, gate_level(p, y, norm=norm, phi=phi), norm=norm, phi=phi))


def _curvature(phi: Activation) -> Callable[[Real], np.ndarray]:
    if phi.curvature is None:
        raise AssumptionError(
            f"The slope of a mean gate needs φ'' or a homogeneous activation; {phi.name!r} has neither. "
            "Pass `curvature` to the Activation."
        )
    return phi.curvature
