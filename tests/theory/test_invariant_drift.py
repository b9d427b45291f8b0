"""How far a run drifts from its invariant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.theory.activations import gelu
from joma.theory.attention import Attention, AttentionKind
from joma.theory.descent import Recipe, train
from joma.theory.invariants import Invariant, invariant_drift, layer_invariant
from joma.theory.layer import Layer, Samples, fixed_gradient, orthonormal_embeddings

values = st.floats(-2, 2)
EXP = Invariant(attention=Attention(kind=AttentionKind.EXP))


@given(arrays(np.float64, (3, 2, 4), elements=values), arrays(np.float64, (3, 1, 4), elements=values))
def test_drift_is_the_change_since_the_start(v, z):
    expected = (z[:, 0] - np.square(v).sum(axis=1) / 2) - (z[0, 0] - np.square(v[0]).sum(axis=0) / 2)
    np.testing.assert_allclose(invariant_drift(v, z, EXP), expected, atol=1e-14)  # rounding


def run_by(rate_ratio: float, kind: AttentionKind) -> tuple[Layer, np.ndarray, np.ndarray]:
    """A run over unit time in fine steps."""
    rng = np.random.default_rng(0)
    layer = Layer(
        embeddings=orthonormal_embeddings(4, 2, dim=7, rng=rng), attention=Attention(kind=kind), activation=gelu
    )
    samples = Samples(x=rng.dirichlet(np.ones(4), size=6), q=np.arange(6) % 2)
    backprop = fixed_gradient(rng.uniform(-1, 1, (6, 3)))
    w0, z0 = rng.normal(0, 0.5, (3, 7)), rng.normal(0, 0.5, (2, 4))
    run = train(layer, w0, z0, samples, backprop, Recipe(num_steps=200, rate=5e-3, rate_ratio=rate_ratio))
    return layer, layer.embeddings.contextual_part(run["w"]), run["z"]


@pytest.mark.parametrize("kind", [AttentionKind.LINEAR, AttentionKind.EXP])
def test_a_run_with_unequal_rates_keeps_the_law_with_its_own_rates(kind):
    layer, v, z = run_by(4.0, kind)
    movement = np.abs(z - z[0]).max()
    assert np.abs(invariant_drift(v, z, layer_invariant(layer))).max() > 0.1 * movement
    right = invariant_drift(v, z, layer_invariant(layer, rate_ratio=4.0))
    assert np.abs(right).max() < 0.02 * movement  # first order in the step of 5e-3


def test_softmax_is_measured_by_its_sum_for_each_query():
    layer, v, z = run_by(3.0, AttentionKind.SOFTMAX)
    drift = invariant_drift(v, z, layer_invariant(layer))
    assert drift.shape == (201, 2) and np.abs(drift).max() < 1e-13 < np.abs(z - z[0]).max()  # two hundred roundings
