"""When to measure: pure functions of the step.

>>> schedule = Logarithmic() | Every(1000)
>>> [step for step in range(2500) if schedule.due(step)]
[0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 6  # of a list of steps so many are written out


class Schedule(ABC):
    """Says of every step whether it is measured; `|` joins two."""

    @abstractmethod
    def due(self, step: int) -> bool:
        """Whether `step` is measured."""

    def __or__(self, other: "Schedule") -> "Schedule":
        if not isinstance(other, Schedule):
            return NotImplemented
        return Either(first=self, second=other)


@dataclass(frozen=True, slots=True)
class Every(Schedule):
    """Step 0 and every n-th step after it."""

    n: int

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"`every` must be a whole number of steps, at least 1, got {self.n!r}.")

    def due(self, step: int) -> bool:
        """Whether n divides `step`."""
        return step >= 0 and step % self.n == 0

    def __str__(self) -> str:
        return f"every {self.n} steps" if self.n > 1 else "every step"


@dataclass(frozen=True, slots=True)
class Logarithmic(Schedule):
    """Step 0, then the same few points in every decade: 1, 2, 5, 10, 20, 50, 100 and so on.

    Training changes most at its start; a logarithmic axis shows these points evenly.
    """

    points: tuple[int, ...] = (1, 2, 5)  # points of the first decade

    def __post_init__(self) -> None:
        if not self.points or not set(self.points) <= set(range(1, 10)):
            raise ValueError(f"`points` must be digits from 1 to 9, got {self.points}. (1, 2, 5) is usual.")

    def due(self, step: int) -> bool:
        """Whether `step` is a point times a power of ten."""
        while step and step % 10 == 0:
            step //= 10
        return step == 0 or step in self.points

    def __str__(self) -> str:
        return f"steps {', '.join(map(str, (0, *self.points, 10)))} and so on"


@dataclass(frozen=True, slots=True)
class At(Schedule):
    """These steps and no others."""

    steps: frozenset[int]

    def due(self, step: int) -> bool:
        """Whether `step` is listed."""
        return step in self.steps

    def __str__(self) -> str:
        shown = sorted(self.steps)
        return f"steps {', '.join(map(str, shown[:SHOWN]))}" + (f" to {shown[-1]}" if len(shown) > SHOWN else "")


@dataclass(frozen=True, slots=True)
class Either(Schedule):
    """What any of two schedules measures."""

    first: Schedule
    second: Schedule

    def due(self, step: int) -> bool:
        """Whether one of the two is due."""
        return self.first.due(step) or self.second.due(step)

    def __str__(self) -> str:
        return f"{self.first}, {self.second}"


def schedule_of(wanted: "Schedule | int | str | Iterable[int]") -> Schedule:
    """Read a schedule: one as it is, n for every n steps, "log", or the steps themselves.

    >>> schedule_of(100), schedule_of("log"), schedule_of([0, 7])
    (Every(n=100), Logarithmic(points=(1, 2, 5)), At(steps=frozenset({0, 7})))
    """
    if isinstance(wanted, Schedule):
        return wanted
    if isinstance(wanted, int):
        return Every(wanted)
    if isinstance(wanted, str):
        if wanted != "log":
            raise ValueError(f'A schedule in words is "log", got {wanted!r}. Or pass a number, steps or a Schedule.')
        return Logarithmic()
    steps = frozenset(wanted)
    bad = sorted(str(step) for step in steps if not isinstance(step, int) or step < 0)
    if bad or not steps:
        raise ValueError(f"Steps must be whole numbers from 0 on, at least one, got {', '.join(bad) or 'none'}.")
    return At(steps)
