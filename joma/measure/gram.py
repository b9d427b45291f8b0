r"""How far the inner products of vectors have moved, whatever rotation the vectors have made."""

import torch
from jaxtyping import Float
from torch import Tensor


def gram_drift(u: Float[Tensor, "V d"], start: Float[Tensor, "V d"]) -> Float[Tensor, ""]:
    r"""$\|U^\top U - U_0^\top U_0\|_F / \|U_0^\top U_0\|_F$ of the matrices whose columns are the rows given; float64.

    With $\Delta = U - U_0$ and $S = U + U_0$ the difference is the symmetric part of $\Delta^\top S$, whose norm takes
    $d \times d$ matrices alone.

    >>> round(float(gram_drift(torch.tensor([[0.0, -2.0], [1.0, 0.0]]), torch.eye(2))), 4)
    2.1213
    """
    wide, first = u.double(), start.double()
    change, total, cross = wide - first, wide + first, first.mT @ first
    mixed = total.mT @ change
    squared = ((change.mT @ change) * (total.mT @ total)).sum() + (mixed * mixed.mT).sum()
    return (squared.clamp(min=0) / 2).sqrt() / torch.linalg.matrix_norm(cross)
