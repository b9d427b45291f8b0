"""Counts, the term that Eqn 6 drops, layers in turn: limits; `joma verify saliency-counts sec4 note` has the laws."""

import numpy as np

from joma.theory import LayerChain, target_direction


def test_a_token_that_comes_with_everything_has_no_target():
    direction = target_direction(np.array([[[6.0, 2.0, 8.0], [2.0, 6.0, 8.0], [4.0, 4.0, 8.0]]]))
    np.testing.assert_allclose(direction[0, :, 2], 0, atol=1e-15)
    np.testing.assert_array_equal(direction[0, 2], 0)


def test_frozen_lower_layers_are_the_control():
    chain, t = LayerChain(mu=np.array([[2.0, 1.0]] * 3), gain=1.4), np.linspace(0.0, 3.0, 301)
    runs = [chain.run(t, lower=lower) for lower in (None, 1.0, 0.0)]
    together, learned, untrained = (run.learned_at() for run in runs)
    assert (np.diff(together) > 0).all()
    np.testing.assert_allclose(learned, learned[0], rtol=1e-9)
    assert np.isfinite(untrained[0]) and np.isinf(untrained[1:]).all()
    np.testing.assert_allclose(runs[0].columns()["entropy_2"][0], np.log(2))
