r"""Which checkpoints of a run lie off its path through weight space.

Along a run, be it straight, a random walk or settled around a minimum, a checkpoint is hardly farther from the next one
than from those before it: the ratio of $d_{i,i+2}$ to $d_{i,i+1}$ is 2 on a straight line, $\sqrt2$ for a random walk
and 1 for a settled run. Three patterns do not occur, with $\tau = \tfrac12$ and $\sigma = 0.85$:

$$d_{p,n} < \tau \min(d_{p,p+1}, d_{n-1,n}), \qquad d_{i,k} < \tau \min(d_{i-1,i}, d_{i,i+1}) \quad (k \ne i \pm 1),$$
$$d_{i-1,k} + d_{k,i+1} < \sigma (d_{i-1,i} + d_{i,i+1}) \text{ and the same with $i$ and $k$ exchanged.}$$

The first is a detour: the run left between p and n, and came back to where it was. The second is a checkpoint that has
another one, elsewhere in the series, much nearer than its neighbours; when both can say so of each other, the one whose
neighbours are farther is out of place, or either if that shows nothing. The third is two checkpoints that each fit
better under the other's step. A fault makes its neighbours look odd too: accused first is what leaves
the fewest suspicions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Distances = Float[np.ndarray, "n n"]
DETOUR = 0.5  # τ: half of what a settled run shows, where all distances are equal
SWAP = 0.85  # σ: a random walk shows at most 0.71 where two neighbours are swapped, and a settled run 1
SAME, AT_END, OBTUSE, CLEAR = 1.05, 0.65, 0.75, 0.4
"""The same for swaps with the first or the last checkpoint, of which there is less evidence unless it is clear."""
MOST_TRIED = 40  # exchanges of which that is chosen that explains most
_FEWEST = 3  # checkpoints that make a path


@dataclass(frozen=True, slots=True)
class OffPath:
    """A checkpoint that the run does not pass; checkpoints are given by their position in the series."""

    index: int
    before: int | None  # the checkpoints before and after it that are on the path
    after: int | None
    nearest: int | None = None
    """The one elsewhere in the series where the weights belong: nearer than τ times the neighbours, or exchanged."""
    rival: int | None = None
    """Another one that may be out of place instead, when distances do not show which of the two is."""


def off_path(d: Distances, at_home: Sequence[int] = ()) -> list[OffPath]:
    """Find the checkpoints off the path, given the distances of all from each other.

    Args:
        d: Distances; 0 between checkpoints that hold the same weights.
        at_home: Checkpoints known to be in their place; of equal ones they are the original.

    >>> x = np.array([0.0, 1.0, 9.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.1])
    >>> [(off.index, off.nearest) for off in off_path(np.abs(x[:, None] - x))]
    [(2, 9)]
    """
    path, rivals = _settle_copies(d, at_home)
    exchanged: dict[int, int] = {}
    while len(path) >= _FEWEST:
        here = d[np.ix_(path, path)]
        pairs = _exchanges(here)
        if pairs:
            pair = min(pairs, key=lambda each: _left_after(here, each))
            i, k = (path[place] for place in pair)
            if i in exchanged or k in exchanged:  # a ring of more than two: none of them is in its place
                path = [index for index in path if index not in (i, k)]
            else:
                path[pair[0]], path[pair[1]] = k, i
            exchanged |= {i: k, k: i}
            continue
        suspicions = _suspicions(here)
        if not suspicions:
            break
        are_rivals, members = min(suspicions, key=lambda each: _left(here, *each))
        accused = [path[place] for place in members]
        rivals |= dict(zip(accused, accused[::-1] if are_rivals else [None] * len(accused), strict=True))
        path = [index for index in path if index not in accused]
    on_path = sorted(set(path) - exchanged.keys())
    found = []
    for index in sorted({*rivals, *exchanged}):
        if index in exchanged:
            found.append(OffPath(index, *_sides(on_path, index), exchanged[index]))
        else:
            found.append(OffPath(index, *_sides(on_path, index), _nearest(d, on_path, index), rivals[index]))
    return found


def _settle_copies(d: Distances, at_home: Sequence[int]) -> tuple[list[int], dict[int, int | None]]:
    """Decide where checkpoints that are equal belong; of those that stay, one of each is kept."""
    rivals: dict[int, int | None] = {}
    kept = list(range(len(d)))
    for first in range(len(d)):
        equal = np.flatnonzero(d[first] == 0).tolist()
        if equal[0] != first or not 1 < len(equal) < len(d):
            continue
        runs = _runs(equal)
        homes = [run for run in runs if set(run) & set(at_home)]
        if len(homes) != 1:
            homes = _homes(d, [index for index in range(len(d)) if index not in equal], runs)
        for run in runs:
            if run not in homes:
                rivals |= dict.fromkeys(run)
            elif len(homes) > 1:
                rivals |= dict.fromkeys(run, next(other[0] for other in homes if other != run))
        kept = [index for index in kept if index not in equal or index == homes[0][0]]
    return [index for index in kept if index not in rivals], rivals


def _homes(d: Distances, others: Sequence[int], runs: list[list[int]]) -> list[list[int]]:
    """Of runs of equal checkpoints return the one that is on the path, or those that may be."""
    sides = {run[0]: [side for side in _sides(others, run[0]) if side is not None] for run in runs}
    fits = {first: min(d[first, j] for j in near) for first, near in sides.items()}
    detours = [first for first, near in sides.items() if len(near) > 1 and d[near[0], near[1]] < DETOUR * fits[first]]
    fitting = [run for run in runs if run[0] not in detours] or runs
    best = min(fitting, key=lambda run: fits[run[0]])
    return [run for run in fitting if fits[best[0]] >= DETOUR * fits[run[0]]]


def _runs(indices: Sequence[int]) -> list[list[int]]:
    return [run.tolist() for run in np.split(np.asarray(indices), np.flatnonzero(np.diff(indices) != 1) + 1)]


def _exchanges(d: Distances) -> list[tuple[int, int]]:
    """Find pairs of checkpoints that fit better under each other's step, the best first."""
    n = len(d)
    if n <= _FEWEST or not d.any():
        return []
    edges = np.pad(d, ((1, 1), (0, 0)))
    sites = edges[:-2] + edges[2:]
    """Distance of checkpoint k, if it were at position i, from the neighbours of that position."""
    old = np.repeat(np.diagonal(sites)[:, None], n, axis=1)
    for i in range(n - 1):  # of two neighbours the distance from each other stays
        old[i, i + 1] -= d[i, i + 1]
        old[i + 1, i] -= d[i, i + 1]
    ratios = np.divide(sites, old, out=np.full((n, n), np.inf), where=old > 0)
    worse = np.maximum(ratios, ratios.T)
    both = (sites + sites.T) / np.maximum(old + old.T, np.finfo(float).tiny)
    # An end has one neighbour, whose distance may stay as it is: then the other place must gain all the more. A run
    # that leaves its start in one leap is farther from its start than from its end: both places together show it.
    is_end = np.isin(np.arange(n), (0, n - 1))
    is_at_end = is_end[:, None] | is_end
    worse = np.where(is_at_end, np.where(((worse <= SAME) & (both < AT_END)) | (both < CLEAR), both, np.inf), worse)
    for i, k, beyond in ((0, 1, 2), (n - 1, n - 2, n - 3)):
        # The second of all comes first, if it lies between the first and the third: at an obtuse angle.
        angle = (d[i, k] ** 2 + d[i, beyond] ** 2) / max(d[k, beyond] ** 2, np.finfo(float).tiny)
        # Checkpoints that lack different tensors may break the triangle inequality, and say nothing then.
        is_between = angle < OBTUSE and d[i, k] + d[i, beyond] >= d[k, beyond]
        worse[i, k] = worse[k, i] = angle if is_between else np.inf
    worse[np.tril_indices(n)] = np.inf
    best = np.argsort(worse, axis=None)[:MOST_TRIED]
    return [divmod(int(place), n) for place in best if worse.flat[place] < SWAP]


def _left_after(d: Distances, pair: tuple[int, int]) -> tuple[int, float]:
    """How much is odd when two have been exchanged, and the length of the path then."""
    order = np.arange(len(d))
    order[list(pair)] = pair[::-1]
    new = d[np.ix_(order, order)]
    return len(_exchanges(new)) + len(_suspicions(new)), float(np.diagonal(new, offset=1).sum())


def _left(d: Distances, are_rivals: bool, members: Sequence[int]) -> tuple[int, bool, float]:
    """How many suspicions are left without some, whether it accuses one too many, and the length of the path left."""
    rest = np.delete(np.delete(d, members, axis=0), members, axis=1)
    num_left = len(_suspicions(rest)) if len(rest) >= _FEWEST else 0
    return num_left, are_rivals, float(np.diagonal(rest, offset=1).sum())


def _suspicions(d: Distances) -> list[tuple[bool, tuple[int, ...]]]:
    """Find checkpoints that a run does not pass: whether either of two may be wrong, and their positions.

    Either one has another, elsewhere in the series, much nearer than its neighbours, or the run left for a block,
    stayed in it, and came back.
    """
    steps = np.diagonal(d, offset=1)
    fits = np.minimum(np.append(steps, np.inf), np.insert(steps, 0, np.inf))
    position = np.arange(len(d))
    elsewhere = np.where(np.abs(position[:, None] - position) > 1, d, np.inf)
    found: list[tuple[bool, tuple[int, ...]]] = []
    for i, k in enumerate(elsewhere.argmin(axis=1).tolist()):
        if elsewhere[i, k] >= DETOUR * fits[i]:
            continue
        if d[i, k] >= DETOUR * fits[k] or fits[k] < DETOUR * fits[i]:
            found.append((False, (i,)))
        elif fits[i] >= DETOUR * fits[k]:
            found.append((True, (i, k)))
    leaving, returning = np.append(steps, 0.0), np.insert(steps, 0, 0.0)
    found += [
        (False, tuple(range(p + 1, n)))
        for p, n in np.argwhere(d < DETOUR * np.minimum.outer(leaving, returning)).tolist()
        if n > p + 1
        and 2 * (n - p - 1) < len(d)  # the smaller of the two stretches is the detour
        and steps[p + 1 : n - 1].max(initial=0.0) < DETOUR * min(steps[p], steps[n - 1])
    ]
    return found


def _sides(kept: Sequence[int], index: int) -> tuple[int | None, int | None]:
    """Return the nearest of those kept before and after an index; None beyond an end."""
    before = max((other for other in kept if other < index), default=None)
    return before, min((other for other in kept if other > index), default=None)


def _nearest(d: Distances, kept: Sequence[int], index: int) -> int | None:
    """Return the checkpoint elsewhere in the series that is much nearer than the neighbours."""
    sides = _sides(kept, index)
    near = min((float(d[index, each]) for each in sides if each is not None), default=np.inf)
    elsewhere = [k for k in range(len(d)) if k not in (index, *sides) and d[index, k] < DETOUR * near]
    # of copies that are equally near, one on the path
    return min(elsewhere, key=lambda k: (d[index, k], k not in kept), default=None)
