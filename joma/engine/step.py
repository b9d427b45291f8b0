"""One training step of all runs of a pack: gradients, failures, optimiser; on a GPU compiled and captured once."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.engine import optimiser
from joma.engine.config import OptimiserConfig, RunConfig
from joma.engine.optimiser import NUM_MOMENTS, Rates, StepNumbers
from joma.engine.precision import in_one_order, parameter_dtype, product_dtype, working_in
from joma.models.batch import Batch, Model, Noise
from joma.models.decoder import Decoder, parts_of
from joma.models.functional import compiled
from joma.models.parameters import Layout
from joma.randomness import run_keys

NOT_FAILED = -1
"""`failed_at` of a run that goes on."""
NUM_WARM_UPS = 2
"""Steps that compile and choose kernels before the capture; what they change is put back."""
NUM_DRAWN_AT_ONCE = 8
"""Runs whose starts are drawn at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackState:
    """Everything that a step changes, for all runs."""

    parameters: Float[Tensor, "R P"]
    moments: tuple[Float[Tensor, "R T"], ...]
    step: Int[Tensor, ""]
    """Steps done."""
    alive: Bool[Tensor, " R"]
    failed_at: Int[Tensor, " R"]
    """Step at which a run's loss or gradient was no longer finite, -1 while it goes on."""
    losses: Float[Tensor, " R"]
    """Of the last step; NaN for runs that have failed."""
    rounded: Float[Tensor, "R P"] | None
    """The parameters in the precision of products, if that is another one: the optimiser writes them as it goes."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the state."""
        rounded = () if self.rounded is None else (self.rounded,)
        return (self.parameters, *self.moments, self.step, self.alive, self.failed_at, self.losses, *rounded)


class Stepper:
    """Trains the runs of a pack together. What a run becomes does not depend on which others are there."""

    def __init__(
        self,
        model: Model,
        seeds: Sequence[int],
        optimisers: Sequence[OptimiserConfig],
        *,
        num_steps: int,
        steps_per_epoch: int,
        precision: str = "fp32",
        device: torch.device | str = "cpu",
    ) -> None:
        """Start every run from its seed; `optimisers` may differ in learning rate, weight decay and clipping."""
        if not seeds or len(seeds) != len(optimisers):
            raise ValueError(
                f"A pack needs at least one run, and one optimiser a run, got {len(seeds)} seeds and "
                f"{len(optimisers)} optimisers."
            )
        self.model = model
        self.device = torch.device(device)
        self.layout = Layout.of(model.shapes, model.frozen, model.tiled)
        self._optimiser = optimisers[0]
        self._precision = precision
        self._lengths = num_steps, steps_per_epoch
        self._keys = run_keys(seeds, self.device)
        self._rates = Rates(
            *(
                torch.tensor([getattr(one, name) for one in optimisers], dtype=torch.float64, device=self.device)
                for name in Rates._fields
            )
        )
        self.state = self._started(seeds)
        self.parameters = self.layout.views(self.state.parameters)
        self.working_parameters = self._working_views(self.state.parameters)
        """Those that a step works with: factors of products in the precision of products."""
        front = self.state.parameters
        if self.state.rounded is not None:
            front = self.state.rounded
            rounded = self._working_views(front)
            self.working_parameters |= {name: rounded[name] for name in model.factors}
        self._gradient = torch.zeros_like(front[:, : self.layout.num_trained])
        self._gradients = self._working_views(self._gradient)
        self._factors = self._rate_factors()
        self._captured: Callable[[], None] | None = None
        self._batch: Batch | None = None

    @classmethod
    def of(cls, configs: Sequence[RunConfig], num_steps: int, steps_per_epoch: int, **options: Any) -> "Stepper":
        """Start runs of one shape from their configs."""
        seeds, optimisers = ([getattr(each, name) for each in configs] for name in ("seed", "optimiser"))
        options |= {"num_steps": num_steps, "steps_per_epoch": steps_per_epoch}
        return cls(Decoder(configs[0].model), seeds, optimisers, precision=configs[0].training.precision, **options)

    @property
    def num_runs(self) -> int:
        """Runs in the pack, failed ones included."""
        return len(self._keys)

    @property
    def losses(self) -> Float[Tensor, " R"]:
        """Training losses of the last step, on the device; NaN for runs that have failed."""
        return self.state.losses

    def advance(self, batch: Batch) -> None:
        """Do one step of every run. On a GPU it is queued, and nothing is waited for."""
        if self.device.type != "cuda":
            self._advance(batch)
            return
        given = {each.name: getattr(batch, each.name) for each in fields(batch)}
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        if self._captured is None:
            self._batch = Batch(**{name: tensor.clone() for name, tensor in given.items()})
            self._captured = self._capture(self._batch)
        for name, tensor in given.items():
            getattr(self._batch, name).copy_(tensor)
        self._captured()

    def gradients(self, batch: Batch, *others: Batch) -> dict[str, Tensor]:
        """Return the gradient that a step on this batch would follow, before it is clipped, dropout included.

        With `others`, the batches of the steps after it, their mean. Nothing moves. The next call, or the next step,
        overwrites the gradient of a single batch.
        """
        self._differentiate(batch)
        if not others:
            return self.layout.views(self._gradient)
        total = self._gradient.to(torch.promote_types(self._gradient.dtype, torch.float32), copy=True)
        for ahead, other in enumerate(others, start=1):
            self._differentiate(other, ahead)
            total += self._gradient
        return self.layout.views(total.div_(1 + len(others)))

    def run_state(self, run: int) -> dict[str, Tensor]:
        """Everything that one run needs to go on elsewhere, on the CPU."""
        state = self.state
        own = {f"parameters.{name}": tensor[run] for name, tensor in self.parameters.items()}
        for i, moment in enumerate(state.moments):
            own |= {f"moments.{i}.{name}": tensor[run] for name, tensor in self.layout.views(moment).items()}
        own |= {"step": state.step, "failed_at": state.failed_at[run]}
        return {name: on_cpu(tensor) for name, tensor in own.items()}

    def load_run_state(self, run: int, own: Mapping[str, Tensor]) -> None:
        """Put a run where `run_state` found it. The step is the pack's: load runs that stand at one step together."""
        state = self.state
        for name, tensor in self.parameters.items():
            tensor[run].copy_(own[f"parameters.{name}"])
        for i, moment in enumerate(state.moments):
            for name, tensor in self.layout.views(moment).items():
                tensor[run].copy_(own[f"moments.{i}.{name}"])
        state.step.copy_(own["step"])
        state.failed_at[run].copy_(own["failed_at"])
        state.alive[run].copy_(own["failed_at"] == NOT_FAILED)
        if state.rounded is not None:
            state.rounded[run].copy_(state.parameters[run])

    def _started(self, seeds: Sequence[int]) -> PackState:
        dtype = parameter_dtype(self._precision)
        flat = self.layout.empty(len(seeds), dtype, self.device).zero_()
        views = self.layout.views(flat)
        with ThreadPoolExecutor(NUM_DRAWN_AT_ONCE) as threads:  # random numbers take one core a run
            for first in range(0, len(seeds), NUM_DRAWN_AT_ONCE):  # no more are asked for, or all would lie in memory
                some = seeds[first : first + NUM_DRAWN_AT_ONCE]
                for run, start in enumerate(threads.map(self.model.initial, some), start=first):
                    for name, tensor in start.items():
                        views[name][run].copy_(tensor)
        trained, low = flat[:, : self.layout.num_trained], product_dtype(self._precision)
        is_rounded = low != dtype and bool(self.model.factors)
        return PackState(
            parameters=flat,
            rounded=self.layout.empty(len(seeds), low, self.device).copy_(flat) if is_rounded else None,
            moments=tuple(torch.zeros_like(trained) for _ in range(NUM_MOMENTS[self._optimiser.optimiser])),
            step=torch.zeros((), dtype=torch.int64, device=self.device),
            alive=torch.ones(len(seeds), dtype=torch.bool, device=self.device),
            failed_at=torch.full((len(seeds),), NOT_FAILED, dtype=torch.int64, device=self.device),
            losses=torch.full((len(seeds),), torch.nan, dtype=dtype, device=self.device),
        )

    def _rate_factors(self) -> Float[Tensor, "1 T"] | None:
        """Return what the learning rate of each trained parameter is multiplied by; None where that is 1 for all."""
        if not isinstance(self.model, Decoder):
            return None
        own = self._optimiser
        by_part = {"qk": own.lr_attention, "value": own.lr_attention, "output": own.lr_attention}
        by_part |= {name: getattr(own, f"lr_{name}") for name in ("embedding", "positions", "mlp", "norm", "readout")}
        if not self.model.held and {*by_part.values(), own.lr_logits} == {1.0}:
            return None
        by_part |= dict.fromkeys(self.model.config.frozen, 0.0)
        factors = torch.ones((1, self.layout.num_trained), dtype=self.state.parameters.dtype, device=self.device)
        for name, view in self.layout.views(factors).items():
            for part, rows in parts_of(self.model.config, name).items():
                view[:, rows] *= by_part[part] * (own.lr_logits if name.endswith(".logits") else 1.0)
        return factors

    def _working_views(self, buffer: Float[Tensor, "R P"]) -> dict[str, Tensor]:
        """Views for products: on a GPU with whole tiles."""
        return self.layout.views(buffer, with_room=self.device.type == "cuda")

    def _advance(self, batch: Batch) -> None:
        state = self.state
        self._move(self._differentiate(batch))
        if self._optimiser.qk_clip < math.inf:
            assert isinstance(self.model, Decoder)  # `RunConfig` has no other
            with in_one_order(self.device), working_in(self._precision, self.device):
                self.model.clip_logits(self.parameters, batch, self._optimiser.qk_clip)
            if state.rounded is not None:
                state.rounded.copy_(state.parameters)

    def _differentiate(self, batch: Batch, ahead: int = 0) -> Float[Tensor, " R"]:
        """Return the losses, and write the gradients, with the dropout of a step that comes `ahead` steps later."""
        step = self.state.step + ahead if ahead else self.state.step
        with in_one_order(self.device), working_in(self._precision, self.device):
            noise = Noise(keys=self._keys, step=step)
            return self.model.value_and_gradient(self.working_parameters, self._gradients, batch, noise)

    def _move(self, losses: Float[Tensor, " R"]) -> None:
        """Note which runs have failed and that a step is done, and let the optimiser move the parameters."""
        state, num_trained = self.state, self.layout.num_trained
        settle = compiled(settle_step) if self.device.type == "cuda" else settle_step  # else some forty tiny kernels
        numbers = settle(
            self._optimiser,
            self._lengths,
            self._rates,
            (losses, optimiser.gradient_norms(self._gradient)),
            (state.step, state.alive, state.failed_at, state.losses),
        )
        state.step.add_(1)
        optimiser.update(
            self._optimiser,
            state.parameters[:, :num_trained],
            self._gradient,
            state.moments,
            numbers,
            None if state.rounded is None else state.rounded[:, :num_trained],
            self._factors,
        )

    def _capture(self, batch: Batch) -> Callable[[], None]:
        """Compile the step, then record it as one CUDA graph over buffers that stay where they are."""
        kept = [tensor.clone() for tensor in self.state.tensors()]
        here, beside = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            for _ in range(NUM_WARM_UPS):
                self._advance(batch)
        here.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # On the stream of the warm-ups, for which libraries have made their workspaces, outside the graph's memory.
        with torch.cuda.graph(graph, stream=beside):
            self._advance(batch)
        for tensor, before in zip(self.state.tensors(), kept, strict=True):
            tensor.copy_(before)
        return graph.replay


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a copy in the host's memory, to be saved."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def settle_step(
    config: OptimiserConfig,
    lengths: tuple[int, int],
    rates: Rates,
    found: tuple[Float[Tensor, " R"], Float[Tensor, " R"]],
    state: tuple[Int[Tensor, ""], Bool[Tensor, " R"], Int[Tensor, " R"], Float[Tensor, " R"]],
) -> StepNumbers:
    """Mark runs as failed by a step's losses and norms of gradients, and return what the optimiser multiplies by.

    `lengths` are the steps of the training and of an epoch. Tuples of tensors, since this is to be compiled.
    """
    (num_steps, steps_per_epoch), (losses, norms) = lengths, found
    step, alive, failed_at, last = state
    is_sound = torch.isfinite(losses) & torch.isfinite(norms)
    failed_at.copy_(torch.where(alive & ~is_sound, step, failed_at))
    alive.logical_and_(is_sound)
    last.copy_(torch.where(alive, losses, torch.nan))
    return optimiser.step_numbers(
        config,
        rates,
        norms=norms,
        alive=alive,
        factor=optimiser.rate_factor(config, num_steps, step),
        count=step % steps_per_epoch + 1 if config.restart_every_epoch else step + 1,
        dtype=last.dtype,
    )
