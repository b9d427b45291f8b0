"""Entropy and stable rank along flows: gradients, the rebound condition, and the numbers of figure 4."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.differentiate import derivative

import joma.theory as jt

logits = arrays(np.float64, 5, elements=st.floats(-5, 5))


@given(logits, st.integers(0, 4))
def test_entropy_gradient_is_its_derivative(s, i):
    def along(x):
        moved = np.repeat(s[:, None], x.size, axis=1)
        moved[i] += x.ravel()
        return jt.entropy(moved.T).reshape(x.shape)

    assert jt.entropy_gradient(s)[i] == pytest.approx(float(derivative(along, 0.0).df), abs=1e-9)


def test_zeros_or_equal_targets_end_the_rebound():
    assert not jt.entropy_finally_rises(np.array([0.0, 2.0]))
    assert not jt.entropy_finally_rises(np.zeros(3))
    flat = jt.entropy_rebound(jt.ConvergenceFlow(mu=np.full(3, 2.0)))
    assert flat.drop == pytest.approx(0, abs=1e-15) and not flat.occurs
    still = jt.entropy_rebound(jt.ConvergenceFlow(mu=np.zeros(3)))
    assert still.drop == 0 and not still.occurs
    monotone = jt.entropy_rebound(jt.ConvergenceFlow(mu=np.array([0.0, 2.0])), 1.0)
    assert monotone.end == pytest.approx(0.0901, abs=5e-5) and monotone.rise == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("kind", [jt.ConvergenceFlow, jt.AttentionFlow])
@pytest.mark.parametrize("dip", [jt.entropy_rebound, jt.rank_rebound])
def test_many_dips_are_found_as_each_by_itself(kind, dip):
    mu = np.array([[0.6, 1.4, 3.5], [2.0, 2.0, 2.0], [0.0, 0.0, 1.0]])
    many = dip(kind(mu=mu, temperature=np.array([[1.0], [2.0]])))
    assert many.lowest.shape == many.occurs.shape == (2, 3)
    for place in np.ndindex(2, 3):
        one = dip(kind(mu=mu[place[1]], temperature=[1.0, 2.0][place[0]]))
        for name in ("start", "lowest", "end", "drop", "rise"):
            assert getattr(many, name)[place] == pytest.approx(getattr(one, name), abs=1e-11)
        assert many.occurs[place] == one.occurs and (not one.occurs or many.time[place] == pytest.approx(one.time))


def test_figure_4_under_the_steps_that_drew_it():
    v, path = np.full(10, 0.05), []
    for _ in range(5000):
        path.append(v)
        v = v + 0.02 * jt.normalised_field(v, np.array(jt.FIGURE_4_TARGETS), 3.0)
    dip = jt.rebound(np.arange(5000.0), jt.attention_entropy(np.array(path), 3.0))
    assert dip.time == 669
    assert (dip.lowest, dip.end) == (pytest.approx(0.94157, abs=5e-6), pytest.approx(1.54931, abs=5e-6))


def test_the_dip_of_strong_tokens_is_found_between_their_jumps():
    """Targets of 4 to 8 jump one after the other: between the first two, attention is on one token alone."""
    mu = np.random.default_rng(0).uniform(4, 8, size=10)
    dip = jt.entropy_rebound(jt.ConvergenceFlow(mu=mu), 1.0)
    assert dip.lowest < 1e-15
    assert dip.rise == pytest.approx(jt.attention_entropy(mu, 1.0))
