"""Verdicts on disk: what was written is read back, and anything else is refused."""

import pytest

from joma.page import verification
from joma.statements.verification import verify


def test_verdicts_survive_the_disk(tmp_path):
    verdicts = verify(["lemma6", "lemma8"])
    record, page = verification.write(verdicts, tmp_path)
    assert verification.read(record) == verdicts
    html = page.read_text(encoding="utf8")
    assert all(f'id="{verdict.id}"' in html for verdict in verdicts)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"id": 1}', '[{"id": "thm2"}]', "[1]"], ids=["empty", "map", "none", "one", "part", "row"]
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_another_file_of_that_name_is_refused(tmp_path, text):
    record = tmp_path / verification.RECORD
    record.write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match=r"verification.json (is not a record|holds no verdict).* Remove it"):
        verification.read(record)
