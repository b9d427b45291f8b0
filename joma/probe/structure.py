"""What a transformer is made of: its layers, their attention, and the matrices that are measured.

No table of architectures. Names and shapes of tensors show most of it, so that a checkpoint needs no model: a block is
the innermost numbered module that holds queries, keys and another matrix; in a block, outside of attention, a map from
the model's width d to m neurons and a map back belong together. Shapes distinguish them, a bias shows a transposed one
(GPT-2's Conv1D), names decide only where neither does. `find_layout` adds what only modules know.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, takewhile
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from joma.formatting import NO_LAYER

Shapes = Mapping[str, tuple[int, ...]]  # names of tensors, as in a state dict, with their shapes
Rows = tuple[tuple[int, int, int], ...]  # slices (start, stop, step) of a matrix's outputs, in order

MATRIX_AXES, STACKED_AXES = 2, 3  # axes of a matrix, and of matrices stacked along a first axis (experts)
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names that wrappers of a module (torch.compile, checkpointing, FSDP) put into the paths of what is inside."""

_AFFIX = r"(?:(?:to|w|lin|linear|fc|proj|in|c)_?)?"
_SUFFIX = r"(?:_?(?:proj|lin|linear|layer|weight|net))*"
_QUERY = re.compile(rf"^{_AFFIX}(?:q|query){_SUFFIX}$", re.IGNORECASE)
_KEY = re.compile(rf"^{_AFFIX}(?:k|key){_SUFFIX}$", re.IGNORECASE)
_KEY_VALUE = re.compile(rf"^{_AFFIX}(?:kv|key_?value){_SUFFIX}$", re.IGNORECASE)
_VALUE = re.compile(rf"^{_AFFIX}(?:v|value){_SUFFIX}$", re.IGNORECASE)
_FUSED = re.compile(r"qkv|query_?key_?value|c_attn|w_?pack|^in_proj_weight$", re.IGNORECASE)
_INTERLEAVED = re.compile(r"query_?key_?value", re.IGNORECASE)
_ATTENTION = re.compile(r"att(?:n|ention)", re.IGNORECASE)
_NORM = re.compile(r"(?:weight|scale|gamma|\.g)$")
_NO_WEIGHT = re.compile(r"\.lora_|\.ia3_|prompt|\.parametrizations\.|bias$|rel_?pos|relative", re.IGNORECASE)
_RECURRENT = re.compile(r"^(?:A_log|A_logs|dt_bias|dt_proj|time_decay|rg_lru)$")
_ROUTER = re.compile(r"^(?:gate|router|wg|classifier)$")
_EXPERT_INDEX = re.compile(r"experts?(?:\.\w+)?\.(\d+)(?:\.|$)")
_UPPER_NAME = re.compile(r"down|^upper|^w2|wo$|fc2|4h_to_h|c_proj|linear2|out", re.IGNORECASE)
_LOWER_NAME = re.compile(
    r"^lower|up(?!per)|gate|^w[13]|wi(?:_\d)?$|fc1|h_to_4h|c_fc|linear1|intermediate", re.IGNORECASE
)
_HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads")
_KEY_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_heads")


class Unseen(NamedTuple):
    """Something that is not measured, and why."""

    site: str
    reason: str


def by_reason(unseen: Iterable[Unseen]) -> dict[str, list[str]]:
    """Return for each reason the sites that it keeps from being measured."""
    found: dict[str, list[str]] = defaultdict(list)
    for site, reason in unseen:
        found[reason].append(site or "the model")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRef:
    """A matrix (outputs, inputs) somewhere in a state dict, and how to take it out."""

    name: str  # name of the tensor
    site: str
    """What to call the matrix: the module's path, an expert in brackets, the half of a fused one after a colon."""
    layer: int
    shape: tuple[int, int]  # (outputs, inputs) of the matrix taken out
    expert: int | None = None  # which expert it is of
    stacked: bool = False  # whether the experts are stacked along the tensor's first axis
    transposed: bool = False  # stored as (inputs, outputs)
    rows: Rows = ()  # which outputs of the tensor; all if empty
    updates: tuple[tuple[str, str, float], ...] = ()
    """LoRA adapters, as names of A and B and the scaling: scaling · B A is added to the weight."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that the matrix is made of."""
        return (self.name, *(name for a, b, _ in self.updates for name in (a, b)))

    def take(self, read: Callable[[str], Tensor]) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix, given a function from a tensor's name to the tensor."""
        weight = read(self.name)
        if self.stacked:
            weight = weight[self.expert]
        if self.transposed:
            weight = weight.mT
        for a, b, scaling in self.updates:
            weight = weight + scaling * (read(b) @ read(a)).to(weight.dtype)
        parts = [weight[start:stop:step] for start, stop, step in self.rows]
        return weight if not parts else parts[0] if len(parts) == 1 else torch.cat(parts)

    def flipped(self) -> "WeightRef":
        """Return the same tensor, read as a map the other way."""
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryKey:
    """The query and key matrices of one attention module, heads one after another."""

    site: str
    query: WeightRef
    key: WeightRef
    num_heads: int | None  # None if unknown
    num_key_heads: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLayout:
    """Layers of a model in order (an encoder's before its decoder's), what they hold, and what could not be seen."""

    layers: tuple[str, ...]  # paths of the blocks; the position is the layer
    sites: tuple[tuple[int, str], ...]  # layer and path of every attention module
    lower: tuple[WeightRef, ...]
    """Matrices into hidden neurons, of all layers and those outside of them that a pattern picked."""
    query_keys: tuple[QueryKey, ...]
    unseen: tuple[Unseen, ...]
    quantised: frozenset[str] = frozenset()
    """Names of weights that are stored as codes of few bits, which are not measured."""
    unmeasured: tuple[WeightRef, ...] = ()  # matrices into hidden neurons that are quantised: the neurons can be read

    @property
    def attention(self) -> tuple[str, ...]:
        """Paths of all attention modules."""
        return tuple(path for _, path in self.sites)

    def stacks(self) -> list[str]:
        """Say which blocks the layers are, for each stack of blocks, such as an encoder and a decoder.

        >>> sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}
        >>> find_layout(nn.Transformer(num_encoder_layers=2, num_decoder_layers=1, **sizes)).stacks()
        ['0 to 1: encoder.layers.0 to encoder.layers.1', '2: decoder.layers.0']
        """
        stacks = [list(own) for _, own in groupby(enumerate(self.layers), lambda each: _family(each[1]))]
        ends = [(own[:1] if len(own) == 1 else [own[0], own[-1]]) for own in stacks]
        return [": ".join(" to ".join(map(str, each)) for each in zip(*own, strict=True)) for own in ends]

    def layer_of(self, site: str) -> int:
        """Return the layer that a module belongs to, -1 if none."""
        return next((i for i, path in enumerate(self.layers) if is_inside(site, path)), NO_LAYER)


def find_layout(
    model: nn.Module, *, mlp_pattern: str | None = None, attention_pattern: str | None = None
) -> ModelLayout:
    """Find layers, attention modules and matrices of a model by its structure.

    The patterns are regular expressions: `mlp_pattern` is searched in the names of parameters and picks the lower
    matrices, `attention_pattern` in the names of modules and picks the attention modules.

    >>> layout = find_layout(nn.TransformerEncoderLayer(8, 2, dim_feedforward=16))
    >>> layout.attention, [(ref.site, ref.shape) for ref in layout.lower]
    (('self_attn',), [('linear1', (16, 8))])
    """
    demand_pattern("attention_pattern", attention_pattern)
    modules = [path for path, _ in model.named_modules()]
    return layout_of(
        tensors_of(model), mlp_pattern=mlp_pattern, modules=modules, pattern=attention_pattern, codes=_quantised(model)
    )


def layout_of(
    tensors: "Tensors",
    *,
    mlp_pattern: str | None = None,
    with_attention: bool = True,
    modules: Sequence[str] = (),
    pattern: str | None = None,
    codes: Mapping[str, str] | None = None,
) -> ModelLayout:
    """Find layers and matrices by the names and shapes of tensors, and say what cannot be seen.

    Args:
        tensors: What is known of them.
        mlp_pattern: Picks the lower matrices by the names of tensors. Of those outside of the blocks the first number
            in the name is the layer, -1 without one.
        with_attention: Whether to look for queries and keys.
        modules: Paths of the modules, among which `pattern` picks those of attention.
        pattern: As above; without it they are found by name.
        codes: Names and types of quantised tensors. That is also the reason where nothing is found in a layer that has
            some: 4-bit codes have other shapes.

    >>> shapes = {"h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,), "h.0.mlp.c_proj.weight": (32, 8)}
    >>> [(ref.site, ref.shape, ref.transposed) for ref in layout_of(Tensors(shapes=shapes)).lower]
    [('h.0.mlp.c_fc', (32, 8), True)]
    """
    demand_pattern("mlp_pattern", mlp_pattern)
    codes, blocks = codes or {}, find_blocks(tensors.shapes)
    lower, without = _lower_matrices(tensors, blocks, mlp_pattern)
    owners = [(block.index, *each) for block in blocks if with_attention for each in block.owners.items()]
    pairs = [pair for each in owners if (pair := _query_key(tensors, *each)) is not None]
    sites = [(block.index, path) for block in blocks for path in _attention_modules(block, modules, pattern)]
    known = {pair.site for pair in pairs} | {each.site for each in tensors.unseen}
    reason = "No query and key matrices: no matrix of this module is named like them."
    nothing = [Unseen(path, reason) for _, path in sites if path not in known]

    def of_codes(name: str) -> str:
        return f"Its weights are quantised ({codes[name]}): codes have no rank. Load the model in 16 or 32 bits."

    refs = [*lower, *(ref for pair in pairs for ref in (pair.query, pair.key))]
    coded = {ref: [name for name in ref.tensors if name in codes] for ref in refs}
    unseen = [Unseen(ref.site, of_codes(names[0])) for ref, names in coded.items() if names]
    for each in (*without, *tensors.unseen, *nothing):
        inside = next((name for name in codes if is_inside(name, each.site)), None)
        unseen.append(each if inside is None else Unseen(each.site, of_codes(inside)))
    return ModelLayout(
        layers=tuple(block.path for block in blocks),
        sites=tuple(sites),
        lower=tuple(ref for ref in lower if not coded[ref]),
        query_keys=tuple(pair for pair in pairs if not coded[pair.query] and not coded[pair.key]),
        unseen=tuple(dict.fromkeys(unseen)),
        quantised=frozenset(codes),
        unmeasured=tuple(ref for ref in lower if coded[ref]),
    )


def _quantised(model: nn.Module) -> dict[str, str]:
    """Find weights that are stored as codes of few bits: by their type, or as a tensor that packs others (torchao)."""
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        packs = is_traceable_wrapper_subclass(tensor) and not hasattr(tensor, "full_tensor")
        in_few_bits = not tensor.is_floating_point() or tensor.dtype.itemsize == 1
        if "weight" in name and (packs or (in_few_bits and not tensor.is_complex())):
            found[name] = type(tensor).__name__ if packs else str(tensor.dtype).removeprefix("torch.")
    return found


def demand_pattern(name: str, pattern: str | None) -> None:
    """Refuse a pattern that is no regular expression."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"`{name}` must be a regular expression, got {pattern!r}: {error}. Correct it.") from None


# Names


def module_path(name: str) -> str:
    """Return the module or bare parameter that a tensor's name stands for.

    >>> module_path("h.0.mlp.c_fc.weight"), module_path("layers.0.self_attn.in_proj_weight")
    ('h.0.mlp.c_fc', 'layers.0.self_attn.in_proj_weight')
    """
    return name.removesuffix(".weight").removesuffix(".base_layer")


def plain_site(site: str) -> str:
    """Leave the names of wrappers out of a module's path.

    >>> plain_site("blocks.0._orig_mod.attention")
    'blocks.0.attention'
    """
    return ".".join(part for part in site.split(".") if part not in _WRAPPERS)


def parent(path: str) -> str:
    """Return the module that holds a module."""
    return path.rpartition(".")[0]


def is_inside(path: str, holder: str) -> bool:
    """Whether a module is another one or lies in it."""
    return not holder or f"{path}.".startswith(f"{holder}.")


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _above(path: str) -> list[str]:
    """Return the modules that a module lies in, from the model on."""
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts))]


def _numbered(name: str) -> Iterator[str]:
    return (path for path in _above(name) if _leaf(path).isdigit())


def _family(path: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in path.split("."))


def _num_shared(a: str, b: str) -> int:
    """Count the modules that two names share from the left."""
    pairs = zip(a.split("."), b.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix or a stack of them; adapters, biases and parts of parametrised weights are not."""
    return len(shape) in (MATRIX_AXES, STACKED_AXES) and not _NO_WEIGHT.search(name)


# Blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One layer of a model."""

    path: str
    index: int
    shapes: Shapes  # its tensors, in the order given
    owners: Mapping[str, Mapping[str, str]]
    """Modules that own queries and keys: names of the tensors "query" and "key" or "key_value", or "fused"."""
    mixers: frozenset[str]  # modules that own a depthwise convolution or a parameter of a recurrence

    @property
    def matrices(self) -> list[str]:
        """Names of its matrices."""
        return [name for name, shape in self.shapes.items() if _is_matrix(name, shape)]

    def mixes_tokens(self, name: str) -> bool:
        """Whether a matrix of the block belongs to attention, or to another mixer: Mamba, a convolution, a recurrence.

        By its own name next to queries and keys, inside a module that owns them or a mixer, or inside one called
        attention. Where the block itself owns the queries, its other matrices are judged by their names.
        """
        path = module_path(name)
        in_the_block = parent(path) == self.path and self.path in self.mixers and self.path not in self.owners
        return in_the_block or _belongs(path, self.path, self.mixers.union(self.owners))

    def width(self) -> int:
        """Return the model's width: of the sizes of norms (of all without any) the one most matrices have.

        The smallest of equals is taken: an MLP widens, as a rule.
        """
        norms = {
            shape[0]
            for name, shape in self.shapes.items()
            if len(shape) == 1 and _NORM.search(name) and not self.mixes_tokens(name)
        }
        sizes = Counter(size for name in self.matrices for size in set(self.shapes[name][-MATRIX_AXES:]))
        return min(norms or sizes, key=lambda size: (-sizes[size], size), default=0)


def find_blocks(shapes: Shapes) -> list[Block]:
    """Find the repeated blocks of a model, in order: encoders first, then by name and number.

    A block is the innermost numbered module that holds attention and another matrix, or stands in a row with such.
    Without attention it is the outermost numbered module with two matrices; without numbers the model is one block.
    """
    matrices = [name for name, shape in shapes.items() if _is_matrix(name, shape)]
    if not matrices:
        return []
    owners = _owners(matrices, shapes)
    holders = {path for owner in owners for path in _numbered(f"{owner}.")}
    pairs = [(path, name) for name in matrices for path in _numbered(name) if path in holders]
    complete = {path for path, name in pairs if not _belongs(module_path(name), path, set(owners))}
    layers = complete - {outer for path in complete for outer in _numbered(path)}
    outermost = Counter(next(_numbered(name), "") for name in matrices)
    paths = {path for path, count in outermost.items() if path and count > 1} or {""}
    if layers:
        families = {_family(path) for path in layers}
        paths = layers | {path for path in outermost if _family(path) in families}
    mixers = {
        parent(module_path(name))
        for name, shape in shapes.items()
        if _RECURRENT.match(_leaf(module_path(name))) or (len(shape) == STACKED_AXES and shape[1] == 1)
    }

    def order(path: str) -> tuple[bool, str, list[int]]:
        family = _family(path)
        return "encoder" not in family, family, [int(part) for part in path.split(".") if part.isdigit()]

    return [
        Block(
            path=path,
            index=index,
            shapes={name: shape for name, shape in shapes.items() if name.startswith(f"{path}." if path else "")},
            owners={owner: names for owner, names in owners.items() if is_inside(owner, path)},
            mixers=frozenset(mixers),
        )
        for index, path in enumerate(sorted(paths, key=order))
    ]


def _owners(matrices: Iterable[str], shapes: Shapes) -> dict[str, dict[str, str]]:
    """Find the modules that own queries and keys, by the names of their matrices."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in matrices:
        if len(shapes[name]) == MATRIX_AXES:
            path = module_path(name)
            for role, pattern in (("fused", _FUSED), ("query", _QUERY), ("key", _KEY), ("key_value", _KEY_VALUE)):
                if pattern.search(_leaf(path)):
                    found[parent(path)].setdefault(role, name)
                    break
    return {path: names for path, names in found.items() if "fused" in names or ("query" in names and len(names) > 1)}


def _belongs(path: str, block: str, owners: Collection[str]) -> bool:
    holder = parent(path)
    if any(pattern.search(_leaf(path)) for pattern in (_FUSED, _QUERY, _KEY, _KEY_VALUE, _VALUE)):
        return holder in owners
    while holder and holder != block and not (parent(holder) == block and _leaf(holder) in _WRAPPERS):
        if holder in owners or _ATTENTION.search(_leaf(holder)):
            return True
        holder = parent(holder)
    return False


def _attention_modules(block: Block, modules: Iterable[str], pattern: str | None) -> list[str]:
    """Return the outermost modules of a block that match the pattern, or those that own queries or are called so."""
    inside = [path for path in modules if is_inside(path, block.path)]
    if pattern is not None:
        matching = {path for path in inside if re.search(pattern, path)}
        return [path for path in inside if path in matching and not matching.intersection(_above(path))]
    holders = Counter(parent(module_path(name)) for name in block.matrices)
    called_so = {path for path in inside if _ATTENTION.search(_leaf(path)) and holders[path] > 1}
    called_so -= {path for owner in block.owners for path in _above(owner)}
    return [path for path in inside if path in block.owners or path in called_so]


# Matrices


@dataclass(kw_only=True)
class Tensors:
    """Names and shapes of a model's tensors, what only modules or a configuration show of them, and what is unread."""

    shapes: Shapes
    transposed: Mapping[str, bool] = field(default_factory=dict)
    """Tensors known to be stored as (inputs, outputs), or not; of others names and shapes decide."""
    interleaved: Collection[str] = ()  # fused gates whose rows alternate with what they gate, instead of coming first
    lora_scaling: Mapping[str, float] = field(default_factory=dict)
    """Scaling of an adapter by module path and adapter name ("layers.0.fc1.default"); 0 if it is switched off."""
    heads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Query heads and key heads of an attention module by its path; "" speaks for all that are not listed."""
    unseen: dict[Unseen, None] = field(default_factory=dict, init=False)

    @cached_property
    def adapters(self) -> dict[str, list[str]]:
        """Names of the low-rank adapters at each module path."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.shapes:
            path, is_adapter, adapter = name.partition(".lora_A.")
            if is_adapter:
                found[path].append(adapter.removesuffix(".weight"))
        return found

    def num_stacked(self, name: str) -> int | None:
        """Return how many matrices are stacked in a tensor, None for a single one."""
        return self.shapes[name][0] if len(self.shapes[name]) == STACKED_AXES else None

    def is_transposed(self, name: str) -> bool | None:
        """Whether a matrix is transposed, as is known or a bias as long as its outputs shows; None without either."""
        *_, first, last = self.shapes[name]
        stem = name.removesuffix(".weight")
        biases = [self.shapes[each][-1] == last for each in (f"{stem}.bias", f"{stem}_bias") if each in self.shapes]
        return self.transposed.get(name, biases[0] if biases and first != last else None)

    def matrix(self, name: str, layer: int) -> WeightRef:
        """Read a tensor as a matrix."""
        shape, transposed = self.shapes[name][-MATRIX_AXES:], bool(self.is_transposed(name))
        return WeightRef(
            name=name,
            site=module_path(name),
            layer=layer,
            shape=(shape[1], shape[0]) if transposed else (shape[0], shape[1]),
            stacked=self.num_stacked(name) is not None,
            transposed=transposed,
        )

    def part(self, matrix: WeightRef, suffix: str = "", rows: Rows = (), expert: int | None = None) -> WeightRef:
        """Name a matrix, or some of its rows, with the adapters that are part of it: those of known scaling."""
        updates = []
        for adapter in self.adapters.get(matrix.site, ()):
            scaling = self.lora_scaling.get(f"{matrix.site}.{adapter}")
            if scaling is None:
                reason = f"Adapter {adapter!r} is left out: its scaling is not known."
                self.unseen[Unseen(matrix.site, reason)] = None
            elif scaling:
                a, b = (f"{matrix.site}.lora_{side}.{adapter}.weight" for side in "AB")
                updates.append((a, b, scaling))
        site = matrix.site + (f"[{expert}]" if matrix.stacked else "") + suffix
        num_outputs = sum(len(range(*part)) for part in rows) if rows else matrix.shape[0]
        shape = (num_outputs, matrix.shape[1])
        return replace(matrix, site=site, shape=shape, expert=expert, rows=rows, updates=tuple(updates))

    def parts(self, matrix: WeightRef, hidden: int) -> list[WeightRef]:
        """Name a matrix into hidden neurons, once for each expert and each half of a fused gate.

        The rows of a gate come first, or alternate with what it gates; where that is unknown both stay one matrix.
        """
        numbered, num_stacked = _EXPERT_INDEX.search(matrix.site), self.num_stacked(matrix.name)
        experts = [int(numbered[1]) if numbered else None] if num_stacked is None else range(num_stacked)
        halves: dict[str, Rows] = {":gate": ((0, hidden, 1),), ":up": ((hidden, 2 * hidden, 1),)}
        if matrix.shape[0] == hidden:
            halves = {"": ()}
        elif matrix.name in self.interleaved:
            halves = {":gate": ((0, 2 * hidden, 2),), ":up": ((1, 2 * hidden, 2),)}
        elif matrix.stacked and matrix.transposed and matrix.name not in self.transposed:
            halves = {"": ()}
            reason = "A gate and what it gates lie in one tensor in unknown order: measured as one matrix."
            self.unseen[Unseen(matrix.site, reason)] = None
        return [self.part(matrix, *half, expert) for expert in experts for half in halves.items()]

    def is_router(self, name: str) -> bool:
        """Whether a matrix chooses among experts next to it."""
        path = module_path(name)
        holder = path if _ROUTER.match(_leaf(path)) else parent(path)
        experts = parent(holder) + ".experts"
        return bool(_ROUTER.match(_leaf(holder))) and any(other.startswith(experts) for other in self.shapes)


def _lower_matrices(tensors: Tensors, blocks: list[Block], pattern: str | None) -> tuple[list[WeightRef], list[Unseen]]:
    """Find the matrices into the hidden neurons of every layer's MLP, and say where there is none.

    Two maps into the same neurons are a gate and what it gates; one twice as wide holds both.
    """
    if not blocks:
        return [], [Unseen("", "No matrix was found.")]
    if pattern is None:
        found = [ref for block in blocks for ref in _lower_of_block(block, tensors)]
    else:
        found = _picked(pattern, blocks, tensors)
        if not found:
            return [], [Unseen("", f"No matrix matches `mlp_pattern={pattern}`. Change the pattern.")]
    found.sort(key=lambda ref: ref.layer)
    seen = {ref.layer for ref in found}
    return found, [Unseen(block.path, _why_none(block, pattern)) for block in blocks if block.index not in seen]


def _lower_of_block(block: Block, tensors: Tensors) -> list[WeightRef]:
    """Find the maps d → m (of a fused gate d → 2m) that have a map m → d back, in the order of the tensors."""
    names = [name for name in block.matrices if not block.mixes_tokens(name) and not tensors.is_router(name)]
    lowers, uppers = _sides(names, block, tensors)
    refs = []
    for lower in lowers:
        alike = [upper for upper in uppers if tensors.num_stacked(upper.name) == tensors.num_stacked(lower.name)]
        fitting = [upper for upper in alike if lower.shape[0] in (upper.shape[1], 2 * upper.shape[1])]
        near = [upper for upper in fitting if parent(upper.site) == parent(lower.site)]
        if fitting:
            nearest = max(near or fitting, key=lambda upper: _num_shared(upper.name, lower.name))
            refs += tensors.parts(lower, nearest.shape[1])
    order = {name: position for position, name in enumerate(names)}
    return sorted(refs, key=lambda ref: (order[ref.name], -1 if ref.expert is None else ref.expert))


def _picked(pattern: str, blocks: list[Block], tensors: Tensors) -> list[WeightRef]:
    """Find what a pattern picks, first inside of the blocks and then outside of them."""
    layer_of = {name: block.index for block in blocks for name in block.shapes}
    widths = [block.width() for block in blocks]
    refs: list[WeightRef] = []
    for name in dict.fromkeys((*layer_of, *tensors.shapes)):
        if re.search(pattern, name) and _is_matrix(name, tensors.shapes[name]):
            layer = layer_of[name] if name in layer_of else _layer_outside(name, blocks)
            width = widths[layer if 0 <= layer < len(blocks) else 0]
            matrix = tensors.matrix(name, layer)
            if tensors.is_transposed(name) is None and matrix.shape[0] == width != matrix.shape[1]:
                matrix = matrix.flipped()
            refs += tensors.parts(matrix, matrix.shape[0])
    return refs


def _why_none(block: Block, pattern: str | None) -> str:
    if pattern is not None:
        return f"No matrix of this layer matches `mlp_pattern={pattern}`."
    if any(".parametrizations." in name for name in block.shapes):
        return "Its weights are parametrised: they are computed when used, and reading them may change them."
    return (
        "No lower matrix of an MLP: no pair of matrices d → m → d outside of attention. "
        "Name it by `mlp_pattern=`, a regular expression for the names of tensors."
    )


def _sides(names: Iterable[str], block: Block, tensors: Tensors) -> tuple[list[WeightRef], list[WeightRef]]:
    """Split into maps from the width and maps back to it; a name decides where shape and bias do not."""
    lowers: list[WeightRef] = []
    uppers: list[WeightRef] = []
    width = block.width()
    for name in names:
        matrix = tensors.matrix(name, block.index)
        says_lower, says_upper = (bool(each.search(_leaf(matrix.site))) for each in (_LOWER_NAME, _UPPER_NAME))
        if matrix.shape == (width, width):
            (lowers if says_lower else uppers).append(matrix)
            continue
        is_odd = says_lower != says_upper and (matrix.shape[1] == width) != says_lower
        if is_odd and tensors.is_transposed(name) is None:
            matrix = matrix.flipped()
        if matrix.shape[1] == width:
            lowers.append(matrix)
        elif matrix.shape[0] == width:
            uppers.append(matrix)
    return lowers, uppers


def _layer_outside(name: str, blocks: list[Block]) -> int:
    """Return the layer that a matrix outside of the blocks belongs to: of the block that has its number.

    Of several (an encoder and a decoder count by themselves) it is the one whose path it shares the most of. A number
    that no block has is the layer itself, unless that is the place of a block with another number.
    """

    def first_number(path: str) -> int:
        return next((int(part) for part in path.split(".") if part.isdigit()), NO_LAYER)

    number = first_number(name)
    of_number = [block for block in blocks if first_number(block.path) == number != NO_LAYER]
    if of_number:
        return max(of_number, key=lambda block: _num_shared(name, block.path)).index
    is_taken = number in {block.index for block in blocks if first_number(block.path) != NO_LAYER}
    return NO_LAYER if is_taken else number


# Queries and keys


def _query_key(tensors: Tensors, layer: int, site: str, names: Mapping[str, str]) -> QueryKey | None:
    """Find the query and key matrices of an attention module; None where they cannot be distinguished.

    The name of a fused matrix shows the order: `query_key_value` holds the queries, key and value of one group of heads
    after another (GPT-NeoX, Bloom, Falcon), every other name all queries, then all keys, then all values. A matrix of
    keys and values alone (`to_kv`, `Wkv`) holds all keys first.
    """
    heads = tensors.heads.get(site, tensors.heads.get(""))
    if "fused" not in names:
        query = tensors.part(tensors.matrix(names["query"], layer))
        if "key" in names:
            key = tensors.part(tensors.matrix(names["key"], layer))
        else:
            both = tensors.matrix(names["key_value"], layer)
            key = tensors.part(both, ":key", ((0, both.shape[0] // 2, 1),))
        fits = heads is not None and query.shape[0] % heads[0] == 0 and key.shape[0] * heads[0] % query.shape[0] == 0
        heads = (heads[0], key.shape[0] * heads[0] // query.shape[0]) if heads is not None and fits else None
    else:
        matrix = tensors.matrix(names["fused"], layer)
        num_rows, num_inputs = matrix.shape
        interleaved = bool(_INTERLEAVED.search(_leaf(matrix.site)))
        if heads is None and (interleaved or num_rows != 3 * num_inputs):
            reason = "Queries and keys are fused, and how many heads there are is not known."
            tensors.unseen[Unseen(site, reason)] = None
            return None
        num_heads, num_key_heads = heads or (1, 1)
        dim, rest = divmod(num_rows, num_heads + 2 * num_key_heads)
        if rest:
            reason = f"{num_rows} rows do not divide into {num_heads} query and twice {num_key_heads} key heads."
            tensors.unseen[Unseen(site, reason)] = None
            return None
        # Group by group its queries, its key, its value; a matrix that is not interleaved is one group.
        num_groups, keys_of_group = (num_key_heads, 1) if interleaved else (1, num_key_heads)
        queries_of_group = num_heads // num_groups
        starts = [group * (queries_of_group + 2 * keys_of_group) * dim for group in range(num_groups)]
        middle, end = queries_of_group * dim, (queries_of_group + keys_of_group) * dim
        query_rows, key_rows = (tuple((at + a, at + b, 1) for at in starts) for a, b in ((0, middle), (middle, end)))
        query = tensors.part(matrix, ":query", query_rows)
        key = tensors.part(matrix, ":key", key_rows)
    num_heads_known, num_key_heads_known = heads or (None, None)
    return QueryKey(site=site, query=query, key=key, num_heads=num_heads_known, num_key_heads=num_key_heads_known)


# What only modules know


def tensors_of(model: nn.Module) -> Tensors:
    """Return a model's tensors with what only modules show: orientation, order of gates, adapters, heads."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    transposed: dict[str, bool] = {}
    interleaved: set[str] = set()
    scaling: dict[str, float] = {}
    for path, module in model.named_modules():
        known = _is_transposed(module)
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            if parameter.ndim > 1 and known is not None:
                transposed[name] = known
            if getattr(module, "is_concatenated", True) is False:
                interleaved.add(name)
        scaling |= {f"{path}.{adapter}": value for adapter, value in _adapter_scaling(module).items()}
    return Tensors(
        shapes=shapes, transposed=transposed, interleaved=interleaved, lora_scaling=scaling, heads=_heads(model)
    )


def head_count(place: object) -> int | None:
    """Read the number of heads off the attributes of a module or its configuration."""
    counts = (getattr(place, name, None) for name in _HEAD_COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


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
