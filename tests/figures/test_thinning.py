"""Fewer points, and every dip and spike still there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.figures.thinning import columns, extremes

FLOATS = st.floats(-1e6, 1e6) | st.just(np.nan)
VALUES = arrays(np.float64, st.integers(0, 300), elements=FLOATS)


@given(VALUES, st.integers(4, 60))
def test_ends_lowest_and_highest_stay(values, max_points):
    kept = extremes(values, max_points)
    assert kept.size <= max_points and (np.diff(kept) > 0).all()
    if values.size:
        assert {0, values.size - 1} <= set(kept.tolist())
    if np.isfinite(values).any():
        assert np.nanmin(values[kept]) == np.nanmin(values) and np.nanmax(values[kept]) == np.nanmax(values)


@given(VALUES)
def test_few_points_stay_as_they_are(values):
    assert extremes(values, max(4, values.size)).tolist() == list(range(values.size))


def test_every_stretch_keeps_its_own_dip():
    values = np.ones(1000)
    values[[123, 456, 789]] = [0.0, 2.0, -1.0]
    assert {123, 456, 789} <= set(extremes(values, 40).tolist())


def test_fewer_than_four_points_are_refused():
    with pytest.raises(ValueError, match="must be 4 or more, got 3"):
        extremes(np.ones(9), 3)


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 200)), elements=FLOATS), st.integers(1, 50))
def test_merged_columns_show_values_of_their_own_stretch(matrix, max_columns):
    merged, begins = columns(matrix, max_columns)
    assert merged.shape == (matrix.shape[0], begins.size) and begins.size <= max(max_columns, 1)
    for begin, end, column in zip(begins, [*begins[1:], matrix.shape[1]], merged.T, strict=True):
        for row, value in zip(matrix[:, begin:end], column, strict=True):
            assert value in row or np.isnan(value)
            assert np.isnan(value) == np.isnan(row).all()  # a number wherever there is one


def test_a_single_dip_shows_in_its_column():
    matrix = np.ones((3, 1000))
    matrix[1, 700] = 0.0
    merged, begins = columns(matrix, 50)
    place = np.searchsorted(begins, 700, side="right") - 1
    assert merged[1, place] == 0 and (np.delete(merged, place, axis=1) == 1).all()
