"""The matrices into an MLP's hidden neurons, from the names and shapes of a model's tensors alone.

No table of architectures: in a block, beside attention, a map from the model's width d to m neurons and a map back
belong together. Shapes tell them apart, a bias tells a transposed one (GPT-2's Conv1D), names only where neither does.
Two maps into the same neurons are a gate and what it gates; one twice as wide holds both.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from joma.probe.blocks import STACKED_AXES, Block, Shapes, find_blocks, is_matrix, leaf, module_path, parent
from joma.probe.weights import Hints, Inventory, Role, Rows, Unseen, WeightRef

_ROUTER = re.compile(r"^(?:gate|router|wg|classifier)$")
_EXPERT_INDEX = re.compile(r"experts?(?:\.\w+)?\.(\d+)(?:\.|$)")
_UPPER_NAME = re.compile(r"down|^upper|^w2|wo$|fc2|4h_to_h|c_proj|linear2|out", re.IGNORECASE)
_LOWER_NAME = re.compile(
    r"^lower|up(?!per)|gate|^w[13]|wi(?:_\d)?$|fc1|h_to_4h|c_fc|linear1|intermediate", re.IGNORECASE
)
_PARAMETRIZED = ".parametrizations."
OUTSIDE = -1
"""The layer of a matrix that belongs to none."""


def lower_matrices(
    shapes: Shapes, *, mlp_pattern: str | None = None, hints: Hints | None = None
) -> tuple[list[WeightRef], list[Unseen]]:
    """Find the matrices into the hidden neurons of every layer's MLP, and say where there is none.

    `mlp_pattern` is a regular expression that picks them instead. It is searched in the names of all tensors; of those
    outside of the blocks, the first number in the name is the layer, -1 without one.

    >>> shapes = {"h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,), "h.0.mlp.c_proj.weight": (32, 8)}
    >>> [(ref.site, ref.shape, ref.transposed) for ref in lower_matrices(shapes)[0]]
    [('h.0.mlp.c_fc', (32, 8), True)]
    """
    search = _Search(inventory=Inventory.of(shapes, hints), pattern=mlp_pattern)
    blocks = find_blocks(shapes)
    inside = [ref for block in blocks for ref in search.of_block(block)]
    found = sorted([*inside, *search.outside(blocks)], key=lambda ref: ref.layer)
    return found, search.unseen(blocks, found)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matrix:
    """A matrix or a stack of them, read as a map from inputs to outputs."""

    name: str
    inputs: int
    outputs: int
    num_stacked: int | None
    transposed: bool
    certain: bool
    """Whether a bias or a hint told the orientation."""

    @property
    def leaf(self) -> str:
        return leaf(module_path(self.name))

    def flipped(self) -> "_Matrix":
        return replace(self, inputs=self.outputs, outputs=self.inputs, transposed=not self.transposed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """The tensors that are searched, and what is known about them."""

    inventory: Inventory
    pattern: str | None

    @property
    def shapes(self) -> Shapes:
        return self.inventory.shapes

    def of_block(self, block: Block) -> list[WeightRef]:
        width = block.width(self.shapes)
        matrices = [self._read(name) for name in block.names if is_matrix(name, self.shapes[name])]
        if self.pattern is not None:
            return [ref for matrix in matrices for ref in self._chosen(matrix, block.index, width)]
        beside = [m for m in matrices if not block.holds_attention(m.name) and not self._is_router(m.name)]
        refs = []
        for members in _pairs(*_sides(beside, width)):
            for (matrix, hidden), role in zip(members, _roles([m.leaf for m, _ in members]), strict=True):
                refs += self._refs(matrix, block.index, role, hidden)
        order = {name: position for position, name in enumerate(block.names)}
        return sorted(refs, key=lambda ref: (order[ref.name], -1 if ref.expert is None else ref.expert))

    def outside(self, blocks: list[Block]) -> list[WeightRef]:
        """Find what the pattern, if there is one, picks outside of the blocks."""
        inside = {name for block in blocks for name in block.names}
        widths = {block.index: block.width(self.shapes) for block in blocks}
        refs: list[WeightRef] = []
        for name, shape in self.shapes.items():
            if self.pattern is not None and name not in inside and is_matrix(name, shape):
                layer = _layer_beside(name, blocks)
                refs += self._chosen(self._read(name), layer, widths.get(layer, widths[0]))
        return refs

    def _chosen(self, matrix: _Matrix, layer: int, width: int) -> list[WeightRef]:
        assert self.pattern is not None
        if not re.search(self.pattern, matrix.name):
            return []
        facing = _facing(matrix, width)
        return self._refs(facing, layer, Role.LOWER, facing.outputs)

    def unseen(self, blocks: list[Block], found: list[WeightRef]) -> list[Unseen]:
        """Say why a layer shows no lower matrix, or what of those found is left out."""
        if not blocks:
            return [Unseen(site="", reason="No matrix was found.")]
        if self.pattern is not None and not found:
            return [Unseen(site="", reason=f"No matrix matches `mlp_pattern={self.pattern}`. Change the pattern.")]
        seen = {ref.layer for ref in found}
        names = dict.fromkeys(ref.name for ref in found)
        both = dict.fromkeys(ref.name for ref in found if ref.role is Role.GATE_AND_UP)
        reason = "A gate and what it gates lie in one tensor in unknown order: measured as one matrix."
        return [
            *(Unseen(site=block.path, reason=self._why_none(block)) for block in blocks if block.index not in seen),
            *(each for name in names for each in self.inventory.left_out(name)),
            *(Unseen(site=module_path(name), reason=reason) for name in both),
        ]

    def _why_none(self, block: Block) -> str:
        if self.pattern is not None:
            return f"No matrix of this layer matches `mlp_pattern={self.pattern}`."
        if any(_PARAMETRIZED in name for name in block.names):
            return "Its weights are parametrised: they are computed when used, and reading them may change them."
        return (
            "No lower matrix of an MLP: no pair of matrices d → m → d beside attention. "
            "Name it by `mlp_pattern=`, a regular expression for the names of tensors."
        )

    def _read(self, name: str) -> _Matrix:
        shape = self.shapes[name]
        transposed, certain = self.inventory.orientation(name)
        outputs, inputs = shape[-2:] if not transposed else (shape[-1], shape[-2])
        return _Matrix(
            name=name,
            inputs=inputs,
            outputs=outputs,
            num_stacked=shape[0] if len(shape) == STACKED_AXES else None,
            transposed=transposed,
            certain=certain,
        )

    def _is_router(self, name: str) -> bool:
        path = module_path(name)
        holder = path if _ROUTER.match(leaf(path)) else parent(path)
        beside = parent(holder) + ".experts"
        return bool(_ROUTER.match(leaf(holder))) and any(other.startswith(beside) for other in self.shapes)

    def _refs(self, matrix: _Matrix, layer: int, role: Role, hidden: int) -> list[WeightRef]:
        """Name a matrix, once for each expert and each half of a fused gate."""
        path = module_path(matrix.name)
        numbered = _EXPERT_INDEX.search(path)
        experts: list[int | None] = [int(numbered.group(1)) if numbered else None]
        if matrix.num_stacked is not None:
            experts = [*range(matrix.num_stacked)]
        halves = [(role, "", ())] if matrix.outputs == hidden else self._halves(matrix, hidden)
        return [
            WeightRef(
                name=matrix.name,
                site=path + ("" if matrix.num_stacked is None else f"[{expert}]") + suffix,
                layer=layer,
                role=part,
                shape=(hidden if rows else matrix.outputs, matrix.inputs),
                expert=expert,
                stacked=matrix.num_stacked is not None,
                transposed=matrix.transposed,
                rows=rows,
                updates=self.inventory.updates(path),
            )
            for expert in experts
            for part, suffix, rows in halves
        ]

    def _halves(self, matrix: _Matrix, hidden: int) -> list[tuple[Role, str, Rows]]:
        """Split a fused gate: its rows come first, or alternate; where that is unknown it stays whole."""
        if matrix.name in self.inventory.hints.interleaved:
            return [(Role.GATE, ":gate", ((0, 2 * hidden, 2),)), (Role.UP, ":up", ((1, 2 * hidden, 2),))]
        if matrix.num_stacked is not None and matrix.transposed and matrix.name not in self.inventory.hints.transposed:
            return [(Role.GATE_AND_UP, "", ())]
        return [(Role.GATE, ":gate", ((0, hidden, 1),)), (Role.UP, ":up", ((hidden, 2 * hidden, 1),))]


def _facing(matrix: _Matrix, width: int) -> _Matrix:
    """Read a matrix of uncertain orientation so that the model's width comes in."""
    turn = not matrix.certain and matrix.outputs == width != matrix.inputs
    return matrix.flipped() if turn else matrix


def _sides(matrices: list[_Matrix], width: int) -> tuple[list[_Matrix], list[_Matrix]]:
    """Split into maps from the width and maps back to it; a name decides where shape and bias do not."""
    lowers: list[_Matrix] = []
    uppers: list[_Matrix] = []
    for matrix in matrices:
        says_lower, says_upper = bool(_LOWER_NAME.search(matrix.leaf)), bool(_UPPER_NAME.search(matrix.leaf))
        if matrix.inputs == matrix.outputs == width:
            (lowers if says_lower else uppers).append(matrix)
            continue
        if says_lower != says_upper and not matrix.certain and (matrix.inputs == width) != says_lower:
            matrix = matrix.flipped()  # noqa: PLW2901 (the same matrix, read the other way)
        if matrix.inputs == width:
            lowers.append(matrix)
        elif matrix.outputs == width:
            uppers.append(matrix)
    return lowers, uppers


def _pairs(lowers: list[_Matrix], uppers: list[_Matrix]) -> list[list[tuple[_Matrix, int]]]:
    """Give every map d → m the nearest map m → d; return those with a common way back, and their neurons.

    A map twice as wide as the way back holds a gate and what it gates.
    """
    beside: dict[str, list[_Matrix]] = defaultdict(list)
    for upper in uppers:
        beside[parent(module_path(upper.name))].append(upper)
    groups: dict[str, list[tuple[_Matrix, int]]] = defaultdict(list)
    for lower in lowers:
        fitting = _fitting(lower, beside[parent(module_path(lower.name))]) or _fitting(lower, uppers)
        if fitting:
            nearest = max(fitting, key=lambda upper: _num_shared(upper.name, lower.name))
            groups[nearest.name].append((lower, nearest.inputs))
    return list(groups.values())


def _fitting(lower: _Matrix, uppers: list[_Matrix]) -> list[_Matrix]:
    return [
        upper
        for upper in uppers
        if upper.num_stacked == lower.num_stacked and lower.outputs in (upper.inputs, 2 * upper.inputs)
    ]


def _num_shared(a: str, b: str) -> int:
    """Count the modules that two names share from the left."""
    pairs = list(zip(a.split("."), b.split("."), strict=False))
    return next((i for i, (left, right) in enumerate(pairs) if left != right), len(pairs))


def _roles(leaves: list[str]) -> list[Role]:
    """One matrix into the neurons is the lower one; of two, the gate is the one called so, else the first by name."""
    if len(leaves) != 2:  # noqa: PLR2004 (a gate and what it gates)
        return [Role.LOWER] * len(leaves)
    gates = ["gate" in name or name.startswith("w1") for name in leaves]
    if sum(gates) != 1:
        gates = [name == min(leaves) for name in leaves]
    return [Role.GATE if gate else Role.UP for gate in gates]


def _layer_beside(name: str, blocks: list[Block]) -> int:
    """Return the layer that a matrix outside of the blocks belongs to: of the block that has its number.

    Of several (an encoder and a decoder count by themselves) it is the one whose path it shares the most of. A number
    that no block has is the layer itself, unless that is the place of a block with another number.
    """
    number = _first_number(name)
    of_number = [block for block in blocks if number is not None and _first_number(block.path) == number]
    if of_number:
        return max(of_number, key=lambda block: _num_shared(name, block.path)).index
    is_free = number not in {block.index for block in blocks if _first_number(block.path) is not None}
    return number if number is not None and is_free else OUTSIDE


def _first_number(path: str) -> int | None:
    return next((int(part) for part in path.split(".") if part.isdigit()), None)
