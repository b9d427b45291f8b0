"""A process whose children write records and die on the way; it is told what to do line by line, as JSON.

Every child notes in a log what it has done,
by plain writes that survive it, so that what it must not have lost is known.
"""

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from store.faults import Faults, die
from store.mortality import end_of, forked, obey_orders

from joma.store import RunLockedError, RunWriter, open_run, tables

NUM_STEPS = 6
"""Steps of the short run that dies at every operation in turn."""
AGAIN_AT = 3
"""Step at which another one begins again."""


class Log:
    """What a child has done, as lines of JSON."""

    def __init__(self, path: str) -> None:
        """Go on with the log at `path`."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **entry: object) -> None:
        os.write(self._handle, (json.dumps(entry) + "\n").encode())


def write_step(run: RunWriter, step: int) -> None:
    """Add a row of its own, rewrite a row of all steps, and tell an event."""
    run.event(step, "audit", f"step {step}", evidence={"step": step})
    run.add(step, "loss", step / 2, site="a", layer=0)
    run.add(-1, "latest", step, site="a")


def last_step(folder: str) -> int:
    table = tables.load(Path(folder), tables.METRICS, {})
    return max(table["step"].to_pylist(), default=-1)


def short_run(folder: str, log: str, at: int) -> None:
    """Write a short run in three parts, dying at the operation number `at`."""
    noted = Log(log)
    with Faults(at=at, then=die):
        with open_run(folder, kind="train", config={}, flush_seconds=1e9) as run:
            for step in range(max(last_step(folder), 0), NUM_STEPS):
                write_step(run, step)
                if step % 2:
                    run.flush()
                    noted.note(durable=step)
        noted.note(durable=NUM_STEPS - 1)


def run_again(folder: str, at: int) -> None:
    """Begin a run again in its middle, with other values, in three parts, dying at the operation number `at`."""
    with Faults(at=at, then=die), open_run(folder, kind="train", config={}, flush_seconds=1e9) as run:
        run.begin_again(AGAIN_AT)
        for step in range(AGAIN_AT, NUM_STEPS):
            run.event(step, "audit", "again")
            run.add(step, "loss", -step)
            run.flush()


def endless_run(folder: str, log: str, seconds: float, seed: int) -> None:
    """Write steps for ever, closing and opening the run every now and then."""
    noted = Log(log)
    rng = random.Random(seed)
    while True:
        with open_run(folder, kind="train", config={}, flush_seconds=seconds) as run:
            first = max(last_step(folder), 0)  # again: only part of its rows may have been written
            for step in range(first, first + rng.randrange(2, 60)):
                begun = time.monotonic()
                write_step(run, step)
                noted.note(step=step, begun=begun, done=time.monotonic())
                time.sleep(rng.random() * 1e-3)
        noted.note(durable=step)


def contender(folder: str, log: str, start: float, num_losers: int) -> None:
    """Try to open a run at the same moment as others; hold it until all of those have given up."""
    noted = Log(log)
    while time.monotonic() < start:
        pass
    try:
        run = open_run(folder, kind="train", config={})
    except RunLockedError:
        noted.note(loser=os.getpid())
        return
    noted.note(winner=os.getpid())
    while Path(log).read_text().count("loser") < num_losers:
        time.sleep(1e-3)
    run.flush()
    os._exit(9)  # leaves its lock to the next round


ROLES = {"short_run": short_run, "run_again": run_again, "endless_run": endless_run, "contender": contender}


def obey(role: str, arguments: list, *, count: int = 1, kill_after: float | None = None) -> list[int]:
    """Fork children, kill them after a delay where one is given, and return how they ended."""
    pids = [forked(partial(ROLES[role], *arguments)) for _ in range(count)]
    if kill_after is not None:
        time.sleep(kill_after)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    return [end_of(pid) for pid in pids]


if __name__ == "__main__":
    tables.MAX_SMALL_PARTS = 4  # merge often, to be killed in the middle of it
    tables._load_libraries()
    obey_orders(obey)
