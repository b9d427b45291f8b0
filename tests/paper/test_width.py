"""Width of the layer: the gradient against the theory's own layer, and claims that hold and fail on made tables."""

import numpy as np
import pandas as pd
import pytest
from scipy import special

from joma.claims import Outcome, judge
from joma.paper.experiment import Measured
from joma.paper.width import EXPERIMENTS, LEARNED, ONE, ROOT, WidthConfig, contexts, gradient, one_run
from joma.theory import Attention, AttentionKind, Embeddings, Layer, relu


def test_the_gradient_is_that_of_the_layer_without_an_embedding_of_the_query():
    rng = np.random.default_rng(4)
    samples, posterior = contexts(5, 3, 2, rng)
    w, z, upper = rng.standard_normal((7, 5)), rng.standard_normal(5), rng.standard_normal((7, 3))
    tokens = Embeddings(contextual=np.eye(5), queries=np.zeros((5, 1)))
    layer = Layer(embeddings=tokens, attention=Attention(kind=AttentionKind.EXP), activation=relu)
    g = (posterior - special.softmax(layer.hidden(w, z[None], samples) @ upper, axis=1)) @ upper.T
    expected, found = layer.gradient(w, z[None], samples, g), gradient(w, z, samples, posterior, upper)
    np.testing.assert_allclose(found["w"], expected.w, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["z"], expected.z[0], rtol=1e-12, atol=1e-14)


def test_contexts_have_probabilities_and_posteriors_that_average_to_the_prior():
    samples, posterior = contexts(4, 3, 2, np.random.default_rng(1))
    assert samples.num_samples == 10
    np.testing.assert_allclose(samples.x.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(samples.weights @ posterior, 1 / 3, rtol=1e-12)


def test_a_run_learns_and_its_attention_becomes_sparser():
    run = one_run(WidthConfig(num_tokens=4, num_classes=3), ROOT, 20, 1)
    assert run["excess"].iloc[-1] <= LEARNED < run["excess"].iloc[0]
    assert run["entropy"].iloc[0] == pytest.approx(np.log(4))
    assert run["entropy"].min() < np.log(4) - 0.01
    assert run["t"].is_monotonic_increasing


def made(one: float, root: float) -> Measured:
    """Runs whose times are powers of K, with some noise."""
    rng = np.random.default_rng(0)
    rows = [
        {"arm": arm, "nodes": nodes, "seed": seed, "half_time": nodes**power * np.exp(0.02 * rng.standard_normal()),
         "loss_time": 1.0, "fall": rng.random(), "rise": 0.0}
        for arm, power in ((ONE, one), (ROOT, root))
        for nodes in (25, 100, 400)
        for seed in range(5)
    ]  # fmt: skip
    return Measured(runs=pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("one", "root", "outcomes"),
    [
        (-0.5, 0.0, [Outcome.HOLDS, Outcome.HOLDS]),
        (-0.5, -0.5, [Outcome.MATCHES_CONTROL, Outcome.REFUTED]),
        (-1.0, 0.0, [Outcome.REFUTED, Outcome.HOLDS]),
    ],
)
def test_claims_follow_the_exponents(one, root, outcomes):
    answers = judge(EXPERIMENTS[0].claims, made(one, root), tested_by="width")
    assert [answer.outcome for answer in answers] == outcomes
