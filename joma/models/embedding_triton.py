"""Gradients of an embedding's rows added up token by token, always in the same order (GPU).

Added by whoever comes first, as atomics do, the last bit of a sum would be chance, and two trainings would part. Here
the rows come sorted by token, and a program adds those of one token by itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS, _NUM_WARPS = 16, 128, 4


@triton.jit
def _add(
    gradient, rows, tokens, order, num_rows, width, gradient_run, rows_run,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    run = tl.program_id(2).to(tl.int64)
    token = tl.load(tokens + run * num_rows + place)
    before = tl.load(tokens + run * num_rows + place - 1, mask=place > 0, other=-1)
    if before != token:  # the first of its token
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < width
        total = tl.zeros((COLUMNS,), dtype=tl.float32)
        num_found = tl.full((), ROWS, dtype=tl.int32)
        while num_found == ROWS:
            places = place + tl.arange(0, ROWS)
            is_same = tl.load(tokens + run * num_rows + places, mask=places < num_rows, other=-1) == token
            source = tl.load(order + run * num_rows + places, mask=is_same, other=0)
            at = rows + run * rows_run + source[:, None] * width + columns[None, :]
            total += tl.sum(tl.load(at, mask=is_same[:, None] & is_column[None, :], other=0.0).to(tl.float32), axis=0)
            num_found = tl.sum(is_same.to(tl.int32), axis=0)
            place += ROWS
        to = gradient + run * gradient_run + token * width + columns
        tl.store(to, tl.load(to, mask=is_column) + total, mask=is_column)


def add_sorted(gradient: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add rows (R, N, D) onto those of the gradient (R, V, D) that their tokens (R, N) name, in place."""
    in_order, order = tokens.sort(dim=1, stable=True)
    num_runs, num_rows, width = rows.shape
    packed = rows.contiguous()
    with torch.cuda.device_of(gradient):  # kernels start on the current device, not on their data's
        _add[(num_rows, triton.cdiv(width, _COLUMNS), num_runs)](
            gradient,
            packed,
            in_order,
            order,
            num_rows,
            width,
            gradient.stride(0),
            packed.stride(0),
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=_NUM_WARPS,
        )
