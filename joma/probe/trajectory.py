r"""Which checkpoints of a run lie off its path through weight space.

Along a run, be it straight, a random walk or settled around a minimum, a checkpoint is hardly farther from the next one
than from those behind it: the ratio of $d_{i,i+2}$ to $d_{i,i+1}$ is 2 on a straight line, $\sqrt2$ for a random walk
and 1 for a settled run. With $\tau = \tfrac12$, two things do not happen:

$$d_{p,n} < \tau \min(d_{p,p+1}, d_{n-1,n}), \qquad d_{i,k} < \tau \min(d_{i-1,i}, d_{i,i+1}) \quad (k \ne i \pm 1).$$

The first is a detour: the run left between p and n, and came back to where it was. The second is a checkpoint that has
another one, elsewhere in the series, much nearer than its neighbours; when both can say so of each other, the one whose
neighbours are farther is out of place, or either if that tells nothing. A fault makes its neighbours look odd too, so
the fewest faults are sought that explain everything.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

DETOUR = 0.5
"""τ: half of what a settled run shows, where all distances are equal."""
_FEWEST = 3
"""Checkpoints that make a path."""
_MOST_VERDICTS = 500
"""Combinations of faults that are weighed against each other."""


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
    members: tuple[int, ...]
    rivals: bool = False
    """Whether either of two members may be the wrong one."""

    @property
    def cost(self) -> float:
        """How many faults it may stand for: a block has one cause."""
        return 2.0 if self.rivals else 1.0


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Checkpoints that are kept, and those that are accused with their rivals."""

    kept: tuple[int, ...]
    accused: dict[int, int | None]


def off_path(distances: Float[np.ndarray, "n n"]) -> list[OffPath]:
    """Find the checkpoints off the path, given the distances of all from each other.

    It finds the fewest faults that leave a path without a suspicion; of as many, those that leave the shortest path.

    >>> x = np.array([0.0, 1.0, 9.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.1])
    >>> [(off.index, off.nearest) for off in off_path(np.abs(x[:, None] - x))]
    [(2, 9)]
    """
    verdict = _settle_copies(distances)
    waiting = [(0.0, 0.0, 0, verdict)]
    seen: set[tuple[int, ...]] = set()
    while waiting:
        cost, _, _, verdict = heapq.heappop(waiting)
        suspicions = _suspicions(distances[np.ix_(verdict.kept, verdict.kept)])
        if not suspicions:
            break
        if len(seen) >= _MOST_VERDICTS:
            waiting.clear()  # too many faults to weigh all combinations: go on with the best so far
        for suspicion in suspicions:
            after = _accuse(verdict, suspicion)
            if after.kept not in seen:
                seen.add(after.kept)
                entry = (cost + suspicion.cost, _length(distances, after.kept), len(seen), after)
                heapq.heappush(waiting, entry)
    return [_described(distances, verdict.kept, index, rival) for index, rival in sorted(verdict.accused.items())]


def _accuse(verdict: _Verdict, suspicion: _Suspicion) -> _Verdict:
    members = [verdict.kept[position] for position in suspicion.members]
    rivals = members[::-1] if suspicion.rivals else [None] * len(members)
    return _Verdict(
        tuple(index for index in verdict.kept if index not in members),
        verdict.accused | dict(zip(members, rivals, strict=True)),
    )


def _length(distances: Float[np.ndarray, "n n"], kept: Sequence[int]) -> float:
    return float(sum(distances[i, j] for i, j in pairwise(kept)))


def _settle_copies(distances: Float[np.ndarray, "n n"]) -> _Verdict:
    """Decide where checkpoints that are equal belong; of those that stay, one of each is kept."""
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
    return _Verdict(tuple(index for index in kept if index not in rivals), rivals)


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
    if len(d) < _FEWEST:
        return []
    return [*_single(d), *_detours(d)]


def _single(d: Float[np.ndarray, "n n"]) -> list[_Suspicion]:
    """Find checkpoints that have another one, elsewhere in the series, much nearer than their neighbours."""
    steps = np.diagonal(d, offset=1)
    fits = np.minimum(np.append(steps, np.inf), np.insert(steps, 0, np.inf))
    place = np.arange(len(d))
    elsewhere = np.where(np.abs(place[:, None] - place) > 1, d, np.inf)
    found = []
    for i, k in enumerate(elsewhere.argmin(axis=1).tolist()):
        if elsewhere[i, k] >= DETOUR * fits[i]:
            continue
        is_mutual = d[i, k] < DETOUR * fits[k]
        if not is_mutual or fits[k] < DETOUR * fits[i]:
            found.append(_Suspicion((i,)))
        elif fits[i] >= DETOUR * fits[k]:
            found.append(_Suspicion((i, k), rivals=True))
    return found


def _detours(d: Float[np.ndarray, "n n"]) -> list[_Suspicion]:
    """Find blocks that the run left for, stayed in, and came back from."""
    steps = np.diagonal(d, offset=1)
    leaving, returning = np.append(steps, 0.0), np.insert(steps, 0, 0.0)
    return [
        _Suspicion(tuple(range(p + 1, n)))
        for p, n in np.argwhere(d < DETOUR * np.minimum.outer(leaving, returning)).tolist()
        if n > p + 1
        and 2 * (n - p - 1) < len(d)  # of the two parts the smaller is the detour
        and steps[p + 1 : n - 1].max(initial=0.0) < DETOUR * min(steps[p], steps[n - 1])
    ]


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
