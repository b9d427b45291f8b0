r"""Theorem 3: the critical point of the weights with the bias frozen, and the linear flow around it (Eqns 5, 66-74).

Two clusters, the negative one at the origin. With $\xi$ held at $\xi^*$ the flow has isolated critical points
$\mu = s_\mu\|\mu\|\,\bar x_+/\|\bar x_+\|$. With $s_- = \xi^*/\|\mu\|$ and $s_+ = s_- + s_\mu\|\bar x_+\|$,

$$s_\mu a_+\theta_1(s_+)\|\bar x_+\| + a_+\theta_2(s_+) = a_-\theta_2(s_-), \qquad
  \dot v = C(\mu)(\mu - v) + O(\|v-\mu\|^2), \qquad C(\mu) = \beta_1I + \beta_2\mu\mu^\top.$$

Trained together with $v$, $\xi$ has no reason to stop at $\xi^*$: the joint flow has rays of critical points at most
(`joma.theory.critical_rays`), so the theorem needs the bias frozen. The remainder is a vector of second order; the
paper's scalar factor $1 + \lambda$ does not describe it.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, finite, same_shape
from joma.theory.critical_rays import TAIL, all_roots, symmetric_grid, typical_size
from joma.theory.hyperplane import theta1, theta1_slope, theta2
from joma.theory.mixture import Mixture
from joma.types import Real


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearisedFlow:
    r"""$\dot v = C(\mu)(\mu - v)$ with $C(\mu) = \beta_1I + \beta_2\mu\mu^\top$: Eqn 5 without its remainder."""

    mu: Float[np.ndarray, " n"]
    r"""Critical point $\mu \ne 0$."""
    beta1: float
    beta2: float

    def __post_init__(self) -> None:
        """Refuse NaN, and a critical point at zero."""
        finite("beta1", self.beta1), finite("beta2", self.beta2)
        if not finite("mu", self.mu).any():
            raise AssumptionError("Theorem 3 needs a critical point μ ≠ 0, got zeros. Pass the one of your mixture.")

    @property
    def matrix(self) -> Float[np.ndarray, "n n"]:
        r"""$C(\mu) = \beta_1I + \beta_2\mu\mu^\top$ (Eqn 72)."""
        return self.beta1 * np.eye(self.mu.size) + self.beta2 * np.outer(self.mu, self.mu)

    @property
    def across(self) -> float:
        r"""$\beta_1$: eigenvalue of $C(\mu)$ in the $n-1$ directions orthogonal to $\mu$."""
        return self.beta1

    @property
    def along(self) -> float:
        r"""$\lambda_\mu = \beta_1 + \beta_2\|\mu\|^2$: eigenvalue of $C(\mu)$ in the direction of $\mu$."""
        return float(self.beta1 + self.beta2 * self.mu @ self.mu)

    @property
    def eigenvalues(self) -> Float[np.ndarray, " n"]:
        """Eigenvalues of C(μ), the one along μ first."""
        return np.array([self.along] + [self.across] * (self.mu.size - 1))

    @property
    def stable(self) -> bool:
        """Whether C(μ) is positive definite, so that the flow returns to μ from nearby."""
        return bool((self.eigenvalues > 0).all())

    @property
    def decay_rates(self) -> Float[np.ndarray, " n"]:
        """Rates at which distances from μ decay, the one along μ first: the eigenvalues, if all are positive."""
        if not self.stable:
            raise AssumptionError(
                f"Decay rates need a stable critical point: C(μ) has the eigenvalue {self.eigenvalues.min():.6g}. "
                "Look at `eigenvalues` instead, or take another critical point."
            )
        return self.eigenvalues

    def field(self, v: Float[np.ndarray, "*T n"]) -> Float[np.ndarray, "*T n"]:
        r"""$\dot v = C(\mu)(\mu - v)$."""
        same_shape(mu=self.mu, v=finite("v", v)[(0,) * (v.ndim - 1)])
        return (self.mu - v) @ self.matrix

    def solution(self, v0: Float[np.ndarray, " n"], t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T n"]:
        r"""$v(t) = \mu + e^{-C(\mu)t}(v_0 - \mu)$, the two eigenspaces apart."""
        same_shape(mu=self.mu, v0=finite("v0", v0))
        t, start = finite("t", t), v0 - self.mu
        normal = self.mu / np.linalg.norm(self.mu)
        along = (start @ normal) * normal
        decay_along, decay_across = np.exp(-self.along * t)[:, None], np.exp(-self.across * t)[:, None]
        return self.mu + decay_along * along + decay_across * (start - along)


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPoint:
    r"""A critical point of $v$ with the bias frozen at $\xi^*$ (Theorem 3), for a negative cluster at the origin.

    >>> from joma.theory.isotropic import Gaussian
    >>> from joma.theory.mixture import two_clusters
    >>> mixture = two_clusters(np.array([1.0, 0.0]), a_plus=1.0, a_minus=4.0, noise=Gaussian(dim=2))
    >>> [point] = critical_points(mixture, xi=-1.0)
    >>> point.linearised.eigenvalues.round(6), point.linearised.stable
    (array([0.644274, 0.506555]), True)
    """

    mixture: Mixture
    xi: float
    r"""$\xi^*$, where the bias is held."""
    norm: float
    r"""$\|\mu\|$."""
    orientation: int
    r"""$s_\mu = \operatorname{sgn}(\mu^\top\bar x_+)$."""

    @property
    def mu(self) -> Float[np.ndarray, " n"]:
        r"""$\mu = s_\mu\|\mu\|\,\bar x_+/\|\bar x_+\|$."""
        x_plus = self.mixture.centers[0]
        return self.orientation * self.norm * x_plus / np.linalg.norm(x_plus)

    @property
    def s_minus(self) -> float:
        r"""$s_- = \xi^*/\|\mu\|$."""
        return self.xi / self.norm

    @property
    def s_plus(self) -> float:
        r"""$s_+ = s_- + s_\mu\|\bar x_+\|$."""
        return self.s_minus + self.orientation * float(np.linalg.norm(self.mixture.centers[0]))

    @property
    def beta1(self) -> float:
        r"""$\beta_1 = s_\mu a_+\|\bar x_+\|\theta_1(s_+)/\|\mu\|$; Eqn 73 has $r_+$ for $s_+$ and $\|\mu\|^2$."""
        x_plus, a_plus = self.mixture.centers[0], self.mixture.weights[0]
        pull = a_plus * np.linalg.norm(x_plus) * theta1(self.mixture.noises[0], self.s_plus, self.mixture.activation)
        return float(self.orientation * pull / self.norm)

    @property
    def beta2(self) -> float:
        r"""$\beta_2 = -\left[\beta_1 + (c_+ - c_-)\frac{\xi^{*2}}{\|\mu\|^3}(a_+p(s_+) - a_-p(s_-))\right]/\|\mu\|^2$.

        Eqn 74 corrected; the eigenvalue along $\mu$ is
        $(c_+ - c_-)\frac{\xi^{*2}}{\|\mu\|^3}(a_-p(s_-) - a_+p(s_+))$.
        """
        a_plus, a_minus = self.mixture.opposed_weights("Theorem 3")
        p_plus, p_minus = self.mixture.noises
        slope_plus = theta1_slope(p_plus, self.s_plus, self.mixture.activation)
        slope_minus = theta1_slope(p_minus, self.s_minus, self.mixture.activation)
        bend = a_plus * slope_plus - a_minus * slope_minus
        return float(-(self.beta1 + bend * self.xi**2 / self.norm**3) / self.norm**2)

    @property
    def linearised(self) -> LinearisedFlow:
        r"""The flow $\dot v = C(\mu)(\mu - v)$ around this point, with eigenvalues, stability and rates."""
        return LinearisedFlow(mu=self.mu, beta1=self.beta1, beta2=self.beta2)


def critical_points(mixture: Mixture, xi: float) -> tuple[CriticalPoint, ...]:
    r"""All critical points of $v$ with the bias frozen at `xi`, of both orientations, by ascending $\|\mu\|$.

    Hypotheses: two clusters, the negative one at the origin; a homogeneous activation with a kink; $\xi^* \ne 0$ (at
    zero the field depends on the direction of $v$ alone and has no isolated zeros).
    """
    _require_theorem_3(mixture, xi)
    xi = float(xi)
    grid = symmetric_grid(typical_size(mixture.noises[1]) + float(np.linalg.norm(mixture.centers[0])))
    grid = grid[grid * xi > 0]
    found = [
        CriticalPoint(mixture=mixture, xi=xi, norm=float(xi / s_minus), orientation=orientation)
        for orientation in (1, -1)
        for s_minus in all_roots(partial(_imbalance, mixture, orientation), grid)
    ]
    if not found:
        raise AssumptionError(
            f"Theorem 3 needs a critical point μ ≠ 0: there is none at ξ = {xi:g} for the weights {mixture.weights}. "
            "Change the sign of `xi`, or make a₋ larger."
        )
    return tuple(sorted(found, key=lambda point: point.norm))


def _imbalance(mixture: Mixture, orientation: int, s_minus: Real) -> np.ndarray:
    """What remains of v̇ along ±x̄₊ at s₋, over the sum of its parts; NaN in a tail that has underflown."""
    a_plus, a_minus = mixture.opposed_weights("Theorem 3")
    p_plus, p_minus = mixture.noises
    size = float(np.linalg.norm(mixture.centers[0]))
    s_plus = s_minus + orientation * size
    pull = orientation * a_plus * size * theta1(p_plus, s_plus, mixture.activation)
    push = a_plus * theta2(p_plus, s_plus, mixture.activation)
    against = a_minus * theta2(p_minus, s_minus, mixture.activation)
    parts = np.abs(pull) + np.abs(push) + np.abs(against)
    return (pull + push - against) / np.where(parts > TAIL, parts, np.nan)


def _require_theorem_3(mixture: Mixture, xi: float) -> None:
    """Say which hypothesis fails, if one does."""
    a_plus, _ = mixture.opposed_weights("Theorem 3")
    x_minus = mixture.centers[1]
    if x_minus.any():
        raise AssumptionError(
            f"Theorem 3 needs the negative cluster at the origin, got ‖x̄₋‖ = {np.linalg.norm(x_minus):.6g}. "
            "Shift the data, and ξ by v·x̄₋ with it."
        )
    if mixture.kink == 0:
        raise AssumptionError(
            f"Theorem 3 needs an activation with a kink, c₊ ≠ c₋; {mixture.activation.name!r} is linear and its field "
            "is constant. Use Theorem 2 for linear activations."
        )
    if a_plus == 0:
        raise AssumptionError("Theorem 3 needs a₊ ≠ 0: without the positive cluster no direction is singled out.")
    if finite("xi", xi) == 0:
        raise AssumptionError(
            "Theorem 3 needs ξ* ≠ 0: at ξ = 0 the field depends on the direction of v alone, and its zeros are rays. "
            "Use `critical_rays`, or another `xi`."
        )
