"""The analysed layer trained by the engine follows Theorem 1 and the flow, for one query and for several."""

import numpy as np
import pytest
import torch

from joma.engine.config import OptimiserConfig
from joma.engine.step import Stepper
from joma.models.batch import Batch
from joma.models.layer import AnalysedLayer, LayerConfig
from joma.theory import activations
from joma.theory.attention import Attention, AttentionKind
from joma.theory.invariants import Invariant
from joma.theory.layer import Embeddings, Layer, Samples, fixed_gradient

NUM_SAMPLES, NUM_TOKENS, NUM_NODES, WIDTH = 6, 4, 3, 8
SEEDS = [3, 8]
ROUNDING = 1e-12
"""Of a step's change, added to float64 numbers of size one."""

one_query_and_several = pytest.mark.parametrize("num_queries", [1, 3])


def table(seed: int) -> torch.Tensor:
    x = torch.rand(NUM_SAMPLES, NUM_TOKENS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.sum(dim=1, keepdim=True)


def backprop(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 99)
    return torch.randn(NUM_SAMPLES, NUM_NODES, generator=generator, dtype=torch.float64)


def make_layer(num_queries: int, **settings) -> AnalysedLayer:
    sizes = {"num_contextual": NUM_TOKENS, "hidden": NUM_NODES, "width": WIDTH, "num_samples": NUM_SAMPLES}
    objective = {"objective": "linear", "num_queries": num_queries, "temperature": 1.0, "start_scale": 0.3}
    config = LayerConfig(**sizes | objective | settings)
    return AnalysedLayer(config, x=table, g=backprop if config.objective == "linear" else None)


def every_sample_with(queries: torch.Tensor) -> Batch:
    """The whole table for each run, sample i with query `queries`[i]."""
    samples = torch.arange(len(queries)) % NUM_SAMPLES
    tokens = torch.stack([samples, queries], dim=-1).expand(len(SEEDS), -1, -1)
    return Batch(tokens=tokens, targets=(samples % NUM_NODES).expand(len(SEEDS), -1))


def trained(layer: AnalysedLayer, batch: Batch, *, lr: float, num_steps: int) -> tuple[dict, np.ndarray, np.ndarray]:
    """Train by plain gradient descent; the start, and v (R, T, K, M) and z (R, T, Q, M) before and after each step."""
    sgd = OptimiserConfig(optimiser="sgd", lr=lr)
    stepper = Stepper(
        layer, SEEDS, [sgd] * len(SEEDS), num_steps=num_steps, steps_per_epoch=num_steps, precision="float64"
    )
    own = {name: tensor.clone().numpy() for name, tensor in stepper.parameters.items()}
    w, z = [own["w"]], [own["z"]]
    for _ in range(num_steps):
        stepper.advance(batch)
        w.append(stepper.parameters["w"].clone().numpy())
        z.append(stepper.parameters["z"].clone().numpy())
    v = np.einsum("trkd,rmd->rtkm", np.stack(w), own["embedding.contextual"])
    return own, v, np.stack(z, axis=1)


def round_robin(num_queries: int) -> Batch:
    return every_sample_with(torch.arange(NUM_SAMPLES) % num_queries)


@one_query_and_several
@pytest.mark.parametrize("objective", ["linear", "cross_entropy"])
@pytest.mark.parametrize("kind", [AttentionKind.EXP, AttentionKind.LINEAR])
def test_every_step_obeys_theorem_1(kind, objective, num_queries):
    settings = {"activation": "gelu", "objective": objective, "temperature": 2.0, "start_scale": 1.0}
    layer = make_layer(num_queries, attention=kind.value, **settings)
    _, v, z = trained(layer, round_robin(num_queries), lr=0.05, num_steps=40)
    invariant = Invariant(attention=Attention(kind=kind, temperature=2.0))
    changes = np.diff(invariant.value(v, z), axis=1)
    expected = invariant.step_change(np.diff(v, axis=1), np.diff(z, axis=1))
    np.testing.assert_allclose(changes, expected, rtol=0, atol=ROUNDING)
    assert np.abs(changes).max() > 1e6 * ROUNDING  # the steps are no flow: it does move


@one_query_and_several
def test_training_ends_where_the_flow_of_the_theory_does(num_queries):
    layer = make_layer(num_queries, attention="softmax", activation="gelu")
    batch = round_robin(num_queries)

    def distance(num_steps: int) -> float:
        own, v, z = trained(layer, batch, lr=1.0 / num_steps, num_steps=num_steps)
        embeddings = Embeddings(contextual=own["embedding.contextual"][1].T, queries=own["embedding.queries"][1].T)
        theory = Layer(
            embeddings=embeddings, attention=Attention(kind=AttentionKind.SOFTMAX), activation=activations.gelu
        )
        samples = Samples(x=own["samples.x"][1], q=batch.tokens[1, :, 1].numpy())
        backpropagated = fixed_gradient(own["samples.g"][1])
        end = theory.flow(own["w"][1], own["z"][1], samples, backpropagated, np.array([0.0, 1.0])).at_end()
        gap_v = np.abs(embeddings.contextual_part(end["w"]) - v[1, -1]).max()
        return float(max(gap_v, np.abs(end["z"] - z[1, -1]).max()))

    assert distance(200) < 2e-3
    assert 1.8 < distance(50) / distance(100) < 2.2
