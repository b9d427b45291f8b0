"""Adam over the flat parameters of all runs as one kernel: every number is read once and written once (GPU)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _NUM_WARPS = 1024, 4


@triton.jit
def _adam(
    parameters, gradient, mean, square, rounded, per_run, shared, length,
    parameters_run, gradient_run, moment_run, rounded_run,
    beta1, beta2, rest1, rest2, epsilon, DECOUPLED: tl.constexpr, ROUNDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    lr = tl.load(per_run + 3 * run)
    shrink = tl.load(per_run + 3 * run + 1)
    decay = tl.load(per_run + 3 * run + 2)
    is_going_on = tl.load(shared)
    first = tl.load(shared + 1)
    root = tl.load(shared + 2)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = at < length
    p = tl.load(parameters + run * parameters_run + at, mask=seen)
    g = tl.load(gradient + run * gradient_run + at, mask=seen).to(tl.float32)
    m = tl.load(mean + run * moment_run + at, mask=seen)
    v = tl.load(square + run * moment_run + at, mask=seen)
    g = tl.where(shrink > 0, g * shrink, 0.0)  # a failed run has 0 here, and its gradient may be anything
    if DECOUPLED:
        p = p * (1 - lr * decay)
    else:
        g = g + decay * p
    m = m * (beta1 * is_going_on) + g * rest1
    v = v * (beta2 * is_going_on) + g * g * rest2
    p = p - lr / first * m / (tl.sqrt(v) / root + epsilon)
    tl.store(parameters + run * parameters_run + at, p, mask=seen)
    if ROUNDED:
        tl.store(rounded + run * rounded_run + at, p.to(rounded.dtype.element_ty), mask=seen)
    tl.store(mean + run * moment_run + at, m, mask=seen)
    tl.store(square + run * moment_run + at, v, mask=seen)


def adam(
    parameters: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, ...],
    rounded: Tensor | None,
    per_run: Tensor,
    shared: Tensor,
    betas: tuple[float, float],
    epsilon: float,
    *,
    decoupled: bool,
) -> None:
    """Move parameters and moments in place, and write the parameters once more in the precision of `rounded`.

    `per_run` (R, 3) has the learning rate, what the gradient is multiplied by (0 for a failed run) and the weight
    decay; `shared` (3,) whether the moments go on, and the two corrections of bias.
    """
    num_runs, length = gradient.shape
    mean, square = moments
    with torch.cuda.device_of(parameters):  # kernels start on the current device, not on their data's
        _adam[(triton.cdiv(length, _BLOCK), num_runs)](
            parameters,
            gradient,
            mean,
            square,
            parameters if rounded is None else rounded,
            per_run,
            shared,
            length,
            parameters.stride(0),
            gradient.stride(0),
            mean.stride(0),
            0 if rounded is None else rounded.stride(0),
            *betas,
            *(1 - beta for beta in betas),  # here: in single precision the difference would be off in its fifth digit
            epsilon,
            DECOUPLED=decoupled,
            ROUNDED=rounded is not None,
            BLOCK=_BLOCK,
            num_warps=_NUM_WARPS,
        )
