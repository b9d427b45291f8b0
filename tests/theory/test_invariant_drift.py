"""The report of a run's drift: what it measures, and what it says of each broken hypothesis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.errors import UnknownNameError
from joma.theory.activations import gelu
from joma.theory.attention import Attention, AttentionKind
from joma.theory.descent import Recipe, train
from joma.theory.invariants import Hypothesis, Invariant, conserved_instead, invariant_drift, layer_invariant
from joma.theory.layer import Layer, Samples, fixed_gradient, orthonormal_embeddings

values = st.floats(-2, 2)
EXP = Invariant(attention=Attention(kind=AttentionKind.EXP))


@given(arrays(np.float64, (3, 2, 4), elements=values), arrays(np.float64, (3, 1, 4), elements=values))
def test_the_report_is_the_change_since_the_start(v, z):
    report = invariant_drift(v, z, EXP)
    expected = (z[:, 0] - np.square(v).sum(axis=1) / 2) - (z[0, 0] - np.square(v[0]).sum(axis=0) / 2)
    np.testing.assert_allclose(report.drift, expected, atol=1e-14)  # rounding
    assert report.maximum == report.per_component.max() == np.abs(report.drift).max()
    assert report.movement == np.abs(z - z[0]).max()
    assert report.instead == {}


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
def test_a_run_with_unequal_rates_is_told_the_law_that_it_keeps(kind):
    layer, v, z = run_by(4.0, kind)
    wrong = invariant_drift(v, z, layer_invariant(layer), broken={Hypothesis.UNEQUAL_RATES})
    assert wrong.relative > 0.1
    assert "`rate_ratio`" in wrong.instead[Hypothesis.UNEQUAL_RATES]
    right = invariant_drift(v, z, layer_invariant(layer, rate_ratio=4.0), broken={Hypothesis.DISCRETE_STEPS})
    assert right.relative < 0.02  # first order in the step of 5e-3
    assert "drifts by" in str(right) and "broken: discrete steps; conserved instead: z" in str(right)


def test_softmax_is_reported_by_its_sum_per_query():
    layer, v, z = run_by(3.0, AttentionKind.SOFTMAX)
    report = invariant_drift(v, z, layer_invariant(layer), broken={Hypothesis.UNEQUAL_RATES, Hypothesis.ADAM})
    assert report.quantity == "1ᵀz" and report.drift.shape == (201, 2)
    assert report.maximum < 1e-13 < report.movement  # two hundred roundings
    assert report.instead == {Hypothesis.UNEQUAL_RATES: "1ᵀz all the same", Hypothesis.ADAM: ""}
    assert "broken: Adam; conserved instead: nothing known" in str(report)


def test_nothing_is_conserved_under_adam_and_something_under_every_other_departure_of_softmax():
    for kind in AttentionKind:
        assert conserved_instead(Hypothesis.ADAM, kind) == ""
    for name in set(Hypothesis) - {Hypothesis.ADAM}:
        assert conserved_instead(name, AttentionKind.SOFTMAX)


def test_a_run_that_stands_still_has_no_relative_drift():
    report = invariant_drift(np.ones((3, 1, 2)), np.ones((3, 1, 2)), EXP)
    assert report.maximum == report.relative == 0
    unexplained = invariant_drift(np.arange(3.0).reshape(3, 1, 1), np.ones((3, 1, 1)), EXP)
    assert unexplained.relative == np.inf


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"Shapes must agree, got `times_and_tokens_of_v` \(3, 2\)"):
        invariant_drift(np.zeros((3, 1, 2)), np.zeros((4, 1, 2)), EXP)
    with pytest.raises(ValueError, match=r"`z` must be finite, got nan at index \(0, 0, 1\)"):
        invariant_drift(np.zeros((1, 1, 2)), np.array([[[0.0, np.nan]]]), EXP)
    with pytest.raises(ValueError, match=r"`v` must have the axes \(T, K, M\), got shape \(3, 2\)"):
        invariant_drift(np.zeros((3, 2)), np.zeros((3, 2)), EXP)
    with pytest.raises(UnknownNameError, match=r"no hypothesis named 'adm'. Did you mean 'Adam'\?"):
        invariant_drift(np.zeros((3, 1, 2)), np.zeros((3, 1, 2)), EXP, broken=["adm"])
