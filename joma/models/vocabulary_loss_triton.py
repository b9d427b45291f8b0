"""Softmax cross-entropy of rows of logits and its gradient in place, one program a row (GPU)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""Logits that a program takes at a time; the second walk over a row finds it in the cache."""
NUM_WARPS = 4


@triton.jit
def _row(
    logits, bias, targets, rows, losses, num_columns, row_stride, num_rows, scale,
    bias_run, targets_run, targets_row, rows_run, rows_row,
    HAS_BIAS: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0).to(tl.int64) // num_rows
    row = tl.program_id(0).to(tl.int64) % num_rows
    base = logits + tl.program_id(0).to(tl.int64) * row_stride
    columns = tl.arange(0, BLOCK)
    # each lane keeps its own maximum and sum: no waiting for one another until the end of the row
    top = tl.full((BLOCK,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, num_columns, BLOCK):
        seen = start + columns < num_columns
        s = tl.load(base + start + columns, mask=seen, other=float("-inf")).to(tl.float32)
        if HAS_BIAS:
            s += tl.load(bias + run * bias_run + start + columns, mask=seen, other=0.0)
        s *= scale
        higher = tl.maximum(top, s)
        total = total * tl.exp(top - higher) + tl.exp(s - higher)
        top = higher
    highest = tl.max(top, axis=0)
    log_total = highest + tl.log(tl.sum(total * tl.exp(top - highest), axis=0))
    target = tl.load(targets + run * targets_run + row * targets_row)
    weight = tl.load(rows + run * rows_run + row * rows_row).to(tl.float32)
    picked = tl.load(base + target).to(tl.float32)
    if HAS_BIAS:
        picked += tl.load(bias + run * bias_run + target)
    tl.store(losses + tl.program_id(0), (log_total - picked * scale) * weight)
    if GRADIENT:
        for start in range(0, num_columns, BLOCK):
            seen = start + columns < num_columns
            s = tl.load(base + start + columns, mask=seen, other=float("-inf")).to(tl.float32)
            if HAS_BIAS:
                s += tl.load(bias + run * bias_run + start + columns, mask=seen, other=0.0)
            gradient = tl.exp(s * scale - log_total) - tl.where(start + columns == target, 1.0, 0.0)
            tl.store(base + start + columns, (gradient * weight * scale).to(logits.dtype.element_ty), mask=seen)


def differentiate(logits: Tensor, bias: Tensor | None, targets: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Return each run's weighted loss and overwrite the logits (R, N, V) by their gradient."""
    return _launch(logits, bias, targets, rows, scale, gradient=True)


def value(logits: Tensor, bias: Tensor | None, targets: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Return each run's weighted loss; the logits stay."""
    return _launch(logits, bias, targets, rows, scale, gradient=False)


def _launch(
    logits: Tensor, bias: Tensor | None, targets: Tensor, rows: Tensor, scale: float, *, gradient: bool
) -> Tensor:
    num_runs, num_rows, num_columns = logits.shape
    losses = torch.empty((num_runs, num_rows), dtype=torch.float32, device=logits.device)
    _row[(num_runs * num_rows,)](
        logits,
        bias,
        targets,
        rows,
        losses,
        num_columns,
        logits.stride(1),
        num_rows,
        scale,
        0 if bias is None else bias.stride(0),
        *targets.stride(),
        *rows.stride(),
        HAS_BIAS=bias is not None,
        GRADIENT=gradient,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return losses.sum(dim=1)
