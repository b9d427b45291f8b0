"""Tapping the forward pass of a training step where it happens, inside of somebody else's loop.

While armed, hooks wait for the first training forward. Whichever watched module is called first, the model itself or a
part of it, opens the tap, and its return closes it again: the tap never outlives the call, however the loop is written
and whatever it raises. A module is tapped on its first call only, so that of several forwards in a step (accumulation
of gradients) the first counts; recomputation during the backward pass does not.

A forward is training if gradients are recorded and the model is in training mode. One that has never been seen in
training mode since it was watched is trained in eval mode on purpose (frozen batch norm, say): then gradients alone
decide. What is no training counts for nothing inside of it either.

The hooks are PyTorch's for all modules and not the model's own: a model that is copied or pickled meanwhile carries
nothing of them away, and closing the tap does not change the list of hooks that PyTorch is walking.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from joma.probe.running import in_backward

OpenTap = Callable[[], AbstractContextManager[None]]
OnError = Callable[[Exception], None]


class TrainingForward:
    """Opens a tap around the first training forward after it was armed."""

    def __init__(self, root: nn.Module, on_error: OnError) -> None:
        """What goes wrong with a tap is told to `on_error`; hooks never raise."""
        self._root, self._on_error = root, on_error
        self._open_tap: OpenTap = nullcontext
        self._waiting: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []
        self._owner: nn.Module | None = None
        """The outermost watched module that is running: it decides whether what runs inside of it counts."""
        self._owner_counts = False
        self._depth = 0
        self._tap = ExitStack()
        self._was_in_training_mode = root.training

    def arm(self, open_tap: OpenTap) -> None:
        """Open `open_tap()` around the next training forward."""
        self.disarm()
        self._open_tap = open_tap
        self._was_in_training_mode |= self._root.training
        self._waiting = set(self._root.modules())
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def disarm(self) -> None:
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
        if self._owner is not None and not self._was_left_behind(module):
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
        # Parts that are called one by one run without gradients under reentrant checkpointing: only the mode tells.
        return module is not self._root and self._root.training

    def _was_left_behind(self, entered: nn.Module) -> bool:
        """Whether the owner is a validation that ended without being left, as by Ctrl-C: the root trains again."""
        return entered is self._root and not self._owner_counts and self._is_training(entered)

    def _close(self) -> None:
        self._owner = None
        self._safely(self._tap.close)

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._on_error(error)
