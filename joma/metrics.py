"""Every quantity that joma records, with its symbol, unit, bounds, average and label: one table for the whole package.

A new quantity is one entry of `metrics.toml`, or one function under `metric`:

>>> @metric("query_norm", symbol="‖q‖", bounds=(0, inf), label="norm of the queries")
... def query_norm(call):
...     "Euclidean norm of each query vector."
...     return call.q.norm(dim=-1)
>>> metric_named("query_norm").axis, metric_named("query_norm").description
('norm of the queries', 'Euclidean norm of each query vector.')
>>> del METRICS["query_norm"]
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from math import inf, isfinite
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])
Bounds = tuple[float | int, float | int]

SMALLEST_PART = 0.05
"""Part of its value at the start by which a quantity must change for the change to have a name."""
ROUNDING = 1e-3
"""Smaller relative changes have no name, however close to its bound a quantity is: a stable rank of 1 is flat."""


class Reduction(StrEnum):
    """How the values of rows, of sequences and of heads become one number."""

    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One quantity."""

    name: str
    """As records call it."""
    symbol: str
    """As formulas call it."""
    unit: str = ""
    """Empty for pure numbers."""
    bounds: Bounds = (-inf, inf)
    """Smallest and largest value possible."""
    label: str
    """A few words for axes and headings, without the unit."""
    description: str = ""
    reduction: Reduction = Reduction.MEAN
    """Over the rows of a sequence, the sequences of a batch and the heads of a layer."""
    smallest_change: float | None = None
    """Fall or rise that has a name, in the metric's unit; `SMALLEST_PART` of the value at the start if None."""
    is_principal: bool = False
    """Whether it is shown when there is room for few."""

    @property
    def axis(self) -> str:
        """Label with unit.

        >>> METRICS["entropy"].axis, METRICS["stable_rank"].axis
        ('attention entropy (nats)', 'stable rank')
        """
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def change_from(self, start: float | int) -> float:
        """Smallest fall or rise that has a name, for a curve that starts at this value."""
        if self.smallest_change is not None:
            return self.smallest_change
        lowest = self.bounds[0]
        height = abs(start - lowest if isfinite(lowest) else start)
        return max(SMALLEST_PART * height, ROUNDING * abs(start))


def _metric(name: str, fields: dict[str, Any]) -> Metric:
    lowest, highest = fields.pop("bounds", (-inf, inf))
    reduction = Reduction(fields.pop("reduction", Reduction.MEAN))
    return Metric(name=name, bounds=(lowest, highest), reduction=reduction, **fields)


_OWN = tomllib.loads(files("joma").joinpath("metrics.toml").read_text(encoding="utf-8"))
METRICS: dict[str, Metric] = {name: _metric(name, dict(fields)) for name, fields in _OWN.items()}
"""All known quantities by name, in the order in which they are shown."""


def metric_named(name: str) -> Metric:
    """Return a quantity by name; an unknown one is labelled by its name and has no bounds.

    >>> metric_named("entropy").bounds, metric_named("my_number").label
    ((0, inf), 'my_number')
    """
    return METRICS.get(name) or Metric(name=name, symbol=name, label=name)


def metric(
    name: str,
    *,
    symbol: str,
    unit: str = "",
    bounds: Bounds = (-inf, inf),
    label: str = "",
    reduction: Reduction | str = Reduction.MEAN,
) -> Callable[[Function], Function]:
    """Enter a function's result into `METRICS`; the first line of its docstring becomes the description.

    Args:
        name: the quantity's name in records.
        symbol: as formulas call it.
        unit: empty for pure numbers.
        bounds: smallest and largest value possible.
        label: a few words for axes; the name if empty.
        reduction: how rows, sequences and heads become one number.
    """
    if name in _OWN:
        raise ValueError(f"{name!r} is one of joma's own quantities. Choose another name.")

    def enter(function: Function) -> Function:
        METRICS[name] = Metric(
            name=name,
            symbol=symbol,
            unit=unit,
            bounds=bounds,
            label=label or name,
            description=(function.__doc__ or "").strip().partition("\n")[0],
            reduction=Reduction(reduction),
        )
        return function

    return enter
