"""Exact softmax over blocks of rows, on any device; on a CPU each block stays in the cache of the core that has it.

Such a core works through its blocks alone. The threads inside of torch's operations would meet several times a block,
and wait for one another whenever the machine has anything else to do.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from joma.measure.masks import PerRow, Problem, Rows
from joma.measure.tensors import working_dtype

BLOCK_ROWS = 192  # most rows of a block: more would waste keys above the diagonal, fewer read the keys too often
FEWEST_ROWS = 32  # fewest, whatever a long sequence makes of the block's size
BLOCK_BYTES = 3 * 2**20
"""Logits of a block on a CPU: small enough for its caches, large enough for the operations that Python starts."""
GPU_BLOCK_BYTES = 2**26  # the same on a GPU, which wants few operations
THREADED_LOGITS = 2**22  # calls with fewer logits, some 10 ms of one core, are not worth threads of their own
MOMENT_ROWS = 64
"""Rows of a block of `variances`, about as many as a head is wide: then both terms of a variance cost the same."""
HIDDEN = -1e30  # stands in for minus infinity: next to any logit it has no weight, and weight times it is 0, not NaN

Read = Callable[["_Block", Tensor, Tensor], Rows]
"""From a block, its logits and room for as many numbers to what was found; both are overwritten."""


def chunked_rows(problem: Problem) -> Rows:
    """Measure all rows, a block at a time; memory is two blocks for each thread, inputs and results."""
    k, mean = _centred_keys(problem)
    first_key, offset, companions = problem.first_visible_key(), problem.offset, problem.companions

    def read(block: _Block, s: Tensor, p: Tensor) -> Rows:
        row, key = block.rows.start + offset, block.keys.start
        found = measure_logits(s, p, first_row=row, first_key=key, companions=companions)
        return found | ({"first_key_mass": _at(p, _part(first_key, block) - key)} if companions else {})

    names = ("entropy", "effective_keys", "first_key_mass", "mean_distance", "max_logit", "lse")
    rows = _gathered(problem, k, read, names if companions else names[:1])
    if companions and mean is not None:  # what the logits have lost with the mean of the keys
        q = problem.q.to(k.dtype).unflatten(1, (k.shape[1], -1))
        shift = torch.einsum("bghrd,bgd->bghr", q, mean[:, :, 0]).flatten(1, 2)
        rows["max_logit"] += shift
        rows["lse"] += shift
    return rows


def variances(problem: Problem, counted: Bool[Tensor, "#B #H rows"] | None) -> tuple[PerRow, PerRow]:
    r"""Return the variance of each row's visible logits, and that of $\bar q\cdot k_j$ over the same keys.

    $\bar q$ is the mean query of the counted rows of a sequence (None for all), scaled as the logits are.
    """
    k, _ = _centred_keys(problem)
    q = problem.q.to(k.dtype)
    if counted is None:
        mean = q.mean(dim=2)
    else:
        q = torch.where(counted[..., None], q, 0.0)
        mean = q.sum(dim=2) / counted.sum(dim=-1, keepdim=True).clamp(min=1)
    of_key = (mean.unflatten(1, (k.shape[1], -1)) @ k.mT).flatten(1, 2)
    is_triangle = problem.causal and problem.offset == 0 and problem.num_rows == problem.num_keys
    others = (problem.window, problem.mask, problem.bias, problem.softcap)
    if is_triangle and all(each is None for each in others):
        per_group = q.unflatten(1, (k.shape[1], -1)).flatten(0, 1)
        num_numbers = per_group[0, ..., 0].numel() * max(MOMENT_ROWS, k.shape[-1])
        room = max(1, GPU_BLOCK_BYTES // (k.dtype.itemsize * num_numbers))
        parts = zip(per_group.split(room), k.flatten(0, 1).split(room), strict=True)
        of_logits = torch.cat([_triangle_variance(*part) for part in parts]).view(problem.q.shape[:3])
        return of_logits, _running_variance(of_key)

    def read(block: _Block, s: Tensor, p: Tensor) -> Rows:
        visible = s > HIDDEN / 2
        own = of_key[block.batch, block.heads, None, block.keys].expand_as(s)
        return {"logits": visible_variance(s, visible), "keys": visible_variance(own, visible)}

    found = _gathered(problem, k, read, ("logits", "keys"))
    return found["logits"], found["keys"]


def _triangle_variance(q: Float[Tensor, "N P L D"], k: Float[Tensor, "N L D"]) -> Float[Tensor, "N P L"]:
    r"""Return the variance of $q_i\cdot k_j$ over $j \le i$, without all of those products.

    Of $n$ keys before a block of rows with mean $\mu$ and scatter $C = \sum_j (k_j - \mu)(k_j - \mu)^\top$,

    $$\sum_j (q\cdot k_j - m)^2 = q^\top C q + n (q\cdot\mu - m)^2,$$

    so that only products inside of a block are needed.
    """
    length, size = q.shape[2], min(MOMENT_ROWS, q.shape[2])
    num_blocks = -(-length // size)
    if missing := num_blocks * size - length:
        q, k = (functional.pad(each, (0, 0, 0, missing)) for each in (q, k))
    q, k = q.unflatten(2, (num_blocks, size)), k.unflatten(1, (num_blocks, size))[:, None]

    def before(of_block: Tensor) -> Tensor:
        """Sum over earlier blocks."""
        return functional.pad(of_block.cumsum(dim=2), (0, 0, 0, 0, 1, 0))[:, :, :-1]

    row = torch.arange(num_blocks * size, dtype=q.dtype, device=q.device).view(num_blocks, size)
    num_before = row[:, :1, None]
    centre = before(k.sum(dim=3, keepdim=True)) / num_before.clamp(min=1)
    scatter = before(k.mT @ k) - num_before * (centre.mT @ centre)
    later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    s = (q @ k.mT).masked_fill_(later, 0.0)
    of_centre = (q @ centre.mT)[..., 0]
    mean = (s.sum(dim=-1) + num_before[..., 0] * of_centre) / (row + 1)
    inside = s.sub_(mean[..., None]).masked_fill_(later, 0.0).square_().sum(dim=-1)
    outside = ((q @ scatter) * q).sum(dim=-1) + num_before[..., 0] * (of_centre - mean).square()
    return ((inside + outside) / (row + 1)).clamp(min=0).flatten(2)[..., :length]


def _running_variance(values: Float[Tensor, "B H L"]) -> Float[Tensor, "B H L"]:
    """Return the variance over each position and those before it."""
    wide = values.double()
    sums = torch.stack((wide, wide.square())).cumsum(dim=-1)
    mean, square = sums / torch.arange(1, values.shape[-1] + 1, dtype=wide.dtype, device=wide.device)
    return (square - mean.square()).clamp(min=0).to(values.dtype)


def attention_weights(problem: Problem) -> Float[Tensor, "B H rows keys"]:
    """Return the weights themselves, for a call with few rows; NaN in a row that sees no key."""
    k, _ = _centred_keys(problem)
    s = k.new_empty((*problem.q.shape[:3], k.shape[2]))
    batch, heads, rows, keys = (slice(0, size) for size in s.shape)
    _write_logits(problem, k, _Block(batch, slice(0, k.shape[1]), heads, rows, keys), s)
    return s.softmax(dim=-1).masked_fill_(s.amax(dim=-1, keepdim=True) < HIDDEN / 2, torch.nan)


def visible_variance(
    values: Float[Tensor, "*rows keys"], visible: Bool[Tensor, "*rows keys"]
) -> Float[Tensor, "*rows"]:
    """Return the variance over the visible keys of each row."""
    count = visible.sum(dim=-1).clamp(min=1)
    mean = torch.where(visible, values, 0.0).sum(dim=-1) / count
    return torch.where(visible, values - mean[..., None], 0.0).square().sum(dim=-1) / count


def _centred_keys(problem: Problem) -> tuple[Float[Tensor, "B G keys D"], Float[Tensor, "B G 1 D"] | None]:
    """Return the keys scaled, in working precision, without their mean, and that mean.

    Large common offsets would cancel digits, and softmax does not feel them; under a soft cap, which does, the mean is
    left where it is, and None is returned for it.
    """
    k, mean = problem.k.to(working_dtype(problem.q)) * problem.scale, None
    if problem.softcap is None:
        mean = k.mean(dim=2, keepdim=True)
        mean = mean.nan_to_num(0.0, 0.0, 0.0)  # a broken key must not break the others
        k -= mean
    return k, mean


def _gathered(problem: Problem, k: Float[Tensor, "B G keys D"], read: Read, names: Sequence[str]) -> Rows:
    """Read all blocks of a call, in threads that share them out where that is worth it; NaN where no key is near."""
    blocks = list(_blocks(problem))
    sizes = [math.prod(block.shape) for block in blocks]
    num_threads = min(torch.get_num_threads(), len(blocks))
    threaded = k.device.type == "cpu" and num_threads > 1 and sum(sizes) >= THREADED_LOGITS
    with torch.inference_mode(False):  # threads are outside of it, and could not write what belongs to it
        # Allocated here: what a thread allocates stays with its part of the heap when it ends.
        buffers = k.new_empty((num_threads if threaded else 1, 2, max(sizes, default=0)))
        rows = {name: k.new_full(problem.q.shape[:3], torch.nan) for name in names}
    left = iter(blocks)  # the iterator of a list gives each item to one thread

    def work(buffer: Float[Tensor, "2 most"]) -> None:
        for block in left:
            s, p = buffer[:, : math.prod(block.shape)].view(2, *block.shape)
            _write_logits(problem, k, block, s)
            found = read(block, s, p)
            for name, values in rows.items():
                values[block.batch, block.heads, block.rows] = found[name]

    if not threaded:
        work(buffers[0])
        return rows
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            list(threads.map(work, buffers))
    finally:
        torch.set_num_threads(torch.get_num_threads())  # this thread's number, for threads that start later
    return rows


class _Block(NamedTuple):
    """Rows of some sequences and of the heads that share some keys, and the range of keys they see."""

    batch: slice
    groups: slice
    heads: slice
    rows: slice
    keys: slice

    @property
    def shape(self) -> tuple[int, ...]:
        """Sequences, heads, rows and keys."""
        return tuple(cut.stop - cut.start for cut in (self.batch, self.heads, self.rows, self.keys))


def _blocks(problem: Problem) -> Iterator[_Block]:
    """Cut a call into blocks of rows, with as many key heads and then sequences as there is room for."""
    (num_batch, num_heads, num_rows, _), num_groups = problem.q.shape, problem.k.shape[1]
    per_group, num_keys, window = num_heads // num_groups, problem.num_keys, problem.window
    per_row = per_group * max(1, num_keys if window is None else min(num_keys, 2 * window + BLOCK_ROWS))
    room = (GPU_BLOCK_BYTES if problem.q.is_cuda else BLOCK_BYTES) // working_dtype(problem.q).itemsize
    num_rows_at_once = max(1, min(max(FEWEST_ROWS, room // per_row), BLOCK_ROWS, num_rows))
    rows = _cut(num_rows, num_rows_at_once)
    groups = _cut(num_groups, room // (per_row * num_rows_at_once))
    batches = _cut(num_batch, room // (per_row * num_rows_at_once * num_groups))
    for batch, group, row in product(batches, groups, rows):
        start, stop = problem.key_range(row.start, row.stop)
        heads = slice(group.start * per_group, group.stop * per_group)
        if start < stop:
            yield _Block(batch, group, heads, row, slice(start, stop))


def _cut(length: int, step: int) -> list[slice]:
    step = max(1, step)
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


def _write_logits(
    problem: Problem, k: Float[Tensor, "B G keys D"], block: _Block, s: Float[Tensor, "b h rows near"]
) -> None:
    """Write the logits of a block with the centred keys, hidden ones far below all others."""
    start, stop, num_rows = block.keys.start, block.keys.stop, block.rows.stop - block.rows.start
    q = problem.q[block.batch, block.heads, block.rows].to(k.dtype)
    k = k[block.batch, block.groups, block.keys].flatten(0, 1)
    num_products = k.shape[0]  # heads of a group share their keys
    torch.bmm(q.reshape(num_products, -1, q.shape[-1]), k.mT, out=s.view(num_products, -1, s.shape[-1]))
    if problem.softcap is not None:
        s.div_(problem.softcap).tanh_().mul_(problem.softcap)
    if problem.bias is not None:
        s.add_(_part(problem.bias, block))
    if problem.mask is not None:
        s.add_(torch.where(_part(problem.mask, block), 0.0, HIDDEN))
    # Keys after a causal row or beyond a window are triangles at the ends of the key range.
    position, window = block.rows.start + problem.offset, problem.window
    reach = 1 if problem.causal else window
    if reach is not None:
        beyond = position + reach  # the first key that the first row does not see
        begin = max(start, beyond)
        after = s.new_full((num_rows, max(0, stop - begin)), HIDDEN).triu_(beyond - begin)
        s[..., begin - start :].add_(after)
    if window is not None:
        end = max(start, min(stop, position + num_rows - window))
        before = s.new_full((num_rows, end - start), HIDDEN).tril_(position - window - start)
        s[..., : end - start].add_(before)


def measure_logits(
    s: Float[Tensor, "b h rows keys"],
    p: Float[Tensor, "b h rows keys"],
    *,
    first_row: int,
    first_key: int,
    companions: bool,
) -> Rows:
    """Measure logits, hidden ones `HIDDEN` or lower, whose rows and keys begin at these positions.

    p takes the weights, and s is overwritten. Rows without a visible key get numbers that mean nothing.
    """

    def mean(values: Tensor) -> Tensor:
        return torch.mul(p, values, out=s).sum(dim=-1)

    top = s.amax(dim=-1)
    torch.softmax(s, dim=-1, out=p)
    lse = top - p.amax(dim=-1).log()  # the largest weight is e^{top - lse}
    found = {"entropy": lse - mean(s), "lse": lse}
    if companions:
        row = torch.arange(s.shape[-2], dtype=s.dtype, device=s.device)[:, None]
        key = torch.arange(s.shape[-1], dtype=s.dtype, device=s.device) + (first_key - first_row)
        found |= {"effective_keys": 1 / mean(p), "mean_distance": mean((key - row).abs_()), "max_logit": top}
    return found


def _part(tensor: Tensor, block: _Block) -> Tensor:
    """Cut a block out of a tensor that broadcasts to (B, H) or (B, H, rows, keys)."""
    cuts = (block.batch, block.heads, block.rows, block.keys)
    return tensor[tuple(cut if length > 1 else slice(None) for cut, length in zip(cuts, tensor.shape, strict=False))]


def _at(p: Float[Tensor, "b h rows keys"], key: Int[Tensor, "#b #h"]) -> Float[Tensor, "b h rows"]:
    """Pick the weight on one key for each head; 0 where that is outside of the range."""
    inside = (key >= 0) & (key < p.shape[-1])
    index = torch.where(inside, key, 0)[..., None, None].expand(*p.shape[:3], 1)
    return torch.where(inside[..., None], p.gather(-1, index)[..., 0], 0.0)
