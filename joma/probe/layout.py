"""What a model is made of, as far as its modules show it: layers, attention, lower matrices, queries and keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from joma.probe.weights import (
    Block,
    Hints,
    Role,
    Shapes,
    Unseen,
    WeightRef,
    attention_groups,
    find_blocks,
    lower_matrices,
    module_path,
    token_embedding,
)

__all__ = ["Layer", "Layout", "QueryKey", "Unseen", "WeightRef", "find_layout", "lower_matrices", "query_keys"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryKey:
    """The query and key matrices of one attention module."""

    site: str
    query: WeightRef
    key: WeightRef
    num_heads: int | None
    """None where neither the module nor the shapes tell."""
    num_key_heads: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One repeated block."""

    index: int
    path: str
    attention: tuple[str, ...]
    """Paths of its attention modules."""
    lower: tuple[WeightRef, ...]
    query_keys: tuple[QueryKey, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Layers in order, the token embedding, and what could not be seen."""

    layers: tuple[Layer, ...]
    embedding: WeightRef | None
    unseen: tuple[Unseen, ...]

    @property
    def lower(self) -> tuple[WeightRef, ...]:
        """Lower matrices of all layers."""
        return tuple(ref for layer in self.layers for ref in layer.lower)

    @property
    def attention(self) -> tuple[str, ...]:
        """Paths of the attention modules of all layers."""
        return tuple(path for layer in self.layers for path in layer.attention)

    def layer_of(self, site: str) -> int:
        """Return the index of the layer that a module belongs to, -1 if none."""
        for layer in self.layers:
            if site == layer.path or site.startswith(layer.path + ".") or layer.path == "":
                return layer.index
        return -1


def find_layout(model: nn.Module, *, mlp_pattern: str | None = None, attention_pattern: str | None = None) -> Layout:
    """Find layers, attention modules and matrices of a model by its structure.

    The patterns are regular expressions: `mlp_pattern` is searched in the names of parameters and picks the lower
    matrices, `attention_pattern` in the names of modules and picks the attention modules.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    hints = _hints(model)
    lower, unseen = lower_matrices(shapes, mlp_pattern=mlp_pattern, hints=hints)
    modules = dict(model.named_modules())
    pairs = [_with_heads(pair, modules, shapes) for pair in query_keys(shapes, hints=hints)]
    layers = [
        Layer(
            index=block.index,
            path=block.path,
            attention=_attention_of(block, pairs, modules, attention_pattern),
            lower=tuple(ref for ref in lower if ref.layer == block.index),
            query_keys=tuple(pair for pair in pairs if pair.query.layer == block.index),
        )
        for block in find_blocks(shapes)
    ]
    return Layout(layers=tuple(layers), embedding=token_embedding(shapes), unseen=tuple(unseen))


def query_keys(shapes: Shapes, *, hints: Hints | None = None) -> list[QueryKey]:
    """Find the query and key matrices that lie apart, from names and shapes alone; heads are not known."""
    found = []
    for block in find_blocks(shapes):
        for site, names in attention_groups(block.names, shapes).items():
            if "fused" in names:
                continue
            query, key = (
                WeightRef(
                    name=names[role], site=module_path(names[role]), layer=block.index, role=Role(role),
                    shape=(shapes[names[role]][0], shapes[names[role]][1]),
                )
                for role in ("query", "key")
            )  # fmt: skip
            found.append(QueryKey(site=site, query=query, key=key, num_heads=None, num_key_heads=None))
    return found


def _hints(model: nn.Module) -> Hints:
    return Hints()


def _with_heads(pair: QueryKey, modules: Mapping[str, nn.Module], shapes: Shapes) -> QueryKey:
    return pair


def _attention_of(
    block: Block, pairs: list[QueryKey], modules: Mapping[str, nn.Module], pattern: str | None
) -> tuple[str, ...]:
    inside = [path for path in modules if path == block.path or path.startswith(block.path + ".") or not block.path]
    if pattern is not None:
        return tuple(path for path in inside if re.search(pattern, path))
    owners = {pair.site for pair in pairs}
    return tuple(path for path in inside if path in owners)
