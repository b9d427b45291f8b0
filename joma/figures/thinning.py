"""Fewer points for a picture, with every dip and every spike kept."""

from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

PER_BUCKET = 2
"""Points that are kept of a stretch: its lowest and its highest."""


def extremes(values: Float[np.ndarray, " n"], max_points: int) -> Int[np.ndarray, " k"]:
    """Return the indices of at most `max_points` values, in order: the ends, and the extremes of equal stretches.

    The fewest are four: the ends, the lowest and the highest. NaN is neither lowest nor highest; a stretch of nothing
    else keeps its first.

    >>> extremes(np.array([0.0, 1.0, 9.0, 1.0, 0.0, 1.0, -9.0, 1.0, 0.0]), 6).tolist()
    [0, 1, 2, 5, 6, 8]
    """
    if max_points < PER_BUCKET + 2:
        raise ValueError(f"`max_points` must be {PER_BUCKET + 2} or more, got {max_points}.")
    num = values.size
    if num <= max_points:
        return np.arange(num)
    edges = _edges(num - 2, (max_points - 2) // PER_BUCKET) + 1
    low, high = (np.where(np.isnan(values), fill, values) for fill in (np.inf, -np.inf))
    kept = [0, num - 1]
    for begin, end in pairwise(edges):
        kept += [begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax())]
    return np.unique(kept)


def columns(
    matrix: Float[np.ndarray, "rows n"], max_columns: int
) -> tuple[Float[np.ndarray, "rows k"], Int[np.ndarray, " k"]]:
    """Merge equal stretches of columns until at most `max_columns` are left; return them and the first index of each.

    Of a stretch every row keeps the value that is farthest from the stretch's median, so that a dip does not drown.
    """
    num = matrix.shape[1]
    if num <= max_columns:
        return matrix, np.arange(num)
    edges = _edges(num, max_columns)
    picked = [begin + _farthest(matrix[:, begin:end]) for begin, end in pairwise(edges)]
    return np.take_along_axis(matrix, np.stack(picked, axis=1), axis=1), edges[:-1]


def _farthest(stretch: Float[np.ndarray, "rows n"]) -> Int[np.ndarray, " rows"]:
    known = np.ma.masked_invalid(stretch)
    distance = np.abs(known - np.ma.median(known, axis=1, keepdims=True))
    return distance.filled(-1.0).argmax(axis=1)


def _edges(num: int, num_buckets: int) -> Int[np.ndarray, " m"]:
    return np.unique(np.linspace(0, num, min(num, num_buckets) + 1).astype(int))
