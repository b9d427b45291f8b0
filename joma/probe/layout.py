"""What a model is made of, as far as its modules show it: layers, attention, lower matrices, queries and keys."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from joma.probe.blocks import (
    ATTENTION,
    MATRIX_AXES,
    Attention,
    Block,
    Shapes,
    find_blocks,
    is_matrix,
    leaf,
    module_path,
    parent,
)
from joma.probe.lower_matrices import lower_matrices
from joma.probe.running import head_count
from joma.probe.weights import Hints, Inventory, Role, Rows, Unseen, WeightRef, reader

__all__ = [
    "Layer",
    "Layout",
    "QueryKey",
    "Unseen",
    "WeightRef",
    "find_layout",
    "hints_of",
    "lower_matrices",
    "query_keys",
    "reader",
    "token_embedding",
]

_KEY_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_heads")
_INTERLEAVED = re.compile(r"query_?key_?value", re.IGNORECASE)
_EMBEDDING = re.compile(r"wte|embed|tok|shared", re.IGNORECASE)
_NO_EMBEDDING = re.compile(r"pos|wpe|head|type|norm|segment|patch|rel|rotary|out|proj", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryKey:
    """The query and key matrices of one attention module, heads one after another."""

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
    """Layers in order (an encoder's before its decoder's), the token embedding, and what could not be seen."""

    layers: tuple[Layer, ...]
    lower: tuple[WeightRef, ...]
    """Lower matrices of all layers, and those outside of them that a pattern picked."""
    embedding: WeightRef | None
    unseen: tuple[Unseen, ...]

    @property
    def attention(self) -> tuple[str, ...]:
        """Paths of the attention modules of all layers."""
        return tuple(path for layer in self.layers for path in layer.attention)

    def layer_of(self, site: str) -> int:
        """Return the index of the layer that a module belongs to, -1 if none."""
        for layer in self.layers:
            if not layer.path or f"{site}.".startswith(f"{layer.path}."):
                return layer.index
        return -1


def find_layout(model: nn.Module, *, mlp_pattern: str | None = None, attention_pattern: str | None = None) -> Layout:
    """Find layers, attention modules and matrices of a model by its structure.

    The patterns are regular expressions: `mlp_pattern` is searched in the names of parameters and picks the lower
    matrices, `attention_pattern` in the names of modules and picks the attention modules.

    >>> layout = find_layout(nn.TransformerEncoderLayer(8, 2, dim_feedforward=16))
    >>> layout.attention, [(ref.site, ref.shape) for ref in layout.lower]
    (('self_attn',), [('linear1', (16, 8))])
    """
    for name, pattern in (("mlp_pattern", mlp_pattern), ("attention_pattern", attention_pattern)):
        _check_pattern(name, pattern)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    hints = hints_of(model)
    lower, unseen = lower_matrices(shapes, mlp_pattern=mlp_pattern, hints=hints)
    pairs, unread = query_keys(shapes, hints=hints)
    layers = [
        Layer(
            index=block.index,
            path=block.path,
            attention=_attention_modules(block, model, shapes, attention_pattern),
            lower=tuple(ref for ref in lower if ref.layer == block.index),
            query_keys=tuple(pair for pair in pairs if pair.query.layer == block.index),
        )
        for block in find_blocks(shapes)
    ]
    known = {pair.site for pair in pairs} | {each.site for each in unread}
    unread += [
        Unseen(site=path, reason="No query and key matrices: no matrix of this module is named like them.")
        for layer in layers
        for path in layer.attention
        if path not in known
    ]
    return Layout(
        layers=tuple(layers), lower=tuple(lower), embedding=token_embedding(shapes), unseen=(*unseen, *unread)
    )


def _check_pattern(name: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"`{name}` must be a regular expression, got {pattern!r}: {error}. Correct it.") from None


def query_keys(shapes: Shapes, *, hints: Hints | None = None) -> tuple[list[QueryKey], list[Unseen]]:
    """Find the query and key matrices of every attention module, and say which cannot be told apart.

    Of a fused matrix the name tells the order: `query_key_value` holds the queries, key and value of one group of heads
    after another (GPT-NeoX, Bloom, Falcon), every other name all queries, then all keys, then all values.

    >>> shapes = {"h.0.attn.c_attn.weight": (8, 24), "h.0.attn.c_attn.bias": (24,), "h.0.mlp.weight": (8, 8)}
    >>> [(pair.query.rows, pair.key.rows) for pair in query_keys(shapes)[0]]
    [(((0, 8, 1),), ((8, 16, 1),))]
    """
    inventory = Inventory.of(shapes, hints)
    found: list[QueryKey] = []
    unseen: list[Unseen] = []
    for block in find_blocks(shapes):
        for attention in block.attention:
            pair = _query_key(attention, block.index, inventory)
            if isinstance(pair, QueryKey):
                found.append(pair)
                names = dict.fromkeys((pair.query.name, pair.key.name))
                unseen += [each for name in names for each in inventory.left_out(name)]
            else:
                unseen.append(Unseen(site=attention.path, reason=pair))
    return found, unseen


def _query_key(attention: Attention, layer: int, inventory: Inventory) -> QueryKey | str:
    """Return the matrices of an attention module, or why they cannot be told apart."""
    heads = inventory.hints.heads.get(attention.path, inventory.hints.heads.get(""))
    if attention.fused is not None:
        return _fused(attention.path, attention.fused, layer, inventory, heads)
    assert attention.query is not None and attention.key is not None
    query = _ref(attention.query, layer, Role.QUERY, inventory)
    key = _ref(attention.key, layer, Role.KEY, inventory)
    fits = heads is not None and query.shape[0] % heads[0] == 0 and key.shape[0] * heads[0] % query.shape[0] == 0
    num_heads = heads[0] if heads is not None and fits else None
    num_key_heads = None if num_heads is None else key.shape[0] * num_heads // query.shape[0]
    return QueryKey(site=attention.path, query=query, key=key, num_heads=num_heads, num_key_heads=num_key_heads)


def _fused(site: str, name: str, layer: int, inventory: Inventory, heads: tuple[int, int] | None) -> QueryKey | str:
    outputs, inputs = _ref(name, layer, Role.QUERY, inventory).shape
    interleaved = bool(_INTERLEAVED.search(leaf(module_path(name))))
    if heads is None and (interleaved or outputs != 3 * inputs):
        return "Queries and keys are fused, and how many heads there are is not known. Pass them in hints."
    num_heads, num_key_heads = heads or (1, 1)
    dim, rest = divmod(outputs, num_heads + 2 * num_key_heads)
    if rest:
        return f"{outputs} rows do not divide into {num_heads} query and twice {num_key_heads} key heads."
    query_rows, key_rows = (_interleaved if interleaved else _in_turn)(num_heads, num_key_heads, dim)
    return QueryKey(
        site=site,
        query=_ref(name, layer, Role.QUERY, inventory, query_rows),
        key=_ref(name, layer, Role.KEY, inventory, key_rows),
        num_heads=None if heads is None else num_heads,
        num_key_heads=None if heads is None else num_key_heads,
    )


def _in_turn(num_heads: int, num_key_heads: int, dim: int) -> tuple[Rows, Rows]:
    """All queries, all keys, all values."""
    stop = num_heads * dim
    return ((0, stop, 1),), ((stop, stop + num_key_heads * dim, 1),)


def _interleaved(num_heads: int, num_key_heads: int, dim: int) -> tuple[Rows, Rows]:
    """Group by group: its queries, its key, its value."""
    per_group = num_heads // num_key_heads
    starts = [group * (per_group + 2) * dim for group in range(num_key_heads)]
    queries = tuple((start, start + per_group * dim, 1) for start in starts)
    keys = tuple((start + per_group * dim, start + (per_group + 1) * dim, 1) for start in starts)
    return queries, keys


def _ref(name: str, layer: int, role: Role, inventory: Inventory, rows: Rows = ()) -> WeightRef:
    transposed, _ = inventory.orientation(name)
    first, second = inventory.shapes[name]
    outputs, inputs = (second, first) if transposed else (first, second)
    path = module_path(name)
    return WeightRef(
        name=name,
        site=f"{path}:{role}" if rows else path,
        layer=layer,
        role=role,
        shape=(sum(len(range(*part)) for part in rows) if rows else outputs, inputs),
        transposed=transposed,
        rows=rows,
        updates=inventory.updates(path),
    )


def token_embedding(shapes: Shapes) -> WeightRef | None:
    """Find the token embedding: a matrix outside of the blocks that is named like one, the one with most rows."""
    inside = {name for block in find_blocks(shapes) if block.path for name in block.names}
    fitting = [
        name
        for name, shape in shapes.items()
        if len(shape) == MATRIX_AXES
        and name not in inside
        and _EMBEDDING.search(name)
        and not _NO_EMBEDDING.search(leaf(module_path(name)))
    ]
    if not fitting:
        return None
    name = max(fitting, key=lambda each: shapes[each][0])
    rows, columns = shapes[name]
    return WeightRef(name=name, site=module_path(name), layer=-1, role=Role.EMBEDDING, shape=(rows, columns))


def hints_of(model: nn.Module) -> Hints:
    """Read off a model's modules what names and shapes do not tell: orientation, order of gates, adapters, heads."""
    transposed: dict[str, bool] = {}
    interleaved: set[str] = set()
    scaling: dict[str, float] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            known = _is_transposed(module)
            if parameter.ndim > 1 and known is not None:
                transposed[name] = known
            if getattr(module, "is_concatenated", True) is False:
                interleaved.add(name)
        scaling |= {f"{path}.{adapter}": value for adapter, value in _adapter_scaling(module).items()}
    return Hints(transposed=transposed, interleaved=frozenset(interleaved), lora_scaling=scaling, heads=_heads(model))


def _is_transposed(module: nn.Module) -> bool | None:
    """Whether a module stores its weights as (inputs, outputs); None if it does not say."""
    if isinstance(module, nn.Linear):
        return False
    weight, outputs = getattr(module, "weight", None), getattr(module, "nf", None)
    if isinstance(weight, nn.Parameter) and isinstance(outputs, int):  # Conv1D of GPT-2
        return weight.shape[-1] == outputs
    stated = getattr(module, "is_transposed", None)
    return stated if isinstance(stated, bool) else None


def _adapter_scaling(module: nn.Module) -> dict[str, float]:
    """Scaling of a module's LoRA adapters; 0 for those that are switched off or already in the weight."""
    adapters = getattr(module, "lora_A", None)
    factors = getattr(module, "scaling", None)
    if not isinstance(adapters, nn.ModuleDict) or not isinstance(factors, Mapping):
        return {}
    active = set() if getattr(module, "disable_adapters", False) else set(getattr(module, "active_adapters", adapters))
    active -= set(getattr(module, "merged_adapters", ()))
    renormed = getattr(module, "use_dora", {})
    return {
        name: float(factors[name]) if name in active else 0.0
        for name in adapters
        if name in factors and not (isinstance(renormed, Mapping) and renormed.get(name))
    }


def _heads(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Query and key heads of every module that says so itself, through its configuration or through what it lies in."""
    heads: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules():
        own = [place for place in (module, getattr(module, "config", None)) if place is not None]
        num_heads = next((count for place in own if (count := head_count(place)) is not None), None)
        if num_heads is None:
            if parent(path) in heads and path:
                heads[path] = heads[parent(path)]
            continue
        groups = getattr(module, "num_key_value_groups", None)
        stated = (getattr(place, name, None) for place in own for name in _KEY_HEAD_COUNTS)
        num_key_heads = num_heads // groups if isinstance(groups, int) and groups else num_heads
        heads[path] = num_heads, next((count for count in stated if isinstance(count, int)), num_key_heads)
    return heads


def _attention_modules(block: Block, model: nn.Module, shapes: Shapes, pattern: str | None) -> tuple[str, ...]:
    """Return the outermost modules of a block that match the pattern, or those that own queries or are called so."""
    prefix = f"{block.path}." if block.path else ""
    inside = [path for path, _ in model.named_modules() if f"{path}.".startswith(prefix)]
    if pattern is not None:
        matching = {path for path in inside if re.search(pattern, path)}
        return tuple(path for path in inside if path in matching and not matching.intersection(_above(path)))
    owners = {attention.path for attention in block.attention}
    holders = Counter(parent(module_path(name)) for name in block.names if is_matrix(name, shapes[name]))
    called_so = {path for path in inside if ATTENTION.search(leaf(path)) and holders[path] > 1}
    called_so -= {path for owner in owners for path in _above(owner)}
    return tuple(path for path in inside if path in owners | called_so)


def _above(path: str) -> Iterator[str]:
    """Yield the modules that a module lies in."""
    while path:
        path = parent(path)
        yield path
