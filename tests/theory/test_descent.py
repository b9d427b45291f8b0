"""Discrete training of the layer: optimisers against torch's, and SGD against the flow that it approximates."""

import numpy as np
import pytest
import torch

import joma.theory as jt
from joma.types import Trajectory

RNG = np.random.default_rng(0)
LAYER = jt.Layer(
    embeddings=jt.orthonormal_embeddings(4, 1, dim=6, rng=RNG),
    attention=jt.Attention(kind=jt.AttentionKind.EXP),
    activation=jt.tanh,
)
SAMPLES = jt.Samples(x=RNG.dirichlet(np.ones(4), size=5), q=np.zeros(5, dtype=int))
BACKPROP = jt.fixed_gradient(RNG.normal(size=(5, 2)))
W0, Z0 = RNG.normal(size=(2, 6)), RNG.normal(size=(1, 4))


def trained(recipe: jt.StepRecipe, seed: int | None = None) -> Trajectory:
    rng = None if seed is None else np.random.default_rng(seed)
    return jt.train(LAYER, W0, Z0, SAMPLES, BACKPROP, recipe, rng=rng)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (jt.GradientSteps(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (jt.GradientSteps(momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (jt.GradientSteps(weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1)),
        (jt.Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
    ids=["SGD", "momentum", "weight decay", "Adam"],
)
def test_optimisers_take_the_steps_of_torch(ours, theirs):
    target = np.array([1.0, -2.0, 0.5])
    parameter = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimiser = theirs([parameter])
    theta, memory = np.zeros(3), (np.zeros(3), np.zeros(3))
    for num_past in range(20):
        optimiser.zero_grad()
        ((parameter - torch.tensor(target)) ** 2 / 2).sum().backward()
        optimiser.step()
        direction, memory = ours.step(theta, target - theta, memory, num_past)
        theta = theta + 0.1 * direction
    np.testing.assert_allclose(theta, parameter.detach().numpy(), rtol=0, atol=1e-13)  # rounding of twenty steps


def test_sgd_approaches_the_flow_with_first_order():
    flow = LAYER.flow(W0, Z0, SAMPLES, BACKPROP, np.array([0.0, 1.0]), rate_ratio=2.0)

    def error(num_steps: int) -> float:
        run = trained(jt.StepRecipe(num_steps=num_steps, rate=1 / num_steps, rate_ratio=2.0))
        assert run.t[-1] == pytest.approx(1)
        return float(np.abs(run["z"][-1] - flow["z"][-1]).max())

    assert 1.9 < error(100) / error(200) < 2.1


def test_minibatches_are_unbiased_and_repeat_with_their_seed():
    recipe = jt.StepRecipe(num_steps=1, rate=1.0, batch_size=2)
    steps = np.stack([trained(recipe, seed)["w"][1] - W0 for seed in range(400)])
    expected = trained(jt.StepRecipe(num_steps=1, rate=1.0))["w"][1] - W0
    errors = (steps.mean(axis=0) - expected) / (steps.std(axis=0) / np.sqrt(len(steps)))
    assert np.abs(errors).max() < 4.5  # standard errors, over twelve numbers
    np.testing.assert_array_equal(trained(recipe, 7)["w"], trained(recipe, 7)["w"])
