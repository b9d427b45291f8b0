"""One attention call to be measured, and the raw numbers that every path returns for its rows."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from joma.measure.visibility import Visibility

PerRow = Float[Tensor, "B H rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Queries, keys and everything that shapes their softmax."""

    q: Float[Tensor, "B H rows D"]
    k: Float[Tensor, "B G keys D"]
    scale: float
    softcap: float | None
    bias: Float[Tensor, "b h r s"] | None
    """Added to the logits; any axis may be 1."""
    visibility: Visibility
    companions: bool

    @property
    def bias_depends_on_keys_alone(self) -> bool:
        """Whether the bias is the same for every row, as ALiBi is up to a constant."""
        return self.bias is None or self.bias.shape[-2] == 1

    @property
    def working_dtype(self) -> torch.dtype:
        """Half precision is computed in float32: rounding its results would cost more than the method does."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a path found for every row, before clamping and before rows without keys are struck out."""

    entropy: PerRow
    effective_keys: PerRow | None = None
    r"""$1/\sum_j p_j^2$."""
    sink_mass: PerRow | None = None
    mean_distance: PerRow | None = None
    max_logit: PerRow | None = None


def sink_logits(problem: Problem, k: Float[Tensor, "B G keys D"] | None = None) -> Float[Tensor, "B H rows"]:
    """Logit of every row on the first visible key, by one inner product a row; hidden pairs are minus infinity.

    `k` stands in for the problem's keys where a path works with shifted ones.
    """
    q, vis = problem.q.to(problem.working_dtype), problem.visibility
    k = problem.k if k is None else k
    num_batch, num_heads, num_rows, _ = q.shape
    first = vis.first_visible_key(q.device).expand(num_batch, num_heads)
    group = torch.arange(num_heads, device=q.device) // (num_heads // k.shape[1])
    batch = torch.arange(num_batch, device=q.device)[:, None]
    key = k[batch, group[None, :], first].to(q.dtype)
    logits = torch.einsum("bhrd,bhd->bhr", q, key) * problem.scale
    if problem.softcap is not None:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    row = torch.arange(num_rows, device=q.device)
    if problem.bias is not None:
        logits = logits + _at_key(problem.bias, first, row)
    position = row + vis.offset
    seen = torch.ones_like(logits, dtype=torch.bool)
    if vis.causal:
        seen &= first[..., None] <= position
    if vis.window is not None:
        seen &= (first[..., None] - position).abs() < vis.window
    if vis.mask is not None:
        seen &= _at_key(vis.mask, first, row)
    return logits.masked_fill(~seen, -torch.inf)


def _at_key(tensor: Tensor, key: Tensor, row: Tensor) -> Tensor:
    """Pick one key for each (batch, head) out of a tensor that broadcasts to (B, H, rows, keys)."""
    full = tensor.expand(*key.shape, tensor.shape[2], tensor.shape[3])
    index = (key if full.shape[3] > 1 else torch.zeros_like(key))[..., None, None].expand(-1, -1, full.shape[2], 1)
    return full.gather(-1, index)[..., 0].expand(*key.shape, len(row))
