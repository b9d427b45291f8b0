"""Eqns 17 and 18: exact for one sample, off for several, and what the moving mean attention adds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.softmax_estimate import normalised_correlation

NUM_TOKENS, DIM = 4, 7


@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(-5, 5))
def test_correlation_ignores_scale_and_shift(seed, scale, shift):
    a, b = np.random.default_rng(seed).normal(size=(2, 3, NUM_TOKENS))
    expected = [np.corrcoef(row, other)[0, 1] for row, other in zip(a, b, strict=True)]
    np.testing.assert_allclose(normalised_correlation(scale * a + shift, b), expected, atol=1e-10)
    assert np.isnan(normalised_correlation(np.ones((1, 4)), np.ones((1, 4)))).all()
