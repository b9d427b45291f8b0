"""Numbers that explanations quote and no check prints."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from joma.statements import figure9, figures2_3, layer_cases, theorem1_queries, theorem1_steps, theorem3
from joma.theory.activations import homogeneous, linear
from joma.theory.computation_graph import Edge
from joma.theory.convergence import ConvergenceFlow
from joma.theory.critical_points import critical_pairs, lowest_slope
from joma.theory.isotropic import Gaussian, StudentT
from joma.theory.latent_tree import cooccurrence
from joma.theory.layer import cross_entropy_gradient
from joma.theory.rebound import attention_entropy, entropy_rebound
from joma.theory.saliency import saliency_along, stationarity_drift
from joma.theory.softmax_estimate import normalised_correlation


def test_assumption1_the_error_that_is_sent_back_shrinks_as_the_layer_learns():
    case, backprop = layer_cases.make_case(layer_cases.SOFTMAX, linear), cross_entropy_gradient(layer_cases.LABELS)

    def drift(t1):
        run = case.layer.flow(case.w, case.z, case.samples, backprop, np.linspace(0, t1, 41))
        return stationarity_drift(saliency_along(case.layer, run, case.samples, backprop)).overall

    found = [drift(t1) for t1 in (0.5, 2.0, 5.0, 20.0, 100.0)]
    np.testing.assert_allclose(found, [0.17, 0.53, 0.81, 0.90, 0.90], atol=0.005)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")  # the shape checker trebles the time of a training run
def test_fig2_correlations_and_errors_over_five_seeds():
    def numbers(smooth, seed):
        run = figures2_3.trained(smooth, seed)
        estimated, late, early = figures2_3._estimated(run), [2000], [100]
        return (
            float(normalised_correlation(estimated[late], run.z[late])[0]),
            float(np.linalg.norm(estimated[2000] - run.z[2000]) / np.linalg.norm(run.z[2000])),
            float(normalised_correlation(run.parts.own[early], run.z[early])[0]),
            float(normalised_correlation(run.parts.own[late], run.z[late])[0]),
        )

    smooth, random = (np.array([numbers(kind, seed) for seed in range(5)]) for kind in (True, False))
    np.testing.assert_allclose(smooth.mean(axis=0), [0.994, 7.6, 0.3, 0.99], rtol=0.02)
    np.testing.assert_allclose(random.mean(axis=0), [0.948, 3.0, 0.23, 0.93], rtol=0.02)
    np.testing.assert_allclose([random[:, 0].min(), random[:, 0].max()], [0.86, 0.99], atol=0.005)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("seed", "num_winners"), [(0, 3), (3, 4)])
def test_fig3_several_tokens_keep_growing_for_random_data(monkeypatch, seed, num_winners):
    monkeypatch.setattr(figures2_3, "RECIPE", replace(figures2_3.RECIPE, num_steps=12_000))
    run = figures2_3.trained.__wrapped__(False, seed)
    growth = np.diff(np.linalg.norm(run.v[[8000, 12_000]], axis=1), axis=0)[0]
    assert (growth > 1).sum() == num_winners and (growth > 0.1).sum() == num_winners


def test_fig9_turning_points_of_two_scales():
    ratio = figure9._cases()["two scales"].ratio
    top = optimize.minimize_scalar(lambda s: -ratio(s), bounds=(-5, -2), method="bounded")
    bottom = optimize.minimize_scalar(ratio, bounds=(-1, 1), method="bounded")
    np.testing.assert_allclose([-top.fun, bottom.fun], [6.82, 1.51], atol=0.005)


def test_existence_two_widths_and_a_leak():
    [pair] = [pair for pair in critical_pairs((Gaussian(), Gaussian(scale=2.0)), 1.0) if pair.orientation == 1]
    assert pair.ratio == pytest.approx(1.43977, abs=5e-6)
    assert lowest_slope(StudentT(dof=3.0), homogeneous(0.03, 1.0)) == pytest.approx(0.184, abs=5e-4)


def test_thm3_eigenvalues_as_printed_and_size_of_the_remainder():
    first = theorem3._points()[0]
    np.testing.assert_allclose(
        np.linalg.eigvalsh(theorem3._printed_matrix(first))[[0, -1]], [-1.0827, 0.5786], atol=5e-5
    )
    pairs = list(zip(theorem3._nearby(0.01), theorem3._raw_matrices(), strict=True))
    linear_terms = [matrix @ (point.mu - v) for (point, v, _), matrix in pairs]
    shares = [
        np.linalg.norm(v_dot - term) / np.linalg.norm(term)
        for ((_, _, v_dot), _), term in zip(pairs, linear_terms, strict=True)
    ]
    off = [np.abs(theorem3._printed_matrix(point) - matrix).max() for (point, _, _), matrix in pairs]
    np.testing.assert_allclose([min(shares), max(shares)], [0.002, 0.011], atol=5e-4)
    np.testing.assert_allclose([min(off), max(off)], [0.4, 21], rtol=0.05)


@pytest.mark.parametrize(
    ("low", "high", "least", "most"), [(0.1, 0.4, -1e-12, 1e-12), (1.0, 2.0, 0.01, 0.04), (1.0, 4.0, 0.6, 1.2)]
)
def test_fig4_size_of_the_rebound_over_draws(low, high, least, most):
    rng = np.random.default_rng(0)
    rises = [entropy_rebound(ConvergenceFlow(mu=rng.uniform(low, high, 10))).rise for _ in range(15)]
    assert least < np.median(rises) < most


def test_thm5_sparse_needs_the_deep_hierarchy():
    assert 1 - cooccurrence(1, 3, 1 - 1e-4, 1 - 2e-5) == pytest.approx(0.45, abs=0.005)


def test_note_a_third_of_independent_signals_fail():
    signals = np.random.default_rng(0).standard_normal((4, 200_000, 4))
    edges = Edge(**dict(zip(("z_alpha", "z_beta", "f", "gated_gradient"), signals, strict=True)))
    admitted = np.min(edges.cosines, axis=0) > 0.1
    # Some 33,000 are admitted, so one standard error is 0.0026.
    assert (edges.backpropagated_correlation[admitted] <= 0).mean() == pytest.approx(0.33, abs=0.01)


def test_thm1_sgd_minibatches_drift_by_noise_over_signal():
    found = [theorem1_steps._batched(setup).factors.mean() for setup in theorem1_steps.NOISY]
    np.testing.assert_allclose(found, [73, 117, 1.6], rtol=0.03)


def test_thm1_queries_cross_terms_are_two_fifths_of_the_movement():
    assert theorem1_queries._gap_of_path_law(theorem1_queries._without_cross_terms) == pytest.approx(0.42, abs=0.005)


@pytest.mark.parametrize(("num_tokens", "medians"), [(10, (0.48, 0.10)), (8, (0.35, 0.05))])
def test_fig4_condition_rebounds_of_strong_targets_are_the_entropy_of_their_limit(num_tokens, medians):
    mu = np.random.default_rng(0).uniform(4, 8, size=(20_000, num_tokens))
    for temperature, median in zip((2.0, 1.0), medians, strict=True):
        ends = attention_entropy(mu, temperature)
        assert np.median(ends) == pytest.approx(median, abs=0.015)  # three standard errors of a median
        dip = entropy_rebound(ConvergenceFlow(mu=mu[0]), temperature)
        assert dip.rise == pytest.approx(ends[0], abs=1e-8)
