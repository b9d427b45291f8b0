"""The integrator: named states, order of convergence of its answers, blow-up as an event."""

import numpy as np
import pytest

from joma.theory.integrate import integrate


def test_two_states_of_different_shape_are_solved_together():
    def rotation(_, s):
        return {"a": -s["b"].reshape(2, 2), "b": s["a"].reshape(4)}

    start = {"a": np.eye(2), "b": np.zeros(4)}
    run = integrate(rotation, start, np.linspace(0, 2 * np.pi, 5))
    np.testing.assert_allclose(run["a"][-1], np.eye(2), atol=1e-10)
    assert run["a"].shape == (5, 2, 2) and run["b"].shape == (5, 4)


def test_blow_up_names_the_time_and_the_component():
    def square(_, s):
        return {"x": np.zeros(3), "v": s["v"] ** 2}

    start = {"x": np.zeros(3), "v": np.array([0.1, 0.5, -1.0])}
    run = integrate(square, start, np.linspace(0, 9, 10), blow_up=1e6)
    assert (run.blow_up.state, run.blow_up.component) == ("v", (1,))
    assert run.blow_up.time == pytest.approx(2 - 1e-6, rel=1e-9)  # v = 1/(2 - t) passes 1e6 at 2 - 1e-6
    assert run.t[-1] == 1.0


def test_a_singularity_before_the_threshold_is_a_blow_up_too():
    run = integrate(lambda _, s: {"v": np.exp(s["v"] ** 2)}, {"v": np.zeros(1)}, np.linspace(0, 2, 9), blow_up=1e9)
    assert run.blow_up.time == pytest.approx(np.sqrt(np.pi) / 2, abs=1e-12)


def test_failure_without_a_threshold_is_an_error_that_says_what_to_do():
    with pytest.raises(ArithmeticError, match="Pass `blow_up`"):
        integrate(lambda _, s: {"v": np.exp(s["v"] ** 2)}, {"v": np.zeros(1)}, np.linspace(0, 2, 9))
