"""Softmax cross-entropy of rows of logits and its gradient in place, in two walks over the logits (GPU).

The first finds the log-sum-exp of each row; a program takes a few rows, so that they share what they read of the bias.
The second writes the gradient over the logits; a program takes some columns of many rows, so that their sum, which
goes to the gradient of the bias, stays in registers. Both walk a row to its end, which is a whole number of wide loads
where the output matrix has room for whole tiles, and leave out by value what lies behind the vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _ROW_BLOCK, _ROW_WARPS = 4, 1024, 4
_LANE = 8  # neighbours that a thread loads at once: it keeps a sum of its own, and threads meet at the end of a row
_COLUMN_ROWS, _COLUMN_BLOCK, _COLUMN_WARPS = 8, 256, 4
_GROUP_ROWS = 352


@triton.jit
def _row_totals(
    logits, bias, targets, rows, losses, totals, num_words, num_rows, scale,
    logits_run, logits_row, bias_run, targets_run, targets_row, rows_run, rows_row,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < num_rows
    columns = tl.arange(0, BLOCK)
    base = logits + run * logits_run
    top = tl.full((ROWS, BLOCK // LANE), -1e30, dtype=tl.float32)
    total = tl.zeros((ROWS, BLOCK // LANE), dtype=tl.float32)
    for start in range(0, num_words, BLOCK):
        seen = start + columns < num_words
        at = row[:, None] * logits_row + start + columns[None, :]
        within = exists[:, None] & (start + columns < logits_row)[None, :]
        s = tl.load(base + at, mask=within, other=0.0).to(tl.float32)
        s += tl.load(bias + run * bias_run + start + columns, mask=seen, other=0.0)[None, :]
        s = tl.where(seen[None, :], s * scale, float("-inf")).reshape(ROWS, BLOCK // LANE, LANE)
        higher = tl.maximum(top, tl.max(s, axis=2))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(s - higher[:, :, None]), axis=2)
        top = higher
    highest = tl.max(top, axis=1)
    whole = tl.sum(total * tl.exp(top - highest[:, None]), axis=1)
    log_total = highest + tl.log(tl.where(exists, whole, 1.0))
    target = tl.load(targets + run * targets_run + row * targets_row, mask=exists, other=0)
    picked = tl.load(base + row * logits_row + target, mask=exists, other=0.0).to(tl.float32)
    picked += tl.load(bias + run * bias_run + target)
    weight = tl.load(rows + run * rows_run + row * rows_row, mask=exists, other=0.0).to(tl.float32)
    tl.store(losses + run * num_rows + row, (log_total - picked * scale) * weight, mask=exists)
    tl.store(totals + run * num_rows + row, log_total, mask=exists)


@triton.jit
def _column_gradients(
    logits, bias, targets, rows, totals, sums, num_words, num_rows, scale,
    logits_run, logits_row, bias_run, targets_run, targets_row, rows_run, rows_row,
    HAS_SUMS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = columns < num_words
    within = columns < logits_row
    base = logits + run * logits_run
    added = tl.load(bias + run * bias_run + columns, mask=seen, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, GROUP, ROWS):
        row = tl.program_id(1) * GROUP + start + tl.arange(0, ROWS)
        exists = row < num_rows
        both = exists[:, None] & within[None, :]
        at = base + row[:, None] * logits_row + columns[None, :]
        s = (tl.load(at, mask=both, other=0.0).to(tl.float32) + added[None, :]) * scale
        log_total = tl.load(totals + run * num_rows + row, mask=exists, other=0.0)
        target = tl.load(targets + run * targets_run + row * targets_row, mask=exists, other=-1).to(tl.int32)
        weight = tl.load(rows + run * rows_run + row * rows_row, mask=exists, other=0.0).to(tl.float32) * scale
        right = tl.where(columns[None, :] == target[:, None], 1.0, 0.0)
        gradient = (tl.exp(tl.minimum(s - log_total[:, None], 0.0)) - right) * weight[:, None]
        gradient = tl.where(seen[None, :], gradient, 0.0)
        tl.store(at, gradient.to(logits.dtype.element_ty), mask=both)
        total += gradient  # rows that do not exist have weight 0
    if HAS_SUMS:
        place = tl.program_id(1).to(tl.int64) * tl.num_programs(2) + run
        tl.store(sums + place * num_words + columns, tl.sum(total, axis=0), mask=seen)


def differentiate(
    logits: Tensor,
    bias: Tensor,
    targets: Tensor,
    rows: Tensor,
    scale: float,
    bias_gradient: Tensor | None,
    *,
    add: bool,
) -> Tensor:
    """Return each run's weighted loss; overwrite the logits (R, N, W) by their gradient, and fill or add the bias's.

    The bias (R, V) says how many of the columns are words. The gradient of the others is zero.
    """
    losses, totals = _totals(logits, bias, targets, rows, scale)
    num_runs, num_rows, _ = logits.shape
    num_groups = triton.cdiv(num_rows, _GROUP_ROWS)
    # Groups of rows leave their sums side by side: added up by whoever comes first, the last bit would be chance.
    sums = None if bias_gradient is None else bias.new_empty((num_groups, *bias.shape), dtype=torch.float32)
    with torch.cuda.device_of(logits):  # kernels start on the current device, not on their data's
        _column_gradients[(triton.cdiv(logits.shape[2], _COLUMN_BLOCK), num_groups, num_runs)](
            logits,
            bias,
            targets,
            rows,
            totals,
            sums,
            bias.shape[1],
            num_rows,
            scale,
            *_strides(logits, bias, targets, rows),
            HAS_SUMS=sums is not None,
            GROUP=_GROUP_ROWS,
            ROWS=_COLUMN_ROWS,
            BLOCK=_COLUMN_BLOCK,
            num_warps=_COLUMN_WARPS,
        )
    if bias_gradient is not None and sums is not None:
        bias_gradient.add_(sums.sum(dim=0)) if add else bias_gradient.copy_(sums.sum(dim=0))
    return losses.sum(dim=1)


def value(logits: Tensor, bias: Tensor, targets: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Return each run's weighted loss; the logits stay."""
    return _totals(logits, bias, targets, rows, scale)[0].sum(dim=1)


def _totals(logits: Tensor, bias: Tensor, targets: Tensor, rows: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return weighted loss and log-sum-exp of each row."""
    num_runs, num_rows, _ = logits.shape
    losses, totals = torch.empty((2, num_runs, num_rows), dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):  # kernels start on the current device, not on their data's
        _row_totals[(triton.cdiv(num_rows, _ROWS), num_runs)](
            logits,
            bias,
            targets,
            rows,
            losses,
            totals,
            bias.shape[1],
            num_rows,
            scale,
            *_strides(logits, bias, targets, rows),
            ROWS=_ROWS,
            BLOCK=_ROW_BLOCK,
            LANE=_LANE,
            num_warps=_ROW_WARPS,
        )
    return losses, totals


def _strides(logits: Tensor, bias: Tensor, targets: Tensor, rows: Tensor) -> tuple[int, ...]:
    return (*logits.stride()[:2], bias.stride(0), *targets.stride(), *rows.stride())
