"""How long a step takes, before a training: counted operations over measured rates, or a few steps tried."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from joma.engine.config import RunConfig
from joma.engine.memory import StepCost, step_cost
from joma.engine.precision import parameter_dtype, working_in
from joma.engine.sources import source_of
from joma.engine.step import Stepper
from joma.models.decoder import Decoder

StepSeconds = Callable[[RunConfig, int], float]
"""Takes the first config of a pack and its number of runs, and estimates the seconds of a step."""

CALIBRATION_SECONDS = 0.1
"""How long a rate is measured."""
TRIED_SECONDS = 1.0
"""How long steps are tried, behind one that warms up."""
MOST_TRIED = 50
FEWEST_TRIED = 3
_CALLS_AT_ONCE = 4
_PRODUCT_SIZE = {"cpu": 384, "cuda": 4096}
"""Side of the matrices whose product is timed."""
_COPY_NUMBERS = {"cpu": 2**18, "cuda": 2**26}
"""Length of what is copied."""
_FUSED = {"cpu": 1.0, "cuda": 0.25}
"""Share of the traffic and of the calls that is left when a compiler has fused what it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What a device does in a second at its best."""

    flops: float
    """Additions and multiplications of matrix products."""
    bytes: float
    """Bytes read and written."""
    operations: float
    """Calls of small kernels."""

    def seconds(self, cost: StepCost, num_runs: int, fused: float = 1.0) -> float:
        """Estimate the time of a step of so many runs, `cost` being that of one: products, traffic, calls in turn."""
        calls = cost.num_operations / self.operations
        return num_runs * cost.flops / self.flops + fused * (num_runs * cost.moved_bytes / self.bytes + calls)


def counted_seconds(device: torch.device) -> StepSeconds:
    """Estimate from what a step multiplies, reads and writes: takes no time, and is a lower bound in practice."""

    def seconds(config: RunConfig, num_runs: int) -> float:
        speed = measured_speed(device, config.training.precision)
        return speed.seconds(step_cost(config, 1), num_runs, _FUSED[device.type])

    return seconds


def tried_seconds(config: RunConfig, num_runs: int) -> float:
    """Estimate by a few steps of one run on the CPU, where runs take one run's time each."""
    return num_runs * _tried(config)


@cache
def measured_speed(device: torch.device, precision: str) -> Speed:
    """Time a product, a copy and a small operation on a device, for a fraction of a second each."""
    dtype = parameter_dtype(precision)
    side = _PRODUCT_SIZE[device.type]
    a, b = (torch.ones((side, side), dtype=dtype, device=device) for _ in range(2))
    long, short = (torch.ones(size, dtype=dtype, device=device) for size in (_COPY_NUMBERS[device.type], 1))
    with working_in(precision, device):
        products = _per_second(partial(torch.matmul, a, b), device)
    return Speed(
        flops=2 * side**3 * products,
        bytes=2 * long.nbytes * _per_second(partial(torch.clone, long), device),
        operations=_per_second(partial(torch.clone, short), device),
    )


@cache
def _tried(config: RunConfig) -> float:
    source = source_of([config])
    stepper = Stepper(
        Decoder(config.model),
        [config.seed],
        [config.optimiser],
        num_steps=MOST_TRIED,
        steps_per_epoch=MOST_TRIED,
        precision=config.training.precision,
    )
    stepper.advance(source.batch(0))
    seconds: list[float] = []
    while len(seconds) < FEWEST_TRIED or (math.fsum(seconds) < TRIED_SECONDS and len(seconds) < MOST_TRIED):
        begun = time.perf_counter()
        stepper.advance(source.batch(0))
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _per_second(function: Callable[[], Any], device: torch.device) -> float:
    """Return how often a function can run in a second: the best of many, which other work did not disturb."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    function()  # the first call may load libraries for longer than all of the calibration
    wait()
    best, end = math.inf, time.perf_counter() + CALIBRATION_SECONDS
    while time.perf_counter() < end:
        begun = time.perf_counter()
        for _ in range(_CALLS_AT_ONCE):
            function()
        wait()
        best = min(best, (time.perf_counter() - begun) / _CALLS_AT_ONCE)
    return 1 / best
