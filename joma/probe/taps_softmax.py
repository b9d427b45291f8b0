"""Eager attention, seen at its softmax.

The rule: a softmax is attention if the last matrix product behind its input multiplied activations, and the operand
that gave the softmax its axis, the keys, is not made of parameters and buffers alone. A router's logits come from a
linear map or a product with its weights, so do those over a vocabulary; losses take a log-softmax. Between product
and softmax anything may happen that is not another product: scale, soft cap, bias, mask, a cast, another view.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from joma.probe.taps_sdpa import with_heads

SOFTMAX = frozenset({"softmax", "_softmax", "special_softmax"})
_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "einsum"})
_MAPS = frozenset({"linear", "bilinear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "embedding"})
"""Functions with weights of their own: what they make of activations is no product of activations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Product:
    """Whether the operands that gave a product its last two axes are activations."""

    rows: bool
    keys: bool


class Products:
    """Follows products of activations through a forward pass, and tensors that are made of weights alone."""

    def __init__(self, model: nn.Module) -> None:
        """Start with the model's buffers as weights; its parameters are known by their type."""
        self._weights = WeakIdKeyDictionary({buffer: True for buffer in model.buffers()})
        self._products = WeakIdKeyDictionary()

    def follow(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Note what came out of a function of this name."""
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if not tensors:
            return
        if all(self._is_weight(tensor) for tensor in tensors):
            self._note(self._weights, True, result)
        elif name in _MAPS:
            return
        elif name in _PRODUCTS:
            self._note(self._products, self._product(name, args, tensors), result)
        elif self._products:
            inherited = next((self._products[tensor] for tensor in tensors if tensor in self._products), None)
            self._note(self._products, inherited, result)

    def logits(self, args: tuple, kwargs: dict[str, Any], num_heads: Callable[[], int | None]) -> Tensor | None:
        """Return what a softmax takes as (B, H, rows, keys) if it is attention, else None."""
        x = next(_tensors((*args, *kwargs.values())), None)
        product = None if x is None else self._products.get(x)
        if x is None or product is None:
            return None
        axis = kwargs["dim"] if "dim" in kwargs else next((a for a in args[1:] if isinstance(a, int)), -1)
        if axis % x.ndim == x.ndim - 1 and product.keys:
            return with_heads(x.detach(), num_heads())
        if axis % x.ndim == x.ndim - 2 and product.rows:
            return with_heads(x.detach().transpose(-1, -2), num_heads())
        return None

    def _is_weight(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or tensor in self._weights

    def _product(self, name: str, args: tuple, tensors: list[Tensor]) -> _Product:
        left, right = [not self._is_weight(tensor) for tensor in tensors[-2:]]
        if name == "__rmatmul__":
            left, right = right, left
        if name == "einsum" and isinstance(args[0], str):
            return self._einsum(args[0], tensors)
        return _Product(rows=left, keys=right)

    def _einsum(self, equation: str, tensors: list[Tensor]) -> _Product:
        """The operands that own the last two letters of the result; those that share a letter must all agree."""
        inputs, _, output = equation.replace(" ", "").partition("->")
        owners = [part.replace("...", "") for part in inputs.split(",")]

        def active(letter: str) -> bool:
            return all(not self._is_weight(t) for t, own in zip(tensors, owners, strict=True) if letter in own)

        return _Product(rows=active(output[-2:-1]), keys=active(output[-1:]))

    @staticmethod
    def _note(notes: WeakIdKeyDictionary, note: Any, result: Any) -> None:
        if note is None:
            return
        for tensor in _tensors((result,)):
            if tensor.ndim > 1 and tensor.is_floating_point():
                notes[tensor] = note


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (item for item in value if isinstance(item, Tensor))
