"""A process whose children reproduce fake experiments and are killed; it is told what to do line by line, as JSON."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from experiments.fakes import Config, fake, fake_in_pieces, install
from joma.experiments.reproduction import reproduce
from joma.runs import description

NAMES = ("first", "second", "third")
description._git_commit = lambda: None  # half of the time that an experiment takes


def obey(out: str, log: str, pause: float, kill_after: float | None = None) -> int:
    """Reproduce in a child that is killed after a delay; return how it ended."""
    pid = os.fork()
    if not pid:
        try:
            config = Config(num_steps=3, seeds=(3, 4), pause=pause, log=log)
            install([fake(NAMES[0], config), *(fake_in_pieces(name, config) for name in NAMES[1:])])
            reproduce(out=out, device="cpu")
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    for line in sys.stdin:
        begun = time.monotonic()
        ended = obey(**json.loads(line))
        sys.stdout.write(json.dumps({"ended": ended, "seconds": time.monotonic() - begun}) + "\n")
        sys.stdout.flush()
