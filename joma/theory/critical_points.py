r"""Critical points of a node: with the bias trained (Lemma 4, Eqns 54-59) and frozen (Theorem 3).

**Bias trained, two clusters.** At a critical point of the joint flow both $\sum_j a_j\theta_1(s_j) = 0$ and
$\sum_j a_jF(s_j) = 0$, and $v$ is parallel to $\bar x_+ - \bar x_-$. So $s_+ - s_- = \pm D$ with
$D = \|\bar x_+ - \bar x_-\|$, and

$$\frac{F}{\theta_1}(s_-\pm D) = \frac{F}{\theta_1}(s_-), \qquad
  \frac{a_-}{a_+} = \frac{\theta_1(s_+)}{\theta_1(s_-)}:$$

the first equation fixes $s_-$, the second then *forces* the ratio of the weights. $\|v\|$ is free, a ray. Nodes that
are dead for both clusters ($\theta_1 = F = 0$, possible for bounded support) do not move either; they are left out.

**Bias frozen at $\xi^*$,** negative cluster at the origin. There are isolated critical points
$\mu = s_\mu\|\mu\|\,\bar x_+/\|\bar x_+\|$. With $s_- = \xi^*/\|\mu\|$ and $s_+ = s_- + s_\mu\|\bar x_+\|$,

$$s_\mu a_+\theta_1(s_+)\|\bar x_+\| + a_+\theta_2(s_+) = a_-\theta_2(s_-), \qquad
  \dot v = C(\mu)(\mu - v) + O(\|v-\mu\|^2)$$

(Eqns 5, 66-74). The remainder is a vector of second order; the paper's scalar factor $1 + \lambda$ does not describe
it. A trained bias has no reason to stop at $\xi^*$, so the theorem needs it frozen.

**Bias frozen at $\xi$, any number of clusters.** The weights rest where

$$\sum_j a_j\theta_1(s_j)\,\bar x_j + \Big(\sum_j a_j\theta_2(s_j)\Big)\frac{v}{\|v\|} = 0,$$

so $v$ lies in the span of the centers unless both sums vanish. Around such a point $\dot v = -C(v - \mu)$ up to second
order, with $C$ minus the derivative of the field by $v$ (`Mixture.jacobian`). With more than two clusters it is a
general symmetric matrix, so the directions across $\mu$ have rates of their own.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy import optimize
from scipy.optimize import elementwise

from joma.errors import AssumptionError, finite, positive, shaped, within
from joma.theory.activations import Activation, relu
from joma.theory.hyperplane import mean_activation, mean_ratio, mean_ratio_slope, theta1, theta1_slope, theta2
from joma.theory.isotropic import Isotropic
from joma.theory.mixture import Mixture, Noise, spanned, spread_directions
from joma.theory.radial import Function
from joma.types import Real, Tabular, as_columns, keep

REACH = 1e4  # how far out solutions are looked for, in units of E|y| + D
NUM_POINTS = 2001  # points of the grid that brackets them; two solutions between neighbours would be missed
TAIL = 1e-280  # below this the functions of a tail lose their digits to underflow, and the point is not used
ROUNDING = 1e-13  # relative residual below which its sign is rounding
SPREAD = 15.0  # half-width of the grid before sinh: the innermost step is about 1e-8 of the reach
FLAT = 1e-8  # mean slope of F/θ₁ below which it counts as constant: above the rounding of a radial profile ...
FLAT_POINTS = 10  # ... if so at this many neighbours on the grid: around a pair it is at one or two
RATIO_TOLERANCE = 1e-9  # relative difference up to which a mixture has the forced ratio of weights
NUM_STARTS = 128  # directions of (v, ξ) from which rest points are looked for
RESIDUAL = 1e-10  # largest entry of v̇ at a rest point, over the sizes of its parts
SAME = 1e-6  # relative distance below which two rest points are one
FARTHEST = 1e4  # norm of μ over |ξ| beyond which a root is a direction in which the field only fades


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPair(Tabular):
    r"""Distances $(s_-, s_+)$ of a joint critical point, and the ratio of weights without which there is none."""

    s_minus: float
    r"""$s_-$, from the negative center to the hyperplane, in units of $\|v\|$."""
    s_plus: float
    r"""$s_+ = s_- \pm D$."""
    ratio: float
    r"""The forced $a_-/a_+ = \theta_1(s_+)/\theta_1(s_-)$."""

    @property
    def orientation(self) -> int:
        r"""$s_\mu$: +1 where $v$ points from the negative to the positive center, −1 where against it."""
        return 1 if self.s_plus > self.s_minus else -1


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalRay:
    r"""Joint critical points $\rho\,(n, \xi/\|v\|)$, $\rho = \|v\| > 0$, of a mixture of two clusters."""

    mixture: Mixture
    """Two clusters whose weights have the forced ratio; the first is the positive one."""
    pair: CriticalPair

    @property
    def direction(self) -> Float[np.ndarray, " n"]:
        r"""$n = v/\|v\|$, along $\pm(\bar x_+ - \bar x_-)$."""
        x_plus, x_minus = self.mixture.centers
        return self.pair.orientation * (x_plus - x_minus) / np.linalg.norm(x_plus - x_minus)

    @property
    def offset(self) -> float:
        r"""$\xi/\|v\| = s_- - n^\top\bar x_-$."""
        return float(self.pair.s_minus - self.direction @ self.mixture.centers[1])

    def point(self, norm: float) -> tuple[Float[np.ndarray, " n"], float]:
        r"""$(v, \xi)$ on the ray at $\|v\|$ = `norm`."""
        norm = float(positive("norm", norm))
        return norm * self.direction, norm * self.offset

    def beta1(self, norm: float) -> float:
        r"""$\beta_1 = s_\mu\,a_+\,D\,\theta_1(s_+)/\|\mu\|$: the rate of decay across the ray."""
        x_plus, x_minus = self.mixture.centers
        pull = self.mixture.weights[0] * theta1(self.mixture.noises[0], self.pair.s_plus, self.mixture.activation)
        distance = np.linalg.norm(x_plus - x_minus)
        return float(self.pair.orientation * pull * distance / positive("norm", norm))

    def eigenvalues(self, norm: float) -> Float[np.ndarray, " n1"]:
        r"""Eigenvalues of the joint flow's Jacobian at $\|\mu\|$ = `norm`, ascending.

        For a negative center at the origin they are $0$ along the ray, $-\beta_1$ ($n-1$ times) and
        $(c_+ - c_-)\,(a_+p(s_+) - a_-p(s_-))\,(1+s_-^2)/\|\mu\|$. A part of $\bar x_-$ off the line of $v$ couples the
        last with one of the others.
        """
        values = np.linalg.eigvalsh(self.mixture.jacobian(*self.point(norm)))
        return np.where(np.abs(values) == np.abs(values).min(), 0.0, values)  # along the ray but for rounding

    def attracts(self) -> bool:
        """Whether every eigenvalue but the one along the ray is negative, which `norm` does not change."""
        below_zero = self.eigenvalues(1.0) < 0
        return bool(below_zero.sum() == self.mixture.dim)


def lowest_slope(noise: Isotropic, activation: Activation = relu) -> float:
    r"""Smallest slope of $F/\theta_1$: where it is negative, some distance has a pair, and so a ray.

    Positive everywhere, $F$ is strictly log-concave and no distance has one; so for every strictly log-concave $p$ with
    $0 \le c_- < c_+$, since $\theta_1$ and $F$ inherit log-concavity from $p$. Zero but for rounding: Laplace's law.

    >>> from joma.theory.isotropic import Gaussian, StudentT
    >>> lowest_slope(Gaussian()) > 0, round(lowest_slope(StudentT(dof=3.0)), 4)
    (True, -0.5)
    """
    c_minus, c_plus = activation.require_homogeneous("A monotone F/θ₁")
    if min(c_minus, c_plus) < 0:
        raise AssumptionError(
            f"A monotone F/θ₁ needs slopes that are not negative, or it has a pole: got c₋ = {c_minus:g}, "
            f"c₊ = {c_plus:g}. Ask `critical_pairs` at your distance."
        )
    s = search_grid(noise)
    usable = theta1(noise, s, activation) > np.sqrt(TAIL)  # the slope squares it
    return float(mean_ratio_slope(noise, s[usable], activation).min())


def critical_pairs(noise: Noise, distance: float, activation: Activation = relu) -> tuple[CriticalPair, ...]:
    r"""All $(s_-, s_+ = s_- \pm D)$ of joint critical points for two centers at `distance` D, and their forced ratios.

    Eqn 56 with the normalisation and the missing condition: $(F, \theta_1)(s_+)$ and $(F, \theta_1)(s_-)$ lie on one
    line through the origin. With one `noise` for both clusters the two signs give the same pairs, exchanged, with the
    inverse ratio; `noise` may also be (of the positive, of the negative cluster). Laws with a continuum of pairs, such
    as the Laplace law, are refused.

    >>> from joma.theory.isotropic import Gaussian, StudentT
    >>> [(round(p.s_minus, 4), round(p.s_plus, 4), round(p.ratio, 4)) for p in critical_pairs(StudentT(dof=3.0), 2.0)]
    [(-1.5319, 0.4681, 5.955), (0.4681, -1.5319, 0.1679)]
    >>> critical_pairs(Gaussian(), 2.0)
    ()
    """
    plus, minus = noise if isinstance(noise, tuple) else (noise, noise)
    distance = float(positive("distance", distance))
    grid = search_grid(minus, distance)
    return tuple(pair for step in (distance, -distance) for pair in _pairs_at(plus, minus, step, grid, activation))


def forced_ray(mixture: Mixture, pair: CriticalPair) -> CriticalRay:
    r"""Return the ray of `pair`, after setting the negative cluster's weight to the only value that allows it.

    >>> from joma.theory.isotropic import StudentT
    >>> from joma.theory.mixture import two_clusters
    >>> mixture = two_clusters(np.array([2.0, 0.0]), noise=StudentT(dim=2, dof=2.0))
    >>> ray = forced_ray(mixture, critical_pairs(mixture.noise, 2.0)[0])
    >>> ray.mixture.weights.round(6), round(ray.offset, 6)
    (array([ 1.      , -3.732051]), -1.0)
    """
    a_plus, _ = mixture.opposed_weights("Eqn 56")
    return CriticalRay(mixture=replace(mixture, weights=np.array([a_plus, -pair.ratio * a_plus])), pair=pair)


def critical_rays(mixture: Mixture, *, tolerance: float = RATIO_TOLERANCE) -> tuple[CriticalRay, ...]:
    """All rays of joint critical points of a mixture of two clusters; empty unless its ratio is a forced one.

    A generic mixture has none: of all ratios of weights, one value for each pair does.
    """
    a_plus, a_minus = mixture.opposed_weights("Eqn 56")
    tolerance = float(within("tolerance", tolerance, 0, 1))
    x_plus, x_minus = mixture.centers
    pairs = critical_pairs(mixture.noise, float(np.linalg.norm(x_plus - x_minus)), mixture.activation)
    forced = [pair for pair in pairs if abs(a_minus - pair.ratio * a_plus) <= tolerance * abs(a_minus)]
    return tuple(CriticalRay(mixture=mixture, pair=pair) for pair in forced)


def straddling_distance(noise: Isotropic, activation: Activation = relu) -> float:
    r"""Smallest $D_0 > 0$ with $(F/\theta_1)(-D_0) = (F/\theta_1)(0)$: beyond it $s_+ > 0$, the remark of Section A.4.

    For one valley of $F/\theta_1$, at $s < 0$: pairs closer than $D_0$ have both $s_\pm < 0$.

    >>> from joma.theory.isotropic import StudentT
    >>> round(straddling_distance(StudentT(dof=3.0)), 6)
    0.926872
    """
    grid = search_grid(noise)
    zero = np.zeros(1)
    roots = all_roots(lambda s: _misalignment(noise, noise, s, zero, activation), grid[grid < -grid.max() / REACH**2])
    if roots.size == 0:
        raise AssumptionError("F/θ₁ does not come back to its value at 0. Use a power tail, as of StudentT(dof=3).")
    return float(-roots.max())


def search_grid(noise: Isotropic, distance: float = 0.0) -> Float[np.ndarray, " num"]:
    """Points on either side of zero, as fine near zero as far out (evenly spaced before sinh), for a `distance` D."""
    unit = 2 * float(noise.upper_moment(0.0)) + distance  # E|y| + D
    return REACH * unit * np.sinh(np.linspace(-SPREAD, SPREAD, NUM_POINTS)) / np.sinh(SPREAD)


def all_roots(residual: Function, grid: Float[np.ndarray, " num"]) -> Float[np.ndarray, " roots"]:
    """All zeros that the ascending `grid` separates, of a residual scaled to [−1, 1] and NaN where it has no digits.

    >>> all_roots(np.sin, np.linspace(1.0, 8.0, 50)).round(6)
    array([3.141593, 6.283185])
    """
    values = residual(finite("grid", grid))
    usable = np.flatnonzero(np.abs(values) > ROUNDING)  # not NaN either
    changes = np.flatnonzero(np.sign(values[usable[:-1]]) != np.sign(values[usable[1:]]))
    left, right = usable[changes], usable[changes + 1]
    unknown = np.cumsum(np.isnan(values))
    known = unknown[left] == unknown[right]  # a sign that changes across a gap without digits is no root
    if not known.any():
        return np.empty(0)
    found = elementwise.find_root(residual, (grid[left[known]], grid[right[known]]))
    return np.asarray(found.x[found.success])  # the others jump over such a gap between two points of the grid


def _pairs_at(plus: Isotropic, minus: Isotropic, step: float, grid: np.ndarray, phi: Activation) -> list[CriticalPair]:
    """Pairs with s₊ = s₋ + step, in ascending order; a continuum of them is refused."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = (mean_ratio(plus, grid + step, phi) - mean_ratio(minus, grid, phi)) / step
    is_flat = np.abs(rise) < FLAT  # false for NaN
    long_enough = np.convolve(is_flat, np.ones(FLAT_POINTS), mode="valid") == FLAT_POINTS
    if long_enough.any():
        first = int(long_enough.argmax())
        raise AssumptionError(
            f"Critical pairs need F/θ₁ to take a value twice at isolated points: at a distance of {abs(step):g} it is "
            f"the same for all s from {grid[first]:.4g} to {grid[first + FLAT_POINTS - 1]:.4g}, as for a Laplace law. "
            "Every pair there is critical, at the ratio θ₁(s₊)/θ₁(s₋)."
        )
    s_minus = all_roots(lambda s: _misalignment(plus, minus, s, s + step, phi), grid)
    ratio = theta1(plus, s_minus + step, phi) / theta1(minus, s_minus, phi)
    pairs = zip(s_minus.tolist(), (s_minus + step).tolist(), ratio.tolist(), strict=True)
    return [CriticalPair(s_minus=one, s_plus=other, ratio=forced) for one, other, forced in pairs]


def _misalignment(plus: Isotropic, minus: Isotropic, s_minus: Real, s_plus: Real, activation: Activation) -> np.ndarray:
    """Sine of the angle between (F, θ₁)(s₋) and (F, θ₁)(s₊); NaN in a tail that has underflown."""
    y_minus, height_minus = theta1(minus, s_minus, activation), mean_activation(minus, s_minus, activation)
    y_plus, height_plus = theta1(plus, s_plus, activation), mean_activation(plus, s_plus, activation)
    size_minus, size_plus = np.hypot(y_minus, height_minus), np.hypot(y_plus, height_plus)
    usable = (size_minus > TAIL) & (size_plus > TAIL)
    size_minus, size_plus = np.where(usable, size_minus, np.nan), np.where(usable, size_plus, np.nan)
    return (height_plus / size_plus) * (y_minus / size_minus) - (height_minus / size_minus) * (y_plus / size_plus)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearisedFlow:
    r"""$\dot v = C(\mu)(\mu - v)$ with $C(\mu) = \beta_1I + \beta_2\mu\mu^\top$: Eqn 5 without its remainder."""

    mu: Float[np.ndarray, " n"]
    r"""Critical point $\mu \ne 0$."""
    beta1: float
    beta2: float

    def __post_init__(self) -> None:
        betas = {name: float(finite(name, getattr(self, name))) for name in ("beta1", "beta2")}
        keep(self, mu=shaped("n", mu=self.mu), **betas)
        if not self.mu.any():
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
        """Eigenvalues of C(μ), the one along μ first; where all are positive, distances from μ decay at these rates."""
        return np.array([self.along] + [self.across] * (self.mu.size - 1))

    @property
    def stable(self) -> bool:
        """Whether C(μ) is positive definite, so that the flow returns to μ from nearby."""
        return bool((self.eigenvalues > 0).all())

    def field(self, v: Float[np.ndarray, "*T n"]) -> Float[np.ndarray, "*T n"]:
        r"""$\dot v = C(\mu)(\mu - v)$."""
        return (self.mu - shaped(f"* {self.mu.size}", v=v)) @ self.matrix

    def solution(self, v0: Float[np.ndarray, " n"], t: Real) -> Float[np.ndarray, "... n"]:
        r"""$v(t) = \mu + e^{-C(\mu)t}(v_0 - \mu)$, the two eigenspaces apart."""
        t, start = finite("t", t), shaped(f"{self.mu.size}", v0=v0) - self.mu
        normal = self.mu / np.linalg.norm(self.mu)
        along = (start @ normal) * normal
        decay_along, decay_across = np.exp(-self.along * t)[..., None], np.exp(-self.across * t)[..., None]
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
        a_plus, a_minus = self.mixture.opposed_weights("A critical point")
        (p_plus, p_minus), phi = self.mixture.noises, self.mixture.activation
        bend = a_plus * theta1_slope(p_plus, self.s_plus, phi) - a_minus * theta1_slope(p_minus, self.s_minus, phi)
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
    a_plus, a_minus = mixture.opposed_weights("Theorem 3")
    xi, x_minus = float(finite("xi", xi)), mixture.centers[1]
    needed = {
        f"the negative cluster at the origin, got {x_minus}. Shift the data, and ξ by v·x̄₋.": not x_minus.any(),
        f"an activation with a kink, got {mixture.activation.name!r}. Theorem 2 has linear ones.": mixture.kink != 0,
        "a₊ ≠ 0: without it no direction is singled out. Give it weight.": a_plus != 0,
        "ξ* ≠ 0: at ξ = 0 the field's zeros are rays. Use `critical_rays`, or another `xi`.": xi != 0,
    }
    for need, is_met in needed.items():
        if not is_met:
            raise AssumptionError(f"Theorem 3 needs {need}")
    p_plus, p_minus = mixture.noises
    size = float(np.linalg.norm(mixture.centers[0]))

    def imbalance(s_minus: Real, orientation: int) -> np.ndarray:
        """What remains of v̇ along ±x̄₊ at s₋, over the sum of its parts; NaN in a tail that has underflown."""
        s_plus = s_minus + orientation * size
        pull = orientation * a_plus * size * theta1(p_plus, s_plus, mixture.activation)
        push = a_plus * theta2(p_plus, s_plus, mixture.activation)
        against = a_minus * theta2(p_minus, s_minus, mixture.activation)
        parts = np.abs(pull) + np.abs(push) + np.abs(against)
        return (pull + push - against) / np.where(parts > TAIL, parts, np.nan)

    grid = search_grid(p_minus, size)
    grid = grid[grid * xi > 0]
    found = [
        CriticalPoint(mixture=mixture, xi=xi, norm=float(xi / s_minus), orientation=orientation)
        for orientation in (1, -1)
        for s_minus in all_roots(partial(imbalance, orientation=orientation), grid)
    ]
    if not found:
        raise AssumptionError(f"Theorem 3 needs a critical point, got none at ξ = {xi:g}. Flip its sign, or raise a₋.")
    return tuple(sorted(found, key=lambda point: point.norm))


@dataclass(frozen=True, kw_only=True, slots=True)
class RestPoint:
    """A point at which the weights of a node rest while its bias is held."""

    mixture: Mixture
    xi: float
    """The bias."""
    mu: Float[np.ndarray, " n"]
    """The weights."""

    @property
    def matrix(self) -> Float[np.ndarray, "n n"]:
        r"""$C$ of the linear flow $\dot v = C(\mu - v)$ around the point."""
        return -self.mixture.jacobian(self.mu, self.xi)[:-1, :-1]

    @property
    def eigenvalues(self) -> Float[np.ndarray, " n"]:
        """Rates at which offsets shrink, ascending; a negative one grows."""
        return np.linalg.eigvalsh(self.matrix)

    @property
    def stable(self) -> bool:
        """Whether every offset shrinks."""
        return bool((self.eigenvalues > 0).all())

    def columns(self) -> dict[str, np.ndarray]:
        """Return one row: the weights, the bias and the rates."""
        return as_columns({"mu": self.mu[None], "xi": self.xi, "rate": self.eigenvalues[None]})


def rest_points(mixture: Mixture, xi: float) -> tuple[RestPoint, ...]:
    r"""Critical points of $v$ in the span of the centers with the bias frozen at `xi`, by ascending $\|\mu\|$.

    Newton's method from directions spread over the sphere of $(v, \xi)$. For two clusters, one at the origin, these are
    the points of `critical_points`, which brackets every root; with more clusters a root that no start reaches is
    missed. Hypotheses: a homogeneous activation with a kink, and $\xi \ne 0$.

    Args:
        mixture: Any number of clusters.
        xi: Where the bias is held.

    >>> from joma.theory.isotropic import Gaussian
    >>> centers = np.array([[1.0, 0.2], [0.3, 1.1], [0.0, 0.0]])
    >>> mixture = Mixture(centers=centers, weights=np.array([1.0, 0.8, -6.0]), noise=Gaussian(dim=2))
    >>> [point] = rest_points(mixture, xi=-1.0)
    >>> point.mu.round(4), point.stable
    (array([0.7693, 0.7013]), True)
    """
    xi = float(finite("xi", xi))
    if xi == 0 or mixture.kink == 0:
        raise AssumptionError(
            f"Isolated critical points need ξ ≠ 0 and an activation with a kink, got ξ = {xi:g} and "
            f"{mixture.activation.name!r}. At ξ = 0 the field depends on the direction of v alone."
        )
    basis = spanned(mixture.centers)
    starts = spread_directions(basis.shape[1] + 1)
    starts = starts[starts[:, -1] * xi > 0][:NUM_STARTS]
    sizes = np.linalg.norm(mixture.centers, axis=1)

    def imbalance(x: np.ndarray) -> np.ndarray:
        """What remains of v̇, over the sum of its parts: it does not fade where the node is hardly active."""
        pull, push = mixture.parts(basis @ x, xi)
        parts = np.abs(pull) @ sizes + np.abs(push).sum()
        if parts < TAIL:
            return np.ones_like(x)
        return (pull @ mixture.centers @ basis + push.sum() * x / np.linalg.norm(x)) / parts

    found: list[np.ndarray] = []
    for start in abs(xi) * starts[:, :-1] / np.abs(starts[:, -1:]):
        root = optimize.root(imbalance, start, tol=1e-13)
        size = float(np.linalg.norm(root.x))
        is_root = 0 < size < FARTHEST * abs(xi) and np.abs(imbalance(root.x)).max() < RESIDUAL
        if is_root and all(np.linalg.norm(root.x - each) > SAME * size for each in found):
            found.append(root.x)
    points = [RestPoint(mixture=mixture, xi=xi, mu=basis @ x) for x in found]
    return tuple(sorted(points, key=lambda point: float(np.linalg.norm(point.mu))))
