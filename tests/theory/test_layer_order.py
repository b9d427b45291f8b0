"""Layers in turn: one layer, the control and refusals; `joma verify note-order note-control` has the laws."""

import numpy as np
import pytest
from scipy import integrate

from joma.errors import AssumptionError
from joma.theory import ConvergenceFlow, LayerChain, uniform_fraction

T = np.linspace(0.0, 3.0, 301)


def test_the_lowest_layer_is_eqn_6():
    run = LayerChain(mu=np.array([[2.0, 1.0], [1.0, 1.5]])).run(T)
    np.testing.assert_allclose(run.v[:, 0], ConvergenceFlow(mu=np.array([2.0, 1.0])).solution(T), atol=1e-9)
    assert run.entropy[0] == pytest.approx(np.log([2, 2]))
    assert set(run.columns()) == {"t", "fraction_0", "fraction_1", "entropy_0", "entropy_1"}


def test_each_layer_adds_a_unit_of_time_without_attention():
    t = np.linspace(0.0, 60.0, 60_001)
    left = 1 - uniform_fraction(t[:, None], np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(integrate.trapezoid(left, t, axis=0), [1, 2, 3], atol=1e-6)


def test_frozen_lower_layers_are_the_control():
    chain = LayerChain(mu=np.array([[2.0, 1.0]] * 3), gain=1.4)
    together, learned, untrained = (chain.run(T, lower=lower).learned_at() for lower in (None, 1.0, 0.0))
    assert (np.diff(together) > 0).all()
    np.testing.assert_allclose(learned, learned[0], rtol=1e-9)
    assert np.isfinite(untrained[0]) and np.isinf(untrained[1:]).all()


def test_layers_without_a_target_are_refused():
    with pytest.raises(AssumptionError, match="target"):
        LayerChain(mu=np.array([[1.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="gain"):
        LayerChain(mu=np.array([[1.0]]), gain=-1.0)
