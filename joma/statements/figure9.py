"""Eqns 57 and 58, figure 9: the curve G and the lines through zero."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from joma.statements.quadrature import Law, difference, expectation, mean_of, thetas
from joma.statements.raw_field import marginal_of, one_percent_off
from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import relu
from joma.theory.hyperplane import (
    central_product,
    line_intersections,
    mean_at_level,
    mean_at_level_slope,
    mean_ratio_slope,
    theta1,
    theta1_inverse,
)
from joma.theory.isotropic import Gaussian, Isotropic, RadialProfile, StudentT, UniformBall
from joma.verdicts import Outcome

OfLevel = Callable[[Isotropic, float], np.ndarray]
"""A claim about a function of y ∈ (0, 1)."""

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
UPPER_LEVELS = np.linspace(0.5, 0.99, 50)
NOISES = (Gaussian(), UniformBall(dim=5), StudentT(dof=3.0))
HEAVY = StudentT(dof=1.5)
LINE = 2.0
"""Slope of a line that meets G of t₁.₅ twice at y > ½, with both s in (0, 1)."""
LINES = (0.3, 0.8, 1.2, 3.0, 5.0)
PLACES = np.sinh(np.linspace(-6, 4, 61))
"""Values of s between which sign changes are counted: denser near zero, from −200 to 27."""
WIDE, SHARE = 10.0, 0.1
"""Scale and weight of the wider of two normals."""
# The difference errs by 1e-12/30 times a fifth derivative, which for G at y = 0.1 and 0.9 is of order 1e5.
DIFFERENCE_TOLERANCE = 1e-7
QUADRATURE_TOLERANCE = 1e-9
ROUNDING = 1e-9
"""p(0)θ₂(0) of the Laplace and of t₂ is 1/4 but for this."""


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A distribution, beside the weighted laws of scipy.stats that it is compared with."""

    noise: Isotropic
    laws: tuple[tuple[float, Law], ...]

    def mass(self, s: float) -> float:
        """θ₁ by quadrature."""
        return sum(weight * thetas(law, s, relu)[0] for weight, law in self.laws)

    def mean(self, s: float) -> float:
        """F by quadrature."""
        return sum(weight * mean_of(law, s, relu) for weight, law in self.laws)

    def ratio(self, s: float) -> float:
        """F/θ₁ by quadrature."""
        return self.mean(s) / self.mass(s)


@cache
def _cases() -> dict[str, _Case]:
    named = {
        "normal": Gaussian(),
        "disc": UniformBall(dim=2),
        "ball": UniformBall(dim=5),
        "t3": StudentT(dof=3.0),
        "t2": StudentT(dof=2.0),
        "t1.5": HEAVY,
    }
    cases = {name: _Case(noise=noise, laws=((1.0, noise),)) for name, noise in named.items()}
    laplace = RadialProfile(dim=1, profile=lambda r: np.exp(-r))
    two_scales = RadialProfile(
        dim=1,
        profile=lambda r: (1 - SHARE) * np.exp(-(r**2) / 2) + SHARE * np.exp(-((r / WIDE) ** 2) / 2) / WIDE,
    )
    cases["laplace"] = _Case(noise=laplace, laws=((1.0, stats.laplace()),))
    cases["two scales"] = _Case(noise=two_scales, laws=((1 - SHARE, Gaussian()), (SHARE, Gaussian(scale=WIDE))))
    return cases


def _curve(p: Isotropic, y: float) -> float:
    """G by the quantile of scipy.stats and quadrature."""
    return mean_of(p, float(marginal_of(p).ppf(y)), relu)


def _error_of_curve(curve: OfLevel) -> float:
    return max(abs(float(curve(p, y)) - _curve(p, y)) for p in NOISES for y in LEVELS)


def _error_of_slope(slope: OfLevel) -> float:
    """Relative, against differences of G."""
    pairs = ((float(slope(p, y)), difference(partial(_curve, p), y)) for p in NOISES for y in LEVELS)
    return max(abs(claimed / found - 1) for claimed, found in pairs)


def _fall_of_slope(dimensions: tuple[int, ...]) -> float:
    """Largest fall of G' = y/p over y > ½ for unit spheres, thin rings in n dimensions, whose marginal is a Beta."""
    falls = []
    for n in dimensions:
        law = stats.beta((n - 1) / 2, (n - 1) / 2, loc=-1, scale=2)
        falls.append(-np.diff(UPPER_LEVELS / law.pdf(law.ppf(UPPER_LEVELS))).min())
    return float(max(falls))


@cache
def _crossings(line: float) -> tuple[float, ...]:
    """Levels y ≥ ½ at which a line through zero meets G of t₁.₅, by root finding on either side of the lowest ratio."""
    grid = np.linspace(0.5, 0.95, 46)
    above = [_curve(HEAVY, y) > line * y for y in grid]
    pairs = [(a, b) for a, b, c, d in zip(grid, grid[1:], above, above[1:], strict=False) if c != d]
    return tuple(brentq(lambda y: _curve(HEAVY, y) - line * y, a, b, xtol=1e-13) for a, b in pairs)


def _error_of_level(level: OfLevel) -> float:
    """The y that a claim gives to each s of a critical pair, against where the line meets G."""
    exact = _crossings(LINE)
    s = [float(marginal_of(HEAVY).ppf(y)) for y in exact]
    return max(abs(float(level(HEAVY, place)) - y) for place, y in zip(s, exact, strict=True))


def _error_of_intersections(intersections: Callable[[Isotropic, float], np.ndarray]) -> float:
    found = intersections(HEAVY, LINE)
    exact = _crossings(LINE)
    return float(np.abs(found - exact).max()) if len(found) == len(exact) else np.inf


@cache
def _most_crossings(name: str) -> int:
    """Largest number of times that one of the lines meets G, by sign changes of F − kθ₁ over places."""
    case = _cases()[name]
    means, masses = (np.array([f(float(s)) for s in PLACES]) for f in (case.mean, case.mass))
    # Beyond the support on the left both vanish, and there is no curve.
    inside = masses > ROUNDING
    return max(int((np.diff(np.sign((means - k * masses)[inside])) != 0).sum()) for k in LINES)


def _excess_of_crossings(most: Callable[[Isotropic], int]) -> float:
    """By how many intersections the lines exceed the number claimed, over four kinds of distribution."""
    names = ("normal", "ball", "t3", "two scales")
    return float(max(_most_crossings(name) - most(_cases()[name].noise) for name in names))


def _one_more_than_turns(p: Isotropic) -> int:
    """One more than the number of times that F/θ₁ turns."""
    slope = mean_ratio_slope(p, PLACES[theta1(p, PLACES) > ROUNDING])
    return 1 + int((np.diff(np.sign(slope)) != 0).sum())


def _error_of_product(product: Callable[[Isotropic], float]) -> float:
    """p(0)θ₂(0) against (1 − h'(0))/4, h = F/θ₁ by quadrature and its derivative by differences."""
    cases = [case for name, case in _cases().items() if name != "laplace"]  # whose h'' jumps at zero
    return max(abs(product(case.noise) - (1 - difference(case.ratio, 0.0)) / 4) for case in cases)


@cache
def _has_upper_pair(name: str) -> bool:
    """Whether F/θ₁ falls below its value at s = 0 for some s > 0, and so takes a value twice there."""
    case = _cases()[name]
    return min(case.ratio(float(s)) for s in np.geomspace(1e-3, 3, 40)) < case.ratio(0.0) - QUADRATURE_TOLERANCE


def _wrong_promises(suffices: Callable[[Isotropic], bool]) -> float:
    """Distributions for which a condition promises a pair with both s ≥ 0 and there is none."""
    return float(sum(suffices(case.noise) and not _has_upper_pair(name) for name, case in _cases().items()))


def _excess_of_log_concave(bound: float) -> float:
    """Largest p(0)θ₂(0) of log-concave laws above a bound, by quadrature."""
    laws = (stats.norm(), stats.uniform(-1, 2), stats.laplace(), stats.logistic(), stats.gennorm(1.5), stats.gennorm(4))
    return max(float(law.pdf(0.0)) * expectation(law, lambda y: y * (y > 0)) for law in laws) - bound


STATEMENTS = (
    Statement(
        id="eqn57",
        title="The levels y₊ and y₋ of a critical pair",
        place="Appendix A.3.1, Eqn 57 and after",
        printed="G(y) = F(θ₁⁻¹(y)), and y₊ := θ₁⁻¹(r₊), y₋ := θ₁⁻¹(r₋) lie with G(y₊), G(y₋) on a line through zero",
        corrected="y₊ = θ₁(s₊), y₋ = θ₁(s₋) with s = r/‖v‖",
        outcome=Outcome.REFUTED,
        explanation=(
            "A slip: θ₁⁻¹ takes a level in (0, 1) and returns a distance. With y = θ₁(s), (y, G(y)) = (θ₁(s), F(s)), "
            "and F/θ₁ equal at two s puts two points on one line through zero. The example is a line of slope 2 and "
            "t₁.₅, where both s happen to lie in (0, 1), so that the printed form has a value at all."
        ),
        checks=(
            Check(
                name="levels of the two s at which F/θ₁ = 2 under t₁.₅, against the points where y = 2x meets G",
                against=Reference.ROOT_FINDING,
                measure=_error_of_level,
                formula=theta1,
                printed=theta1_inverse,
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=one_percent_off(theta1)),
            ),
        ),
    ),
    Statement(
        id="fig9",
        title="The curve G, its slope and its convexity",
        place="Appendix A.3.1, after Eqn 57, figure 9; Appendix A.4",
        printed="dG/dy = θ₁/p_n > 0, and G is convex for y > ½",
        corrected="dG/dy = θ₁/p > 0; G is convex for y > ½ where p falls on s > 0, as for every profile if n ≥ 3",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "G' = F'/θ₁' = θ₁/p. For y > ½ the numerator rises, so G' does if p falls. In three or more dimensions "
            "the derivative of Eqn 35, integrated by parts, is −y times a positive integral for any profile. In the "
            "plane a thin ring has the arcsine law, whose density rises to the edge, and G' = 1.79, 1.48, 0.47 at "
            "y = 0.6, 0.8, 0.95. For the normal G is convex throughout, with values 0.04734, 0.14915, 0.39894, "
            "0.82364, 1.32889 at y = 0.1, 0.25, 0.5, 0.75, 0.9."
        ),
        checks=(
            Check(
                name="G at five levels, normal, ball and t₃",
                against=Reference.QUADRATURE,
                measure=_error_of_curve,
                formula=mean_at_level,
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=one_percent_off(mean_at_level)),
            ),
            Check(
                name="G' at five levels, normal, ball and t₃, against differences",
                against=Reference.DIFFERENTIATION,
                measure=_error_of_slope,
                formula=mean_at_level_slope,
                tolerance=DIFFERENCE_TOLERANCE,
                unit="relative error",
                mutation=Mutation(description="1 % off", formula=one_percent_off(mean_at_level_slope)),
            ),
            Check(
                name="largest fall of G' over y > ½, for thin rings in these dimensions",
                against=Reference.ENUMERATION,
                measure=_fall_of_slope,
                formula=(3, 4, 5, 20),
                printed=(2, 3, 4, 5, 20),
                tolerance=1e-9,  # rounding of quantiles
                unit="fall of slope",
                mutation=Mutation(description="the plane alone", formula=(2,)),
            ),
        ),
    ),
    Statement(
        id="fig9-lines",
        title="How often a line through zero meets G",
        place="Appendix A.3.1, before Eqn 58; Appendix A.4",
        printed="there are at most two intersections between G and a straight line through zero",
        corrected="at most one more than F/θ₁ has turning points: strictly log-concave p one, Student's t two, two "
        "scales three",
        outcome=Outcome.REFUTED,
        explanation=(
            "A line of slope k meets G where F/θ₁ = k. F/θ₁ increases for a strictly log-concave p (each line meets G "
            "once at most, so there is no pair at all) and falls once and rises once for Student's t. The paper argues "
            "from convexity for y > ½, but G need not be convex for y < ½: with 0.9 N(1) + 0.1 N(10²), F/θ₁ rises to "
            "6.82, falls to 1.51 and rises again, and lines with slopes between these meet G three times."
        ),
        checks=(
            Check(
                name="intersections beyond the number claimed, five lines, normal, ball, t₃ and two scales",
                against=Reference.ENUMERATION,
                measure=_excess_of_crossings,
                formula=_one_more_than_turns,
                printed=lambda p: 2,
                tolerance=0.0,
                unit="intersections",
                mutation=Mutation(description="one intersection only", formula=lambda p: 1),
            ),
            Check(
                name="levels at which y = 2x meets G of t₁.₅",
                against=Reference.ROOT_FINDING,
                measure=_error_of_intersections,
                formula=line_intersections,
                tolerance=QUADRATURE_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=one_percent_off(line_intersections)),
            ),
        ),
        remark="the normal gives one intersection; a mixture of two scales gives three",
    ),
    Statement(
        id="eqn58",
        title="A sufficient condition for a critical pair",
        place="Appendix A.3.1, Eqn 58",
        printed="if p_n(0)θ₂(0) ≥ ¼ then some line through zero meets G at two points with y ≥ ½",
        corrected="if p(0)θ₂(0) > ¼; equality is not enough (t₂, Laplace), and no log-concave p gets above ¼",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The algebra is right: (F/θ₁)'(0) = 1 − 4p(0)θ₂(0), so the condition says that F/θ₁ does not rise at "
            "s = 0. If it falls there it must rise again later and takes a value twice. If it only stands still (t₂, "
            "Laplace) it rises for all s > 0. The condition is not necessary (t₃ has 0.2026 and pairs with s < 0), and "
            "a log-concave p never satisfies it strictly: normal 1/2π, balls 0.135 to 0.155, Laplace 1/4."
        ),
        checks=(
            Check(
                name="p(0)θ₂(0) against (1 − (F/θ₁)'(0))/4, seven distributions",
                against=Reference.DIFFERENTIATION,
                measure=_error_of_product,
                formula=central_product,
                tolerance=DIFFERENCE_TOLERANCE,
                mutation=Mutation(description="1 % off", formula=lambda p: 1.01 * central_product(p)),
            ),
            Check(
                name="distributions for which the condition holds and no pair with both s ≥ 0 exists",
                against=Reference.ENUMERATION,
                measure=_wrong_promises,
                formula=lambda p: central_product(p) > 1 / 4 + ROUNDING,
                printed=lambda p: central_product(p) >= 1 / 4 - ROUNDING,
                tolerance=0.0,
                unit="wrong promises",
                mutation=Mutation(description="threshold 1/5", formula=lambda p: central_product(p) > 1 / 5),
            ),
            Check(
                name="p(0)θ₂(0) of six log-concave laws above ¼",
                against=Reference.QUADRATURE,
                measure=_excess_of_log_concave,
                formula=1 / 4,
                tolerance=QUADRATURE_TOLERANCE,
                unit="excess",
                mutation=Mutation(description="bound 0.24", formula=0.24),
            ),
        ),
    ),
)
