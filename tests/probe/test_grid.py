"""Gaps are what the grid of the other steps has, and only that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.probe.grid import missing_steps

PYTHIA = [0, *(2**i for i in range(10)), *range(1000, 143_001, 1000)]


def gaps(steps):
    return [missing for _, _, missing in missing_steps(steps)]


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        (PYTHIA, []),
        (sorted(set(PYTHIA) - {16, 4000, 77_000, 78_000}), [[16], [4000], [77_000, 78_000]]),
        (list(range(100, 1001, 100)), []),
        ([100, 200, 300, 500], [[400]]),
        ([100, 300, 400, 500], [[200]]),
        ([100, 200, 400, 600, 700], [[300], [500]]),
        ([100, 200, 300, 337], []),
        ([0, 1, 2, 4], []),
        ([1, 2, 4, 16], [[8]]),
        ([1, 4, 8, 16], [[2]]),
        ([1, 2, 3, 10, 20, 30, 31, 32, 33], []),
        ([100, 900], []),
        ([5], []),
        ([], []),
        ([3, 10, 40, 45, 300], []),
    ],
)
def test_grids(steps, missing):
    assert gaps(steps) == missing


@given(start=st.integers(0, 1000), spacing=st.integers(1, 1000), num=st.integers(6, 60), place=st.floats(0, 1))
def test_any_step_taken_from_an_even_grid_is_missed(start, spacing, num, place):
    steps = [start + spacing * i for i in range(num)]
    assert gaps(steps) == []
    gone = steps.pop(1 + int(place * (num - 3)))
    assert gaps(steps) == [[gone]]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30, unique=True).map(sorted))
def test_whatever_is_said_to_be_missing_lies_between_and_is_not_there(steps):
    for before, after, missing in missing_steps(steps):
        assert all(before < step < after for step in missing)
        assert missing == sorted(set(missing) - set(steps))
