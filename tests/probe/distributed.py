"""One of several processes that train a model together, watched in different ways."""

from datetime import timedelta

import loops
import models
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from joma.probe.watching import watch

NUM_PROCESSES = 2
FULL = {"measures": "full", "every": 2}
PATIENCE = timedelta(seconds=60)
"""A collective that not all processes join in fails after this."""


def train(rank, settings):
    """Train on data of one's own; gradients are averaged over processes."""
    torch.manual_seed(0)
    model = DistributedDataParallel(models.HandWritten())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = None if settings is None else watch(model, **settings)
    for step in range(loops.NUM_STEPS):
        loops.loss_of(model, loops.batch("hand_written", 10 * rank + step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if seen is not None:
            seen.step(step)
    if seen is not None:
        seen.close()
    return model.module.state_dict()


def work(rank, folder):
    """Train unwatched, watched by all, and watched by the first process alone, twice; save the weights of each."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=NUM_PROCESSES, timeout=PATIENCE
    )
    probe = loops.batch("hand_written", 99)
    ways = {
        "unwatched": None,
        "all": FULL | {"out": f"{folder}/all"},
        "first, training batch": FULL | {"out": f"{folder}/first"} if rank == 0 else None,
        "first, probe batch": FULL | {"out": f"{folder}/probe", "probe_batch": probe} if rank == 0 else None,
    }
    torch.save({name: train(rank, settings) for name, settings in ways.items()}, f"{folder}/weights-{rank}.pt")
    distributed.destroy_process_group()
