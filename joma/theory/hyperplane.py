r"""What a half-space cuts out of an isotropic distribution: $\theta_1$, $\theta_2$, $F$ and $G$ (Lemmas 1, 3, 5).

All of them are functions of the *normalised* distance $s = r/\|v\|$, $r = v^\top\bar x + \xi$. The paper evaluates
them at $r$ and divides by powers of $\|v\|$, which is right at $\|v\| = 1$ only.
"""

import numpy as np

from joma.theory.activations import Activation, relu
from joma.theory.isotropic import Isotropic
from joma.types import Real


def theta1(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$\theta_1(s) = \int \psi(y+s)\,p(y)\,dy = c_- + (c_+-c_-)\,P(s)$ for a homogeneous activation."""
    c_minus, c_plus = phi.require_homogeneous("θ₁ as a function of s alone")
    return np.asarray(c_minus + (c_plus - c_minus) * p.cdf(s))


def theta2(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$\theta_2(s) = \int y\,\psi(y+s)\,p(y)\,dy = (c_+-c_-)\,m(s)$ for a homogeneous activation."""
    c_minus, c_plus = phi.require_homogeneous("θ₂ as a function of s alone")
    return np.asarray((c_plus - c_minus) * p.upper_moment(s))


def mean_activation(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$F(s) = \theta_2(s) + s\,\theta_1(s) = E\,\phi(y+s)$, with $F' = \theta_1$ (Lemma 3)."""
    return np.asarray(theta2(p, s, phi) + s * theta1(p, s, phi))
