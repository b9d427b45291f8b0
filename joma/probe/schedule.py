"""When to measure: pure functions of the step.

>>> schedule = Logarithmic() | Every(1000)
>>> [step for step in range(2500) if schedule.due(step)]
[0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
"""

from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 6  # of a list of steps so many are written out


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The steps that are measured; `|` joins two. `Every`, `Logarithmic` and `At` make one."""

    multiples: tuple[int, ...] = ()  # all multiples of these numbers
    decades: bool = False  # step 0, and 1, 2 and 5 times the powers of ten
    steps: frozenset[int] = frozenset()  # these and no others

    def due(self, step: int) -> bool:
        """Whether `step` is measured."""
        is_of_decade = self.decades and str(step).rstrip("0") in ("", "1", "2", "5")
        return step >= 0 and (is_of_decade or step in self.steps or any(step % n == 0 for n in self.multiples))

    def __or__(self, other: "Schedule") -> "Schedule":
        if not isinstance(other, Schedule):
            return NotImplemented
        multiples, decades = self.multiples + other.multiples, self.decades or other.decades
        return Schedule(multiples=multiples, decades=decades, steps=self.steps | other.steps)

    def __str__(self) -> str:
        parts = [f"every {n} steps" if n > 1 else "every step" for n in self.multiples]
        if self.decades:
            parts.append("steps 0, 1, 2, 5, 10 and so on")
        if self.steps:
            shown = sorted(self.steps)
            end = f" to {shown[-1]}" if len(shown) > SHOWN else ""
            parts.append(f"steps {', '.join(map(str, shown[:SHOWN]))}{end}")
        return ", ".join(parts)


def Every(n: int) -> Schedule:
    """Return step 0 and every n-th step after it."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"`every` must be a whole number of steps, at least 1, got {n!r}.")
    return Schedule(multiples=(n,))


def Logarithmic() -> Schedule:
    """Return step 0, then the same few points in every decade: 1, 2, 5, 10, 20, 50, 100 and so on.

    Training changes most at its start; a logarithmic axis shows these points evenly.
    """
    return Schedule(decades=True)


def At(steps: Iterable[int]) -> Schedule:
    """Return these steps and no others."""
    listed = frozenset(steps)
    bad = sorted(str(step) for step in listed if not isinstance(step, int) or step < 0)
    if bad or not listed:
        raise ValueError(f"Steps must be whole numbers from 0 on, at least one, got {', '.join(bad) or 'none'}.")
    return Schedule(steps=listed)


def schedule_of(wanted: "Schedule | int | str | Iterable[int]") -> Schedule:
    """Read a schedule: one as it is, n for every n steps, "log", or the steps themselves.

    >>> print(schedule_of(100), schedule_of("log"), schedule_of([0, 7]), sep="; ")
    every 100 steps; steps 0, 1, 2, 5, 10 and so on; steps 0, 7
    """
    if isinstance(wanted, Schedule):
        return wanted
    if isinstance(wanted, int):
        return Every(wanted)
    if isinstance(wanted, str):
        if wanted != "log":
            raise ValueError(f'A schedule in words is "log", got {wanted!r}. Or pass a number, steps or a Schedule.')
        return Logarithmic()
    return At(wanted)
