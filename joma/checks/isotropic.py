"""Appendix A.3.1, Lemmas 1, 3 and 5: what a half-space lets through of an isotropic distribution."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special, stats
from scipy.differentiate import derivative
from scipy.integrate import quad

from joma.checks.check import Mutation, Reference, as_printed, check, over, rejects
from joma.checks.quadrature import (
    QUADRATURE_TOLERANCE,
    difference,
    gate_means,
    marginal_of,
    mean_of,
    noises,
    panels,
    slopes_of,
    thetas,
    two_slopes,
)
from joma.theory.activations import Activation, gelu, homogeneous, linear, relu, silu, softplus
from joma.theory.hyperplane import (
    GatedMean,
    gate_mass,
    gate_mass_slope,
    gate_mean,
    gate_moment,
    gate_moment_slope,
    half_space_mean,
    reflect,
    theta2,
)
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall

NUM_SAMPLES = 10_000
# The fourth-order difference errs by 1e-12 times a fifth derivative, and by the rounding of quadratures over 1e-3.
DIFFERENCE_TOLERANCE = 1e-8
FAR_LEFT, NEAR_ZERO = -1e4, 1e-3
"""Where F is looked at for its limit, and what counts as zero there: under t₃ it falls like the inverse square."""

ACTIVATIONS = (
    relu,
    homogeneous(0.1, 1.0, name="leaky"),
    linear,
    homogeneous(-1.0, 1.0, name="absolute value"),
    homogeneous(1.0, 0.0, name="minus ReLU of minus x"),
    homogeneous(-0.5, 2.0),
    homogeneous(-1.0, -1.0, name="minus x"),
)


def largest_z(samples: np.ndarray, claimed: np.ndarray | float) -> float:
    """Largest distance of the means over samples from what is claimed for them, in standard errors."""
    errors = samples.std(axis=0) / np.sqrt(len(samples))
    return float((np.abs(samples.mean(axis=0) - claimed) / errors).max())


# Lemma 1


def half_spaces(rng: np.random.Generator) -> list[tuple[Isotropic, dict[str, Any]]]:
    """Distributions in random subspaces of 2, 5 and 20 dimensions, each with ‖v‖ from 0.5 to 2.5."""
    cases = []
    for n in (2, 5, 20):
        for p in noises(rng, n):
            center, v = rng.normal(size=(2, n + 2)) / np.sqrt(n)
            basis = np.linalg.qr(rng.normal(size=(n + 2, n)))[0]
            v *= rng.uniform(0.5, 2.5) / np.linalg.norm(v)
            cases.append((p, {"v": v, "xi": rng.uniform(-0.6, -0.2), "center": center, "basis": basis}))
    return cases


def _printed_mean(
    p: Isotropic, v: np.ndarray, *, xi: float, center: np.ndarray, basis: np.ndarray, psi: Any
) -> GatedMean:
    """Eqn 23: θ₁ and θ₂ at r, over ‖v‖ and ‖v‖³."""
    r, norm = float(v @ center + xi), np.linalg.norm(v)
    first, second = gate_mass(p, r, psi=psi) / norm, gate_moment(p, r, psi=psi) / norm**3
    return GatedMean(mass=np.asarray(first), mean=first * center + second * basis @ (basis.T @ v))


def _moment_off(factor: float) -> Mutation:
    def formula(p: Isotropic, *, center: np.ndarray, **rest: Any) -> GatedMean:
        exact = half_space_mean(p, center=center, **rest)
        from_center = exact.mass * center
        return GatedMean(mass=exact.mass, mean=from_center + factor * (exact.mean - from_center))

    return Mutation(f"Θ₂ times {factor:g}", formula)


@check("lemma1", Reference.MONTE_CARLO, half_space_mean, printed=_printed_mean, over=half_spaces)
@rejects(*_moment_off(1.2))
def half_space_against_samples(formula, p, where):
    """Step and sigmoid against samples, nine distributions in subspaces of R⁴ to R²²."""
    noise = p.sample(np.random.default_rng(0), NUM_SAMPLES)
    x = where["center"] + noise @ where["basis"].T
    worst = 0.0
    for gate, psi in ((relu.derivative, relu), (special.expit, special.expit)):
        open_by = gate(x @ where["v"] + where["xi"])[:, None]
        claim = formula(p, **where, psi=psi)
        worst = max(worst, largest_z(np.c_[open_by, open_by * x], np.append(claim.mass, claim.mean)))
    return worst


def _radial_density(p: Isotropic, r: np.ndarray) -> np.ndarray:
    """Density of the radius, from scipy.stats."""
    if isinstance(p, Gaussian):
        return stats.chi(p.dim, scale=p.scale).pdf(r)
    if isinstance(p, UniformBall):
        return stats.beta(p.dim, 1, scale=p.radius).pdf(r)
    assert isinstance(p, StudentT)
    unit = p.dim * p.scale**2
    return 2 * r / unit * stats.f(p.dim, p.dof).pdf(r**2 / unit)


def over_spheres(rng: np.random.Generator) -> list[tuple[Isotropic, dict[str, Any], np.ndarray]]:
    """Add E ψ and E[yψ] of the sigmoid, over every sphere and then over the radii: no marginal density is used."""
    octaves = np.concatenate([np.arange(-40, -4, 2), np.arange(-4, 6, 0.5), np.arange(6, 30)])
    steps = np.pi * 2.0 ** -np.arange(0.0, 18.0)
    cases = []
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
        cases.append((p, where, np.array([radial @ gate.sum(axis=1), radial @ (gate * y).sum(axis=1)])))
    return cases


@check(
    "lemma1", Reference.QUADRATURE, half_space_mean, QUADRATURE_TOLERANCE, unit="max relative error", over=over_spheres
)
@as_printed(_printed_mean)
@rejects(*_moment_off(1.01))
def half_space_against_spheres(formula, p, where, exact):
    """Sigmoid against integration over spheres and radii, nine distributions in subspaces."""
    claim = formula(p, **where, psi=special.expit)
    along = where["v"] @ where["basis"]
    moment = (claim.mean - claim.mass * where["center"]) @ where["basis"] @ along / np.linalg.norm(along)
    return np.abs(np.array([claim.mass, moment]) / exact - 1).max()


@check("lemma1-monotone", Reference.QUADRATURE, lambda p, s: theta2(p, s) > 0, 0.0, unit="wrong signs", over=noises)
@as_printed(lambda p, s: True)
@rejects("distances 10 % off", lambda p, s: theta2(p, s / 1.1) > 0)
def sign_of_the_moment(is_positive, p):
    """Places where the sign of θ₂ of a step is wrong: normal, ball and t, inside and outside of the ball."""
    unit = p.radius if isinstance(p, UniformBall) else 1.0
    places = unit * np.array([-2.0, -1.05, -0.5, 0.0, 0.8, 1.05, 3.0])
    return sum(is_positive(p, s) != (thetas(p, s, relu)[1] > QUADRATURE_TOLERANCE) for s in places)


@check("lemma1-monotone", Reference.QUADRATURE, softplus, QUADRATURE_TOLERANCE, over=noises)
@rejects("a gate that does not rise throughout, SiLU's", silu)
def rise_of_the_mass(phi, p):
    """Departure of Θ₁ from rising from 0 to 1 with Θ₂ ≥ 0, and from quadrature, for a sigmoid gate and ‖v‖ = 1.7."""
    places = np.array([-1e4, *np.linspace(-8, 8, 17), 1e4])
    mass, moment = (gate(p, places, norm=1.7, psi=phi) for gate in (gate_mass, gate_moment))
    exact = [gate_means(p, phi.derivative, r, 1.7) for r in places]
    ends = max(abs(mass[0]), abs(mass[-1] - 1))
    error = np.abs(np.stack([mass, moment], axis=1) - exact).max()
    return max(ends, error, -np.diff(mass).min(), -moment.min())


def points(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Points, a vector, and the components of the points along it."""
    x, v = rng.normal(size=(50, 6)), rng.normal(size=6)
    return [(x, v, np.outer(x @ v, v) / (v @ v))]


@check("eqn30", Reference.LINEAR_ALGEBRA, reflect, over=points)
@rejects("factor 2 replaced by 2.02", lambda x, v: 2.02 * np.outer(x @ v, v) / (v @ v) - x)
def mirror_symmetry(mirror, x, v, along):
    """Length, projection and middle of 50 points and their images."""
    image = mirror(x, v)
    lengths = np.linalg.norm(image, axis=1) - np.linalg.norm(x, axis=1)
    return max(np.abs(part).max() for part in (lengths, (image - x) @ v, (x + image) / 2 - along))


@check("eqn30", Reference.LINEAR_ALGEBRA, lambda x, gate, v: (x @ v * gate).mean() * v / (v @ v), over=points)
def mean_of_mirror_images(reduced, x, v, along):
    """Eqn 29 on a set of points that is its own mirror image."""
    both = np.concatenate([x, 2 * along - x])
    gate = special.expit(both @ v - 0.3)
    return np.abs(reduced(both, gate, v) - (both * gate[:, None]).mean(axis=0)).max()


@check("eqn32", Reference.MONTE_CARLO, lambda p, norm, c: p.cdf(c / norm), over=lambda rng: noises(rng, 5))
@as_printed(lambda p, norm, c: p.cdf(c) / norm)
@rejects("‖v‖ 30 % off", lambda p, norm, c: p.cdf(c / (1.3 * norm)))
def projection_against_samples(cdf, p):
    """P(v·x' ≤ c) at three c, ‖v‖ = 2.5, n = 5, against samples."""
    norm, places = 2.5, np.array([-1.0, 0.3, 2.0])
    y = norm * p.sample(np.random.default_rng(2), NUM_SAMPLES)[:, :1]
    return largest_z(1.0 * (y <= places), cdf(p, norm, places))


# Eqns 33 to 36: the density of one component


def _constant(n: int) -> float:
    """Eqn 36, the factor in front of the integral, for even and for odd n."""
    if n % 2 == 0:
        return float(2 ** (n / 2) * np.pi ** (n / 2 - 1) / special.factorial2(max(n - 3, 1)))  # (-1)!! = 1
    return float(2 * np.pi ** ((n - 1) / 2) / special.factorial((n - 3) // 2))


# Tolerance: the quadrature is asked for 1e-12
@check("eqn33-36", Reference.QUADRATURE, _constant, 1e-11, unit="relative error", over=(2, 3, 4, 5, 8, 11, 20))
def constant_of_eqn_36(constant, n):
    """Constant of Eqn 36 against what makes the marginal of a normal in Rⁿ a normal, seven n."""
    integral = quad(lambda leg: np.exp(-(leg**2) / 2) * leg ** (n - 2), 0, np.inf, epsabs=0, epsrel=1e-12)[0]
    return abs(constant(n) * integral / (2 * np.pi) ** ((n - 1) / 2) - 1)


def profiles(rng: np.random.Generator) -> list[tuple[Isotropic, Callable[[np.ndarray], np.ndarray], bool]]:
    """Profiles of a normal (in logarithms), a ball and a t, with the distributions that they belong to."""
    cases: list[Any] = []
    for n in (2, 5, 20):
        normal, ball, t = noises(rng, n)
        cases += [
            (normal, lambda r, p=normal: -((r / p.scale) ** 2) / 2, True),
            (ball, lambda r, p=ball: np.where(r < p.radius, 1.0, 0.0), False),
            (t, lambda r, p=t: (1 + (r / p.scale) ** 2 / p.dof) ** (-(p.dim + p.dof) / 2), False),
        ]
    return cases


# Tolerance: panels are resolved to 1e-12; so are the quadratures of the moment
@check("eqn33-36", Reference.CLOSED_FORM, RadialProfile, 1e-10, unit="relative error", over=profiles)
@rejects("one dimension too many", lambda *, dim, **rest: RadialProfile(dim=dim + 1, **rest))
def marginal_of_a_profile(distribution, known, profile, in_log):
    """Density, distribution function and upper moment from nine profiles, and in closed form, beside scipy.stats."""
    law, y = marginal_of(known), np.array([-1.1, 0.0, 0.3, 0.9])
    moments = [gate_means(known, lambda x: 1.0 * (x > 0), -s)[1] for s in y]
    exact = np.stack([law.pdf(y), law.cdf(y), moments])
    claims = [distribution(dim=known.dim, profile=profile, in_log=in_log), known]
    return max(float(np.abs(np.stack([p.density(y), p.cdf(y), p.upper_moment(y)]) / exact - 1).max()) for p in claims)


def sampled_profiles(rng: np.random.Generator) -> list[tuple[int, Callable[[np.ndarray], np.ndarray], np.ndarray]]:
    """First components of points on a ring, by rejection, and of points from two normals, in 2, 5 and 20 dimensions."""
    radius, width, wide, share = 3.0, 0.1, 10.0, 0.1
    cases: list[Any] = []
    for n in (2, 5, 20):
        radii = radius + width * rng.standard_normal(30 * NUM_SAMPLES)
        accepted = rng.random(radii.size) < (np.abs(radii) / (radius + 5 * width)) ** (n - 1)
        radii = radii[accepted][:NUM_SAMPLES]
        normal = rng.standard_normal((radii.size, n))
        scale = np.where(rng.random(NUM_SAMPLES) < share, wide, 1.0)

        def two_scales(r: np.ndarray, n: int = n) -> np.ndarray:
            return (1 - share) * np.exp(-(r**2) / 2) + share * np.exp(-((r / wide) ** 2) / 2) / wide**n

        cases += [
            (
                n,
                lambda r: np.exp(-np.square((r - radius) / width) / 2),
                radii * normal[:, 0] / np.linalg.norm(normal, axis=1),
            ),
            (n, two_scales, scale * rng.standard_normal(NUM_SAMPLES)),
        ]
    return cases


@check("eqn33-36", Reference.MONTE_CARLO, RadialProfile, over=sampled_profiles)
@rejects("one dimension too many", lambda *, dim, profile: RadialProfile(dim=dim + 1, profile=profile))
def ring_against_samples(distribution, n, profile, y):
    """Distribution function of a ring and of two scales, and samples from it, n = 2, 5, 20, against other samples."""
    p, places = distribution(dim=n, profile=profile), np.array([-1.2, -0.5, 0.2, 1.0])
    drawn = p.sample(np.random.default_rng(1), NUM_SAMPLES)[:, 0]
    return max(largest_z(1.0 * (x[:, None] <= places), p.cdf(places)) for x in (y, drawn))


# Lemmas 3 and 5


def gates(rng: np.random.Generator) -> list[tuple[Isotropic, float, float, Activation]]:
    """Distributions, r and ‖v‖ with activations of both kinds: two slopes, and smooth."""
    return [
        (p, rng.uniform(-2.0, 2.0), rng.uniform(1.3, 2.5), phi)
        for p in noises(rng)
        for phi in (*ACTIVATIONS, two_slopes(rng), softplus, gelu)
    ]


@check("lemma3", Reference.QUADRATURE, gate_mean, DIFFERENCE_TOLERANCE, over=gates)
@rejects("r 1 % off", lambda p, r, *, norm, phi: gate_mean(p, 1.01 * r, norm=norm, phi=phi))
def derivatives_of_the_mean(mean, p, r, norm, phi):
    """F, and its derivatives by r and by ‖v‖ against Θ₁ and Θ₂, 3 distributions × 10 activations."""
    by_r = difference(lambda x: float(mean(p, x, norm=norm, phi=phi)), r)
    by_norm = difference(lambda x: float(mean(p, r, norm=x, phi=phi)), norm)
    value = float(mean(p, r, norm=norm, phi=phi)) - gate_means(p, phi.value, r, norm)[0]
    return np.abs([value, *(np.array([by_r, by_norm]) - gate_means(p, phi.derivative, r, norm))]).max()


@check("lemma3", Reference.QUADRATURE, theta2, QUADRATURE_TOLERANCE, over=noises)
def theta2_from_theta1(second, p):
    """Eqn 49, θ₂(0) − sθ₁(s) + ∫₀^s θ₁, for a leaky ReLU at five places."""
    leaky = homogeneous(0.15, 1.3)
    near = np.concatenate([[0.0], 2.0 ** -np.arange(30)])  # panels shrink towards the edges of the ball
    edge = p.radius if isinstance(p, UniformBall) else 1.0
    cuts = np.concatenate([-edge - near, -edge + near, edge - near, edge + near])
    worst = 0.0
    for s in (-1.7, -0.4, 0.0, 0.6, 2.3):
        x, weight = panels(np.unique(np.clip(np.append(cuts, [0.0, s]), min(0, s), max(0, s))))
        between = np.sign(s) * weight @ (0.15 + 1.15 * marginal_of(p).cdf(x))
        exact = thetas(p, 0.0, leaky)[1] - s * thetas(p, s, leaky)[0] + between
        worst = max(worst, abs(float(second(p, s, leaky)) - exact))
    return worst


@check(
    "lemma3-limits",
    Reference.QUADRATURE,
    lambda c_minus, c_plus: c_minus >= 0 and c_plus > 0,
    0.0,
    unit="wrong answers",
)
@over(ACTIVATIONS)
@as_printed(lambda c_minus, c_plus: True)
@rejects("c₊ > 0 alone", lambda c_minus, c_plus: c_plus > 0)
def growth_of_the_mean(grows, phi):
    """Whether F increases without bound, 7 activations."""
    steps = np.diff([mean_of(Gaussian(scale=1.3), float(s), phi) for s in np.linspace(-4, 8, 25)])
    return grows(*slopes_of(phi)) != bool((steps > -QUADRATURE_TOLERANCE).all() and steps[-1] > NEAR_ZERO)


@check("lemma3-limits", Reference.QUADRATURE, lambda c_minus, c_plus: c_minus == 0, 0.0, unit="wrong answers")
@over(ACTIVATIONS)
@rejects("c₋ ≥ 0", lambda c_minus, c_plus: c_minus >= 0)
def vanishing_of_the_mean(vanishes, phi):
    """Whether F(−∞) = 0, 7 activations, normal and t₃."""
    wrong = [
        vanishes(*slopes_of(phi)) != (abs(mean_of(p, FAR_LEFT, phi)) < NEAR_ZERO)
        for p in (Gaussian(scale=1.3), StudentT(scale=0.8))
    ]
    return sum(wrong)


def _slopes(p: Isotropic, r: float, norm: float, phi: Activation) -> np.ndarray:
    return np.array([slope(p, r, norm=norm, phi=phi) for slope in (gate_mass_slope, gate_moment_slope)])


def _printed_slopes(p: Isotropic, r: float, norm: float, phi: Activation) -> np.ndarray:
    """(c₋ + c₊)p and its multiple, for a homogeneous activation; the lemma does not speak of others."""
    if phi.slopes is None:
        return _slopes(p, r, norm, phi)
    total = sum(phi.slopes) * p.density(r / norm) / norm
    return np.array([total, -r / norm * total])


@check("lemma5", Reference.DIFFERENTIATION, _slopes, DIFFERENCE_TOLERANCE, printed=_printed_slopes, over=gates)
def slopes_of_theta(formula, p, r, norm, phi):
    """Derivatives of Θ₁ and Θ₂ by r at ‖v‖ ≠ 1 against differences of quadratures, smooth activations too."""
    found = difference(lambda x: gate_means(p, phi.derivative, x, norm), r)
    return np.abs(found - formula(p, r, norm, phi)).max()


@check(
    "lemma5",
    Reference.DIFFERENTIATION,
    lambda c_minus, c_plus, x: homogeneous(c_minus, c_plus).value(x),
    DIFFERENCE_TOLERANCE,
)
@over(((0.0, 1.0), (0.1, 1.0), (-1.0, 2.0)))
@as_printed(lambda c_minus, c_plus, x: c_minus * (x < 0) + c_plus * (x > 0))
@rejects("power 1.01 of x", lambda c_minus, c_plus, x: np.where(x > 0, c_plus, -c_minus) * np.abs(x) ** 1.01)
def homogeneity(phi, *case):
    """Whether the claimed φ is homogeneous: φ − φ'x on either side of zero."""
    x = np.array([-2.0, -0.3, 0.5, 1.7])
    slope = derivative(lambda x: phi(*case, x), x, initial_step=0.1).df
    return np.abs(phi(*case, x) - slope * x).max()
