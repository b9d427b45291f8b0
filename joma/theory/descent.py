r"""Training of the layer in discrete steps: what an optimiser does where the theory has a flow (Eqn 2)."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from joma.errors import positive, whole, within
from joma.theory.layer import Backprop, Layer, Logits, Samples, Weights
from joma.types import Trajectory

Array = Float[np.ndarray, "*P"]
Memory = tuple[np.ndarray, ...]
Stepped = tuple[Array, Memory]
"""Direction of ascent, to be multiplied by the learning rate, and what an optimiser remembers of past gradients."""


@dataclass(frozen=True, kw_only=True)
class GradientSteps:
    r"""SGD, $u \leftarrow \beta u + g - \lambda\theta$, with heavy-ball momentum β and weight decay λ."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        within("momentum", self.momentum, 0, 1)
        within("weight_decay", self.weight_decay, 0, 1)

    def step(self, parameter: Array, gradient: Array, memory: Memory, num_past: int) -> Stepped:
        """Move along the velocity, the first of the two memories."""
        velocity = self.momentum * memory[0] + gradient - self.weight_decay * parameter
        return velocity, (velocity, memory[1])


@dataclass(frozen=True, kw_only=True)
class Adam:
    r"""Adam, $\hat m/(\sqrt{\hat s} + \epsilon)$ with bias-corrected moments m and s of the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def step(self, parameter: Array, gradient: Array, memory: Memory, num_past: int) -> Stepped:
        """Move by the mean gradient over its root mean square."""
        first = self.beta1 * memory[0] + (1 - self.beta1) * gradient
        second = self.beta2 * memory[1] + (1 - self.beta2) * gradient**2
        m, s = first / (1 - self.beta1 ** (num_past + 1)), second / (1 - self.beta2 ** (num_past + 1))
        return m / (np.sqrt(s) + self.epsilon), (first, second)


SGD = GradientSteps()
"""Plain SGD."""


@dataclass(frozen=True, kw_only=True)
class StepRecipe:
    """How a run is trained."""

    num_steps: int
    rate: float
    """Learning rate of the weights."""
    rate_ratio: float = 1.0
    r"""$\eta_z/\eta_w$, the learning rate of the logits over that of the weights."""
    optimiser: GradientSteps | Adam = SGD
    batch_size: int | None = None
    """Samples drawn for each step, by their weights; None for all of them."""

    def __post_init__(self) -> None:
        whole("num_steps", self.num_steps, low=1)
        for name in ("rate", "rate_ratio"):
            positive(name, getattr(self, name))
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, low=1)


def train(
    layer: Layer,
    w0: Weights,
    z0: Logits,
    samples: Samples,
    backprop: Backprop,
    recipe: StepRecipe,
    *,
    rng: np.random.Generator | None = None,
) -> Trajectory:
    r"""Train the layer in discrete steps and report "w" and "z" before the first and after each.

    Time is step × rate, so that a run by SGD approximates `Layer.flow` at the same times. `rng` draws the minibatches.
    """
    if recipe.batch_size is not None and rng is None:
        raise ValueError("Minibatches need a source of randomness, got `rng` None. Pass `np.random.default_rng(seed)`.")
    rates = {"w": recipe.rate, "z": recipe.rate * recipe.rate_ratio}
    states = {name: np.empty((recipe.num_steps + 1, *start.shape)) for name, start in (("w", w0), ("z", z0))}
    states["w"][0], states["z"][0] = w0, z0
    memory: dict[str, Memory] = {name: tuple(np.zeros((2, *start.shape[1:]))) for name, start in states.items()}
    for step in range(recipe.num_steps):
        w, z = states["w"][step], states["z"][step]
        batch = samples
        if recipe.batch_size is not None and rng is not None:  # samples weighted by how often they are drawn
            drawn = rng.multinomial(recipe.batch_size, samples.weights)
            batch = replace(samples, weights=drawn / recipe.batch_size)
        gradient = layer.gradient(w, z, batch, backprop(step * recipe.rate, layer.hidden(w, z, batch)))
        for name, slope in (("w", gradient.w), ("z", gradient.z)):
            direction, memory[name] = recipe.optimiser.step(states[name][step], slope, memory[name], step)
            states[name][step + 1] = states[name][step] + rates[name] * direction
    t = recipe.rate * np.arange(recipe.num_steps + 1)
    return Trajectory(t=t, states=states, num_evaluations=recipe.num_steps)
