"""Theorem 2: closed form, integrated field and autograd-free limits agree."""

import numpy as np
import pytest
from scipy.integrate import quad

from joma.theory.winner_take_all import LinearFlow


@pytest.mark.parametrize("u0", [-12.0, -7.0, 7.0, 12.0])
def test_a_start_in_the_tails_of_erfc_is_solved_like_any_other(u0):
    """At fixed z(0) = u0²/2 time is counted by Φ(u), here with all digits from either tail."""
    flow = LinearFlow(delta=np.array([[1.0]]), v0=np.array([[u0]]), z0=np.array([u0**2 / 2]))
    t = flow.blow_up_time() * np.array([0.0, 1e-3, 0.3, 0.9])
    u = flow.solution(t)[:, 0, 0]
    passed = [quad(lambda x: np.exp(-(x**2) / 2), u0, end, points=[max(u0, -5.0)] if u0 < 0 else None)[0] for end in u]
    assert u[0] == u0 and (np.diff(u) > 0).all()
    np.testing.assert_allclose(passed, t, rtol=1e-7, atol=1e-15 * t.max())  # a quadrature of a tail


def test_without_saliency_nothing_moves():
    still = LinearFlow(delta=np.zeros((1, 2)), v0=np.array([[0.3, -0.2]]))
    assert still.blow_up_time() == np.inf
    np.testing.assert_array_equal(still.limits(), still.v0)
