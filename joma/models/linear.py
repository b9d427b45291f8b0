"""A linear layer of every run at once: one batched product, the runs as its batch."""

import torch
from jaxtyping import Float
from torch import Tensor


def linear(
    x: Float[Tensor, "R *rows I"], weight: Float[Tensor, "R O I"], bias: Float[Tensor, "R O"] | None = None
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


def along_rows(vector: Float[Tensor, "R D"], x: Float[Tensor, "R *rows D"]) -> Float[Tensor, "R ... D"]:
    """Lay a vector of each run along the last axis of x, to be combined with it.

    It is repeated along all axes of the rows but the last, so that its gradient is summed in two stages, over the last
    axis and then over the others: a compiler chooses one or two by the number of runs, and a step would have more
    kernels for fewer runs.
    """
    rows = (1,) * (x.ndim - 2)
    return vector.reshape(vector.shape[0], *rows, vector.shape[1]).expand(-1, *x.shape[1:-2], *rows[:1], -1)
