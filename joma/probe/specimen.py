"""A model under the microscope: what is inside of its wrappers, and where its attention and matrices lie."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from joma.probe.blocks import WRAPPERS
from joma.probe.isolation import devices_of, fixed_copy, on_the_side, unwrap
from joma.probe.layout import Layout, QueryKey, WeightRef, find_layout
from joma.probe.measures import Matrix, QueryKeyMatrices
from joma.probe.taps import Compiled, OnCall, OnError, OnUnseen, Trail, tap

ProbeBatch = Mapping[str, Any] | tuple[Any, ...] | list[Any] | Tensor | Callable[[nn.Module], object]
"""Keyword arguments, arguments, the one argument, or a function that calls the model itself."""
_HASH_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Specimen:
    """A model without its wrappers, and its layout."""

    root: nn.Module
    layout: Layout
    compiled: bool
    replicated: bool
    attention_pattern: str | None = None

    @classmethod
    def of(cls, model: nn.Module, *, mlp_pattern: str | None, attention_pattern: str | None) -> "Specimen":
        """Unwrap a model and find its layers."""
        inside = unwrap(model)
        layout = find_layout(inside.root, mlp_pattern=mlp_pattern, attention_pattern=attention_pattern)
        return cls(
            root=inside.root,
            layout=layout,
            compiled=inside.compiled,
            replicated=inside.replicated,
            attention_pattern=attention_pattern,
        )

    @property
    def name(self) -> str:
        """Name of the model's class."""
        return type(self.root).__name__

    @property
    def devices(self) -> list[torch.device]:
        """Devices that hold a part of the model; the CPU when it has none."""
        return devices_of(self.root) or [torch.device("cpu")]

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

    def tap(
        self,
        on_call: OnCall,
        on_unseen: OnUnseen,
        on_error: OnError,
        *,
        eagerly: bool = False,
        trail: Trail | None = None,
    ) -> AbstractContextManager[None]:
        """See the attention calls of the model while the context lasts; `eagerly` runs compiled parts uncompiled."""
        return tap(
            self.root,
            on_call,
            on_unseen=on_unseen,
            on_error=on_error,
            layout=self.layout,
            compiled=Compiled.RUN_EAGERLY if eagerly and self.compiled else Compiled.REFUSE,
            trail=trail,
        )

    def forward(self, batch: ProbeBatch) -> None:
        """Run the model on a batch so that its training does not notice."""
        with on_the_side(self.root):
            if callable(batch):
                batch(self.root)
                return
            moved = fixed_copy(batch, self.devices[0])
            if isinstance(moved, dict):
                self.root(**moved)
            elif isinstance(moved, tuple | list):
                self.root(*moved)
            else:
                self.root(moved)

    def matrices(self) -> Iterator[tuple[str, Callable[[], Matrix]]]:
        """Yield the site of every lower matrix, and a function that takes it out."""
        read = self._reader()
        for ref in self.layout.lower:
            yield plain_site(ref.site), partial(_matrix, ref, read)

    def query_keys(self) -> Iterator[tuple[str, Callable[[], QueryKeyMatrices]]]:
        """Yield the site of every pair of query and key matrices whose heads are known, and a function for them."""
        read = self._reader()
        for layer in self.layout.layers:
            for pair in layer.query_keys:
                if pair.num_heads is not None:
                    yield plain_site(pair.site), partial(_query_key, pair, read)

    def _reader(self) -> Callable[[str], Tensor]:
        return dict(self.root.named_parameters()).__getitem__


def _matrix(ref: WeightRef, read: Callable[[str], Tensor]) -> Matrix:
    return Matrix(site=plain_site(ref.site), layer=ref.layer, weight=_whole(ref, read))


def _query_key(pair: QueryKey, read: Callable[[str], Tensor]) -> QueryKeyMatrices:
    assert pair.num_heads is not None
    return QueryKeyMatrices(
        site=plain_site(pair.site),
        layer=pair.query.layer,
        query=_whole(pair.query, read),
        key=_whole(pair.key, read),
        num_heads=pair.num_heads,
        num_key_heads=pair.num_key_heads or pair.num_heads,
    )


def _whole(ref: WeightRef, read: Callable[[str], Tensor]) -> Tensor:
    def whole(name: str) -> Tensor:
        parameter = read(name)
        if hasattr(parameter, "full_tensor"):
            raise ValueError(f"{name} is sharded over processes, and joma measures without collectives.")
        return parameter.detach()

    return ref.take(whole)


def plain_site(site: str) -> str:
    """Leave the names of wrappers out of a module's path.

    >>> plain_site("blocks.0._orig_mod.attention")
    'blocks.0.attention'
    """
    return ".".join(part for part in site.split(".") if part not in WRAPPERS)


def fixed_batch(batch: object) -> ProbeBatch:
    """Copy a probe batch, refusing what a model cannot be called with."""
    if callable(batch) and not isinstance(batch, Tensor | Mapping):
        return batch
    if isinstance(batch, Mapping):
        batch = dict(batch)
    if not isinstance(batch, dict | tuple | list | Tensor):
        raise TypeError(
            "`probe_batch` must be keyword arguments, a tuple of arguments, a tensor or a function of the model, "
            f"got {type(batch).__name__}."
        )
    return fixed_copy(batch)
