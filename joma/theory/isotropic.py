r"""Isotropic distributions, and the density $p_n$ of one component of them (Lemma 1, Eqns 33-36).

Everything about an isotropic $x - \bar x \in R^n$ that the dynamics need is a function of one coordinate along
a *unit* vector: its density $p$, distribution function $P$ and upper first moment $m(s) = \int_s^\infty y\,p(y)\,dy$.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, positive, whole
from joma.theory.radial import DEPTH, DensityTable, RadialMesh, log_profile, radial_mesh, require_tail, resolve
from joma.types import Real

SMALLEST = 1e-100  # radius used for zero when a profile is evaluated
LARGEST = 1e280  # coordinates from here on count as infinite


class Isotropic(ABC):
    """An isotropic distribution around zero in `dim` dimensions, seen along one unit vector."""

    dim: int

    def __post_init__(self) -> None:
        whole("dim", self.dim, low=1)
        for name, value in vars(self).items():
            positive(name, value)

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

    @cached_property
    def table(self) -> DensityTable:
        """The density on y ≥ 0 as a polynomial on panels that resolve it, for integrals against any function."""
        return DensityTable.of(self.density, *self._panels())

    def _panels(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of panels on y ≥ 0 that resolve the density."""
        mesh = radial_mesh(log_profile(self.density), 1)
        return mesh.lower, mesh.upper


@dataclass(frozen=True, kw_only=True)
class Gaussian(Isotropic):
    """Normal with standard deviation `scale` in every direction; its marginal does not depend on `dim`."""

    dim: int = 1
    scale: float = 1.0

    def density(self, y: Real) -> np.ndarray:
        r"""$e^{-y^2/2\sigma^2}/\sqrt{2\pi\sigma^2}$."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(-np.square(_not_nan(y) / self.scale) / 2) / (np.sqrt(2 * np.pi) * self.scale))

    def cdf(self, y: Real) -> np.ndarray:
        r"""$\Phi(y/\sigma)$."""
        return np.asarray(special.ndtr(_not_nan(y) / self.scale))

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

    @property
    def _peak(self) -> float:
        r"""$p(0)\,R = \Gamma(n/2+1) / (\sqrt\pi\,\Gamma((n+1)/2))$."""
        return float(special.poch((self.dim + 1) / 2, 0.5) / np.sqrt(np.pi))

    def _power(self, y: Real, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        r"""$t = |y|/R$ and $(1 - t^2)^{exponent}$, zero outside but for the exponent zero."""
        t = np.asarray(np.abs(_not_nan(y) / self.radius))
        return t, np.asarray(np.clip((1 - t) * (1 + t), 0, None) ** exponent)

    def density(self, y: Real) -> np.ndarray:
        r"""$\frac{\Gamma(n/2+1)}{\sqrt\pi\,\Gamma((n+1)/2)\,R}\,(1-y^2/R^2)^{(n-1)/2}$ inside, zero outside."""
        t, inside = self._power(y, (self.dim - 1) / 2)
        return np.where(t <= 1, self._peak / self.radius * inside, 0.0)

    def cdf(self, y: Real) -> np.ndarray:
        r"""$(1+y/R)/2$ has a Beta distribution with both parameters $(n+1)/2$."""
        share = np.clip((1 + _not_nan(y) / self.radius) / 2, 0, 1)
        return np.asarray(special.betainc((self.dim + 1) / 2, (self.dim + 1) / 2, share))

    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$\frac{\Gamma(n/2+1)\,R}{\sqrt\pi\,\Gamma((n+1)/2)}\,\frac{(1-s^2/R^2)^{(n+1)/2}}{n+1}$, zero outside."""
        _, inside = self._power(s, (self.dim + 1) / 2)
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

    @property
    def _peak(self) -> float:
        r"""$p(0)\,\sigma = \Gamma((\nu+1)/2) / (\sqrt{\nu\pi}\,\Gamma(\nu/2))$."""
        return float(special.poch(self.dof / 2, 0.5) / np.sqrt(self.dof * np.pi))

    def _power(self, y: Real, exponent: float) -> np.ndarray:
        r"""$(1 + y^2/\nu\sigma^2)^{exponent}$."""
        return np.asarray(np.hypot(1, _not_nan(y) / (self.scale * np.sqrt(self.dof))) ** (2 * exponent))

    def density(self, y: Real) -> np.ndarray:
        r"""$\frac{\Gamma((\nu+1)/2)}{\sqrt{\nu\pi}\,\Gamma(\nu/2)\,\sigma}\,(1+y^2/\nu\sigma^2)^{-(\nu+1)/2}$."""
        return np.asarray(self._peak / self.scale * self._power(y, -(self.dof + 1) / 2))

    def cdf(self, y: Real) -> np.ndarray:
        r"""Student's distribution function at $y/\sigma$."""
        return _student_cdf(self.dof, _not_nan(y) / self.scale)

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


@dataclass(frozen=True, kw_only=True)
class RadialProfile(Isotropic):
    r"""Any isotropic distribution, given by its density as a function of the radius, $p_0(r)$, up to a constant.

    `profile` takes an array of radii, or one radius; nothing needs to be known about its scale. It is normalised
    here, and its marginal is Eqn 35 along a unit vector,
    $p(y) \propto \int_0^\infty p_0(\sqrt{y^2+l^2})\,l^{n-2}\,dl$ for $n \ge 2$ and $p_0(|y|)$ for $n = 1$.
    Values of $p_0$ below $10^{-299}$, or $10^{-299}$ times its largest, count as zero: they may have underflowed. With
    `in_log` the profile returns $\ln p_0$ and none do.
    Features narrower than about two millionths of their radius may be missed.

    >>> ring = RadialProfile(dim=2, profile=lambda r: np.exp(-((r - 3) ** 2) / (2 * 0.1**2)))
    >>> ring.cdf(np.array([0.0, 3.0])).round(6)
    array([0.5     , 0.965535])
    """

    profile: Callable[[np.ndarray], np.ndarray]
    dim: int = 1
    in_log: bool = False
    """Whether `profile` returns the logarithm of the density."""

    def __post_init__(self) -> None:
        whole("dim", self.dim, low=1)
        _ = self._mesh

    @cached_property
    def _mesh(self) -> RadialMesh:
        log_p = log_profile(self.profile, in_log=self.in_log)
        return radial_mesh(log_p, self.dim, depth=np.inf if self.in_log else DEPTH)

    def _panels(self) -> tuple[np.ndarray, np.ndarray]:
        # The marginal is an average of the profile: no less smooth, but not zero where the profile is.
        return resolve(log_profile(self.density), np.union1d(SMALLEST, np.append(self._mesh.lower, self._mesh.upper)))

    def density(self, y: Real) -> np.ndarray:
        r"""Eqn 35, normalised: with $Z = \int_0^\infty p_0(r)\,r^{n-1}\,dr$ and $l$ the distance from the axis.

        $p(y) = \frac{\Gamma(n/2)}{\sqrt\pi\,\Gamma((n-1)/2)}\,\frac1Z\int_0^\infty p_0(\sqrt{y^2+l^2})\,l^{n-2}\,dl$.
        """
        mesh, n = self._mesh, self.dim

        def density(y: np.ndarray) -> np.ndarray:
            if n == 1:
                return np.exp(mesh.extended(np.maximum(y, SMALLEST)) - mesh.log_total) / 2
            within = mesh.integrate(y, lambda y, leg, r: special.xlogy(n - 2, leg), n - 1)
            below, _ = mesh.log_outside(n - 1)
            inner = np.where(y < mesh.lower[0], np.exp(below - mesh.log_total), 0.0)
            return (within + inner) * special.poch((n - 1) / 2, 0.5) / np.sqrt(np.pi)

        return self._elsewhere_zero(y, density)

    def cdf(self, y: Real) -> np.ndarray:
        r"""Mass below y, by the part of each sphere that lies there; $T_{n-1}$ is Student's distribution function.

        $P(-|y|) = \frac1Z\int_0^\infty T_{n-1}(-\sqrt{n-1}\,|y|/l)\;p_0(r)\,r^{n-2}\,l\,dl$, $r = \sqrt{y^2+l^2}$.
        """
        n = self.dim

        def log_weight(y: np.ndarray, leg: np.ndarray, r: np.ndarray) -> np.ndarray:
            # On a sphere of radius r in R^n, √(n-1) y / l is Student's t with n-1 degrees of freedom.
            with np.errstate(divide="ignore"):
                beyond = 2 * _student_cdf(n - 1, -np.sqrt(n - 1) * y / leg) if n > 1 else 1.0
                return np.log(beyond * leg) + (n - 2) * np.log(r)

        upper = self._elsewhere_zero(y, lambda y: self._mesh.integrate(y, log_weight, n) / 2)
        return np.where(np.asarray(y) > 0, 1 - upper, upper)

    def upper_moment(self, s: Real) -> np.ndarray:
        r"""$\int_s^\infty y\,p(y)\,dy$ in one integral; refused when the mean is not finite.

        $m(s) = \frac{\Gamma(n/2)}{2\sqrt\pi\,\Gamma((n+1)/2)}\,\frac1Z\int_0^\infty p_0(\sqrt{s^2+l^2})\,l^n\,dl$.
        """
        n = self.dim
        require_tail(self._mesh, n + 1, "The upper moment needs a finite mean")
        integral = self._elsewhere_zero(
            s, lambda s: self._mesh.integrate(s, lambda y, leg, r: special.xlogy(n, leg), n + 1)
        )
        return np.asarray(integral / (2 * np.sqrt(np.pi) * special.poch(n / 2, 0.5)))

    def _elsewhere_zero(self, y: Real, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Apply a function of |y| at every |y| short of overflow; beyond, each of them vanishes."""
        size = np.abs(_not_nan(y))
        out = np.zeros_like(size)
        reachable = size < LARGEST
        out[reachable] = function(size[reachable])
        return out

    def sample(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "size n"]:
        """Draw `size` points in R^n."""
        return self._mesh.radii(rng.random(size))[:, None] * _directions(rng, size, self.dim)


def _student_cdf(dof: float | int, t: Real) -> np.ndarray:
    """Student's distribution function; for one degree of freedom scipy's loses half of the digits near zero."""
    return np.asarray(np.arctan2(1, -t) / np.pi if dof == 1 else special.stdtr(dof, t))


def _not_nan(y: Real) -> np.ndarray:
    """Return y as a float64 array; infinities are allowed, NaN is not."""
    array = np.asarray(y, dtype=np.float64)
    if np.isnan(array).any():
        raise ValueError("Coordinates along a unit vector must be numbers, got nan. Remove or replace that entry.")
    return array


def _directions(rng: np.random.Generator, size: int, dim: int) -> Float[np.ndarray, "size dim"]:
    """Draw `size` unit vectors, uniform on the sphere."""
    normal = rng.standard_normal((size, dim))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)
