"""Every check agrees with its reference, rejects its mutations, and fails the printed form where the paper is wrong."""

import json
import subprocess
import sys

import pytest

from joma import theory
from joma.checks import checks
from joma.claims import Outcome, statements

MEASURE = """
import json, sys
from joma import theory
from joma.checks import checks

called = set()

def note(frame, event, argument):
    if event == "call" and frame.f_globals.get("__name__", "").startswith("joma.theory."):
        called.add(frame.f_code.co_qualname)

def distances(check):
    sys.setprofile(note)
    value = check.distance(check.formula)
    sys.setprofile(None)
    wrong = [check.distance(mutation.formula) for mutation in check.mutations]
    return value, wrong, None if check.printed is None else check.distance(check.printed)

found = {id: [distances(check) for check in own] for id, own in checks().items()}
print(json.dumps([found, sorted(called)]))
"""


@pytest.fixture(scope="module")
def measured():
    """In a process of its own: checking shapes at every call of the theory would take ten times as long."""
    return json.loads(
        subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True).stdout
    )


def test_checks_hold_reject_their_mutations_and_fail_the_printed_form(measured):
    wrong = []
    for id, own in checks().items():
        assert own, f"{id} has no check"
        printed_fails = False
        for check, (value, mutated, printed) in zip(own, measured[0][id], strict=True):
            wrong += [f"{id}: {check.name} fails"] if not value <= check.tolerance else []
            passes = (
                each.description for each, d in zip(check.mutations, mutated, strict=True) if d <= check.tolerance
            )
            wrong += [f"{id}: {check.name} passes mutated: {each}" for each in passes]
            printed_fails |= printed is not None and not printed <= check.tolerance
        if printed_fails == (statements()[id].outcome is Outcome.HOLDS):
            wrong.append(f"{id}: the printed form {'fails' if printed_fails else 'passes'}, against the statement")
    assert not wrong, "\n".join(wrong)


def homes(name):
    """Return a function's name, and for a method those of the classes above and below that may hold its code."""
    first, *rest = name.split(".")
    kinds = (*getattr(theory, first).__mro__, *getattr(theory, first).__subclasses__()) if rest else ()
    return [f"{name}.", *(f"{kind.__name__}.{rest[0]}." for kind in kinds)]


def test_checks_run_the_functions_that_compute_a_statement(measured):
    named = {name for statement in statements().values() for name in statement.computed_by}
    called = [f"{each}." for each in measured[1]]
    assert not {name for name in named if not any(each.startswith(tuple(homes(name))) for each in called)}


def test_names_say_what_is_compared_and_differ_within_a_statement():
    for id, own in checks().items():
        names = [check.name for check in own]
        assert all(names)
        assert len(set(names)) == len(names), id
