"""Other places to send measurements to: TensorBoard and Weights & Biases."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "joma"
"""Front of every name, so that all curves of joma stand together."""


class Logger(ABC):
    """Takes the values of one measurement by name: metric, then site, then head where there is one."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of one step."""

    def close(self) -> None:
        """End what was opened here."""
        return


class TensorBoard(Logger):
    """Writes scalars to a folder, or through a `SummaryWriter` that is open already."""

    def __init__(self, target: Any) -> None:
        """Take a folder, or an object with `add_scalar`."""
        self._is_own = isinstance(target, str | Path)
        self._writer = _summary_writer(target) if self._is_own else target
        if not hasattr(self._writer, "add_scalar"):
            raise TypeError(f"TensorBoard needs a folder or a SummaryWriter, got {type(target).__name__}.")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(f"{PREFIX}/{name}", value, global_step=step)

    def close(self) -> None:
        """Close the writer if it was opened here."""
        if self._is_own:
            self._writer.close()


def _summary_writer(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed. Install `joma[loggers]`, or leave the logger out.") from None
    return SummaryWriter(str(folder))


class WandB(Logger):
    """Adds values to a run of Weights & Biases: the one given, or the one that `wandb.init` started.

    They go into the row that is being filled and count by a step of their own, `joma/step`, so that joma does not move
    the step of a run that logs by itself. Where nobody else has closed the row since the last measurement, joma does.
    """

    def __init__(self, run: Any = None) -> None:
        """Take a run, or the one that is active."""
        self._run = _active_run() if run is None else run
        self._run.define_metric(f"{PREFIX}/step")
        self._run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
        self._row: int | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add all values at once."""
        if self._run.step == self._row:
            self._run.log({}, commit=True)
        named = {f"{PREFIX}/{name}": value for name, value in values.items()}
        self._run.log({f"{PREFIX}/step": step, **named}, commit=False)
        self._row = self._run.step


def _active_run() -> Any:
    try:
        import wandb
    except ImportError:
        raise ImportError("wandb is not installed. Install `joma[loggers]`, or leave the logger out.") from None
    if wandb.run is None:
        raise ValueError("There is no active W&B run. Call `wandb.init()` first, or pass a run.")
    return wandb.run
