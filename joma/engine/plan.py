"""What a training will do, before it does anything: packs, memory, steps and an estimate of the time."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from joma.engine.extent import Extent, completed, extent, num_sequences
from joma.engine.grid import Run
from joma.engine.memory import Footprint, StepCost, footprint, free_bytes, require_fit, step_cost
from joma.engine.packs import Pack, packs_of
from joma.engine.precision import parameter_dtype, working_in
from joma.engine.schedule import due_steps
from joma.errors import UnknownNameError

DEVICES = ("cpu", "cuda")
FORWARD_SHARE = 1 / 3
"""Of the work of a step, what its forward alone takes."""
CALIBRATION_SECONDS = 0.1
"""How long a rate is measured."""
_COPY_NUMBERS = 2**23
_PRODUCT_SIZE = {"cpu": 384, "cuda": 4096}
"""Side of the matrices whose product is timed: on the CPU about the size that small models have."""
FUSED = {"cpu": 1.0, "cuda": 0.25}
"""Share of the operations that are left when a compiler has fused them, and of what they read and write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What a device does in a second."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPlan:
    """One pack, and what it will take."""

    pack: Pack
    num_steps: int
    tokens_per_step: int
    """Of all runs together."""
    num_bytes: int
    """Memory at the worst moment."""
    seconds: float
    """Estimated, measuring included."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return {
            "runs": list(self.pack.names),
            "num_steps": self.num_steps,
            "tokens_per_step": self.tokens_per_step,
            "num_bytes": self.num_bytes,
            "estimated_seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The packs of a training, in the order in which they are trained."""

    packs: tuple[PackPlan, ...]
    device: str
    free_bytes: int
    """Memory that was free when the plan was made."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """Runs of all packs."""
        return tuple(run for each in self.packs for run in each.pack.runs)

    @property
    def seconds(self) -> float:
        """Estimated time of all packs, one after the other."""
        return math.fsum(each.seconds for each in self.packs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return {
            "device": self.device,
            "free_bytes": self.free_bytes,
            "estimated_seconds": self.seconds,
            "packs": [each.as_dict() for each in self.packs],
        }


def device_named(name: str | None) -> torch.device:
    """Return a device that is there: the one named, else the GPU if there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"`device` must be cpu, cuda or one GPU such as cuda:0, got {name!r}.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"The device {name!r} is not there: torch sees {torch.cuda.device_count()} GPUs. Take cpu.")
    return device


def make_plan(
    runs: Iterable[Run], *, device: torch.device, memory: int | None = None, speed: Speed | None = None
) -> Plan:
    """Complete the runs from their data, pack them so that they fit, and estimate their time.

    `memory` bytes are taken as free instead of what the device says; `speed` replaces what would be measured. Raises
    when data or memory do not allow a run.
    """
    ready = [replace(run, config=completed(run.config)) for run in runs]
    free = free_bytes(device) if memory is None else memory
    extents = {run.config.shape: extent(run.config) for run in ready}
    needs = {shape: _footprint(ready, shape, device, reach) for shape, reach in extents.items()}
    for run in ready:
        require_fit(run, needs[run.config.shape], free)
    packs = packs_of(ready, lambda config: needs[config.shape].most(free))
    rate = _speed_of(device, speed)
    return Plan(
        packs=tuple(_planned(pack, extents, needs, rate, FUSED[device.type]) for pack in packs),
        device=str(device),
        free_bytes=free,
    )


@cache
def measured_speed(device: torch.device, precision: str) -> Speed:
    """Time a product, a copy and a small operation on a device, for a fraction of a second each."""
    dtype = parameter_dtype(precision)
    side = _PRODUCT_SIZE[device.type]
    a, b = (torch.ones((side, side), dtype=dtype, device=device) for _ in range(2))
    long, short = (torch.ones(size, dtype=dtype, device=device) for size in (_COPY_NUMBERS, 1))
    with working_in(precision, device):
        products = _per_second(lambda: a @ b, device)
    return Speed(
        flops=2 * side**3 * products,
        bytes=2 * long.nbytes * _per_second(long.clone, device),
        operations=_per_second(short.clone, device),
    )


def _per_second(function: Callable[[], Any], device: torch.device) -> float:
    """Return how often a function runs in a second, once it is warm."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    function()
    wait()
    begun, num_done = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < CALIBRATION_SECONDS:
        function()
        num_done += 1
        wait()
    return num_done / passed


def _footprint(runs: list[Run], shape: str, device: torch.device, reach: Extent) -> Footprint:
    first = next(run.config for run in runs if run.config.shape == shape)
    return footprint(first, device, data_bytes=reach.data_bytes)


def _speed_of(device: torch.device, given: Speed | None) -> Callable[[str], Speed]:
    return lambda precision: measured_speed(device, precision) if given is None else given


def _planned(
    pack: Pack, extents: dict[str, Extent], needs: dict[str, Footprint], speed: Callable[[str], Speed], fused: float
) -> PackPlan:
    config = pack.config
    reach = extents[config.shape]
    tokens = num_sequences(config.data) * config.data.length
    step = speed(config.training.precision).seconds(step_cost(config, 1), pack.num_runs, fused)
    num_measured = len(due_steps(config.training, reach.num_steps))
    measuring = num_measured * step * FORWARD_SHARE * reach.valid_tokens / tokens
    return PackPlan(
        pack=pack,
        num_steps=reach.num_steps,
        tokens_per_step=pack.num_runs * tokens,
        num_bytes=needs[config.shape].of(pack.num_runs),
        seconds=reach.num_steps * step + measuring,
    )
