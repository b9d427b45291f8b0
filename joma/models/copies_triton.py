"""Copies of many tensors of all runs, turned and converted on the way, as one kernel (GPU).

Gradients come out of the backward one by one, those of matrices turned and in the precision of the products, and belong
into one buffer. Copied one at a time they are a kernel each.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _NUM_WARPS = 64, 4


@triton.jit
def _copy(
    targets, target_runs, sources, source_runs, row_strides, column_strides, num_rows, num_columns, TILE: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    for i in tl.static_range(len(sources)):
        across = tl.cdiv(num_columns[i], TILE)
        if tile < tl.cdiv(num_rows[i], TILE) * across:
            row = ((tile // across) * TILE + tl.arange(0, TILE)[:, None]).to(tl.int64)
            column = (tile % across) * TILE + tl.arange(0, TILE)[None, :]
            seen = (row < num_rows[i]) & (column < num_columns[i])
            at = sources[i] + run * source_runs[i] + row * row_strides[i] + column * column_strides[i]
            to = targets[i] + run * target_runs[i] + row * num_columns[i] + column
            tl.store(to, tl.load(at, mask=seen).to(to.dtype.element_ty), mask=seen)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target of the same shape (R, ...), which is dense within a run."""
    sources = [_as_matrix(tensor) for tensor in sources]
    rows = tuple(tensor.shape[1] for tensor in sources)
    columns = tuple(tensor.shape[2] for tensor in sources)
    num_tiles = max(triton.cdiv(r, _TILE) * triton.cdiv(c, _TILE) for r, c in zip(rows, columns, strict=True))
    with torch.cuda.device_of(sources[0]):  # kernels start on the current device, not on their data's
        _copy[(num_tiles, sources[0].shape[0])](
            tuple(targets),
            tuple(tensor.stride(0) for tensor in targets),
            tuple(sources),
            *(tuple(tensor.stride(axis) for tensor in sources) for axis in range(3)),
            rows,
            columns,
            TILE=_TILE,
            num_warps=_NUM_WARPS,
        )


def _as_matrix(tensor: Tensor) -> Tensor:
    """Return a tensor with two axes beside that of the runs."""
    return tensor[:, None] if tensor.ndim == 2 else tensor.flatten(1, -2)  # noqa: PLR2004 (runs and a vector)
