"""The rule that turns numbers into outcomes, on numbers whose outcome is known."""

import math

import numpy as np
import pytest

from joma.claims import Answer, Claim, Number, Outcome, answer, judge, outcome_of
from joma.claims.claim import holm
from joma.claims.statements import find, statements
from joma.errors import UnknownNameError

RISE = [0.30, 0.34, 0.32, 0.31]
NONE = [0.02, -0.01, 0.0, 0.01]


def claim(numbers, **options):
    fields = {"id": "c", "title": "t", "says": "s", "source": "p"} | options
    return Claim(**fields, numbers=lambda tables: numbers)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (Number.mean("x", RISE, at_least=0.1), Outcome.HOLDS),
        (Number.mean("x", RISE, control=NONE, at_least=0.1), Outcome.HOLDS),
        (Number.mean("x", RISE, control=RISE, at_least=0.1), Outcome.MATCHES_CONTROL),
        (Number.mean("x", RISE, control=[5 * each for each in RISE], at_least=0.1), Outcome.MATCHES_CONTROL),
        (Number.mean("x", RISE, control=[0.5], at_least=0.1), Outcome.UNDECIDED),
        (Number.mean("x", RISE, at_least=0.32), Outcome.UNDECIDED),
        (Number.mean("x", RISE, at_least=0.5), Outcome.REFUTED),
        (Number.mean("x", RISE, at_most=0.1), Outcome.REFUTED),
        (Number.mean("x", NONE, control=RISE, at_most=0.1), Outcome.HOLDS),
        (Number.mean("x", RISE, at_least=0.2, at_most=0.4), Outcome.HOLDS),
        (Number.mean("x", RISE, at_least=0.0, at_most=0.2), Outcome.REFUTED),
        (Number.mean("x", RISE[:1], at_least=0.1), Outcome.UNDECIDED),
        (Number.mean("x", [], at_least=0.1), Outcome.UNDECIDED),
        (Number.mean("x", RISE), Outcome.REPORTED),
        (Number.exact("x", 1e-12, at_most=1e-9), Outcome.HOLDS),
        (Number.exact("x", 1e-12, at_most=1e-9, control=0.1), Outcome.HOLDS),
        (Number.exact("x", 1e-12, at_most=1e-9, control=1e-10), Outcome.MATCHES_CONTROL),
        (Number.exact("x", 1e-12, at_most=1e-9, control=math.nan), Outcome.UNDECIDED),
        (Number.exact("x", 1e-3, at_most=1e-9), Outcome.REFUTED),
        (Number.exact("x", math.nan, at_most=1e-9), Outcome.UNDECIDED),
    ],
)
def test_outcome_of_one_number(number, outcome):
    assert outcome_of(number) is outcome


def test_interval_covers_the_mean_in_95_percent_of_samples():
    rng = np.random.default_rng(0)
    intervals = [Number.mean("x", rng.normal(1.0, 2.0, size=5)).interval() for _ in range(2000)]
    assert np.mean([low <= 1.0 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.015)


def test_pairs_remove_what_seeds_share():
    shared = np.array([0.0, 10.0, 20.0, 30.0])
    values, control = shared + np.array([1.0, 1.1, 0.9, 1.0]), shared
    apart = Number.mean("x", values, control=control, at_least=-100.0)
    paired = Number.mean("x", values, control=control, paired=True, at_least=-100.0)
    assert outcome_of(apart) is Outcome.MATCHES_CONTROL
    assert outcome_of(paired) is Outcome.HOLDS


def test_a_claim_says_in_which_settings_it_holds():
    numbers = [
        Number.mean("rise", RISE, at_least=0.1, setting="depth 1"),
        Number.mean("rise", NONE, at_least=0.1, setting="depth 5"),
    ]
    found = answer(claim(numbers), numbers, tested_by="e")
    assert found.outcome is Outcome.MIXED
    assert found.settings == {"depth 1": Outcome.HOLDS, "depth 5": Outcome.REFUTED}
    assert found.main is numbers[0]


def test_the_weakest_number_of_a_setting_counts():
    numbers = [Number.mean("a", RISE, at_least=0.1), Number.mean("b", RISE, at_least=0.5)]
    assert answer(claim(numbers), numbers, tested_by="e").outcome is Outcome.REFUTED


def test_a_failing_check_of_our_own_decides_nothing():
    numbers = [Number.mean("a", RISE, at_least=0.1), Number.exact("ours", 1.0, at_most=1e-9, sanity=True)]
    found = answer(claim(numbers), numbers, tested_by="e")
    assert found.outcome is Outcome.FAULTY
    assert not found.sound


def test_secondary_claims_and_empty_ones_have_no_outcome():
    numbers = [Number.mean("a", RISE, at_least=0.1)]
    assert answer(claim(numbers, primary=False), numbers, tested_by="e").outcome is Outcome.REPORTED
    assert answer(claim([]), [], tested_by="e").outcome is Outcome.NOT_RUN


def test_more_than_three_primary_claims_are_refused_unless_exact():
    seeds = [claim([Number.mean("a", RISE, at_least=0.1)], id=f"c{i}") for i in range(4)]
    with pytest.raises(ValueError, match="at most 3"):
        judge(seeds, None, tested_by="e")
    exact = [claim([Number.exact("a", 1.0, at_least=0.1)], id=f"c{i}") for i in range(4)]
    assert {each.outcome for each in judge(exact, None, tested_by="e")} == {Outcome.HOLDS}


def test_holm_keeps_the_error_of_a_family_below_5_percent():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(600):
        claims = [claim([Number.mean("x", rng.normal(size=6), at_least=0.0)], id=str(i)) for i in range(3)]
        wrong += any(each.outcome is not Outcome.UNDECIDED for each in judge(claims, None, tested_by="e"))
    assert wrong / 600 <= 0.08  # three standard errors above 5 %


def test_holm_stops_at_the_first_open_claim():
    assert holm({"a": 0.2, "b": 0.3}) == {"a": 0.975, "b": 1.0}


def test_numbers_survive_json():
    number = Number.mean("x", RISE, control=NONE, at_least=0.1, at_most=math.inf, published=0.3)
    odd = number.model_copy(update={"control": math.nan})
    again = Number.model_validate_json(odd.model_dump_json())
    assert math.isnan(again.control)
    assert again.model_copy(update={"control": number.control}) == number


def test_families_of_statements():
    assert find("THM5")[0].id.startswith("thm5")
    assert len(find("thm5")) > 1
    assert {each.id for each in find("thm1")} == {id for id in statements() if id.startswith("thm1-")}
    assert len(find()) == len(statements())
    with pytest.raises(UnknownNameError):
        find("thm99")


def test_every_statement_that_does_not_hold_as_printed_says_what_does():
    for statement in statements().values():
        assert bool(statement.corrected) == (statement.outcome is not Outcome.HOLDS), statement.id


def test_a_statement_that_is_wrong_as_printed_shows_a_check_that_the_printed_form_fails():
    near = Number.exact("near its tolerance", 0.9, at_most=1.0)
    printed = Number.exact("fails as printed", 0.1, at_most=1.0, control=5.0, control_name="as printed")
    for outcome, shown in ((Outcome.WRONG, printed), (Outcome.CONDITIONAL, printed), (Outcome.HOLDS, near)):
        found = Answer(claim="c", title="t", says="s", source="s", outcome=outcome, numbers=(near, printed))
        assert found.main == shown
