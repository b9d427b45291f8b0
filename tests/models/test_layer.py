"""The analysed layer: its gradient is the theory's field; training follows Theorem 1 and the flow."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoders import without_gradients
from hypothesis import given
from hypothesis import strategies as st

from joma.engine.config import OptimiserConfig
from joma.engine.step import Stepper
from joma.models.batch import Batch, Model
from joma.models.layer import AnalysedLayer, LayerConfig
from joma.theory import activations
from joma.theory.attention import Attention, AttentionKind
from joma.theory.invariants import Invariant
from joma.theory.layer import Embeddings, Layer, Samples, cross_entropy_gradient, fixed_gradient

NUM_SAMPLES = 7
SIZES = {"num_contextual": 5, "hidden": 4, "width": 9, "num_samples": NUM_SAMPLES}
EXACT = {"rtol": 1e-12, "atol": 1e-12}
"""Ten additions or so of float64 numbers of size one."""


def table(seed: int) -> torch.Tensor:
    """Token frequencies with some tokens absent."""
    x = torch.rand(NUM_SAMPLES, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[0, 1] = 0.0
    return x / x.sum(dim=1, keepdim=True)


def backprop(seed: int) -> torch.Tensor:
    return torch.randn(NUM_SAMPLES, 4, generator=torch.Generator().manual_seed(seed + 99), dtype=torch.float64)


def make_layer(**settings) -> AnalysedLayer:
    config = LayerConfig(**SIZES | {"start_scale": 0.7} | settings)
    return AnalysedLayer(config, x=table, g=backprop if config.objective == "linear" else None)


class Packed:
    """Runs of a layer over the whole table, with queries, classes and probabilities of their own."""

    def __init__(self, layer: AnalysedLayer, seeds: list[int]) -> None:
        """Start each run from its seed."""
        self.layer = layer
        starts = [layer.initial(seed) for seed in seeds]
        self.parameters = {name: torch.stack([start[name] for start in starts]) for name in layer.shapes}
        self.gradients = without_gradients(layer, self.parameters)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        sample = torch.arange(NUM_SAMPLES).expand(len(seeds), -1)
        query = self._drawn(generators, layer.config.num_queries)
        weights = torch.stack([torch.rand(NUM_SAMPLES, generator=each, dtype=torch.float64) for each in generators])
        self.batch = Batch(
            tokens=torch.stack([sample, query], dim=-1),
            targets=self._drawn(generators, layer.config.hidden),
            weights=weights / weights.sum(dim=1, keepdim=True),
        )

    @staticmethod
    def _drawn(generators: list[torch.Generator], high: int) -> torch.Tensor:
        return torch.stack([torch.randint(high, (NUM_SAMPLES,), generator=each) for each in generators])

    def train(self) -> torch.Tensor:
        return self.layer.value_and_gradient(self.parameters, self.gradients, self.batch, None)

    def theory(self, run: int) -> tuple[Layer, Samples, np.ndarray, np.ndarray]:
        """The layer of the theory with the numbers of one run, and its w and z."""
        own = {name: tensor[run].numpy() for name, tensor in self.parameters.items()}
        config = self.layer.config
        layer = Layer(
            embeddings=Embeddings(contextual=own["embedding.contextual"].T, queries=own["embedding.queries"].T),
            attention=Attention(
                kind=AttentionKind(config.attention), temperature=config.temperature, normalisation=config.normalisation
            ),
            activation=activations.activation(config.activation),
        )
        q, weights = self.batch.tokens[run, :, 1].numpy(), self.batch.weights[run].numpy()
        return layer, Samples(x=own["samples.x"], q=q, weights=weights), own["w"], own["z"]


layers = st.builds(
    lambda kind, **settings: make_layer(attention=kind[0], normalisation=kind[1], **settings),
    kind=st.sampled_from([("linear", 1.0), ("linear", 3.0), ("exp", 1.0), ("exp", 0.5), ("softmax", 1.0)]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    activation=st.sampled_from(sorted(activations.ACTIVATIONS)),
    num_queries=st.sampled_from([1, 3]),
    objective=st.sampled_from(["linear", "cross_entropy"]),
)


@given(layers)
def test_the_gradient_is_minus_the_field_of_the_theory(layer):
    pack = Packed(layer, [4, 1])
    losses = pack.train()
    for run in range(2):
        theory, samples, w, z = pack.theory(run)
        hidden = theory.hidden(w, z, samples)
        if layer.config.objective == "linear":
            g = pack.parameters["samples.g"][run].numpy()
            assert -losses[run] == pytest.approx(theory.objective(w, z, samples, g), rel=1e-12)
        else:
            g = cross_entropy_gradient(pack.batch.targets[run].numpy())(0.0, hidden)
        scores = layer.scores(pack.parameters, pack.batch)[run]
        np.testing.assert_allclose(scores.numpy(), theory.scores(z, samples), **EXACT)
        np.testing.assert_allclose(layer.hidden(pack.parameters, pack.batch)[run].numpy(), hidden, **EXACT)
        field = theory.gradient(w, z, samples, g)
        np.testing.assert_allclose(-pack.gradients["w"][run].numpy(), field.w, **EXACT)
        np.testing.assert_allclose(-pack.gradients["z"][run].numpy(), field.z, **EXACT)


@pytest.mark.parametrize("attention", ["linear", "exp", "softmax"])
def test_any_activation_can_be_passed(attention):
    """The square, which has no name, by its own derivative in the theory."""
    config = LayerConfig(**SIZES | {"start_scale": 0.7, "objective": "linear", "attention": attention})
    pack = Packed(AnalysedLayer(config, x=table, g=backprop, phi=torch.square), [3])
    pack.train()
    named, samples, w, z = pack.theory(0)
    theory = replace(
        named, activation=activations.Activation(name="square", value=np.square, derivative=lambda x: 2 * x)
    )
    field = theory.gradient(w, z, samples, pack.parameters["samples.g"][0].numpy())
    np.testing.assert_allclose(-pack.gradients["w"][0].numpy(), field.w, **EXACT)
    np.testing.assert_allclose(-pack.gradients["z"][0].numpy(), field.z, **EXACT)


@given(layers)
def test_runs_at_once_equal_runs_alone(layer):
    pack = Packed(layer, [4, 1, 6])
    losses = pack.train()
    for run, seed in enumerate([4, 1, 6]):
        alone = Packed(layer, [seed])
        torch.testing.assert_close(alone.train()[0], losses[run], **EXACT)
        for name, gradient in alone.gradients.items():
            torch.testing.assert_close(gradient[0], pack.gradients[name][run], **EXACT)


def test_the_start_is_the_papers():
    layer = AnalysedLayer(LayerConfig(), x=torch.full((20, 20), 1 / 20))
    assert isinstance(layer, Model)
    start = layer.initial(5)
    assert all(torch.equal(start[name], again) for name, again in layer.initial(5).items())
    assert start["w"].std() == pytest.approx(0.01, rel=0.1)
    u = torch.cat([start["embedding.contextual"], start["embedding.queries"]])
    torch.testing.assert_close(u @ u.mT, torch.eye(21, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": "sofmax"}, "'softmax'"),
        ({"temperature": 0.0}, "`temperature`"),
        ({"normalisation": 2.0}, "`normalisation`"),
        ({"hidden": 0}, "`hidden`"),
        ({"width": 5}, "`width`"),
        ({"objective": "linear"}, "`g`"),
        ({"num_samples": 3}, r"`samples.x` must have shape \(3, 5\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        AnalysedLayer(LayerConfig(**SIZES | change), x=table).initial(0)


# Trained by the engine.

SEEDS = [3, 8]
ROUNDING = 1e-12
"""Of a step's change, added to float64 numbers of size one."""
one_query_and_several = pytest.mark.parametrize("num_queries", [1, 3])


def round_robin(num_queries: int) -> Batch:
    """The whole table for each run, queries in turn."""
    samples = torch.arange(NUM_SAMPLES)
    tokens = torch.stack([samples, samples % num_queries], dim=-1).expand(len(SEEDS), -1, -1)
    return Batch(tokens=tokens, targets=(samples % SIZES["hidden"]).expand(len(SEEDS), -1))


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


@one_query_and_several
@pytest.mark.parametrize("objective", ["linear", "cross_entropy"])
@pytest.mark.parametrize("kind", [AttentionKind.EXP, AttentionKind.LINEAR])
def test_every_step_obeys_theorem_1(kind, objective, num_queries):
    settings = {"activation": "gelu", "objective": objective, "temperature": 2.0, "start_scale": 1.0}
    layer = make_layer(attention=kind.value, num_queries=num_queries, **settings)
    _, v, z = trained(layer, round_robin(num_queries), lr=0.05, num_steps=40)
    invariant = Invariant(attention=Attention(kind=kind, temperature=2.0))
    changes = np.diff(invariant.value(v, z), axis=1)
    expected = invariant.step_change(np.diff(v, axis=1), np.diff(z, axis=1))
    np.testing.assert_allclose(changes, expected, rtol=0, atol=ROUNDING)
    assert np.abs(changes).max() > 1e6 * ROUNDING  # the steps are no flow: it does move


@one_query_and_several
def test_training_ends_where_the_flow_of_the_theory_does(num_queries):
    layer = make_layer(num_queries=num_queries, activation="gelu", objective="linear", temperature=1.0, start_scale=0.3)
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
