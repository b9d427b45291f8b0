"""When to measure: pure functions of the step and of the config.

>>> due_steps(TrainingConfig(steps=100, measure_every=3, measure_spacing="log"), 100)
(0, 1, 2, 5, 10, 22, 46, 100)
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from joma.engine.config import TrainingConfig

DECADE = 10.0
EARLY_POINTS = 10
"""Points in a factor of ten with `early` spacing."""


def due_steps(config: TrainingConfig, num_steps: int) -> tuple[int, ...]:
    """Steps to measure at: the start, the end and, in between, multiples of `measure_every` or points evenly on a log.

    With `early` spacing points on a log come first, and then the multiples.
    What is due before the end does not depend on where the end is, so that a run which is made longer has measured
    where the longer one would have.

    >>> due_steps(TrainingConfig(steps=25, measure_every=10), 25)
    (0, 10, 20, 25)
    """
    every = config.measure_every
    match config.measure_spacing:
        case "linear":
            between = set(range(0, num_steps, every))
        case "log":
            between = _on_a_log(every, num_steps)
        case _:
            apart = every / (DECADE ** (1 / EARLY_POINTS) - 1)  # where two points on the log are so far from each other
            between = _on_a_log(EARLY_POINTS, min(num_steps, math.ceil(apart)))
            between |= set(range(every * math.ceil(apart / every), num_steps, every))
    return tuple(sorted({0, *between, num_steps}))


def _on_a_log(num_points: int, end: int) -> set[int]:
    """Return steps before the end, as many in each factor of ten, rounded."""
    total = math.ceil(num_points * math.log10(max(end, 1))) + 1
    points = {round(DECADE ** (point / num_points)) for point in range(total)}
    return {step for step in points if step < end}


def next_due(steps: Sequence[int], step: int) -> int | None:
    """Return the first of ascending `steps` behind `step`; None when there is none.

    >>> next_due((0, 10, 20), 10), next_due((0, 10, 20), 20)
    (20, None)
    """
    at = bisect_right(steps, step)
    return steps[at] if at < len(steps) else None
