r"""Isotropic distributions, and the density $p_n$ of one component of them (Lemma 1, Eqns 33-36).

Everything about an isotropic $x - \bar x \in R^n$ that the dynamics need is a function of one coordinate along
a *unit* vector: its density $p$, distribution function $P$ and upper first moment $m(s) = \int_s^\infty y\,p(y)\,dy$.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, positive
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
        _require_dimension(self.dim)

    def density(self, y: Real) -> np.ndarray:
        r"""$e^{-y^2/2\sigma^2}/\sqrt{2\pi\sigma^2}$."""
        return np.asarray(np.exp(-np.square(np.asarray(y) / self.scale) / 2) / (np.sqrt(2 * np.pi) * self.scale))

    def cdf(self, y: Real) -> np.ndarray:
        r"""$\Phi(y/\sigma)$."""
        return np.asarray(special.ndtr(np.asarray(y) / self.scale))

    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$\sigma^2 p(s)$."""
        return np.asarray(self.scale**2 * self.density(s))

    def sample(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "size n"]:
        """Draw `size` points in R^n."""
        return self.scale * rng.standard_normal((size, self.dim))


@dataclass(frozen=True, kw_only=True)
class UniformBall(Isotropic):
    r"""Uniform in the ball of the given radius R; along a unit vector nothing lies beyond $|y| = R$.

    >>> round(float(UniformBall(dim=3).density(0.0)), 12)
    0.75
    """

    dim: int = 1
    radius: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a radius that is not positive, or a dimension that is not a whole number above zero."""
        positive("radius", self.radius)
        _require_dimension(self.dim)

    @property
    def _peak(self) -> float:
        r"""$p(0)\,R = \Gamma(n/2+1) / (\sqrt\pi\,\Gamma((n+1)/2))$."""
        return float(special.poch((self.dim + 1) / 2, 0.5) / np.sqrt(np.pi))

    def density(self, y: Real) -> np.ndarray:
        r"""$\frac{\Gamma(n/2+1)}{\sqrt\pi\,\Gamma((n+1)/2)\,R}\,(1-y^2/R^2)^{(n-1)/2}$ inside, zero outside."""
        t = np.abs(np.asarray(y) / self.radius)
        inside = np.clip((1 - t) * (1 + t), 0, None) ** ((self.dim - 1) / 2)
        return np.where(t <= 1, self._peak / self.radius * inside, 0.0)

    def cdf(self, y: Real) -> np.ndarray:
        r"""$(1+y/R)/2$ has a Beta distribution with both parameters $(n+1)/2$."""
        share = np.clip((1 + np.asarray(y) / self.radius) / 2, 0, 1)
        return np.asarray(special.betainc((self.dim + 1) / 2, (self.dim + 1) / 2, share))

    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$\frac{\Gamma(n/2+1)\,R}{\sqrt\pi\,\Gamma((n+1)/2)}\,\frac{(1-s^2/R^2)^{(n+1)/2}}{n+1}$, zero outside."""
        t = np.abs(np.asarray(s) / self.radius)
        inside = np.clip((1 - t) * (1 + t), 0, None) ** ((self.dim + 1) / 2)
        return np.asarray(self._peak * self.radius / (self.dim + 1) * inside)

    def sample(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "size n"]:
        """Draw `size` points in R^n."""
        radii = self.radius * rng.random(size) ** (1 / self.dim)
        return radii[:, None] * _directions(rng, size, self.dim)


@dataclass(frozen=True, kw_only=True)
class StudentT(Isotropic):
    r"""Multivariate Student t: a normal over $\sqrt{\chi^2_\nu/\nu}$; each component is the univariate t of that dof.

    >>> round(float(StudentT(dof=2.0).upper_moment(0.0) * StudentT(dof=2.0).density(0.0)), 12)
    0.25
    """

    dim: int = 1
    dof: float = 3.0
    r"""Degrees of freedom $\nu$; the mean exists above 1, the variance above 2."""
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a scale or degrees of freedom that are not positive, or a dimension that is not a whole number."""
        positive("scale", self.scale)
        positive("dof", self.dof)
        _require_dimension(self.dim)

    @property
    def _peak(self) -> float:
        r"""$p(0)\,\sigma = \Gamma((\nu+1)/2) / (\sqrt{\nu\pi}\,\Gamma(\nu/2))$."""
        return float(special.poch(self.dof / 2, 0.5) / np.sqrt(self.dof * np.pi))

    def _power(self, y: Real, exponent: float) -> np.ndarray:
        r"""$(1 + y^2/\nu\sigma^2)^{exponent}$."""
        return np.asarray(np.hypot(1, np.asarray(y) / (self.scale * np.sqrt(self.dof))) ** (2 * exponent))

    def density(self, y: Real) -> np.ndarray:
        r"""$\frac{\Gamma((\nu+1)/2)}{\sqrt{\nu\pi}\,\Gamma(\nu/2)\,\sigma}\,(1+y^2/\nu\sigma^2)^{-(\nu+1)/2}$."""
        return np.asarray(self._peak / self.scale * self._power(y, -(self.dof + 1) / 2))

    def cdf(self, y: Real) -> np.ndarray:
        r"""Student's distribution function at $y/\sigma$."""
        return np.asarray(special.stdtr(self.dof, np.asarray(y) / self.scale))

    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$\frac{\nu\sigma^2}{\nu-1}\,(1+s^2/\nu\sigma^2)\,p(s)$; refused for $\nu \le 1$, where there is no mean."""
        if self.dof <= 1:
            raise AssumptionError(
                f"The upper moment needs a finite mean: Student's t has one for dof above 1, got {self.dof:g}. "
                "Pass a larger `dof`."
            )
        weight = self._peak * self.scale * self.dof / (self.dof - 1)
        return np.asarray(weight * self._power(s, -(self.dof - 1) / 2))

    def sample(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "size n"]:
        """Draw `size` points in R^n."""
        shrink = np.sqrt(rng.chisquare(self.dof, (size, 1)) / self.dof)
        return self.scale * rng.standard_normal((size, self.dim)) / shrink


def _require_dimension(dim: int) -> None:
    positive("dim", dim)
    if dim != int(dim):
        raise ValueError(f"`dim` must be a whole number, got {dim}. Pass the number of dimensions.")


def _directions(rng: np.random.Generator, size: int, dim: int) -> Float[np.ndarray, "size dim"]:
    """Draw `size` unit vectors, uniform on the sphere."""
    normal = rng.standard_normal((size, dim))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)
