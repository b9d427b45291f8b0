"""Flows towards a target: the quadrature and its inverse for any speed, against the ODE."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.theory.convergence import CHUNK, elapsed_time, log_efolds_at, transient_time
from joma.theory.integrate import integrate

ends = st.floats(-3, 3)


def log_speed(v, slope):
    """Not Gaussian and not even: e^{v²/2 + slope·v}."""
    return v**2 / 2 + slope * v


def bounds(v0, target, slope):
    values = log_speed(np.linspace(v0, target, 1001), slope)
    # The least value lies between two samples.
    return {"slowest": values.min() - 1e-4, "fastest": values.max()}


@given(ends, ends, st.floats(-1, 1), st.floats(0.01, 2))
def test_efolds_solve_the_flow(v0, target, slope, t):
    y = np.exp(log_efolds_at(np.array(t), v0, target, log_speed, (slope,), gain=0.5, **bounds(v0, target, slope)))
    run = integrate(
        lambda _, s: {"v": (target - s["v"]) * np.exp(log_speed(s["v"], slope))},
        {"v": np.array([v0])},
        np.array([0.0, t]),
    )
    # The bound asked of closed forms against the ODE.
    assert v0 - (target - v0) * np.expm1(-y) == pytest.approx(run["v"][-1, 0], rel=1e-9, abs=1e-9)


@given(ends, ends, st.floats(-1, 1), st.floats(1e-9, 1e6))
def test_elapsed_time_inverts_efolds(v0, target, slope, t):
    y = np.exp(log_efolds_at(np.array(t), v0, target, log_speed, (slope,), gain=0.5, **bounds(v0, target, slope)))
    assert elapsed_time(np.log(y), v0, target, log_speed, (slope,), gain=0.5) == pytest.approx(t, rel=1e-12)


def test_a_constant_speed_has_no_transient():
    assert transient_time(np.array(1.0), 0.0, 2.0, np.zeros_like) == 0


def test_more_elements_than_a_chunk_are_solved_alike():
    t = np.linspace(0, 3, CHUNK + 7)
    y = np.exp(log_efolds_at(t, 0.0, 2.0, log_speed, (0.0,), slowest=0.0, fastest=2.0))
    last = np.exp(log_efolds_at(t[-1:], 0.0, 2.0, log_speed, (0.0,), slowest=0.0, fastest=2.0))
    assert y[0] == 0 and (np.diff(y) > 0).all()
    np.testing.assert_allclose(y[-1:], last, rtol=1e-14)


def test_bounds_that_the_speed_leaves_are_refused():
    with pytest.raises(ArithmeticError, match=r"No time inverts 1 of 1 elements.*Widen them"):
        log_efolds_at(np.array([1.0]), 0.0, 2.0, log_speed, (0.0,), slowest=0.0, fastest=0.01)
