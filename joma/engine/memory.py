"""Bytes and operations of a training step, counted from shapes before anything is allocated.

The step runs once on torch's fake tensors, which have shapes and no content, while every operation is seen: what is
alive at the worst moment is the memory of the step, and what is multiplied, read and written is its work. So the count
follows the model and the optimiser wherever they go, and needs no formula of its own.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from joma.engine.config import RunConfig
from joma.engine.extent import num_sequences, num_validation_samples
from joma.engine.grid import Run
from joma.engine.optimiser import NUM_MOMENTS, Rates, gradient_norms, update
from joma.engine.precision import parameter_dtype, working_in
from joma.models.batch import Batch, Noise
from joma.models.decoder import Decoder
from joma.models.parameters import Layout

USABLE_SHARE = 0.9
"""Share of the free memory that packs may take: allocators round up, and other things grow."""
VALIDATION_TOKENS = 7000
"""Tokens of a text that a run is validated on at a time (`joma.engine.sources`)."""
COPIES_OF_A_SNAPSHOT = 3
"""Of one run's state while it is saved: on the host, as a file, and with the checksum in it."""
CUDA_BASE = 2**30
"""Bytes that the libraries of a GPU take for themselves, and kernels for their work."""
_KERNELS = "aten"
"""Namespace of operations that do something; others ask a tensor for its device and the like."""
_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """What one step of a pack takes."""

    peak_bytes: int
    """Alive at the worst moment: parameters, gradients, moments, activations and buffers of the loss."""
    state_bytes: int
    """Of these, parameters and moments, which live as long as the pack."""
    moved_bytes: int
    """Read and written by all operations."""
    flops: int
    """Additions and multiplications of matrix products."""
    num_operations: int
    """Calls of kernels when nothing is fused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Memory of a pack as a function of its runs: `fixed + num_runs · per_run`."""

    fixed: int
    per_run: int

    def of(self, num_runs: int) -> int:
        """Bytes that a pack of so many runs takes."""
        return self.fixed + num_runs * self.per_run

    def most(self, free: int) -> int:
        """Return the most runs that fit into the usable share of free memory; may be 0."""
        return max(int(USABLE_SHARE * free - self.fixed) // self.per_run, 0)


@cache
def step_cost(config: RunConfig, num_runs: int) -> StepCost:
    """Count one step of `num_runs` runs; `config.model.vocabulary` must be that of the data."""
    with _without_content(config), _Tally() as tally, FlopCounterMode(display=False) as counter:
        state_bytes = _step(config, num_runs)
    with _without_content(config), _Tally() as measuring:
        _evaluate(config, num_runs)
    return StepCost(
        peak_bytes=max(tally.peak, measuring.peak + state_bytes),
        state_bytes=state_bytes,
        moved_bytes=tally.moved,
        flops=counter.get_total_flops(),
        num_operations=tally.num_operations,
    )


def footprint(config: RunConfig, device: torch.device, *, data_bytes: int = 0) -> Footprint:
    """Return the memory of packs of this shape; `data_bytes` lie on the device beside them."""
    one, two = (_bytes_on(step_cost(config, num_runs), device) for num_runs in (1, 2))
    saved = COPIES_OF_A_SNAPSHOT * step_cost(config, 1).state_bytes if device.type == "cpu" else CUDA_BASE
    return Footprint(fixed=max(2 * one - two, 0) + saved + data_bytes, per_run=two - one)


def free_bytes(device: torch.device) -> int:
    """Return the memory that nobody uses now: of the GPU, or as the kernel reckons for the host."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say how much memory is available. Pass `memory`, in bytes.")


def require_fit(run: Run, need: Footprint, free: int) -> None:
    """Refuse a run that would not fit on its own, with the numbers."""
    if need.most(free) < 1:
        raise ValueError(
            f"The run {run.name} needs {in_words(need.of(1))}, and {in_words(int(USABLE_SHARE * free))} may be used of "
            f"{in_words(free)} that are free. Make the model, the batch or the window smaller."
        )


def in_words(num_bytes: int) -> str:
    """Return a number of bytes as people read it.

    >>> in_words(3 * 2**20), in_words(1500 * 2**20)
    ('3.0 MiB', '1.5 GiB')
    """
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if num_bytes >= 2**power:
            return f"{num_bytes / 2**power:.1f} {unit}"
    return f"{num_bytes / 2**10:.1f} KiB"


def _bytes_on(cost: StepCost, device: torch.device) -> int:
    """On a GPU the state is there twice while the step is captured."""
    return cost.peak_bytes + (cost.state_bytes if device.type == "cuda" else 0)


@contextmanager
def _without_content(config: RunConfig) -> Iterator[None]:
    with FakeTensorMode(), working_in(config.training.precision, _HOST):
        yield


def _step(config: RunConfig, num_runs: int) -> int:
    """Do one step without content; return the bytes of its state."""
    model, layout, flat = _started(config, num_runs)
    trained = flat[:, : layout.num_trained]
    num_moments = NUM_MOMENTS[config.optimiser.optimiser]
    moments = tuple(torch.empty_like(trained) for _ in range(num_moments))
    gradient = torch.empty(trained.shape, dtype=flat.dtype)
    noise = Noise(keys=_whole(num_runs, 2, dtype=torch.int32), step=_whole())
    batch = _batch(config, num_runs, num_sequences(config.data))
    model.value_and_gradient(layout.views(flat), layout.views(gradient), batch, noise)
    per_run = torch.empty(num_runs, dtype=torch.float64)
    update(
        config.optimiser,
        trained,
        gradient,
        moments,
        Rates(lr=per_run, weight_decay=per_run, clip=per_run),
        norms=gradient_norms(gradient),
        alive=torch.empty(num_runs, dtype=torch.bool),
        factor=torch.empty((), dtype=torch.float64),
        count=_whole(),
    )
    return sum(tensor.nbytes for tensor in (flat, *moments))


def _evaluate(config: RunConfig, num_runs: int) -> None:
    """Do one evaluation without content."""
    model, layout, flat = _started(config, num_runs)
    if config.data.is_text:
        num = max(config.data.valid_batch, VALIDATION_TOKENS // config.data.length)
    else:
        num = num_validation_samples(config.data)
    model.losses(layout.views(flat), _batch(config, num_runs, num))


def _started(config: RunConfig, num_runs: int) -> tuple[Decoder, Layout, Tensor]:
    model = Decoder(config.model)
    layout = Layout.of(model.shapes, model.frozen)
    dtype = parameter_dtype(config.training.precision)
    return model, layout, torch.empty((num_runs, layout.size), dtype=dtype)


def _batch(config: RunConfig, num_runs: int, num: int) -> Batch:
    length = config.data.length
    num_rows = num if config.model.readout == "class" else num * length
    return Batch(tokens=_whole(num_runs, num, length), targets=_whole(num_runs, num_rows))


def _whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype)


class _Tally(TorchDispatchMode):
    """Sees every operation, and when each piece of memory comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.moved = self.num_operations = 0
        self._alive = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, function: Any, kinds: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        read, written = _tensors((arguments, options)), _tensors(result)
        for tensor in written:
            self._take(tensor)
        if function.namespace == _KERNELS and not function.is_view:
            self.num_operations += 1
            self.moved += sum(tensor.nbytes for tensor in (*read, *written))
        return result

    def _take(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        self._alive += storage.nbytes()
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._give, storage.nbytes())

    def _give(self, num_bytes: int) -> None:
        self._alive -= num_bytes


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor)]
