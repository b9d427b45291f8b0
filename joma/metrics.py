"""Every quantity that joma records, with its symbol, unit, bounds, average and label: one table for the whole package.

A new quantity is one entry here, or one function under `metric`:

>>> @metric("query_norm", symbol="‖q‖", bounds=(0, inf), label="norm of the queries")
... def query_norm(call):
...     "Euclidean norm of each query vector."
...     return call.q.norm(dim=-1)
>>> metric_named("query_norm").axis, metric_named("query_norm").description
('norm of the queries', 'Euclidean norm of each query vector.')
>>> del METRICS["query_norm"]
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import TypeVar

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


_TABLE = (
    Metric(
        name="entropy",
        symbol="H",
        unit="nats",
        bounds=(0, inf),
        label="attention entropy",
        description="Entropy of a query's attention over the keys that it may see.",
        smallest_change=0.1,
        is_principal=True,
    ),
    Metric(
        name="entropy_window",
        symbol="H",
        unit="nats",
        bounds=(0, inf),
        label="attention entropy in one window",
        description="Attention entropy in the single window of text that the paper shows.",
        smallest_change=0.1,
    ),
    Metric(
        name="entropy_fraction",
        symbol="H / log n",
        bounds=(0, 1),
        label="attention entropy over its maximum",
        description="Attention entropy over log n, for a query that may see n > 1 keys.",
        smallest_change=0.02,
        is_principal=True,
    ),
    Metric(
        name="stable_rank",
        symbol="‖W‖_F² / ‖W‖₂²",
        bounds=(1, inf),
        label="stable rank",
        description="Squared Frobenius norm over squared spectral norm of the lower matrix of an MLP.",
        is_principal=True,
    ),
    Metric(
        name="loss",
        symbol="L",
        label="loss",
        description="Mean cross-entropy, or what the training loop passes as its loss.",
        is_principal=True,
    ),
    Metric(
        name="effective_keys",
        symbol="1 / Σ p²",
        unit="keys",
        bounds=(1, inf),
        label="effective number of keys",
        description="Inverse of the sum of squared attention weights of a query.",
    ),
    Metric(
        name="sink_mass",
        symbol="s",
        bounds=(0, 1),
        label="attention on the first key",
        description="Share of a query's attention that goes to the first key.",
    ),
    Metric(
        name="mean_distance",
        symbol="d",
        unit="tokens",
        bounds=(0, inf),
        label="mean attended distance",
        description="Distance between a query and the keys that it attends to, weighted by attention.",
    ),
    Metric(
        name="max_logit",
        symbol="max z",
        label="largest logit",
        description="Largest attention logit after scaling.",
        reduction=Reduction.MAX,
    ),
    Metric(
        name="qk_spectral_norm",
        symbol="‖W_QᵀW_K‖₂",
        bounds=(0, inf),
        label="spectral norm of queries × keys",
        description="Largest singular value of the product of a head's query and key weights.",
        reduction=Reduction.MAX,
    ),
    Metric(
        name="spectral_norm",
        symbol="‖W‖₂",
        bounds=(0, inf),
        label="spectral norm",
        description="Largest singular value of the lower matrix of an MLP.",
    ),
    Metric(
        name="frobenius_norm",
        symbol="‖W‖_F",
        bounds=(0, inf),
        label="Frobenius norm",
        description="Root of the sum of squared weights of the lower matrix of an MLP.",
    ),
    Metric(
        name="rank_residual",
        symbol="r",
        bounds=(0, inf),
        label="residual of the power iteration",
        description="Relative residual of the singular vector; the spectral norm may be off by this part.",
    ),
    Metric(
        name="entropy_lowest_before_clamp",
        symbol="min H",
        unit="nats",
        label="lowest entropy before clamping at 0",
        description="Smallest entropy of a row as computed; negative values are rounding.",
        reduction=Reduction.MIN,
    ),
)
METRICS: dict[str, Metric] = {each.name: each for each in _TABLE}
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
    if any(each.name == name for each in _TABLE):
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
