"""Layers whose MLP runs beside their attention, found by poisoning.

Where an MLP comes after the attention of its layer, its input at one position depends on the layer's input at others.
Where the two run side by side (GPT-J, Pythia, Falcon, Phi) it does not: NaN at all other positions of the layer's input
does not reach it. NaN tells that whatever the weights are, zero ones included, and however the model is written.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from joma.probe.specimen import ProbeBatch, Specimen


def side_by_side(
    specimen: Specimen, context: ProbeBatch, *, length: int, position: int, lower: Mapping[str, int]
) -> frozenset[int]:
    """Return the layers whose MLP does not see their own attention.

    `context` is a batch of one sequence of this length, at least 2, and `position` one that attends to others; `lower`
    names the modules into the hidden neurons, with their layers. A layer that does not run, or whose input is not in
    its arguments, is taken to have its MLP after its attention.
    """
    poisoned: set[int] = set()
    reached: dict[int, bool] = {}

    def poison(layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
            stream = next((each for each in (*args, *kwargs.values()) if _is_stream(each, length)), None)
            if stream is None:
                return None
            poisoned.add(layer)
            spoilt = _poisoned(stream, length, position)

            def replaced(value: Any) -> Any:
                return spoilt if _is_stream(value, length) and value.shape == stream.shape else value

            return tuple(map(replaced, args)), {name: replaced(value) for name, value in kwargs.items()}

        return hook

    def look(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple) -> None:
            if args and _is_stream(args[0], length):
                there = args[0].select(args[0].shape.index(length), position)
                reached[layer] = reached.get(layer, False) or bool(there.isnan().any())

        return hook

    def ignore(*_: object) -> None:
        """Attention is not looked at."""

    with _hooks(specimen, poison, look, lower), specimen.tap(ignore, ignore, ignore, eagerly=True):
        specimen.forward(context)
    return frozenset(layer for layer in poisoned if reached.get(layer) is False)


@contextmanager
def _hooks(
    specimen: Specimen,
    poison: Callable[[int], Callable[..., Any]],
    look: Callable[[int], Callable[..., None]],
    lower: Mapping[str, int],
) -> Iterator[None]:
    modules = dict(specimen.root.named_modules())
    handles = []
    try:
        for layer in specimen.layout.layers:
            if layer.path:
                module = modules[layer.path]
                handles.append(module.register_forward_pre_hook(poison(layer.index), with_kwargs=True, prepend=True))
        for name, index in lower.items():
            handles.append(modules[name].register_forward_pre_hook(look(index)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_stream(value: object, length: int) -> bool:
    """Whether this is a sequence of vectors: (1, L, d), (L, 1, d) or (L, d)."""
    return isinstance(value, Tensor) and value.is_floating_point() and length in value.shape[:-1]


def _poisoned(stream: Tensor, length: int, position: int) -> Tensor:
    spoilt = torch.full_like(stream, torch.nan)
    spoilt.select(stream.shape.index(length), position).fill_(1.0)
    return spoilt
