"""Exact softmax over blocks of rows, on any device; on a CPU each block stays in the cache of the core that has it.

Such a core works through its blocks alone. The threads inside of torch's operations would meet several times a block,
and wait for one another whenever the machine has anything else to do.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.measure.rows import Problem, Rows

BLOCK_ROWS = 128
"""Most rows of a block: more would waste keys above the diagonal, fewer read the keys too often."""
FEWEST_ROWS = 32
"""Fewest, whatever a long sequence makes of the block's size."""
BLOCK_BYTES = 2**21
"""Logits of a block on a CPU: what the cache of a core holds."""
GPU_BLOCK_BYTES = 2**26
"""The same on a GPU, which wants few operations."""
THREADED_LOGITS = 2**22
"""Calls with fewer logits, some 10 ms of one core, are not worth threads of their own."""
HIDDEN = -1e30
"""Stands in for minus infinity: it has no weight beside any logit, and weight times it is 0, not NaN."""

Found = dict[str, Float[Tensor, "b h rows"]]


def chunked_rows(problem: Problem) -> Rows:
    """Measure all rows, a block at a time; memory is two blocks for each thread beside inputs and results."""
    call = _Call.of(problem)
    names = ("entropy", "effective_keys", "sink_mass", "mean_distance", "max_logit")
    shape, dtype = problem.q.shape[:3], problem.working_dtype
    rows = {
        name: torch.full(shape, torch.nan, dtype=dtype, device=problem.q.device)
        for name in (names if problem.companions else names[:1])
    }
    for block, found in _measured(call, list(_blocks(problem))):
        for name, values in rows.items():
            values[block.batch, block.heads, block.first : block.last] = found[name]
    if problem.companions:
        rows["max_logit"] += call.shift()
    return Rows(**rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Rows [first, last) of some sequences, and of the query heads that share some key heads."""

    batch: slice
    groups: slice
    heads: slice
    first: int
    last: int


def _blocks(problem: Problem) -> Iterator[_Block]:
    """Cut a call up: into blocks of rows, with as many key heads and then sequences as there is room for."""
    (num_batch, num_heads, num_rows, _), num_groups = problem.q.shape, problem.k.shape[1]
    per_group, num_keys, window = num_heads // num_groups, problem.k.shape[2], problem.visibility.window
    per_row = per_group * max(1, num_keys if window is None else min(num_keys, 2 * window + BLOCK_ROWS))
    room = (GPU_BLOCK_BYTES if problem.q.is_cuda else BLOCK_BYTES) // problem.working_dtype.itemsize
    rows = max(1, min(num_rows, max(FEWEST_ROWS, room // per_row), BLOCK_ROWS))
    groups = max(1, min(num_groups, room // (per_row * rows)))
    batch = max(1, room // (per_row * rows * num_groups))
    for sequence in range(0, num_batch, batch):
        for group in range(0, num_groups, groups):
            for first in range(0, num_rows, rows):
                yield _Block(
                    batch=slice(sequence, sequence + batch),
                    groups=slice(group, group + groups),
                    heads=slice(group * per_group, (group + groups) * per_group),
                    first=first,
                    last=min(first + rows, num_rows),
                )


def _measured(call: "_Call", blocks: list[_Block]) -> Iterator[tuple[_Block, Found]]:
    """Measure blocks that see a key, in threads that share them out where that is worth it."""
    blocks = [block for block in blocks if call.num_logits(block)]
    most = max((call.num_logits(block) for block in blocks), default=0)
    num_threads = min(torch.get_num_threads(), len(blocks))
    if call.k.device.type != "cpu" or num_threads < 2 or most * len(blocks) < THREADED_LOGITS:  # noqa: PLR2004
        yield from call.measure(blocks, most)
        return
    left = iter(blocks)  # the iterator of a list gives each item to one thread
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            for done in [threads.submit(lambda: list(call.measure(left, most))) for _ in range(num_threads)]:
                yield from done.result()
    finally:
        torch.set_num_threads(torch.get_num_threads())  # this thread's number, for threads that start later


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """A problem with what all of its blocks need."""

    problem: Problem
    k: Float[Tensor, "B G keys D"]
    """Scaled, in working precision, and without their mean where softmax does not feel it: large common offsets would
    cancel digits."""
    mean: Float[Tensor, "B G 1 D"] | None
    first_key: Int[Tensor, "b h"]
    """The first key that any row sees."""

    @classmethod
    def of(cls, problem: Problem) -> "_Call":
        """Centre and scale the keys."""
        k, mean = problem.k.to(problem.working_dtype), None
        if problem.softcap is None:
            mean = k.mean(dim=2, keepdim=True) * problem.scale
            mean = torch.where(mean.isfinite(), mean, 0.0)  # a broken key breaks the rows that see it, and no others
        k = k * problem.scale if mean is None else torch.sub(k * problem.scale, mean)
        return cls(problem=problem, k=k, mean=mean, first_key=problem.visibility.first_visible_key(k.device))

    def shift(self) -> Float[Tensor, "B H rows"] | float:
        """Return what the logits of every row have lost with the mean of the keys."""
        if self.mean is None:
            return 0.0
        q = self.problem.q.to(self.k.dtype)
        grouped = q.unflatten(1, (self.k.shape[1], -1))
        return torch.einsum("bghrd,bgd->bghr", grouped, self.mean[:, :, 0]).flatten(1, 2)

    def num_logits(self, block: _Block) -> int:
        """Count the logits of a block over its key range."""
        start, stop = self.problem.visibility.key_range(block.first, block.last)
        num_batch, num_heads = self.problem.q[block.batch, block.heads, :0].shape[:2]
        return num_batch * num_heads * (block.last - block.first) * (stop - start)

    def measure(self, blocks: Iterable[_Block], most_logits: int) -> Iterator[tuple[_Block, Found]]:
        """Measure blocks one after the other, all in the same two buffers."""
        buffers = self.k.new_empty((2, most_logits))
        companions = self.problem.companions
        for block in blocks:
            start, _ = self.problem.visibility.key_range(block.first, block.last)
            s = self.logits(block, buffers[0])
            p = buffers[1, : s.numel()].view(s.shape)
            first_row = block.first + self.problem.visibility.offset
            found = measure_logits(s, p, first_row=first_row, first_key=start, companions=companions)
            if companions:
                found["sink_mass"] = _at(p, _part(self.first_key, block) - start)
            yield block, found

    def logits(self, block: _Block, buffer: Float[Tensor, " most"]) -> Float[Tensor, "b h rows keys"]:
        """Return the logits of a block over its key range, less the shift, hidden ones far below all others."""
        problem, first, last = self.problem, block.first, block.last
        start, stop = problem.visibility.key_range(first, last)
        q = problem.q[block.batch, block.heads, first:last].to(self.k.dtype)
        k = self.k[block.batch, block.groups, start:stop].flatten(0, 1)
        s = buffer[: self.num_logits(block)].view(len(k), -1, stop - start)
        torch.bmm(q.reshape(len(k), -1, q.shape[-1]), k.mT, out=s)  # heads of a group share their keys
        s = s.view(*q.shape[:3], stop - start)
        if problem.softcap is not None:
            s.div_(problem.softcap).tanh_().mul_(problem.softcap)
        if problem.bias is not None:
            s += _part(problem.bias, block, start, stop)
        if problem.visibility.mask is not None:
            s += torch.where(_part(problem.visibility.mask, block, start, stop), 0.0, HIDDEN)
        self._hide_by_position(s, first, start, stop)
        return s

    def _hide_by_position(self, s: Float[Tensor, "b h rows keys"], first: int, start: int, stop: int) -> None:
        """Hide keys after a causal row or beyond a window: triangles at the ends of the key range."""
        visibility, num_rows = self.problem.visibility, s.shape[2]
        position, window = first + visibility.offset, visibility.window
        if visibility.causal or window is not None:
            beyond = position + (1 if visibility.causal or window is None else window)  # of the first row
            begin = max(start, beyond)
            s[..., begin - start :] += s.new_full((num_rows, max(0, stop - begin)), HIDDEN).triu_(beyond - begin)
        if window is not None:
            end = max(start, min(stop, position + num_rows - window))
            s[..., : end - start] += s.new_full((num_rows, end - start), HIDDEN).tril_(position - window - start)


def measure_logits(
    s: Float[Tensor, "b h rows keys"],
    p: Float[Tensor, "b h rows keys"],
    *,
    first_row: int,
    first_key: int,
    companions: bool,
) -> Found:
    """Measure logits, hidden ones `HIDDEN` or lower, whose rows and keys begin at these positions; p takes the weights.

    Rows without a visible key get numbers that mean nothing.
    """
    top = s.amax(dim=-1)
    torch.softmax(s, dim=-1, out=p)
    lse = top - p.amax(dim=-1).log()  # the largest weight is e^{top - lse}
    found = {"entropy": lse - torch.linalg.vecdot(p, s), "lse": lse}
    if companions:
        row = torch.arange(s.shape[-2], dtype=s.dtype, device=s.device)[:, None]
        key = torch.arange(s.shape[-1], dtype=s.dtype, device=s.device) + (first_key - first_row)
        found |= {
            "effective_keys": 1 / torch.linalg.vecdot(p, p),
            "mean_distance": torch.mul(p, (key - row).abs_(), out=s).sum(dim=-1),
            "max_logit": top,
        }
    return found


def _part(tensor: Tensor, block: _Block, start: int = 0, stop: int = 0) -> Tensor:
    """Cut a block out of a tensor that broadcasts to (B, H) or (B, H, rows, keys)."""
    cuts = (block.batch, block.heads, slice(block.first, block.last), slice(start, stop))
    return tensor[tuple(cut if length > 1 else slice(None) for cut, length in zip(cuts, tensor.shape, strict=False))]


def _at(p: Float[Tensor, "b h rows keys"], key: Int[Tensor, "#b #h"]) -> Float[Tensor, "b h rows"]:
    """Pick the weight on one key for each head; 0 where that is outside of the range."""
    inside = (key >= 0) & (key < p.shape[-1])
    index = torch.where(inside, key, 0)[..., None, None].expand(*p.shape[:3], 1)
    return torch.where(inside[..., None], p.gather(-1, index)[..., 0], 0.0)
