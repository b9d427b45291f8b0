"""The independent sides of checks, and how near a formula must come to each."""

from enum import StrEnum


class Reference(StrEnum):
    """The independent side of a check: never the function under test."""

    ODE = "ODE"
    CLOSED_FORM = "known closed form"
    QUADRATURE = "quadrature"
    DIFFERENTIATION = "differentiation"
    ENUMERATION = "enumeration"
    EXACT_RATIONALS = "exact rationals"
    MONTE_CARLO = "Monte Carlo"
    OPTIMISATION = "optimisation"
    ROOT_FINDING = "root finding"
    TRAINING = "training"
    LINEAR_ALGEBRA = "linear algebra"


(
    ODE,
    CLOSED_FORM,
    QUADRATURE,
    DIFFERENTIATION,
    ENUMERATION,
    EXACT_RATIONALS,
    MONTE_CARLO,
    OPTIMISATION,
    ROOT_FINDING,
    TRAINING,
    LINEAR_ALGEBRA,
) = Reference
TOLERANCES = {
    Reference.ODE: 1e-9,  # solvers at rtol 1e-12 over quantities of order one: errors stay below 1e-10
    Reference.QUADRATURE: 1e-10,  # composite Gauss rules and adaptive quadrature reach 1e-12
    Reference.DIFFERENTIATION: 1e-9,  # fourth order in steps of 1e-3, or eighth order: rounding of about 1e-11 is left
    Reference.ENUMERATION: 0.0,  # a count
    Reference.EXACT_RATIONALS: 1e-15,  # a few roundings of numbers below one
    Reference.MONTE_CARLO: 4.5,  # standard errors: of 500 comparisons the largest exceeds this for 3 seeds in 1,000
    Reference.OPTIMISATION: 1e-6,  # values are found to 1e-12; corners of the constraints are hit exactly
    Reference.ROOT_FINDING: 1e-9,  # roots are solved to 1e-12
    Reference.LINEAR_ALGEBRA: 1e-12,  # rounding of vectors of order one
}
"""The largest distance that counts as agreement with a reference, unless a check says otherwise."""
