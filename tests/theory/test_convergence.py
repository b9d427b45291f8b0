"""Eqn 6 and Theorem 4: the exact inverse of F, the integrated field and mpmath agree; the constants are sharp."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.theory import convergence
from joma.theory.attention_flow import AttentionFlow
from joma.theory.convergence import CHUNK, ConvergenceFlow, log_efolds_at

targets = st.floats(-3.5, 3.5)
vectors = arrays(np.float64, 4, elements=st.floats(-2.5, 2.5))
starts = arrays(np.float64, 4, elements=st.floats(-1.5, 1.5))
scales = st.floats(0.6, 2.0)


def exact_time(y: float, mu: float) -> mpmath.mpf:
    """F over the e-folds y = ln(1/δ), with forty digits."""
    with mpmath.workdps(40):
        slowness = lambda x: mpmath.exp(-((mpmath.mpf(mu) * (1 - mpmath.exp(-x))) ** 2) / 2)  # noqa: E731
        ends = [0, *(e for e in (0.1, 0.3, 1, 3, 10, 40, 90) if e < y), y]
        return mpmath.quad(slowness, ends)


@pytest.mark.parametrize("mu", [0.0, 0.3, -1.0, 2.0, 3.7, 5.0, 6.0])
@pytest.mark.parametrize("y", [1e-8, 0.05, 0.7, 4.0, 60.0])
def test_inverse_against_forty_digits(mu, y):
    t = exact_time(y, mu)
    # dy/dt is at most e^{μ²/2}: one rounding of t moves y by that much and r by δ times it.
    rounding = 4 * np.finfo(float).eps * float(t) * np.exp((mu * np.expm1(-y)) ** 2 / 2)
    assert convergence.efolds(float(t), mu) == pytest.approx(y, rel=1e-10, abs=rounding)
    assert convergence.fraction_learned(float(t), mu) == pytest.approx(-np.expm1(-y), rel=1e-10, abs=1e-10)


@given(targets, st.floats(-3, 3), st.floats(1e-12, 1e4))
def test_time_to_efolds_inverts_efolds(mu, v0, t):
    y = convergence.efolds(t, mu, v0=v0)
    assert convergence.time_to_efolds(y, mu, v0=v0) == pytest.approx(t, rel=1e-13)


@pytest.mark.parametrize("mu", [8.0, -12.0, 30.0, 60.0])
@pytest.mark.parametrize("t", [1e-300, 1e-9, 0.01, 0.02, 0.2, 1.0, 1e12])
def test_large_targets_neither_overflow_nor_miss(mu, t):
    y = convergence.efolds(t, mu)
    assert y >= t
    assert np.isinf(y) or convergence.time_to_efolds(y, mu) == pytest.approx(t, rel=1e-12)


@settings(max_examples=10)
@given(st.sampled_from([ConvergenceFlow, AttentionFlow]), st.integers(0, 99))
def test_many_flows_are_solved_as_each_by_itself(kind, seed):
    """Targets, starts and scales broadcast; axes of the solution are times, flows, tokens."""
    rng = np.random.default_rng(seed)
    mu, v0, z0 = rng.uniform(-3, 3, (4, 1, 2)), rng.uniform(-1, 1, 2), rng.uniform(-1, 1, (3, 2))
    scales = {name: rng.uniform(0.5, 2, 3) for name in ("normalisation", "temperature", "rate_ratio")}
    t = rng.uniform(0, 2, 5)
    many = kind(mu=mu, v0=v0, z0=z0, **scales)
    one = kind(mu=mu[1, 0], v0=v0, z0=z0[2], **{name: float(scale[2]) for name, scale in scales.items()})
    assert many.solution(t).shape == (5, 4, 3, 2)
    np.testing.assert_allclose(many.solution(t)[:, 1, 2], one.solution(t), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(many[1, 2].logits(v0), one.logits(v0), rtol=1e-13)
    np.testing.assert_allclose(many.local_rates()[1, 2], one.local_rates(), rtol=1e-12)


def test_more_elements_than_a_chunk_are_solved_alike():
    t = np.linspace(0, 3, CHUNK + 7)
    y = convergence.efolds(t, 2.0)
    assert y[0] == 0 and (np.diff(y) > 0).all()
    assert y[-1] == pytest.approx(float(convergence.efolds(t[-1], 2.0)), rel=1e-14)


def test_bounds_that_the_speed_leaves_are_refused():
    with pytest.raises(ArithmeticError, match=r"No time inverts 1 of 1 elements.*Widen them"):
        log_efolds_at(np.array([1.0]), 0.0, 2.0, lambda v: v**2 / 2, (), slowest=0.0, fastest=0.01)
