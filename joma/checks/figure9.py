"""Eqns 57 and 58, figure 9: the curve G and the lines through zero."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from joma.checks.check import Reference, as_printed, check, over, rejects
from joma.checks.quadrature import (
    QUADRATURE_TOLERANCE,
    Law,
    difference,
    expectation,
    gate_means,
    marginal_of,
    mean_of,
    noises,
    slopes_of,
    thetas,
    two_slopes,
)
from joma.theory.activations import Activation, relu, softplus
from joma.theory.hyperplane import (
    central_product,
    gate_mean_at_level,
    gate_mean_at_level_slope,
    line_intersections,
    mean_at_level,
    mean_at_level_slope,
    mean_ratio,
    mean_ratio_slope,
    theta1,
    theta1_inverse,
)
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
HEAVY = StudentT(dof=1.5)
LINE = 2.0
"""Slope of a line that meets G of t₁.₅ twice at y > ½, with both s in (0, 1)."""
LINES = (0.3, 0.8, 1.2, 3.0, 5.0)
PLACES = np.sinh(np.linspace(-6, 4, 61))
"""Values of s between which sign changes are counted: denser near zero, from −200 to 27."""
# The difference errs by 1e-12/30 times a fifth derivative, which for G at y = 0.1 and 0.9 is of order 1e5.
DIFFERENCE_TOLERANCE = 1e-7
ROUNDING = 1e-9
"""p(0)θ₂(0) of the Laplace and of t₂ is 1/4 but for this."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A distribution, beside the weighted laws of scipy.stats that it is compared with."""

    noise: Isotropic
    laws: tuple[tuple[float, Law], ...]
    is_smooth: bool = True

    def mass(self, s: float) -> float:
        """θ₁ by quadrature."""
        return sum(weight * thetas(law, s, relu)[0] for weight, law in self.laws)

    def mean(self, s: float) -> float:
        """F by quadrature."""
        return sum(weight * mean_of(law, s, relu) for weight, law in self.laws)

    def ratio(self, s: float) -> float:
        """F/θ₁ by quadrature."""
        return self.mean(s) / self.mass(s)


def curves(rng: np.random.Generator) -> list[Curve]:
    """Six closed forms, a Laplace law and two scales."""
    wide, share = 10.0, 0.1
    balls = UniformBall(dim=2), UniformBall(dim=5, radius=1.5)
    known = (Gaussian(scale=0.8), *balls, StudentT(scale=1.2), StudentT(dof=2.0, scale=0.7), HEAVY)
    two_scales = RadialProfile(
        profile=lambda r: (1 - share) * np.exp(-(r**2) / 2) + share * np.exp(-((r / wide) ** 2) / 2) / wide
    )
    return [
        *(Curve(noise=noise, laws=((1.0, noise),)) for noise in known),
        Curve(
            noise=RadialProfile(profile=lambda r: np.exp(-r)),
            laws=((1.0, stats.laplace()),),
            is_smooth=False,  # h'' jumps at zero
        ),
        Curve(noise=two_scales, laws=((1 - share, Gaussian()), (share, Gaussian(scale=wide)))),
    ]


# Eqn 57


def _curve(p: Isotropic, y: float, phi: Activation = relu) -> float:
    """G by the quantile of scipy.stats and quadrature."""
    c_minus, c_plus = slopes_of(phi)
    return mean_of(p, float(marginal_of(p).ppf((y - c_minus) / (c_plus - c_minus))), phi)


def crossings(rng: np.random.Generator) -> list[tuple[float, ...]]:
    """Levels y ≥ ½ at which a line through zero meets G of t₁.₅, by root finding on either side of the lowest ratio."""
    grid = np.linspace(0.5, 0.95, 46)
    above = [_curve(HEAVY, y) > LINE * y for y in grid]
    pairs = [(a, b) for a, b, c, d in zip(grid, grid[1:], above, above[1:], strict=False) if c != d]
    return [tuple(brentq(lambda y: _curve(HEAVY, y) - LINE * y, a, b, xtol=1e-13) for a, b in pairs)]


@check("eqn57", Reference.ROOT_FINDING, theta1, printed=theta1_inverse, over=crossings)
def levels_of_a_pair(level, *exact):
    """Levels of the two s at which F/θ₁ = 2 under t₁.₅, against the points where y = 2x meets G."""
    places = [float(marginal_of(HEAVY).ppf(y)) for y in exact]
    return max(abs(float(level(HEAVY, s)) - y) for s, y in zip(places, exact, strict=True))


# Figure 9


def levels(rng: np.random.Generator) -> list[tuple[Isotropic, float, Activation]]:
    """Levels between c₋ and c₊ of a ReLU and of two random slopes."""
    cases = []
    for p in noises(rng, 3):
        for phi in (relu, two_slopes(rng)):
            c_minus, c_plus = slopes_of(phi)
            cases += [(p, c_minus + (c_plus - c_minus) * share, phi) for share in LEVELS]
    return cases


@check("fig9", Reference.QUADRATURE, mean_at_level, QUADRATURE_TOLERANCE, over=levels)
def curve_at_levels(curve, *case):
    """G at five levels, normal, ball and t, ReLU and two slopes."""
    return abs(float(curve(*case)) - _curve(*case))


@check("fig9", Reference.DIFFERENTIATION, mean_at_level_slope, DIFFERENCE_TOLERANCE, unit="relative error", over=levels)
def slope_at_levels(slope, p, y, phi):
    """G' at five levels, normal, ball and t, ReLU and two slopes, against differences."""
    return abs(float(slope(p, y, phi)) / difference(lambda y: _curve(p, y, phi), y) - 1)


def any_length(rng: np.random.Generator) -> list[tuple[Isotropic, Activation, float]]:
    """Distributions, a ReLU and a smooth one, and r; ‖v‖ is 1.6."""
    return [(p, phi, r) for p in noises(rng) for phi in (relu, softplus) for r in (-0.9, 0.2, 1.1)]


def _level_and_slope(*case: Any, **options: Any) -> np.ndarray:
    return np.array([gate_mean_at_level(*case, **options), gate_mean_at_level_slope(*case, **options)])


@check("fig9", Reference.QUADRATURE, _level_and_slope, DIFFERENCE_TOLERANCE, over=any_length)
def curve_at_any_length(formula, p, phi, r):
    """G and G' at ‖v‖ = 1.6, with a smooth ReLU as well, against F(r) and Θ₁(r)/Θ₁'(r) by quadrature."""
    mass = gate_means(p, phi.derivative, r, 1.6)[0]
    bend = difference(lambda x: gate_means(p, phi.derivative, x, 1.6)[0], r)
    exact = gate_means(p, phi.value, r, 1.6)[0], mass / bend
    return np.abs(formula(p, mass, norm=1.6, phi=phi) - exact).max()


# Tolerance: rounding of quantiles
@check("fig9", Reference.ENUMERATION, (3, 4, 5, 20), 1e-9, printed=(2, 3, 4, 5, 20), unit="fall of slope")
@rejects("the plane alone", (2,))
def fall_of_the_slope(dimensions):
    """Largest fall of G' = y/p over y > ½ for unit spheres in these dimensions, whose marginal is a Beta."""
    y = np.linspace(0.5, 0.99, 50)
    laws = (stats.beta((n - 1) / 2, (n - 1) / 2, loc=-1, scale=2) for n in dimensions)
    return max(-np.diff(y / law.pdf(law.ppf(y))).min() for law in laws)


# Lines through zero


def counted_crossings(rng: np.random.Generator) -> list[tuple[Isotropic, int]]:
    """Largest number of times that one of the lines meets G, by sign changes of F − kθ₁ over places."""
    cases = []
    all_curves = curves(rng)
    for curve in (all_curves[0], all_curves[2], all_curves[3], all_curves[-1]):
        means, masses = (np.array([f(float(s)) for s in PLACES]) for f in (curve.mean, curve.mass))
        inside = masses > ROUNDING  # beyond the support on the left both vanish, and there is no curve
        most = max(int((np.diff(np.sign((means - k * masses)[inside])) != 0).sum()) for k in LINES)
        cases.append((curve.noise, most))
    return cases


def _one_more_than_turns(p: Isotropic) -> int:
    slope = mean_ratio_slope(p, PLACES[theta1(p, PLACES) > ROUNDING])
    return 1 + int((np.diff(np.sign(slope)) != 0).sum())


@check("fig9-lines", Reference.ENUMERATION, _one_more_than_turns, unit="intersections", over=counted_crossings)
@as_printed(lambda p: 2)
@rejects("one intersection only", lambda p: 1)
def crossings_beyond(most, noise, found):
    """Intersections beyond the number claimed, five lines: normal, ball, t₃ and two scales."""
    return found - most(noise)


@check("fig9-lines", Reference.ROOT_FINDING, line_intersections, over=crossings)
def crossings_of_a_line(intersections, *exact):
    """Levels at which y = 2x meets G of t₁.₅."""
    found = intersections(HEAVY, LINE)
    return float(np.abs(found - exact).max()) if len(found) == len(exact) else np.inf


# Eqn 58


@check(
    "eqn58",
    Reference.DIFFERENTIATION,
    lambda p: (central_product(p), float(mean_ratio(p, 0.4)), float(mean_ratio_slope(p, 0.4))),
    DIFFERENCE_TOLERANCE,
)
@over(curves)
@rejects("1 % off", lambda p: (1.01 * central_product(p), float(mean_ratio(p, 0.4)), float(mean_ratio_slope(p, 0.4))))
def product_at_the_center(formula, curve):
    """p(0)θ₂(0) against (1 − (F/θ₁)'(0))/4, and F/θ₁ with its slope at s = 0.4, eight distributions."""
    at_zero = difference(curve.ratio, 0.0) if curve.is_smooth else 0.0
    exact: Any = ((1 - at_zero) / 4, curve.ratio(0.4), difference(curve.ratio, 0.4))
    return np.abs(np.subtract(formula(curve.noise), exact)).max()


@check(
    "eqn58", Reference.ENUMERATION, lambda p: central_product(p) > 1 / 4 + ROUNDING, unit="wrong promises", over=curves
)
@as_printed(lambda p: central_product(p) >= 1 / 4 - ROUNDING)
@rejects("threshold 1/5", lambda p: central_product(p) > 1 / 5)
def wrong_promises(suffices, curve):
    """Distributions for which the condition holds and no pair with both s ≥ 0 exists, of eight."""
    if not suffices(curve.noise):
        return 0.0
    lowest = min(curve.ratio(float(s)) for s in np.geomspace(1e-3, 3, 40))
    return lowest >= curve.ratio(0.0) - QUADRATURE_TOLERANCE


@check("eqn58", Reference.QUADRATURE, 1 / 4, QUADRATURE_TOLERANCE, unit="excess")
@rejects("bound 0.24", 0.24)
def excess_of_log_concave(bound):
    """p(0)θ₂(0) of six log-concave laws above ¼."""
    laws = (stats.norm(), stats.uniform(-1, 2), stats.laplace(), stats.logistic(), stats.gennorm(1.5), stats.gennorm(4))
    return max(float(law.pdf(0.0)) * expectation(law, lambda y: y * (y > 0)) for law in laws) - bound
