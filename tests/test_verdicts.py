"""What evidence says of its claim."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.verdicts import CHECK_FAILS, Evidence, Finding, Outcome, Ruling, Verdict, finding, ruling, seeds_say

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def evidence(value: float, threshold: float, **changes) -> Evidence:
    return Evidence(name="n", against="ODE", unit="u", value=value, threshold=threshold, **changes)


def verdict(*rows: Evidence) -> Verdict:
    return Verdict(id="x", title="t", source="s", claim="c", outcome=Outcome.HOLDS, evidence=rows)


@given(value=NUMBERS, threshold=NUMBERS)
def test_at_least_turns_the_comparison_round(value, threshold):
    assert evidence(value, threshold).holds == (value <= threshold)
    assert evidence(value, threshold, at_least=True).holds == (value >= threshold)
    assert evidence(0.0, threshold, control=value, at_least=True).control_holds == (value >= threshold)


@pytest.mark.parametrize("at_least", [False, True])
def test_nan_never_holds(at_least):
    row = evidence(math.nan, 1.0, control=math.nan, at_least=at_least)
    assert not row.holds and row.control_holds is False


def test_the_evidence_nearest_to_its_threshold_is_shown_first():
    far, near = evidence(10.0, 1.0, at_least=True), evidence(1.1, 1.0, at_least=True)
    assert verdict(far, near).decisive is near
    assert verdict(near, evidence(0.1, 1.0)).decisive is near
    failing = evidence(0.9, 1.0, at_least=True)
    assert verdict(near, failing).decisive is failing


def test_an_open_verdict_shows_the_failing_number_that_might_yet_pass():
    below, control = (evidence(value, 1.0, at_least=True, control=0.1) for value in (-2.0, 0.5))
    might = evidence(0.9, 1.0, at_least=True, control=1.5)
    rows = below, control, might, evidence(math.nan, 1.0), evidence(1.1, 1.0, at_least=True)
    assert replace(verdict(*rows), outcome=Outcome.INCONCLUSIVE).decisive is might
    assert replace(verdict(*rows), outcome=Outcome.REFUTED).decisive is not might


def test_verdicts_survive_json_and_old_records_are_read():
    full = verdict(evidence(0.9, 0.5, at_least=True, published=0.93, control=0.1, control_name="untrained"))
    assert Verdict.from_dict(full.as_dict()) == full
    old = verdict(evidence(0.1, 0.5)).as_dict()
    for name in ("at_least", "published"):
        del old["evidence"][0][name]
    assert Verdict.from_dict(old) == verdict(evidence(0.1, 0.5))


def test_infinite_numbers_survive_json_and_old_records_have_null_for_them():
    full = verdict(
        evidence(math.inf, 0.5, at_least=True, control=-math.inf, control_name="inf"), evidence(1.0, math.inf)
    )
    written = json.loads(json.dumps(full.as_dict(), allow_nan=False))
    assert Verdict.from_dict(written) == full
    written["evidence"][0] |= {"value": None, "control": None}
    old = Verdict.from_dict(written).evidence[0]
    assert math.isnan(old.value) and old.lacks_control


SHOWN, MATCHED, FAILED, OPEN = Finding.SHOWN, Finding.MATCHED, Finding.FAILED, Finding.OPEN
RULE = [
    ([SHOWN, SHOWN], {}, Outcome.HOLDS),
    ([SHOWN, FAILED], {}, Outcome.CONDITIONAL),
    ([SHOWN, FAILED], {"everywhere": True}, Outcome.REFUTED),
    ([SHOWN, OPEN], {"everywhere": True}, Outcome.CONDITIONAL),
    ([SHOWN, MATCHED], {}, Outcome.CONDITIONAL),
    ([MATCHED], {}, Outcome.CONDITIONAL),
    ([FAILED, FAILED], {}, Outcome.REFUTED),
    ([FAILED, OPEN], {}, Outcome.INCONCLUSIVE),
    ([], {}, Outcome.INCONCLUSIVE),
    ([SHOWN], {"besides": [SHOWN]}, Outcome.HOLDS),
    ([SHOWN], {"besides": [FAILED]}, Outcome.CONDITIONAL),
    ([SHOWN], {"besides": [MATCHED]}, Outcome.CONDITIONAL),
    ([FAILED], {"besides": [SHOWN]}, Outcome.REFUTED),
]


@pytest.mark.parametrize(("settings", "more", "outcome"), RULE)
def test_what_settings_say_together(settings, more, outcome):
    found = ruling(settings, **more)
    assert found.outcome is outcome
    assert found.control_passes == (MATCHED in [*settings, *more.get("besides", [])])


def test_a_setting_is_as_good_as_its_worst_number():
    good, bad, unknown = (evidence(value, 1.0) for value in (0.5, 2.0, math.nan))
    matched = evidence(0.5, 1.0, control=0.7)
    assert finding(good, evidence(0.5, 1.0, control=3.0)) is SHOWN
    assert finding(good, matched) is MATCHED
    assert finding(matched, bad, unknown) is FAILED
    assert finding(matched, unknown) is OPEN and finding() is OPEN
    assert seeds_say(True, matched) is MATCHED and seeds_say(None, matched) is OPEN


def test_a_control_that_was_not_measured_leaves_the_claim_open():
    unknown = evidence(0.5, 1.0, control=math.nan)
    failing, matched = evidence(2.0, 1.0, control=math.nan), evidence(0.5, 1.0, control=0.7)
    assert finding(unknown) is OPEN and seeds_say(True, unknown) is OPEN
    assert ruling([finding(unknown)]).outcome is Outcome.INCONCLUSIVE
    assert finding(failing) is FAILED and seeds_say(False, failing) is FAILED
    assert finding(unknown, matched) is MATCHED  # whatever the other control is, one passes


def ruled(found: Ruling, *rows: Evidence, correction: str = "half of it") -> Verdict:
    return found.verdict(
        id="x", title="t", source="s", claim="c", explanation="Why.", correction=correction, evidence=rows
    )


def test_a_verdict_says_what_holds_only_where_the_claim_does_not():
    assert {outcome: ruled(Ruling(outcome)).correction for outcome in Outcome} == {
        Outcome.HOLDS: "",
        Outcome.CONDITIONAL: "half of it",
        Outcome.REFUTED: "half of it",
        Outcome.INCONCLUSIVE: "",
        Outcome.NOT_RUN: "",
    }
    with pytest.raises(AssertionError, match="x is refuted and does not say what holds"):
        ruled(Ruling(Outcome.REFUTED), correction="")


def test_a_control_that_passes_as_well_is_told_and_shown_first():
    failing = evidence(2.0, 1.0, control=3.0, control_name="frozen")
    matched = evidence(0.5, 1.0, control=0.7, control_name="untrained")
    found = ruled(ruling([finding(failing), finding(matched)]), failing, matched)
    assert (found.outcome, found.control_passes) == (Outcome.CONDITIONAL, True)
    assert found.explanation == "Why. The control passes as well: untrained."
    assert found.decisive is matched
    assert Verdict.from_dict(found.as_dict()) == found
    with pytest.raises(AssertionError, match="x holds, and so does its control"):
        ruled(Ruling(Outcome.HOLDS), matched)


def test_what_does_not_decide_is_not_shown_first():
    beside = evidence(2.0, 1.0, decides=False)
    decides = evidence(0.5, 1.0)
    assert verdict(beside, decides).decisive is decides
    matched = evidence(0.5, 1.0, control=0.7, decides=False)
    assert replace(verdict(matched, decides), control_passes=True).decisive is decides
    assert verdict(beside).decisive is beside


@pytest.mark.parametrize("outcome", [Outcome.HOLDS, Outcome.CONDITIONAL, Outcome.REFUTED, Outcome.INCONCLUSIVE])
def test_beside_a_check_of_ours_that_fails_nothing_is_decided(outcome):
    found = Ruling(outcome).verdict(
        id="x", title="t", source="s", claim="c", explanation="Why.", correction="half", evidence=(), sound=False
    )
    assert (found.outcome, found.correction, found.sound) == (Outcome.INCONCLUSIVE, "", False)
    assert found.explanation == f"Why. {CHECK_FAILS}"


def test_a_small_size_refutes_nothing():
    for outcome in (Outcome.CONDITIONAL, Outcome.REFUTED):
        assert Ruling(outcome, control_passes=True).limited(small=True) == Ruling(Outcome.INCONCLUSIVE, True)
        assert Ruling(outcome).limited(small=False).outcome is outcome
    assert Ruling(Outcome.HOLDS).limited(small=True).outcome is Outcome.HOLDS
