"""Attention scores and their derivative, for the three kinds and any temperature."""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import joma.theory as jt
from joma.errors import UnknownNameError

NUM_TOKENS = 5
logits = arrays(np.float64, NUM_TOKENS, elements=st.floats(-4, 4))
frequencies = arrays(np.float64, NUM_TOKENS, elements=st.floats(0.01, 1))
scales = st.floats(0.3, 3)


@st.composite
def attentions(draw, kinds=tuple(jt.AttentionKind)) -> jt.Attention:
    kind = draw(st.sampled_from(kinds))
    normalisation = 1.0 if kind == jt.AttentionKind.SOFTMAX else draw(scales)
    return jt.Attention(kind=kind, temperature=draw(scales), normalisation=normalisation)


@given(attentions(), logits, frequencies)
def test_scores_agree_with_the_naive_sum(attention, z, x):
    np.testing.assert_allclose(attention.scores(z, x), reference.scores(attention, z, x), rtol=1e-13)


@given(attentions(), logits, frequencies, logits)
def test_pull_back_agrees_with_the_full_jacobian(attention, z, x, u):
    expected = reference.score_jacobian(attention, z, x).T @ u
    # Softmax subtracts numbers of order |u| that nearly cancel.
    np.testing.assert_allclose(attention.pull_back(z, x, u), expected, rtol=1e-12, atol=1e-13)


@given(logits, frequencies, st.floats(-50, 50), scales)
def test_softmax_is_a_distribution_that_ignores_a_common_shift(z, x, shift, temperature):
    softmax = jt.Attention(kind=jt.AttentionKind.SOFTMAX, temperature=temperature)
    b = softmax.scores(z, x)
    assert b.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(softmax.scores(z + shift, x), b, rtol=1e-11)
    # A vector of ones is pulled back to zero: the scores cannot all grow.
    np.testing.assert_allclose(softmax.pull_back(z, x, np.ones(NUM_TOKENS)), 0, atol=1e-15 / temperature)


def test_softmax_is_safe_for_huge_logits_of_present_and_absent_tokens():
    softmax = jt.Attention(kind=jt.AttentionKind.SOFTMAX)
    b = softmax.scores(np.array([1e4, 1e4 - 1, 2e4]), np.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(b, [1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0], rtol=1e-12)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_names_are_taken_and_unknown_ones_refused():
    z, x = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    by_name, by_kind = jt.Attention(kind="softmax"), jt.Attention(kind=jt.AttentionKind.SOFTMAX)
    np.testing.assert_array_equal(by_name.pull_back(z, x, z), by_kind.pull_back(z, x, z))
    with pytest.raises(UnknownNameError, match=r"no attention named 'softmx'. Did you mean 'softmax'?"):
        jt.Attention(kind="softmx")
