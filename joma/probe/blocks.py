"""The repeated blocks of a transformer and its attention, from the names and shapes of its tensors alone."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Shapes = Mapping[str, tuple[int, ...]]
"""Names of tensors, as in a state dict, with their shapes."""

MATRIX_AXES, STACKED_AXES = 2, 3
"""Axes of a matrix, and of matrices stacked along a first axis (experts)."""

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names that wrappers of a module (torch.compile, checkpointing, FSDP) put into the paths of what is inside."""

_AFFIX = r"(?:(?:to|w|lin|linear|fc|proj|in|c)_?)?"
_SUFFIX = r"(?:_?(?:proj|lin|linear|layer|weight|net))*"
_QUERY = re.compile(rf"^{_AFFIX}(?:q|query){_SUFFIX}$", re.IGNORECASE)
_KEY = re.compile(rf"^{_AFFIX}(?:k|key){_SUFFIX}$", re.IGNORECASE)
_VALUE = re.compile(rf"^{_AFFIX}(?:v|value|kv){_SUFFIX}$", re.IGNORECASE)
_FUSED = re.compile(r"qkv|query_?key_?value|c_attn|w_?pack|^in_proj_weight$", re.IGNORECASE)
ATTENTION = re.compile(r"att(?:n|ention)", re.IGNORECASE)
"""What modules that hold attention are called, or a part of it."""
_NORM = re.compile(r"(?:weight|scale|gamma|\.g)$")
_NO_WEIGHT = re.compile(r"\.lora_|\.ia3_|prompt|\.parametrizations\.|bias$|rel_?pos|relative", re.IGNORECASE)


def module_path(name: str) -> str:
    """Return the module or bare parameter that a tensor's name stands for.

    >>> module_path("h.0.mlp.c_fc.weight"), module_path("layers.0.self_attn.in_proj_weight")
    ('h.0.mlp.c_fc', 'layers.0.self_attn.in_proj_weight')
    """
    return name.removesuffix(".weight").removesuffix(".base_layer")


def parent(path: str) -> str:
    """Return the module that holds a module."""
    return path.rpartition(".")[0]


def leaf(path: str) -> str:
    """Return a module's own name."""
    return path.rpartition(".")[2]


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix or a stack of them; adapters, biases and parts of parametrised weights are not."""
    return len(shape) in (MATRIX_AXES, STACKED_AXES) and not _NO_WEIGHT.search(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """A module that owns queries and keys: their tensors, apart or in one."""

    path: str
    query: str | None = None
    key: str | None = None
    fused: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One layer of a model."""

    path: str
    index: int
    names: tuple[str, ...]
    """Its tensors, in the order given."""
    attention: tuple[Attention, ...]

    def holds_attention(self, name: str) -> bool:
        """Whether a matrix of the block belongs to attention.

        It does by its own name beside queries and keys, inside a module that owns them, or inside one called so. Where
        the block itself owns the queries, its other matrices are judged by their names.
        """
        return _belongs(module_path(name), self.path, {attention.path for attention in self.attention})

    def width(self, shapes: Shapes) -> int:
        """Return the model's width: of the sizes of norms (of all without any) the one most matrices have.

        The smallest of equals is taken: an MLP widens, as a rule.
        """
        norms = {
            shapes[name][0]
            for name in self.names
            if len(shapes[name]) == 1 and _NORM.search(name) and not self.holds_attention(name)
        }
        sizes: Counter[int] = Counter()
        for name in self.names:
            if is_matrix(name, shapes[name]):
                sizes.update(set(shapes[name][-MATRIX_AXES:]))
        return min(norms or sizes, key=lambda size: (-sizes[size], size), default=0)


def _belongs(path: str, block: str, owners: set[str]) -> bool:
    holder = parent(path)
    if any(pattern.search(leaf(path)) for pattern in (_FUSED, _QUERY, _KEY, _VALUE)):
        return holder in owners
    while holder and holder != block and not (parent(holder) == block and leaf(holder) in WRAPPERS):
        if holder in owners or ATTENTION.search(leaf(holder)):
            return True
        holder = parent(holder)
    return False


def find_attention(names: Iterable[str], shapes: Shapes) -> list[Attention]:
    """Find the modules that own queries and keys, by the names of their matrices."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        if len(shapes[name]) == MATRIX_AXES and is_matrix(name, shapes[name]):
            path = module_path(name)
            for role, pattern in (("fused", _FUSED), ("query", _QUERY), ("key", _KEY)):
                if pattern.search(leaf(path)):
                    found[parent(path)].setdefault(role, name)
                    break
    return [Attention(path=path, **roles) for path, roles in found.items() if "fused" in roles or len(roles) > 1]


def find_blocks(shapes: Shapes) -> list[Block]:
    """Find the repeated blocks of a model, in order: encoders first, then by name and number.

    A block is the innermost numbered module that holds attention and another matrix, or stands in a row with such.
    Without attention it is the outermost numbered module with two matrices; without numbers the model is one block.
    """
    matrices = [name for name, shape in shapes.items() if is_matrix(name, shape)]
    if not matrices:
        return []
    attention = find_attention(matrices, shapes)
    layers = _layers(matrices, {each.path for each in attention})
    outermost = Counter(next(_numbered(name), "") for name in matrices)
    if layers:
        rows = {_family(path) for path in layers}
        paths = layers | {path for path in outermost if _family(path) in rows}
    else:
        paths = {path for path, count in outermost.items() if path and count > 1} or {""}
    return [_block(path, index, shapes, attention) for index, path in enumerate(sorted(paths, key=_place))]


def _block(path: str, index: int, shapes: Shapes, attention: list[Attention]) -> Block:
    prefix = f"{path}." if path else ""
    return Block(
        path=path,
        index=index,
        names=tuple(name for name in shapes if name.startswith(prefix)),
        attention=tuple(each for each in attention if f"{each.path}.".startswith(prefix)),
    )


def _layers(matrices: list[str], owners: set[str]) -> set[str]:
    """Numbered modules with attention and something else inside, and no other such module."""
    holders = {path for owner in owners for path in _numbered(f"{owner}.")}
    whole = {
        path
        for name in matrices
        for path in _numbered(name)
        if path in holders and not _belongs(module_path(name), path, owners)
    }
    return whole - {outer for path in whole for outer in _numbered(path)}


def _numbered(name: str) -> Iterator[str]:
    """Yield the numbered modules that a name lies in, outermost first."""
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i, part in enumerate(parts[:-1]) if part.isdigit())


def _family(path: str) -> str:
    """Return a path with its numbers blotted out."""
    return ".".join("#" if part.isdigit() else part for part in path.split("."))


def _place(path: str) -> tuple[bool, str, list[int]]:
    family = _family(path)
    return "encoder" not in family, family, [int(part) for part in path.split(".") if part.isdigit()]
