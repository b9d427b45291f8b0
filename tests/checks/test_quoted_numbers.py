"""Numbers that `statements.toml` quotes and no check prints."""

import numpy as np
import pytest
from scipy import optimize

from joma.checks import figure9, theorem3
from joma.checks.check import cases
from joma.theory.activations import homogeneous
from joma.theory.computation_graph import Edge
from joma.theory.convergence import ConvergenceFlow
from joma.theory.critical_points import critical_pairs, critical_points, lowest_slope
from joma.theory.isotropic import Gaussian, StudentT
from joma.theory.latent_tree import cooccurrence
from joma.theory.mixture import two_clusters
from joma.theory.rebound import attention_entropy, entropy_rebound

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


def test_fig9_turning_points_of_two_scales():
    ratio = figure9.curves(np.random.default_rng(0))[-1].ratio
    top = optimize.minimize_scalar(lambda s: -ratio(s), bounds=(-5, -2), method="bounded")
    bottom = optimize.minimize_scalar(ratio, bounds=(-1, 1), method="bounded")
    np.testing.assert_allclose([-top.fun, bottom.fun], [6.82, 1.51], atol=0.005)


def test_existence_two_widths_and_a_leak():
    [pair] = [pair for pair in critical_pairs((Gaussian(), Gaussian(scale=2.0)), 1.0) if pair.orientation == 1]
    assert pair.ratio == pytest.approx(1.43977, abs=5e-6)
    assert lowest_slope(StudentT(dof=3.0), homogeneous(0.03, 1.0)) == pytest.approx(0.184, abs=5e-4)


def test_thm3_eigenvalues_and_size_of_the_remainder():
    mixture = two_clusters(np.array([1.0, 0.0, 0.0]), a_minus=4.0, noise=Gaussian(dim=3))
    [point] = critical_points(mixture, -1.0)
    printed = np.linalg.eigvalsh(theorem3._printed_matrix(point))[[0, -1]]
    np.testing.assert_allclose(printed, [-1.0827, 0.5786], atol=5e-5)
    np.testing.assert_allclose(point.linearised.eigenvalues[:2], [0.6443, 0.5066], atol=5e-5)
    shares, off = [], []
    for each, matrix in cases(theorem3.points):
        v, v_dot = theorem3._nearby(each, 0.01)
        term = matrix @ (each.mu - v)
        shares.append(np.linalg.norm(v_dot - term) / np.linalg.norm(term))
        off.append(np.abs(theorem3._printed_matrix(each) - matrix).max())
    np.testing.assert_allclose([min(shares), max(shares)], [0.002, 0.009], atol=5e-4)
    np.testing.assert_allclose([len(off), min(off), max(off)], [9, 0.6, 40], rtol=0.05)


@pytest.mark.parametrize(
    ("low", "high", "least", "most"), [(0.1, 0.4, -1e-12, 1e-12), (1.0, 2.0, 0.01, 0.04), (1.0, 4.0, 0.6, 1.2)]
)
def test_fig4_size_of_the_rebound_over_draws(low, high, least, most):
    rng = np.random.default_rng(0)
    rises = [entropy_rebound(ConvergenceFlow(mu=rng.uniform(low, high, 10))).rise for _ in range(15)]
    assert least < np.median(rises) < most


@pytest.mark.parametrize(("num_tokens", "medians"), [(10, (0.48, 0.10)), (8, (0.35, 0.05))])
def test_fig4_condition_strong_targets_rebound_to_the_entropy_of_their_limit(num_tokens, medians):
    mu = np.random.default_rng(0).uniform(4, 8, size=(20_000, num_tokens))
    for temperature, median in zip((2.0, 1.0), medians, strict=True):
        assert np.median(attention_entropy(mu, temperature)) == pytest.approx(median, abs=0.015)  # 3 standard errors


def test_thm5_sparse_needs_the_deep_hierarchy():
    assert 1 - cooccurrence(1, 3, 1 - 1e-4, 1 - 2e-5) == pytest.approx(0.45, abs=0.005)


def test_note_a_third_of_independent_signals_fail():
    signals = np.random.default_rng(0).standard_normal((4, 200_000, 4))
    edges = Edge(**dict(zip(("z_alpha", "z_beta", "f", "gated_gradient"), signals, strict=True)))
    admitted = np.min(edges.cosines, axis=0) > 0.1
    # Some 33,000 are admitted, so one standard error is 0.0026.
    assert (edges.backpropagated_correlation[admitted] <= 0).mean() == pytest.approx(0.33, abs=0.01)
