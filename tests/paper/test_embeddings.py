"""Almost orthogonal embeddings: what is drawn, and claims that hold and fail on made tables."""

import numpy as np
import pandas as pd
import pytest

from joma.claims import Outcome, judge
from joma.paper.embeddings import EXPERIMENTS, ORTHONORMAL, OVERLAP, PAIRED, RANDOM, EmbeddingsConfig, draw, one_run
from joma.paper.experiment import Measured

SMALL = EmbeddingsConfig(dims=(20, 80), num_tokens=9, num_nodes=2, num_samples=7, seeds=(1, 2))


@pytest.mark.parametrize("kind", [RANDOM, PAIRED, ORTHONORMAL])
def test_embeddings_are_unit_vectors_with_the_overlaps_of_their_kind(kind):
    u = draw(kind, 9, 30, np.random.default_rng(3))
    gram = u.T @ u
    np.testing.assert_allclose(np.diag(gram), 1, rtol=1e-12)
    pairs, largest = np.diag(gram, 1)[::2], np.abs(gram - np.eye(9)).max()
    if kind == PAIRED:
        np.testing.assert_allclose(pairs, OVERLAP, rtol=1e-12)
    else:
        low, high = (0, 0) if kind == ORTHONORMAL else (0.1, 0.8)
        assert low <= largest <= high


def test_theorem_1_is_exact_for_orthonormal_embeddings_and_off_for_others():
    assert one_run(SMALL, ORTHONORMAL, 20, 1)["error"] < 1e-9
    assert one_run(SMALL, RANDOM, 20, 1)["error"] > 1e-2


def made(power: float, overlap: float) -> Measured:
    """Runs whose error and overlap are powers of the dimension, with some noise."""
    rng = np.random.default_rng(0)
    rows = [
        {"kind": kind, "dim": dim, "seed": seed, "error": dim**slope * np.exp(0.01 * rng.standard_normal()),
         "overlap": overlap * dim**-0.5 if kind == RANDOM else OVERLAP, "diverges_at": 1.0}
        for kind, slope in ((RANDOM, power), (PAIRED, -0.1), (ORTHONORMAL, -9.0))
        for dim in (100, 400, 1600)
        for seed in range(5)
    ]  # fmt: skip
    t = Measured(runs=pd.DataFrame(rows))
    t.config.num_tokens = 100
    return t


@pytest.mark.parametrize(
    ("power", "overlap", "order", "dimensions"),
    [(-0.5, 4.0, Outcome.HOLDS, Outcome.HOLDS), (-1.0, 7.0, Outcome.REFUTED, Outcome.REFUTED)],
)
def test_claims_follow_the_exponent_and_the_overlap(power, overlap, order, dimensions):
    answers = judge(EXPERIMENTS[0].claims, made(power, overlap), tested_by="embeddings")
    assert [answer.outcome for answer in answers] == [order, dimensions]
