"""Contexts to run a model on: sequences of tokens, each with its query, cut into batches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from joma.measure.tensors import tensor_with_axes

LEAST_TOKENS = 2
"""A context of one token attends to nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contexts:
    """The contexts, and where their queries stand."""

    arguments: Mapping[str, Any] | Tensor
    tokens: Int[Tensor, "C L"]
    position: Int[Tensor, " C"]
    """Of the query: the last visible token."""
    num_visible: Int[Tensor, " C"]
    """Tokens that are no padding."""

    @classmethod
    def of(cls, contexts: Mapping[str, Any] | Tensor, tokens: str, visible: str) -> "Contexts":
        """Read the arguments of a model, or its tokens alone; the names are those of tokens and padding mask."""
        if not isinstance(contexts, Tensor | Mapping):
            raise TypeError(
                f"`contexts` must be a tensor of token ids or the keyword arguments of the model, got "
                f"{type(contexts).__name__}. Pass what a tokenizer returns for `return_tensors='pt'`."
            )
        named = {tokens: contexts} if isinstance(contexts, Tensor) else dict(contexts)
        if tokens not in named:
            raise ValueError(
                f"`contexts` must hold the tokens as {tokens!r}, got {sorted(named)}. Name them by `tokens`."
            )
        ids = tensor_with_axes(tokens, named[tokens], "C L").detach().cpu()
        if len(ids) == 0 or ids.shape[1] < LEAST_TOKENS or ids.is_floating_point():
            raise ValueError(
                f"Contexts must be rows of at least {LEAST_TOKENS} token ids, got {ids.dtype} of shape "
                f"{tuple(ids.shape)}. Pass whole texts, one in each row."
            )
        seen = _visible(ids, visible, named.get(visible))
        return cls(
            arguments=contexts if isinstance(contexts, Tensor) else named,
            tokens=ids,
            position=ids.shape[1] - 1 - seen.flip(1).to(torch.uint8).argmax(dim=1),
            num_visible=seen.sum(dim=1),
        )

    @property
    def length(self) -> int:
        """Tokens of a context, padding included."""
        return self.tokens.shape[1]

    def cuts(self, at_once: int) -> Iterator[tuple[int, int]]:
        """Yield which contexts run together, never as many as they have tokens: that would hide which axis is which."""
        first = 0
        while first < len(self.tokens):
            stop = min(first + at_once, len(self.tokens))
            stop -= stop - first == self.length
            yield first, stop
            first = stop

    def part(self, first: int, stop: int) -> Mapping[str, Any] | Tensor:
        """Cut some contexts out of every argument that has one row for each."""
        if isinstance(self.arguments, Tensor):
            return self.arguments[first:stop]
        return {name: self._cut(value, first, stop) for name, value in self.arguments.items()}

    def _cut(self, value: Any, first: int, stop: int) -> Any:
        is_per_context = isinstance(value, Tensor) and value.ndim and len(value) == len(self.tokens)
        return value[first:stop] if is_per_context else value


def _visible(ids: Int[Tensor, "C L"], name: str, mask: Tensor | None) -> Bool[Tensor, "C L"]:
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    visible = tensor_with_axes(name, mask, "C L").detach().cpu() != 0
    if visible.shape != ids.shape:
        raise ValueError(
            f"`{name}` must have the shape of the tokens, {tuple(ids.shape)}, got {tuple(visible.shape)}. "
            "Pass 1 for each token and 0 for padding."
        )
    empty = ~visible.any(dim=1)
    if bool(empty.any()):
        raise ValueError(
            f"Every context must have a visible token, context {int(empty.nonzero()[0])} has none. Drop it."
        )
    return visible
