"""One of several processes that train a model together, watched in different ways."""

import weakref
from datetime import timedelta

import loops
import models
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from joma.probe import measurement
from joma.probe import model as probed
from joma.probe.model import full_tensor
from joma.probe.watching import watch

NUM_PROCESSES = 2
FULL = {"measures": "full", "every": 2}
PATIENCE = timedelta(seconds=60)  # a collective that not all processes join in fails after this


def sharded(model):
    """Shard every block and the model by FSDP2."""
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(rank, settings, wrap=DistributedDataParallel):
    """Train on data of one's own; gradients are averaged over processes."""
    torch.manual_seed(0)
    model = wrap(models.HandWritten())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = None if settings is None else watch(model, **settings)
    for step in range(loops.NUM_STEPS):
        loops.loss_of(model, loops.batch("hand_written", 10 * rank + step)).backward()
        optimizer.step()
        if seen is not None:
            seen.step(step)
        optimizer.zero_grad()
    if seen is not None:
        seen.close()
    weights = model.module.state_dict() if wrap is DistributedDataParallel else model.state_dict()
    return {name: full_tensor(weight) for name, weight in weights.items()}


def meet(rank, folder):
    """Join the other processes."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=NUM_PROCESSES, timeout=PATIENCE
    )


def work(rank, folder):
    """Train unwatched, watched by all, and watched by the first process alone, twice; save the weights of each."""
    meet(rank, folder)
    probe = loops.batch("hand_written", 99)
    ways = {
        "unwatched": None,
        "all": FULL | {"out": f"{folder}/all"},
        "first, training batch": FULL | {"out": f"{folder}/first"} if rank == 0 else None,
        "first, probe batch": FULL | {"out": f"{folder}/probe", "probe_batch": probe} if rank == 0 else None,
    }
    torch.save({name: train(rank, settings) for name, settings in ways.items()}, f"{folder}/weights-{rank}.pt")
    distributed.destroy_process_group()


def work_on_shards(rank, folder):
    """Train a sharded model unwatched, watched by all with both kinds of batch, and by the first process alone."""
    meet(rank, folder)
    gathered, most_at_once = [], 0

    def noting(tensor):
        nonlocal most_at_once
        full = full_tensor(tensor)
        gathered.append(weakref.ref(full))
        most_at_once = max(most_at_once, sum(each() is not None for each in gathered))
        return full

    probed.full_tensor = measurement.full_tensor = noting
    probed.ROLL_CALL, measurement.TOGETHER = timedelta(seconds=2), 0
    ways = {
        "unwatched": None,
        "all": FULL | {"out": f"{folder}/all"},
        "probe": FULL | {"out": f"{folder}/probe", "probe_batch": loops.batch("hand_written", 99)},
        "first": FULL | {"out": f"{folder}/first"} if rank == 0 else None,
    }
    weights = {name: train(rank, settings, sharded) for name, settings in ways.items()}
    torch.save({"weights": weights, "most_at_once": most_at_once}, f"{folder}/found-{rank}.pt")
    distributed.destroy_process_group()
