"""From readings of single calls to rows of the record: reduced over rows and calls, per head and over heads."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
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


_NEUTRAL = {Reduction.MEAN: 0.0, Reduction.MAX: -math.inf, Reduction.MIN: math.inf}
_OVER_ROWS: dict[Reduction, Callable[..., Tensor]] = {
    Reduction.MEAN: torch.sum,
    Reduction.MAX: torch.amax,
    Reduction.MIN: torch.amin,
}
_JOINED: dict[Reduction, Callable[[Tensor, Tensor], Tensor]] = {
    Reduction.MEAN: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
}


@dataclass(slots=True)
class _Tally:
    """Sum and count, or extreme, of the heads of one metric; tensors stay on their device until they are read."""

    reduction: Reduction
    value: Tensor | None = None
    count: Tensor | None = None
    has_heads: bool = False
    flags: list[str] = field(default_factory=list)

    def add(self, reading: Reading) -> None:
        """Take one reading in."""
        if isinstance(reading, Flagged):
            if reading.flag:
                self.flags.append(reading.flag)
            reading = reading.value
        values = reading.detach() if isinstance(reading, Tensor) else torch.tensor(float(reading), dtype=torch.float64)
        if values.ndim not in (0, 1, ROWS_OF_HEADS):
            raise ValueError(
                f"A reading must be a number or a tensor (B, H, rows), (H) or (), got shape {tuple(values.shape)}."
            )
        self.has_heads |= values.ndim > 0
        valid = ~values.isnan()
        values = torch.where(valid, values, _NEUTRAL[self.reduction])
        count = valid.long()
        if values.ndim == ROWS_OF_HEADS:
            values, count = _OVER_ROWS[self.reduction](values, (0, 2)), count.sum((0, 2))
        self.value = values if self.value is None else _JOINED[self.reduction](self.value, values)
        self.count = count if self.count is None else self.count + count

    def heads(self) -> tuple[list[float], list[int]]:
        """Wait for the device and return values and counts, one for each head or one in all."""
        assert self.value is not None and self.count is not None
        return self.value.double().reshape(-1).tolist(), self.count.reshape(-1).tolist()

    def over_heads(self, values: list[float], counts: list[int]) -> float:
        """Return the value of all heads together."""
        if not sum(counts):
            return math.nan
        if self.reduction is Reduction.MEAN:
            return math.fsum(values) / sum(counts)
        return max(values) if self.reduction is Reduction.MAX else min(values)

    def of_head(self, value: float, count: int) -> float:
        """Return the value of one head."""
        if not count:
            return math.nan
        return value / count if self.reduction is Reduction.MEAN else value


class Readings:
    """Readings of one measurement, gathered by site and metric."""

    def __init__(self) -> None:
        """Start empty."""
        self._tallies: dict[tuple[str, str, int, str], _Tally] = {}

    def __len__(self) -> int:
        return len(self._tallies)

    def add(
        self, site: str, kind: str, layer: int, found: Mapping[str, Reading], reductions: Mapping[str, Reduction]
    ) -> None:
        """Take the readings of one call or matrix in; those of one site are reduced together."""
        for metric, reading in found.items():
            key = (site, kind, layer, metric)
            if key not in self._tallies:
                self._tallies[key] = _Tally(reductions.get(metric, Reduction.MEAN))
            self._tallies[key].add(reading)

    def rows(self, *, heads: bool) -> Iterator[Row]:
        """Yield the value over all heads of every metric, and those of single heads where asked for."""
        for (site, kind, layer, metric), tally in self._tallies.items():
            values, counts = tally.heads()
            flag = "; ".join(dict.fromkeys(tally.flags)) or ("" if sum(counts) else NOTHING)
            whole = tally.over_heads(values, counts)
            yield Row(site=site, kind=kind, layer=layer, head=ALL_HEADS, metric=metric, value=whole, flag=flag)
            if heads and tally.has_heads:
                for head, (value, count) in enumerate(zip(values, counts, strict=True)):
                    own = flag or ("" if count else NOTHING)
                    one = tally.of_head(value, count)
                    yield Row(site=site, kind=kind, layer=layer, head=head, metric=metric, value=one, flag=own)
