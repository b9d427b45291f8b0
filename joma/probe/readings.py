"""From readings of single calls to rows of the record: reduced over rows and calls, per head and over heads."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from joma.probe.measures import Flagged, Reading, Reduction

ALL_HEADS = -1
ROWS_OF_HEADS = 3
"""Axes of a reading for every row: batch, heads, rows."""
NOTHING = "nothing but NaN"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One value of the record, before it has a step."""

    site: str
    kind: str
    layer: int
    head: int
    metric: str
    value: float
    flag: str = ""


_NEUTRAL = {Reduction.MAX: -math.inf, Reduction.MIN: math.inf}
_EXTREME: dict[Reduction, Callable[..., Tensor]] = {Reduction.MAX: torch.amax, Reduction.MIN: torch.amin}


def _over_rows(values: Float[Tensor, "M B H rows"], reduction: Reduction) -> Float[Tensor, "2 M H"]:
    """Reduce metrics over batch and rows: sum or extreme of each head, and how many numbers went into it."""
    missing = values.isnan()
    if reduction is Reduction.MEAN:
        reduced = values.nansum((1, 3), dtype=torch.float64)
    else:
        reduced = _EXTREME[reduction](values.masked_fill(missing, _NEUTRAL[reduction]), (1, 3)).double()
    num_rows = values.shape[1] * values.shape[3]
    return torch.stack((reduced, num_rows - missing.sum((1, 3), dtype=torch.float64)))


class _Transfer:
    """Numbers that wait on their devices to be read all at once."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        self._num: Counter[tuple[torch.device, torch.dtype]] = Counter()
        self._read: dict[tuple[torch.device, torch.dtype], list[float]] = {}

    def put(self, numbers: Tensor) -> Callable[[], list[float]]:
        """Take a tensor in, and return a function that gives its numbers once all are read."""
        key = numbers.device, numbers.dtype
        start = self._num[key]
        self._num[key] += numbers.numel()
        self._waiting.setdefault(key, []).append(numbers.reshape(-1))
        return lambda: self._read[key][start : start + numbers.numel()]

    def read(self) -> None:
        """Wait for every device once."""
        self._read = {key: torch.cat(tensors).tolist() for key, tensors in self._waiting.items()}


Part = Callable[[], tuple[list[float], list[float]]]
"""Values of the heads, and how many numbers each stands for, once the transfer is read."""


@dataclass(slots=True)
class _Tally:
    """What the calls of one site gave for one metric."""

    reduction: Reduction
    parts: list[Part] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    """(H) where there are heads."""
    flags: list[str] = field(default_factory=list)

    def add(self, part: Part, shape: tuple[int, ...]) -> None:
        """Take one call in."""
        if self.parts and shape != self.shape:
            raise ValueError(f"A site gave readings of shape {self.shape} and then {shape}. Its heads must not change.")
        self.shape = shape
        self.parts.append(part)

    def heads(self) -> tuple[list[float], list[float]]:
        """Return values and counts, one for each head or one in all, over all calls."""
        values, counts = self.parts[0]()
        for part in self.parts[1:]:
            more, of_how_many = part()
            values = [self._join(one, other) for one, other in zip(values, more, strict=True)]
            counts = [one + other for one, other in zip(counts, of_how_many, strict=True)]
        return values, counts

    def _join(self, one: float, other: float) -> float:
        if self.reduction is Reduction.MEAN:
            return one + other
        return max(one, other) if self.reduction is Reduction.MAX else min(one, other)

    def over_heads(self, values: list[float], counts: list[float]) -> float:
        """Return the value of all heads together."""
        if not sum(counts):
            return math.nan
        if self.reduction is Reduction.MEAN:
            return math.fsum(values) / sum(counts)
        return max(values) if self.reduction is Reduction.MAX else min(values)

    def of_head(self, value: float, count: float) -> float:
        """Return the value of one head."""
        if not count:
            return math.nan
        return value / count if self.reduction is Reduction.MEAN else value

    def counted(self, values: list[float]) -> tuple[list[float], list[float]]:
        """Give single numbers their counts: 1, or 0 for NaN, which changes nothing."""
        neutral = _NEUTRAL.get(self.reduction, 0.0)
        missing = [math.isnan(value) for value in values]
        return [neutral if gone else v for v, gone in zip(values, missing, strict=True)], [
            float(not g) for g in missing
        ]


class Readings:
    """Readings of one measurement, gathered by site and metric; tensors stay on their devices until they are read."""

    def __init__(self) -> None:
        """Start empty."""
        self._tallies: dict[tuple[str, str, int, str], _Tally] = {}
        self._transfer = _Transfer()

    def __len__(self) -> int:
        return len(self._tallies)

    def add(
        self, site: str, kind: str, layer: int, found: Mapping[str, Reading], reductions: Mapping[str, Reduction]
    ) -> None:
        """Take the readings of one call or matrix in; those of one site are reduced together."""
        by_rows: dict[tuple[Any, ...], list[tuple[_Tally, Tensor]]] = defaultdict(list)
        for metric, reading in found.items():
            value, flag = _unflagged(reading)
            key = (site, kind, layer, metric)
            tally = self._tallies.setdefault(key, _Tally(reductions.get(metric, Reduction.MEAN)))
            tally.flags += [flag] if flag else []
            if not isinstance(value, Tensor):
                tally.add(partial(tally.counted, [value]), ())
            elif value.ndim == ROWS_OF_HEADS:
                by_rows[tally.reduction, value.shape, value.dtype, value.device].append((tally, value))
            else:
                self._add_numbers(tally, value)
        for (reduction, *_), members in by_rows.items():
            self._add_rows(reduction, *zip(*members, strict=True))

    def _add_numbers(self, tally: _Tally, value: Tensor) -> None:
        numbers = self._transfer.put(value)
        tally.add(lambda: tally.counted(numbers()), tuple(value.shape))

    def _add_rows(self, reduction: Reduction, tallies: Sequence[_Tally], values: Sequence[Tensor]) -> None:
        """Reduce readings of one shape together: the fewer operations, the less a GPU is kept waiting."""
        reduced = _over_rows(torch.stack(tuple(values)), reduction)
        numbers, num_heads = self._transfer.put(reduced), reduced.shape[-1]

        def part(i: int) -> tuple[list[float], list[float]]:
            flat = numbers()
            values, counts = i * num_heads, (len(tallies) + i) * num_heads
            return flat[values : values + num_heads], flat[counts : counts + num_heads]

        for i, tally in enumerate(tallies):
            tally.add(partial(part, i), (num_heads,))

    def rows(self, *, heads: bool) -> Iterator[Row]:
        """Yield the value over all heads of every metric, and those of single heads where asked for."""
        self._transfer.read()
        for (site, kind, layer, metric), tally in self._tallies.items():
            if not tally.parts:  # what it was given could not be reduced, which was told then
                continue
            values, counts = tally.heads()
            flag = "; ".join(dict.fromkeys(tally.flags)) or ("" if sum(counts) else NOTHING)
            whole = tally.over_heads(values, counts)
            yield Row(site=site, kind=kind, layer=layer, head=ALL_HEADS, metric=metric, value=whole, flag=flag)
            if heads and tally.shape:
                for head, (value, count) in enumerate(zip(values, counts, strict=True)):
                    own = flag or ("" if count else NOTHING)
                    one = tally.of_head(value, count)
                    yield Row(site=site, kind=kind, layer=layer, head=head, metric=metric, value=one, flag=own)


def _unflagged(reading: Reading) -> tuple[float | Tensor, str]:
    """Take a reading and its flag apart, and refuse a tensor of the wrong shape."""
    reading, flag = reading if isinstance(reading, Flagged) else (reading, "")
    if not isinstance(reading, Tensor):
        return float(reading), flag
    if reading.ndim not in (0, 1, ROWS_OF_HEADS):
        raise ValueError(
            f"A reading must be a number or a tensor (B, H, rows), (H) or (), got shape {tuple(reading.shape)}."
        )
    return (reading.detach() if reading.is_floating_point() else reading.double()), flag
