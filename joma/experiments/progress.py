"""How far a reproduction is: which experiment, what share of it, and about how long the rest will take."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TRUSTED_SHARE = 0.1
"""Share of an experiment from which on its own pace says how long it takes."""

PRIOR_SECONDS = 30.0
"""Time for which this machine is taken to be as fast as expected, before it has shown otherwise."""
LEAST_LEFT = 0.25
"""Share of the time spent that is left at least in an experiment that has not yet shown its pace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One moment of a reproduction."""

    ids: tuple[str, ...]
    """All experiments of the call."""
    num_done: int
    id: str
    """The experiment at work; empty at the end."""
    share: float
    """Share of it that is done, in [0, 1]."""
    doing: str
    seconds_left: float
    """Estimate for this experiment, or until the call has to end."""
    total_seconds_left: float
    """Estimate for all that are left, or until the call has to end."""
    whole_share: float
    """Share of the whole that is done, by time."""


class Pace:
    """Turns what experiments say of themselves into progress of the whole."""

    def __init__(
        self,
        expected: Mapping[str, float],
        report: Callable[[Progress], None],
        call_seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Take about how many seconds each experiment needs, in their order; 0 for one whose result is kept."""
        self._ids = tuple(expected)
        self._expected = dict(expected)
        self._report = report
        self._call_seconds_left = call_seconds_left
        self._num_done = 0
        self._started = self._begun = time.monotonic()
        self._first: tuple[float, float] | None = None
        self._foreseen: tuple[float, float] | None = None
        self._seconds_done = self._expected_done = 0.0

    def begin(self) -> None:
        """Say that the next experiment begins."""
        self._begun, self._first, self._foreseen = time.monotonic(), None, None
        self._tell(0.0, "")

    def expect(self, seconds: float) -> None:
        """Say how long the current experiment still takes, for one that knows better than its share tells."""
        self._foreseen = time.monotonic(), seconds

    def tell(self, share: float | int, doing: str) -> None:
        """Say that the current experiment is done to this share, and what it does."""
        share = min(max(float(share), 0.0), 1.0)
        if self._first is None:  # one that was interrupted does not begin at 0
            self._first = time.monotonic(), share
        self._tell(share, doing)

    def end(self, *, is_done: bool = True) -> None:
        """Say that the current experiment has ended; one that is not done says nothing of how fast this machine is."""
        if is_done and (expected := self._expected[self._ids[self._num_done]]):
            self._expected_done += expected
            self._seconds_done += time.monotonic() - self._begun
        self._num_done += 1
        if self._num_done == len(self._ids):
            self._tell(1.0, "")

    def _tell(self, share: float, doing: str) -> None:
        current = self._ids[self._num_done] if self._num_done < len(self._ids) else ""
        of_call = max(self._call_seconds_left(), 0.0)
        left = min(self._seconds_left(current, share), of_call) if current else 0.0
        later = self._slowness * sum(self._expected[name] for name in self._ids[self._num_done + 1 :])
        later = min(later, of_call - left)
        spent = time.monotonic() - self._started
        self._report(
            Progress(
                ids=self._ids,
                num_done=self._num_done,
                id=current,
                share=share,
                doing=doing,
                seconds_left=left,
                total_seconds_left=left + later,
                whole_share=spent / (spent + left + later) if current else 1.0,
            )
        )

    @property
    def _slowness(self) -> float:
        """Time taken so far over the time expected, near 1 until both are long."""
        return (self._seconds_done + PRIOR_SECONDS) / (self._expected_done + PRIOR_SECONDS)

    def _seconds_left(self, current: str, share: float) -> float:
        now = time.monotonic()
        if self._foreseen is not None:
            at, seconds = self._foreseen
            return max(seconds - (now - at), 0.0)
        begun, first = self._first or (now, share)
        if share - first >= TRUSTED_SHARE:
            return (now - begun) / (share - first) * (1 - share)
        spent = now - self._begun
        least = LEAST_LEFT * spent if self._expected[current] else 0.0
        return max(self._expected[current] * self._slowness - spent, least)
