r"""Which checkpoints of a run lie off its path through weight space.

Along a run, be it straight, a random walk or settled around a minimum, a checkpoint is hardly farther from the next one
than from those behind it: the ratio of $d_{i,i+2}$ to $d_{i,i+1}$ is 2 on a straight line, $\sqrt2$ for a random walk
and 1 for a settled run. With $\tau = \tfrac12$, two things do not happen:

$$d_{p,n} < \tau \min(d_{p,p+1}, d_{n-1,n}), \qquad d_{i,k} < \tau \min(d_{i-1,i}, d_{i,i+1}) \quad (k \ne i \pm 1).$$

The first is a detour: the run left between p and n, and came back to where it was. The second is a checkpoint that has
another one, elsewhere in the series, much nearer than its neighbours; when both can say so of each other, the one whose
neighbours are farther is out of place, or either if that tells nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

DETOUR = 0.5
"""τ: half of what a settled run shows, where all distances are equal."""
_FEWEST = 3
"""Checkpoints that make a path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPath:
    """A checkpoint that the run does not pass; checkpoints are given by their place in the series."""

    index: int
    before: int | None
    """The checkpoints before and after it that are on the path."""
    after: int | None
    nearest: int | None
    """The one elsewhere in the series where the weights belong: nearer than τ times the neighbours."""
    rival: int | None
    """Another one that may be out of place instead, when distances do not tell which of the two is."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    saved: float
    """How much shorter the path is without the members."""
    members: tuple[int, ...]
    rivals: bool = False


def off_path(distances: Float[np.ndarray, "n n"]) -> list[OffPath]:
    """Find the checkpoints off the path, given the distances of all from each other.

    >>> x = np.array([0.0, 1.0, 9.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.1])
    >>> [(off.index, off.nearest) for off in off_path(np.abs(x[:, None] - x))]
    [(2, 9)]
    """
    rivals, kept = _settle_copies(distances)
    while len(kept) >= _FEWEST:
        suspicions = _suspicions(distances[np.ix_(kept, kept)])
        if not suspicions:
            break
        worst = max(suspicions, key=lambda each: each.saved)  # the others are then judged without it
        members = [kept[position] for position in worst.members]
        rivals |= dict(zip(members, reversed(members) if worst.rivals else [None] * len(members), strict=True))
        kept = [index for index in kept if index not in members]
    return [_described(distances, kept, index, rival) for index, rival in sorted(rivals.items())]


def _settle_copies(distances: Float[np.ndarray, "n n"]) -> tuple[dict[int, int | None], list[int]]:
    """Decide where checkpoints that are equal belong; return those out of place, and one of each that stay."""
    rivals: dict[int, int | None] = {}
    kept = list(range(len(distances)))
    for first in range(len(distances)):
        equal = np.flatnonzero(distances[first] == 0).tolist()
        if equal[0] != first or not 1 < len(equal) < len(distances):
            continue
        runs = _runs(equal)
        homes = _homes(distances, [index for index in range(len(distances)) if index not in equal], runs)
        for run in runs:
            if run not in homes:
                rivals |= dict.fromkeys(run)
            elif len(homes) > 1:
                rivals |= dict.fromkeys(run, next(other[0] for other in homes if other != run))
        kept = [index for index in kept if index not in equal or index == homes[0][0]]
    return rivals, [index for index in kept if index not in rivals]


def _homes(d: Float[np.ndarray, "n n"], others: Sequence[int], runs: list[list[int]]) -> list[list[int]]:
    """Of runs of equal checkpoints return the one that is on the path, or those that may be."""
    sides = {run[0]: _sides(others, run[0]) for run in runs}
    fits = {first: min(d[first, j] for j in near) for first, near in sides.items()}
    detours = [first for first, near in sides.items() if len(near) > 1 and d[near[0], near[1]] < DETOUR * fits[first]]
    fitting = [run for run in runs if run[0] not in detours] or runs
    best = min(fitting, key=lambda run: fits[run[0]])
    return [run for run in fitting if fits[best[0]] >= DETOUR * fits[run[0]]]


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """Split into runs of consecutive numbers."""
    starts = [position for position, index in enumerate(indices) if not position or indices[position - 1] != index - 1]
    return [list(indices[start:stop]) for start, stop in zip(starts, [*starts[1:], len(indices)], strict=True)]


def _suspicions(d: Float[np.ndarray, "n n"]) -> list[_Suspicion]:
    everyone = range(len(d))
    fits = [min(d[i, j] for j in _sides(everyone, i)) for i in everyone]
    found = _detours(d)
    for i in everyone:
        k = min((k for k in everyone if abs(k - i) > 1), key=lambda k: d[i, k], default=None)
        if k is None or d[i, k] >= DETOUR * fits[i]:
            continue
        is_mutual = d[i, k] < DETOUR * fits[k]
        if not is_mutual or fits[k] < DETOUR * fits[i]:
            found.append(_Suspicion(_saved(d, i), (i,)))
        elif fits[i] >= DETOUR * fits[k]:
            found.append(_Suspicion(max(_saved(d, i), _saved(d, k)), (i, k), rivals=True))
    return found


def _detours(d: Float[np.ndarray, "n n"]) -> list[_Suspicion]:
    steps = np.diagonal(d, offset=1)
    leaving, returning = np.append(steps, 0.0), np.insert(steps, 0, 0.0)
    return [
        _Suspicion(float(steps[p] + steps[n - 1] - d[p, n]), tuple(range(p + 1, n)))
        for p, n in np.argwhere(d < DETOUR * np.minimum.outer(leaving, returning)).tolist()
        if n > p + 1 and 2 * (n - p - 1) < len(d)  # of the two parts the smaller is the detour
    ]


def _saved(d: Float[np.ndarray, "n n"], i: int) -> float:
    near = _sides(range(len(d)), i)
    return float(sum(d[i, j] for j in near) - (d[near[0], near[1]] if len(near) > 1 else 0.0))


def _sides(kept: Sequence[int], index: int) -> list[int]:
    """Return the neighbours of an index among those that are kept: one on each side, or one at an end."""
    before = [other for other in kept if other < index][-1:]
    after = [other for other in kept if other > index][:1]
    return before + after


def _described(distances: Float[np.ndarray, "n n"], kept: Sequence[int], index: int, rival: int | None) -> OffPath:
    before = max((other for other in kept if other < index), default=None)
    after = min((other for other in kept if other > index), default=None)
    d = distances[index]
    near = min((float(d[neighbour]) for neighbour in (before, after) if neighbour is not None), default=np.inf)
    elsewhere = [k for k in range(len(d)) if k not in (index, before, after) and d[k] < DETOUR * near]
    # of copies that are equally near, one on the path
    nearest = min(elsewhere, key=lambda k: (d[k], k not in kept), default=None)
    return OffPath(index=index, before=before, after=after, nearest=nearest, rival=rival)
