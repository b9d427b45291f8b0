"""Saliency as discriminancy times frequency, and Assumption 1 as a drift."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.activations import linear, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Layer, Samples, cross_entropy_gradient, fixed_gradient, orthonormal_embeddings
from joma.theory.saliency import discriminancy, frequency, saliency, saliency_along, stationarity_drift

NUM_TOKENS = 3
sequences = st.lists(st.lists(st.integers(0, NUM_TOKENS - 1), min_size=1, max_size=6), min_size=1, max_size=5)


def make_samples(seed: int, num_queries: int = 2, num_samples: int = 8) -> tuple[Samples, np.ndarray]:
    rng = np.random.default_rng(seed)
    q = np.arange(num_samples) % num_queries
    samples = Samples(x=rng.dirichlet(np.ones(4), size=num_samples), q=q, weights=rng.dirichlet(np.ones(num_samples)))
    return samples, rng.normal(size=(num_samples, 3))


@given(st.integers(0, 999))
def test_saliency_agrees_with_the_naive_sum(seed):
    samples, g = make_samples(seed)
    for m in (0, 1):
        np.testing.assert_allclose(saliency(samples, g)[m], reference.saliency(samples, g, m), rtol=1e-12, atol=1e-15)


@given(st.integers(0, 999))
def test_saliency_is_discriminancy_times_frequency(seed):
    samples, g = make_samples(seed)
    np.testing.assert_allclose(frequency(samples).sum(axis=1), 1, rtol=1e-12)
    product = discriminancy(samples, g) * frequency(samples)[:, None, :]
    np.testing.assert_allclose(product, saliency(samples, g), rtol=1e-12, atol=1e-15)


@given(sequences, st.integers(0, 99))
def test_discriminancy_is_the_mean_of_g_over_occurrences_of_the_token(texts, seed):
    # Draw a text, then a position in it: enumerate all pairs in exact arithmetic.
    g = np.random.default_rng(seed).integers(-5, 6, size=(len(texts), 1)).astype(float)
    counts = [Counter(text) for text in texts]
    x = np.array([[count[token] / count.total() for token in range(NUM_TOKENS)] for count in counts])
    samples = Samples(x=x, q=np.zeros(len(texts), dtype=int))
    for token in range(NUM_TOKENS):
        mass = sum(Fraction(count[token], count.total() * len(texts)) for count in counts)
        share = [Fraction(count[token], count.total() * len(texts)) for count in counts]
        assert frequency(samples)[0, token] == pytest.approx(float(mass), abs=1e-15)
        found = discriminancy(samples, g)[0, 0, token]
        if mass == 0:
            assert np.isnan(found)
        else:
            expected = sum(s * int(g_i) for s, g_i in zip(share, g[:, 0], strict=True)) / mass
            assert found == pytest.approx(float(expected), abs=1e-13)


@given(st.integers(0, 99), st.floats(0.1, 9))
def test_only_weights_within_a_query_count(seed, factor):
    samples, g = make_samples(seed)
    weights = np.where(samples.q == 0, factor, 1.0) * samples.weights
    other = Samples(x=samples.x, q=samples.q, weights=weights / weights.sum())
    np.testing.assert_allclose(saliency(other, g), saliency(samples, g), rtol=1e-11, atol=1e-15)


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


@pytest.mark.parametrize("phi", [linear, tanh], ids=["linear", "tanh"])
def test_a_fixed_gradient_is_stationary_and_cross_entropy_is_not(phi):
    rng = np.random.default_rng(0)
    samples, g = make_samples(0)
    layer = Layer(
        embeddings=orthonormal_embeddings(4, 2, dim=6, rng=rng),
        attention=Attention(kind=AttentionKind.SOFTMAX),
        activation=phi,
    )
    t, w0, z0 = np.linspace(0, 5, 6), rng.normal(size=(3, 6)), np.zeros((2, 4))

    def drift(backprop):
        run = layer.flow(w0, z0, samples, backprop, t, rtol=1e-8)
        return stationarity_drift(saliency_along(layer, run, samples, backprop))

    assert drift(fixed_gradient(g)).overall == 0
    moved = drift(cross_entropy_gradient(np.arange(8) % 3))
    assert moved.overall > 0.1
    assert moved.per_node.shape == (2, 3)
