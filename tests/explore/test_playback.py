"""Trainings played back: the recorded values, few frames of long records, and what cannot be shown."""

import numpy as np
import pytest
from page.made_runs import large, scanned, trained, watched

import joma
from joma.explore import playback
from joma.explore.playback import film


def test_a_frame_holds_the_recorded_entropy_of_every_head(tmp_path):
    watched(tmp_path, num_layers=3, heads=2)
    found = film(tmp_path)
    frame = len(found["steps"]) // 2
    rows = joma.read(tmp_path)
    for (layer, head), value in zip(found["cells"], found["values"][frame], strict=True):
        own = rows.query(
            f"metric == 'entropy' and step == {found['steps'][frame]} and layer == {layer} and head == {head}"
        )
        assert value == pytest.approx(own["value"].item(), abs=1e-3)
    assert len(found["cells"]) == 6
    assert np.array(found["means"]).shape == (3, len(found["steps"]))
    assert found["lowest"] <= min(map(min, found["values"])) + 1e-3
    assert len(found["loss"]) == len(found["steps"])


def test_a_record_without_heads_has_one_column(tmp_path):
    trained(tmp_path, seed=1)
    assert {head for _, head in film(tmp_path)["cells"]} == {"all"}


def test_long_records_are_thinned_and_keep_their_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(playback, "MAX_VALUES", 400)
    large(tmp_path, num_layers=4, num_steps=1000, metrics=["entropy"])
    found = film(tmp_path)
    assert len(found["steps"]) == 100
    assert (found["steps"][0], found["steps"][-1]) == (0, 999)


def test_runs_of_a_folder_are_chosen_by_name_and_nothing_else_is_opened(tmp_path):
    watched(tmp_path / "runs" / "a", num_layers=1)
    watched(tmp_path / "runs" / "b", num_layers=2)
    watched(tmp_path / "secret", num_layers=3)
    assert film(tmp_path / "runs", "b")["layers"] == [0, 1]
    for name in ("../secret", str(tmp_path / "secret"), "", "c"):
        found = film(tmp_path / "runs", name)
        assert (found["name"], found["layers"], found["runs"]) == ("a", [0], ["a", "b"])


def test_what_cannot_be_played_is_one_line(tmp_path):
    assert film(tmp_path)["error"]
    scanned(tmp_path / "ranks")
    watched(tmp_path / "torn", num_layers=1)
    rows = next((tmp_path / "torn" / "metrics").iterdir())
    rows.write_bytes(rows.read_bytes()[:99])
    for name in ("ranks", "torn"):
        error = film(tmp_path, name)["error"]
        assert error and "\n" not in error
    assert film(None) == {"runs": []}
