"""Work in children that die on the way, of a process that is told what to do line by line, as JSON.

That process has loaded everything before it forks, which makes a death cheap: hundreds fit into a test.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.faults import Faults, die

from joma.store import record


@contextmanager
def orders(script: Path, *options: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Start a script that ends in `obey_orders`; yields a function that takes an order and returns the answer."""
    with subprocess.Popen(
        [sys.executable, str(script), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        told, answers = process.stdin, process.stdout

        def order(what: dict[str, Any]) -> Any:
            told.write(json.dumps(what) + "\n")
            told.flush()
            return json.loads(answers.readline())

        yield order
        told.close()


def obey_orders(obey: Callable[..., Any]) -> None:
    """Answer every order with what `obey` returns for it, until there are no more."""
    record.git_commit = lambda: None  # half of the time that opening a run takes
    for line in sys.stdin:
        sys.stdout.write(json.dumps(obey(**json.loads(line))) + "\n")
        sys.stdout.flush()


def forked(work: Callable[[], object]) -> int:
    """Do the work in a child that ends with it, and return its number; an exception is told and ends it with 1."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)
    os._exit(0)


def end_of(pid: int) -> int:
    """Wait for a child; return its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ended(work: Callable[[], object], *, at: int = 0, kill_after: float | None = None, kinds: str | None = None) -> int:
    """Do the work in a child that dies at its operation `at`, or is killed after a delay; return how it ended.

    The kinds of its operations are written to a file where one is named.
    """

    def mortal_work() -> None:
        with Faults(at=at, then=die) as faults:
            work()
        if kinds is not None:
            Path(kinds).write_text(json.dumps(faults.kinds))

    pid = forked(mortal_work)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return end_of(pid)
