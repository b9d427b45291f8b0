"""When to measure: pure functions of the step and of the config.

>>> due_steps(TrainingConfig(steps=100, measure_every=3, measure_spacing="log"), 100)
(0, 1, 2, 5, 10, 22, 46, 100)
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from joma.engine.config import TrainingConfig

DECADE = 10.0


def due_steps(config: TrainingConfig, num_steps: int) -> tuple[int, ...]:
    """Steps to measure at: the start, the end and, in between, multiples of `measure_every` or points evenly on a log.

    What is due before the end does not depend on where the end is, so that a run which is made longer has measured
    where the longer one would have.

    >>> due_steps(TrainingConfig(steps=25, measure_every=10), 25)
    (0, 10, 20, 25)
    """
    if config.measure_spacing == "linear":
        between = range(0, num_steps, config.measure_every)
        return tuple(sorted({*between, 0, num_steps}))
    num_points = math.ceil(config.measure_every * math.log10(max(num_steps, 1))) + 1
    points = (round(DECADE ** (point / config.measure_every)) for point in range(num_points))
    return tuple(sorted({0, *(step for step in points if step < num_steps), num_steps}))


def next_due(steps: Sequence[int], step: int) -> int | None:
    """Return the first of ascending `steps` behind `step`; None when there is none.

    >>> next_due((0, 10, 20), 10), next_due((0, 10, 20), 20)
    (20, None)
    """
    at = bisect_right(steps, step)
    return steps[at] if at < len(steps) else None
