"""One attention call to be measured: its masks, which keys its rows see, and the raw numbers found for every row.

Nothing here builds an L×L tensor unless the user brings one.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.measure.tensors import required_tensor

HIDDEN_BELOW = -9e3
"""Additive masks and logits this low hide a key: models write -1e4, -1e9, the lowest number of their type or minus
infinity, which all give it a weight of exactly 0 beside any that is seen, and mean the same. What is left of a bias
(ALiBi beyond some ten thousand positions) is as far from any weight; its keys no longer count as visible either."""
ROWS_AT_ONCE = 256
"""Rows whose visible keys are counted together."""
PerRow = Float[Tensor, "B H rows"]
Shape = tuple[int, int, int, int]
"""(batch, heads, rows, keys) of a call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskParts:
    """What a mask hides and what it adds to the logits; each is None where there is nothing of it."""

    visible: Bool[Tensor, "b h rows keys"] | None = None
    """True where visible; any axis may be 1 and is broadcast."""
    added: Float[Tensor, "b h rows keys"] | None = None
    lowest: float = 0.0
    highest: float = 0.0
    """Ends of what is added."""

    @property
    def are_zeros_and_ones(self) -> bool:
        """Whether a mask hides nothing and adds 1 here and there: truth values that were meant to hide by 0.

        Every number is looked at, and a GPU waited for, only where the ends, which are known already, allow for it.
        """
        if self.visible is not None or self.added is None or self.lowest not in (0, 1) or self.highest != 1:
            return False
        return bool(((self.added == 0) | (self.added == 1)).all())


def split_mask(mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None) -> MaskParts:
    """Take a mask as PyTorch reads it apart, whatever its numbers are.

    A boolean mask only hides. An additive one hides where it is at most `HIDDEN_BELOW` and adds elsewhere.

    >>> parts = split_mask(torch.tensor([0.0, -1e4, -1e9, -torch.inf, -50.0]))
    >>> parts.visible.flatten().tolist(), parts.added.flatten().tolist()
    ([True, False, False, False, True], [0.0, 0.0, 0.0, 0.0, -50.0])
    """
    if mask is None or mask.numel() == 0:
        return MaskParts()
    mask = _with_four_axes(mask.detach())
    if mask.dtype == torch.bool:
        return MaskParts(visible=mask)
    visible = mask > HIDDEN_BELOW
    added = torch.where(visible, mask, 0.0)
    ends = torch.aminmax(added)
    hides, lowest, highest = torch.stack((~visible.all(), ends.min, ends.max)).tolist()  # a GPU is waited for once
    adds = lowest != 0 or highest != 0
    return MaskParts(visible=visible if hides else None, added=added if adds else None, lowest=lowest, highest=highest)


def read_mask(mask: Tensor | None, shape: Shape, device: torch.device) -> MaskParts:
    """Take apart the mask of a call of this shape, refusing what could be meant otherwise than it would be read.

    Integers are refused, and numbers that are all 0 or 1: Hugging Face's `attention_mask`, a triangle of ones. Added to
    the logits they would hide nothing.
    """
    if mask is None:
        return MaskParts()
    mask = _broadcastable("mask", mask, shape, device)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"`mask` must be boolean, or floating point to be added to the logits, got {mask.dtype}. "
            "Pass `mask.bool()` if other numbers than 0 mean visible."
        )
    parts = split_mask(mask)
    if parts.are_zeros_and_ones:
        raise ValueError(
            f"`mask` must be boolean, or hide by numbers of at most {HIDDEN_BELOW:g}, got {mask.dtype} of 0 and 1. "
            "Pass `mask.bool()` if 1 means visible, or `bias=mask` to add it to the logits."
        )
    return parts


def read_bias(bias: Tensor | None, shape: Shape, device: torch.device) -> Float[Tensor, "b h rows keys"] | None:
    """Return the bias of a call of this shape with four axes."""
    if bias is None:
        return None
    bias = _broadcastable("bias", bias, shape, device)
    if not bias.is_floating_point():
        raise TypeError(
            f"`bias` must be floating point, got {bias.dtype}. "
            "Pass `bias.float()`, or as `mask=bias.bool()` what says which keys are visible."
        )
    return _with_four_axes(bias.detach())


def _broadcastable(name: str, value: Tensor, shape: Shape, device: torch.device) -> Tensor:
    """Return `value`, refusing what does not broadcast to (batch, heads, rows, keys) on this device."""
    value, found = required_tensor(name, value), tuple(value.shape)
    if len(found) > len(shape) or any(
        have not in (1, want) for have, want in zip(reversed(found), reversed(shape), strict=False)
    ):
        padding = found == (shape[0], shape[-1])
        way_out = f"`{name}[:, None, None, :]`" if padding else "four axes, with 1 where it does not vary"
        raise ValueError(
            f"`{name}` must broadcast to (batch, heads, rows, keys), {shape}, got shape {found}. Pass {way_out}."
        )
    if value.device != device:
        raise ValueError(
            f"`{name}` must be where `q` is, on {device}, got it on {value.device}. Pass `{name}.to(q.device)`."
        )
    return value


def _with_four_axes(value: Tensor) -> Tensor:
    return value.reshape((1,) * (4 - value.ndim) + value.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Visibility:
    """Causal order, a sliding window and a mask, together.

    Row i stands at position `offset + i` among the keys. Causal rows see keys up to their own position; a window of w
    leaves the nearest w positions (on both sides when not causal).
    """

    num_rows: int
    num_keys: int
    causal: bool = False
    window: int | None = None
    offset: int = 0
    mask: Bool[Tensor, "b h rows keys"] | None = None
    """True where visible; any axis may be 1 and is broadcast."""

    def __post_init__(self) -> None:
        """Refuse an empty window."""
        if self.window is not None and self.window < 1:
            raise ValueError(f"`window` must be at least 1, got {self.window}. Pass None for no window.")

    @property
    def depends_on_keys_alone(self) -> bool:
        """Whether the mask is the same for every row, as padding is."""
        return self.mask is None or self.mask.shape[-2] == 1

    @property
    def every_row_sees_a_key(self) -> bool:
        """Whether that is known without looking at a mask: every row stands at a key, which it sees."""
        return self.mask is None and self.offset >= 0 and self.offset + self.num_rows <= self.num_keys

    def key_range(self, first_row: int, last_row: int) -> tuple[int, int]:
        """Return the keys [start, stop) outside of which no row of [first_row, last_row) sees anything."""
        start, stop = 0, self.num_keys
        if self.causal:
            stop = min(stop, last_row + self.offset)
        if self.window is not None:
            start = max(start, first_row + self.offset - self.window + 1)
            if not self.causal:
                stop = min(stop, last_row + self.offset + self.window - 1)
        return start, max(start, stop)

    def block(self, first_row: int, last_row: int, device: torch.device) -> Bool[Tensor, "b h rows keys"] | None:
        """Return the visibility of these rows over their key range; None when all of it is visible."""
        start, stop = self.key_range(first_row, last_row)
        seen = None
        if self.causal or self.window is not None:
            row = torch.arange(first_row, last_row, device=device)[:, None] + self.offset
            ahead = torch.arange(start, stop, device=device)[None, :] - row
            seen = torch.ones_like(ahead, dtype=torch.bool)[None, None]
            if self.causal:
                seen &= ahead <= 0
            if self.window is not None:
                seen &= ahead.abs() < self.window
        if self.mask is None:
            return seen
        rows = slice(None) if self.mask.shape[-2] == 1 else slice(first_row, last_row)
        keys = slice(None) if self.mask.shape[-1] == 1 else slice(start, stop)
        part = self.mask[..., rows, keys]
        return part if seen is None else part & seen

    def count(self, device: torch.device) -> Int[Tensor, "b h rows"]:
        """Return how many keys each row sees; axes over which nothing varies are 1."""
        if self.mask is not None and not self.depends_on_keys_alone:
            counts = []
            for first in range(0, self.num_rows, ROWS_AT_ONCE):
                block = self.block(first, min(first + ROWS_AT_ONCE, self.num_rows), device)
                assert block is not None
                counts.append(block.sum(dim=-1))
            return torch.cat(counts, dim=-1)
        start, stop = self._ends(device)
        if self.mask is None:
            return (stop if start is None else (stop - start).clamp(min=0))[None, None]
        start = torch.zeros_like(stop) if start is None else start
        seen = self.mask[..., 0, :].expand(*self.mask.shape[:2], self.num_keys)
        before = torch.nn.functional.pad(seen.cumsum(-1), (1, 0))  # before[j] visible keys stand in front of key j
        return before[..., torch.maximum(stop, start)] - before[..., start]

    def first_visible_key(self, device: torch.device) -> Int[Tensor, "b h"]:
        """Return the first key that any row can see: the candidate for an attention sink."""
        if self.mask is None:
            return torch.zeros(1, 1, dtype=torch.long, device=device)
        return self.mask.any(dim=-2).to(torch.uint8).argmax(dim=-1)

    def _ends(self, device: torch.device) -> tuple[Int[Tensor, " rows"] | None, Int[Tensor, " rows"]]:
        """First key of each row by its window (None without one), and the key after the last; the mask aside."""
        if not self.causal and self.window is None:
            return None, torch.full((self.num_rows,), self.num_keys, device=device)
        after = torch.arange(self.offset + 1, self.offset + self.num_rows + 1, device=device)
        stop = after.clamp(0, self.num_keys) if self.causal else torch.full_like(after, self.num_keys)
        if self.window is None:
            return None, stop
        return (after - self.window).clamp(0, self.num_keys), torch.minimum(stop, after + (self.window - 1)).clamp(
            min=0
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Queries, keys and everything that shapes their softmax."""

    q: Float[Tensor, "B H rows D"]
    k: Float[Tensor, "B G keys D"]
    scale: float
    softcap: float | None
    bias: Float[Tensor, "b h r s"] | None
    """Added to the logits; any axis may be 1."""
    visibility: Visibility
    companions: bool

    @property
    def bias_depends_on_keys_alone(self) -> bool:
        """Whether the bias is the same for every row, as ALiBi is up to a constant."""
        return self.bias is None or self.bias.shape[-2] == 1

    @property
    def working_dtype(self) -> torch.dtype:
        """Half precision is computed in float32: rounding its results would cost more than the method does."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a path found for every row, before clamping and before rows without keys are struck out."""

    entropy: PerRow
    effective_keys: PerRow | None = None
    r"""$1/\sum_j p_j^2$."""
    sink_mass: PerRow | None = None
    mean_distance: PerRow | None = None
    max_logit: PerRow | None = None


def in_full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Keep autocast away from the products of a measurement."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
