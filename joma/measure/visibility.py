"""Which keys a query row can see, without an L×L tensor unless the user brings one."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

HIDDEN_BELOW = -9e3
"""Additive masks and logits this low hide a key: models write -1e4, -1e9, the lowest number of their type or minus
infinity, which all give it a weight of exactly 0 beside any that is seen, and mean the same. What is left of a bias
(ALiBi beyond some ten thousand positions) is as far from any weight; its keys no longer count as visible either."""


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
        seen = self._band(first_row, last_row, start, stop, device)
        if self.mask is None:
            return seen
        rows = slice(None) if self.mask.shape[-2] == 1 else slice(first_row, last_row)
        keys = slice(None) if self.mask.shape[-1] == 1 else slice(start, stop)
        part = self.mask[..., rows, keys]
        return part if seen is None else part & seen

    def count(self, device: torch.device) -> Int[Tensor, "b h rows"]:
        """Return how many keys each row sees; axes over which nothing varies are 1."""
        if self.mask is not None and not self.depends_on_keys_alone:
            return self._count_by_rows(device)
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

    def _band(self, first_row: int, last_row: int, start: int, stop: int, device: torch.device) -> Tensor | None:
        """Causal order and window of a block; None when neither hides a key of it."""
        if not self.causal and self.window is None:
            return None
        row = torch.arange(first_row, last_row, device=device)[:, None] + self.offset
        ahead = torch.arange(start, stop, device=device)[None, :] - row
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if self.causal:
            seen &= ahead <= 0
        if self.window is not None:
            seen &= ahead.abs() < self.window
        return seen[None, None]

    def _count_by_rows(self, device: torch.device, rows_at_once: int = 256) -> Int[Tensor, "b h rows"]:
        parts = []
        for first in range(0, self.num_rows, rows_at_once):
            block = self.block(first, min(first + rows_at_once, self.num_rows), device)
            assert block is not None
            parts.append(block.sum(dim=-1))
        return torch.cat(parts, dim=-1)
