r"""The CPU path: fused attention with V = K gives $\sum_j p_j s_j$, and its log-sum-exp the rest."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from joma.measure.entropy_chunked import CHUNK_BYTES, logits_of_rows
from joma.measure.rows import PerRow, Problem, Rows, sink_logits

EXTRA_COLUMNS = 16
"""Zero columns that widen q and k so that V can carry positions and biases; a multiple of the vector width."""
POSITION, BIAS = 0, 1
"""Which of the extra columns carries what."""


def takes(problem: Problem) -> bool:
    """Whether fused attention on the CPU can compute this call."""
    visibility = problem.visibility
    return (
        problem.q.device.type == "cpu"
        and problem.softcap is None
        and problem.bias_depends_on_keys_alone
        and visibility.window is None
        and visibility.offset == 0
        and min(visibility.num_rows, visibility.num_keys) > 0
    )


def identity_rows(problem: Problem) -> Rows:
    """Measure all rows by fused attention calls whose values are the keys themselves."""
    call = _Call.of(problem)
    causal = problem.visibility.causal
    found = call.attend(causal=causal)
    entropy = found.lse - problem.scale * torch.einsum("bhrd,bhrd->bhr", call.q, found.key)
    if problem.bias is not None:
        entropy = entropy - found.extra(BIAS)
    if not problem.companions:
        return Rows(entropy=entropy)
    # 1/Σp² = (Σe^s)² / Σe^{2s}: the same call with every logit doubled.
    doubled = call.attend(causal=causal, factor=2.0)
    return Rows(
        entropy=entropy,
        effective_keys=(2 * found.lse - doubled.lse).exp(),
        sink_mass=(sink_logits(problem, call.k) - found.lse).exp(),
        mean_distance=_mean_distance(problem, call, found),
        max_logit=_max_logit(problem),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attended:
    """Log-sum-exp of every row, and the mean under its weights of the keys and of the extra columns."""

    lse: PerRow
    mean: Float[Tensor, "B H rows E"]
    dim: int

    @property
    def key(self) -> Float[Tensor, "B H rows D"]:
        """The mean key."""
        return self.mean[..., : self.dim]

    def extra(self, column: int) -> PerRow:
        """The mean of one extra column."""
        return self.mean[..., self.dim + column]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """The problem in working precision, with keys centred and everything else in place."""

    q: Float[Tensor, "B H rows D"]
    k: Float[Tensor, "B G keys D"]
    columns: Float[Tensor, "c g keys X"] | None
    """Positions and biases, which are averaged beside the keys; None when nobody asks."""
    bias: Float[Tensor, "b h 1 keys"] | None
    hidden: Float[Tensor, "e f r keys"] | None
    """Minus infinity where the mask hides, else 0."""
    scale: float

    @classmethod
    def of(cls, problem: Problem) -> "_Call":
        """Upcast, centre the keys, and lay positions and biases beside them."""
        q, k, bias = problem.q.to(problem.working_dtype), problem.k.to(problem.working_dtype), problem.bias
        # Softmax does not feel a shift of all keys; without it large common offsets would cancel digits.
        k = k - k.mean(dim=2, keepdim=True)
        if bias is not None:
            bias = bias.to(q.dtype).expand(*bias.shape[:3], k.shape[2])
            if bias.shape[1] > 1:  # a bias for each head needs values for each head
                k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        columns = _columns(k, bias) if problem.companions or bias is not None else None
        return cls(q=q, k=k, columns=columns, bias=bias, hidden=_hidden(problem), scale=problem.scale)

    def attend(self, *, causal: bool, factor: float = 1.0) -> _Attended:
        """Run fused attention with every logit multiplied by `factor`; extra columns only come along at factor 1."""
        added = self.hidden
        if self.bias is not None:
            added = factor * self.bias if added is None else factor * self.bias + added
        q, k, values = self.q, self.k, self.k
        if self.columns is not None and factor == 1:
            # The kernel wants one width for all three, so q and k get zero columns.
            values = torch.cat([k, self.columns.expand(*k.shape[:3], EXTRA_COLUMNS)], dim=-1)
            q, k = pad(q, (0, EXTRA_COLUMNS)), pad(k, (0, EXTRA_COLUMNS))
        mean, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, values, 0.0, causal, attn_mask=added, scale=factor * self.scale
        )
        return _Attended(lse=lse, mean=mean, dim=self.k.shape[-1])


def _columns(k: Tensor, bias: Tensor | None) -> Tensor:
    """Positions as fractions of the length, and biases, in columns that fit beside the keys."""
    num_batch, num_heads = (1, 1) if bias is None else bias.shape[:2]
    columns = torch.zeros(num_batch, num_heads, k.shape[2], EXTRA_COLUMNS, dtype=k.dtype)
    columns[..., POSITION] = torch.arange(k.shape[2], dtype=k.dtype) / k.shape[2]
    if bias is not None:
        columns[..., BIAS] = bias[:, :, 0]
    return columns


def _hidden(problem: Problem) -> Float[Tensor, "b h r keys"] | None:
    mask = problem.visibility.mask
    if mask is None:
        return None
    hidden = torch.zeros(mask.shape, dtype=problem.working_dtype).masked_fill_(~mask, -torch.inf)
    return hidden.expand(*mask.shape[:3], problem.visibility.num_keys)


def _mean_distance(problem: Problem, call: _Call, found: _Attended) -> PerRow:
    r"""$E|i-j|$: for causal rows $i - E[j]$, else with the part before the row split off by a causal call."""
    row = torch.arange(call.q.shape[2], dtype=call.q.dtype)
    position = problem.visibility.num_keys * found.extra(POSITION)
    if problem.visibility.causal:
        return row - position
    before = call.attend(causal=True)
    some = replace(problem.visibility, causal=True).count(row.device) > 0  # the kernel returns lse = 0 for empty rows
    share = torch.where(some, (before.lse - found.lse).exp(), 0.0)
    # With P = P[j ≤ i]: E|i-j| = E[j] - i + 2 P (i - E[j | j ≤ i]).
    return position - row + 2 * share * (row - problem.visibility.num_keys * before.extra(POSITION))


def _max_logit(problem: Problem) -> PerRow:
    """Exact row maxima, a chunk of rows at a time: no fused kernel returns them."""
    num_batch, num_heads, num_rows, _ = problem.q.shape
    per_row = num_batch * num_heads * problem.k.shape[2] * problem.working_dtype.itemsize
    step = max(1, CHUNK_BYTES // per_row)
    tops = [
        logits_of_rows(problem, first, min(first + step, num_rows))[0].amax(dim=-1)
        for first in range(0, num_rows, step)
    ]
    return torch.cat(tops, dim=-1)
