"""Rows of the embedding for the tokens of every run, and the way back for their gradient."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def embedding_rows(weight: Float[Tensor, "R V D"], tokens: Int[Tensor, "R B L"]) -> Float[Tensor, "R B L D"]:
    """Each token's row in the embedding of its run."""
    return weight[_runs(tokens), tokens]


def add_row_gradients(
    gradient: Float[Tensor, "R V D"], tokens: Int[Tensor, "R B L"], rows: Float[Tensor, "R B L D"]
) -> None:
    """Add the gradients of the rows onto the gradient of the embedding, in place."""
    index = tokens.flatten(1)[:, :, None].expand(-1, -1, rows.shape[-1])
    gradient.scatter_add_(1, index, rows.flatten(1, -2))


def _runs(tokens: Int[Tensor, "R B L"]) -> Int[Tensor, "R 1 1"]:
    """The number of each run, along the first axis."""
    return torch.arange(tokens.shape[0], device=tokens.device)[:, None, None]
