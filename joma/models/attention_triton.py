"""Attention over short windows, with or without dropout of its weights, as one kernel each way (GPU).

A window of some ten tokens is too small for the general kernels: its products are not aligned, and each of logits,
weights, mask and dropped weights would pass through memory. Here a program holds one head of one sequence, draws the
mask of dropout from the same hash as `joma.randomness`, and writes only the result. The backward recomputes.
"""

import sys
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.randomness import FIRST, GOLDEN, LOW_31, SECOND, dropped_below

_GOLDEN, _FIRST, _SECOND, _LOW_31 = (tl.constexpr(number) for number in (GOLDEN, FIRST, SECOND, LOW_31))
_SMALLEST = 16
_FEW = 512
"""Heads of all sequences up to which each gets more of the GPU."""


class _Shape(NamedTuple):
    """What a program takes of the GPU."""

    columns: int
    """Of the width of a head, at a time."""
    num_warps: int
    num_stages: int
    """Loads under way at once: more than one hide how long memory takes, and each has its room."""

    def shared_bytes(self, block: int, size: int) -> int:
        """Return a bound on its shared memory for windows of a block, of numbers of this size.

        Weights and their gradient, in two layouts each, and rows of queries, keys, values and gradients in each stage:
        what the compiler takes at most, whichever the GPU and the precision of products.
        """
        return (4 * block + 3 * self.num_stages * self.columns) * block * size


_OF_FEW, _OF_MANY, _SMALLEST_SHAPE = _Shape(64, 8, 3), _Shape(32, 4, 3), _Shape(32, 4, 1)


@triton.jit
def _keep(stream, run, index, threshold):
    offset = tl.load(stream + 2 * run)
    injected = tl.load(stream + 2 * run + 1)
    x = (index ^ offset) * _GOLDEN
    x = (x ^ ((x >> 16) & 0xFFFF)) * _FIRST
    x = x ^ injected
    x = (x ^ ((x >> 13) & 0x7FFFF)) * _SECOND
    x = (x ^ ((x >> 16) & 0xFFFF)) & _LOW_31
    return x >= threshold


@triton.jit
def _weights(
    base, row_stride, part_stride, bias, rows, columns, length, width, scale,
    BIASED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    s = tl.zeros((BLOCK_L, BLOCK_L), dtype=tl.float32)
    for start in range(0, width, BLOCK_D):
        seen = (rows[:, None] < length) & (start + columns[None, :] < width)
        at = base + rows[:, None] * row_stride + start + columns[None, :]
        q = tl.load(at, mask=seen, other=0.0)
        k = tl.load(at + part_stride, mask=seen, other=0.0)
        s += tl.dot(q, tl.trans(k), input_precision=PRECISION)
    visible = rows[None, :] < length
    if CAUSAL:
        visible = visible & (rows[None, :] <= rows[:, None])
    s = s * scale
    if BIASED:
        s += tl.load(bias + rows, mask=rows < length, other=0.0)[None, :]
    s = tl.where(visible, s, float("-inf"))
    p = tl.exp(s - tl.max(s, axis=1)[:, None])
    return p / tl.sum(p, axis=1)[:, None]


@triton.jit
def _forward(
    qkv, out, bias, stream, threshold, kept_scale, num_sequences, length, num_heads, width, scale,
    DROPPED: tl.constexpr, BIASED: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // num_heads
    head = tl.program_id(0) % num_heads
    row_stride = 3 * num_heads * width
    base = qkv + sequence.to(tl.int64) * length * row_stride + head * width
    rows = tl.arange(0, BLOCK_L)
    columns = tl.arange(0, BLOCK_D)
    p = _weights(
        base, row_stride, num_heads * width, bias + sequence * length, rows, columns, length, width, scale,
        BIASED, CAUSAL, BLOCK_L, BLOCK_D, PRECISION,
    )  # fmt: skip
    keep = rows[:, None] >= 0
    if DROPPED:
        index = ((sequence % num_sequences * num_heads + head) * length + rows[:, None]) * length + rows[None, :]
        keep = _keep(stream, sequence // num_sequences, index, threshold)
    dropped = tl.where(keep, p * kept_scale, 0.0).to(qkv.dtype.element_ty)
    out_base = out + sequence.to(tl.int64) * length * num_heads * width + head * width
    for start in range(0, width, BLOCK_D):
        seen = (rows[:, None] < length) & (start + columns[None, :] < width)
        at = base + rows[:, None] * row_stride + 2 * num_heads * width + start + columns[None, :]
        v = tl.load(at, mask=seen, other=0.0)
        mixed = tl.dot(dropped, v, input_precision=PRECISION)
        to = out_base + rows[:, None] * (num_heads * width) + start + columns[None, :]
        tl.store(to, mixed.to(out.dtype.element_ty), mask=seen)


@triton.jit
def _backward(
    qkv, gradient, out, bias, stream, threshold, kept_scale, num_sequences, length, num_heads, width, scale,
    DROPPED: tl.constexpr, BIASED: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // num_heads
    head = tl.program_id(0) % num_heads
    row_stride = 3 * num_heads * width
    part = num_heads * width
    base = qkv + sequence.to(tl.int64) * length * row_stride + head * width
    to_base = out + sequence.to(tl.int64) * length * row_stride + head * width
    gradient_base = gradient + sequence.to(tl.int64) * length * part + head * width
    rows = tl.arange(0, BLOCK_L)
    columns = tl.arange(0, BLOCK_D)
    p = _weights(
        base, row_stride, part, bias + sequence * length, rows, columns, length, width, scale,
        BIASED, CAUSAL, BLOCK_L, BLOCK_D, PRECISION,
    )  # fmt: skip
    keep = rows[:, None] >= 0
    if DROPPED:
        index = ((sequence % num_sequences * num_heads + head) * length + rows[:, None]) * length + rows[None, :]
        keep = _keep(stream, sequence // num_sequences, index, threshold)
    dp = tl.zeros((BLOCK_L, BLOCK_L), dtype=tl.float32)
    for start in range(0, width, BLOCK_D):
        seen = (rows[:, None] < length) & (start + columns[None, :] < width)
        v = tl.load(base + rows[:, None] * row_stride + 2 * part + start + columns[None, :], mask=seen, other=0.0)
        do = tl.load(gradient_base + rows[:, None] * part + start + columns[None, :], mask=seen, other=0.0)
        dp += tl.dot(do, tl.trans(v), input_precision=PRECISION)
    dp = tl.where(keep, dp * kept_scale, 0.0)
    dropped = tl.where(keep, p * kept_scale, 0.0).to(qkv.dtype.element_ty)
    ds = (p * (dp - tl.sum(p * dp, axis=1)[:, None]) * scale).to(qkv.dtype.element_ty)
    for start in range(0, width, BLOCK_D):
        seen = (rows[:, None] < length) & (start + columns[None, :] < width)
        at = rows[:, None] * row_stride + start + columns[None, :]
        q = tl.load(base + at, mask=seen, other=0.0)
        k = tl.load(base + at + part, mask=seen, other=0.0)
        do = tl.load(gradient_base + rows[:, None] * part + start + columns[None, :], mask=seen, other=0.0)
        dq = tl.dot(ds, k, input_precision=PRECISION)
        dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
        dv = tl.dot(tl.trans(dropped), do, input_precision=PRECISION)
        tl.store(to_base + at, dq.to(out.dtype.element_ty), mask=seen)
        tl.store(to_base + at + part, dk.to(out.dtype.element_ty), mask=seen)
        tl.store(to_base + at + 2 * part, dv.to(out.dtype.element_ty), mask=seen)


@torch.library.custom_op("joma::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor, stream: Tensor | None, rate: float, causal: bool, key_bias: Tensor | None = None
) -> Tensor:
    """Attend within each sequence, (R·B, L, 3, H, Dh) to (R·B, L, H, Dh), the weights dropped by the runs' streams.

    Without a stream nothing is dropped. `key_bias` (R, B, L) is added to the logits.
    """
    num, length, _, heads, width = qkv.shape
    out = torch.empty((num, length, heads, width), dtype=qkv.dtype, device=qkv.device)
    packed = qkv.contiguous()
    with torch.cuda.device_of(packed):  # kernels start on the current device, not on their data's
        _forward[(num * heads,)](
            packed,
            out,
            _bias(packed, key_bias),
            *_dropout(stream, rate),
            *_settings(packed, stream),
            **_sizes(packed, stream, causal, key_bias),
        )
    return out


@torch.library.custom_op("joma::short_attention_backward", mutates_args=())
def _short_attention_backward(
    gradient: Tensor, qkv: Tensor, stream: Tensor | None, rate: float, causal: bool, key_bias: Tensor | None = None
) -> Tensor:
    packed = qkv.contiguous()
    out = torch.empty_like(packed)
    with torch.cuda.device_of(packed):  # kernels start on the current device, not on their data's
        _backward[(qkv.shape[0] * qkv.shape[3],)](
            packed,
            gradient.contiguous(),
            out,
            _bias(packed, key_bias),
            *_dropout(stream, rate),
            *_settings(packed, stream),
            **_sizes(packed, stream, causal, key_bias),
        )
    return out


def _settings(qkv: Tensor, stream: Tensor | None) -> tuple[int | float, ...]:
    num, length, _, heads, width = qkv.shape
    return num // (1 if stream is None else stream.shape[0]), length, heads, width, width**-0.5


def _bias(qkv: Tensor, key_bias: Tensor | None) -> Tensor:
    """Return the bias in single precision; without one something to point at, which is not read."""
    return qkv if key_bias is None else key_bias.float().contiguous()


def _dropout(stream: Tensor | None, rate: float) -> tuple[Tensor | None, int, float]:
    return (None, 0, 1.0) if stream is None else (stream.contiguous(), dropped_below(rate), 1 / (1 - rate))


def _sizes(qkv: Tensor, stream: Tensor | None, causal: bool, key_bias: Tensor | None) -> dict[str, bool | int | str]:
    block = max(_SMALLEST, triton.next_power_of_2(qkv.shape[1]))
    shape = _shape(qkv.shape[0] * qkv.shape[3], block, qkv.itemsize, _shared_bytes(qkv.device))
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {
        "DROPPED": stream is not None,
        "BIASED": key_bias is not None,
        "CAUSAL": causal,
        "BLOCK_L": block,
        "BLOCK_D": shape.columns,
        "PRECISION": precision,
        "num_warps": shape.num_warps,
        "num_stages": shape.num_stages,
    }


def _shape(num_heads: int, block: int, size: int, shared: int) -> _Shape:
    """Return the largest shape that suits as many heads and surely fits into the shared memory."""
    wanted = (_OF_FEW, _OF_MANY) if num_heads <= _FEW else (_OF_MANY,)
    return next((each for each in wanted if each.shared_bytes(block, size) <= shared), _SMALLEST_SHAPE)


@cache
def _shared_bytes(device: torch.device) -> int:
    """Return the shared memory that a program may take; in the interpreter there is no such limit."""
    if device.type != "cuda":
        return sys.maxsize
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


@short_attention.register_fake
def _(qkv: Tensor, stream: Tensor | None, rate: float, causal: bool, key_bias: Tensor | None = None) -> Tensor:
    return qkv.new_empty((*qkv.shape[:2], *qkv.shape[3:]))


@_short_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, stream: Tensor | None, rate: float, causal: bool, key_bias: Tensor | None = None
) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output) -> None:
    qkv, stream, *ctx.settings, key_bias = inputs
    ctx.save_for_backward(qkv, stream, key_bias)


def _differentiate(ctx, gradient):
    qkv, stream, key_bias = ctx.saved_tensors
    return _short_attention_backward(gradient, qkv, stream, *ctx.settings, key_bias), None, None, None, None


short_attention.register_autograd(_differentiate, setup_context=_remember)
