"""A process whose children scan and die on the way; it is told what to do line by line, as JSON."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "runs"))

from faults import Faults, die

from joma.probe.scan import scan
from joma.runs import description, tables

description._git_commit = lambda: None  # half of the time that opening takes


def obey(source: str, out: str, at: int | None = None, kill_after: float | None = None) -> int:
    """Scan in a child that dies at the operation number `at`, or is killed after a delay; return how it ended."""
    pid = os.fork()
    if not pid:
        try:
            if at is None:
                scan(source, out=out)
            else:
                with Faults(at=at, then=die):
                    scan(source, out=out)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    tables._load_libraries()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(obey(**json.loads(line))) + "\n")
        sys.stdout.flush()
