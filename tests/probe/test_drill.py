"""A short form of `make drill`: each planted fault is found under its name, and sound series have no finding."""

import pytest
from drill import FAULTS, draw_series, found_in, judge, plant, write


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named(name, tmp_path):
    [(_, expected)], found, _ = plant([name], 1, tmp_path / "series")
    assert judge(expected, found)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_sound_series_has_no_finding(seed, tmp_path):
    write(draw_series(seed), tmp_path)
    assert found_in(tmp_path) == []
