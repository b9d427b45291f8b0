"""A measured number with all that is needed to judge it: interval, threshold, control, published value."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict
from scipy import stats

CONFIDENCE = 0.95
"""Level of every interval that is shown."""

Values = Sequence[float] | np.ndarray | pd.Series
"""One value for each run."""


class Number(BaseModel):
    """One number, its uncertainty, and what it is compared with.

    The uncertainty is a standard error with its degrees of freedom, so that an interval of any level can be had. An
    exact number (an ODE, an identity, a count) has the error zero. A number whose error is None was measured once: it
    has no interval and decides nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    name: str
    """What was measured, in a few words."""
    value: float
    error: float | None = None
    """Standard error: zero for an exact number, None where it is not known."""
    df: float = math.inf
    """Degrees of freedom of the standard error."""
    n: int | None = None
    """Number of independent runs."""
    unit: str = ""
    at_least: float | None = None
    """Smallest value that passes. A number with neither limit is reported and not judged."""
    at_most: float | None = None
    """Largest value that passes."""
    control: float | None = None
    """The same number for the control; NaN where there is a control that was not measured."""
    control_name: str = ""
    difference_error: float | None = None
    """Standard error of value minus control."""
    difference_df: float = math.inf
    published: float | None = None
    """What the paper prints."""
    setting: str = ""
    """Where the claim was asked, for example `depth 5`. A claim with several settings is answered for each."""
    sanity: bool = False
    """A check of our own measurement. If it fails, nothing else is decided."""
    key: str = ""
    """Short name for placeholders in texts, for example `rise`."""
    against: str = ""
    """The independent side of an exact check: ODE, quadrature, enumeration."""
    seconds: float = 0.0

    @classmethod
    def exact(cls, name: str, value: float, **fields: Any) -> "Number":
        """Return a number without sampling error."""
        return cls(name=name, value=float(value), error=0.0, **fields)

    @classmethod
    def mean(
        cls, name: str, values: Values, *, control: Values | None = None, paired: bool = False, **fields: Any
    ) -> "Number":
        """Return the mean over runs with its standard error, and its difference from the control's runs.

        Args:
            name: What was measured.
            values: One value for each run.
            control: One value for each run of the control.
            paired: Whether the runs of both share their seeds in the same order.
            fields: Further fields of the number, such as `at_least`.

        >>> rise = Number.mean("rise", [0.30, 0.34, 0.32], control=[0.02, 0.00, 0.01], at_least=0.1, unit="nats")
        >>> round(rise.value, 2), [round(end, 2) for end in rise.interval()], rise.control
        (0.32, [0.27, 0.37], 0.01)
        """
        value, error, df = _mean(values)
        if control is not None:
            fields["control"], other, other_df = _mean(control)
            if paired:
                _, spread, freedom = _mean(np.asarray(values, dtype=float) - np.asarray(control, dtype=float))
                fields |= {"difference_error": spread, "difference_df": freedom}
            elif error is not None and other is not None:
                freedom = _welch(error, df, other, other_df)
                fields |= {"difference_error": math.hypot(error, other), "difference_df": freedom}
        return cls(name=name, value=value, error=error, df=df, n=len(values), **fields)

    @property
    def is_judged(self) -> bool:
        """Whether there is a threshold."""
        return bool(self.limits)

    @property
    def limits(self) -> list[float]:
        """The thresholds that there are."""
        return [limit for limit in (self.at_least, self.at_most) if limit is not None]

    @property
    def is_exact(self) -> bool:
        """Whether there is no sampling error."""
        return self.error == 0.0

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the confidence interval; without an error it covers everything."""
        return _interval(self.value, self.error, self.df, confidence)

    def difference(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval of value minus control; it covers everything where it cannot be had."""
        if self.control is None or math.isnan(self.control):
            return -math.inf, math.inf
        return _interval(self.value - self.control, self.difference_error, self.difference_df, confidence)

    def passes(self, value: float) -> bool:
        """Whether a value lies on the right side of the thresholds; NaN does not."""
        above = self.at_least is None or value >= self.at_least
        below = self.at_most is None or value <= self.at_most
        return above and below and not math.isnan(value)


def _mean(values: Values) -> tuple[float, float | None, float]:
    array = np.asarray(values, dtype=float)
    if array.size < 2:  # noqa: PLR2004 - one run has no spread
        return float(array.mean()) if array.size else math.nan, None, math.inf
    return float(array.mean()), float(stats.sem(array)), float(array.size - 1)


def _welch(error: float, df: float, other: float, other_df: float) -> float:
    """Return the degrees of freedom of a difference of means with unequal variances."""
    spread = error**4 / df + other**4 / other_df
    return (error**2 + other**2) ** 2 / spread if spread else math.inf


def _interval(value: float, error: float | None, df: float, confidence: float) -> tuple[float, float]:
    if error is None or math.isnan(value):
        return -math.inf, math.inf
    half = 0.0 if error == 0 else error * float(stats.t.ppf((1 + confidence) / 2, df))
    return value - half, value + half
