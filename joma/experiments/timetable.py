"""Work in pieces that are done whole, each begun only if it is expected to end before the call has to.

Jobs on clusters have a limit, and so have machines that are lent. A piece (a pack of runs, a training) that is cut off
may be lost; so one that does not fit into the time left is not begun, smaller ones that fit go first, and what is left
is told to whoever calls again. How long a piece takes is counted beforehand and corrected by what pieces of its kind
took on the same device.
"""

import gc
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import torch

from joma.experiments.measured_times import USUAL_RATIO, MeasuredTimes
from joma.experiments.work_log import WorkLog
from joma.figures.numbers import duration

SETUP_SECONDS = {"cpu": 2.0, "cuda": 30.0}
"""What a training takes before its first step: reading data, on a GPU compiling and capturing the step."""
MOST_OF_A_CALL = 0.9
"""Share of a call that one piece may take: something always comes before it."""
TRUSTED_SHARE = 0.25
"""Share of a piece from which on its own pace says how long it takes."""
CPU = "cpu"
WHOLE = "experiments"
"""Kind of a piece that is an experiment."""
_MINUTE = 60.0

Tell = Callable[[float, str], None]
"""Takes the share done, in [0, 1], and what is being done."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Work that is done whole, and found done by whoever looks for it later."""

    kind: str
    """What it is, in the plural: `packs`. How long pieces of one kind take tells about others of it."""
    name: str = ""
    """Told when it begins, if there is one."""
    seconds: float
    """As counted beforehand for this device: a lower bound."""
    setup: float = 0.0
    """Time before the counted work begins."""
    work: Callable[[Tell], None]
    """Does all of it, and tells how far it is."""

    @property
    def weight(self) -> float:
        """Its part in the progress of an experiment: about how long it takes, the same in every call."""
        return self.setup + USUAL_RATIO * self.seconds


class OutOfTime(Exception):
    """Pieces are left that would not end in time: nothing is wrong, and the next call goes on."""

    def __init__(self, left: Sequence[tuple[str, int, int]], *, seconds: float, longest: float, limit: float) -> None:
        """Take for each kind how many are left and of how many, how long all and the longest take, and the limit."""
        needed = longest / MOST_OF_A_CALL
        self.needs_minutes = math.ceil(needed / _MINUTE) if needed > limit else None
        """What `minutes` must be for all of them to be begun; None if they fit into another such call."""
        what = " and ".join(f"{num} of {total} {kind}" for kind, num, total in left if kind != WHOLE) or "All of it"
        self.left = f"{what} left."
        """What is left to do, wherever it will be done."""
        advice = f"That takes about {duration(seconds)}: run the same command again"
        if self.needs_minutes is not None:
            advice += (
                f" with --minutes {self.needs_minutes} or more, since the longest takes about {duration(longest)} in "
                f"one piece and a call has {duration(limit)}"
            )
        self.advice = f"{advice}."
        """What to do, with how long it takes here: for whoever made the call."""
        super().__init__(f"{self.left} {self.advice}")


def _now() -> float:
    return monotonic()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timetable:
    """Which pieces may begin; by default all of them."""

    limit: float = math.inf
    """Seconds that the call has."""
    begun: float = field(default_factory=_now)
    """When it began, by the clock."""
    owner: str = ""
    """The experiment whose pieces they are."""
    device: str = CPU
    """What does the work that is not left to the CPU, as a record names it."""
    times: MeasuredTimes = field(default_factory=MeasuredTimes)
    log: WorkLog = field(default_factory=WorkLog)
    expect: Callable[[float], None] = lambda seconds: None
    """Is told how long the rest of the pieces will take, once one of them was measured."""

    @property
    def longest(self) -> float:
        """Seconds that a piece may take to fit into a call that has just begun."""
        return MOST_OF_A_CALL * self.limit

    @property
    def seconds_left(self) -> float:
        """Time until the call has to end."""
        return self.begun + self.limit - monotonic()

    def expected(self, piece: Piece) -> float:
        """Return how long a piece will take."""
        return self.times.expected(self.owner, piece.kind, piece.seconds, piece.setup)

    def work_off(self, pieces: Sequence[Piece], tell: Tell) -> None:
        """Do the pieces in their order, but pass over those that would not end in time; raises if some are left."""
        waiting = list(pieces)
        total = self.log.weight + math.fsum(each.weight for each in pieces)
        while (piece := next(filter(self._fits, waiting), None)) is not None:
            waiting.remove(piece)
            self._do(piece, waiting, lambda weight, doing: tell(min(weight / total, 1.0) if total else 0.0, doing))
        if waiting:
            raise self._out_of_time(waiting)

    def _fits(self, piece: Piece) -> bool:
        return self.expected(piece) <= self.seconds_left

    def _do(self, piece: Piece, waiting: Sequence[Piece], tell: Callable[[float, str], None]) -> None:
        begun, foreseen = monotonic(), self.expected(piece)
        later = math.fsum(map(self.expected, waiting))
        first: float | None = None  # share that was told first, which an earlier call may have done

        def told(share: float | int, doing: str) -> None:
            nonlocal first
            first = share if first is None else first
            spent, done = monotonic() - begun, share - first
            is_known = done >= TRUSTED_SHARE * (1 - first) > 0
            if self.times.knows(self.owner):  # else counting alone says less than the experiment's usual time
                self.expect((spent / done * (1 - share) if is_known else max(foreseen - spent, 0.0)) + later)
            tell(self.log.weight + share * piece.weight, doing)

        if piece.name:
            tell(self.log.weight, piece.name)
        allocated = _allocated_on_gpus()
        self.log.begin()
        piece.work(told)
        self.times.note(self.owner, piece.kind, piece.seconds, took=monotonic() - begun, setup=piece.setup)
        self.log.add(piece.kind, self.device if _was_on_a_gpu(allocated) else CPU, piece.weight)
        self.expect(math.fsum(map(self.expected, waiting)))
        _give_memory_back()

    def _out_of_time(self, waiting: Sequence[Piece]) -> OutOfTime:
        num_left = Counter(each.kind for each in waiting)
        seconds = [self.expected(each) for each in waiting]
        left = [(kind, num, num + self.log.num_done(kind)) for kind, num in num_left.items()]
        return OutOfTime(left, seconds=math.fsum(seconds), longest=max(seconds), limit=self.limit)


def _allocated_on_gpus() -> int:
    """Return the bytes that are allocated now, from which on the most that is allocated is watched."""
    if not torch.cuda.is_initialized():
        return 0
    for gpu in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(gpu)
    return sum(torch.cuda.memory_allocated(gpu) for gpu in range(torch.cuda.device_count()))


def _was_on_a_gpu(allocated: int) -> bool:
    """Whether a GPU was worked on since: some pieces leave it alone where there is one."""
    if not torch.cuda.is_initialized():
        return False
    return sum(torch.cuda.max_memory_allocated(gpu) for gpu in range(torch.cuda.device_count())) > allocated


def _give_memory_back() -> None:
    """Let go of a GPU's memory, so that the next piece finds as much of it free as this one did."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
