"""Gradients of many parameters brought to where they belong, as one kernel (GPU).

They come out of the backward one by one, those of matrices turned and in the precision of the products, those of
vectors for each sequence by itself, and belong into one buffer. One at a time they would be a kernel each, and two for
a sum.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _NUM_WARPS = 64, 4


@triton.jit
def _gather(
    targets, target_runs, sources, source_runs, row_strides, column_strides, num_rows, num_columns, num_summed, ends,
    TILE: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    for i in tl.static_range(len(sources)):
        across = tl.cdiv(num_columns[i], TILE)
        tile = tl.program_id(0) - ends[i] + tl.cdiv(num_rows[i], TILE) * across
        if (tile >= 0) & (tl.program_id(0) < ends[i]):  # the tiles of all tensors in a row: a program has one
            column = (tile % across) * TILE + tl.arange(0, TILE)
            is_column = column < num_columns[i]
            source = sources[i] + run * source_runs[i] + column[None, :] * column_strides[i]
            target = targets[i] + run * target_runs[i] + column
            if num_summed[i] > 0:
                total = tl.zeros((TILE,), dtype=tl.float32)
                for first in range(0, num_summed[i], TILE):
                    row = (first + tl.arange(0, TILE)).to(tl.int64)
                    seen = (row < num_summed[i])[:, None] & is_column[None, :]
                    values = tl.load(source + row[:, None] * row_strides[i], mask=seen, other=0.0)
                    total += tl.sum(values.to(tl.float32), axis=0)
                tl.store(target, total.to(target.dtype.element_ty), mask=is_column)
            else:
                row = ((tile // across) * TILE + tl.arange(0, TILE)).to(tl.int64)
                seen = (row < num_rows[i])[:, None] & is_column[None, :]
                values = tl.load(source + row[:, None] * row_strides[i], mask=seen)
                to = target[None, :] + row[:, None] * num_columns[i]
                tl.store(to, values.to(to.dtype.element_ty), mask=seen)


def gather_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target of the same shape (R, ...), dense within a run; (R, B, D) is summed to (R, D)."""
    is_summed = [source.ndim > target.ndim for source, target in zip(sources, targets, strict=True)]
    matrices = [_as_matrix(source) for source in sources]
    lengths = [matrix.shape[1] for matrix in matrices]
    rows = tuple(1 if summed else length for summed, length in zip(is_summed, lengths, strict=True))
    columns = tuple(matrix.shape[2] for matrix in matrices)
    ends = tuple(accumulate(triton.cdiv(r, _TILE) * triton.cdiv(c, _TILE) for r, c in zip(rows, columns, strict=True)))
    with torch.cuda.device_of(matrices[0]):  # kernels start on the current device, not on their data's
        _gather[(ends[-1], matrices[0].shape[0])](
            tuple(targets),
            tuple(target.stride(0) for target in targets),
            tuple(matrices),
            *(tuple(matrix.stride(axis) for matrix in matrices) for axis in range(3)),
            rows,
            columns,
            tuple(length if summed else 0 for summed, length in zip(is_summed, lengths, strict=True)),
            ends,
            TILE=_TILE,
            num_warps=_NUM_WARPS,
        )


def _as_matrix(tensor: Tensor) -> Tensor:
    """Return a tensor with two axes beside that of the runs."""
    return tensor[:, None] if tensor.ndim == 2 else tensor.flatten(1, -2)  # noqa: PLR2004 (runs and a vector)
