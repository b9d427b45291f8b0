"""A linear layer of every run at once: one batched product, the runs as its batch."""

import torch
from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "R D"] | Float[Tensor, "R B D"]
"""A vector of each run, or the same laid beside each of its sequences (`beside_sequences`)."""


def linear(
    x: Float[Tensor, "R *rows I"],
    weight: Float[Tensor, "R O I"],
    bias: Float[Tensor, "R O"] | Float[Tensor, "R B O"] | None = None,
) -> Float[Tensor, "R *rows O"]:
    r"""Return $x W_r^\top + b_r$ for the rows of each run r, with weights laid out as in `torch.nn.Linear`.

    >>> x, weight = torch.ones(2, 3, 4, 5), torch.ones(2, 7, 5)
    >>> linear(x, weight, torch.ones(2, 7)).unique().tolist()
    [6.0]
    """
    product = torch.bmm(x.flatten(1, -2), weight.mT).unflatten(1, x.shape[1:-1])
    if bias is None:
        return product
    return (product.to(bias.dtype) + along_rows(bias, product)).to(product.dtype)


def along_rows(vector: Vectors, x: Float[Tensor, "R *rows D"]) -> Float[Tensor, "R ... D"]:
    """Lay a vector of each run along the last axis of x, to be combined with it."""
    first = vector.shape[:-1]
    return vector.reshape(*first, *(1,) * (x.ndim - vector.ndim), vector.shape[-1])


def beside_sequences(vector: Float[Tensor, "R D"], num_sequences: int) -> Float[Tensor, "R B D"]:
    """Repeat a vector of each run for each of its sequences, with no copy.

    Its gradient is then summed over the positions of a sequence alone, and what is left is summed for all vectors of a
    block at once: a compiler would take two kernels for each of them, or one, by the number of runs.
    """
    return vector[:, None].expand(-1, num_sequences, -1)
