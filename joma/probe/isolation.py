"""Running a model on the side so that its training does not notice."""

import copy
import random
import reprlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Unwrapped:
    """The module inside of whatever was wrapped around it."""

    root: nn.Module
    compiled: bool
    """Whether `torch.compile` was found, around the model or on a module inside."""
    replicated: bool
    """Whether `DataParallel` was found, whose replicas run in threads."""


def demand_module(model: object) -> None:
    """Refuse what is no model, such as the name of one."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` must be a torch.nn.Module, got {type(model).__name__} {reprlib.repr(model)}. "
            "Build or load the model, with from_pretrained, say, and pass what that returns."
        )


def unwrap(model: nn.Module) -> Unwrapped:
    """Take `torch.compile`, `DistributedDataParallel` and `DataParallel` off a model.

    What is inside shares all weights and runs without collectives.
    """
    root: Any = model
    replicated = False
    while True:
        if isinstance(root, nn.parallel.DistributedDataParallel | nn.DataParallel):
            replicated |= isinstance(root, nn.DataParallel)
            root = root.module
        elif _is_compiled_wrapper(root):
            root = root._orig_mod
        else:
            break
    compiled = _is_compiled_wrapper(model) or any(_is_compiled(module) for module in model.modules())
    return Unwrapped(root=root, compiled=compiled, replicated=replicated)


def _is_compiled_wrapper(module: nn.Module) -> bool:
    # Its class lives in torch._dynamo, which takes seconds to import and is there if and only if it was used.
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def _is_compiled(module: nn.Module) -> bool:
    by_lightning = getattr(module, "_compiler_ctx", None) is not None
    return _is_compiled_wrapper(module) or module._compiled_call_impl is not None or by_lightning


def devices_of(model: nn.Module) -> list[torch.device]:
    """Return the devices that hold a parameter or buffer."""
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
    devices = devices_of(model)
    with ExitStack() as stack:
        stack.enter_context(random_state_kept(devices))
        stack.enter_context(torch.no_grad())
        for kind in {device.type for device in devices}:
            if torch.is_autocast_enabled(kind):
                dtype = torch.get_autocast_dtype(kind)
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        stack.enter_context(_buffers_kept(model))
        stack.enter_context(_evaluating(model))
        yield


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
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
    before = [(module, dict(module._buffers), _copies(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, buffers, copies in before:
            module._buffers.clear()
            module._buffers.update(buffers)
            for buffer, content in copies:
                # Writing only what changed leaves the version counters of the rest alone, which autograd looks at.
                if _differs(buffer, content):
                    buffer.copy_(content)


def _differs(buffer: torch.Tensor, content: torch.Tensor) -> bool:
    try:
        return not torch.equal(buffer, content)
    except RuntimeError:  # a type or layout that cannot be compared
        return True


def _copies(module: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(buffer, buffer.clone()) for buffer in module._buffers.values() if buffer is not None]


def fixed_copy(batch: Any, device: torch.device | None = None) -> Any:
    """Copy the tensors in nested containers, or move them to a device, so that nobody changes the batch later."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone() if device is None else batch.to(device)
    if isinstance(batch, dict):
        return {key: fixed_copy(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [fixed_copy(value, device) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch if device is not None else copy.copy(batch)
