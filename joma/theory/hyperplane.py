r"""What a half-space cuts out of an isotropic distribution: $\theta_1$, $\theta_2$, $F$ and $G$ (Lemmas 1, 3, 5).

For a homogeneous activation all of them are functions of the *normalised* distance $s = r/\|v\|$,
$r = v^\top\bar x + \xi$. The paper evaluates them at $r$ and divides by powers of $\|v\|$, which is right at
$\|v\| = 1$ only. For any other activation the gate $\psi = \phi'$ sees $\|v\|$ and $r$ separately: the functions named
`gate_...` take both. Lemma 3 survives there as $\partial_r F = \Theta_1$ with $F = E\,\phi(\|v\|y + r)$;
$F = \|v\|\Theta_2 + r\Theta_1$ does not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.optimize import elementwise

from joma.errors import AssumptionError, broadcast, finite, positive, shaped, within
from joma.theory.activations import Activation, relu
from joma.theory.isotropic import Isotropic
from joma.theory.radial import Function, evaluate
from joma.types import Real, Tabular

Gate = Activation | Function
r"""An activation, standing for its derivative $\psi = \phi'$, or any function $\psi$ of an array."""

Kinks = tuple[float, ...]
r"""Arguments at which a function given for $\psi$ bends or jumps."""

FINEST_STEP, COARSEST_STEP = -12, 3
r"""Powers of two by which panels grow away from a kink of $\psi$, in units of its argument; on to 8|r| for large r."""
CHUNK = 1 << 20  # function values held at once
ORTHONORMAL = 1e-10  # largest entry of RᵀR − I that counts as rounding
MOST_STEPS = 2000  # doublings and bisections of a root finder: enough to cross the range of floats
MOST_DOUBLINGS = 60  # doublings of the bracket of a level that may not exist: far beyond any gate
LEVELS = 401  # values of y at which lines through zero are compared with G, evenly spaced in their logit ...
FARTHEST_LOGIT = 30.0  # ... up to this on either side


def theta1(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$\theta_1(s) = \int \psi(y+s)\,p(y)\,dy = c_- + (c_+-c_-)\,P(s)$ for a homogeneous activation."""
    c_minus, c_plus = phi.require_homogeneous("θ₁ as a function of s alone")
    return np.asarray(c_minus + (c_plus - c_minus) * p.cdf(s))


def theta2(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$\theta_2(s) = \int y\,\psi(y+s)\,p(y)\,dy = (c_+-c_-)\,m(s)$ for a homogeneous activation."""
    c_minus, c_plus = phi.require_homogeneous("θ₂ as a function of s alone")
    return np.asarray((c_plus - c_minus) * p.upper_moment(s))


def theta1_slope(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$\theta_1'(s) = (c_+-c_-)\,p(s)$ (Lemma 5, which prints $c_-+c_+$)."""
    c_minus, c_plus = phi.require_homogeneous("The derivative of θ₁")
    return np.asarray((c_plus - c_minus) * p.density(s))


def theta2_slope(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$\theta_2'(s) = -(c_+-c_-)\,s\,p(s)$ (Lemma 5, which prints $c_-+c_+$)."""
    return np.asarray(-np.asarray(s) * theta1_slope(p, s, phi))


def mean_activation(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$F(s) = \theta_2(s) + s\,\theta_1(s) = E\,\phi(y+s)$, with $F' = \theta_1$ (Lemma 3).

    It increases and reaches infinity when $c_- \ge 0 < c_+$; $F(-\infty) = 0$ when also $c_- = 0$.
    """
    s = np.asarray(s, dtype=np.float64)
    slope = theta1(p, s, phi)
    # At infinity F is infinite or, where the slope is zero, zero.
    return np.asarray(theta2(p, s, phi) + np.multiply(s, slope, out=np.zeros_like(s), where=slope != 0))


def gate_mass(p: Isotropic, r: Real, *, norm: Real = 1.0, psi: Gate = relu, kinks: Kinks = (0.0,)) -> np.ndarray:
    r"""$\Theta_1 = \int \psi(\|v\|y + r)\,p(y)\,dy$, the mean of the gate; $\theta_1(r/\|v\|)$ for homogeneous $\phi$.

    `norm` is $\|v\|$ (within the subspace of the distribution), `kinks` are the arguments at which a function given
    for `psi` bends or jumps. `r` and `norm` are broadcast against each other.

    >>> from joma.theory.activations import sigmoid
    >>> from joma.theory.isotropic import Gaussian
    >>> gate_mass(Gaussian(), np.array([0.0, 1.0]), norm=2.0, psi=sigmoid).round(6)
    array([0.151426, 0.140498])
    """
    return _expectation(p, r, norm, psi, kinks, theta1, moment=0)


def gate_moment(p: Isotropic, r: Real, *, norm: Real = 1.0, psi: Gate = relu, kinks: Kinks = (0.0,)) -> np.ndarray:
    r"""$\Theta_2 = \int y\,\psi(\|v\|y + r)\,p(y)\,dy$; $\theta_2(r/\|v\|)$ when $\phi$ is homogeneous.

    Arguments as for `gate_mass`. Not negative where $\psi$ increases; needs a finite mean.
    """
    return _expectation(p, r, norm, psi, kinks, theta2, moment=1)


def _expectation(
    p: Isotropic, r: Real, norm: Real, psi: Gate, kinks: Kinks, closed: Callable[..., np.ndarray], *, moment: int
) -> np.ndarray:
    r"""$\int y^{moment}\,\psi(\|v\|y+r)\,p(y)\,dy$, closed for two slopes, else by panels graded towards the kinks."""
    r, norm = broadcast(r=finite("r", r), norm=within("norm", norm, 0, np.inf)).values()
    if isinstance(psi, Activation) and psi.slopes is not None:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            # A vector of length zero leaves every point on the side of r.
            return closed(p, np.where(norm > 0, r / norm, np.where(r > 0, np.inf, -np.inf)), psi)
    beyond = p.upper_moment(p.table.end) if moment else p.cdf(-p.table.end)

    def gate(x: np.ndarray) -> np.ndarray:
        values = evaluate(psi.derivative if isinstance(psi, Activation) else psi, x)
        if not np.isfinite(values).all():
            value, place = (array[~np.isfinite(values)].flat[0] for array in (values, x))
            raise ValueError(f"`psi` must be finite everywhere, got {value} at {place:g}. Give it a value there.")
        return values

    def at(r: np.ndarray, norm: np.ndarray) -> np.ndarray:
        total = np.zeros_like(r)
        for side in (1.0, -1.0):
            y, weight = p.table.nodes(_edges(side * r, norm, side * np.asarray(kinks)))
            inside = gate(side * norm[:, None, None] * y + r[:, None, None]) * (side * y) ** moment
            outside = gate(side * norm * p.table.end + r) * side**moment * beyond
            total = total + np.einsum("nek,nek->n", inside, weight) + outside
        return total

    parts = np.array_split(np.arange(r.size), 1 + r.size * p.table.coefficients.size // CHUNK)
    with np.errstate(over="ignore"):  # inside a gate that saturates, such as 1/cosh²
        return np.concatenate([at(r.ravel()[part], norm.ravel()[part]) for part in parts]).reshape(r.shape)


def _edges(r: np.ndarray, norm: np.ndarray, kinks: np.ndarray) -> Float[np.ndarray, "N E"]:
    r"""Values y where $\|v\|y + r$ is at a kink, or a power of two away from one."""
    coarsest = max(COARSEST_STEP, int(np.ceil(np.log2(8 * np.abs(r).max(initial=1)))))
    steps = 2.0 ** np.arange(FINEST_STEP, coarsest + 1)
    arguments = (kinks[:, None] + np.concatenate([-steps, [0.0], steps])).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num((arguments - r[:, None]) / norm[:, None])


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedMean(Tabular):
    """First two moments that a gate lets through."""

    mass: Float[np.ndarray, "*B"]
    r"""$E\,\psi(v^\top x+\xi)$."""
    mean: Float[np.ndarray, "*B M"]
    r"""$E[x\,\psi(v^\top x+\xi)]$."""


def half_space_mean(
    p: Isotropic,
    v: Float[np.ndarray, "*B M"],
    *,
    xi: Real = 0.0,
    center: Float[np.ndarray, " M"],
    basis: Float[np.ndarray, "M n"] | None = None,
    psi: Gate = relu,
    kinks: Kinks = (0.0,),
) -> GatedMean:
    r"""$E[x\,\psi(v^\top x+\xi)]$ and $E\,\psi$ for x isotropic around `center` in the span of `basis` (Lemma 1).

    $E[x\psi] = \Theta_1\bar x + \Theta_2\,RR^\top v/\|R^\top v\|$ and $E\,\psi = \Theta_1$, where the norm that
    $\Theta_1$ and $\Theta_2$ see is $\|R^\top v\|$ and $r = v^\top\bar x + \xi$. The paper prints $\theta_1/\|v\|$ and
    $\theta_2/\|v\|^3$ (Eqn 23). `basis` holds the orthonormal columns R; None is the full space.

    >>> from joma.theory.isotropic import Gaussian
    >>> half_space_mean(Gaussian(dim=2), np.array([3.0, 4.0]), center=np.zeros(2)).mean.round(6)
    array([0.239365, 0.319154])
    """
    v, center = shaped("*B M, M", v=v, center=center)
    R = shaped(f"{center.size} {p.dim}", basis=np.eye(center.size) if basis is None else basis)
    gap = np.abs(R.T @ R - np.eye(p.dim)).max()
    if gap > ORTHONORMAL:
        raise AssumptionError(f"Lemma 1 needs orthonormal columns, got max |RᵀR - I| = {gap:.1e}. Orthogonalise them.")
    inside = v @ R
    norm, r = np.linalg.norm(inside, axis=-1), v @ center + finite("xi", xi)
    mass, moment = (gate(p, r, norm=norm, psi=psi, kinks=kinks) for gate in (gate_mass, gate_moment))
    length = norm[..., None]
    direction = np.divide(inside @ R.T, length, out=np.zeros_like(v), where=length > 0)
    return GatedMean(mass=mass, mean=mass[..., None] * center + moment[..., None] * direction)


def reflect(x: Float[np.ndarray, "*B n"], v: Float[np.ndarray, " n"]) -> Float[np.ndarray, "*B n"]:
    r"""$x'' = 2\frac{v^\top x'}{\|v\|^2}v - x'$ (Eqn 30): same length, same $v^\top x$, the rest reversed."""
    x, v = shaped("*B n, n", x=x, v=v)
    if not v.any():
        raise AssumptionError("Reflection through v needs v ≠ 0, got zeros. Pass the direction of the line.")
    return 2 * (x @ v)[..., None] * v / (v @ v) - x


def theta1_inverse(p: Isotropic, y: Real, phi: Activation = relu) -> np.ndarray:
    r"""$s$ with $\theta_1(s) = y$, for y strictly between $c_-$ and $c_+$ (Eqn 57; for ReLU, the quantile of p).

    >>> from joma.theory.isotropic import UniformBall
    >>> theta1_inverse(UniformBall(), np.array([0.25, 0.5, 0.9])).round(12)
    array([-0.5,  0. ,  0.8])
    """
    c_minus, c_plus = phi.require_homogeneous("The inverse of θ₁")
    if c_minus == c_plus:
        raise AssumptionError(f"The inverse of θ₁ needs a kink, got c₋ = c₊ = {c_plus:g}. Use slopes that differ.")
    share = (finite("y", y) - c_minus) / (c_plus - c_minus)
    if ((share <= 0) | (share >= 1)).any():
        ends = f"{min(c_minus, c_plus):g} and {max(c_minus, c_plus):g}"
        raise ValueError(
            f"`y` must lie strictly between {ends}, got {np.min(y):g} to {np.max(y):g}. Leave the ends out."
        )

    def excess(distance: np.ndarray, share: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            above = np.log(p.cdf(-distance) / share)
        return np.asarray(np.maximum(above, -1))  # flat where the support has ended

    # The distance beyond which the smaller of the two shares lies on one side.
    side, share = np.where(share < 1 / 2, -1, 1), np.minimum(share, 1 - share)
    half = p.cdf(0.0)  # one half, but for rounding
    sought = np.where(share < half, share, half / 2)
    bracket = elementwise.bracket_root(excess, 0.0, 1.0, xmin=0.0, args=(sought,), factor=2, maxiter=MOST_STEPS)
    found = elementwise.find_root(excess, bracket.bracket, args=(sought,), maxiter=MOST_STEPS)
    return np.asarray(side * np.where(share < half, found.x, 0.0))


def mean_at_level(p: Isotropic, y: Real, phi: Activation = relu) -> np.ndarray:
    r"""$G(y) = F(\theta_1^{-1}(y))$ (Eqn 57, figure 9); a critical pair needs $G(y_+)/y_+ = G(y_-)/y_-$.

    >>> from joma.theory.isotropic import Gaussian
    >>> mean_at_level(Gaussian(), np.array([0.1, 0.5, 0.9])).round(5)
    array([0.04734, 0.39894, 1.32889])
    """
    return mean_activation(p, theta1_inverse(p, y, phi), phi)


def mean_at_level_slope(p: Isotropic, y: Real, phi: Activation = relu) -> np.ndarray:
    r"""$G'(y) = \theta_1(s)/\theta_1'(s) = y / ((c_+-c_-)\,p(s))$ at $s = \theta_1^{-1}(y)$; $\theta_1/p$ for ReLU."""
    return np.asarray(np.asarray(y) / theta1_slope(p, theta1_inverse(p, y, phi), phi))


def mean_ratio(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$h(s) = F(s)/\theta_1(s) = G(y)/y$: the slope of the line from zero to the point of G at $y = \theta_1(s)$.

    NaN where $\theta_1 = 0$: to the left of a bounded support there is no curve.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(mean_activation(p, s, phi) / theta1(p, s, phi))


def mean_ratio_slope(p: Isotropic, s: Real, phi: Activation = relu) -> np.ndarray:
    r"""$h'(s) = 1 - F\,\theta_1'/\theta_1^2$: positive for all s exactly when F is strictly log-concave.

    Then no line through zero meets G twice, and two clusters with this marginal have no critical point. A strictly
    log-concave p (Gaussian, ball) makes F so for $0 \le c_- < c_+$; the Laplace law has $h' = 0$ on $s \le 0$; under
    ReLU and Student's t with $\nu$ degrees of freedom $h' \to -1/(\nu-1)$ as $s \to -\infty$. NaN where $\theta_1 = 0$.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(1 - mean_ratio(p, s, phi) * theta1_slope(p, s, phi) / theta1(p, s, phi))


def central_product(p: Isotropic) -> float:
    r"""$p(0)\,\theta_2(0)$ of Eqn 58, for ReLU; equal to $(1 - h'(0))/4$.

    Above 1/4, two points of G with $y \ge 1/2$ lie on one line through zero; at 1/4 they need not, and a log-concave
    p never gets above it (Laplace: 1/4).

    >>> from joma.theory.isotropic import Gaussian
    >>> round(central_product(Gaussian()), 6)
    0.159155
    """
    return float(p.density(0.0) * p.upper_moment(0.0))


def line_intersections(p: Isotropic, k: float) -> Float[np.ndarray, " C"]:
    r"""Every y in (0, 1) where the line of slope k through zero meets the G of ReLU, ascending (figure 9).

    Found as sign changes of $h(s) - k$ between neighbouring levels of y, then by root finding.

    >>> from joma.theory.isotropic import Gaussian, StudentT
    >>> line_intersections(Gaussian(), 1.2).round(4), line_intersections(StudentT(), 1.2).round(4)
    (array([0.804]), array([0.1306, 0.628 ]))
    """
    s = theta1_inverse(p, special.expit(np.linspace(-FARTHEST_LOGIT, FARTHEST_LOGIT, LEVELS)))
    above = mean_ratio(p, s) > float(finite("k", k))
    crossing = np.flatnonzero(above[1:] != above[:-1])
    found = elementwise.find_root(lambda s: mean_ratio(p, s) - k, (s[crossing], s[crossing + 1]))
    return theta1(p, np.atleast_1d(found.x))


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
    return _slope_by_r(p, r, norm, phi, theta1_slope, gate_mass)


def gate_moment_slope(p: Isotropic, r: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$\partial_r\Theta_2 = E\,y\,\phi''(\|v\|y + r)$; $-(c_+-c_-)\,s\,p(s)/\|v\|$, homogeneous $\phi$ (Lemma 5)."""
    return _slope_by_r(p, r, norm, phi, theta2_slope, gate_moment)


def _slope_by_r(
    p: Isotropic, r: Real, norm: Real, phi: Activation, closed: Callable[..., Real], mean: Callable[..., np.ndarray]
) -> np.ndarray:
    r"""The closed form over $\|v\|$ for a homogeneous $\phi$, else the mean with the gate $\phi''$."""
    if phi.slopes is not None:
        norm = positive("norm", norm)
        return np.asarray(closed(p, finite("r", r) / norm, phi) / norm)
    if phi.curvature is None:
        raise AssumptionError(f"The slope of a mean gate needs φ'', which {phi.name!r} lacks. Pass its `curvature`.")
    return mean(p, r, norm=norm, psi=phi.curvature, kinks=())


def gate_level(p: Isotropic, y: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$\Theta_1^{-1}(y)$, the r at which the mean gate is y; for a convex $\phi$, as $\Theta_1$ then rises."""
    y, norm = broadcast(y=finite("y", y), norm=positive("norm", norm)).values()

    def excess(r: np.ndarray, y: np.ndarray, norm: np.ndarray) -> np.ndarray:
        return np.asarray(gate_mass(p, r, norm=norm, psi=phi) - y)

    reach = norm * np.ones_like(y)
    bracket = elementwise.bracket_root(excess, -reach, reach, args=(y, norm), maxiter=MOST_DOUBLINGS)
    if not np.all(bracket.success):
        wrong = y[~np.asarray(bracket.success)].flat[0]
        raise AssumptionError(
            f"G needs a mean gate that passes every level, and {phi.name!r} was not found at {wrong:g}. Use a convex "
            "activation such as `softplus` or `relu`, and levels between its two limits."
        )
    return np.asarray(elementwise.find_root(excess, bracket.bracket, args=(y, norm)).x)


def gate_mean_at_level(p: Isotropic, y: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$G(y) = F(\Theta_1^{-1}(y))$, figure 9's curve for any convex $\phi$; for ReLU $\|v\|$ times `mean_at_level`."""
    return gate_mean(p, gate_level(p, y, norm=norm, phi=phi), norm=norm, phi=phi)


def gate_mean_at_level_slope(p: Isotropic, y: Real, *, norm: Real = 1.0, phi: Activation) -> np.ndarray:
    r"""$G'(y) = y \,/\, (\partial\Theta_1/\partial r)$ at $r = \Theta_1^{-1}(y)$."""
    return np.asarray(finite("y", y) / gate_mass_slope(p, gate_level(p, y, norm=norm, phi=phi), norm=norm, phi=phi))
