"""The exact path: softmax over chunks of rows, for whatever the fused kernels do not take."""

import torch
from torch import Tensor

from joma.measure.rows import Problem, Rows, sink_logits

CHUNK_BYTES = 2**26
"""Largest block of logits held at once."""


def chunked_rows(problem: Problem) -> Rows:
    """Measure all rows, a chunk at a time; memory is one chunk of logits beside inputs and results."""
    num_batch, num_heads, num_rows, _ = problem.q.shape
    per_row = num_batch * num_heads * max(1, problem.k.shape[2]) * problem.working_dtype.itemsize
    step = max(1, CHUNK_BYTES // per_row)
    parts = [_chunk(problem, first, min(first + step, num_rows)) for first in range(0, num_rows, step)]
    joined = {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]}
    lse = joined.pop("lse")
    sink_mass = (sink_logits(problem) - lse).exp() if problem.companions else None
    return Rows(sink_mass=sink_mass, **joined)


def logits_of_rows(problem: Problem, first: int, last: int) -> tuple[Tensor, int]:
    """Return the logits of rows [first, last) over their key range, hidden ones minus infinity, and the first key."""
    start, stop = problem.visibility.key_range(first, last)
    q = problem.q[:, :, first:last].to(problem.working_dtype)
    k = problem.k[:, :, start:stop].to(problem.working_dtype)
    num_batch, num_heads, num_rows, dim = q.shape
    grouped = q.reshape(num_batch, k.shape[1], -1, dim)  # heads of a group share their keys: one product for all
    s = (grouped @ k.transpose(-1, -2)).mul_(problem.scale).reshape(num_batch, num_heads, num_rows, stop - start)
    if problem.softcap is not None:
        s = s.div_(problem.softcap).tanh_().mul_(problem.softcap)
    if problem.bias is not None:
        rows = slice(None) if problem.bias.shape[-2] == 1 else slice(first, last)
        keys = slice(None) if problem.bias.shape[-1] == 1 else slice(start, stop)
        s = s + problem.bias[..., rows, keys]
    seen = problem.visibility.block(first, last, q.device)
    return (s if seen is None else s.masked_fill_(~seen, -torch.inf)), start


def _chunk(problem: Problem, first: int, last: int) -> dict[str, Tensor]:
    s, start = logits_of_rows(problem, first, last)
    return measure_logits(
        s, first_row=first + problem.visibility.offset, first_key=start, companions=problem.companions
    )


def measure_logits(s: Tensor, *, first_row: int, first_key: int, companions: bool) -> dict[str, Tensor]:
    """Measure logits (B, H, rows, keys), hidden ones minus infinity, whose rows and keys stand at these positions."""
    top = s.amax(dim=-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -torch.inf)
    shifted = s - top.clamp(min=torch.finfo(s.dtype).min)  # rows without keys keep weights of zero, not NaN
    weight = shifted.exp()
    total = weight.sum(dim=-1)
    log_total = total.log()
    p = weight / total[..., None]
    # H = log Σe^{s-m} - Σ p (s - m): the maximum m drops out, so nothing large cancels; 0 · -inf counts as 0.
    found = {
        "entropy": log_total - (p * shifted.masked_fill(weight == 0, 0.0)).sum(dim=-1),
        "lse": log_total + top[..., 0],
    }
    if companions:
        row = torch.arange(s.shape[-2], device=s.device)[:, None] + first_row
        distance = (torch.arange(s.shape[-1], device=s.device) + first_key - row).abs().to(s.dtype)
        found |= {
            "effective_keys": 1 / p.square().sum(dim=-1),
            "mean_distance": (p * distance).sum(dim=-1),
            "max_logit": top[..., 0],
        }
    return found
