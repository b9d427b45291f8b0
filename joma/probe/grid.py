"""Steps that are missing from the grid on which checkpoints were saved."""

from collections.abc import Iterator, Sequence
from itertools import pairwise


def missing_steps(steps: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield two steps in a row with what the grid has between them.

    The grid is even differences, which must show on both sides of the gap (or twice on one side, at either end) and
    explain all that lies between, with no more missing than there; or even whole ratios in the same way.

    >>> list(missing_steps([1, 2, 4, 8, 32, 64, 1000, 2000, 3000, 5000, 6000]))
    [(8, 32, [16]), (3000, 5000, [4000])]
    """
    for i in range(len(steps) - 1):
        found = _on_even_differences(steps, i) or _on_even_ratios(steps, i)
        if found:
            yield steps[i], steps[i + 1], found


def _on_even_differences(steps: Sequence[int], i: int) -> list[int]:
    if i == len(steps) - 2 and i > 0 and steps[i - 1] * steps[i + 1] == steps[i] ** 2:
        return []  # 0, 1, 2, 4: doubling has begun
    differences = [after - before for before, after in pairwise(steps)]
    for spacing in sorted({each for each in differences if each < differences[i] and differences[i] % each == 0}):
        run = _run(differences, i, spacing)
        if run is None:
            continue
        num_there = len(run) + 1
        num_missing = sum(differences[j] // spacing - 1 for j in run)
        if num_missing <= num_there:
            return list(range(steps[i] + spacing, steps[i + 1], spacing))
    return []


def _run(differences: Sequence[int], i: int, spacing: int) -> range | None:
    """Return the differences around the i-th, up to the next equal to the spacing; None if others lie between."""
    left = next((j for j in range(i - 1, -1, -1) if differences[j] == spacing), None)
    right = next((j for j in range(i + 1, len(differences)) if differences[j] == spacing), None)
    if i == 0 and differences[1:3] == [spacing, spacing]:
        return range(3)
    if i == len(differences) - 1 and list(differences[-3:-1]) == [spacing, spacing]:
        return range(i - 2, i + 1)
    if left is None or right is None:
        return None
    run = range(left, right + 1)
    return run if all(differences[j] % spacing == 0 for j in run) else None


def _on_even_ratios(steps: Sequence[int], i: int) -> list[int]:
    pairs = [(i - 1, i + 1)] if 0 < i < len(steps) - 2 else [(i + 1, i + 2)] if i == 0 else [(i - 2, i - 1)]
    for pair in pairs:
        if min(pair) < 0 or max(pair) + 1 >= len(steps) or steps[min(*pair, i)] <= 0:
            continue
        ratios = {steps[j + 1] / steps[j] for j in pair}
        if len(ratios) == 1 and (ratio := ratios.pop()).is_integer():
            return _powers_between(steps[i], steps[i + 1], int(ratio))
    return []


def _powers_between(before: int, after: int, ratio: int) -> list[int]:
    grid = [before]
    while grid[-1] < after:
        grid.append(grid[-1] * ratio)
    return grid[1:-1] if grid[-1] == after else []
