r"""Attention entropy of any attention call, with no L×L matrix.

For $p = \mathrm{softmax}(s)$ a row's entropy is $H_i = \mathrm{lse}_i - \sum_j p_{ij}s_{ij}$. With $s = c\,QK^\top$
the sum is $c\,\langle q_i, \mathrm{Attn}(Q, K, V{=}K)_i\rangle$: one more attention call, and the log-sum-exp that
fused kernels return anyway. Three paths compute it: that identity where one of Intel's CPUs, or one of many cores, is
asked for the entropy alone, a Triton kernel on a GPU, and exact row chunks for all else. The result says which one ran.
"""

import importlib.util
import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.errors import UnknownNameError
from joma.measure import entropy_identity
from joma.measure.entropy_chunked import chunked_rows
from joma.measure.masks import Problem, Rows, Visibility, in_full_precision, read_bias, read_mask
from joma.measure.tensors import required_tensor

Queries = Float[Tensor, "B H rows D"]
Keys = Float[Tensor, "B G keys D"]
PerRow = Float[Tensor, "B H rows"]


class Path(StrEnum):
    """How the numbers were computed."""

    IDENTITY = "identity"
    """Fused attention with V = K (entropy alone, on a CPU of many cores)."""
    TRITON = "triton"
    """One walk over the keys in a Triton kernel (GPU)."""
    CHUNKED = "chunked"
    """Exact softmax over blocks of rows (anywhere)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStatistics:
    """What one attention call looks like, row by row; rows that see no key are NaN."""

    entropy: PerRow
    """In nats, at least 0."""
    fraction: PerRow
    """Entropy over its maximum, the log of the number of visible keys; NaN where one key or none is visible."""
    num_visible: Int[Tensor, "b h rows"]
    """Visible keys of each row; axes over which it does not vary are 1."""
    effective_keys: PerRow | None
    r"""$1/\sum_j p_j^2$, from 1 to the number of visible keys."""
    sink_mass: PerRow | None
    """Weight on the first key that any row can see."""
    mean_distance: PerRow | None
    r"""$\sum_j p_j |i - j|$."""
    max_logit: PerRow | None
    """Largest visible logit, scale, bias and soft cap included."""
    path: Path
    lowest_before_clamp: Float[Tensor, ""]
    """The smallest entropy before it was clamped at 0; a tensor, so that nobody waits for the device."""


def attention_entropy(  # noqa: PLR0913 (an attention call has that many parts)
    q: Queries,
    k: Keys,
    *,
    causal: bool = False,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    window: int | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    offset: int = 0,
    companions: bool = True,
    path: Path | None = None,
) -> AttentionStatistics:
    r"""Measure every row of softmax(scale·QKᵀ + bias) over the visible keys, in memory linear in the length.

    Grouped queries: k may have fewer heads, as long as they divide those of q. `mask` is boolean (True is visible) or
    additive (-9000 and less hides, whatever a model writes for minus infinity), and broadcasts to (B, H, rows, keys),
    as does `bias` (ALiBi, T5), which hides nothing. Integers, and numbers that are all 0 or 1, are refused as a mask:
    added to the logits they would hide nothing. `window` leaves the nearest positions.
    `softcap` c turns s into c·tanh(s/c) before bias and mask. `offset` is the position of the first row among the keys.
    `companions=False` leaves out all but the entropy. `path` forces a way of computing; None takes the best.

    >>> q = torch.zeros(1, 1, 4, 8)
    >>> attention_entropy(q, q, causal=True).entropy.exp().flatten().round(decimals=3).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    problem = _problem(q, k, causal, mask, window, bias, scale, softcap, offset, companions)
    chosen = _best_path(problem) if path is None else _known_path(path)
    with in_full_precision(q.device):
        rows = _RUN[chosen](problem)
    visibility = problem.visibility
    return statistics_of(rows, visibility.count(q.device), chosen, none_empty=visibility.every_row_sees_a_key)


def _problem(
    q: Tensor,
    k: Tensor,
    causal: bool,
    mask: Tensor | None,
    window: int | None,
    bias: Tensor | None,
    scale: float | None,
    softcap: float | None,
    offset: int,
    companions: bool,
) -> Problem:
    q, k = _queries_and_keys(q, k)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"`softcap` must be positive and finite, got {softcap}. Leave it out where there is none.")
    shape = (*q.shape[:3], k.shape[2])
    parts, bias = read_mask(mask, shape, q.device), read_bias(bias, shape, q.device)
    if parts.added is not None:
        bias = parts.added if bias is None else parts.added + bias
    visibility = Visibility(
        num_rows=q.shape[2], num_keys=k.shape[2], causal=causal, window=window, offset=offset, mask=parts.visible
    )
    return Problem(
        q=q,
        k=k,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        bias=bias,
        visibility=visibility,
        companions=companions,
    )


def _queries_and_keys(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return both without their gradients, refusing what cannot be multiplied."""
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
    return q.detach(), k.detach()


def _known_path(path: str) -> Path:
    try:
        return Path(path)
    except ValueError:
        raise UnknownNameError("path", str(path), [known.value for known in Path]) from None


def _best_path(problem: Problem) -> Path:
    if entropy_identity.takes(problem):
        return Path.IDENTITY
    return Path.TRITON if _triton_takes(problem) else Path.CHUNKED


def _triton_takes(problem: Problem) -> bool:
    """Whether there is a GPU, Triton, and a call that the kernel knows; Triton is imported only for a GPU."""
    if problem.q.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    from joma.measure import entropy_triton  # noqa: PLC0415

    return entropy_triton.takes(problem)


def _triton_rows(problem: Problem) -> Rows:
    if importlib.util.find_spec("triton") is None:
        raise ValueError("Path 'triton' needs Triton, which is not installed. Leave `path` out to take one without it.")
    from joma.measure import entropy_triton  # noqa: PLC0415

    return entropy_triton.triton_rows(problem)


_RUN = {
    Path.IDENTITY: entropy_identity.identity_rows,
    Path.TRITON: _triton_rows,
    Path.CHUNKED: chunked_rows,
}


def statistics_of(
    rows: Rows, num_visible: Int[Tensor, "b h rows"], path: Path, *, none_empty: bool = False
) -> AttentionStatistics:
    """Strike out rows without keys, unless there are none, clamp at zero and say how far below rounding went."""
    empty = None if none_empty else (num_visible == 0).expand_as(rows.entropy)

    def strike(values: Tensor, by: float = torch.nan) -> Tensor:
        return values if empty is None else values.masked_fill(empty, by)

    companions = ("effective_keys", "sink_mass", "mean_distance", "max_logit")
    found = {name: getattr(rows, name) for name in companions}
    entropy = strike(rows.entropy.clamp(min=0))
    most = num_visible.to(entropy.dtype).log()  # 0 for one key and -inf for none: their fraction is struck out
    fraction = entropy / torch.where(most > 0, most, torch.nan)
    return AttentionStatistics(
        entropy=entropy,
        fraction=fraction,
        num_visible=num_visible,
        **{name: None if values is None else strike(values) for name, values in found.items()},
        path=path,
        lowest_before_clamp=strike(rows.entropy, torch.inf).amin() if rows.entropy.numel() else entropy.new_tensor(0.0),
    )
