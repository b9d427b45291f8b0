"""Compiles the optimisers' rules and compares them with the rules as they run on a CPU; prints distances as JSON.

A script, since the shape checker's wrappers do not compile.
"""

import json
import sys

import torch
from torch import Tensor

from joma.engine.config import OptimiserConfig
from joma.engine.optimiser import NUM_MOMENTS, StepNumbers, move_by_rule
from joma.models.functional import compiled

NUM_RUNS, NUM_PARAMETERS, NUM_TRAINED = 3, 40, 37
"""Buffers as a step has them: trained parameters are the first columns of all."""
DTYPES = (torch.float64, torch.bfloat16)
"""Of gradients."""


def buffers(name: str) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Return parameters, moments and rounded parameters to begin with."""
    torch.manual_seed(1)
    parameters = torch.randn(NUM_RUNS, NUM_PARAMETERS, dtype=torch.float64)
    moments = tuple(torch.rand(NUM_RUNS, NUM_TRAINED, dtype=torch.float64) for _ in range(NUM_MOMENTS[name]))
    return parameters, moments, parameters.bfloat16()


def greatest_distance(name: str, dtype: torch.dtype) -> float:
    """How far a step that goes on and one after a restart end from those of the rule, a failed run among them."""
    config = OptimiserConfig(optimiser=name)
    per_run = torch.tensor([[1e-2, 0.7, 0.1], [0.0, 0.0, 0.1], [3e-2, 1.0, 0.0]], dtype=torch.float64)
    gradient = torch.randn(NUM_RUNS, NUM_TRAINED, dtype=dtype)
    gradient[1] = torch.nan
    ends = []
    for move in (move_by_rule, compiled(move_by_rule, "aot_eager")):
        parameters, moments, rounded = buffers(name)
        for is_going_on in (1.0, 0.0):
            numbers = StepNumbers(per_run, torch.tensor([is_going_on, 0.3, 0.2], dtype=torch.float64))
            move(config, parameters[:, :NUM_TRAINED], gradient, moments, numbers, rounded[:, :NUM_TRAINED])
        ends.append((parameters, *moments, rounded.double()))
    assert all(bool(tensor.isfinite().all()) for tensor in ends[0])
    return max(float((found - right).abs().max()) for right, found in zip(*ends, strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(
        json.dumps({name: max(greatest_distance(name, dtype) for dtype in DTYPES) for name in NUM_MOMENTS})
    )
