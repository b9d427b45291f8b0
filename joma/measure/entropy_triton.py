"""The GPU path: a Triton kernel that walks the keys once and keeps a few running sums for every row.

Legend: m rows of a block, n keys of a block, d head width. All sums are float32; nothing of size rows × keys is stored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.measure.masks import Problem, Rows

LOG2_E = 1.4426950408889634  # the kernel works in powers of two, which the hardware has an instruction for
LOG2_E_IN_KERNEL = tl.constexpr(LOG2_E)
WIDE_HEAD = 128  # head width from which a block holds fewer rows
LARGEST_HEAD = 256  # widest head whose rows and keys fit into the registers and the shared memory of a block

NUM_NUMBERS = 5  # of each row with companions: entropy, effective keys, first-key mass, mean distance, largest logit


def takes(problem: Problem) -> bool:
    """Whether the kernel knows this call: no soft cap or sink, mask and bias the same for every row, narrow heads."""
    return (
        problem.softcap is None
        and problem.sink is None
        and (problem.bias is None or problem.bias.shape[-2] == 1)
        and problem.mask_depends_on_keys_alone
        and problem.q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and problem.q.shape[-1] <= LARGEST_HEAD
        and min(problem.num_rows, problem.num_keys) > 0
    )


def triton_rows(problem: Problem) -> Rows:
    """Measure all rows by one launch: a program for each block of rows of each head."""
    q, k = problem.q, problem.k
    if q.device.type != "cuda" and isinstance(_rows_kernel, triton.JITFunction):  # Triton's interpreter takes any
        raise ValueError(
            f"Path 'triton' needs tensors on a GPU, got them on {q.device}. Move them there, or leave `path` out."
        )
    if not takes(problem):
        raise ValueError(
            "Path 'triton' needs rows and keys, no soft cap or sink, mask and bias the same for every row, heads of at "
            f"most {LARGEST_HEAD} in single or half precision. Leave `path` out to take one that can do more."
        )
    num_batch, num_heads, num_rows, dim = q.shape
    first = q  # which only companions ask for
    if problem.companions:
        first = problem.first_visible_key().to(torch.int32).expand(q.shape[:2]).contiguous()
    num_numbers = NUM_NUMBERS if problem.companions else 1
    out = torch.empty(num_numbers, num_batch, num_heads, num_rows, dtype=torch.float32, device=q.device)
    seen, bias = _per_key(problem.mask, problem, torch.int8), _per_key(problem.bias, problem, torch.float32)
    block = _blocks(dim, q.dtype)
    grid = (triton.cdiv(num_rows, block["BLOCK_M"]), num_batch * num_heads)
    with torch.cuda.device_of(q):  # kernels start on the current device, not on their data's
        _rows_kernel[grid](
            q,
            k,
            q if seen is None else seen,
            q if bias is None else bias,
            first,
            out,
            *q.stride(),
            *k.stride(),
            *_key_strides(seen),
            *_key_strides(bias),
            out.stride(0),
            num_heads,
            num_heads // k.shape[1],
            num_rows,
            k.shape[2],
            problem.offset,
            problem.window or 0,
            problem.scale * LOG2_E,
            CAUSAL=problem.causal,
            WINDOWED=problem.window is not None,
            MASKED=seen is not None,
            BIASED=bias is not None,
            COMPANIONS=problem.companions,
            DIM=dim,
            PRECISE=q.dtype == torch.float32,
            **block,
        )
    if not problem.companions:
        return Rows(entropy=out[0])
    entropy, effective, on_first, distance, top = out.unbind()
    return Rows(
        entropy=entropy, effective_keys=effective, first_key_mass=on_first, mean_distance=distance, max_logit=top
    )


def _blocks(dim: int, dtype: torch.dtype) -> dict[str, int]:
    """Block sizes for a head width, the fastest of a dozen on an H200; float32 operands take twice the room."""
    width = max(16, triton.next_power_of_2(dim))
    if dtype == torch.float32 or width > WIDE_HEAD:
        return {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_D": width, "num_warps": 4, "num_stages": 2}
    rows = 64 if width == WIDE_HEAD else 128
    return {"BLOCK_M": rows, "BLOCK_N": 128, "BLOCK_D": width, "num_warps": 4, "num_stages": 3}


def _per_key(tensor: Tensor | None, problem: Problem, dtype: torch.dtype) -> Tensor | None:
    """Expand a mask or bias that is the same for every row to (B, H, keys), by strides alone."""
    if tensor is None:
        return None
    return tensor[:, :, 0].to(dtype).expand(*problem.q.shape[:2], problem.num_keys)


def _key_strides(tensor: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if tensor is None else (tensor.stride(0), tensor.stride(1), tensor.stride(2))


@triton.jit
def _step(
    q_md, k_ptr, k_stride_n, k_stride_d, seen_ptr, seen_stride, bias_ptr, bias_stride,
    start, position_m, num_keys, window, scale,
    top, total, weighted, squares, moment,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr, EDGE: tl.constexpr,
    COMPANIONS: tl.constexpr, DIM: tl.constexpr, PRECISE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Take one block of keys into the running sums of a block of rows."""
    key_n = start + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    inside_n = key_n < num_keys
    k_dn = tl.load(
        k_ptr + key_n[None, :] * k_stride_n + d[:, None] * k_stride_d,
        mask=inside_n[None, :] & (d < DIM)[:, None],
        other=0.0,
    )
    s_mn = tl.dot(q_md, k_dn, input_precision="ieee" if PRECISE else "tf32") * scale
    if BIASED:
        s_mn += tl.load(bias_ptr + key_n * bias_stride, mask=inside_n, other=0.0)[None, :] * LOG2_E_IN_KERNEL
    visible_mn = inside_n[None, :] & (position_m[:, None] >= -1)
    if EDGE:
        if CAUSAL:
            visible_mn = visible_mn & (key_n[None, :] <= position_m[:, None])
        if WINDOWED:
            visible_mn = visible_mn & (tl.abs(key_n[None, :] - position_m[:, None]) < window)
        if MASKED:
            visible_mn = visible_mn & (tl.load(seen_ptr + key_n * seen_stride, mask=inside_n, other=0) != 0)[None, :]
        s_mn = tl.where(visible_mn, s_mn, float("-inf"))
    new_top = tl.maximum(top, tl.max(s_mn, axis=1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)  # rows that have seen nothing yet
    shrink = tl.exp2(top - base)
    x_mn = s_mn - base[:, None]
    e_mn = tl.exp2(x_mn)
    if EDGE:
        x_mn = tl.where(visible_mn, x_mn, 0.0)  # 0 · -inf counts as 0
    # Σ e^{s-m}(s-m) moves with m: the old sum shrinks, and every old term gains (old m - new m).
    gained = tl.where(total > 0, (top - base) * total, 0.0)
    weighted = shrink * (weighted + gained) + tl.sum(e_mn * x_mn, axis=1)
    total = shrink * total + tl.sum(e_mn, axis=1)
    if COMPANIONS:
        squares = shrink * shrink * squares + tl.sum(e_mn * e_mn, axis=1)
        if CAUSAL:  # every key lies behind its row: the distance is linear, and the row is added at the end
            moment = shrink * moment + tl.sum(e_mn * key_n.to(tl.float32)[None, :], axis=1)
        else:
            away_mn = tl.abs(key_n[None, :] - position_m[:, None]).to(tl.float32)
            moment = shrink * moment + tl.sum(e_mn * away_mn, axis=1)
    return new_top, total, weighted, squares, moment


@triton.jit
def _rows_kernel(
    q_ptr, k_ptr, seen_ptr, bias_ptr, first_key_ptr, out_ptr,
    q_stride_b, q_stride_h, q_stride_m, q_stride_d, k_stride_b, k_stride_g, k_stride_n, k_stride_d,
    seen_stride_b, seen_stride_h, seen_stride_n, bias_stride_b, bias_stride_h, bias_stride_n, out_stride,
    num_heads, heads_per_group, num_rows, num_keys, offset, window, scale,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    COMPANIONS: tl.constexpr, DIM: tl.constexpr, PRECISE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Walk the visible keys of one block of rows and write entropy, 1/Σp², first-key mass, distance and top logit."""
    # Later rows of a causal call see more keys: start with them, so that no long block is left for the end.
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = (tl.program_id(1) // num_heads).to(tl.int64)
    head = (tl.program_id(1) % num_heads).to(tl.int64)
    row_m = first_row + tl.arange(0, BLOCK_M)
    position_m = row_m + offset
    d = tl.arange(0, BLOCK_D)
    q_md = tl.load(
        q_ptr + batch * q_stride_b + head * q_stride_h + row_m[:, None] * q_stride_m + d[None, :] * q_stride_d,
        mask=(row_m < num_rows)[:, None] & (d < DIM)[None, :],
        other=0.0,
    )
    k_ptr += batch * k_stride_b + (head // heads_per_group) * k_stride_g
    seen_ptr += batch * seen_stride_b + head * seen_stride_h
    bias_ptr += batch * bias_stride_b + head * bias_stride_h

    start, stop = 0, num_keys
    whole = num_keys // BLOCK_N * BLOCK_N  # keys before this lie in blocks without an edge
    if CAUSAL:
        stop = tl.minimum(stop, first_row + BLOCK_M + offset)
        whole = tl.minimum(whole, tl.maximum(0, first_row + offset + 1) // BLOCK_N * BLOCK_N)
    if WINDOWED:
        start = tl.maximum(0, first_row + offset - window + 1) // BLOCK_N * BLOCK_N
        if not CAUSAL:
            stop = tl.minimum(stop, first_row + BLOCK_M + offset + window - 1)
        whole = start
    if MASKED:
        whole = start

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    moment = tl.zeros([BLOCK_M], tl.float32)
    for n in range(start, whole, BLOCK_N):
        top, total, weighted, squares, moment = _step(
            q_md, k_ptr, k_stride_n, k_stride_d, seen_ptr, seen_stride_n, bias_ptr, bias_stride_n,
            n, position_m, num_keys, window, scale, top, total, weighted, squares, moment,
            CAUSAL, WINDOWED, MASKED, BIASED, False, COMPANIONS, DIM, PRECISE, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    for n in range(whole, stop, BLOCK_N):
        top, total, weighted, squares, moment = _step(
            q_md, k_ptr, k_stride_n, k_stride_d, seen_ptr, seen_stride_n, bias_ptr, bias_stride_n,
            n, position_m, num_keys, window, scale, top, total, weighted, squares, moment,
            CAUSAL, WINDOWED, MASKED, BIASED, True, COMPANIONS, DIM, PRECISE, BLOCK_N, BLOCK_D,
        )  # fmt: skip

    out_ptr += tl.program_id(1).to(tl.int64) * num_rows + row_m
    written = row_m < num_rows
    tl.store(out_ptr, (tl.log2(total) - weighted / total) / LOG2_E_IN_KERNEL, mask=written)
    if COMPANIONS:
        first_key = tl.load(first_key_ptr + tl.program_id(1))
        k_d = tl.load(k_ptr + first_key * k_stride_n + d * k_stride_d, mask=d < DIM, other=0.0).to(tl.float32)
        s_m = tl.sum(q_md.to(tl.float32) * k_d[None, :], axis=1) * scale
        if BIASED:
            s_m += tl.load(bias_ptr + first_key * bias_stride_n) * LOG2_E_IN_KERNEL
        first_mass = tl.exp2(s_m - top) / total
        if CAUSAL:
            first_mass = tl.where(first_key <= position_m, first_mass, 0.0)
        if WINDOWED:
            first_mass = tl.where(tl.abs(first_key - position_m) < window, first_mass, 0.0)
        mean = moment / total
        tl.store(out_ptr + out_stride, total * total / squares, mask=written)
        tl.store(out_ptr + 2 * out_stride, first_mass, mask=written)
        tl.store(out_ptr + 3 * out_stride, position_m.to(tl.float32) - mean if CAUSAL else mean, mask=written)
        tl.store(out_ptr + 4 * out_stride, top / LOG2_E_IN_KERNEL, mask=written)
