"""The implicit bias, Eqn 60, and several patterns in one weight vector."""

import numpy as np

from joma.theory.activations import relu
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Layer, orthonormal_embeddings
from joma.theory.superposition import (
    query_interaction,
    response,
    superpose,
)


def test_golden_numbers_of_two_disjoint_patterns():
    u = orthonormal_embeddings(4, 2, dim=6, rng=np.random.default_rng(0))
    patterns = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
    w = superpose(u, patterns, np.array([-1.2, -1.2]), np.array([0, 1]))
    contexts = np.array([[0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    layer = Layer(embeddings=u, attention=Attention(kind=AttentionKind.EXP), activation=relu)
    # Silent on the empty context, on for both patterns, and for each under the other's query too.
    expected = [[-1.2, -1.2], [0.8, 0.8], [1.8, 1.8]]
    found = response(layer, w, np.zeros((2, 4)), contexts)
    np.testing.assert_allclose(found, expected, atol=1e-14)
    # Whatever the weight, context and query only add.
    np.testing.assert_allclose(query_interaction(found), 0, atol=1e-14)
