"""Entropy of logits that a model has built itself: row chunks, with no second tensor of their size."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from joma.measure.entropy import AttentionStatistics, Path, statistics_of
from joma.measure.entropy_chunked import HIDDEN, measure_logits
from joma.measure.masks import HIDDEN_BELOW, Rows, in_full_precision
from joma.measure.tensors import tensor_with_axes

CHUNK_BYTES = 2**26
"""Largest block of logits held at once."""


def logits_entropy(
    logits: Float[Tensor, "B H rows keys"], *, offset: int = 0, companions: bool = True
) -> AttentionStatistics:
    """Measure every row of softmax(logits); `offset` is the position of the first row among the keys.

    >>> logits = torch.zeros(1, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    >>> logits_entropy(logits).entropy.exp().flatten().round(decimals=4)
    tensor([1., 2., 3., 4.])
    """
    logits = tensor_with_axes("logits", logits, "B H rows keys").detach()
    num_batch, num_heads, num_rows, num_keys = logits.shape
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    step = max(1, CHUNK_BYTES // max(1, num_batch * num_heads * num_keys * dtype.itemsize))
    seen = torch.zeros(num_batch, num_heads, num_keys, dtype=torch.bool, device=logits.device)
    parts = []
    for first in range(0, max(num_rows, 1), step):
        block = logits[:, :, first : first + step].to(dtype)
        visible = block > HIDDEN_BELOW
        seen |= visible.any(dim=-2)
        s = torch.where(visible, block, HIDDEN)
        with in_full_precision(logits.device):
            found = measure_logits(s, torch.empty_like(s), first_row=first + offset, first_key=0, companions=companions)
        parts.append(found | {"num_visible": visible.sum(dim=-1)})
    joined = {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]}
    lse, num_visible = joined.pop("lse"), joined.pop("num_visible")
    sink_mass = _sink_mass(logits, seen, lse) if companions else None
    return statistics_of(Rows(sink_mass=sink_mass, **joined), num_visible, Path.CHUNKED)


def _sink_mass(
    logits: Float[Tensor, "B H rows keys"], seen: Bool[Tensor, "B H keys"], lse: Float[Tensor, "B H rows"]
) -> Float[Tensor, "B H rows"]:
    """Weight on the first key that any row can see."""
    first = seen.to(torch.uint8).argmax(dim=-1)[..., None, None].expand(-1, -1, logits.shape[2], 1)
    at_first = logits.gather(-1, first)[..., 0].to(lse.dtype)
    return torch.where(at_first > HIDDEN_BELOW, (at_first - lse).exp(), 0.0)
