"""Eqns 33-36: the density of one component of an isotropic distribution."""

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import special
from scipy.integrate import quad

from joma.statements.lemma1 import NUM_SAMPLES, STANDARD_ERRORS, largest_z
from joma.statements.raw_field import marginal_of
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.isotropic import Gaussian, RadialProfile, StudentT, UniformBall
from joma.verdicts import Outcome

Profile = Callable[[np.ndarray], np.ndarray]
Marginal = Callable[[Profile, int, np.ndarray], np.ndarray]
"""A claim about the component of an isotropic distribution with a profile p₀(r) in n dimensions."""

DIMENSIONS = (2, 5, 20)
DOF = 3.0
RADIUS, WIDTH = 3.0, 0.1
"""Of the ring."""
WIDE, SHARE = 10.0, 0.1
"""Scale and weight of the wider of two normals."""


def _density(profile: Profile, n: int, y: np.ndarray) -> np.ndarray:
    return RadialProfile(dim=n, profile=profile).density(y)


def _cdf(profile: Profile, n: int, y: np.ndarray) -> np.ndarray:
    return RadialProfile(dim=n, profile=profile).cdf(y)


def _constant(n: int) -> float:
    """Eqn 36, the factor in front of the integral, for even and for odd n."""
    if n % 2 == 0:
        return float(2 ** (n / 2) * np.pi ** (n / 2 - 1) / special.factorial2(max(n - 3, 1)))  # (-1)!! = 1
    return float(2 * np.pi ** ((n - 1) / 2) / special.factorial((n - 3) // 2))


def _error_of_constant(constant: Callable[[int], float]) -> float:
    """Against what makes the marginal of a normal in R^n a normal: (2π)^((n−1)/2) over its integral."""
    error = 0.0
    for n in (2, 3, 4, 5, 8, 11, 20):
        integral = quad(lambda leg, n=n: np.exp(-(leg**2) / 2) * leg ** (n - 2), 0, np.inf, epsabs=0, epsrel=1e-12)[0]
        error = max(error, abs(constant(n) * integral / (2 * np.pi) ** ((n - 1) / 2) - 1))
    return error


def _error_of_density(density: Marginal) -> float:
    """Relative, against the densities of scipy.stats, for the profiles of a normal, a ball and a t."""
    y = np.array([0.0, 0.3, 0.9])
    worst = 0.0
    for n in DIMENSIONS:
        cases = (
            (lambda r: np.exp(-(r**2) / 2), Gaussian(dim=n)),
            (lambda r: np.where(r < 1, 1.0, 0.0), UniformBall(dim=n)),
            (lambda r, n=n: (1 + r**2 / DOF) ** (-(n + DOF) / 2), StudentT(dim=n, dof=DOF)),
        )
        for profile, known in cases:
            worst = max(worst, float(np.abs(density(profile, n, y) / marginal_of(known).pdf(y) - 1).max()))
    return worst


def _ring(r: np.ndarray) -> np.ndarray:
    return np.exp(-np.square((r - RADIUS) / WIDTH) / 2)


def _two_scales(n: int) -> Profile:
    return lambda r: (1 - SHARE) * np.exp(-(r**2) / 2) + SHARE * np.exp(-((r / WIDE) ** 2) / 2) / WIDE**n


@cache
def _samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """First components of points on the ring, by rejection, and of points from the two normals."""
    rng = np.random.default_rng(n)
    radius = RADIUS + WIDTH * rng.standard_normal(30 * NUM_SAMPLES)
    accepted = rng.random(radius.size) < (np.abs(radius) / (RADIUS + 5 * WIDTH)) ** (n - 1)
    radius = radius[accepted][:NUM_SAMPLES]
    normal = rng.standard_normal((radius.size, n))
    scale = np.where(rng.random(NUM_SAMPLES) < SHARE, WIDE, 1.0)
    return radius * normal[:, 0] / np.linalg.norm(normal, axis=1), scale * rng.standard_normal(NUM_SAMPLES)


def _against_samples(cdf: Marginal) -> float:
    places = np.array([-1.2, -0.5, 0.2, 1.0])
    worst = 0.0
    for n in DIMENSIONS:
        for profile, y in zip((_ring, _two_scales(n)), _samples(n), strict=True):
            worst = max(worst, largest_z(1.0 * (y[:, None] <= places), cdf(profile, n, places)))
    return worst


STATEMENTS = (
    Statement(
        id="eqn33-36",
        title="Marginal density of an isotropic distribution",
        place="Appendix A.3.1, proof of Lemma 1, Eqns 33-36",
        printed="p_n(y) = (n−1)π^((n−1)/2)/Γ((n+1)/2) ∫₀^∞ p₀(√(y²+l²)) l^(n−2) dl, with the constants of Eqn 36",
        outcome=Outcome.HOLDS,
        explanation=(
            "As the density along a unit vector, which is what the formula computes; Eqn 32 then takes it for the "
            "density of v·x'. The constant is the area of the unit sphere in n − 1 dimensions; both branches of "
            "Eqn 36 agree with it, with (−1)!! = 1 at n = 2. Any profile will do: a ring and a mixture of two "
            "scales are compared with samples drawn without the formula."
        ),
        checks=(
            Check(
                name="constant of Eqn 36 at seven n, even and odd",
                against=Reference.QUADRATURE,
                measure=_error_of_constant,
                formula=_constant,
                tolerance=1e-11,  # the quadrature is asked for 1e-12
                unit="relative error",
                mutation=Mutation(description="1 % off", formula=lambda n: 1.01 * _constant(n)),
            ),
            Check(
                name="density from the profiles of a normal, a ball and a t₃, n = 2, 5, 20",
                against=Reference.CLOSED_FORM,
                measure=_error_of_density,
                formula=_density,
                tolerance=1e-11,  # panels are resolved to 1e-12
                unit="relative error",
                mutation=Mutation(description="1 % off", formula=lambda profile, n, y: 1.01 * _density(profile, n, y)),
            ),
            Check(
                name="distribution function of a ring and of two scales, n = 2, 5, 20, against samples",
                against=Reference.MONTE_CARLO,
                measure=_against_samples,
                formula=_cdf,
                tolerance=STANDARD_ERRORS,
                unit="standard errors",
                mutation=Mutation(
                    description="one dimension too many", formula=lambda profile, n, y: _cdf(profile, n + 1, y)
                ),
            ),
        ),
    ),
)
