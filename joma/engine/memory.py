"""Memory and work of a training step, measured before anything is allocated.

The step runs once on torch's `meta` device, where tensors have shapes and no content, while every operation is seen:
what is alive at the worst moment is the memory of the step, and what is multiplied, read and written is its work. That
cannot run out of memory, and it follows the model and the optimiser wherever they go. Lower precisions of products
count as full ones, but for the logits on a CPU, which are there in both.
"""

import math
import weakref
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from joma.engine.config import RunConfig, TrainingConfig
from joma.engine.measuring import on_validation
from joma.engine.sources import MASKED, masked_rows, num_sequences, num_validated
from joma.engine.step import Stepper
from joma.measure.entropy import Path as EntropyPath
from joma.models.batch import Batch
from joma.models.block import mlp_shapes
from joma.models.decoder import Decoder

USABLE_SHARE = 0.9
"""Share of the free memory that packs may take: allocators round up, and other things grow."""
COPIES_OF_A_SNAPSHOT = 3
"""Of one run's state while it is saved: on the host, as a file, and in bytes that older safetensors make in between."""
CUDA_BASE = 2**30
"""Bytes that the libraries of a GPU take for themselves, and kernels for their work."""
MEMINFO = Path("/proc/meminfo")
_UNKNOWN_MEMORY = 4 * 2**30
"""Bytes to count on where the system does not say what is free (macOS, Windows); `memory` gives more."""
_CGROUP = Path("/sys/fs/cgroup")
CONTAINER_FILES = (
    (_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat"),
    tuple(_CGROUP / "memory" / f"memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
)
"""Limit, use and details of a container's memory, in the newer and the older layout of the kernel."""
_META = torch.device("meta")


class StepCost(NamedTuple):
    """What one step of a pack takes."""

    training_bytes: int
    """Alive at the worst moment of a step: parameters, gradients, moments, activations and buffers of the loss."""
    validating_bytes: int
    """Alive at the worst moment of an evaluation: parameters, activations, buffers of the loss and of the entropy."""
    state_bytes: int
    """Parameters, rounded ones too, and moments, which live as long as the pack."""
    moved_bytes: int
    """Read and written by all operations."""
    flops: int
    """Additions and multiplications of matrix products."""
    num_operations: int
    """Calls of kernels when nothing is fused."""

    @property
    def peak_bytes(self) -> int:
        """Memory that has to be there: an evaluation comes on top of the gradients and moments of the training."""
        return max(self.training_bytes, self.validating_bytes + 2 * self.state_bytes)


class Footprint(NamedTuple):
    """Memory of a pack as a function of its runs: `fixed + num_runs · per_run`."""

    fixed: int
    per_run: int

    def of(self, num_runs: int) -> int:
        """Bytes that a pack of so many runs takes."""
        return self.fixed + num_runs * self.per_run

    def most(self, free: int) -> int:
        """Return the most runs that fit into the usable share of free memory; may be 0."""
        return max(int(USABLE_SHARE * free - self.fixed) // self.per_run, 0)


def step_cost(config: RunConfig, num_runs: int, *, on_a_cpu: bool = False) -> StepCost:
    """Count one step of `num_runs` runs; `config.model.vocabulary` must be that of the data.

    On a CPU half precision takes more, since its logits are there in full precision as well; our kernels have no copy.
    """
    optimiser = replace(config.optimiser, lr=0.0, weight_decay=0.0, clip=math.inf)
    given = config.training
    training = TrainingConfig(
        steps=1, precision=given.precision, measure_extra=given.measure_extra, measure_states=given.measure_states
    )
    return _counted(replace(config, optimiser=optimiser, training=training, seed=0), num_runs, on_a_cpu)


def footprint(config: RunConfig, device: torch.device, *, data_bytes: int = 0) -> Footprint:
    """Return the memory of packs of this shape; `data_bytes` lie on the device too.

    Everything in a step has the run axis, so that runs add up. On a GPU the memory of a captured step stays its own: an
    evaluation comes on top of it, and the state is there twice while it is captured. On the host, one run's state is
    there again while it is saved.
    """
    cost = step_cost(config, 1, on_a_cpu=device.type == "cpu")
    model, is_extra, num_batches = config.model, config.training.measure_extra, config.training.gradient_batches
    more = is_extra * model.depth * prod(mlp_shapes(model)["mlp.lower.weight"]) * torch.float64.itemsize
    # The start of the embedding, and while its drift is measured both in float64, with their sum and difference.
    more += config.training.measure_states * 5 * model.vocabulary * model.width * torch.float64.itemsize
    more += (num_batches > 1) * cost.state_bytes  # at most that much is the sum of several batches' gradients
    if device.type == "cuda":  # gradients are measured outside the captured step
        extra = max(cost.validating_bytes, cost.state_bytes, (is_extra or num_batches > 0) * cost.training_bytes)
        return Footprint(fixed=CUDA_BASE + data_bytes, per_run=cost.training_bytes + extra + more)
    return Footprint(fixed=COPIES_OF_A_SNAPSHOT * cost.state_bytes + data_bytes, per_run=cost.peak_bytes + more)


def free_bytes(device: torch.device) -> int:
    """Return the memory that nobody uses now: of the GPU, or as the kernel reckons for the host and this container."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    available = _figures(MEMINFO).get("MemAvailable")
    free = _UNKNOWN_MEMORY if available is None else available * 1024
    for limit, used, details in CONTAINER_FILES:
        try:
            left = int(limit.read_text(encoding="utf-8")) - int(used.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no such file, or `max`: no limit
            continue
        return min(free, max(left + _figures(details).get("inactive_file", 0), 0))  # cached files make room
    return free


def _figures(path: Path) -> dict[str, int]:
    """Return the numbers of a file of the kernel by name; none where there is no such file."""
    try:
        lines = [line.replace(":", " ").split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1}


class _Shapes(Decoder):
    """A decoder whose start takes no memory."""

    def initial(self, seed: int) -> dict[str, Tensor]:
        return {name: torch.empty(shape, device=_META) for name, shape in self.shapes.items()}


class _Counted(Stepper):
    """A stepper without content; the factors of its products are parameters in full precision."""

    def __init__(self, config: RunConfig, num_runs: int, working: str) -> None:
        lengths = {"num_steps": 1, "steps_per_epoch": 1}
        optimisers, precision = [config.optimiser] * num_runs, config.training.precision
        super().__init__(
            _Shapes(config.model), range(num_runs), optimisers, **lengths, precision=precision, device=_META
        )
        self.working_parameters, self._precision = self.parameters, working


@cache
def _counted(config: RunConfig, num_runs: int, on_a_cpu: bool) -> StepCost:
    data, working = config.data, config.training.precision if on_a_cpu else "fp32"

    def batch(num: int, length: int) -> Batch:
        shape = (num_runs, num, length)
        is_masked, num_rows = config.model.readout == MASKED, num * length
        num_rows = masked_rows(num_rows, data.mask_share) if is_masked else num_rows
        num_rows = num if config.model.readout == "class" else num_rows
        rows = torch.empty((num_runs, num_rows), dtype=torch.int64, device=_META)
        return Batch(
            tokens=torch.empty(shape, dtype=torch.int64, device=_META),
            targets=rows,
            rows=rows if is_masked else None,
            # Merged keys are weighted, and attention is there as a matrix.
            key_bias=torch.empty(shape, device=_META) if length < data.length else None,
        )

    with _FusedAttention():
        with _Tally() as stepping, FlopCounterMode(display=False) as counter:
            stepper = _Counted(config, num_runs, working)
            stepping.moved = stepping.num_operations = 0
            stepper.advance(batch(num_sequences(data), config.trained_length))
        with _Tally() as validating:
            views = stepper.layout.views(stepper.layout.empty(num_runs, stepper.state.parameters.dtype, _META))
            batches, training = [batch(num_validated(data), data.length)], replace(config.training, precision=working)
            # As a CPU computes entropies, which takes more than a GPU does.
            on_validation(stepper.model, views, batches, training, working=views, path=EntropyPath.CHUNKED)
    return StepCost(
        training_bytes=stepping.peak,
        validating_bytes=validating.peak,
        state_bytes=sum(each.nbytes for each in stepper.state.tensors()),
        moved_bytes=stepping.moved,
        flops=counter.get_total_flops(),
        num_operations=stepping.num_operations,
    )


class _FusedAttention(TorchFunctionMode):
    """Keeps attention fused, as it is on every device but this one, where torch would write its weights out."""

    def __torch_function__(
        self, function: Any, kinds: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        if function is not scaled_dot_product_attention:
            return function(*arguments, **options)
        causal, scale = options.get("is_causal", False), options.get("scale")
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        return fused(*arguments, None, torch.is_grad_enabled(), 0.0, causal, scale=scale)[0]


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
        read, written = (
            [leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor)] for tree in ((arguments, options), result)
        )
        for storage in (tensor.untyped_storage() for tensor in written):
            if storage not in self._known:
                self._known.add(storage)
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        if function.namespace == "aten" and not function.is_view:  # others ask a tensor for its device and the like
            self.num_operations += 1
            self.moved += sum(tensor.nbytes for tensor in (*read, *written))
        return result

    def _add(self, num_bytes: int) -> None:
        self._alive += num_bytes
        self.peak = max(self.peak, self._alive)
