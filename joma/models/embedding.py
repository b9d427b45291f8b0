"""Rows of the embedding for the tokens of every run, and the way back for their gradient."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST_BY_A_PRODUCT = 1024
"""Tokens up to which gradients of rows are added by a product with their places."""


def embedding_rows(weight: Float[Tensor, "R V D"], tokens: Int[Tensor, "R ..."]) -> Float[Tensor, "R ... D"]:
    """Each token's row in the embedding of its run, or any rows of a matrix of each run."""
    return weight[_runs(tokens), tokens]


def add_row_gradients(
    gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R B L"], rows: Float[Tensor, "R B L D"]
) -> None:
    """Add the gradients of the rows onto the gradient of the embedding, in place and always in the same order.

    With few tokens many rows meet in one, and a GPU would add them one after the other: there it takes a product.
    """
    if not gradient.is_cuda:
        add = _add_one_by_one
    else:
        add = _add_by_product if gradient.shape[1] <= MOST_BY_A_PRODUCT else _add_sorted
    add(gradient, tokens.flatten(1), rows.flatten(1, -2))


def clear(gradient: Float[Tensor, "R V D"]) -> None:
    """Fill the gradient of the embedding with zeros."""
    if not gradient.is_cuda or gradient.dtype == torch.float64:
        gradient.zero_()
        return
    from joma.models import embedding_triton  # noqa: PLC0415 (Triton is there where a GPU is)

    embedding_triton.clear(gradient)


def _add_one_by_one(gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R N"], rows: Float[Tensor, "R N D"]) -> None:
    total = gradient if gradient.dtype == rows.dtype else gradient.to(rows.dtype)
    total.scatter_add_(1, tokens[:, :, None].expand_as(rows), rows)
    if total is not gradient:
        gradient.copy_(total)


def _add_by_product(gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R N"], rows: Float[Tensor, "R N D"]) -> None:
    is_token = tokens[:, None] == torch.arange(gradient.shape[1], device=tokens.device)[:, None]
    total = rows.new_empty(gradient.shape)
    torch.bmm(is_token.to(rows.dtype), rows, out=total)  # no autocast, which would round what is to be added
    gradient.add_(total)


def _add_sorted(gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R N"], rows: Float[Tensor, "R N D"]) -> None:
    if rows.dtype == torch.float64:  # the kernel sums in float32
        gradient.index_put_((_runs(tokens), tokens), rows, accumulate=True)
        return
    from joma.models.embedding_triton import add_sorted  # noqa: PLC0415 (Triton is there where a GPU is)

    add_sorted(gradient, tokens, rows)


def _runs(tokens: Int[Tensor, "R ..."]) -> Int[Tensor, "R ..."]:
    """The number of each run, along the first axis."""
    return torch.arange(tokens.shape[0], device=tokens.device).reshape(-1, *(1 for _ in tokens.shape[1:]))
