"""Where the matrices of a transformer lie, from the names and shapes of its tensors alone.

No table of architectures. A repeated block holds attention (queries and keys by name, apart or fused) and an MLP: a
matrix from the model's width to the hidden neurons and one back. Shapes say which is which, biases tell a transposed
matrix (GPT-2's Conv1D), and two matrices into the same neurons are a gate and what it gates.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""Names of tensors, as in a state dict, with their shapes."""


class Role(StrEnum):
    """What a matrix does."""

    LOWER = "lower"
    """Into the hidden neurons of an MLP without gate."""
    GATE = "gate"
    UP = "up"
    QUERY = "query"
    KEY = "key"
    EMBEDDING = "embedding"


@dataclass(frozen=True, kw_only=True, slots=True)
class LowRankUpdate:
    """A LoRA adapter: scaling · B A is added to the weight."""

    a: str
    b: str
    scaling: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRef:
    """A matrix (outputs, inputs) somewhere in a state dict, and how to take it out."""

    name: str
    """Name of the tensor."""
    site: str
    """What to call the matrix: the module's path, an expert in brackets, the half of a fused one after a colon."""
    layer: int
    role: Role
    shape: tuple[int, int]
    """(outputs, inputs) of the matrix taken out."""
    expert: int | None = None
    """Which expert; of a fused tensor the index along its first axis."""
    fused_experts: bool = False
    transposed: bool = False
    """Stored as (inputs, outputs)."""
    rows: tuple[tuple[int, int, int], ...] = ()
    """Parts (start, stop, step) of the outputs, in order; empty for all."""
    updates: tuple[LowRankUpdate, ...] = ()

    def take(self, read: Callable[[str], Tensor]) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix, given a function from a tensor's name to the tensor."""
        weight = read(self.name)
        if self.fused_experts:
            assert self.expert is not None
            weight = weight[self.expert]
        if self.transposed:
            weight = weight.transpose(-1, -2)
        for update in self.updates:
            weight = weight + update.scaling * (read(update.b) @ read(update.a)).to(weight.dtype)
        parts = [weight[start:stop:step] for start, stop, step in self.rows]
        return weight if not parts else parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """Something that is not measured, and why."""

    site: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What only the model itself can tell; names and shapes decide where there is none."""

    transposed: Mapping[str, bool] = field(default_factory=dict)
    """Tensors known to be stored as (inputs, outputs) or not."""
    interleaved: frozenset[str] = frozenset()
    """Fused gates whose rows alternate with what they gate, instead of coming first."""
    lora_scaling: Mapping[str, float] = field(default_factory=dict)
    """Scaling of the adapter at a module path and adapter name ("layers.0.fc1.default")."""


_ATTENTION_COMPONENT = re.compile(r"att(?:n|ention)", re.IGNORECASE)
_ROUTER = re.compile(r"(?:^|\.)(?:gate|router|wg)(?:\.|$)")
_EXPERT_INDEX = re.compile(r"experts?(?:\.\w+)?\.(\d+)(?:\.|$)")
_UPPER_NAME = re.compile(r"down|(?:^|[._])w2|wo$|fc2|4h_to_h|c_proj|linear2|out", re.IGNORECASE)
_LOWER_NAME = re.compile(r"up|gate|(?:^|[._])w[13]|wi(?:_\d)?$|fc1|h_to_4h|c_fc|linear1|intermediate", re.IGNORECASE)
_ADAPTER = re.compile(r"\.lora_[AB](?:\.|$)|lora_embedding|\.ia3_|\.prompt_")
_AFFIX = r"(?:(?:to|w|lin|linear|fc|proj|in|c)_?)?"
_SUFFIX = r"(?:_?(?:proj|lin|linear|layer|weight|net))*"
_QUERY = re.compile(rf"^{_AFFIX}(?:q|query){_SUFFIX}$", re.IGNORECASE)
_KEY = re.compile(rf"^{_AFFIX}(?:k|key){_SUFFIX}$", re.IGNORECASE)
_VALUE = re.compile(rf"^{_AFFIX}(?:v|value|kv){_SUFFIX}$", re.IGNORECASE)
_FUSED_QKV = re.compile(r"qkv|query_?key_?value|c_attn|w_?pack|^in_proj(?:_weight)?$", re.IGNORECASE)
_EMBEDDING = re.compile(r"wte|word_embed|embed_tokens|embed_in|tok|token|shared|embed", re.IGNORECASE)
_NOT_EMBEDDING = re.compile(r"pos|wpe|head|type|norm|segment|patch|rel|rotary|out", re.IGNORECASE)


def module_path(name: str) -> str:
    """Return the module or bare parameter that a tensor's name stands for.

    >>> module_path("h.0.mlp.c_fc.weight"), module_path("layers.0.self_attn.in_proj_weight")
    ('h.0.mlp.c_fc', 'layers.0.self_attn.in_proj_weight')
    """
    return name.removesuffix(".weight").removesuffix(".base_layer")


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One layer of a model: its path and the names of its tensors."""

    path: str
    index: int
    names: tuple[str, ...]


def find_blocks(shapes: Shapes) -> list[Block]:
    """Find the repeated blocks of a model, in order.

    A block is the innermost numbered module that holds both attention and more; where none does, the outermost
    numbered one; without numbers the whole model is one block.
    """
    matrices = [name for name, shape in shapes.items() if len(shape) in (2, 3) and not _ADAPTER.search(name)]
    groups = attention_groups(matrices, shapes)
    paths = {}
    for name in matrices:
        candidates = _numbered_prefixes(name)
        whole = [p for p in candidates if _holds_both(p, matrices, groups)]
        paths[name] = whole[-1] if whole else candidates[0] if candidates else ""
    if not any(paths.values()):
        return [Block(path="", index=0, names=tuple(shapes))] if groups or matrices else []
    order = sorted({p for p in paths.values() if p}, key=_natural)
    first = {p: position for position, p in enumerate(dict.fromkeys(_container(p) for p in paths.values() if p))}
    order.sort(key=lambda p: first[_container(p)])
    return [
        Block(path=p, index=i, names=tuple(n for n in shapes if n.startswith(p + "."))) for i, p in enumerate(order)
    ]


def _numbered_prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i, part in enumerate(parts[:-1]) if part.isdigit()]


def _holds_both(prefix: str, matrices: list[str], groups: Iterable[str]) -> bool:
    inside = [name for name in matrices if name.startswith(prefix + ".")]
    held = [g for g in groups if (g + ".").startswith(prefix + ".")]
    return bool(held) and any(not _in_attention(name, prefix, held) for name in inside)


def _container(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _natural(path: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in path.split(".")]


def attention_groups(names: Iterable[str], shapes: Shapes) -> dict[str, dict[str, str]]:
    """Find modules that own queries and keys: their path, with the tensors by role ("query", "key" or "fused")."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        if len(shapes[name]) != 2:  # noqa: PLR2004 (a matrix has two axes)
            continue
        path = module_path(name)
        leaf = _leaf(path)
        role = (
            "fused" if _FUSED_QKV.search(leaf) else "query" if _QUERY.match(leaf) else "key" if _KEY.match(leaf) else ""
        )
        if role:
            found[_parent(path)].setdefault(role, name)
    return {path: roles for path, roles in found.items() if "fused" in roles or {"query", "key"} <= set(roles)}


def _in_attention(name: str, block: str, groups: Iterable[str]) -> bool:
    """Whether a matrix belongs to attention: by its own name, by a module called so, or by a module that owns queries.

    Where the block itself owns the queries, its other matrices are judged by their names.
    """
    path = module_path(name)
    leaf = _leaf(path)
    if any(pattern.search(leaf) for pattern in (_FUSED_QKV, _QUERY, _KEY, _VALUE)):
        return any(_parent(path) == g for g in groups)
    if any(path.startswith(g + ".") for g in groups if g != block):
        return True
    inner = path.removeprefix(block).strip(".").split(".")[:-1]
    return any(_ATTENTION_COMPONENT.search(part) for part in inner)


def lower_matrices(
    shapes: Shapes, *, mlp_pattern: str | None = None, hints: Hints | None = None
) -> tuple[list[WeightRef], list[Unseen]]:
    """Find the matrices into the hidden neurons of every layer's MLP, and say which layers show none.

    `mlp_pattern` is a regular expression searched in the tensors' names that picks them instead.

    >>> shapes = {"h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,), "h.0.mlp.c_proj.weight": (32, 8)}
    >>> [(ref.site, ref.shape, ref.transposed) for ref in lower_matrices(shapes)[0]]
    [('h.0.mlp.c_fc', (32, 8), True)]
    """
    hints = hints or Hints()
    found: list[WeightRef] = []
    unseen: list[Unseen] = []
    for block in find_blocks(shapes):
        refs = _lower_of_block(block, shapes, mlp_pattern, hints)
        found += refs
        if not refs:
            reason = (
                "no tensor matches the pattern" if mlp_pattern else "no pair of matrices d → m → d beside attention"
            )
            unseen.append(Unseen(site=block.path, reason=f"No lower matrix of an MLP: {reason}."))
    return found, unseen


def _lower_of_block(block: Block, shapes: Shapes, pattern: str | None, hints: Hints) -> list[WeightRef]:
    oriented = {
        name: _Matrix.of(name, shapes, hints)
        for name in block.names
        if len(shapes[name]) in (2, 3) and not _ADAPTER.search(name) and not name.endswith("bias")
    }
    width = _width(block, shapes)
    if pattern is not None:
        chosen = [m.facing(width) for name, m in oriented.items() if re.search(pattern, name)]
        return [ref for m in chosen for ref in m.refs(block.index, Role.LOWER, m.outputs, shapes, hints)]
    groups = attention_groups(oriented, shapes)
    candidates = [
        matrix
        for name, matrix in oriented.items()
        if not _in_attention(name, block.path, groups) and not _is_router(name, shapes)
    ]
    return _pairs(candidates, width, block, shapes, hints)


def _is_router(name: str, shapes: Shapes) -> bool:
    path = module_path(name)
    siblings = _parent(path) + ".experts."
    return bool(_ROUTER.search("." + _leaf(path))) and any(other.startswith(siblings) for other in shapes)


def _width(block: Block, shapes: Shapes) -> int:
    """The model's width: the size that most axes of the block's tensors have, the smallest of equals."""
    sizes: Counter[int] = Counter()
    for name in block.names:
        shape = shapes[name]
        sizes.update(set(shape[-2:]) if len(shape) > 1 else shape)
    most = max(sizes.values())
    return min(size for size, count in sizes.items() if count == most)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matrix:
    """A two- or three-axis tensor read as a map from inputs to outputs."""

    name: str
    inputs: int
    outputs: int
    num_experts: int | None
    transposed: bool
    sure: bool
    """Whether a bias or a hint told the orientation."""

    @classmethod
    def of(cls, name: str, shapes: Shapes, hints: Hints) -> "_Matrix":
        shape = shapes[name]
        transposed, sure = _orientation(name, shapes, hints)
        outputs, inputs = shape[-2:] if not transposed else shape[:-3:-1]
        experts = shape[0] if len(shape) == 3 else None  # noqa: PLR2004 (experts stacked along a third axis)
        return cls(name=name, inputs=inputs, outputs=outputs, num_experts=experts, transposed=transposed, sure=sure)

    def flipped(self) -> "_Matrix":
        return replace(self, inputs=self.outputs, outputs=self.inputs, transposed=not self.transposed)

    def facing(self, width: int) -> "_Matrix":
        """Read an unsure matrix so that the model's width comes in."""
        return self if self.sure or self.inputs == width or self.outputs != width else self.flipped()

    def refs(self, layer: int, role: Role, hidden: int, shapes: Shapes, hints: Hints) -> list[WeightRef]:
        """Name the matrix, once for each expert and each half of a fused gate."""
        path = module_path(self.name)
        numbered = _EXPERT_INDEX.search(path)
        experts = (
            [int(numbered.group(1))] if numbered else [None] if self.num_experts is None else [*range(self.num_experts)]
        )
        halves = [(role, "", ())] if self.outputs == hidden else _halves(self.name, hidden, hints)
        updates = _updates(path, shapes, hints)
        return [
            WeightRef(
                name=self.name,
                site=path + ("" if self.num_experts is None else f"[{expert}]") + suffix,
                layer=layer,
                role=part,
                shape=(hidden, self.inputs),
                expert=expert,
                fused_experts=self.num_experts is not None,
                transposed=self.transposed,
                rows=rows,
                updates=updates,
            )
            for expert in experts
            for part, suffix, rows in halves
        ]


def _halves(name: str, hidden: int, hints: Hints) -> list[tuple[Role, str, tuple[tuple[int, int, int], ...]]]:
    if name in hints.interleaved:
        return [(Role.GATE, ":gate", ((0, 2 * hidden, 2),)), (Role.UP, ":up", ((1, 2 * hidden, 2),))]
    return [(Role.GATE, ":gate", ((0, hidden, 1),)), (Role.UP, ":up", ((hidden, 2 * hidden, 1),))]


def _orientation(name: str, shapes: Shapes, hints: Hints) -> tuple[bool, bool]:
    """Whether a tensor is stored as (inputs, outputs), and whether that is certain: a bias has the outputs' length."""
    if name in hints.transposed:
        return hints.transposed[name], True
    stem = name.removesuffix(".weight")
    rows, columns = shapes[name][-2:]
    for bias in (f"{stem}.bias", f"{stem}_bias", f"{stem}.base_layer.bias"):
        if bias in shapes and rows != columns:
            return shapes[bias][-1] == columns, True
    return False, False


def _updates(path: str, shapes: Shapes, hints: Hints) -> tuple[LowRankUpdate, ...]:
    names = [n.removeprefix(f"{path}.lora_A.") for n in shapes if n.startswith(f"{path}.lora_A.")]
    adapters = [name.removesuffix(".weight") for name in names]
    return tuple(
        LowRankUpdate(
            a=f"{path}.lora_A.{adapter}.weight",
            b=f"{path}.lora_B.{adapter}.weight",
            scaling=hints.lora_scaling[f"{path}.{adapter}"],
        )
        for adapter in adapters
        if f"{path}.{adapter}" in hints.lora_scaling
    )


def _pairs(candidates: list[_Matrix], width: int, block: Block, shapes: Shapes, hints: Hints) -> list[WeightRef]:
    """Match every matrix d → m with the nearest m → d, where m may be half as wide (a fused gate)."""
    lowers, uppers = _sides(candidates, width)
    groups: dict[str, list[tuple[_Matrix, int]]] = defaultdict(list)
    for lower in lowers:
        fitting = [
            upper
            for upper in uppers
            if upper.name != lower.name
            and upper.num_experts == lower.num_experts
            and upper.inputs in (lower.outputs, lower.outputs / 2)
        ]
        if fitting:
            nearest = max(fitting, key=lambda upper: len(_common_prefix(upper.name, lower.name)))
            groups[nearest.name].append((lower, nearest.inputs))
    refs = []
    for members in groups.values():
        for (lower, hidden), role in zip(members, _roles([m.name for m, _ in members]), strict=True):
            refs += lower.refs(block.index, role, hidden, shapes, hints)
    order = {name: position for position, name in enumerate(block.names)}
    return sorted(refs, key=lambda ref: (order[ref.name], -1 if ref.expert is None else ref.expert))


def _sides(candidates: list[_Matrix], width: int) -> tuple[list[_Matrix], list[_Matrix]]:
    """Split into maps from the width and maps back to it; a name decides where shape and bias do not."""
    lowers: list[_Matrix] = []
    uppers: list[_Matrix] = []
    for matrix in candidates:
        if matrix.inputs == matrix.outputs == width:
            by_name = lowers if _LOWER_NAME.search(_leaf(module_path(matrix.name))) else uppers
            by_name.append(matrix)
        elif width in (matrix.inputs, matrix.outputs):
            read = matrix
            if not matrix.sure and _says_other_side(matrix, width):
                read = matrix.flipped()
            (lowers if read.inputs == width else uppers).append(read)
    return lowers, uppers


def _says_other_side(matrix: _Matrix, width: int) -> bool:
    leaf = _leaf(module_path(matrix.name))
    is_upper, is_lower = bool(_UPPER_NAME.search(leaf)), bool(_LOWER_NAME.search(leaf))
    return (is_upper and not is_lower) if matrix.inputs == width else (is_lower and not is_upper)


def _common_prefix(a: str, b: str) -> list[str]:
    same = []
    for left, right in zip(a.split("."), b.split("."), strict=False):
        if left != right:
            break
        same.append(left)
    return same


def _roles(names: list[str]) -> list[Role]:
    """One matrix into the neurons is the lower one; of two, the gate is the one called so, else the first by name."""
    if len(names) != 2:  # noqa: PLR2004 (a gate and what it gates)
        return [Role.LOWER] * len(names)
    leaves = [_leaf(module_path(name)) for name in names]
    gates = ["gate" in leaf or leaf.startswith("w1") for leaf in leaves]
    if sum(gates) != 1:
        gates = [leaf == min(leaves) for leaf in leaves]
    return [Role.GATE if gate else Role.UP for gate in gates]


def token_embedding(shapes: Shapes) -> WeightRef | None:
    """Find the token embedding: outside of the blocks, as wide as the model, named like one, with most rows."""
    blocks = find_blocks(shapes)
    inside = {name for block in blocks if block.path for name in block.names}
    fitting = [
        name
        for name, shape in shapes.items()
        if len(shape) == 2  # noqa: PLR2004 (a matrix has two axes)
        and name not in inside
        and _EMBEDDING.search(name)
        and not _NOT_EMBEDDING.search(name)
    ]
    if not fitting:
        return None
    name = max(fitting, key=lambda n: shapes[n][0])
    rows, columns = shapes[name]
    return WeightRef(name=name, site=module_path(name), layer=-1, role=Role.EMBEDDING, shape=(rows, columns))
