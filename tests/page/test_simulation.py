"""Simulations on disk: four files, each whole or absent, and a page that needs no network."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from joma.page.simulation import simulation_page
from joma.page.simulation import write_simulation as write
from joma.theory.simulation import SimulationConfig, figure4, simulate

NAMES = ["simulation.csv", "simulation.json", "simulation.png", "simulation.html"]


@pytest.fixture(scope="module")
def run():
    return simulate(figure4("model"), num_points=20)


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    return write(run, tmp_path_factory.mktemp("out") / "new" / "folder")


def test_four_files_are_written_and_nothing_else(written):
    assert [path.name for path in written] == NAMES
    assert sorted(os.listdir(written[0].parent)) == sorted(NAMES)
    assert written[2].read_bytes().startswith(b"\x89PNG")


def test_csv_reads_back_with_all_digits(run, written):
    table = pd.read_csv(written[0])
    assert list(table) == list(run.columns())
    for name, column in run.columns().items():
        # The file has all digits; some versions of pandas read with an error of one unit in the last place.
        np.testing.assert_allclose(table[name].to_numpy(), column, rtol=1e-15, atol=0)


def test_json_holds_the_config_from_which_the_run_can_be_repeated(run, written):
    record = json.loads(written[1].read_text(encoding="utf8"))
    assert SimulationConfig(**record["config"]) == run.config
    assert record["closed_form_distance"] < 1e-9 and record["components"][0]["limit"] == run.flow.limits()[0]


def test_infinite_limits_are_shown_and_unknown_ones_left_empty():
    known = simulation_page(simulate(targets=[1.0, 0.5], num_points=5)).body
    assert "∞" in known
    unknown = simulation_page(simulate(attention="softmax", targets=[1.0, 0.5], num_points=5)).body
    assert "nan" not in unknown.split("<table")[1]


def test_a_run_by_the_closed_form_alone_is_written_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("joma.theory.simulation.MAX_WITH_CLOSED_FORM", 10)
    alone = simulate(figure4(), num_points=10)
    csv, record, _, page = write(alone, tmp_path)
    assert pd.read_csv(csv)["drift"].isna().all()
    assert json.loads(record.read_text(encoding="utf8"))["largest_drift"] is None
    html = page.read_text(encoding="utf8")
    for text in (*alone.effects(), alone.obstacle):
        assert text in html


@pytest.mark.parametrize("failing", [1, 3])
def test_a_crash_in_the_middle_leaves_whole_files_only(run, tmp_path, monkeypatch, failing):
    for name in NAMES:
        (tmp_path / name).write_text("old")
    sync, calls = os.fsync, []

    def dies(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            return sync(descriptor)
        calls.append(descriptor)
        if len(calls) > failing:
            raise KeyboardInterrupt
        return sync(descriptor)

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        write(run, tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)  # no parts are left lying about
    whole = [(tmp_path / name).read_bytes() != b"old" for name in NAMES]
    assert whole == [index < failing for index in range(4)]


def test_a_folder_that_cannot_be_is_an_error_of_the_system(run):
    with pytest.raises(OSError, match="Not a directory"):
        write(run, "/dev/null/folder")
