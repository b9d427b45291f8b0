r"""The directions that carry a matrix: its largest singular values and their vectors, by products alone.

For $W$ with singular values $\sigma_1 \ge \sigma_2 \ge \dots$ and right vectors $v_i$ the energy in the top $r$
directions is $\sum_{i \le r} \sigma_i^2 / \|W\|_F^2$. Two such subspaces overlap by $\|V_1^\top V_2\|_F^2 / r$: 1 where
they are the same, about $r/n$ where they have nothing in common.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SPARE = 8  # directions that are iterated beyond those asked for: the error falls by their distance in the spectrum
ROUNDS = 8  # products with WᵀW
SEED = 20260
SMALLEST = 1e-14  # squared lengths below this part of the largest are rounding: such a direction is dropped
RIDGE = 1e-13
"""Added to products of columns of length 1 before Cholesky's decomposition, above their rounding."""
ROUNDING_UNITS = 64
"""Part of the squared norm, in units of rounding, below which what the first direction leaves is rounding."""


class TopDirections(NamedTuple):
    """Top singular values, largest first, and right singular vectors (zero where the value is), in float64."""

    values: Float[Tensor, "B r"]
    vectors: Float[Tensor, "B n r"]


def top_directions(w: Float[Tensor, "B m n"], r: int) -> TopDirections:
    """Iterate a fixed start with WᵀW, products in the precision of W; the result is a function of W alone.

    >>> top_directions(torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None], 2).values.round(decimals=4)
    tensor([[3., 2.]], dtype=torch.float64)
    """
    num = min(r + SPARE, *w.shape[-2:])
    start = torch.randn(w.shape[-1], num, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    basis = start.to(w.device).expand(len(w), -1, -1)
    for i in range(ROUNDS):
        y = (w.mT @ (w @ basis.to(w.dtype))).double()
        basis = _spread(y) if i < ROUNDS - 1 else _orthonormal(y)[0]
    _, turned = _orthonormal((w @ basis.to(w.dtype)).double())
    vectors = basis @ turned
    values = torch.linalg.vector_norm((w @ vectors.to(w.dtype)).double(), dim=1)
    return TopDirections(values=values[:, :r], vectors=vectors[..., :r])


class Spectrum(NamedTuple):
    """What is read off the largest singular values of each matrix, in float64."""

    stable_rank: Float[Tensor, " B"]
    energy: Float[Tensor, " B"]  # share of the squared norm in the top directions
    rest_rank: Float[Tensor, " B"]
    """Stable rank without the first direction; NaN for a matrix of rank 1, where that leaves nothing."""


def spectrum(w: Float[Tensor, "B m n"], r: int) -> Spectrum:
    r"""With $E = \|W\|_F^2$: $E/\sigma_1^2$, $\sum_{i \le r} \sigma_i^2 / E$ and $(E - \sigma_1^2) / \sigma_2^2$.

    NaN for a matrix of zeros, and where entries are NaN or infinite.

    >>> [round(each.item(), 4) for each in spectrum(torch.diag(torch.tensor([2.0, 1.0, 1.0, 1.0]))[None], 2)]
    [1.75, 0.7143, 3.0]
    """
    size = w.abs().amax((-2, -1), keepdim=True)
    scaled = torch.where(torch.isfinite(size) & (size > 0), w / size, 0.0)  # so that no square overflows
    squares = top_directions(scaled, r).values.square()
    energy = torch.linalg.vector_norm(scaled, dim=(-2, -1), dtype=torch.float64).square()
    rest = energy - squares[:, 0]
    rest = torch.where(rest > ROUNDING_UNITS * torch.finfo(w.dtype).eps * energy, rest, torch.nan)
    return Spectrum(energy / squares[:, 0], squares.sum(1) / energy, rest / squares[:, 1:2].sum(1))


def _spread(y: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
    """Return a basis of the columns that is orthonormal where they do not depend on each other.

    By Cholesky's decomposition, for which a GPU is not waited for.
    """
    unit = y / torch.linalg.vector_norm(y, dim=1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny)
    ridge = RIDGE * torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    lower, _ = torch.linalg.cholesky_ex(torch.baddbmm(ridge, unit.mT, unit))
    return torch.linalg.solve_triangular(lower.mT, unit, upper=True, left=False)


def _orthonormal(y: Float[Tensor, "B n k"]) -> tuple[Float[Tensor, "B n k"], Float[Tensor, "B k k"]]:
    """Return an orthonormal basis of the columns, longest first, and the rotation of the columns to it.

    By the k×k matrix of their products, which a GPU decomposes for the batch at once, as it does not a tall matrix.
    """
    squares, rotation = torch.linalg.eigh(y.mT @ y)
    squares, rotation = squares.flip(-1), rotation.flip(-1)
    kept = squares > SMALLEST * squares[:, :1]
    scale = torch.where(kept, squares.clamp(min=torch.finfo(squares.dtype).tiny).rsqrt(), 0.0)
    return (y @ rotation) * scale[:, None], rotation * kept[:, None]


def overlap(a: Float[Tensor, "B n r"], b: Float[Tensor, "B n r"]) -> Float[Tensor, " B"]:
    """Share of the directions a that lies in the space of b.

    >>> overlap(torch.eye(4)[None, :, :2], torch.eye(4)[None, :, 1:3])
    tensor([0.5000])
    """
    return (a.mT @ b).square().sum((-2, -1)) / a.shape[-1]
