"""See every attention call of any model's forward pass, and leave the model as it was.

A torch-function mode sees the calls wherever they are made, however the function was imported; hooks on the modules
keep the names of those that are running. Nothing of the model is replaced: the call runs as it would have run, and its
result is passed on untouched. There is no table of architectures: `joma.probe.calls` says what counts as a call.

`tap` sees the calls while a context is open. `TrainingForward` opens it around the forward pass of a training step,
inside of somebody else's loop.
"""

import inspect
import itertools
import re
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily, has_torch_function
from torch.utils.hooks import RemovableHandle

from joma.measure.masks import in_full_precision
from joma.probe import calls
from joma.probe.calls import AttentionCall
from joma.probe.structure import ModelLayout, Unseen, find_layout, head_count

OnCall = Callable[[AttentionCall], None]
OnUnseen = Callable[[Unseen], None]
OnError = Callable[[AttentionCall, Exception], None]
Sites = Mapping[str, bool]  # where calls were seen, and whether by a softmax of the model's own

_OTHER_SEQUENCE = re.compile(r"^key|kv|encoder|memory|context|source", re.IGNORECASE)
_NO_SEQUENCE = re.compile(r"mask|bias|pos|cache|past", re.IGNORECASE)
_CACHE = re.compile(r"cache|past", re.IGNORECASE)
_PADDING_MASK = re.compile(r"^(?:attention_mask|\w*key_padding_mask)$")
NO_VISIBLE_CALL = (
    "It ran, but called neither scaled_dot_product_attention nor Hugging Face's attention interface nor a softmax of "
    "queries times keys that is visible from Python."
)
_this_thread = threading.local()


@contextmanager
def count_rows(rows: Bool[Tensor, "B L"]) -> Iterator[None]:
    """Count only these rows of attention in forward passes inside the context: True for each token that counts.

    Without it, padding is found from the masks that the model is given. Calls of another batch or length ignore it.

    >>> model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 4, 8)
    >>> with count_rows(torch.tensor([[True, True, False, False]])):
    ...     with tap(model, lambda call: print(call.rows)):
    ...         _ = model(x, x, x)
    tensor([[ True,  True, False, False]])
    """
    before = getattr(_this_thread, "rows", None)
    _this_thread.rows = rows.bool()
    try:
        yield
    finally:
        _this_thread.rows = before


@contextmanager
def tap(
    model: nn.Module,
    on_call: OnCall,
    *,
    on_unseen: OnUnseen = lambda unseen: None,
    on_error: OnError | None = None,
    layout: ModelLayout | None = None,
    eagerly: bool = False,
    sites: Sites | None = None,
) -> Iterator[None]:
    """Report every attention call of the model's forward passes to `on_call`, while the context lasts.

    PyTorch's fused inference path of `TransformerEncoder` and `MultiheadAttention` is switched off meanwhile: it is the
    one case in which outputs (in eval mode) may differ in their last digits.

    Args:
        model: Any model.
        on_call: Gets the model's own tensors, detached, without gradients and autocast. Measure them there: the model
            goes on to reuse them. Calls during a backward pass are recomputation (gradient checkpointing) and are not
            reported again.
        on_unseen: Gets attention that ran and could not be seen, with the reason, at the latest when the context ends.
        on_error: Gets what `on_call` raises; without it, the error goes up through the model.
        layout: Of the model; saves finding it again.
        eagerly: Run compiled parts uncompiled while the tap is open, whose numbers may differ in their last digits.
            Without it a compiled model is refused: a compiled region runs as one kernel, and nothing inside is seen.
        sites: Where an earlier forward pass saw calls; saves looking elsewhere.

    >>> model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> with tap(model, lambda call: print(call.site, call.layer, tuple(call.q.shape))):
    ...     _ = model(torch.zeros(1, 5, 8))
    self_attn 0 (1, 2, 5, 4)
    """
    if getattr(_this_thread, "tapped", False):
        raise RuntimeError("This thread has a tap open already. Close it before opening another.")
    modules = dict(model.named_modules())
    compiled = None if eagerly else next((name for name, each in modules.items() if is_compiled(each)), None)
    if compiled is not None:
        raise ValueError(
            f"Attention inside torch.compile cannot be seen, and {compiled or 'the model'!r} is compiled. "
            "Tap the module that was compiled (its `_orig_mod`) on a probe batch, or pass eagerly=True."
        )
    layout = find_layout(model) if layout is None else layout
    follows_softmax = sites is None or any(sites.values())
    known = None if sites is None else {*sites, *layout.attention}
    mode = _Tap(layout, on_call, on_unseen, on_error, calls.Products(model) if follows_softmax else None, known)
    idle: set[str] = set()
    if known is not None:  # modules that hold no others, and from which no call came
        idle = {name for name, module in modules.items() if not module._modules and name not in known}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    _this_thread.tapped = True
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with ExitStack() as stack:
            if eagerly and "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_interface_followed(mode.follow))
            stack.enter_context(mode.attached(modules, idle))
            if known is None or follows_softmax:
                stack.enter_context(mode)
            yield
        mode.report_unseen()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        _this_thread.tapped = False


def in_backward() -> bool:
    """Whether this thread is running a backward pass."""
    return torch._C._current_graph_task_id() != -1


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` was put around a module, or into it, by Lightning too."""
    by_lightning = getattr(module, "_compiler_ctx", None) is not None
    return is_compiled_wrapper(module) or module._compiled_call_impl is not None or by_lightning


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Whether a module is what `torch.compile` returned."""
    # Its class lives in torch._dynamo, which takes seconds to import and is there if and only if it was used.
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


@dataclass(frozen=True)
class _Frame:
    name: str
    module: nn.Module
    args: tuple
    kwargs: dict[str, Any]
    opens: bool  # whether the tap's mode is entered while it runs
    number: Iterator[int] = field(default_factory=itertools.count)  # numbers its own calls of attention

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What the module was called with, by the names of its parameters."""
        forward = self.module.forward
        function = getattr(forward, "__func__", None)
        signature = inspect.signature(forward) if function is None else _signature_of_method(function)
        try:
            named = dict(signature.bind_partial(*self.args, **self.kwargs).arguments)
        except TypeError:  # a forward that the call does not fit raises by itself
            return dict(self.kwargs)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    def sees_another_sequence(self, num_rows: int, num_keys: int) -> bool:
        """Whether the module attends to something else than its own input.

        It does if an argument named like keys, an encoder's output, a memory or a context is another tensor than the
        first one. Where no name says so, it does if rows and keys differ in number and there is no cache of past keys.
        """
        named = self.arguments
        sequences = {n: value for n, value in named.items() if isinstance(value, Tensor) and value.is_floating_point()}
        first = next(iter(sequences.values()), None)
        if any(
            value is not first and _OTHER_SEQUENCE.search(name) and not _NO_SEQUENCE.search(name)
            for name, value in sequences.items()
        ):
            return True
        cached = any(value is not None and _CACHE.search(name) for name, value in named.items())
        return num_rows != num_keys and not cached


@lru_cache(maxsize=256)
def _signature_of_method(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(types.MethodType(function, object()))


class _Tap(TorchFunctionMode):
    """Sees every call of a PyTorch function from Python, passes attention on, and notes what was not seen.

    Hooks keep the stack of running modules. Only the thread that opened the tap counts, and backward passes do not:
    what runs there is recomputation.
    """

    def __init__(
        self,
        layout: ModelLayout,
        on_call: OnCall,
        on_unseen: OnUnseen,
        on_error: OnError | None,
        products: calls.Products | None,
        known: Collection[str] | None,
    ) -> None:
        super().__init__()
        self._layout, self._products = layout, products  # without `products`, softmaxes are passed over
        self._on_call, self._on_unseen, self._on_error = on_call, on_unseen, on_error
        self._known = known if products is None and known is not None else ()
        """Modules inside of which alone this mode is entered; none where it is on as long as the tap is open."""
        self._thread = threading.get_ident()
        self._frames: list[_Frame] = []
        self._started: set[str] = set()
        """Modules that ran, or are scripted: those take no hooks, so whether they ran is not known."""
        self._runs: Counter[str] = Counter()
        """How many times each module started since one started while none was running: in this forward pass."""
        self._accounted: set[str] = set()  # modules inside of which a call was seen, or reported as unseen
        self._num_seen = 0
        self._counted: dict[int, Tensor] = {}  # rows that count of each layer's last self-attention
        self._in_on_call = False

    @contextmanager
    def attached(self, modules: Mapping[str, nn.Module], idle: set[str]) -> Iterator[None]:
        scripted = {name for name, module in modules.items() if isinstance(module, torch.jit.ScriptModule)}
        try:
            with ExitStack() as hooks:
                for name in modules.keys() - idle - scripted:
                    enter, leave = partial(self._enter, name), partial(self._leave, name)
                    module = modules[name]
                    hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
                    hooks.enter_context(module.register_forward_hook(leave, always_call=True))
                yield
        finally:
            self._drop(len(self._frames))
            if self._started:
                self._started |= scripted - idle

    def _enter(self, name: str, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if self._counts():
            if self._in_on_call:
                raise RuntimeError(
                    "`on_call` ran the tapped model. Keep what it needs, and run the model after the tap."
                )
            if not self._frames:
                self._runs.clear()
            self._runs[name] += 1
            opens = name in self._known and not any(frame.opens for frame in self._frames)
            self._frames.append(_Frame(name, module, args, kwargs, opens))
            self._started.add(name)
            if opens:
                self.__enter__()

    def _leave(self, name: str, module: nn.Module, args: tuple, output: Any) -> None:
        # An exception that passes through a module may leave frames of its children in the list.
        if self._counts():
            names = [frame.name for frame in reversed(self._frames)]
            self._drop(names.index(name) + 1 if name in names else 0)

    def _drop(self, num: int) -> None:
        """Forget the innermost frames."""
        for _ in range(num):
            if self._frames.pop().opens:
                self.__exit__(None, None, None)

    def _counts(self) -> bool:
        return threading.get_ident() == self._thread and not in_backward()

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
        name = getattr(func, "__name__", "").partition(".")[0]
        if self._frames and (self._products is not None or name == "scaled_dot_product_attention"):
            heads = partial(head_count, self._frames[-1].module)
            if name == "scaled_dot_product_attention":
                self._report(lambda: calls.sdpa_fields(*args, **kwargs, num_heads=heads()))
            elif self._products is not None and name in calls.SOFTMAX:
                fields = self._products.logits(args, kwargs, heads)
                if fields:
                    self._report(lambda: fields)
            elif self._products is not None:
                self._products.follow(name, args, kwargs, result)
        return result

    def follow(self, run: Callable[[], Any], read: Callable[[], dict[str, Any]]) -> Any:
        """Run an implementation of Hugging Face's interface; read what it was given if nothing was seen inside."""
        before = self._num_seen
        result = run()
        if self._num_seen == before and self._frames:
            self._report(read)
        return result

    def report_unseen(self) -> None:
        silent = [path for path in self._layout.attention if path in self._started - self._accounted]
        if self._started and not silent and not self._num_seen:
            silent = [""]
        for path in silent:
            self._on_unseen(Unseen(path, NO_VISIBLE_CALL))

    def _report(self, read: Callable[[], dict[str, Any]]) -> None:
        """Read a call and pass it on, out of reach of autograd, autocast and other modes."""
        if in_backward() or self._in_on_call:
            return
        self._num_seen += 1
        self._accounted.update(frame.name for frame in self._frames)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                call = self._call(read())
            except Exception as error:
                self._on_unseen(Unseen(self._frames[-1].name, f"An attention call was not read: {error}."))
                return
            with in_full_precision(call.device):
                self._in_on_call = True
                try:
                    self._on_call(call)
                except Exception as error:
                    if self._on_error is None:
                        raise
                    self._on_error(call, error)
                finally:
                    self._in_on_call = False

    def _call(self, fields: dict[str, Any]) -> AttentionCall:
        frame, module = self._frames[-1], self._frames[-1].module
        if isinstance(module, nn.MultiheadAttention):  # which may add keys to those of its sequence
            fields = calls.without_extra_keys(fields, (module.bias_k is not None) + bool(module.add_zero_attn))
        logits = fields.get("logits")
        batch, _, rows = (fields["q"] if logits is None else logits).shape[:3]
        keys = fields["k"].shape[2] if logits is None else logits.shape[3]
        is_cross = frame.sees_another_sequence(rows, keys)
        past = keys - rows if not is_cross and keys > rows and not fields.get("causal") else 0
        block = self._layout.layer_of(frame.name)
        again = self._runs[self._layout.layers[block]] - 1 if block >= 0 else 0
        layer = block + max(0, again) * len(self._layout.layers)
        fields = {"offset": past, "rows": None} | fields
        if fields["rows"] is None:
            fields["rows"] = self._rows(is_cross, layer, fields, (batch, rows, keys))
        part = next(frame.number)
        if not is_cross and part == 0 and block >= 0:
            fields["state"] = self._given_to(self._layout.layers[block], batch, rows)
        repeat = self._runs[frame.name] - 1
        return AttentionCall(site=frame.name, layer=layer, is_cross=is_cross, repeat=repeat, part=part, **fields)

    def _rows(
        self, is_cross: bool, layer: int, fields: dict[str, Any], shape: tuple[int, int, int]
    ) -> Bool[Tensor, "B rows"] | None:
        """Return the rows that count: the user's, those that a mask shows, or those of the layer's self-attention."""
        batch, rows, keys = shape
        counted: Tensor | None = getattr(_this_thread, "rows", None)
        if counted is not None and counted.shape == (batch, rows):
            return counted
        if is_cross:  # its rows are those of the self-attention before
            counted = self._counted.get(layer)
            return counted if counted is not None and counted.shape == (batch, rows) else None
        tokens, offset = self._padding_mask(batch, keys), fields["offset"]
        counted = calls.rows_with_keys(fields, offset) if tokens is None else tokens[:, offset : offset + rows]
        self._counted.pop(layer, None)
        if counted is not None:
            self._counted[layer] = counted
        return counted

    def _given_to(self, name: str, batch: int, num_rows: int) -> Float[Tensor, "B rows d"] | None:
        """Return the first sequence of vectors that a running module was called with, if it is of that size."""
        frame = next((frame for frame in reversed(self._frames) if frame.name == name), None)
        for value in () if frame is None else frame.arguments.values():
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3:  # noqa: PLR2004
                return value.detach() if value.shape[:2] == (batch, num_rows) else None
        return None

    def _padding_mask(self, batch: int, num_keys: int) -> Bool[Tensor, "B keys"] | None:
        """Return which tokens are no padding, by the innermost mask (B, keys) that a running module was given."""
        for frame in reversed(self._frames):
            for name, value in frame.arguments.items():
                if _PADDING_MASK.match(name):
                    if value is None and name == "attention_mask":  # what runs inside has none: no token is padding
                        return None
                    # A square one may be for rows and keys.
                    if isinstance(value, Tensor) and value.shape == (batch, num_keys) and batch != num_keys:
                        return calls.rows_of_padding(name, value.detach())
        return None


def _undispatched(function: Callable) -> Callable:
    """Return a PyTorch function that does not ask first whether a mode wants it, so that one sees what it calls."""
    assert isinstance(function, types.FunctionType)
    names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    return types.FunctionType(function.__code__, names, argdefs=function.__defaults__)


@contextmanager
def _interface_followed(follow: Callable[[Callable[[], Any], Callable[[], dict[str, Any]]], Any]) -> Iterator[None]:
    """Follow every function that a model looks up in Hugging Face's attention interface, except that of sdpa.

    It runs as it is; if nothing was seen inside (flash_attention_2, flex_attention and others with kernels of their
    own), what it was given is read instead.
    """
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if interface is None:
        yield
        return
    look_up = interface.__getitem__
    own = "__getitem__" in vars(interface)

    def followed(self: Any, name: str) -> Callable:
        function = look_up(self, name)

        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                # A compiled function would be compiled anew for the tap's mode; there is nothing to see inside.
                with _pop_mode_temporarily() if "flex" in name else nullcontext():
                    return function(module, query, key, value, *args, **kwargs)

            mask = args[0] if args else kwargs.get("attention_mask")
            return follow(run, lambda: calls.interface_fields(module, query, key, mask, kwargs))

        return function if name == "sdpa" else attention

    interface.__getitem__ = followed
    try:
        yield
    finally:
        if own:
            interface.__getitem__ = look_up
        else:
            del interface.__getitem__


class TrainingForward:
    """Opens a tap around the first training forward pass after `wait`, inside of somebody else's loop.

    Whichever watched module is called first, the model itself or one inside it, opens the tap, and its return closes it
    again: the tap never outlives the call, however the loop is written and whatever it raises. A module is tapped on
    its first call only, so that of several forwards in a step (accumulation of gradients) the first counts;
    recomputation during the backward pass does not.

    A forward is training if gradients are recorded and the model is in training mode. One that has never been seen in
    training mode since it was watched is trained in eval mode on purpose (frozen batch norm, say): then gradients alone
    decide. What is no training counts for nothing inside of it either.

    The hooks are PyTorch's for all modules and not the model's own: a model that is copied or pickled meanwhile carries
    nothing of them away, and closing the tap does not change the list of hooks that PyTorch is walking.
    """

    def __init__(self, root: nn.Module, on_error: Callable[[Exception], None]) -> None:
        self._root, self._on_error = root, on_error  # which gets what goes wrong with a tap: hooks never raise
        self._open_tap: Callable[[], AbstractContextManager[None]] = nullcontext
        self._waiting: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []
        self._owner: nn.Module | None = None
        """The outermost watched module that is running: it decides whether what runs inside of it counts."""
        self._owner_counts = False
        self._depth = 0
        self._tap = ExitStack()
        self._was_in_training_mode = root.training

    def wait(self, open_tap: Callable[[], AbstractContextManager[None]]) -> None:
        """Open `open_tap()` around the next training forward."""
        self.stop()
        self._open_tap = open_tap
        self._was_in_training_mode |= self._root.training
        self._waiting = set(self._root.modules())
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._waiting = set()
        if self._owner is not None:
            self._close()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        # A validation that ended without being left, as by Ctrl-C, is over when the root trains again.
        if self._owner is not None and (
            module is not self._root or self._owner_counts or not self._is_training(module)
        ):
            self._depth += module is self._owner
        elif module in self._waiting and not in_backward():
            self._owner, self._owner_counts, self._depth = module, self._is_training(module), 1
            if self._owner_counts:
                self._safely(lambda: self._open(module, args))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or module is not self._owner:
            return
        self._depth -= 1
        if self._depth == 0:
            if self._owner_counts:
                self._waiting -= set(module.modules())
            self._close()

    def _open(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        before = set(module._forward_pre_hooks)
        self._tap.enter_context(self._open_tap())
        # PyTorch has listed this module's hooks already; those that the tap has just added are called here.
        for number, hook in list(module._forward_pre_hooks.items()):
            if number not in before:
                hook(module, args, {})

    def _is_training(self, module: nn.Module) -> bool:
        self._was_in_training_mode |= self._root.training
        if torch.is_grad_enabled():
            return self._root.training or not self._was_in_training_mode
        # Parts called one by one run without gradients under reentrant checkpointing: only the mode counts.
        return module is not self._root and self._root.training

    def _close(self) -> None:
        self._owner = None
        self._safely(self._tap.close)

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._on_error(error)
