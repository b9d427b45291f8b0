r"""The optimisers, one pass over the flat parameters of all runs, each run with its own rate, decay and clipping.

Adam as in torch: $m \leftarrow \beta_1 m + (1-\beta_1) g$, $v \leftarrow \beta_2 v + (1-\beta_2) g^2$,
$\theta \leftarrow \theta - \eta\, \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \epsilon}$, where t counts from
the last restart. A run that has failed is masked: its gradient counts as 0 and its rate is 0, so that its weights stay.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.engine.config import OptimiserConfig
from joma.models.functional import compiled

CLIP_EPSILON = 1e-6
"""Added to the norm that clipping divides by, as in torch."""
BLOCK = 2**15
"""Parameters of a run that a CPU moves at a time, so that all passes over them find them in its cache."""
NUM_MOMENTS = {"adam": 2, "adamw": 2, "sgd": 0, "momentum": 1}

Flat = Float[Tensor, "R P"]
Moments = tuple[Flat, ...]
PerRun = Float[Tensor, " R"]


class Rates(NamedTuple):
    """What differs between the runs of a pack; a tuple, as compiled functions take and return them."""

    lr: PerRun
    weight_decay: PerRun
    clip: PerRun
    """Largest gradient norm; infinite for none."""


class StepNumbers(NamedTuple):
    """What a step multiplies by, in the parameters' precision."""

    per_run: Float[Tensor, "R 3"]
    """Learning rate, factor of the gradient, weight decay; the first two are 0 for a run that has failed."""
    shared: Float[Tensor, "3"]
    """1 while moments go on and 0 where they start anew, and what Adam's mean and root are divided by."""


def gradient_norms(gradient: Flat) -> PerRun:
    """Norm of each run's gradient, summed in single precision at least."""
    return torch.linalg.vector_norm(gradient, dim=1, dtype=torch.promote_types(gradient.dtype, torch.float32))


def rate_factor(config: OptimiserConfig, num_steps: int, step: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """What the schedule makes of the learning rate at a step: warm-up, then constant, or down to 0 at `num_steps`."""
    done = step.double()
    warm = torch.clamp((done + 1) / config.warmup, max=1.0) if config.warmup else torch.ones_like(done)
    if config.schedule == "constant":
        return warm
    progress = torch.clamp((done - config.warmup) / max(num_steps - config.warmup, 1), 0.0, 1.0)
    if config.schedule == "linear":
        return warm * (1 - progress)
    return warm * (1 + torch.cos(torch.pi * progress)) / 2


def step_numbers(
    config: OptimiserConfig,
    rates: Rates,
    *,
    norms: PerRun,
    alive: Bool[Tensor, " R"],
    factor: Float[Tensor, ""],
    count: Int[Tensor, ""],
    dtype: torch.dtype,
) -> StepNumbers:
    """Return the numbers of a step; `count` is its number since the last restart, from 1."""
    shrink = torch.clamp(rates.clip / (norms.double() + CLIP_EPSILON), max=1.0)
    moving = [torch.where(alive, number, 0.0) for number in (rates.lr * factor, shrink)]
    times = count.double()
    # What Adam's mean and the root of its square are divided by, since both start from 0.
    corrections = 1 - config.beta1**times, torch.sqrt(1 - config.beta2**times)
    return StepNumbers(
        per_run=torch.stack([*moving, rates.weight_decay], dim=1).to(dtype),
        shared=torch.stack([count > 1, *corrections]).to(dtype),
    )


def update(
    config: OptimiserConfig,
    parameters: Flat,
    gradient: Flat,
    moments: Moments,
    numbers: StepNumbers,
    rounded: Flat | None = None,
    factors: Float[Tensor, "1 P"] | None = None,
) -> None:
    """Move parameters and moments in place; `rounded` becomes a copy of the parameters in its own precision.

    `factors` multiply the learning rate of each parameter.
    """
    is_single = parameters.is_cuda and parameters.dtype == torch.float32
    if is_single and config.optimiser in ("adam", "adamw") and factors is None:
        from joma.engine import optimiser_triton

        optimiser_triton.adam(
            parameters,
            gradient,
            moments,
            rounded,
            numbers.per_run,
            numbers.shared,
            (config.beta1, config.beta2),
            config.epsilon,
            decoupled=config.optimiser == "adamw",
        )
        return
    if parameters.device.type != "cpu":  # compiled it is one pass; tensors without memory are only counted
        move = compiled(move_by_rule) if parameters.is_cuda else move_by_rule
        move(config, parameters, gradient, moments, numbers, rounded, factors)
        return
    for start in range(0, parameters.shape[1], BLOCK):
        some = slice(start, start + BLOCK)
        move_by_rule(
            config,
            parameters[:, some],
            gradient[:, some],
            tuple(moment[:, some] for moment in moments),
            numbers,
            None if rounded is None else rounded[:, some],
            None if factors is None else factors[:, some],
        )


def move_by_rule(
    config: OptimiserConfig,
    parameters: Flat,
    gradient: Flat,
    moments: Moments,
    numbers: StepNumbers,
    rounded: Flat | None,
    factors: Float[Tensor, "1 P"] | None = None,
) -> None:
    """Do what `update` says as it is written down in torch: several passes over the parameters unless compiled."""
    lr, shrink, decay = numbers.per_run.split(1, dim=1)
    g = torch.where(shrink > 0, gradient * shrink, 0.0)  # the gradient of a failed run may be anything
    lr = lr if factors is None else lr * factors
    if config.optimiser == "adamw":
        parameters.mul_(1 - lr * decay)
    else:
        g = g + decay * parameters
    _RULES[config.optimiser](config, parameters, g, moments, lr, numbers.shared)
    if rounded is not None:
        rounded.copy_(parameters)


def _adam(config: OptimiserConfig, parameters: Flat, g: Flat, moments: Moments, lr: Tensor, shared: Tensor) -> None:
    mean, square = moments
    is_going_on, first, root = shared.unbind()  # 0 at a restart forgets the moments, without another pass
    mean.copy_(mean * (config.beta1 * is_going_on) + g * (1 - config.beta1))
    square.copy_(square * (config.beta2 * is_going_on) + g * g * (1 - config.beta2))
    parameters.sub_((lr / first) * mean / (square.sqrt() / root + config.epsilon))


def _sgd(config: OptimiserConfig, parameters: Flat, g: Flat, moments: Moments, lr: Tensor, shared: Tensor) -> None:
    parameters.sub_(lr * g)


def _momentum(config: OptimiserConfig, parameters: Flat, g: Flat, moments: Moments, lr: Tensor, shared: Tensor) -> None:
    (velocity,) = moments
    velocity.copy_(velocity * (config.momentum * shared[0]) + g)
    parameters.sub_(lr * velocity)


_RULES = {"adam": _adam, "adamw": _adam, "sgd": _sgd, "momentum": _momentum}
