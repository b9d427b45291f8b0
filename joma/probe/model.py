"""A model that is probed: unwrapped, its layout found, and run so that its training does not notice."""

import copy
import random
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_map, tree_map_only

from joma.probe.measures import Matrix, On, QueryKeyMatrices, take_query_key
from joma.probe.structure import ModelLayout, find_layout, module_path, plain_site
from joma.probe.taps import OnCall, is_compiled, is_compiled_wrapper, tap

ProbeBatch = Mapping[str, Any] | tuple[Any, ...] | list[Any] | Tensor | Callable[[nn.Module], object]
"""Keyword arguments, arguments, the one argument, or a function that calls the model itself."""
_HASH_DIGITS = 12
ROLL_CALL = timedelta(seconds=60)
"""How long the first measurement of a sharded model waits for the other processes to call `watch`."""


class Shards:
    """Gathers parameters that are sharded over processes (FSDP2), one at a time, if all of the processes watch alike.

    A collective that one process does not join would stop the training. So each process registers in the store through
    which the processes met, which needs no collective, and gathers only if all others did.
    """

    def __init__(self, model: nn.Module) -> None:
        """Look which processes hold a shard of some parameter; none if nothing is sharded."""
        self._model = model
        self.ranks = sorted({rank for mesh in self._meshes() for rank in mesh.mesh.flatten().tolist()})
        self._keys: list[str] = []
        self._own = ""
        self._all_joined: bool | None = None

    def _meshes(self) -> set[Any]:
        return {parameter.device_mesh for parameter in self._model.parameters() if hasattr(parameter, "device_mesh")}

    def join(self, *terms: object) -> None:
        """Register this process; others count if they measure the same at the same steps, which `terms` say."""
        if self.ranks:
            digest = sha256(repr((self.ranks, terms)).encode()).hexdigest()[:_HASH_DIGITS]
            self._keys = [f"joma/{digest}/{rank}" for rank in self.ranks]
            self._own = f"joma/{digest}/{distributed.get_rank()}"
            distributed.distributed_c10d._get_default_store().set(self._own, "")

    def leave(self) -> None:
        """Take this process off the register."""
        if self._own:
            distributed.distributed_c10d._get_default_store().delete_key(self._own)
            self._own = ""

    def can_gather(self) -> bool:
        """Whether parameters can be read in full; the first answer waits for the others, and stays."""
        if not self.ranks:
            return not self._meshes()  # it may have been sharded since
        if self._all_joined is None:
            try:
                if self._own:
                    distributed.distributed_c10d._get_default_store().wait(self._keys, ROLL_CALL)
                self._all_joined = bool(self._own)
            except RuntimeError:  # they did not come
                self._all_joined = False
                self.leave()  # who comes later must not count on this process
        return self._all_joined


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor without gradients; one that is sharded is gathered, which all of its processes must join in."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedModel:
    """A model without `torch.compile`, `DistributedDataParallel` and `DataParallel` around it, and its layout.

    What is inside shares all weights and runs without collectives.
    """

    root: nn.Module
    layout: ModelLayout
    compiled: bool  # whether `torch.compile` was found, around the model or on a module inside
    replicated: bool  # whether `DataParallel` was found, whose replicas run in threads
    shards: Shards
    attention_pattern: str | None = None

    @classmethod
    def of(cls, model: nn.Module, *, mlp_pattern: str | None, attention_pattern: str | None) -> "ProbedModel":
        """Unwrap a model and find its layers; what is no model, such as the name of one, is refused."""
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"`model` must be a torch.nn.Module, got {type(model).__name__} {reprlib.repr(model)}. "
                "Build or load the model, with from_pretrained, say, and pass what that returns."
            )
        root: Any = model
        replicated = False
        while True:
            if isinstance(root, nn.parallel.DistributedDataParallel | nn.DataParallel):
                replicated |= isinstance(root, nn.DataParallel)
                root = root.module
            elif is_compiled_wrapper(root):
                root = root._orig_mod
            else:
                break
        return cls(
            root=root,
            layout=find_layout(root, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern),
            compiled=any(map(is_compiled, model.modules())),
            replicated=replicated,
            shards=Shards(root),
            attention_pattern=attention_pattern,
        )

    @property
    def name(self) -> str:
        """Name of the model's class, also where `fully_shard` has made a class of its own from it."""
        own = type(self.root)
        return (own.__bases__[-1] if self.shards.ranks and own.__name__.startswith("FSDP") else own).__name__

    @property
    def devices(self) -> list[torch.device]:
        """Devices that hold some of the model; the CPU when it has none."""
        return _devices_of(self.root) or [torch.device("cpu")]

    @property
    def num_parameters(self) -> int:
        """Parameters, shared ones once."""
        return sum(parameter.numel() for parameter in self.root.parameters())

    @property
    def parameter_shapes(self) -> str:
        """Digits that models have in common whose parameters have the same names and shapes, wrapped or not."""
        named = self.root.named_parameters()
        lines = sorted(f"{plain_site(name)} {tuple(parameter.shape)}" for name, parameter in named)
        return sha256("\n".join(lines).encode()).hexdigest()[:_HASH_DIGITS]

    def wants(self, site: str) -> bool:
        """Whether calls from here are measured."""
        return self.attention_pattern is None or bool(re.search(self.attention_pattern, site))

    def tap(self, on_call: OnCall, *, eagerly: bool = False, **options: Any) -> AbstractContextManager[None]:
        """See the attention calls of the model while the context lasts; `eagerly` runs compiled modules uncompiled."""
        return tap(self.root, on_call, layout=self.layout, eagerly=eagerly and self.compiled, **options)

    def forward(self, batch: ProbeBatch) -> None:
        """Run the model on a batch so that its training does not notice."""
        with on_the_side(self.root):
            if callable(batch):
                batch(self.root)
                return
            moved: Any = tree_map_only(Tensor, lambda tensor: tensor.to(self.devices[0]), batch)
            if isinstance(moved, dict):
                self.root(**moved)
            else:
                self.root(*(moved if isinstance(moved, tuple | list) else (moved,)))

    def subjects(self, on: On) -> Iterator[tuple[str, Callable[[], Matrix | QueryKeyMatrices]]]:
        """Yield the site of all weights or gradients that measures look at, and a function that takes each out."""
        layout = self.layout

        @lru_cache(maxsize=1)  # for tensors that hold several matrices
        def read(name: str) -> Tensor:
            parameter = self.root.get_parameter(name)
            tensor = parameter.grad if on is On.GRADIENT else parameter
            assert tensor is not None
            return full_tensor(tensor)

        def matrix(site: str, layer: int, take: Callable[[], Tensor]) -> Matrix:
            return Matrix(site=plain_site(site), layer=layer, weight=take())

        if on is On.QUERY_KEY:
            yield from (
                (plain_site(each.site), partial(take_query_key, each, read))
                for each in layout.query_keys
                if each.num_heads
            )
        elif on is On.EVERY_MATRIX:
            others = {ref.name for ref in layout.lower} | layout.quantised
            for name, parameter in self.root.named_parameters():
                if parameter.ndim == 2 and name not in others:  # noqa: PLR2004 (a matrix)
                    path = module_path(name)
                    yield plain_site(path), partial(matrix, path, layout.layer_of(path), partial(read, name))
        else:
            for ref in layout.lower:
                if on is On.MATRIX or (not ref.updates and self._has_gradient(ref.name)):
                    yield plain_site(ref.site), partial(matrix, ref.site, ref.layer, partial(ref.take, read))

    def _has_gradient(self, name: str) -> bool:
        try:
            return self.root.get_parameter(name).grad is not None
        except AttributeError:  # it has been replaced since the layout was found
            return False


def _devices_of(model: nn.Module) -> list[torch.device]:
    # `parameters()` looks for shared ones and takes six times as long.
    tensors = (
        tensor for module in model.modules() for tensor in (*module._parameters.values(), *module._buffers.values())
    )
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor is not None))


@contextmanager
def random_state_kept(devices: list[torch.device]) -> Iterator[None]:
    """Leave the random states of Python, NumPy and PyTorch (CPU and these CUDA devices) as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    cuda = [device for device in devices if device.type == "cuda"]
    try:
        with torch.random.fork_rng(devices=cuda, device_type="cuda"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def on_the_side(model: nn.Module) -> Iterator[None]:
    """Prepare a forward pass that leaves no trace: eval mode, no gradients, random states, modes and buffers restored.

    Modes are set module by module and never through `eval()`, which some models override to merge weights. Autocast
    stays as it is but for its cache: weights that were cast without gradients must not reach the next training step.
    What a forward pass writes into plain attributes is not undone.
    """
    devices = _devices_of(model)
    with ExitStack() as stack:
        stack.enter_context(random_state_kept(devices))
        stack.enter_context(torch.no_grad())
        for kind in {device.type for device in devices}:
            if torch.is_autocast_enabled(kind):
                dtype = torch.get_autocast_dtype(kind)
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        stack.enter_context(_buffers_kept(model))
        modes = [(module, module.training) for module in model.modules()]
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    before = [
        (module, dict(module._buffers), [(b, b.clone()) for b in module._buffers.values() if b is not None])
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for module, buffers, copies in before:
            module._buffers.clear()
            module._buffers.update(buffers)
            for buffer, content in copies:
                # Writing only what changed leaves the version counters of the rest alone, which autograd looks at.
                try:
                    changed = not torch.equal(buffer, content)
                except RuntimeError:  # a type or layout that cannot be compared
                    changed = True
                if changed:
                    buffer.copy_(content)


def fixed_batch(batch: object) -> ProbeBatch:
    """Copy a probe batch, so that later changes have no effect; refuse what a model cannot be called with."""
    if callable(batch) and not isinstance(batch, Tensor | Mapping):
        return batch
    if isinstance(batch, Mapping):
        batch = dict(batch)
    if not isinstance(batch, dict | tuple | list | Tensor):
        raise TypeError(
            "`probe_batch` must be keyword arguments, a tuple of arguments, a tensor or a function of the model, "
            f"got {type(batch).__name__}."
        )
    copied: ProbeBatch = tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else copy.copy(leaf), batch
    )
    return copied
