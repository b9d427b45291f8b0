"""Where a matrix lies in a model or a state dict, and how to take it out."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joma.probe.blocks import Shapes, module_path

Rows = tuple[tuple[int, int, int], ...]
"""Parts (start, stop, step) of a matrix's outputs, in order."""


class Role(StrEnum):
    """What a matrix does."""

    LOWER = "lower"
    """Into the hidden neurons of an MLP without gate."""
    GATE = "gate"
    UP = "up"
    GATE_AND_UP = "gate_and_up"
    """Both in one tensor, in unknown order."""
    QUERY = "query"
    KEY = "key"
    EMBEDDING = "embedding"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """Something that is not measured, and why."""

    site: str
    reason: str


def by_reason(unseen: Iterable[Unseen]) -> dict[str, list[str]]:
    """Gather the sites that are not measured for the same reason, to tell it once."""
    sites: dict[str, list[str]] = defaultdict(list)
    for each in unseen:
        sites[each.reason].append(each.site or "the model")
    return dict(sites)


@dataclass(frozen=True, kw_only=True, slots=True)
class LowRankUpdate:
    """A LoRA adapter: scaling · B A is added to the weight."""

    a: str
    b: str
    scaling: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What only the model or its configuration can tell; names and shapes decide where there is none."""

    transposed: Mapping[str, bool] = field(default_factory=dict)
    """Tensors known to be stored as (inputs, outputs), or not."""
    interleaved: frozenset[str] = frozenset()
    """Fused gates whose rows alternate with what they gate, instead of coming first."""
    lora_scaling: Mapping[str, float] = field(default_factory=dict)
    """Scaling of an adapter by module path and adapter name ("layers.0.fc1.default"); 0 if it is switched off."""
    heads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Query heads and key heads of an attention module by its path; "" speaks for all that are not listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Names and shapes of a model's tensors, and what is known about them beyond."""

    shapes: Shapes
    hints: Hints
    adapters: Mapping[str, list[str]]
    """Names of the low-rank adapters at a module path."""

    @classmethod
    def of(cls, shapes: Shapes, hints: Hints | None = None) -> "Inventory":
        """Take stock."""
        adapters = defaultdict(list)
        for name in shapes:
            path, found, adapter = name.partition(".lora_A.")
            if found:
                adapters[path].append(adapter.removesuffix(".weight"))
        return cls(shapes=shapes, hints=hints or Hints(), adapters=dict(adapters))

    def orientation(self, name: str) -> tuple[bool, bool]:
        """Whether a tensor is stored as (inputs, outputs), and whether its bias, as long as the outputs, proves it."""
        if name in self.hints.transposed:
            return self.hints.transposed[name], True
        stem = name.removesuffix(".weight")
        rows, columns = self.shapes[name][-2:]
        for bias in (f"{stem}.bias", f"{stem}_bias"):
            if bias in self.shapes and rows != columns:
                return self.shapes[bias][-1] == columns, True
        return False, False

    def updates(self, path: str) -> tuple[LowRankUpdate, ...]:
        """Return the adapters at a module path that are part of its weight."""
        return tuple(
            LowRankUpdate(a=f"{path}.lora_A.{name}.weight", b=f"{path}.lora_B.{name}.weight", scaling=scaling)
            for name in self.adapters.get(path, ())
            if (scaling := self.hints.lora_scaling.get(f"{path}.{name}"))
        )

    def left_out(self, name: str) -> list[Unseen]:
        """Say which adapters at a tensor are not part of its matrix because their scaling is not known."""
        path = module_path(name)
        return [
            Unseen(site=path, reason=f"Adapter {adapter!r} is left out: its scaling is not known. Pass it in hints.")
            for adapter in self.adapters.get(path, ())
            if f"{path}.{adapter}" not in self.hints.lora_scaling
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRef:
    """A matrix (outputs, inputs) somewhere in a state dict, and how to take it out."""

    name: str
    """Name of the tensor."""
    site: str
    """What to call the matrix: the module's path, an expert in brackets, the part of a fused one after a colon."""
    layer: int
    role: Role
    shape: tuple[int, int]
    """(outputs, inputs) of the matrix taken out."""
    expert: int | None = None
    """Which expert it is of."""
    stacked: bool = False
    """Whether the experts are stacked along the tensor's first axis."""
    transposed: bool = False
    """Stored as (inputs, outputs)."""
    rows: Rows = ()
    """Which outputs of the tensor; all if empty."""
    updates: tuple[LowRankUpdate, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that the matrix is made of."""
        return (self.name, *(name for update in self.updates for name in (update.a, update.b)))

    def take(self, read: Callable[[str], Tensor]) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix, given a function from a tensor's name to the tensor (`reader(model)`, or a file's)."""
        weight = read(self.name)
        if self.stacked:
            assert self.expert is not None
            weight = weight[self.expert]
        if self.transposed:
            weight = weight.transpose(-1, -2)
        for update in self.updates:
            weight = weight + update.scaling * (read(update.b) @ read(update.a)).to(weight.dtype)
        parts = [weight[start:stop:step] for start, stop, step in self.rows]
        return weight if not parts else parts[0] if len(parts) == 1 else torch.cat(parts)


def reader(model: nn.Module) -> Callable[[str], Tensor]:
    """Return a function from the name of a model's parameter to its values, without gradients."""
    parameters = dict(model.named_parameters())
    return lambda name: parameters[name].detach()
