"""A process whose children reproduce fake experiments and are killed; it is told what to do line by line, as JSON."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "runs"))

from faults import Faults, die

from experiments.fakes import Config, fake, fake_in_pieces, install
from joma.experiments.reproduction import reproduce
from joma.runs import description

description._git_commit = lambda: None  # half of the time that an experiment takes


def obey(
    out: str, log: str, num_steps: int, pause: float, at: int | None = None, kill_after: float | None = None
) -> int:
    """Reproduce in a child that dies at the operation number `at`, or is killed after a delay; return how it ended."""
    pid = os.fork()
    if not pid:
        try:
            config = Config(num_steps=num_steps, seeds=(3, 4)[:num_steps], pause=pause, log=log)
            install([fake("whole", config), fake_in_pieces("pieces", config)])
            if at is None:
                reproduce(out=out, device="cpu")
            else:
                with Faults(at=at, then=die):
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
