"""Independent tasks, run in this process or spread over a Ray cluster; results come as they are done."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from joma.errors import UnknownNameError

Item = TypeVar("Item")
Result = TypeVar("Result")
Where = Literal["local", "ray"]
Progress = Callable[[int, int], None]
"""Takes how many tasks are done, and of how many."""

MAX_RETRIES = 5
"""How often a task is run again when its worker dies."""


def run_tasks(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    on: str = "local",
    num_gpus: int = 0,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Result]]:
    """Yield the position of each item and `function(item)`, in the order in which they get done, each once.

    On `ray`, function, items and results travel as pickles, and a task whose worker dies is run again elsewhere: it
    must do no harm when it runs twice. A cluster that is already connected (`ray.init`, or RAY_ADDRESS) is used, else
    one is started on this machine and stopped at the end. A task has `num_gpus` GPUs to itself there, and without any a
    machine works on as many tasks at a time as it has cores. What a task raises is raised here, the rest is dropped.

    >>> list(run_tasks(abs, [-1, 2]))
    [(0, 1), (1, 2)]
    """
    if on not in get_args(Where):
        raise UnknownNameError("place to run tasks", on, get_args(Where))
    run = _run_here if on == "local" else partial(_run_on_ray, num_gpus=num_gpus)
    report = progress or (lambda done, total: None)
    report(0, len(items))
    for num_done, found in enumerate(run(function, items), start=1):
        report(num_done, len(items))
        yield found


def _run_here(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    for position, item in enumerate(items):
        yield position, function(item)


def _run_on_ray(function: Callable[[Any], Any], items: Sequence[Any], *, num_gpus: int) -> Iterator[tuple[int, Any]]:
    try:
        import ray
    except ImportError:
        raise ValueError("`on='ray'` needs Ray, which is not installed. Install joma[ray].") from None

    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        remote = ray.remote(max_retries=MAX_RETRIES, num_gpus=num_gpus)(function)
        waiting = {remote.remote(item): position for position, item in enumerate(items)}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting))
                yield waiting.pop(done[0]), ray.get(done[0])
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
    finally:
        if is_ours:
            ray.shutdown()
