"""See every attention call of a foreign model's forward pass, and leave the model as it was.

A torch-function mode sees the calls wherever they are made, however the function was imported; hooks on the modules
keep the names of those that are running. Nothing of the model is replaced: the call runs as it would have run, and its
result is passed on untouched. Three ways in, by what the model calls: `scaled_dot_product_attention` (that is also
`torch.nn.MultiheadAttention`), Hugging Face's attention interface, the softmax of an eager model.
"""

import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, has_torch_function

from joma.probe.calls import AttentionCall, Kind, Source
from joma.probe.layout import Layout, find_layout
from joma.probe.running import RunningModules, in_backward
from joma.probe.taps_interface import interface_followed
from joma.probe.taps_sdpa import read_sdpa
from joma.probe.taps_softmax import SOFTMAX, Products
from joma.probe.weights import Unseen

OnCall = Callable[[AttentionCall], None]
OnUnseen = Callable[[Unseen], None]
OnError = Callable[[AttentionCall, Exception], None]

_this_thread = threading.local()


class Compiled(StrEnum):
    """What to do with a model that is compiled, in whole or in part."""

    REFUSE = "refuse"
    """A compiled region runs as one kernel: nothing inside can be seen."""
    RUN_EAGERLY = "run_eagerly"
    """Run it uncompiled while the tap is open; its numbers may differ in the last digits."""


@contextmanager
def tap(
    model: nn.Module,
    on_call: OnCall,
    *,
    on_unseen: OnUnseen | None = None,
    on_error: OnError | None = None,
    layout: Layout | None = None,
    compiled: Compiled | str = Compiled.REFUSE,
    trail: "Trail | None" = None,
) -> Iterator[None]:
    """Report every attention call of the model's forward passes to `on_call`, while the context lasts.

    `on_call` gets the model's own tensors, detached, without gradients and autocast; measure them there, the model goes
    on to reuse them. What it raises goes to `on_error`, or up through the model if there is none. `on_unseen` is told,
    at the latest when the context closes, of attention that ran and could not be seen, and why. Calls during a backward
    pass are recomputation (gradient checkpointing) and are not reported again. `layout` saves finding it anew, `trail`
    looking where an earlier forward pass showed nothing.

    PyTorch's fused inference path of `TransformerEncoder` and `MultiheadAttention` is switched off meanwhile: it is the
    one case in which outputs (in eval mode) may differ in their last digits.

    >>> model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> with tap(model, lambda call: print(call.site, call.kind, call.layer, tuple(call.q.shape))):
    ...     _ = model(torch.zeros(1, 5, 8))
    self_attn self 0 (1, 2, 5, 4)
    """
    if getattr(_this_thread, "tapped", False):
        raise RuntimeError("This thread has a tap open already. Close it before opening another.")
    compiled = Compiled(compiled)
    if compiled is Compiled.REFUSE:
        _refuse_compiled(model)
    layout = find_layout(model) if layout is None else layout
    watcher = _Watcher(layout, on_call, on_unseen or _ignore, on_error)
    mode = _Mode(watcher, Products(model) if trail is None or trail.has_softmax else None)
    unhooked = frozenset() if trail is None else trail.asides(model, layout)
    _this_thread.tapped = True
    try:
        with ExitStack() as stack:
            stack.enter_context(_uncompiled() if compiled is Compiled.RUN_EAGERLY else nullcontext())
            stack.enter_context(_slow_path_of_multihead_attention())
            stack.enter_context(interface_followed(watcher.follow))
            stack.enter_context(watcher.running.attached(model, unhooked))
            stack.enter_context(mode)
            yield
        watcher.tell_unseen()
    finally:
        _this_thread.tapped = False


@dataclass(slots=True)
class Trail:
    """Where a model's attention was seen: gathered from the calls of one forward pass, it makes the next ones cheap."""

    sites: set[str] = field(default_factory=set)
    has_softmax: bool = False
    """Whether a call was seen at its softmax, to which matrix products must be followed."""

    def add(self, call: AttentionCall) -> None:
        """Note a call."""
        self.sites.add(call.site)
        self.has_softmax |= call.source is Source.SOFTMAX

    def asides(self, model: nn.Module, layout: Layout) -> frozenset[str]:
        """Return the modules whose running tells nothing: they hold no others, and no call came from them."""
        known = self.sites.union(layout.attention)
        modules = model.named_modules()
        return frozenset(name for name, module in modules if not module._modules and name not in known)


def _ignore(unseen: Unseen) -> None:
    """Stand in for an `on_unseen` that was not given."""


def _refuse_compiled(model: nn.Module) -> None:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:  # takes seconds to import, and nothing can have been compiled without it
        return
    for name, module in model.named_modules():
        if isinstance(module, dynamo.OptimizedModule) or module._compiled_call_impl is not None:
            raise ValueError(
                f"Attention inside torch.compile cannot be seen, and {name or 'the model'!r} is compiled. "
                "Tap the module that was compiled (its `_orig_mod`) on a probe batch, or pass compiled='run_eagerly'."
            )


def _uncompiled() -> AbstractContextManager[None]:
    """Return a context in which compiled modules run as they were before."""
    return nullcontext() if "torch._dynamo" not in sys.modules else torch.compiler.set_stance("force_eager")


@contextmanager
def _slow_path_of_multihead_attention() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _Watcher:
    """The way from a seen call to `on_call`, and the account of what was not seen."""

    def __init__(self, layout: Layout, on_call: OnCall, on_unseen: OnUnseen, on_error: OnError | None) -> None:
        self.running = RunningModules(self._refuse_reentrance)
        self._layout = layout
        self._on_call, self._on_unseen, self._on_error = on_call, on_unseen, on_error
        self._accounted: set[str] = set()
        """Modules inside of which a call was seen, or reported as unseen."""
        self._num_seen = 0
        self._calls_in_pass: Counter[tuple[int, str]] = Counter()
        self._in_on_call = False

    def report(self, source: Source, read: Callable[[], Mapping[str, Any]]) -> None:
        """Read a call and pass it on, out of reach of autograd, autocast and other modes."""
        if in_backward() or self._in_on_call:
            return
        self._num_seen += 1
        self._accounted |= set(self.running.names)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                call = self._call(source, read())
            except Exception as error:
                self._on_unseen(Unseen(site=self.running.innermost, reason=f"An attention call was not read: {error}."))
                return
            device = call.device.type
            with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
                self._pass_on(call)

    def _call(self, source: Source, fields: Mapping[str, Any]) -> AttentionCall:
        site = self.running.innermost
        logits = fields.get("logits")
        rows, keys = logits.shape[2:] if logits is not None else (fields["q"].shape[2], fields["k"].shape[2])
        kind = Kind.CROSS if self.running.sees_another_sequence(rows, keys) else Kind.SELF
        past = keys - rows if kind is Kind.SELF and keys > rows and not fields.get("causal") else 0
        self._calls_in_pass[self.running.num_passes, site] += 1
        return AttentionCall(
            site=site,
            kind=kind,
            layer=self._layout.layer_of(site),
            source=source,
            repeat=self._calls_in_pass[self.running.num_passes, site] - 1,
            **{"offset": past, **fields},
        )

    def _pass_on(self, call: AttentionCall) -> None:
        self._in_on_call = True
        try:
            self._on_call(call)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(call, error)
        finally:
            self._in_on_call = False

    def _refuse_reentrance(self) -> None:
        if self._in_on_call:
            raise RuntimeError("`on_call` ran the tapped model. Keep what it needs, and run the model after the tap.")

    def follow(self, run: Callable[[], Any], read: Callable[[], dict[str, Any]]) -> Any:
        """Run an implementation of Hugging Face's interface; read what it was given if nothing was seen inside."""
        before = self._num_seen
        result = run()
        if self._num_seen == before:
            self.report(Source.INTERFACE, read)
        return result

    def tell_unseen(self) -> None:
        """Report attention modules that ran without a call that was seen."""
        if not self.running.started:
            return
        ran = self.running.unhooked.union(self.running.started)
        silent = [path for path in self._layout.attention if path in ran - self._accounted]
        if not self._num_seen and not silent:
            silent = [""]
        for path in silent:
            self._on_unseen(
                Unseen(
                    site=path,
                    reason="It ran, but called neither scaled_dot_product_attention nor Hugging Face's attention "
                    "interface nor a softmax of queries times keys that is visible from Python.",
                )
            )


class _Mode(TorchFunctionMode):
    """Sees every call of a PyTorch function from Python."""

    def __init__(self, watcher: _Watcher, products: Products | None) -> None:
        """Without `products`, softmaxes are passed over."""
        super().__init__()
        self._watcher, self._products = watcher, products

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward and not has_torch_function(args):
            with self:
                return _undispatched(func)(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._watcher.running:
            self._look(getattr(func, "__name__", "").partition(".")[0], args, kwargs, result)
        return result

    def _look(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        heads = self._watcher.running.num_heads
        if name == "scaled_dot_product_attention":
            self._watcher.report(Source.SDPA, lambda: read_sdpa(*args, **kwargs, num_heads=heads()))
        elif self._products is None:
            return
        elif name in SOFTMAX:
            logits = self._products.logits(args, kwargs, heads)
            if logits is not None:
                self._watcher.report(Source.SOFTMAX, lambda: {"logits": logits})
        else:
            self._products.follow(name, args, kwargs, result)


def _undispatched(function: Callable) -> Callable:
    """Return a PyTorch function that does not ask first whether a mode wants it, so that one sees what it calls."""
    assert isinstance(function, types.FunctionType)
    names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    return types.FunctionType(function.__code__, names, argdefs=function.__defaults__)
