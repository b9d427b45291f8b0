"""Saliency as discriminancy times frequency, and Assumption 1 as a drift."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.saliency import stationarity_drift


@given(st.integers(0, 99), st.sampled_from([-3.0, -0.01, 1e-6, 1e6]))
def test_drift_ignores_scale_and_is_zero_only_for_constants(seed, scale):
    path = np.random.default_rng(seed).normal(size=(5, 2, 3, 4))
    drift, scaled = stationarity_drift(path), stationarity_drift(scale * path)
    assert drift.overall == pytest.approx(scaled.overall) and 0 < drift.overall <= 2
    np.testing.assert_allclose(drift.per_node, scaled.per_node)
    assert stationarity_drift(np.repeat(path[:1], 5, axis=0)).overall == 0


def test_drift_from_and_to_nothing_is_one_and_of_nothing_zero():
    ramp = np.linspace(0, 1, 4).reshape(4, 1, 1, 1) * np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    np.testing.assert_array_equal(stationarity_drift(ramp).per_node, [[1, 0]])
    assert stationarity_drift(ramp[::-1]).overall == 1
    assert stationarity_drift(-ramp + ramp[::-1]).overall == 2
