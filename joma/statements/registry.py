"""What a statement of the paper is here: its printed form, its verdict, and the checks that can refute both."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from joma.verdicts import Outcome


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """A wrong formula that the check must reject: the proof that the check can fail."""

    description: str
    """What was changed, for example `erf argument 1 % off`."""
    formula: Any
    """The changed formula, of the same kind as the check's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A distance between a formula, given as an argument, and an independent reference."""

    name: str
    """What is compared, in one line."""
    against: Reference
    measure: Callable[[Any], float]
    """Formula in, distance from the reference out. Seeded; holds no formula of its own."""
    formula: Any
    """The corrected form: a function of `joma.theory`, or the hypothesis or constant that the claim rests on."""
    tolerance: float
    """The largest distance that counts as agreement; its reason stands in a comment beside it."""
    mutation: Mutation
    printed: Any = None
    """The form as printed, or the claim without its condition; None where it is the same as `formula`."""
    unit: str = "max abs error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A numbered statement of the paper with the verdict that its checks must bear out."""

    id: str
    """Short and typeable: `thm2`, `lemma5`, `eqn8`, `fig4`."""
    title: str
    place: str
    """Where in the paper, with numbers: `Section 3.1, Theorem 2, Eqns 4 and 22`."""
    printed: str
    """The form as printed, in one line of plain mathematics."""
    outcome: Outcome
    """The verdict that we claim; `verify` fails when the checks do not bear it out."""
    explanation: str
    """Why: what breaks, what is needed, in a few sentences for someone with the paper open."""
    checks: tuple[Check, ...]
    corrected: str = ""
    """The form that holds; empty when the printed one does."""
    remark: str = ""
    """What is worth knowing beside the two forms: on what a number depends, where else it holds; empty for nothing."""
