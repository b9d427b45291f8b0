"""Adapters that send measurements elsewhere.

A logger is any function of the step and a dict of values:

```python
joma.watch(model, loggers=[lambda step, values: print(step, values["loss"])])
```
Names are metric, site and head where there is one: "entropy/blocks.0/head 3". One with a method `close` is closed with
the watch. The adapters here import their package when they are made.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from joma.errors import import_extra

Logger = Callable[[int, Mapping[str, float]], object]
EXTRA = "loggers"
PREFIX = "joma"  # front of every name, so that all curves of joma stand together


def _prefixed(values: Mapping[str, float]) -> dict[str, float]:
    return {f"{PREFIX}/{name}": value for name, value in values.items()}


class TensorBoard:
    """Writes scalars to a folder, or through a `SummaryWriter` that is open already."""

    def __init__(self, target: Any) -> None:
        self._is_own = isinstance(target, str | Path)
        if not self._is_own and not hasattr(target, "add_scalar"):
            raise TypeError(f"TensorBoard needs a folder or a SummaryWriter, got {type(target).__name__}.")
        self._writer = target
        if self._is_own:
            import_extra("tensorboard", EXTRA)
            self._writer = import_extra("torch.utils.tensorboard", EXTRA).SummaryWriter(str(target))

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each value."""
        for name, value in _prefixed(values).items():
            self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Close the writer if it was opened here."""
        if self._is_own:
            self._writer.close()


class WandB:
    """Adds values to a run of Weights & Biases: the one given, or the one that `wandb.init` started.

    They go into the row that is being filled and count by a step of their own, `joma/step`, so that joma does not move
    the step of a run that logs by itself. Where nobody else has closed the row since the last measurement, joma does.
    """

    def __init__(self, run: Any = None) -> None:
        self._run = import_extra("wandb", EXTRA).run if run is None else run
        if self._run is None:
            raise ValueError("There is no active W&B run. Call `wandb.init()` first, or pass a run.")
        self._run.define_metric(f"{PREFIX}/step")
        self._run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
        self._row: int | None = None

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Add all values at once."""
        if self._run.step == self._row:
            self._run.log({}, commit=True)
        self._run.log({f"{PREFIX}/step": step, **_prefixed(values)}, commit=False)
        self._row = self._run.step


def Trackio() -> Logger:
    """Return a logger that adds values to the run that `trackio.init` started."""
    package = import_extra("trackio", EXTRA)
    return lambda step, values: package.log(_prefixed(values), step=step)


def MLflow() -> Logger:
    """Return a logger for the active run of MLflow. Characters that it refuses in names become underscores."""
    package = import_extra("mlflow", EXTRA)

    def log(step: int, values: Mapping[str, float]) -> None:
        plain = {re.sub(r"[^\w./ -]", "_", name): value for name, value in _prefixed(values).items()}
        package.log_metrics(plain, step=step)

    return log
