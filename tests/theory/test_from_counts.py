"""From counts to μ: sums, scale and refusals; `joma verify saliency-counts sec4-mu` has the formulas."""

import numpy as np
import pytest

from joma.errors import AssumptionError
from joma.theory import (
    Gaussian,
    centers_from_counts,
    clusters_from_counts,
    saliency_from_counts,
    target_direction,
    tokens_of_node,
)

COUNTS = np.random.default_rng(0).integers(1, 9, (2, 3, 5)).astype(float)


def test_saliency_sums_to_the_error_of_the_prediction():
    joint = COUNTS / COUNTS.sum(axis=(1, 2), keepdims=True)
    pi = np.random.default_rng(1).dirichlet(np.ones(3), size=2)
    delta = saliency_from_counts(COUNTS, pi)
    np.testing.assert_allclose(delta.sum(axis=1), 0, atol=1e-15)
    np.testing.assert_allclose(delta.sum(axis=2), joint.sum(axis=2) - pi, atol=1e-15)


def test_more_text_of_the_same_kind_changes_nothing():
    for function in (saliency_from_counts, target_direction, centers_from_counts):
        np.testing.assert_allclose(function(7 * COUNTS), function(COUNTS), atol=1e-15)


def test_a_token_that_comes_with_everything_has_no_target():
    counts = np.array([[[6, 2, 8], [2, 6, 8], [4, 4, 8]]])
    direction = target_direction(counts)
    np.testing.assert_allclose(direction[0, :, 2], 0, atol=1e-15)
    np.testing.assert_array_equal(direction[0, 2], 0)
    assert tokens_of_node(counts, 0, 1).columns()["token"].tolist() == [2, 0, 1]


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="at least 0"):
        saliency_from_counts(-COUNTS)
    with pytest.raises(AssumptionError, match="every next token"):
        centers_from_counts(COUNTS * np.array([1, 1, 0])[:, None])
    with pytest.raises(ValueError, match="prediction"):
        clusters_from_counts(COUNTS, 0, 0, Gaussian(dim=5), prediction=np.full((2, 3), 1.5))
