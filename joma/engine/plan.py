"""What a training will do, before it does anything: packs of runs that are trained at once, memory, steps and time."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from joma.engine.config import RunConfig, check_device
from joma.engine.grid import Run
from joma.engine.memory import USABLE_SHARE, footprint, free_bytes, step_cost
from joma.engine.precision import parameter_dtype, working_in
from joma.engine.sources import data_size, num_sequences, source_of, with_vocabulary
from joma.engine.step import Stepper
from joma.formatting import binary_size, counted

StepSeconds = Callable[[RunConfig, int], float]
"""Takes the first config of a pack and its number of runs, and estimates the seconds of a step."""

CALIBRATION_SECONDS = 0.1
"""How long a rate is measured."""
TRIED_SECONDS = 1.0
"""How long steps are tried."""
_FEWEST_TRIED = 3
_PRODUCT_SIZE = {"cpu": 384, "cuda": 4096}
"""Side of the matrices whose product is timed."""
_COPY_NUMBERS = {"cpu": 2**18, "cuda": 2**26}
"""Length of what is copied."""
_FUSED = {"cpu": 1.0, "cuda": 0.25}
"""Share of the traffic and of the calls that is left when a compiler has fused what it can."""
FORWARD_SHARE = 1 / 3
"""Of the work of a step, what its forward alone takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Runs of one shape (`RunConfig.shape`): they differ in rates, seeds and the like. Their configs are complete."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("A pack needs a run at least, got none. Give the grid a value on every axis.")
        if len({run.config.shape for run in self.runs}) > 1:
            raise ValueError("Runs of a pack must have one shape, got several. Form packs with `packs_of`.")
        if len(set(self.names)) < len(self.runs):
            raise ValueError("Runs of a pack must have names of their own, got one twice. Form packs with `packs_of`.")

    @property
    def num_runs(self) -> int:
        """R, the runs trained at once."""
        return len(self.runs)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the runs, which are the names of their folders."""
        return tuple(run.name for run in self.runs)

    @property
    def config(self) -> RunConfig:
        """Config of the first run, for everything that the runs share."""
        return self.runs[0].config


def packs_of(runs: Iterable[Run], most: Callable[[RunConfig], int]) -> tuple[Pack, ...]:
    """Return packs with the runs of each shape in their order, split evenly where more than `most` runs would not fit.

    `most` is asked once for each shape, with its first run.
    """
    by_shape: dict[str, list[Run]] = {}
    for run in runs:
        by_shape.setdefault(run.config.shape, []).append(run)
    return tuple(
        Pack(runs=tuple(same[at] for at in part))
        for same in by_shape.values()
        for part in np.array_split(range(len(same)), -(-len(same) // most(same[0].config)))
    )


def counted_seconds(device: torch.device) -> StepSeconds:
    """Estimate from what a step multiplies, reads and writes: takes no time, and is a lower bound in practice."""

    def seconds(config: RunConfig, num_runs: int) -> float:
        cost = step_cost(config, 1)
        flops, moved, calls = measured_speed(device, config.training.precision)
        traffic = num_runs * cost.moved_bytes / moved + cost.num_operations / calls
        return num_runs * cost.flops / flops + _FUSED[device.type] * traffic

    return seconds


def tried_seconds(config: RunConfig, num_runs: int) -> float:
    """Estimate by a few steps of one run on the CPU, where runs take one run's time each."""
    return num_runs * _tried(config)


@cache
def measured_speed(device: torch.device, precision: str) -> tuple[float, float, float]:
    """Return the operations of products, the bytes of copies and the calls of small kernels that fit a second."""
    dtype = parameter_dtype(precision)
    side = _PRODUCT_SIZE[device.type]
    square, long, short = (
        torch.ones(shape, dtype=dtype, device=device) for shape in ((side, side), _COPY_NUMBERS[device.type], 1)
    )
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    with working_in(precision, device):
        product = _least_seconds(lambda: square @ square, CALIBRATION_SECONDS, calls=4, wait=wait)
    copy, call = (_least_seconds(each.clone, CALIBRATION_SECONDS, calls=4, wait=wait) for each in (long, short))
    return 2 * side**3 / product, 2 * long.nbytes / copy, 1 / call


@cache
def _tried(config: RunConfig) -> float:
    source, stepper = source_of([config]), Stepper.of([config], num_steps=1, steps_per_epoch=1)
    return _least_seconds(lambda: stepper.advance(source.batch(0)), TRIED_SECONDS)


def _least_seconds(
    function: Callable[[], Any], at_least: float, *, calls: int = 1, wait: Callable[[], None] = lambda: None
) -> float:
    """Return the time of a call, the best over so many seconds: the one that other work did not disturb.

    One call comes before: it may load libraries for longer than all others take.
    """
    function()
    wait()
    times: list[float] = []
    while len(times) < _FEWEST_TRIED or math.fsum(times) < at_least:
        begun = time.perf_counter()
        for _ in range(calls):
            function()
        wait()
        times.append(time.perf_counter() - begun)
    return min(times) / calls


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
    num_steps_done: int = 0
    """Steps that it goes on from."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return {
            "runs": list(self.pack.names),
            "num_steps": self.num_steps,
            "num_steps_done": self.num_steps_done,
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
    check_device(name)
    device = torch.device(name)
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ValueError(f"The device {name!r} is not there: torch sees {counted(num_gpus, 'GPU')}. Take cpu.")
    return device


def make_plan(
    runs: Iterable[Run],
    *,
    device: torch.device,
    memory: int | None = None,
    step_seconds: StepSeconds | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Complete the runs from their data, pack them so that they fit, and estimate their time.

    `memory` bytes are taken as free instead of what the device says; `step_seconds` estimates the time of a step, by
    counting when None; `progress` gets in words what is done next. Raises when data or memory do not allow a run.
    """
    report = progress or (lambda doing: None)
    report("reading the data")
    ready = [replace(run, config=with_vocabulary(run.config)) for run in runs]
    free = free_bytes(device) if memory is None else memory
    firsts: dict[str, Run] = {}
    for run in ready:
        firsts.setdefault(run.config.shape, run)
    sizes = {shape: data_size(run.config) for shape, run in firsts.items()}
    needs = {}
    for number, (shape, run) in enumerate(firsts.items(), start=1):
        report(f"counting the memory of model {number} of {len(firsts)}")
        need = needs[shape] = footprint(run.config, device, data_bytes=sizes[shape].data_bytes)
        if need.most(free) < 1:
            raise ValueError(
                f"The run {run.name} needs {binary_size(need.of(1))}, and {binary_size(int(USABLE_SHARE * free))} may "
                f"be used of {binary_size(free)} that are free. Make the model, the batch or the window smaller."
            )
    packs = packs_of(ready, lambda config: needs[config.shape].most(free))
    clock = counted_seconds(device) if step_seconds is None else step_seconds
    planned = []
    for number, pack in enumerate(packs, start=1):
        report(f"timing a step of pack {number} of {len(packs)}")
        config = pack.config
        size, step, num_rows = sizes[config.shape], clock(config, pack.num_runs), num_sequences(config.data)
        num_measured = len(config.training.due_steps(size.num_steps))
        num_forwards = size.valid_tokens / (num_rows * config.trained_length)
        own = config.training
        num_steps = own.measure_extra + own.measure_states + own.gradient_batches
        measuring = num_measured * step * (FORWARD_SHARE * num_forwards + num_steps)
        planned.append(
            PackPlan(
                pack=pack,
                num_steps=size.num_steps,
                tokens_per_step=pack.num_runs * num_rows * config.data.length,
                num_bytes=needs[config.shape].of(pack.num_runs),
                seconds=size.num_steps * step + measuring,
            )
        )
    return Plan(packs=tuple(planned), device=str(device), free_bytes=free)
