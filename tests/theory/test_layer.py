"""The layer's data and its flow; `tests/models/test_layer.py` and `joma verify eqn1 eqn2` have its gradient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.layer import Embeddings, Samples, orthonormal_embeddings


def test_weights_default_to_uniform():
    x, q = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    np.testing.assert_array_equal(Samples(x=x, q=q).weights, [0.5, 0.5])


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5), st.integers(0, 99))
def test_orthonormal_embeddings_are(num_contextual, num_queries, spare, seed):
    dim = num_contextual + num_queries + spare
    u = orthonormal_embeddings(num_contextual, num_queries, dim=dim, rng=np.random.default_rng(seed))
    assert (u.num_contextual, u.num_queries) == (num_contextual, num_queries)
    assert u.orthonormality_gap() < 1e-14
    bent = Embeddings(contextual=2 * u.contextual, queries=u.queries)
    assert bent.orthonormality_gap() == pytest.approx(3)
