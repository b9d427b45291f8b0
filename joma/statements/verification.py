"""`verify`: runs the checks of statements and turns them into verdicts."""

import importlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from joma.errors import UnknownNameError, in_any_case
from joma.statements.registry import Check, Statement
from joma.verdicts import Evidence, Outcome, Verdict

MODULES = (
    "setting",
    "theorem1",
    "theorem2",
    "isotropic",
    "theorem3",
    "theorem4",
    "theorem5",
    "multilayer",
)
"""Files of this folder that hold statements, in the paper's order; each exports `STATEMENTS`."""


@cache
def registry() -> dict[str, Statement]:
    """Return every statement by id, in the paper's order."""
    found: dict[str, Statement] = {}
    for module in MODULES:
        for statement in importlib.import_module(f"joma.statements.{module}").STATEMENTS:
            if statement.id in found:
                raise ValueError(f"Two statements have the id {statement.id!r}. Rename the one in {module}.py.")
            found[statement.id] = statement
    return found


def find(ids: str | Iterable[str] | None = None) -> list[Statement]:
    """Return the statements with these ids (one, or all for None), each once, refusing unknown ids with the nearest.

    Case does not count, and what is no id itself stands for its family: `thm1` for `thm1-linear` and the other parts of
    Theorem 1, `lemma` for all lemmas.
    """
    known = registry()
    if ids is None:
        return list(known.values())
    given = [ids] if isinstance(ids, str) else list(ids)
    wanted = dict.fromkeys(each for name in given for each in _family(name))
    return [known[name] for name in wanted]


def _family(name: str) -> list[str]:
    """Return an id as it is written, or the ids of the family that it names."""
    known = registry()
    exact = in_any_case(name, known)
    part = re.compile(re.escape(name) + r"(-|(?<!\d)\d)", re.IGNORECASE)  # thm1 has the part thm1-exp, and not thm10
    family = [exact] if exact in known else [each for each in known if part.match(each)]
    if not family:
        raise UnknownNameError("statement", name, known, listing="`joma verify --list`")
    return family


def verify(
    ids: str | Sequence[str] | None = None, *, progress: Callable[[Verdict], None] | None = None
) -> list[Verdict]:
    """Check statements of the paper numerically and return one verdict for each.

    `ids` is a statement id or several (`registry()` lists them), or a family of them, such as `thm1`; None checks all.
    `progress` is called after each.

    >>> [verdict] = verify(["thm2"])
    >>> verdict.outcome.value, verdict.sound
    ('refuted', True)
    """
    verdicts = []
    for statement in find(ids):
        verdict = judge(statement)
        verdicts.append(verdict)
        if progress is not None:
            progress(verdict)
    return verdicts


def judge(statement: Statement) -> Verdict:
    """Run one statement's checks; the verdict is sound when they bear out the outcome that the registry claims."""
    evidence = tuple(run(check) for check in statement.checks)
    return Verdict(
        id=statement.id,
        title=statement.title,
        source=statement.place,
        claim=statement.printed,
        outcome=statement.outcome,
        explanation=statement.explanation,
        correction=statement.corrected,
        evidence=evidence,
        sound=_bears_out(statement.outcome, evidence),
    )


def run(check: Check) -> Evidence:
    """Measure one check's formula, and its printed form where that differs."""
    begun = time.perf_counter()
    value = float(check.measure(check.formula))
    control = None if check.printed is None else float(check.measure(check.printed))
    return Evidence(
        name=check.name,
        against=check.against.value,
        unit=check.unit,
        value=value,
        threshold=check.tolerance,
        control=control,
        control_name="" if control is None else "as printed",
        seconds=time.perf_counter() - begun,
    )


def _bears_out(outcome: Outcome, evidence: Sequence[Evidence]) -> bool:
    """Every corrected form holds; the printed one fails somewhere unless the statement is said to hold."""
    if not evidence or not all(e.holds for e in evidence):
        return False
    printed_fails = any(e.control_holds is False for e in evidence)
    return printed_fails == (outcome is not Outcome.HOLDS)
