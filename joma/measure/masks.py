"""One attention call to be measured: its masks, which keys its rows see, and the raw numbers found for every row.

Nothing here builds an L×L tensor unless the user brings one.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.measure.tensors import required_tensor

HIDDEN_BELOW = -900.0
"""An additive mask this low hides a key: models write -1e3, -1e4, -1e9, the lowest number of their type or minus
infinity. All give it a weight of exactly 0 next to any key that is seen, and mean the same. A bias that arrives as a
mask (ALiBi over a thousand positions) hides as well from here on; its weight is 0 too."""
LOGIT_HIDDEN_BELOW = -9e3
"""A logit this low is hidden whatever the others are: mask and logit are no longer apart, and rows may see nothing."""
ROWS_AT_ONCE = 256  # rows whose visible keys are counted together
PerRow = Float[Tensor, "B H rows"]
Rows = dict[str, PerRow]
"""What a path found for every row, before clamping and before rows without keys are struck out: `entropy` and, with
companions, `effective_keys`, `first_key_mass`, `mean_distance`, `max_logit` and, but for the kernel, `lse`."""
Shape = tuple[int, ...]  # (batch, heads, rows, keys) of a call


class MaskParts(NamedTuple):
    """What a mask hides (False where hidden) and what it adds to the logits, axes of 1 broadcast; None for nothing."""

    visible: Bool[Tensor, "b h rows keys"] | None = None
    added: Float[Tensor, "b h rows keys"] | None = None


def split_mask(mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None) -> MaskParts:
    """Take a mask as PyTorch reads it apart, whatever its numbers are.

    A boolean mask only hides. An additive one hides where it is at most `HIDDEN_BELOW` and adds elsewhere.

    >>> parts = split_mask(torch.tensor([0.0, -1e3, -1e9, -torch.inf, -50.0]))
    >>> parts.visible.flatten().tolist(), parts.added.flatten().tolist()
    ([True, False, False, False, True], [0.0, 0.0, 0.0, 0.0, -50.0])
    """
    if mask is None or mask.numel() == 0:
        return MaskParts()
    mask = with_four_axes(mask.detach())
    if mask.dtype == torch.bool:
        return MaskParts(visible=mask)
    visible = mask > HIDDEN_BELOW
    added = torch.where(visible, mask, 0.0)
    hides, adds = torch.stack((~visible.all(), added.any())).tolist()  # a GPU is waited for once
    return MaskParts(visible=visible if hides else None, added=added if adds else None)


def added_up(*terms: Float[Tensor, "..."] | None) -> Float[Tensor, "..."] | None:
    """Add up the terms that there are; None for none."""
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


def visible_logits(logits: Float[Tensor, "*rows keys"]) -> Bool[Tensor, "*rows keys"]:
    """Return which keys are visible in logits that hold their mask: none at -9000 or 900 below the row's largest."""
    lowest = (logits.amax(dim=-1, keepdim=True) + HIDDEN_BELOW).clamp(min=LOGIT_HIDDEN_BELOW)
    return logits > lowest


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
    if parts.visible is None and parts.added is not None and bool(((parts.added == 0) | (parts.added == 1)).all()):
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
    return with_four_axes(bias.detach())


def read_sink(sink: Tensor | None, shape: Shape, device: torch.device) -> PerRow | None:
    """Return the logit of the sink for every row of a call of this shape."""
    return None if sink is None else _broadcastable("sink", sink, shape[:3], device).detach().expand(shape[:3])


def read_rows(rows: Tensor | None, shape: Shape, device: torch.device) -> Bool[Tensor, "B rows"] | None:
    """Return the rows of a call of this shape that count, refusing what is no truth value for each."""
    if rows is None:
        return None
    wanted, rows = (shape[0], shape[2]), required_tensor("rows", rows)
    if rows.dtype != torch.bool or rows.shape != wanted:
        raise ValueError(
            f"`rows` must be boolean of shape (batch, rows), {wanted}, got {rows.dtype} of shape {tuple(rows.shape)}. "
            "Pass True for each row to count."
        )
    return rows.to(device)


def _broadcastable(name: str, value: Tensor, shape: Shape, device: torch.device) -> Tensor:
    """Return `value`, refusing what does not broadcast to (batch, heads, rows, keys) or less on this device."""
    value, found = required_tensor(name, value), tuple(value.shape)
    if len(found) > len(shape) or any(
        have not in (1, want) for have, want in zip(reversed(found), reversed(shape), strict=False)
    ):
        padding = name == "mask" and found == (shape[0], shape[-1])
        way_out = f"`{name}[:, None, None, :]`" if padding else "every axis, with 1 where it does not vary"
        axes = ", ".join(("batch", "heads", "rows", "keys")[: len(shape)])
        raise ValueError(f"`{name}` must broadcast to ({axes}), {shape}, got shape {found}. Pass {way_out}.")
    if value.device != device:
        raise ValueError(
            f"`{name}` must be where `q` is, on {device}, got it on {value.device}. Pass `{name}.to(q.device)`."
        )
    return value


def with_four_axes(value: Tensor) -> Tensor:
    """Return what broadcasts to (batch, heads, rows, keys) with an axis for each."""
    return value.reshape((1,) * (4 - value.ndim) + value.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Queries, keys and everything that shapes their softmax.

    Row i stands at position `offset + i` among the keys. Causal rows see keys up to their own position; a window of w
    leaves the nearest w positions (on both sides when not causal).
    """

    q: Float[Tensor, "B H rows D"]
    k: Float[Tensor, "B G keys D"]
    scale: float
    softcap: float | None = None
    causal: bool = False
    window: int | None = None
    offset: int = 0
    mask: Bool[Tensor, "#B #H #rows #keys"] | None = None
    """True where visible; any axis may be 1 and is broadcast."""
    bias: Float[Tensor, "#B #H #rows #keys"] | None = None
    """Added to the logits; any axis may be 1."""
    sink: Float[Tensor, "#B #H #rows"] | None = None
    """Logit of a softmax column that is no key; any axis may be 1."""
    rows: Bool[Tensor, "B rows"] | None = None  # rows that count; None for all
    companions: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the logits."""
        return self.q.shape[2]

    @property
    def num_keys(self) -> int:
        """Keys of each row, hidden ones included."""
        return self.k.shape[2]

    @property
    def mask_depends_on_keys_alone(self) -> bool:
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

    def count_visible(self) -> Int[Tensor, "b h rows"]:
        """Return how many keys each row sees; axes over which nothing varies are 1."""
        position = torch.arange(self.offset, self.offset + self.num_rows, device=self.q.device)
        if self.causal and self.window is None and self.every_row_sees_a_key:
            return (position + 1)[None, None]
        if self.mask is not None and not self.mask_depends_on_keys_alone:
            key, counts = torch.arange(self.num_keys, device=self.q.device), []
            for row, mask in zip(position.split(ROWS_AT_ONCE), self.mask.split(ROWS_AT_ONCE, dim=2), strict=True):
                ahead = key - row[:, None]
                seen = mask & (ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool))
                counts.append((seen if self.window is None else seen & (ahead.abs() < self.window)).sum(dim=-1))
            return torch.cat(counts, dim=-1)
        start, stop = (
            torch.zeros_like(position),
            torch.full_like(position, self.num_keys),
        )  # of each row, the mask aside
        if self.causal:
            stop = (position + 1).clamp(0, self.num_keys)
        if self.window is not None:
            start = (position + 1 - self.window).clamp(0, self.num_keys)
            stop = torch.minimum(stop, position + self.window)
        stop = torch.maximum(stop, start)
        if self.mask is None:
            return (stop - start)[None, None]
        seen = self.mask[..., 0, :].expand(*self.mask.shape[:2], self.num_keys)
        before = torch.nn.functional.pad(seen.cumsum(-1), (1, 0))  # before[j] visible keys stand in front of key j
        return before[..., stop] - before[..., start]

    def first_visible_key(self) -> Int[Tensor, "b h"]:
        """Return the first key that any counted row can see."""
        if self.mask is None:
            return torch.zeros(1, 1, dtype=torch.long, device=self.q.device)
        seen = self.mask
        if self.rows is not None and not self.mask_depends_on_keys_alone:
            seen = seen & self.rows[:, None, :, None]
        return seen.any(dim=-2).to(torch.uint8).argmax(dim=-1)


def in_full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Keep autocast away from the products of a measurement."""
    kind = device.type
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()
