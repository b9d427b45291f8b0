"""Which modules of a model are running, and what they were called with."""

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

_HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads")
_OTHER_SEQUENCE = re.compile(r"^key|kv|encoder|memory|context|source", re.IGNORECASE)
_NO_SEQUENCE = re.compile(r"mask|bias|pos|cache|past", re.IGNORECASE)
_CACHE = re.compile(r"cache|past", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A module that is running."""

    name: str
    module: nn.Module
    args: tuple
    kwargs: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """What it was called with, by the names of its parameters."""
        try:
            bound = _signature(self.module.forward).bind_partial(*self.args, **self.kwargs)
        except TypeError:  # a forward that the call does not fit raises by itself
            return dict(self.kwargs)
        named = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named


class RunningModules:
    """The stack of a model's running modules, kept by hooks while it is attached.

    Only the thread that attached it counts, and backward passes do not: what runs there is recomputation.
    """

    def __init__(self, refuse: Callable[[], None]) -> None:
        """Call `refuse` whenever a module starts; it may raise."""
        self._refuse = refuse
        self._thread = threading.get_ident()
        self._frames: list[Frame] = []
        self.started: dict[str, None] = {}
        """Every module that started, in order."""
        self.unhooked: set[str] = set()
        """Scripted modules: they take no hooks, so that nobody knows whether they started."""
        self.num_passes = 0
        """How many times a module started while none was running: forward passes, as a rule."""

    @contextmanager
    def attached(self, model: nn.Module, asides: frozenset[str] = frozenset()) -> Iterator[None]:
        """Hook every module except `asides`, and take all hooks off again."""
        handles = []
        try:
            for name, module in model.named_modules():
                if name in asides:
                    continue
                if isinstance(module, torch.jit.ScriptModule):
                    self.unhooked.add(name)
                    continue
                handles.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(self._leave(name), always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._frames.clear()

    def _enter(self, name: str) -> Callable[[nn.Module, tuple, dict[str, Any]], None]:
        def enter(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            if self._counts():
                self._refuse()
                self.num_passes += not self._frames
                self._frames.append(Frame(name=name, module=module, args=args, kwargs=kwargs))
                self.started[name] = None

        return enter

    def _leave(self, name: str) -> Callable[[nn.Module, tuple, Any], None]:
        def leave(module: nn.Module, args: tuple, output: Any) -> None:
            # An exception that passes through a module may leave frames of its children behind.
            if self._counts() and any(frame.name == name for frame in self._frames):
                while self._frames.pop().name != name:
                    pass

        return leave

    def _counts(self) -> bool:
        return threading.get_ident() == self._thread and not in_backward()

    def __bool__(self) -> bool:
        """Whether any module is running."""
        return bool(self._frames)

    @property
    def names(self) -> list[str]:
        """Names of the running modules, outermost first."""
        return [frame.name for frame in self._frames]

    @property
    def innermost(self) -> str:
        """Name of the module that was called last, "" if none runs."""
        return self._frames[-1].name if self._frames else ""

    def num_heads(self) -> int | None:
        """Heads of the innermost module, if it says how many it has."""
        return None if not self._frames else head_count(self._frames[-1].module)

    def sees_another_sequence(self, num_rows: int, num_keys: int) -> bool:
        """Whether the innermost module attends to something else than its own input.

        It does if an argument named like keys, an encoder's output, a memory or a context is another tensor than the
        first one. Where no name says so, it does if rows and keys differ in number and there is no cache of past keys.
        """
        if not self._frames:
            return num_rows != num_keys
        named = self._frames[-1].arguments()
        sequences = {n: value for n, value in named.items() if isinstance(value, Tensor) and value.is_floating_point()}
        first = next(iter(sequences.values()), None)
        if any(
            value is not first and _OTHER_SEQUENCE.search(name) and not _NO_SEQUENCE.search(name)
            for name, value in sequences.items()
        ):
            return True
        cached = any(value is not None and _CACHE.search(name) for name, value in named.items())
        return num_rows != num_keys and not cached


def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a method, from memory where another module of its class had it."""
    function = getattr(forward, "__func__", None)
    return inspect.signature(forward) if function is None else _signature_of_methods(function)


@lru_cache(maxsize=256)
def _signature_of_methods(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(MethodType(function, object()))


def head_count(place: object) -> int | None:
    """Read the number of heads off the attributes of a module or its configuration."""
    counts = (getattr(place, name, None) for name in _HEAD_COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


def in_backward() -> bool:
    """Whether this thread is running a backward pass."""
    return torch._C._current_graph_task_id() != -1
