r"""Attention entropy of any attention call, without an L×L matrix.

For $p = \mathrm{softmax}(s)$ a row's entropy is $H_i = \mathrm{lse}_i - \sum_j p_{ij}s_{ij}$. With $s = c\,QK^\top$
the sum is $c\,\langle q_i, \mathrm{Attn}(Q, K, V{=}K)_i\rangle$: one more attention call, and the log-sum-exp that
fused kernels return anyway. Three paths compute it: that identity, on CPUs where it is faster and only the entropy is
wanted; a Triton kernel on a GPU; exact row blocks for everything else. The result says which one ran.
"""

import importlib.util
import math
import pathlib
import platform
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.errors import UnknownNameError
from joma.measure.entropy_chunked import HIDDEN, chunked_rows, measure_logits, variances, visible_variance
from joma.measure.masks import (
    PerRow,
    Problem,
    Rows,
    added_up,
    in_full_precision,
    read_bias,
    read_mask,
    read_rows,
    read_sink,
    visible_logits,
)
from joma.measure.tensors import required_tensor, tensor_with_axes, working_dtype

FEW_THREADS = 8
"""Up to this many threads a CPU that is not Intel's takes row blocks: they multiply half as much, which pays where
torch's products, made for Intel, are slow. One fused call needs less memory and keeps any number of cores busy."""
CHUNK_BYTES = 2**26  # largest block of given logits held at once


class Path(StrEnum):
    """How the numbers were computed."""

    IDENTITY = "identity"  # fused attention with V = K (entropy alone, on a CPU)
    TRITON = "triton"  # one walk over the keys in a Triton kernel (GPU)
    CHUNKED = "chunked"  # exact softmax over blocks of rows (anywhere)

    @classmethod
    def _missing_(cls, value: object) -> "Path":
        raise UnknownNameError("path", str(value), [known.value for known in cls])


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStatistics:
    """Numbers of one attention call, row by row; rows that see no key or do not count are NaN.

    A softmax column that is no key (a learned sink) has a number of its own, `sink_mass`. Everything else is of the
    weights p on the visible keys, which sum to 1 without it.
    """

    entropy: PerRow  # in nats, at least 0
    fraction: PerRow
    """Entropy over its maximum, the log of the number of visible keys; NaN where one key or none is visible."""
    num_visible: Int[Tensor, "b h rows"]  # visible keys of each row; axes over which it does not vary are 1
    effective_keys: PerRow | None
    r"""$1/\sum_j p_j^2$, from 1 to the number of visible keys."""
    first_key_mass: PerRow | None  # weight on the first key that any counted row can see
    mean_distance: PerRow | None
    r"""$\sum_j p_j |i - j|$."""
    max_logit: PerRow | None  # largest visible logit, scale, bias and soft cap included
    sink_mass: PerRow | None = None  # weight on softmax columns that are no keys; None for a call without
    logit_variance: PerRow | None = None  # variance of a row's visible logits
    key_bias_share: Float[Tensor, "B H 1"] | None = None
    r"""Variance of $\bar q\cdot k_j$ over that of the logits, each over a row's visible keys and summed over the rows:
    how much of the attention is the same for every query. $\bar q$ is the mean query of a sequence. None where a model
    has built its logits itself."""
    path: Path
    lowest_before_clamp: Float[Tensor, " B"]
    """The smallest entropy of each sequence before it was clamped at 0."""


def attention_entropy(  # noqa: PLR0913 (an attention call has that many arguments)
    q: Float[Tensor, "B H rows D"],
    k: Float[Tensor, "B G keys D"],
    *,
    causal: bool = False,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    window: int | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    offset: int = 0,
    rows: Bool[Tensor, "B rows"] | None = None,
    sink: Float[Tensor, "..."] | None = None,
    companions: bool = True,
    moments: bool = False,
    path: Path | None = None,
) -> AttentionStatistics:
    r"""Measure every row of softmax(scale·QKᵀ + bias) over the visible keys, in memory linear in the length.

    Args:
        q: queries.
        k: keys; with fewer heads than q (grouped queries), their number must divide that of q.
        causal: whether a row sees no key after its own position.
        mask: boolean (True is visible) or additive (-900 and less hides, whatever a model writes for minus infinity);
            broadcasts to (B, H, rows, keys). Integers, and numbers that are all 0 or 1, are refused: added to the
            logits they would hide nothing.
        window: how many of the nearest positions a row sees, on both sides when not causal.
        bias: added to the logits (ALiBi, T5); broadcasts as the mask does, and hides nothing.
        scale: of the products; 1/√D by default.
        softcap: c turns s into c·tanh(s/c) before bias and mask.
        offset: position of the first row among the keys.
        rows: rows that count, False for padding; None for all.
        sink: logit of a learned sink, a softmax column that is no key; broadcasts to (B, H, rows).
        companions: False leaves out everything but the entropy.
        moments: whether to measure the variance of the logits and the key-bias share, by blocks of rows.
        path: forces a way of computing; None takes the fastest.

    >>> q = torch.zeros(1, 1, 4, 8)
    >>> attention_entropy(q, q, causal=True).entropy.exp().flatten().round(decimals=3).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    _refuse_unfit(q, k)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"`softcap` must be positive and finite, got {softcap}. Leave it out where there is none.")
    if window is not None and window < 1:
        raise ValueError(f"`window` must be at least 1, got {window}. Pass None for no window.")
    shape = (*q.shape[:3], k.shape[2])
    parts = read_mask(mask, shape, q.device)
    problem = Problem(
        q=q.detach(),
        k=k.detach(),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        causal=causal,
        window=window,
        offset=offset,
        mask=parts.visible,
        bias=added_up(parts.added, read_bias(bias, shape, q.device)),
        sink=read_sink(sink if companions else None, shape, q.device),
        rows=read_rows(rows, shape, q.device),
        companions=companions,
    )
    chosen = _fastest_path(problem) if path is None else Path(path)
    measure = {Path.IDENTITY: _identity_rows, Path.TRITON: _triton_rows, Path.CHUNKED: chunked_rows}[chosen]
    num_visible = problem.count_visible()
    empty = None if problem.every_row_sees_a_key else num_visible == 0
    if problem.rows is not None:
        empty = ~problem.rows[:, None] if empty is None else empty | ~problem.rows[:, None]
    of_logits, share = None, None
    with in_full_precision(q.device):
        found = measure(problem)
        if moments:
            of_logits, of_keys = variances(problem, None if empty is None else ~empty)
            both = torch.stack((of_keys, of_logits))
            own, total = (both if empty is None else both.masked_fill(empty, 0.0)).sum(-1, keepdim=True)
            share = own / total.masked_fill(total <= 0, torch.nan)
    return _statistics(found, num_visible, chosen, empty, problem.sink, of_logits, share)


def logits_entropy(
    logits: Float[Tensor, "B H rows keys"],
    *,
    offset: int = 0,
    rows: Bool[Tensor, "B rows"] | None = None,
    sink: Float[Tensor, "..."] | None = None,
    companions: bool = True,
    moments: bool = False,
) -> AttentionStatistics:
    """Measure every row of softmax(logits), for logits that a model has built itself; no second tensor of their size.

    Keys at -9000 or 900 below the largest of their row are hidden. The other arguments are `attention_entropy`'s.

    >>> logits = torch.zeros(1, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    >>> logits_entropy(logits).entropy.exp().flatten().round(decimals=4)
    tensor([1., 2., 3., 4.])
    """
    logits = tensor_with_axes("logits", logits, "B H rows keys").detach()
    shape = tuple(logits.shape)
    num_batch, num_heads, num_rows, num_keys = shape
    dtype = working_dtype(logits)
    step = max(1, CHUNK_BYTES // max(1, num_batch * num_heads * num_keys * dtype.itemsize))
    seen = torch.zeros(num_batch, num_heads, num_keys, dtype=torch.bool, device=logits.device)
    counted = read_rows(rows, shape, logits.device)
    parts = []
    for first in range(0, max(num_rows, 1), step):
        block = logits[:, :, first : first + step].to(dtype)
        visible = visible_logits(block)
        seen |= (visible if counted is None else visible & counted[:, None, first : first + step, None]).any(dim=-2)
        variance = {"logit_variance": visible_variance(block, visible)} if moments else {}
        s = torch.where(visible, block, HIDDEN)
        with in_full_precision(logits.device):
            found = measure_logits(s, torch.empty_like(s), first_row=first + offset, first_key=0, companions=companions)
        parts.append(found | variance | {"num_visible": visible.sum(dim=-1)})
    joined = {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]}
    num_visible, of_logits = joined.pop("num_visible"), joined.pop("logit_variance", None)
    if companions:
        first_key = seen.to(torch.uint8).argmax(dim=-1)[..., None, None].expand(-1, -1, num_rows, 1)
        joined["first_key_mass"] = (logits.gather(-1, first_key)[..., 0].to(dtype) - joined["lse"]).exp()
    empty = num_visible == 0 if counted is None else (num_visible == 0) | ~counted[:, None]
    sink = read_sink(sink, shape, logits.device)
    return _statistics(joined, num_visible, Path.CHUNKED, empty, sink, of_logits)


def _refuse_unfit(q: Tensor, k: Tensor) -> None:
    for name, tensor in (("q", required_tensor("q", q)), ("k", required_tensor("k", k))):
        if not tensor.is_floating_point():
            raise TypeError(f"`{name}` must be floating point, got {tensor.dtype}. Pass `{name}.float()`.")
    if q.ndim != 4 or k.ndim != 4 or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1]:  # noqa: PLR2004
        raise ValueError(
            f"`q` (B, H, rows, D) and `k` (B, G, keys, D) need one B and D, got {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"Heads of `k` must divide those of `q`, got {k.shape[1]} and {q.shape[1]}.")
    if q.device != k.device:
        raise ValueError(f"`k` must be where `q` is, on {q.device}, got it on {k.device}. Pass `k.to(q.device)`.")


def _fastest_path(problem: Problem) -> Path:
    """Choose a path; Triton is imported only for a GPU."""
    kind = problem.q.device.type
    if kind == "cpu" and _identity_suffices(problem) and (torch.get_num_threads() > FEW_THREADS or is_intel()):
        return Path.IDENTITY
    if kind == "cuda" and importlib.util.find_spec("triton") is not None:
        from joma.measure import entropy_triton  # noqa: PLC0415

        return Path.TRITON if entropy_triton.takes(problem) else Path.CHUNKED
    return Path.CHUNKED


@cache
def is_intel() -> bool:
    """Whether the processor is Intel's, by a file on Linux and by the system's own words elsewhere."""
    try:
        processor = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        processor = platform.processor()
    return "GenuineIntel" in processor


def _identity_suffices(problem: Problem) -> bool:
    """Whether a call of fused attention gives everything that is asked."""
    return (
        not problem.companions
        and problem.softcap is None
        and problem.bias is None
        and problem.window is None
        and problem.offset == 0
        and min(problem.num_rows, problem.num_keys) > 0
    )


def _identity_rows(problem: Problem) -> Rows:
    """Measure all rows by a fused attention call whose values are the keys themselves."""
    if not _identity_suffices(problem):
        raise ValueError(
            "Path 'identity' needs `companions=False`, keys, and no bias, soft cap, window or offset. "
            "Leave `path` out to take one that can do more."
        )
    dtype = working_dtype(problem.q)
    q, k = problem.q.to(dtype), problem.k.to(dtype)
    # Softmax does not feel a shift of all keys; without it large common offsets would cancel digits.
    k = k - k.mean(dim=2, keepdim=True)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # older kernels read grouped keys wrongly, without a word
    hidden, mask = None, problem.mask
    if mask is not None:
        hidden = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
        hidden = hidden.expand(*mask.shape[:3], problem.num_keys)
    mean_key, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, k, 0.0, problem.causal, attn_mask=hidden, scale=problem.scale
    )
    return {"entropy": lse - problem.scale * torch.einsum("bhrd,bhrd->bhr", q, mean_key)}


def _triton_rows(problem: Problem) -> Rows:
    if importlib.util.find_spec("triton") is None:
        raise ValueError("Path 'triton' needs Triton, which is not installed. Leave `path` out to take one without it.")
    from joma.measure import entropy_triton  # noqa: PLC0415

    return entropy_triton.triton_rows(problem)


def _statistics(
    rows: Rows,
    num_visible: Int[Tensor, "b h rows"],
    path: Path,
    empty: Bool[Tensor, "#B #H rows"] | None,
    sink: PerRow | None,
    logit_variance: PerRow | None,
    key_bias_share: Float[Tensor, "B H 1"] | None = None,
) -> AttentionStatistics:
    """Set rows that are empty (None: no row is) to NaN, and clamp the entropy at zero."""
    raw = rows["entropy"]
    empty = None if empty is None else empty.expand_as(raw)

    def strike(values: Tensor, by: float = torch.nan) -> Tensor:
        return values if empty is None else values.masked_fill(empty, by)

    names = ("effective_keys", "first_key_mass", "mean_distance", "max_logit")
    companions = {name: rows.get(name) for name in names} | {"logit_variance": logit_variance}
    if sink is not None and "lse" in rows:
        companions["sink_mass"] = torch.sigmoid(sink.to(raw.dtype) - rows["lse"])
    entropy = strike(raw.clamp(min=0))
    most = num_visible.to(entropy.dtype).log()
    most = most.masked_fill(num_visible <= 1, torch.nan)  # of one key or none there is no fraction
    return AttentionStatistics(
        entropy=entropy,
        fraction=entropy / most,
        num_visible=num_visible,
        **{name: None if values is None else strike(values) for name, values in companions.items()},
        key_bias_share=key_bias_share,
        path=path,
        lowest_before_clamp=strike(raw, torch.inf).amin(dim=(1, 2)) if raw.numel() else entropy.new_zeros(len(raw)),
    )
