"""What an attention call may be given as mask or bias: which types, which shapes, and what they mean."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from joma.measure.tensors import required_tensor
from joma.measure.visibility import HIDDEN_BELOW

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
