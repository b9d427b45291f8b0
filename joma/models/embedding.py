"""Rows of the embedding for the tokens of every run, and the way back for their gradient."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST_BY_A_PRODUCT = 1024
"""Tokens up to which gradients of rows are added by a product with their places."""


def embedding_rows(weight: Float[Tensor, "R V D"], tokens: Int[Tensor, "R B L"]) -> Float[Tensor, "R B L D"]:
    """Each token's row in the embedding of its run."""
    return weight[_runs(tokens), tokens]


def add_row_gradients(
    gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R B L"], rows: Float[Tensor, "R B L D"]
) -> None:
    """Add the gradients of the rows onto the gradient of the embedding, in place.

    With few tokens many rows meet in one, and on a GPU would queue up for it: there they are added by a product.
    """
    is_few = gradient.is_cuda and gradient.shape[1] <= MOST_BY_A_PRODUCT
    add = _add_by_product if is_few else _add_one_by_one
    add(gradient, tokens.flatten(1), rows.flatten(1, -2))


def _add_one_by_one(gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R N"], rows: Float[Tensor, "R N D"]) -> None:
    gradient.scatter_add_(1, tokens[:, :, None].expand_as(rows), rows)


def _add_by_product(gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R N"], rows: Float[Tensor, "R N D"]) -> None:
    is_token = tokens[:, None] == torch.arange(gradient.shape[1], device=tokens.device)[:, None]
    gradient.baddbmm_(is_token.to(rows.dtype), rows)


def _runs(tokens: Int[Tensor, "R B L"]) -> Int[Tensor, "R 1 1"]:
    """The number of each run, along the first axis."""
    return torch.arange(tokens.shape[0], device=tokens.device)[:, None, None]
