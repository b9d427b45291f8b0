"""The implicit bias, Eqn 60, and several patterns in one weight vector."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.activations import relu, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.integrate import integrate
from joma.theory.layer import Layer, Samples, fixed_gradient, orthonormal_embeddings
from joma.theory.superposition import (
    implicit_bias,
    implicit_bias_rate,
    query_interaction,
    response,
    superpose,
    weights_from_parts,
)

NUM_TOKENS, NUM_NODES, NUM_SAMPLES = 4, 2, 8


def make_layer(kind: AttentionKind, num_queries: int, seed: int) -> Layer:
    rng = np.random.default_rng(seed)
    u = orthonormal_embeddings(NUM_TOKENS, num_queries, dim=NUM_TOKENS + num_queries + 2, rng=rng)
    return Layer(embeddings=u, attention=Attention(kind=kind), activation=tanh)


def make_data(layer: Layer, seed: int) -> tuple[np.ndarray, np.ndarray, Samples, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = layer.embeddings
    q = np.arange(NUM_SAMPLES) % u.num_queries
    samples = Samples(x=rng.dirichlet(np.ones(NUM_TOKENS), size=NUM_SAMPLES), q=q)
    w, z = rng.normal(size=(NUM_NODES, len(u.contextual))), rng.normal(size=(u.num_queries, NUM_TOKENS))
    return w, z, samples, rng.normal(size=(NUM_SAMPLES, NUM_NODES))


setups = st.tuples(st.sampled_from(AttentionKind), st.sampled_from([1, 3]), st.integers(0, 99))


@given(setups)
def test_bias_moves_at_its_rate(setup):
    layer = make_layer(*setup)
    w, z, samples, g = make_data(layer, setup[2])
    field = layer.gradient(w, z, samples, g)
    rate = implicit_bias_rate(layer, w, z, samples, g)
    np.testing.assert_allclose(implicit_bias(layer.embeddings, field.w), rate, atol=1e-13)


@given(setups)
def test_weights_are_their_parts_along_the_flow(setup):
    layer = make_layer(*setup)
    w0, z0, samples, g = make_data(layer, setup[2])
    u, t = layer.embeddings, np.array([0.0, 0.3, 0.6])
    run = layer.flow(w0, z0, samples, fixed_gradient(g), t, rtol=1e-9, atol=1e-9)

    # The same flow in the coordinates (v, ξ, z), which never forms w.
    def field(_, s):
        b = layer.scores(s["z"], samples)
        slope = g * tanh.derivative(b @ s["v"].T + s["xi"].T[samples.q])
        by_query = samples.by_query(u.num_queries)
        pulled = layer.attention.pull_back(s["z"][samples.q], samples.x, slope @ s["v"])
        return {"v": slope.T @ b / NUM_SAMPLES, "xi": (by_query @ slope).T, "z": by_query @ pulled}

    start = {"v": u.contextual_part(w0), "xi": implicit_bias(u, w0), "z": z0}
    parts = integrate(field, start, t, rtol=1e-9, atol=1e-9)
    rebuilt = weights_from_parts(u, w0, parts["v"] - start["v"], parts["xi"] - start["xi"])
    # Two integrations at rtol 1e-9 of the same flow in different coordinates.
    np.testing.assert_allclose(rebuilt, run["w"], atol=1e-7)
    np.testing.assert_allclose(parts["z"], run["z"], atol=1e-7)


@given(st.integers(0, 99))
def test_superposed_weight_answers_each_pattern_under_each_query(seed):
    rng = np.random.default_rng(seed)
    u = orthonormal_embeddings(6, 2, dim=9, rng=rng)
    patterns = np.zeros((2, 6))
    patterns[0, :3], patterns[1, 3:] = rng.uniform(0.5, 2, size=(2, 3))
    biases, queries = rng.uniform(-2, -0.1, size=2), np.array([1, 0])
    w = superpose(u, patterns, biases, queries)
    contexts = rng.dirichlet(np.ones(6), size=5)
    layer = Layer(embeddings=u, attention=Attention(kind=AttentionKind.EXP), activation=relu)
    found = response(layer, w, np.zeros((2, 6)), contexts)
    expected = [[patterns.sum(axis=0) @ b + biases[list(queries).index(m)] for m in range(2)] for b in contexts]
    np.testing.assert_allclose(found, expected, atol=1e-13)
    # Whatever the weight, context and query only add.
    np.testing.assert_allclose(query_interaction(found), 0, atol=1e-14)


def test_golden_numbers_of_two_disjoint_patterns():
    u = orthonormal_embeddings(4, 2, dim=6, rng=np.random.default_rng(0))
    patterns = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
    w = superpose(u, patterns, np.array([-1.2, -1.2]), np.array([0, 1]))
    contexts = np.array([[0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    layer = Layer(embeddings=u, attention=Attention(kind=AttentionKind.EXP), activation=relu)
    # Silent on the empty context, on for both patterns, and for each under the other's query too.
    expected = [[-1.2, -1.2], [0.8, 0.8], [1.8, 1.8]]
    np.testing.assert_allclose(response(layer, w, np.zeros((2, 4)), contexts), expected, atol=1e-14)


@given(st.sampled_from([AttentionKind.EXP, AttentionKind.LINEAR]))
def test_attention_that_differs_between_queries_can_gate(kind):
    u = orthonormal_embeddings(4, 2, dim=6, rng=np.random.default_rng(0))
    layer = Layer(embeddings=u, attention=Attention(kind=kind), activation=relu)
    patterns = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
    w = superpose(u, patterns, np.array([-1.2, -1.2]), np.array([0, 1]))
    away = -30.0 if kind == AttentionKind.EXP else 0.0
    own = 0.0 if kind == AttentionKind.EXP else 1.0
    z = np.array([[own, own, away, away], [away, away, own, own]])
    fires = response(layer, w, z, patterns / patterns.sum(axis=1, keepdims=True)) > 0
    np.testing.assert_array_equal(fires, np.eye(2, dtype=bool))
