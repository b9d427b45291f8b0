"""Eqns 17 and 18: exact for one sample, off for several, and what the moving mean attention adds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.theory.activations import ACTIVATIONS
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Layer, Samples, fixed_gradient, orthonormal_embeddings
from joma.theory.softmax_estimate import (
    anchored,
    estimate,
    logit_velocity,
    moving_mean_term,
    normalised_correlation,
)

NUM_TOKENS, DIM = 4, 7
SMOOTH = tuple(name for name in ACTIVATIONS if name != "relu")


def make_layer(rng: np.random.Generator, phi: str, temperature: float) -> Layer:
    return Layer(
        embeddings=orthonormal_embeddings(NUM_TOKENS, 1, dim=DIM, rng=rng),
        attention=Attention(kind=AttentionKind.SOFTMAX, temperature=temperature),
        activation=ACTIVATIONS[phi],
    )


def draw_samples(rng: np.random.Generator, num_samples: int) -> Samples:
    return Samples(x=rng.dirichlet(np.ones(NUM_TOKENS), size=num_samples), q=np.zeros(num_samples, dtype=int))


def eqn17_gap(layer: Layer, samples: Samples, w: np.ndarray, z: np.ndarray, g: np.ndarray) -> tuple[float, float]:
    """Largest distance of Eqn 17 from the layer's own gradient, and the size of that gradient."""
    true = layer.gradient(w, z, samples, g)
    v, v_dot = layer.embeddings.contextual_part(w), layer.embeddings.contextual_part(true.w)
    b_mean = samples.weights @ layer.scores(z, samples)
    claimed = logit_velocity(v, v_dot, b_mean, temperature=layer.attention.temperature)
    return float(np.abs(claimed - true.z[0]).max()), float(np.abs(true.z).max())


@given(st.integers(0, 10**6), st.sampled_from(SMOOTH), st.floats(0.3, 3), st.sampled_from([1, 4]))
def test_eqn_17_is_exact_for_one_sample(seed, phi, temperature, num_nodes):
    rng = np.random.default_rng(seed)
    layer, samples = make_layer(rng, phi, temperature), draw_samples(rng, 1)
    w, z, g = rng.normal(size=(num_nodes, DIM)), rng.normal(size=(1, NUM_TOKENS)), rng.normal(size=(1, num_nodes))
    gap, size = eqn17_gap(layer, samples, w, z, g)
    assert gap <= 1e-14 * max(1, size)  # rounding


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from(SMOOTH), st.floats(0.5, 2), st.floats(0.3, 3))
def test_with_the_moving_mean_eqn_18_is_exact_for_one_sample(seed, phi, temperature, ratio):
    rng = np.random.default_rng(seed)
    layer, samples = make_layer(rng, phi, temperature), draw_samples(rng, 1)
    w0, z0 = rng.normal(0, 0.5, (2, DIM)), rng.normal(0, 0.5, (1, NUM_TOKENS))
    t = np.linspace(0, 1, 60)
    run = layer.flow(w0, z0, samples, fixed_gradient(rng.uniform(-1, 1, (1, 2))), t, rate_ratio=ratio)
    v, z = layer.embeddings.contextual_part(run["w"]), run["z"][:, 0]
    b = layer.attention.scores(z, samples.x)
    scales = {"temperature": temperature, "rate_ratio": ratio}
    exact = anchored(estimate(v, b, **scales).total + moving_mean_term(t, v, b, **scales), z[0])
    # Splines of degree 7 through 60 times; ODE at 1e-12.
    np.testing.assert_allclose(exact, z, rtol=0, atol=1e-9)


@given(st.integers(0, 10**6))
def test_the_estimate_keeps_the_sum_over_tokens(seed):
    rng = np.random.default_rng(seed)
    v, b_mean = rng.normal(size=(5, 3, NUM_TOKENS)), rng.dirichlet(np.ones(NUM_TOKENS))
    parts = estimate(v, b_mean, temperature=0.5)
    np.testing.assert_allclose(parts.total.sum(axis=-1), 0, atol=1e-13)
    np.testing.assert_array_equal(parts.total, parts.own + parts.mean)


@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(-5, 5))
def test_correlation_ignores_scale_and_shift(seed, scale, shift):
    a, b = np.random.default_rng(seed).normal(size=(2, 3, NUM_TOKENS))
    expected = [np.corrcoef(row, other)[0, 1] for row, other in zip(a, b, strict=True)]
    np.testing.assert_allclose(normalised_correlation(scale * a + shift, b), expected, atol=1e-10)
    assert np.isnan(normalised_correlation(np.ones((1, 4)), np.ones((1, 4)))).all()
