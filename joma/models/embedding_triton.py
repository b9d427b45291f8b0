"""Gradients of an embedding's rows added up token by token, always in the same order (GPU).

Added by whoever comes first, as atomics do, the last bit of a sum would be chance, and two trainings would part. Here
the rows are sorted by token, and a program adds those of one token by itself. Of a step's few hundred or thousand rows
each finds its place by comparing itself with all, which takes a few microseconds and one kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_SORTED, _NUM_WARPS = 64, 4
_MOST_COMPARED = 16_384  # more rows are sorted by torch: comparing all pairs would take longer than its many kernels
_ROWS, _COLUMNS = 16, 128
_CLEARED = 4096


@triton.jit
def _sort(tokens, in_order, order, num_rows, BLOCK: tl.constexpr):
    run = tl.program_id(1).to(tl.int64)
    mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = mine < num_rows
    token = tl.load(tokens + run * num_rows + mine, mask=exists, other=0).to(tl.int32)
    num_before = tl.zeros((BLOCK, BLOCK), dtype=tl.int32)
    for start in range(0, num_rows, BLOCK):
        other = start + tl.arange(0, BLOCK)
        theirs = tl.load(tokens + run * num_rows + other, mask=other < num_rows, other=0).to(tl.int32)
        is_less = theirs[None, :] < token[:, None]
        is_earlier = (theirs[None, :] == token[:, None]) & (other[None, :] < mine[:, None])
        num_before += ((is_less | is_earlier) & (other < num_rows)[None, :]).to(tl.int32)
    place = run * num_rows + tl.sum(num_before, axis=1)
    tl.store(in_order + place, token, mask=exists)
    tl.store(order + place, mine, mask=exists)


@triton.jit
def _clear(gradient, length, gradient_run, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    nothing = tl.zeros((BLOCK,), dtype=gradient.dtype.element_ty)
    tl.store(gradient + tl.program_id(1).to(tl.int64) * gradient_run + at, nothing, mask=at < length)


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
            source = tl.load(order + run * num_rows + places, mask=is_same, other=0).to(tl.int64)
            at = rows + run * rows_run + source[:, None] * width + columns[None, :]
            total += tl.sum(tl.load(at, mask=is_same[:, None] & is_column[None, :], other=0.0).to(tl.float32), axis=0)
            num_found = tl.sum(is_same.to(tl.int32), axis=0)
            place += ROWS
        to = gradient + run * gradient_run + token.to(tl.int64) * width + columns
        there = tl.load(to, mask=is_column).to(tl.float32)
        tl.store(to, (there + total).to(gradient.dtype.element_ty), mask=is_column)


def add_sorted(gradient: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add rows (R, N, D) onto those of the gradient (R, V, D) that their tokens (R, N) name, in place."""
    num_runs, num_rows, width = rows.shape
    in_order, order = _sorted(tokens) if num_rows <= _MOST_COMPARED else tokens.sort(dim=1, stable=True)
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


def _sorted(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens of each run in order, and where each of them was."""
    num_runs, num_rows = tokens.shape
    in_order, order = torch.empty((2, num_runs, num_rows), dtype=torch.int32, device=tokens.device)
    with torch.cuda.device_of(tokens):
        _sort[(triton.cdiv(num_rows, _SORTED), num_runs)](
            tokens.contiguous(), in_order, order, num_rows, BLOCK=_SORTED, num_warps=_NUM_WARPS
        )
    return in_order, order


def clear(gradient: Tensor) -> None:
    """Fill the gradient (R, V, D) with zeros; torch writes what is not dense across runs at half the speed."""
    num_runs, num_rows, width = gradient.shape
    with torch.cuda.device_of(gradient):
        _clear[(triton.cdiv(num_rows * width, _CLEARED), num_runs)](
            gradient, num_rows * width, gradient.stride(0), BLOCK=_CLEARED, num_warps=_NUM_WARPS
        )
