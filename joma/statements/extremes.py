"""Largest values by a grid and a refinement, and how far a claim is from them: what the bounds of Theorem 4 share."""

from collections.abc import Callable

import numpy as np
from scipy import optimize

from joma.statements.registry import Check, Mutation, Reference

PAPER_BOUND = np.sqrt(np.pi / 2) + 1
"""The constant of Eqn 88; Theorem 4 prints twice it."""
# Stiff solvers at rtol 1e-12 and the exact solution agree to 1e-11 on these flows.
ODE_TOLERANCE = 1e-9
# Adaptive quadrature asked for 1e-12.
QUADRATURE_TOLERANCE = 1e-10
# A maximum is flat: found to 1e-10 in its place, it is exact in value up to the quadrature.
MAXIMUM_TOLERANCE = 1e-10


def maximum(function: Callable[[float], float], bounds: tuple[float, float]) -> float:
    """Maximum over an interval: a grid, then Brent's method around its best point."""
    grid = np.linspace(*bounds, 200)
    best = grid[np.argmax([function(y) for y in grid])]
    step = grid[1] - grid[0]
    around = (max(best - step, bounds[0]), min(best + step, bounds[1]))
    found = optimize.minimize_scalar(lambda y: -function(y), bounds=around, method="bounded", options={"xatol": 1e-10})
    return -float(found.fun)


def bound(
    name: str,
    largest: Callable[[], float],
    claimed: float,
    *,
    sharp: float,
    against: Reference = Reference.OPTIMISATION,
) -> Check:
    """Return the check that a maximum does not exceed a claimed bound, which a bound below the sharp constant fails."""
    return Check(
        name=name,
        against=against,
        measure=lambda limit: max(0.0, largest() - limit),
        formula=claimed,
        tolerance=0.0,
        unit="excess",
        mutation=Mutation(description="bound below the maximum", formula=0.99 * sharp),
    )


def sharp_constant(
    name: str,
    largest: Callable[[], float],
    constant: float,
    *,
    against: Reference = Reference.OPTIMISATION,
    tolerance: float = MAXIMUM_TOLERANCE,
) -> Check:
    """Return the check that a maximum is the constant."""
    return Check(
        name=name,
        against=against,
        measure=lambda claimed: abs(largest() - claimed),
        formula=constant,
        tolerance=tolerance,
        mutation=Mutation(description="1 % off", formula=0.99 * constant),
    )
