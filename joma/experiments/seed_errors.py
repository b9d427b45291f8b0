"""Whether a mean over seeds exceeds what was demanded of it beforehand, or stays below it, or neither can be said."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

NUM_ERRORS = 3.0
"""Standard errors between seeds that a difference must stand out by."""


def mean_and_error(values: Sequence[float] | pd.Series) -> tuple[float, float]:
    """Return the mean over seeds and its standard error, NaN for a single one.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    array = np.asarray(values, dtype=np.float64)
    error = array.std(ddof=1) / np.sqrt(array.size) if array.size > 1 else np.nan
    return float(array.mean()) if array.size else float("nan"), float(error)


def exceeds(value: float, error: float, least: float) -> bool | None:
    """Whether a value is at least as demanded and stands out from zero; None if seeds do not tell, or NaN.

    >>> exceeds(0.1, 0.01, 0.05), exceeds(0.01, 0.01, 0.05), exceeds(0.04, 0.02, 0.05)
    (True, False, None)
    """
    if value + NUM_ERRORS * error < least:
        return False
    return True if value >= least and value >= NUM_ERRORS * error else None
