"""The term that Eqn 6 drops: broadcasting, limits and refusals; `joma verify sec4` has the formulas."""

import numpy as np
import pytest

from joma.errors import AssumptionError
from joma.theory import ConvergenceFlow, dropped_term, kept_field, kept_gaps, kept_rates, kept_uniform

MU = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 1.5]])


def test_without_the_term_it_is_eqn_6():
    v = 0.4 * MU
    np.testing.assert_allclose(kept_field(v, MU, 1.0, 0.0), ConvergenceFlow(mu=MU).field(v), rtol=1e-14)
    np.testing.assert_allclose(kept_rates(MU, 2.0, 0.0), 2 * np.sort(np.exp(MU**2 / 2)), rtol=1e-12)
    run = dropped_term(MU[0], 1.3, 0.0, np.linspace(0.0, 1.0, 5))
    np.testing.assert_allclose(run.gap_kept, run.gap_dropped, atol=1e-9)
    np.testing.assert_allclose(run.entropy_kept, run.entropy_dropped, atol=1e-9)


def test_one_call_takes_many_matrices():
    beta2 = np.array([-0.05, 0.02])
    for function in (kept_rates, kept_gaps):
        rows = [function(mu, 1.5, b) for mu, b in zip(MU, beta2, strict=True)]
        np.testing.assert_allclose(function(MU, 1.5, beta2), rows, rtol=1e-12)
    assert kept_uniform(np.array([[0.0, 1.0]]), MU[0], 1.0, 0.1).shape == (1, 2, 3)


def test_unstable_targets_and_ties_are_refused():
    with pytest.raises(AssumptionError, match="stable"):
        kept_rates(np.array([1.0, 2.0]), 1.0, -0.3)
    for mu, beta2 in ((np.array([1.0, -1.0]), 0.1), (np.array([1.0, 0.0]), 0.1), (np.array([1.0, 2.0]), 0.0)):
        with pytest.raises(AssumptionError, match="β₂"):
            kept_gaps(mu, 1.0, beta2)
    with pytest.raises(AssumptionError, match="zero"):
        dropped_term(np.array([0.0, 1.0]), 1.0, 0.1, np.linspace(0, 1, 3))
