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

    PyTorch aligns causal order at the first row and the first key, whatever their numbers.
    """
    del value, dropout_p, enable_gqa
    if query.is_nested or key.is_nested:
        raise ValueError("nested tensors have rows of different lengths")
    q = with_heads(query.detach(), num_heads)
    k = with_heads(key.detach(), num_heads)
    mask = None
    if attn_mask is not None:
        mask = attn_mask.detach()
        mask = mask.reshape((1,) * (query.ndim - mask.ndim) + mask.shape)
        mask = with_heads(_as_wide(mask, query), num_heads)
    return {
        "q": q,
        "k": k if k.shape[0] == q.shape[0] else k.expand(q.shape[0], -1, -1, -1),
        "mask": mask,
        "causal": bool(is_causal),
        "scale": None if scale is None else float(scale),
    }


def with_heads(tensor: Tensor, num_heads: int | None) -> Tensor:
    """Give a tensor (..., rows, columns) the axes batch, heads, rows, columns.

    Axes that are not there become 1. Where batch and heads are one axis, `num_heads` splits it, batches outermost. Of
    more than two axes in front the first is the batch, the others are heads.
    """
    lead = tensor.shape[:-2]
    if not lead:
        return tensor[None, None]
    if len(lead) == 1 and (not num_heads or lead[0] % num_heads):
        return tensor[:, None]
    if len(lead) == 1:
        return tensor.unflatten(0, (-1, num_heads))
    return tensor.flatten(1, -3)


def _as_wide(mask: Tensor, query: Tensor) -> Tensor:
    """Repeat a mask over leading axes that are about to be merged; of two they broadcast by themselves."""
    lead = query.shape[:-2]
    if len(lead) == 2 or all(size == 1 for size in mask.shape[:-2]):  # noqa: PLR2004 (batch and heads)
        return mask
    return mask.expand(*lead, *mask.shape[-2:])
