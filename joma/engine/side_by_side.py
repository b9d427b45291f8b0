"""Packs side by side on one GPU.

A step of a small pack is hundreds of short kernels, each of which leaves most of a GPU idle. So several packs are
trained in turn, a step of each at a time, on streams of their own: the GPU works on all of them at once. What a run
becomes does not depend on which packs are beside its own.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from inspect import GEN_SUSPENDED, getgeneratorstate
from pathlib import Path

import torch

from joma.engine.interruptions import Stopped, interruptions
from joma.engine.packs import Pack
from joma.engine.plan import PackPlan
from joma.engine.training import Caller, PackProgress, PackResult, Take, pack_steps

MOST_BESIDE = 4
"""Packs that are trained at a time: a choice, as is the next."""
MOST_RUNS_BESIDE = 12
"""Runs that they have together at most; larger packs are trained alone."""

Told = Callable[[int, PackProgress], None]
"""Takes the position of a pack and how far it is."""


def train_packs(
    packs: Sequence[Pack],
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    told: Told | None = None,
    take: Take | None = None,
) -> Iterator[tuple[int, PackResult]]:
    """Train packs side by side as `train_pack` trains one; yield the position of each, and how it ended, as they end.

    Ctrl-C saves the runs of all of them; a second one does not wait for that.
    """
    there = torch.device(device)
    with interruptions() as is_asked_to_stop, ExitStack() as at_the_end:

        def begun(position: int) -> _AtWork:
            report = (lambda _: None) if told is None else partial(told, position)
            caller = Caller(report=report, take=take, is_asked_to_stop=is_asked_to_stop)
            return _AtWork(steps=pack_steps(packs[position], Path(folder), there, caller), stream=_stream(there))

        at_work = {position: begun(position) for position in range(len(packs))}
        for pack in at_work.values():
            at_the_end.callback(pack.steps.close)  # whatever another one raises when it is closed
        try:
            while at_work:
                for position, pack in list(at_work.items()):
                    if is_asked_to_stop() and not pack.has_begun:
                        raise Stopped
                    ended = pack.step()
                    if ended is not None:
                        del at_work[position]
                        yield position, ended
        except Stopped:
            for pack in at_work.values():
                pack.stop()
            raise


def beside_each_other(plans: Sequence[PackPlan], *, usable_bytes: float, device: torch.device) -> list[list[int]]:
    """Return the positions of packs that are trained at a time: on a GPU several small ones that fit together."""
    groups: list[list[int]] = []
    for position, plan in enumerate(plans):
        group = [plans[at] for at in groups[-1]] if groups else []
        together = [*group, plan]
        fits = (
            device.type == "cuda"
            and len(together) <= MOST_BESIDE
            and sum(each.pack.num_runs for each in together) <= MOST_RUNS_BESIDE
            and sum(each.num_bytes for each in together) <= usable_bytes
        )
        if group and fits:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


@dataclass(frozen=True, kw_only=True, slots=True)
class _AtWork:
    """A pack that is being trained."""

    steps: Generator[None, None, PackResult]
    stream: Callable[[], AbstractContextManager]
    """Puts what is queued on a stream of the pack's own."""

    @property
    def has_begun(self) -> bool:
        """Whether there is something to stop."""
        return getgeneratorstate(self.steps) == GEN_SUSPENDED

    def step(self) -> PackResult | None:
        """Do one step; return how the pack ended if that was its last."""
        try:
            with self.stream():
                next(self.steps)
        except StopIteration as end:
            return end.value
        return None

    def stop(self) -> None:
        """Have a pack that has begun save: at its next step it sees that it is asked to stop."""
        if self.has_begun:
            with suppress(Stopped):  # whoever interrupts once more, and does not want to wait for that, is heard
                self.step()


def _stream(device: torch.device) -> Callable[[], AbstractContextManager]:
    """Return what puts the work of a pack on a stream of its own."""
    if device.type != "cuda":
        return nullcontext
    return partial(torch.cuda.stream, torch.cuda.Stream(device))
