"""A process whose children train and die on the way; it is told what to do line by line, as JSON."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from store.mortality import ended, obey_orders

from engine.small_runs import pack
from joma.engine import training
from joma.engine.loop import train_pack
from joma.engine.memory import USABLE_SHARE
from joma.engine.plan import make_plan
from joma.store import tables

CPU = torch.device("cpu")


def obey(folder: str, *, at: int = 0, kill_after: float | None = None, **what: dict) -> dict:
    """Train in a child that dies at an operation, or is killed after a delay; return how it ended, and when."""
    train, packs = work(folder, **what)
    begun = time.monotonic()
    end = ended(train, at=at, kill_after=kill_after)
    return {"ended": end, "seconds": time.monotonic() - begun, "packs": packs}


def work(
    folder: str, *, settings: dict | None = None, grid: dict | None = None, recipe: str = ""
) -> tuple[Callable[[], object], list]:
    """Return what to do, with the names of the runs in each pack: train one pack, or a grid that makes several."""
    if settings is not None:
        only = pack(**settings)
        return partial(train_pack, only, folder), [only.names]
    runs = training.runs_of(grid, recipe)
    # One byte less than the largest pack needs splits it. What is counted here, a child need not count again.
    largest = max(each.num_bytes for each in make_plan(runs, device=CPU).packs)
    memory = int((largest - 1) / USABLE_SHARE)
    packs = [each.pack.names for each in make_plan(runs, device=CPU, memory=memory).packs]
    return partial(training.train, grid, recipe=recipe, out=folder, device="cpu", memory=memory), packs


def warm_up() -> None:
    """Load what is loaded where it is used, so that a child does not have to."""
    import pandas  # noqa: F401, PLC0415
    import torch.fx.experimental.symbolic_shapes  # noqa: F401, PLC0415 (by the first gradient)

    tables._load_libraries()


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    warm_up()
    obey_orders(obey)
