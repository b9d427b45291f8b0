"""A process whose children train and die on the way; it is told what to do line by line, as JSON."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "runs"))

from faults import Faults, die
from small_runs import pack

from joma.engine.training import train_pack
from joma.runs import description, tables

description._git_commit = lambda: None  # half of the time that opening takes


def train(settings: dict, folder: str, at: int) -> None:
    """Train a pack, dying at the operation number `at`; 0 lets it live."""
    with Faults(at=at, then=die):
        train_pack(pack(**settings), folder)


def obey(settings: dict, folder: str, at: int = 0, kill_after: float | None = None) -> int:
    """Train in a child that dies at an operation, or is killed after a delay; return how it ended."""
    pid = os.fork()
    if not pid:
        try:
            train(settings, folder, at)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def warm_up() -> None:
    """Load what is loaded where it is used, so that a child does not have to."""
    import pandas  # noqa: F401, PLC0415
    import torch.fx.experimental.symbolic_shapes  # noqa: F401, PLC0415 (by the first gradient)

    tables._load_libraries()


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    warm_up()
    for line in sys.stdin:
        begun = time.monotonic()
        ended = obey(**json.loads(line))
        sys.stdout.write(json.dumps({"ended": ended, "seconds": time.monotonic() - begun}) + "\n")
        sys.stdout.flush()
