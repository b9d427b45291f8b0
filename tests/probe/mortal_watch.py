"""A process whose children are watched loops that get killed; it is told what to do line by line, as JSON.

Forking after the imports makes a death cheap. The weights of a step are a function of the step, so that the record of a
loop that died and went on can be compared with that of one that did not.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import models
import torch

sys.path.append(str(Path(__file__).parents[1] / "runs"))

from faults import Faults, die

from joma.probe import watch as watching
from joma.runs import description, tables
from joma.runs.record import open_run

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


def obey(order):
    """Run a loop in a child that dies at operation `at`, or is killed after a delay; return how it ended."""
    watching.open_run = partial(open_run, flush_seconds=order.get("flush_seconds", FLUSH_SECONDS))
    pid = os.fork()
    if pid == 0:
        try:
            with Faults(at=order.get("at", 0), then=die):
                loop(order["folder"], order["num_steps"])
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    if order.get("kill_after") is not None:
        time.sleep(order["kill_after"])
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    description._git_commit = lambda: None  # half of the time that opening takes
    tables.MAX_SMALL_PARTS = 4  # merge often, to be killed in the middle of it
    tables._load_libraries()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(obey(json.loads(line))) + "\n")
        sys.stdout.flush()
