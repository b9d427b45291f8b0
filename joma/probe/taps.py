"""See every attention call of a foreign model's forward pass, and leave the model as it was.

A torch-function mode sees the calls wherever they are made, however the function was imported; hooks on the modules
keep the names of those that are running. Nothing of the model is replaced: the call runs as it would have run, and its
result is passed on untouched.
"""

import inspect
import re
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from joma.probe.calls import AttentionCall, Kind, Source
from joma.probe.layout import Layout, find_layout
from joma.probe.taps_sdpa import read_sdpa
from joma.probe.weights import Unseen

OnCall = Callable[[AttentionCall], None]
OnUnseen = Callable[[Unseen], None]
OnError = Callable[[AttentionCall, Exception], None]

_HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads")
_OTHER_SEQUENCE = re.compile(r"^key|kv|encoder|memory|context|source", re.IGNORECASE)
_NO_SEQUENCE = re.compile(r"mask|bias|pos|cache|past", re.IGNORECASE)
_tapped = threading.local()


@contextmanager
def tap(
    model: nn.Module,
    on_call: OnCall,
    *,
    on_unseen: OnUnseen | None = None,
    on_error: OnError | None = None,
    layout: Layout | None = None,
) -> Iterator[None]:
    """Report every attention call of the model's forward passes to `on_call`, while the context lasts.

    `on_call` gets detached tensors, under `no_grad`, outside of autocast. What it raises goes to `on_error`, or up
    through the model if there is none. `on_unseen` is told of attention that ran and could not be seen, and why.
    Calls during a backward pass are recomputation (gradient checkpointing) and are not reported again.
    """
    if getattr(_tapped, "active", False):
        raise RuntimeError("This thread has a tap open already. Close it before opening another.")
    layout = find_layout(model) if layout is None else layout
    watcher = _Watcher(model, layout, on_call, on_unseen or (lambda unseen: None), on_error)
    _tapped.active = True
    try:
        with ExitStack() as stack:
            stack.enter_context(_slow_path_of_multihead_attention())
            stack.enter_context(watcher.hooked(model))
            stack.enter_context(_Mode(watcher))
            yield
    finally:
        _tapped.active = False


@contextmanager
def _slow_path_of_multihead_attention() -> Iterator[None]:
    """PyTorch's fused inference path of `TransformerEncoder` and `MultiheadAttention` hides the call."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def in_backward() -> bool:
    """Whether this thread is running a backward pass."""
    return torch._C._current_graph_task_id() != -1


class _Watcher:
    """Names of the running modules, and the way from a seen call to `on_call`."""

    def __init__(
        self, model: nn.Module, layout: Layout, on_call: OnCall, on_unseen: OnUnseen, on_error: OnError | None
    ) -> None:
        self.layout = layout
        self.on_call, self.on_unseen, self.on_error = on_call, on_unseen, on_error
        self.running: list[tuple[str, nn.Module, tuple, dict]] = []

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        handles = []
        try:
            for name, module in model.named_modules():
                handles.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(self._leave(name), always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.running.append((name, module, args, kwargs))

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: tuple, output: Any) -> None:
            while self.running and self.running.pop()[0] != name:
                pass

        return leave

    def report(self, source: Source, fields: Mapping[str, Any]) -> None:
        """Pass a seen call on, out of reach of autograd, autocast and other modes."""
        site = self.running[-1][0] if self.running else ""
        call = AttentionCall(
            site=site, kind=self._kind(fields), layer=self.layout.layer_of(site), source=source, **fields
        )
        device = next(t for t in (call.q, call.logits) if t is not None).device.type
        with torch.no_grad(), torch.autocast(device, enabled=False), torch._C.DisableTorchFunction():
            try:
                self.on_call(call)
            except Exception as error:
                if self.on_error is None:
                    raise
                self.on_error(call, error)

    def num_heads(self) -> int | None:
        """Heads of the innermost module that says how many it has."""
        for _, module, _, _ in reversed(self.running):
            for name in _HEAD_COUNTS:
                count = getattr(module, name, None)
                if isinstance(count, int):
                    return count
        return None

    def _kind(self, fields: Mapping[str, Any]) -> Kind:
        """Cross attention is called with another sequence; where arguments say nothing, lengths tell."""
        if self.running:
            _, module, args, kwargs = self.running[-1]
            named = _named_arguments(module, args, kwargs)
            sequences = {n: v for n, v in named.items() if isinstance(v, Tensor) and v.is_floating_point()}
            first = next(iter(sequences.values()), None)
            if any(
                value is not first and _OTHER_SEQUENCE.search(name) and not _NO_SEQUENCE.search(name)
                for name, value in sequences.items()
            ):
                return Kind.CROSS
        return Kind.SELF


def _named_arguments(module: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    try:
        return dict(inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments)
    except TypeError:
        return {}


class _Mode(TorchFunctionMode):
    """Sees every call of a PyTorch function."""

    def __init__(self, watcher: _Watcher) -> None:
        super().__init__()
        self.watcher = watcher

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self:
                return _multi_head_attention_forward(*args, **kwargs)
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") == "scaled_dot_product_attention" and not in_backward():
            self.watcher.report(Source.SDPA, read_sdpa(*args, **kwargs, num_heads=self.watcher.num_heads()))
        return result


# PyTorch's function asks first whether a mode wants it; its twin does not ask, so that the mode sees what it calls.
_multi_head_attention_forward = types.FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**vars(functional), "has_torch_function": lambda tensors: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)
