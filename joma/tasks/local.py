"""Independent tasks, run in this process or spread over a Ray cluster; results come as they are done."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from joma.errors import UnknownNameError
from joma.tasks.on_ray import demand_ray, run_on_ray

Item = TypeVar("Item")
Result = TypeVar("Result")
Where = Literal["local", "ray"]
Report = Callable[[int, Any], None]
"""Takes the position of a task at work and what it reports."""


def check_place(on: str) -> None:
    """Refuse places that there are not, and Ray where it is not installed."""
    if on not in get_args(Where):
        raise UnknownNameError("place to run tasks", on, get_args(Where))
    if on == "ray":
        demand_ray()


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
    works arrives at `report`, from Ray about once a second.

    On `ray`, function, items and results travel as pickles, and a task whose worker dies is run again elsewhere: it
    must do no harm when it runs twice. A cluster that is already connected (`ray.init`, or RAY_ADDRESS) is used, else
    one is started on this machine and stopped at the end. A task has `num_gpus` GPUs to itself there, and without any a
    machine works on as many tasks at a time as it has cores. What a task raises is raised here, and the others are
    interrupted, as they are by Ctrl-C.

    >>> list(run_tasks(abs, [-1, 2]))
    [(0, 1), (1, 2)]
    """
    check_place(on)
    if on == "ray":
        yield from run_on_ray(function, items, num_gpus=num_gpus, report=report)
        return
    for position, item in enumerate(items):
        yield position, function(item) if report is None else function(item, partial(report, position))
