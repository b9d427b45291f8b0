"""Answers on disk: what was written is read back, also by version 0.1, and anything else is refused."""

import json

import pytest

from joma.checks import verify
from joma.claims import Outcome
from joma.page import verification

OF_0_1 = {
    "id": "thm2",
    "title": "t",
    "source": "s",
    "claim": "c",
    "outcome": "refuted",
    "explanation": "",
    "correction": "",
    "sound": True,
    "control_passes": False,
    "evidence": [
        {"name": "n", "against": "ODE", "unit": "u", "value": 0.1, "threshold": 1.0, "control": "inf"}
        | {"control_name": "as printed", "seconds": 0.5, "at_least": False, "published": None, "decides": True}
        | {"holds": True, "control_holds": False}
    ],
}


def test_answers_survive_the_disk(tmp_path):
    answers = verify(["lemma5", "lemma8"])
    record, page = verification.write(answers, tmp_path)
    assert verification.read(record) == answers
    html = page.read_text(encoding="utf8")
    assert all(f'id="{answer.claim}"' in html for answer in answers)


def test_records_of_version_0_1_are_read(tmp_path):
    record = tmp_path / verification.RECORD
    record.write_text(json.dumps([OF_0_1]), encoding="utf8")
    [answer] = verification.read(record)
    assert (answer.claim, answer.outcome, answer.numbers[0].control) == ("thm2", Outcome.WRONG, float("inf"))
    assert "thm2" in verification.section([answer]).body


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"id": 1}', '[{"id": "thm2"}]', "[1]"], ids=["empty", "map", "none", "one", "part", "row"]
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_another_file_of_that_name_is_refused(tmp_path, text):
    record = tmp_path / verification.RECORD
    record.write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match=r"(?s)verification.json (is not a record|holds no statement).* Remove it"):
        verification.read(record)
