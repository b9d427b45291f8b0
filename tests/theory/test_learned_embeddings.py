"""Learned embeddings: fixed queries, times and broadcasting, and refusals; `joma verify thm1-learned` has the laws."""

import numpy as np
import pytest

from joma.theory.activations import tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import Embeddings, Layer, Samples, fixed_gradient
from joma.theory.learned_embeddings import LearningRates, balance, learned_flow, token_invariant

EXP = Attention(kind=AttentionKind.EXP)


@pytest.fixture
def run():
    rng = np.random.default_rng(1)
    u = Embeddings(contextual=rng.normal(size=(3, 4)), queries=rng.normal(size=(3, 2)))
    samples = Samples(x=rng.dirichlet(np.ones(4), size=5), q=np.arange(5) % 2)
    layer, backprop = Layer(embeddings=u, attention=EXP, activation=tanh), fixed_gradient(rng.uniform(-1, 1, (5, 2)))
    w0, z0, t = rng.normal(size=(2, 3)), np.zeros((2, 4)), np.linspace(0, 1, 3)
    return learned_flow(layer, w0, z0, samples, backprop, t, rates=LearningRates(queries=0.0))


def test_queries_of_rate_zero_stay_and_everything_else_moves(run):
    moved = {name: np.ptp(values, axis=0).max() for name, values in run.states.items()}
    assert moved.pop("queries") == 0
    assert min(moved.values()) > 1e-3


def test_laws_take_times_alone_and_together(run):
    for law, names in (
        (lambda *a: token_invariant(*a, EXP), ("z", "contextual")),
        (balance, ("w", "contextual", "queries")),
    ):
        together = law(*(run[name] for name in names))
        one_by_one = [law(*(run[name][at] for name in names)) for at in range(3)]
        np.testing.assert_allclose(together, one_by_one, rtol=1e-14)
