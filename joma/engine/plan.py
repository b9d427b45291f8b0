"""What a training will do, before it does anything: packs, memory, steps and an estimate of the time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from joma.engine.extent import Extent, completed, extent, num_sequences
from joma.engine.grid import Run
from joma.engine.memory import Footprint, footprint, free_bytes, require_fit
from joma.engine.packs import Pack, packs_of
from joma.engine.schedule import due_steps
from joma.engine.speed import StepSeconds, counted_seconds
from joma.errors import UnknownNameError
from joma.figures.numbers import counted

DEVICES = ("cpu", "cuda")
FORWARD_SHARE = 1 / 3
"""Of the work of a step, what its forward alone takes."""


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

    def going_on(self, num_steps_done: int) -> "PackPlan":
        """Return what is left when as many steps are done."""
        share = 1 - num_steps_done / self.num_steps
        return replace(self, num_steps_done=num_steps_done, seconds=self.seconds * share)

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
    if name.partition(":")[0] not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"`device` must be cpu, cuda or one GPU such as cuda:0, got {name!r}.") from None
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
    counting when None; `progress` is told in words what is done next. Raises when data or memory do not allow a run.
    """
    tell = progress or (lambda doing: None)
    tell("reading the data")
    ready = [replace(run, config=completed(run.config)) for run in runs]
    free = free_bytes(device) if memory is None else memory
    firsts = {run.config.shape: run.config for run in reversed(ready)}
    extents = {shape: extent(config) for shape, config in firsts.items()}
    needs: dict[str, Footprint] = {}
    for number, (shape, config) in enumerate(firsts.items(), start=1):
        tell(f"counting the memory of model {number} of {len(firsts)}")
        needs[shape] = footprint(config, device, data_bytes=extents[shape].data_bytes)
    for run in ready:
        require_fit(run, needs[run.config.shape], free)
    packs = packs_of(ready, lambda config: needs[config.shape].most(free))
    clock = counted_seconds(device) if step_seconds is None else step_seconds
    planned = []
    for number, pack in enumerate(packs, start=1):
        tell(f"timing a step of pack {number} of {len(packs)}")
        planned.append(_planned(pack, extents[pack.config.shape], needs[pack.config.shape], clock))
    return Plan(packs=tuple(planned), device=str(device), free_bytes=free)


def _planned(pack: Pack, reach: Extent, need: Footprint, clock: StepSeconds) -> PackPlan:
    config = pack.config
    num_rows = num_sequences(config.data)
    step = clock(config, pack.num_runs)
    num_measured = len(due_steps(config.training, reach.num_steps))
    measuring = num_measured * step * FORWARD_SHARE * reach.valid_tokens / (num_rows * config.trained_length)
    return PackPlan(
        pack=pack,
        num_steps=reach.num_steps,
        tokens_per_step=pack.num_runs * num_rows * config.data.length,
        num_bytes=need.of(pack.num_runs),
        seconds=reach.num_steps * step + measuring,
    )
