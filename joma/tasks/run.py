"""Independent tasks, run in this process or on a Ray cluster; results come as they are done.

On a cluster they are run again when their worker is lost, heard while they work, and asked before they are stopped.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from joma.errors import UnknownNameError, import_extra

Item = TypeVar("Item")
Result = TypeVar("Result")
Where = Literal["local", "ray"]
Report = Callable[[int, Any], None]
"""Takes the position of a task at work and what it reports."""
MAX_RETRIES = 5
"""How often a task is run again when its worker dies."""
HEAR_SECONDS = 1.0
"""Time between two questions for what the tasks report."""
STOP_SECONDS = 60.0
"""Time that a task has to save its work when it is to stop."""
LOOPBACK_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that Ray reads when it is imported: at 0 it listens on the loopback interface alone, on any system."""


def check_place(on: str) -> None:
    """Refuse places that there are not, and Ray where it is not installed.

    A cluster of our own is for this machine alone.
    """
    if on not in get_args(Where):
        raise UnknownNameError("place to run tasks", on, get_args(Where))
    if on == "ray":
        if not os.environ.get("RAY_ADDRESS"):
            os.environ.setdefault(LOOPBACK_ALONE, "0")
        import_extra("ray", "ray")


def run_tasks(
    function: Callable[..., Result],
    items: Sequence[Item],
    *,
    on: str = "local",
    num_gpus: int = 0,
    report: Report | None = None,
) -> Iterator[tuple[int, Result]]:
    """Yield the position of each item and `function(item)`, in the order in which they get done, each once.

    With `report` the function is called with a second argument, `function(item, send)`; whatever it sends while it
    works arrives at `report`, from Ray the last word about once a second. Words may be lost with a machine.

    On `ray`, function, items and results travel as pickles, and a task whose worker dies is run again elsewhere: it
    must do no harm when it runs twice. A cluster that is already connected (`ray.init`, or RAY_ADDRESS) is used, else
    one is started on this machine and stopped at the end. A task has `num_gpus` GPUs to itself there, and without any a
    machine works on as many tasks at a time as it has cores. What a task raises is raised here, and the others are
    interrupted, as they are by Ctrl-C.

    >>> list(run_tasks(abs, [-1, 2]))
    [(0, 1), (1, 2)]
    """
    check_place(on)
    if on == "local":
        for position, item in enumerate(items):
            yield position, function(item) if report is None else function(item, partial(report, position))
        return
    import ray

    with _cluster(), _board(is_wanted=report is not None) as board:
        name = getattr(function, "__name__", "task")  # for those who look at the cluster
        work: Any = ray.remote(_perform).options(name=name, max_retries=MAX_RETRIES, num_gpus=num_gpus)
        words = _heard(board)
        waiting = {work.remote(function, item, position, board): position for position, item in enumerate(items)}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=None if report is None else HEAR_SECONDS)
                if report is not None:
                    heard = next(words)
                    for position in heard.keys() & set(waiting.values()):  # not of those that have ended meanwhile
                        report(position, heard[position])
                for reference in done:
                    yield waiting.pop(reference), ray.get(reference)
        finally:
            _stop(list(waiting))


class _Board:
    """Where tasks leave their last word until it is asked for."""

    def __init__(self) -> None:
        self._words: dict[int, Any] = {}

    def leave(self, position: int, word: Any) -> None:
        self._words[position] = word

    def take(self) -> dict[int, Any]:
        words, self._words = self._words, {}
        return words


def _heard(board: Any) -> Iterator[Mapping[int, Any]]:
    """Yield the last words since the answer before; nothing where the board is not up, or was lost.

    A question that it is slow to answer stays asked, so that no word is lost.
    """
    import ray

    while True:
        question = board.take.remote()
        while not ray.wait([question], timeout=HEAR_SECONDS)[0]:
            yield {}
        try:
            words = ray.get(question)
        except ray.exceptions.RayActorError:
            words = {}
        yield words


@contextmanager
def _cluster() -> Iterator[None]:
    """Use the cluster that is connected, or one for ourselves."""
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        yield
    finally:
        if is_ours:
            ray.shutdown()


@contextmanager
def _board(*, is_wanted: bool) -> Iterator[Any]:
    """Put up a board on this machine, where there is one to ask; it takes no core from the tasks."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not is_wanted:
        yield None
        return
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    board: Any = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()
    try:
        yield board
    finally:
        ray.kill(board)


def _perform(function: Callable[..., Any], item: Any, position: int, board: Any) -> Any:
    if board is None:
        return function(item)
    return function(item, partial(board.leave.remote, position))  # nobody waits for an answer


def _stop(references: Sequence[Any]) -> None:
    """Interrupt the tasks as Ctrl-C does, so that they let go of what they hold; end those that do not stop."""
    import ray

    if not references:
        return
    for reference in references:
        ray.cancel(reference)
    left = list(references)
    try:
        _, left = ray.wait(left, num_returns=len(left), timeout=STOP_SECONDS)
    finally:
        for reference in left:  # and no other: to end a task that has just stopped can take Ray itself down
            ray.cancel(reference, force=True)
