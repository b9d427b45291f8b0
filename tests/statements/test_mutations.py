"""Every check can fail: it accepts its formula and rejects the mutation that it declares."""

import pytest

from joma.statements.verification import registry, run

CHECKS = {f"{statement.id}: {check.name}": check for statement in registry().values() for check in statement.checks}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_the_formula_passes_and_its_mutation_is_caught(check):
    assert run(check).holds
    caught = check.measure(check.mutation.formula)
    assert not caught <= check.tolerance, f"{check.mutation.description} passed with {caught:.3g}"


def test_every_statement_has_a_check_and_every_check_a_mutation():
    for statement in registry().values():
        assert statement.checks, f"{statement.id} has no check"
        for check in statement.checks:
            assert check.mutation.description, f"{statement.id}: {check.name} declares no mutation"
            assert check.mutation.formula is not check.formula
            assert check.mutation.formula is not check.printed
