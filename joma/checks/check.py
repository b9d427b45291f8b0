"""What a check is: a distance between a formula and an independent reference, with a wrong formula that it rejects."""

import hashlib
import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from joma.claims.claim import Answer, Outcome
from joma.claims.number import Number
from joma.claims.statements import Statement, find, statements

MODULES = (
    "setting",
    "theorem1",
    "learned_embeddings",
    "softmax",
    "theorem2",
    "isotropic",
    "figure9",
    "critical_points",
    "theorem3",
    "theorem4",
    "figure4",
    "theorem5",
    "note",
)
"""Files of this folder that hold checks, in the paper's order."""

Draw = Callable[[np.random.Generator], Sequence[Any]]
"""Draws random cases in which no parameter sits at its default."""


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


class Mutation(NamedTuple):
    """A wrong formula that a check must reject: the proof that the check can fail."""

    description: str
    """What was changed, for example `argument of erf 1 % off`."""
    formula: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A distance between a formula, given as an argument, and an independent reference."""

    claim: str
    """Id of the statement."""
    name: str
    """What is compared, in one line."""
    measure: Callable[..., float]
    """Formula in, distance from the reference out; with `over` a case follows the formula."""
    against: Reference
    formula: Any
    """The corrected form: a function of `joma.theory`, or the hypothesis or constant that the statement rests on."""
    tolerance: float
    """The largest distance that counts as agreement."""
    mutation: Mutation
    printed: Any
    """The form as printed; None where it is the same as `formula`."""
    unit: str
    over: Draw | Sequence[Any] | None

    def distance(self, formula: Any) -> float:
        """Return the largest distance of a formula from the reference over all cases."""
        if self.over is None:
            return float(self.measure(formula))
        drawn = cases(self.over) if callable(self.over) else self.over
        spread = (case if type(case) is tuple else (case,) for case in drawn)
        return float(np.max([self.measure(formula, *case) for case in spread]))

    def number(self) -> Number:
        """Measure the formula, and the printed form where it differs."""
        begun = time.perf_counter()
        value = self.distance(self.formula)
        control = None if self.printed is None else self.distance(self.printed)
        return Number.exact(
            self.name,
            value,
            unit=self.unit,
            at_most=self.tolerance,
            control=control,
            control_name="" if control is None else "as printed",
            against=self.against.value,
            seconds=time.perf_counter() - begun,
        )


CHECKS: list[Check] = []
"""Every check, in the order of the files."""


def check(
    claim: str,
    against: Reference,
    formula: Any,
    tolerance: float | None = None,
    *,
    mutation: Mutation | None = None,
    printed: Any = None,
    unit: str = "",
    over: Draw | Sequence[Any] | None = None,
    name: str = "",
) -> Callable[[Any], Any]:
    """Register a function that measures how far a formula is from an independent reference.

    Args:
        claim: Id of the statement in `statements.toml`.
        against: The independent side.
        formula: What is checked; it is the first argument of the function.
        tolerance: The largest distance that counts as agreement; that of the reference when None.
        mutation: A wrong formula that must be rejected; by default a result 1 % off.
        printed: The form as printed, where it differs from `formula`.
        unit: What the distance means.
        over: The cases, or what draws them. The function gets one at a time, a tuple as several arguments; the largest
            distance counts.
        name: What is compared; the first line of the function's docstring when empty.

    Long ones of these have decorators of their own, which stand below: `rejects`, `as_printed` and `over`.
    """
    errors = "standard errors" if against is Reference.MONTE_CARLO and tolerance is None else "max abs error"

    def register(measure: Any) -> Any:
        CHECKS.append(
            Check(
                claim=claim,
                name=name or (measure.__doc__ or "").strip().splitlines()[0].rstrip("."),
                measure=measure,
                against=against,
                formula=formula,
                tolerance=TOLERANCES[against] if tolerance is None else tolerance,
                mutation=mutation or getattr(measure, "mutation", None) or scaled(formula),
                printed=getattr(measure, "printed", None) if printed is None else printed,
                unit=unit or errors,
                over=getattr(measure, "over", None) if over is None else over,
            )
        )
        return measure

    return register


def rejects(description: str, formula: Any) -> Callable[[Any], Any]:
    """Give a check, from below its decorator, the wrong formula that it must reject."""
    return _with(mutation=Mutation(description, formula))


def as_printed(formula: Any) -> Callable[[Any], Any]:
    """Give a check, from below its decorator, the form as printed."""
    return _with(printed=formula)


def over(cases: Draw | Sequence[Any]) -> Callable[[Any], Any]:
    """Give a check, from below its decorator, its cases."""
    return _with(over=cases)


def _with(**attributes: Any) -> Callable[[Any], Any]:
    def keep(measure: Any) -> Any:
        vars(measure).update(attributes)
        return measure

    return keep


def scaled(formula: Callable[..., Any], factor: float = 1.01) -> Mutation:
    """Return the mutation whose result is off by a factor."""
    return Mutation(f"result times {factor:g}", lambda *args, **options: factor * np.asarray(formula(*args, **options)))


@cache
def cases(draw: Draw) -> Sequence[Any]:
    """Return the cases that a function draws, the same in every run."""
    seed = int.from_bytes(hashlib.sha256(draw.__qualname__.encode()).digest()[:8], "big")
    return draw(np.random.default_rng(seed))


@cache
def checks() -> dict[str, tuple[Check, ...]]:
    """Return the checks of every statement, by its id."""
    for module in MODULES:
        importlib.import_module(f"joma.checks.{module}")
    unknown = {each.claim for each in CHECKS} - statements().keys()
    assert not unknown, f"checks of statements that do not exist: {unknown}"
    return {id: tuple(each for each in CHECKS if each.claim == id) for id in statements()}


def verify(ids: str | Iterable[str] | None = None, *, progress: Callable[[Answer], None] | None = None) -> list[Answer]:
    """Check statements of the paper numerically and return one answer for each.

    Args:
        ids: A statement, a family of them such as `thm1`, or several; all when None.
        progress: Called after each.

    >>> [answer] = verify(["thm2-limit"])
    >>> answer.outcome.value, answer.sound
    ('holds under a condition', True)
    """
    answers = []
    for statement in find(ids):
        numbers = tuple(each.number() for each in checks()[statement.id])
        answers.append(_answer(statement, numbers))
        if progress is not None:
            progress(answers[-1])
    return answers


def _answer(statement: Statement, numbers: tuple[Number, ...]) -> Answer:
    """Return the outcome that the file claims if the checks bear it out.

    Every corrected form must agree with its reference, and the printed form must fail somewhere unless it holds.
    """
    agrees = bool(numbers) and all(each.passes(each.value) for each in numbers)
    printed_fails = any(each.control is not None and not each.passes(each.control) for each in numbers)
    is_borne_out = agrees and printed_fails == (statement.outcome is not Outcome.HOLDS)
    return Answer(
        claim=statement.id,
        title=statement.title,
        says=statement.says,
        source=statement.source,
        outcome=statement.outcome if is_borne_out else Outcome.FAULTY,
        numbers=numbers,
        ours=statement.ours,
    )
