"""What a check is: a distance between a formula and an independent reference, with a wrong formula that it rejects."""

import hashlib
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from joma.checks.reference import MONTE_CARLO, Reference
from joma.claims.claim import Answer, Outcome
from joma.claims.number import Number
from joma.claims.statements import Statement, find, statements

Draw = Callable[[np.random.Generator], Iterable[Any]]
"""Draws random cases in which no parameter sits at its default."""


class Mutation(NamedTuple):
    """A wrong formula that a check must reject: the proof that the check can fail."""

    description: str
    """What was changed, for example `argument of erf 1 % off`."""
    formula: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A distance between a formula, given as an argument, and an independent reference; for fields see `check`."""

    claim: str
    name: str
    measure: Callable[..., Any]
    """Formula in, distance from the reference out; with `over` a case follows the formula."""
    against: Reference
    formula: Any
    """The corrected form: functions of `joma.theory`, or the hypothesis or constant that the statement rests on."""
    tolerance: float
    mutations: tuple[Mutation, ...]
    """Wrong formulas; the check must reject each."""
    printed: Any
    unit: str
    over: Draw | Sequence[Any] | None

    def distance(self, formula: Any) -> float:
        """Return the largest distance of a formula from the reference over all cases."""
        drawn = cases(self.over) if callable(self.over) else [()] if self.over is None else self.over
        spread = (case if type(case) is tuple else (case,) for case in drawn)
        return max(_largest(self.measure(formula, *case)) for case in spread)

    def number(self) -> Number:
        """Measure the formula, and the printed form where it differs."""
        begun = time.perf_counter()
        fields: dict[str, Any] = {"unit": self.unit, "at_most": self.tolerance}
        value = self.distance(self.formula)
        if self.printed is not None:
            fields |= {"control": self.distance(self.printed), "control_name": "as printed"}
        seconds = time.perf_counter() - begun
        return Number.exact(self.name, value, **fields, against=self.against.value, seconds=seconds)


def _largest(found: Any) -> float:
    """Return a distance, or the largest of an array or of several differences; what is not a number is infinite."""
    several = isinstance(found, tuple | Iterator)
    is_distance = not several and np.ndim(found) == 0
    size = float(found) if is_distance else max(float(np.abs(part).max()) for part in (found if several else (found,)))
    return size if np.isfinite(size) else np.inf


CHECKS: list[Check] = []  # every check, in the order of the files


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

    The function returns a distance, differences in an array, or several of these, or yields them; the largest counts.

    Args:
        claim: Id of the statement in `statements.toml`.
        against: The independent side.
        formula: What is checked, the first argument of the function; several functions may come as a tuple.
        tolerance: The largest distance that counts as agreement; that of the reference when None.
        mutation: A wrong formula that must be rejected; by default a result 1 % off, of each function in turn.
        printed: The form as printed, where it differs from `formula`.
        unit: What the distance means.
        over: The cases, or what draws them. The function gets one at a time, a tuple as several arguments; the largest
            distance counts.
        name: What is compared; the first line of the function's docstring when empty.

    Long ones of these have decorators of their own, defined below: `rejects`, `as_printed` and `over`.
    """
    errors = "standard errors" if against is MONTE_CARLO and tolerance is None else "max abs error"
    at_most = against.tolerance if tolerance is None else tolerance
    assert at_most is not None, f"{claim} needs a tolerance"

    def register(measure: Any) -> Any:
        given = vars(measure)
        CHECKS.append(
            Check(
                claim=claim,
                name=name or (measure.__doc__ or "").strip().splitlines()[0].rstrip("."),
                measure=measure,
                against=against,
                formula=formula,
                tolerance=at_most,
                mutations=(mutation,) if mutation else given.get("mutations") or _scaled_in_turn(formula),
                printed=given.get("printed") if printed is None else printed,
                unit=unit or errors,
                over=given.get("over") if over is None else over,
            )
        )
        return measure

    return register


def rejects(description: str, formula: Any) -> Callable[[Any], Any]:
    """Give a check, from below its decorator, a wrong formula that it must reject; it may have several."""

    def keep(measure: Any) -> Any:
        measure.mutations = (Mutation(description, formula), *getattr(measure, "mutations", ()))
        return measure

    return keep


def _with(attribute: str, value: Any) -> Callable[[Any], Any]:
    def keep(measure: Any) -> Any:
        setattr(measure, attribute, value)
        return measure

    return keep


as_printed = partial(_with, "printed")
"""Give a check, from below its decorator, the form as printed."""
over = partial(_with, "over")
"""Give a check, from below its decorator, its cases."""


def scaled(formula: Callable[..., Any], factor: float = 1.01) -> Mutation:
    """Return the mutation whose result is off by a factor."""
    return Mutation(f"result times {factor:g}", lambda *args, **options: factor * np.asarray(formula(*args, **options)))


def _scaled_in_turn(formula: Any) -> tuple[Mutation, ...]:
    if not isinstance(formula, tuple):
        return (scaled(formula),)
    off = [(*formula[:i], scaled(each).formula, *formula[i + 1 :]) for i, each in enumerate(formula)]
    names = [f"{each.__name__.strip('_')} times 1.01" for each in formula]
    return tuple(map(Mutation, names, off))


@cache
def cases(draw: Draw) -> Sequence[Any]:
    """Return the cases that a function draws, the same in every run."""
    seed = int.from_bytes(hashlib.sha256(draw.__qualname__.encode()).digest()[:8], "big")
    return tuple(draw(np.random.default_rng(seed)))


@cache
def checks() -> dict[str, tuple[Check, ...]]:
    """Return the checks of every statement, by its id."""
    for module in pkgutil.iter_modules(sys.modules[__package__].__path__):
        importlib.import_module(f"{__package__}.{module.name}")
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
    return Answer.to(statement, outcome=statement.outcome if is_borne_out else Outcome.FAULTY, numbers=numbers)
