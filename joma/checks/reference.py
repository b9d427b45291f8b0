"""The independent sides of checks, and how near a formula must come to each."""

from enum import StrEnum


class Reference(StrEnum):
    """The independent side of a check: never the function under test."""

    tolerance: float | None
    """The largest distance that counts as agreement, unless a check says otherwise."""

    def __new__(cls, name: str, tolerance: float | None = None) -> "Reference":
        """Keep the tolerance with the name."""
        member = str.__new__(cls, name)
        member._value_, member.tolerance = name, tolerance
        return member

    ODE = "ODE", 1e-9  # solvers at rtol 1e-12 over quantities of order one: errors stay below 1e-10
    CLOSED_FORM = "known closed form"
    QUADRATURE = "quadrature", 1e-10  # composite Gauss rules and adaptive quadrature reach 1e-12
    # Fourth order in steps of 1e-3, or eighth order: rounding of about 1e-11 is left.
    DIFFERENTIATION = "differentiation", 1e-9
    ENUMERATION = "enumeration", 0.0  # a count
    EXACT_RATIONALS = "exact rationals", 1e-15  # a few roundings of numbers below one
    # Standard errors: of 500 comparisons the largest exceeds this for 3 seeds in 1,000.
    MONTE_CARLO = "Monte Carlo", 4.5
    OPTIMISATION = "optimisation", 1e-6  # values are found to 1e-12; corners of the constraints are hit exactly
    ROOT_FINDING = "root finding", 1e-9  # roots are solved to 1e-12
    TRAINING = "training"
    LINEAR_ALGEBRA = "linear algebra", 1e-12  # rounding of vectors of order one


ODE, CLOSED_FORM, QUADRATURE, DIFFERENTIATION, ENUMERATION, EXACT_RATIONALS, *_others = Reference
MONTE_CARLO, OPTIMISATION, ROOT_FINDING, TRAINING, LINEAR_ALGEBRA = _others
