r"""Isotropic distributions, and the density $p_n$ of one component of them (Lemma 1, Eqns 33-36).

Everything about an isotropic $x - \bar x \in R^n$ that the dynamics need is a function of one coordinate along
a *unit* vector: its density $p$, distribution function $P$ and upper first moment $m(s) = \int_s^\infty y\,p(y)\,dy$.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import positive
from joma.types import Real


class Isotropic(ABC):
    """An isotropic distribution around zero in `dim` dimensions, seen along one unit vector."""

    dim: int

    @abstractmethod
    def density(self, y: Real) -> np.ndarray:
        """$p(y)$ of the component along a unit vector."""

    @abstractmethod
    def cdf(self, y: Real) -> np.ndarray:
        """$P(y)$, the probability that the component is at most y."""

    @abstractmethod
    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$m(s) = \int_s^\infty y\,p(y)\,dy$; even in s, and infinite tails without a mean are refused."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "size n"]:
        """Draw `size` points in R^n."""


@dataclass(frozen=True, kw_only=True)
class Gaussian(Isotropic):
    """Normal with standard deviation `scale` in every direction; its marginal does not depend on `dim`."""

    dim: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a scale or a dimension that is not positive."""
        positive("scale", self.scale)
        positive("dim", self.dim)

    def density(self, y: Real) -> np.ndarray:
        r"""$e^{-y^2/2\sigma^2}/\sqrt{2\pi\sigma^2}$."""
        return np.exp(-np.square(np.asarray(y) / self.scale) / 2) / (np.sqrt(2 * np.pi) * self.scale)

    def cdf(self, y: Real) -> np.ndarray:
        r"""$\Phi(y/\sigma)$."""
        return special.ndtr(np.asarray(y) / self.scale)

    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$\sigma^2 p(s)$."""
        return self.scale**2 * self.density(s)

    def sample(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "size n"]:
        """Draw `size` points in R^n."""
        return self.scale * rng.standard_normal((size, self.dim))
