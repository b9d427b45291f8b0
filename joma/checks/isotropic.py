"""Appendix A.3.1, Lemmas 1, 3 and 5: means over a half-space of an isotropic distribution."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special, stats
from scipy.differentiate import derivative
from scipy.integrate import quad

from joma import theory
from joma.checks.check import as_printed, check, over, rejects, scaled
from joma.checks.quadrature import QUADRATURE_TOLERANCE, difference, gate_means, marginal_of, noises, panels, two_slopes
from joma.checks.reference import CLOSED_FORM, DIFFERENTIATION, LINEAR_ALGEBRA, MONTE_CARLO, QUADRATURE
from joma.theory import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall, half_space_mean, homogeneous, relu

NUM_SAMPLES = 10_000
# The fourth-order difference errs by 1e-12 times a fifth derivative, and by the rounding of quadratures over 1e-3.
DIFFERENCE_TOLERANCE = 1e-8
FAR_LEFT, NEAR_ZERO = -1e4, 1e-3
"""Where F is looked at for its limit, and what counts as zero there: under t₃ it falls like the inverse square."""
SLOPES = ((0.0, 1.0), (0.1, 1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (-0.5, 2.0), (-1.0, -1.0))
"""(c₋, c₊): ReLU, leaky, linear, the absolute value, −ReLU(−x), another and −x."""


def largest_z(samples: np.ndarray, claimed: Any) -> np.ndarray:
    """Distances of the means over samples from what is claimed for them, in standard errors."""
    return (samples.mean(axis=0) - claimed) / (samples.std(axis=0) / np.sqrt(len(samples)))


def half_spaces(rng: np.random.Generator) -> Iterator[tuple[Isotropic, dict[str, Any]]]:
    """Distributions in random subspaces of 2, 5 and 20 dimensions, each with ‖v‖ from 0.5 to 2.5."""
    for n in (2, 5, 20):
        for p in noises(rng, n):
            center, v = rng.normal(size=(2, n + 2)) / np.sqrt(n)
            basis = np.linalg.qr(rng.normal(size=(n + 2, n)))[0]
            v *= rng.uniform(0.5, 2.5) / np.linalg.norm(v)
            yield p, {"v": v, "xi": rng.uniform(-0.6, -0.2), "center": center, "basis": basis}


def _printed_mean(p, v, *, xi, center, basis, psi):
    """Eqn 23: θ₁ and θ₂ at r, over ‖v‖ and ‖v‖³."""
    r, norm = float(v @ center + xi), np.linalg.norm(v)
    first, second = theory.gate_mass(p, r, psi=psi) / norm, theory.gate_moment(p, r, psi=psi) / norm**3
    return SimpleNamespace(mass=first, mean=first * center + second * basis @ (basis.T @ v))


def _moment_off(p, *, center, **rest):
    exact = half_space_mean(p, center=center, **rest)
    return SimpleNamespace(mass=exact.mass, mean=1.01 * exact.mean - 0.01 * exact.mass[..., None] * center)


def _radial_density(p: Isotropic, r: np.ndarray) -> np.ndarray:
    """Density of the radius, from scipy.stats."""
    if isinstance(p, Gaussian):
        return stats.chi(p.dim, scale=p.scale).pdf(r)
    if isinstance(p, UniformBall):
        return stats.beta(p.dim, 1, scale=p.radius).pdf(r)
    assert isinstance(p, StudentT)
    unit = p.dim * p.scale**2
    return 2 * r / unit * stats.f(p.dim, p.dof).pdf(r**2 / unit)


def over_spheres(rng):
    """Add E ψ and E[yψ] of the sigmoid, over every sphere and then over the radii: no marginal density is used."""
    octaves = np.concatenate([np.arange(-40, -4, 2), np.arange(-4, 6, 0.5), np.arange(6, 30)])
    steps = np.pi * 2.0 ** -np.arange(0.0, 18.0)
    for p, where in half_spaces(rng):
        r, norm = where["v"] @ where["center"] + where["xi"], np.linalg.norm(where["v"] @ where["basis"])
        edge = p.radius if isinstance(p, UniformBall) else np.inf
        radii, radial_weights = panels(np.unique(np.minimum(2.0**octaves, edge)))
        # The sigmoid turns where cos(angle) = −r/(‖v‖·radius); panels shrink towards that angle.
        turn = np.arccos(np.clip(-r / (norm * radii), -1, 1))[:, None]
        angles, weights = panels(np.sort(np.clip(turn + np.concatenate([-steps, [0.0], steps]), 0, np.pi), axis=1))
        y = radii[:, None] * np.cos(angles)
        gate = weights * np.sin(angles) ** (p.dim - 2) * special.expit(norm * y + r)
        radial = radial_weights * _radial_density(p, radii) / special.beta((p.dim - 1) / 2, 0.5)
        yield p, where, np.array([radial @ gate.sum(axis=1), radial @ (gate * y).sum(axis=1)])


@check("lemma1", QUADRATURE, half_space_mean, QUADRATURE_TOLERANCE, unit="max relative error", over=over_spheres)
@as_printed(_printed_mean)
@rejects("Θ₂ times 1.01", _moment_off)
def half_space_against_spheres(formula, p, where, exact):
    """Sigmoid against integration over spheres and radii, nine distributions in subspaces."""
    claim = formula(p, **where, psi=special.expit)
    along = where["v"] @ where["basis"]
    moment = (claim.mean - claim.mass * where["center"]) @ where["basis"] @ along / np.linalg.norm(along)
    return np.array([claim.mass, moment]) / exact - 1


@check("lemma1-monotone", QUADRATURE, lambda p, s: theory.theta2(p, s) > 0, 0.0, unit="wrong signs", over=noises)
@as_printed(lambda p, s: True)
@rejects("distances 10 % off", lambda p, s: theory.theta2(p, s / 1.1) > 0)
def sign_of_the_moment(is_positive, p):
    """Places where the sign of θ₂ of a step is wrong: normal, ball and t, inside and outside of the ball."""
    places = getattr(p, "radius", 1.0) * np.array([-2.0, -1.05, -0.5, 0.0, 0.8, 1.05, 3.0])
    return sum(is_positive(p, s) != (gate_means(p, relu.derivative, s)[1] > QUADRATURE_TOLERANCE) for s in places)


@check("lemma1-monotone", QUADRATURE, theory.softplus, QUADRATURE_TOLERANCE, over=noises)
@rejects("a gate that does not rise throughout, SiLU's", theory.silu)
def rise_of_the_mass(phi, p):
    """Departure of Θ₁ from rising from 0 to 1 with Θ₂ ≥ 0, and from quadrature, for a sigmoid gate and ‖v‖ = 1.7."""
    places = np.array([-1e4, *np.linspace(-8, 8, 17), 1e4])
    mass, moment = (gate(p, places, norm=1.7, psi=phi) for gate in (theory.gate_mass, theory.gate_moment))
    exact = np.array([gate_means(p, phi.derivative, r, 1.7) for r in places])
    falls = np.minimum(np.diff(mass), 0), np.minimum(moment, 0)
    return mass[0], mass[-1] - 1, np.stack([mass, moment], axis=1) - exact, *falls


def _reduced(x: np.ndarray, gate: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Eqn 29: the mean of a gated x, from its component along v."""
    return (x @ v * gate).mean() * v / (v @ v)


@check("eqn30", LINEAR_ALGEBRA, (theory.reflect, _reduced))
@rejects("factor 2 replaced by 2.02", (lambda x, v: 2.02 * np.outer(x @ v, v) / (v @ v) - x, _reduced))
@rejects("Eqn 29 times 1.01", (theory.reflect, scaled(_reduced).formula))
def mirror_symmetry(claims):
    """Length, projection and middle of 50 points and their images, and Eqn 29 on points that are their own image."""
    mirror, reduced = claims
    rng = np.random.default_rng(30)
    x, v = rng.normal(size=(50, 6)), rng.normal(size=6)
    image, along = mirror(x, v), np.outer(x @ v, v) / (v @ v)
    both = np.concatenate([x, 2 * along - x])
    gate = special.expit(both @ v - 0.3)
    lengths = np.linalg.norm(image, axis=1) - np.linalg.norm(x, axis=1)
    mean = reduced(both, gate, v) - (both * gate[:, None]).mean(axis=0)
    return lengths, (image - x) @ v, (x + image) / 2 - along, mean


RING = RadialProfile(dim=5, profile=lambda r: np.exp(-np.square((r - 3.0) / 0.1) / 2))


@check("eqn32", MONTE_CARLO, lambda p, norm, c: p.cdf(c / norm), over=lambda rng: [*noises(rng, 5), RING])
@as_printed(lambda p, norm, c: p.cdf(c) / norm)
@rejects("‖v‖ 30 % off", lambda p, norm, c: p.cdf(c / (1.3 * norm)))
def projection_against_samples(cdf, p):
    """P(v·x' ≤ c) at three c, ‖v‖ = 2.5, n = 5, against samples."""
    norm, places = 2.5, np.array([-1.0, 0.3, 2.0])
    y = norm * p.sample(np.random.default_rng(2), NUM_SAMPLES)[:, :1]
    return largest_z(1.0 * (y <= places), cdf(p, norm, places))


def _constant(n: int) -> float:
    """Eqn 36, the factor in front of the integral, for even and for odd n."""
    if n % 2 == 0:
        return float(2 ** (n / 2) * np.pi ** (n / 2 - 1) / special.factorial2(max(n - 3, 1)))  # (-1)!! = 1
    return float(2 * np.pi ** ((n - 1) / 2) / special.factorial((n - 3) // 2))


# Tolerance: the quadrature is asked for 1e-12
@check("eqn33-36", QUADRATURE, _constant, 1e-11, unit="relative error", over=(2, 3, 4, 5, 8, 11, 20))
def constant_of_eqn_36(constant, n):
    """Constant of Eqn 36 against what makes the marginal of a normal in Rⁿ a normal, seven n."""
    integral = quad(lambda leg: np.exp(-(leg**2) / 2) * leg ** (n - 2), 0, np.inf, epsabs=0, epsrel=1e-12)[0]
    return abs(constant(n) * integral / (2 * np.pi) ** ((n - 1) / 2) - 1)


def profiles(rng):
    """Profiles of a normal (in logarithms), a ball and a t, with the distributions that they belong to."""
    for n in (2, 5, 20):
        normal, ball, t = noises(rng, n)
        yield normal, lambda r, p=normal: -((r / p.scale) ** 2) / 2, True
        yield ball, lambda r, p=ball: np.where(r < p.radius, 1.0, 0.0), False
        yield t, lambda r, p=t: (1 + (r / p.scale) ** 2 / p.dof) ** (-(p.dim + p.dof) / 2), False


# Tolerance: panels are resolved to 1e-12; so are the quadratures of the moment
@check("eqn33-36", CLOSED_FORM, RadialProfile, 1e-10, unit="relative error", over=profiles)
@rejects("one dimension too many", lambda *, dim, **rest: RadialProfile(dim=dim + 1, **rest))
def marginal_of_a_profile(distribution, known, profile, in_log):
    """Density, distribution function and upper moment from nine profiles and in closed form, against scipy.stats."""
    law, y = marginal_of(known), np.array([-1.1, 0.0, 0.3, 0.9])
    moments = [gate_means(known, lambda x: 1.0 * (x > 0), -s)[1] for s in y]
    exact = np.stack([law.pdf(y), law.cdf(y), moments])
    claims = [distribution(dim=known.dim, profile=profile, in_log=in_log), known]
    return np.array([[p.density(y), p.cdf(y), p.upper_moment(y)] for p in claims]) / exact - 1


def gates(rng):
    """Distributions, r and ‖v‖ with activations of both kinds: two slopes, and smooth."""
    return [
        (p, rng.uniform(-2.0, 2.0), rng.uniform(1.3, 2.5), phi)
        for p in noises(rng)
        for phi in (*(homogeneous(*each) for each in SLOPES), two_slopes(rng), theory.softplus, theory.gelu)
    ]


@check("lemma3", QUADRATURE, theory.gate_mean, DIFFERENCE_TOLERANCE, over=gates)
@rejects("r 1 % off", lambda p, r, *, norm, phi: theory.gate_mean(p, 1.01 * r, norm=norm, phi=phi))
def derivatives_of_the_mean(mean, p, r, norm, phi):
    """F, and its derivatives by r and by ‖v‖ against Θ₁ and Θ₂, 3 distributions × 10 activations."""
    by_r = difference(lambda x: float(mean(p, x, norm=norm, phi=phi)), r)
    by_norm = difference(lambda x: float(mean(p, r, norm=x, phi=phi)), norm)
    value = float(mean(p, r, norm=norm, phi=phi)) - gate_means(p, phi.value, r, norm)[0]
    return value, np.array([by_r, by_norm]) - gate_means(p, phi.derivative, r, norm)


@check("lemma3", QUADRATURE, theory.theta2, QUADRATURE_TOLERANCE, over=noises)
def theta2_from_theta1(second, p):
    """Eqn 49, θ₂(0) − sθ₁(s) + ∫₀^s θ₁, for a leaky ReLU at five places."""
    leaky, mass = homogeneous(0.15, 1.3), marginal_of(p).cdf
    edge = getattr(p, "radius", 1.0)
    for s in (-1.7, -0.4, 0.0, 0.6, 2.3):
        between = quad(lambda x: 0.15 + 1.15 * mass(x), 0, s, points=(-edge, edge), epsabs=1e-12)[0]
        at_zero, at_s = (gate_means(p, leaky.derivative, place) for place in (0.0, s))
        yield float(second(p, s, leaky)) - (at_zero[1] - s * at_s[0] + between)


@check("lemma3-limits", QUADRATURE, lambda c_minus, c_plus: (c_minus >= 0 and c_plus > 0, c_minus == 0), 0.0)
@over(SLOPES)
@as_printed(lambda c_minus, c_plus: (True, c_minus == 0))
@rejects("growth: c₊ > 0 alone", lambda c_minus, c_plus: (c_plus > 0, c_minus == 0))
@rejects("limit: c₋ ≥ 0", lambda c_minus, c_plus: (c_minus >= 0 and c_plus > 0, c_minus >= 0))
def limits_of_the_mean(claims, *slopes):
    """Whether F increases without bound, and whether F(−∞) = 0 under a normal and t₃: wrong answers, 7 activations."""
    grows, vanishes = claims(*slopes)
    phi, normal, t = homogeneous(*slopes), Gaussian(scale=1.3), StudentT(scale=0.8)
    steps = np.diff([gate_means(normal, phi.value, s)[0] for s in np.linspace(-4, 8, 25)])
    found = bool((steps > -QUADRATURE_TOLERANCE).all() and steps[-1] > NEAR_ZERO)
    ends = [abs(gate_means(p, phi.value, FAR_LEFT)[0]) < NEAR_ZERO for p in (normal, t)]
    return (grows != found) + sum(vanishes != end for end in ends)


def _slopes(p, r, norm, phi):
    slopes = (theory.gate_mass_slope, theory.gate_moment_slope)
    return np.array([slope(p, r, norm=norm, phi=phi) for slope in slopes])


def _printed_slopes(p, r, norm, phi):
    """(c₋ + c₊)p and its multiple, for a homogeneous activation; the lemma does not speak of others."""
    if phi.slopes is None:
        return _slopes(p, r, norm, phi)
    total = sum(phi.slopes) * p.density(r / norm) / norm
    return np.array([total, -r / norm * total])


@check("lemma5", DIFFERENTIATION, _slopes, DIFFERENCE_TOLERANCE, printed=_printed_slopes, over=gates)
def slopes_of_theta(formula, p, r, norm, phi):
    """Derivatives of Θ₁ and Θ₂ by r at ‖v‖ ≠ 1 against differences of quadratures, smooth activations too."""
    return difference(lambda x: gate_means(p, phi.derivative, x, norm), r) - formula(p, r, norm, phi)


@check("lemma5", DIFFERENTIATION, lambda *slopes, x: homogeneous(*slopes).value(x), DIFFERENCE_TOLERANCE)
@over(((0.0, 1.0), (0.1, 1.0), (-1.0, 2.0)))
@as_printed(lambda c_minus, c_plus, x: c_minus * (x < 0) + c_plus * (x > 0))
@rejects("power 1.01 of x", lambda c_minus, c_plus, x: np.where(x > 0, c_plus, -c_minus) * np.abs(x) ** 1.01)
def homogeneity(phi, *case):
    """Whether the claimed φ is homogeneous: φ − φ'x on either side of zero."""
    x = np.array([-2.0, -0.3, 0.5, 1.7])
    return phi(*case, x=x) - derivative(lambda x: phi(*case, x=x), x, initial_step=0.1).df * x
