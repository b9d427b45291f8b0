"""Every check agrees with its reference, rejects its mutation, and fails the printed form where the paper is wrong."""

import json
import subprocess
import sys

from joma.checks import checks
from joma.claims import Outcome, statements

MEASURE = """
import json
from joma.checks import checks

def distances(check):
    forms = {"formula": check.formula, "mutation": check.mutation.formula, "printed": check.printed}
    return {name: check.distance(form) for name, form in forms.items() if form is not None}

print(json.dumps({id: [distances(check) for check in own] for id, own in checks().items()}))
"""


def test_checks_hold_reject_their_mutation_and_fail_the_printed_form():
    """In a process of its own: checking shapes at every call of the theory would take ten times as long."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    wrong = []
    for id, own in checks().items():
        passes = [
            {form: distance <= check.tolerance for form, distance in distances.items()}
            for check, distances in zip(own, found[id], strict=True)
        ]
        wrong += [f"{id}: {check.name} fails" for check, each in zip(own, passes, strict=True) if not each["formula"]]
        wrong += [
            f"{id}: {check.name} passes mutated" for check, each in zip(own, passes, strict=True) if each["mutation"]
        ]
        printed_fails = any(each.get("printed") is False for each in passes)
        if own and printed_fails == (statements()[id].outcome is Outcome.HOLDS):
            wrong.append(f"{id}: the printed form {'fails' if printed_fails else 'passes'}, against the statement")
    assert not wrong, "\n".join(wrong)


def test_names_say_what_is_compared_and_differ_within_a_statement():
    for id, own in checks().items():
        names = [check.name for check in own]
        assert all(names)
        assert len(set(names)) == len(names), id
