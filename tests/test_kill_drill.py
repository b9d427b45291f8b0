"""A short form of `make drill`: what is killed and started again leaves what a call in peace does."""

from pathlib import Path

import kill_drill
import pandas
import pytest
from store.mortality import orders

from joma.store.files import hidden_name


@pytest.fixture(scope="module")
def order():
    with orders(Path(kill_drill.__file__), kill_drill.SERVE) as order:
        yield order


@pytest.mark.slow  # every kill starts a training, or the tasks of an experiment
@pytest.mark.parametrize("command", kill_drill.COMMANDS)
def test_a_killed_command_ends_as_one_in_peace(command, order, tmp_path):
    done = kill_drill.drill(order, command, tmp_path, kills=6, seed=2)
    assert (done["rows lost"], done["rows changed"], done["ends changed"]) == (0, 0, 0)


def test_a_lost_and_a_changed_row_are_counted(tmp_path, monkeypatch):
    """The rows of each call are made up: two, then one of them, then another value and the end."""
    peace, seen = {"a": "1", "b": "2"}, iter([{"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "1"}, {"a": "3"}])
    ends = iter([(0, 1.0), (-9, 1.0), (-9, 1.0), (0, 1.0)])
    monkeypatch.setattr(kill_drill, "rows_of", lambda out: next(seen))
    monkeypatch.setattr(kill_drill, "ends_of", lambda out: None)
    (tmp_path / "kinds.json").write_text("[0]")
    done = kill_drill.drill(lambda what: next(ends), "scan", tmp_path, kills=2, seed=1)
    assert (done["rows"], done["kills"], done["finished"]) == (len(peace), 2, 1)
    assert (done["rows lost"], done["rows changed"]) == (2, 1)


def test_an_artefact_that_was_not_finished_is_no_row(tmp_path):
    """A killed write leaves a hidden folder, which no reader of the store opens."""
    for folder in (tmp_path / "work" / "0123", hidden_name(tmp_path / "work" / "4567")):
        folder.mkdir(parents=True)
        pandas.DataFrame({"x": [1.0]}).to_parquet(folder / "rows.parquet")
    assert list(kill_drill.rows_of(tmp_path)) == [("0123", "rows.parquet", 0)]
