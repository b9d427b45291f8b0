"""The layer's data and its flow; `tests/models/test_layer.py` and `joma verify eqn1 eqn2` have its gradient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.activations import silu
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Embeddings, Layer, Samples, orthonormal_embeddings


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


def test_flow_solves_its_field_and_takes_a_rate_ratio():
    rng, step = np.random.default_rng(0), 1e-4
    u = orthonormal_embeddings(4, 3, dim=9, rng=rng)
    layer = Layer(embeddings=u, attention=Attention(kind=AttentionKind.SOFTMAX), activation=silu)
    samples = Samples(x=rng.dirichlet(np.ones(4), size=9), q=np.arange(9) % 3, weights=rng.dirichlet(np.ones(9)))
    w0, z0, fixed = rng.normal(size=(3, 9)), rng.normal(size=(3, 4)), rng.normal(size=(9, 3))

    def backprop(time, hidden):
        return np.cos(time) * fixed - 0.1 * hidden

    for ratio in (1.0, 4.0):
        t = np.array([0.0, 0.5 - step, 0.5, 0.5 + step])
        run = layer.flow(w0, z0, samples, backprop, t, rate_ratio=ratio)
        w, z = run["w"][2], run["z"][2]
        field = layer.gradient(w, z, samples, backprop(0.5, layer.hidden(w, z, samples)))
        # Central differences of a smooth path: step² = 1e-8.
        np.testing.assert_allclose((run["w"][3] - run["w"][1]) / (2 * step), field.w, atol=1e-7)
        np.testing.assert_allclose((run["z"][3] - run["z"][1]) / (2 * step), ratio * field.z, atol=1e-7)
