"""What evidence says of its claim."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.verdicts import Evidence, Outcome, Verdict

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


def test_verdicts_survive_json_and_old_records_are_read():
    full = verdict(evidence(0.9, 0.5, at_least=True, published=0.93, control=0.1, control_name="untrained"))
    assert Verdict.from_dict(full.as_dict()) == full
    old = verdict(evidence(0.1, 0.5)).as_dict()
    for name in ("at_least", "published"):
        del old["evidence"][0][name]
    assert Verdict.from_dict(old) == verdict(evidence(0.1, 0.5))
