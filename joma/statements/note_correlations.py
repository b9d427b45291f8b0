"""The multi-layer note, Theorem 1: correlations that travel down an edge, and whether they go on."""

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import optimize

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.activations import linear
from joma.theory.computation_graph import (
    Edge,
    angle_sum,
    cosine,
    gated_cosine_bound,
    least_backpropagated_cosine,
    recursed_cosines,
    sloped_cosine_bound,
)
from joma.verdicts import Outcome

# L-BFGS-B and SLSQP stop when the value moves by less than about 1e-12; corners of the constraints are hit exactly.
OPTIMUM_TOLERANCE = 1e-6
Condition = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""C₁, C₂, C₃ in; whether the theorem is claimed for them."""


@cache
def _random_edges() -> Edge:
    """Signals over four samples: half of them independent, half drawn around each other at every scale of distance."""
    rng = np.random.default_rng(1)
    size = 100_000
    z_alpha, z_beta, f, s = rng.standard_normal((4, 2, size, 4))
    spread = rng.uniform(0, 1, size=(3, size, 1))
    z_beta[1] = rng.choice([-1.0, 1.0], (size, 1)) * z_alpha[1] + spread[0] * z_beta[1]
    f[1] = z_beta[1] + spread[1] * f[1]
    s[1] = z_alpha[1] + spread[2] * s[1]
    return Edge(z_alpha=z_alpha, z_beta=z_beta, f=f, gated_gradient=s)


def _share_of_failures(claimed: Condition) -> float:
    """Share of random signals, among those that the condition admits, with corr(z_β, g_{j→k}) ≤ 0."""
    edges = _random_edges()
    C1, C2, C3 = edges.cosines
    positive = (C1 > 0) & (C2 > 0) & (C3 > 0)
    admitted = positive.copy()
    admitted[positive] = claimed(C1[positive], C2[positive], C3[positive])
    return float((edges.backpropagated_correlation[admitted] <= 0).mean())


SMALL = 0.1
"""A C that the note's theorem would allow."""
TRIPLES = [(0.95, 0.95, 0.95), (0.99, 0.8, 0.98), (0.857, 0.857, 0.857), (0.1, 0.1, 0.1), (0.5, 0.9, 0.7)]
"""C₁, C₂, C₃ on either side of the condition."""


@cache
def _smallest_product(C1: float, C2: float, C3: float) -> float:
    """Least cos(f, s) cos(z_β, s) over signals within the three angles, by bounded minimisation.

    Signals are unit vectors of R³: angles from z_α to s and to z_β, from z_β to f, and the two azimuths between them.
    """

    def product(parameters: np.ndarray) -> float:
        to_s, to_beta, to_f, azimuth_beta, azimuth_f = parameters.tolist()
        beta_s = math.cos(to_s) * math.cos(to_beta) + math.sin(to_s) * math.sin(to_beta) * math.cos(azimuth_beta)
        across = math.sqrt(max(0.0, 1 - beta_s**2))
        return beta_s * (math.cos(to_f) * beta_s + math.sin(to_f) * across * math.cos(azimuth_f))

    tops = np.arccos([C1, C3, C2])
    bounds = [(0, top) for top in tops] + [(None, None)] * 2
    starts = [
        np.append(share * tops, azimuths)
        for share in (0.4, 0.9)
        for azimuths in itertools.product((0.5, 2.5), repeat=2)
    ]
    return min(float(optimize.minimize(product, x0, method="L-BFGS-B", bounds=bounds).fun) for x0 in starts)


def _bound_gap(bound: Callable[[float, float, float], float]) -> float:
    return max(abs(float(bound(*C)) - _smallest_product(*C)) for C in TRIPLES)


@cache
def _random_gates() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """cos(z_β, f), cos(z_β, g) and cos(z_β, σ'g) behind a ReLU, for random signals over five samples."""
    rng = np.random.default_rng(3)
    size = 200_000
    spread = rng.uniform(0, 2, size=(2, size, 1))
    pre = rng.standard_normal((size, 5))
    pre[:, 0] = np.abs(pre[:, 0])  # at least one open gate
    f = np.maximum(pre, 0)
    z = f + spread[0] * rng.standard_normal((size, 5))
    g = z + spread[1] * rng.standard_normal((size, 5))
    return cosine(z, f), cosine(z, g), cosine(z, (pre > 0) * g)


def _share_of_gated_failures(claimed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    C2, C4, gated = _random_gates()
    admitted = (C2 > 0) & (C4 > 0) & claimed(C2, C4)
    return float((gated[admitted] <= 0).mean())


GATED_PAIRS = [(0.9, 0.9), (0.8, 0.95), (0.99, 0.5)]
SLOPED_CASES = [(0.95, 0.5, 1.0), (0.9, 0.8, 1.2), (0.7, 0.3, 0.5)]
BOX = 9.0
"""Largest component of a signal in the search; cosines do not depend on the size."""


def _least_under(
    value: Callable[[np.ndarray], float],
    constraints: list[Callable[[np.ndarray], float]],
    starts: np.ndarray,
    bounds: list[tuple[float, float]],
) -> float:
    """Least value with every constraint ≥ 0, by SLSQP from many starts; infeasible ends are left out."""
    runs = [
        optimize.minimize(
            value,
            x0,
            method="SLSQP",
            bounds=bounds,
            constraints=[{"type": "ineq", "fun": c} for c in constraints],
            options={"ftol": 1e-13, "maxiter": 300},
        )
        for x0 in starts
    ]
    feasible = [run.fun for run in runs if min(c(run.x) for c in constraints) > -OPTIMUM_TOLERANCE / 10]
    return float(min(feasible))


@cache
def _smallest_gated(C2: float, C4: float) -> float:
    """Least cos(z, σ'g) behind a ReLU with two samples open and one shut."""
    gate = np.array([1.0, 1.0, 0.0])

    def signals(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z, g, f = np.split(parameters, [3, 6])
        return z, g, np.append(f, 0.0)

    def value(parameters: np.ndarray) -> float:
        z, g, _ = signals(parameters)
        return float(cosine(z, gate * g))

    constraints = [
        lambda p: float(cosine(signals(p)[0], signals(p)[2])) - C2,
        lambda p: float(cosine(signals(p)[0], signals(p)[1])) - C4,
    ]
    rng = np.random.default_rng(4)
    starts = np.ones(8) + 0.3 * rng.standard_normal((12, 8))
    return _least_under(value, constraints, starts, [(-BOX, BOX)] * 6 + [(1e-3, BOX)] * 2)


@cache
def _smallest_sloped(C4: float, lowest: float, highest: float) -> float:
    """Least cos(z, σ'g) over slopes within a range, on three samples."""

    def value(parameters: np.ndarray) -> float:
        z, g, slopes = np.split(parameters, 3)
        return float(cosine(z, slopes * g))

    rng = np.random.default_rng(5)
    starts = np.concatenate(
        [np.ones((12, 6)) + 0.3 * rng.standard_normal((12, 6)), rng.uniform(lowest, highest, (12, 3))], axis=1
    )
    constraints = [lambda p: float(cosine(p[:3], p[3:6])) - C4]
    return _least_under(value, constraints, starts, [(-BOX, BOX)] * 6 + [(lowest, highest)] * 3)


def _gated_bound_gap(bound: Callable[[float, float], float]) -> float:
    return max(abs(float(bound(*C)) - _smallest_gated(*C)) for C in GATED_PAIRS)


def _sloped_bound_gap(bound: Callable[[float, float, float], float]) -> float:
    return max(abs(float(bound(*case)) - _smallest_sloped(*case)) for case in SLOPED_CASES)


LEVELS = 4
LEVEL_C1, LEVEL_C2, LEVEL_C3 = 0.995, np.full(LEVELS, 0.95), np.full(LEVELS, 0.985)


def _worst_chain_gap(recursion: Callable[[float, np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Distance from a planar chain of linear nodes in which every level turns its gradient the same way."""
    angle, found = np.arccos(LEVEL_C1), []  # angle from the gradient to the latent of the level
    s = np.array([1.0, 0.0])
    for C2, C3 in zip(LEVEL_C2, LEVEL_C3, strict=True):
        angle += np.arccos(C3)
        z_beta, f = (np.array([np.cos(a), np.sin(a)]) for a in (angle, angle + np.arccos(C2)))
        s = (f @ s) * s  # g_{j→k} = corr(f, s) s, and a linear node passes it on
        found.append(float(cosine(z_beta, s)))
    return float(np.abs(recursion(LEVEL_C1, LEVEL_C2, LEVEL_C3) - found).max())


CORRELATIONS = (
    Statement(
        id="note-thm1",
        title="Back-propagated gradient",
        place="Note, Theorem 1",
        printed="corr(z_α,σ'g_j) > C₁ > 0, corr(z_β,f_k) > C₂ > 0, |corr(z_α,z_β)| > C₃ > 0 ⇒ corr(z_β,g_jk) > C₄ > 0",
        corrected="true for normalised correlations with A₁+A₂+A₃ < π/2, A_i = arccos C_i, and for no weaker condition",
        outcome=Outcome.REFUTED,
        explanation=(
            "z_α = (1,0), z_β = (1,2), f_k = (3,0), σ'_j g_j = (1,−2) have correlations 1, 3 and 1, but "
            "corr(z_β, g_{j→k}) = 3·(−3) = −9; of independent signals over four samples with normalised correlations "
            "above 0.1, 33 % fail. Positive correlation is not transitive: angles may add up past π/2. Three equal "
            "correlations must exceed √3/2. C₁ = 1 alone (a node next to the loss) or C₂ = 1 alone (next to the input) "
            "is not enough: the other two angles still have to sum to less than π/2."
        ),
        checks=(
            Check(
                name="share of random signals over four samples with corr(z_β, g_{j→k}) ≤ 0",
                against=Reference.MONTE_CARLO,
                measure=_share_of_failures,
                formula=lambda C1, C2, C3: angle_sum(C1, C2, C3) < np.pi / 2,
                printed=lambda C1, C2, C3: np.minimum(np.minimum(C1, C2), C3) > SMALL,
                tolerance=0.0,  # not one
                unit="share of failures",
                mutation=Mutation(
                    description="angles up to 2π/3 allowed",
                    formula=lambda C1, C2, C3: angle_sum(C1, C2, C3) < 2 * np.pi / 3,
                ),
            ),
        ),
    ),
    Statement(
        id="note-thm1-sharp",
        title="Size of the back-propagated correlation",
        place="Note, proof of Theorem 1, its Figure 1",
        printed="corr(f_k, σ'_j g_j) and corr(z_β, σ'_j g_j) are of the same sign, given the conditions of the theorem",
        corrected="product of cosines ≥ ½[C₂ + cos min(π, 2A₁+A₂+2A₃)]; = cos(A₁+A₃)cos(A₁+A₂+A₃) > 0 iff ΣA < π/2",
        outcome=Outcome.REFUTED,
        explanation=(
            "Let a be the angle between z_β and σ'_j g_j, at most A₁+A₃. The product is least with f_k in their plane, "
            "A₂ beyond z_β: cos a·cos(a+A₂) = ½[cos A₂ + cos(2a+A₂)]. The bound is attained by planar signals, so no "
            "constant C₄ > 0 exists without the condition: at C = 0.1 the product reaches −0.45."
        ),
        checks=(
            Check(
                name="least product over signals in R³, five triples on either side of the condition",
                against=Reference.OPTIMISATION,
                measure=_bound_gap,
                formula=least_backpropagated_cosine,
                printed=lambda C1, C2, C3: max(0.0, float(least_backpropagated_cosine(C1, C2, C3))),
                tolerance=OPTIMUM_TOLERANCE,
                unit="distance from the optimum",
                mutation=Mutation(
                    description="bound 1 % off", formula=lambda *C: 1.01 * float(least_backpropagated_cosine(*C))
                ),
            ),
        ),
    ),
    Statement(
        id="note-recursion",
        title="The recursion over layers",
        place="Note, after Theorem 1",
        printed="from corr(z_β,f_k) > C₂ and corr(z_β,g_k) > C₄, corr(z_β,σ'g_k) is large too: the recursion goes on",
        corrected="ReLU: ≥ √(C₂²+C₄²−1) if C₂²+C₄² > 1; slopes in [l,h]: ≥ cos(A₄+arcsin((h−l)/(h+l))); A₄ = A₁+A₃",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The sum over parents is harmless: it keeps the least cosine. The gate σ'_k is not: it may remove the "
            "samples in which g_k agrees with z_β. Behind a ReLU f_k vanishes where the gate is shut, so C₂ limits the "
            "damage, and with C₄ = cos(A₁+A₃) the condition is again A₁+A₂+A₃ < π/2. Even for linear nodes the angles "
            "A₃ of all levels add up, so a fixed C₃ < 1 carries the recursion through finitely many levels only."
        ),
        checks=(
            Check(
                name="share of random signals behind a ReLU with corr(z_β, σ'_k g_k) ≤ 0",
                against=Reference.MONTE_CARLO,
                measure=_share_of_gated_failures,
                formula=lambda C2, C4: C2**2 + C4**2 > 1,
                printed=lambda C2, C4: np.minimum(C2, C4) > SMALL,
                tolerance=0.0,  # not one
                unit="share of failures",
                mutation=Mutation(description="C₂² + C₄² > ½ allowed", formula=lambda C2, C4: 2 * (C2**2 + C4**2) > 1),
            ),
            Check(
                name="least cosine behind a ReLU, three pairs C₂, C₄",
                against=Reference.OPTIMISATION,
                measure=_gated_bound_gap,
                formula=gated_cosine_bound,
                tolerance=OPTIMUM_TOLERANCE,
                unit="distance from the optimum",
                mutation=Mutation(description="1 % off", formula=lambda *C: 1.01 * float(gated_cosine_bound(*C))),
            ),
            Check(
                name="least cosine behind slopes within a range, three cases",
                against=Reference.OPTIMISATION,
                measure=_sloped_bound_gap,
                formula=sloped_cosine_bound,
                tolerance=OPTIMUM_TOLERANCE,
                unit="distance from the optimum",
                mutation=Mutation(
                    description="1 % off", formula=lambda *case: 1.01 * float(sloped_cosine_bound(*case))
                ),
            ),
            Check(
                name="four levels of linear nodes that all turn the same way",
                against=Reference.LINEAR_ALGEBRA,
                measure=_worst_chain_gap,
                formula=lambda C1, C2, C3: recursed_cosines(C1, C2, C3, linear),
                tolerance=1e-12,  # rounding of arccos and cos
                mutation=Mutation(
                    description="the angle that the last level adds left out",
                    formula=lambda C1, C2, C3: recursed_cosines(C1, C2, np.append(C3[:-1], 1.0), linear),
                ),
            ),
        ),
    ),
)
