"""Runs the kernel of Adam in Triton's interpreter, on the CPU, against the same rule in torch.

Started by test_step in a process of its own: the interpreter is chosen when a kernel is first imported.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import json
import sys

import torch

from joma.engine import optimiser
from joma.engine.config import OptimiserConfig
from joma.engine.optimiser import Rates
from joma.engine.optimiser_triton import adam

RATES = Rates(
    lr=torch.tensor([1e-2, 0.0, 3e-2], dtype=torch.float64),
    weight_decay=torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64),
    clip=torch.tensor([torch.inf, 1.0, 0.5], dtype=torch.float64),
)


def distance(name: str, count: int, of_gradient: torch.dtype) -> float:
    """Largest difference between kernel and torch over parameters and moments, with a failed run among three."""
    generator = torch.Generator().manual_seed(count)
    parameters, gradient, mean = torch.randn(3, 3, 1500, generator=generator)
    square = torch.rand(3, 1500, generator=generator)
    gradient[1] = torch.nan
    gradient = gradient.to(of_gradient)
    alive = torch.tensor([True, False, True])
    norms = optimiser.gradient_norms(gradient)
    config = OptimiserConfig(optimiser=name)
    found = [tensor.clone() for tensor in (parameters, mean, square)]
    one, dtype = torch.tensor(1.0, dtype=torch.float64), parameters.dtype
    options = {"norms": norms, "alive": alive, "factor": one, "count": torch.tensor(count), "dtype": dtype}
    numbers = optimiser.step_numbers(config, RATES, **options)
    moments, rounded = (found[1], found[2]), parameters.half()  # the interpreter cuts bfloat16 off
    rest = (config.beta1, config.beta2), config.epsilon
    adam(found[0], gradient, moments, rounded, *numbers, *rest, decoupled=name == "adamw")
    assert torch.equal(rounded, found[0].half())
    optimiser.update(config, parameters, gradient, (mean, square), numbers)
    pairs = zip(found, (parameters, mean, square), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


if __name__ == "__main__":
    cases = [
        (name, count, dtype)
        for name in ("adam", "adamw")
        for count in (1, 7)
        for dtype in (torch.float32, torch.float16)
    ]
    json.dump({f"{name} {count} {dtype}": distance(name, count, dtype) for name, count, dtype in cases}, sys.stdout)
