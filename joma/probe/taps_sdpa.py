"""Calls of `torch.nn.functional.scaled_dot_product_attention`, read into the axes of an `AttentionCall`."""

from typing import Any

from torch import Tensor


def read_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    num_heads: int | None = None,
) -> dict[str, Any]:
    """Return the fields of an AttentionCall; values, dropout and grouping leave no trace in them.

    Without a batch or head axis they become 1; where batch and heads are one axis, `num_heads` splits it; more than
    two axes in front are taken as a batch and heads.
    """
    del value, dropout_p, enable_gqa
    lead = query.shape[:-2]
    mask = None if attn_mask is None else _split(_padded(attn_mask.detach(), len(lead) + 2), lead, num_heads)
    return {
        "q": _split(query.detach(), lead, num_heads),
        "k": _split(key.detach(), key.shape[:-2], num_heads),
        "mask": mask,
        "causal": bool(is_causal),
        "scale": None if scale is None else float(scale),
    }


def _padded(mask: Tensor, num_axes: int) -> Tensor:
    return mask.reshape((1,) * (num_axes - mask.ndim) + mask.shape)


def _split(tensor: Tensor, lead: tuple[int, ...], num_heads: int | None) -> Tensor:
    """Give a tensor (*lead, rows, columns) the axes batch, heads, rows, columns; axes of 1 are left to broadcast."""
    rows_columns = tensor.shape[-2:]
    own = tensor.shape[:-2]
    if len(own) == 2:  # noqa: PLR2004 (batch and heads)
        return tensor
    if not own:
        return tensor[None, None]
    if len(own) == 1:
        heads = num_heads if num_heads and lead[0] % num_heads == 0 else 1
        return tensor[:, None] if heads == 1 or own[0] == 1 else tensor.reshape(-1, heads, *rows_columns)
    full = tensor if all(size == 1 for size in own[1:]) else tensor.expand(own[0], *lead[1:], *rows_columns)
    return full.flatten(1, -3)
