"""Softmax cross-entropy of rows of logits and its gradient in place, one program a row (GPU)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program holds at a time; the second walk over a row finds it in the cache."""
NUM_WARPS = 8


@triton.jit
def _row(
    logits,
    targets,
    rows,
    losses,
    num_columns,
    num_rows,
    scale,
    rows_run,
    rows_row,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    run = at // num_rows
    row = at % num_rows
    base = logits + at * num_columns
    columns = tl.arange(0, BLOCK)
    top = float("-inf")
    total = 0.0
    for start in range(0, num_columns, BLOCK):
        seen = start + columns < num_columns
        s = tl.load(base + start + columns, mask=seen, other=float("-inf")).to(tl.float32) * scale
        higher = tl.maximum(top, tl.max(s, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(s - higher), axis=0)
        top = higher
    log_total = top + tl.log(total)
    target = tl.load(targets + at)
    weight = tl.load(rows + run * rows_run + row * rows_row).to(tl.float32)
    picked = tl.load(base + target).to(tl.float32) * scale
    tl.store(losses + at, (log_total - picked) * weight)
    if GRADIENT:
        for start in range(0, num_columns, BLOCK):
            seen = start + columns < num_columns
            s = tl.load(base + start + columns, mask=seen, other=float("-inf")).to(tl.float32) * scale
            gradient = tl.exp(s - log_total) - tl.where(start + columns == target, 1.0, 0.0)
            tl.store(base + start + columns, (gradient * weight * scale).to(logits.dtype.element_ty), mask=seen)


def differentiate(logits: Tensor, targets: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Return each run's weighted loss and overwrite the logits (R, N, V), contiguous, by their gradient."""
    return _launch(logits, targets, rows, scale, gradient=True)


def value(logits: Tensor, targets: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Return each run's weighted loss; the logits stay."""
    return _launch(logits, targets, rows, scale, gradient=False)


def _launch(logits: Tensor, targets: Tensor, rows: Tensor, scale: float, *, gradient: bool) -> Tensor:
    num_runs, num_rows, num_columns = logits.shape
    losses = torch.empty((num_runs, num_rows), dtype=torch.float32, device=logits.device)
    grid = (num_runs * num_rows,)
    _row[grid](
        logits,
        targets.contiguous(),
        rows,
        losses,
        num_columns,
        num_rows,
        scale,
        *rows.stride(),
        GRADIENT=gradient,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return losses.sum(dim=1)
