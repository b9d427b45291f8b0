"""A process whose children are watched loops that get killed; it is told what to do line by line, as JSON.

The weights of a step are a function of the step, so that the record of a
loop that died and went on can be compared with that of one that did not.
"""

import sys
from functools import partial
from pathlib import Path

import models
import torch

sys.path.append(str(Path(__file__).parents[1]))

from store.mortality import ended, obey_orders

from joma.probe import watching
from joma.store import open_run, tables

FLUSH_SECONDS = 0.02


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(1, models.VOCABULARY, (2, 8), generator=generator)


def learn(model, step):
    """Give the model the weights of a step, which move as slowly as those of a training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            start, end = torch.randn(2, *parameter.shape, generator=generator)
            parameter.copy_(0.3 * (start + 0.01 * step * end))


def loop(folder, num_steps):
    """Go on behind the last step on record, which may lack some of its rows."""
    model = models.HandWritten()
    recorded = tables.load(Path(folder), tables.METRICS)["step"].to_pylist() if Path(folder).exists() else []
    with watching.watch(model, out=folder, every=1, measures="full") as seen:
        for step in range(max(recorded, default=0), num_steps):
            learn(model, step)
            model(batch(step))
            seen.step(step)


def obey(folder, num_steps, flush_seconds=FLUSH_SECONDS, **death):
    """Run a loop in a child that may die; return how it ended."""
    watching.open_run = partial(open_run, flush_seconds=flush_seconds)
    return ended(partial(loop, folder, num_steps), **death)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tables.MAX_SMALL_PARTS = 4  # merge often, to be killed in the middle of it
    tables._load_libraries()
    obey_orders(obey)
