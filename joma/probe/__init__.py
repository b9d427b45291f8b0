"""The microscope: watch a model while it trains, scan a series of checkpoints, read hidden neurons.

Names are imported when they are first asked for, so that `import joma` stays light.
"""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.probe.alarm import Alarm, Alert
    from joma.probe.callbacks_hf import HuggingFaceCallback
    from joma.probe.callbacks_lightning import LightningCallback
    from joma.probe.calls import AttentionCall, measure_call
    from joma.probe.loggers import Logger, MLflow, TensorBoard, Trackio, WandB
    from joma.probe.measures import Matrix, QueryKeyMatrices, forget_measure, register_measure
    from joma.probe.neurons import read_neurons
    from joma.probe.scanning import Scan, scan
    from joma.probe.schedule import At, Every, Logarithmic, Schedule
    from joma.probe.structure import find_layout
    from joma.probe.taps import count_rows, tap
    from joma.probe.watching import Watch, watch

__all__ = [
    "Alarm", "Alert", "At", "AttentionCall", "Every", "HuggingFaceCallback", "LightningCallback", "Logarithmic",
    "Logger", "MLflow", "Matrix", "QueryKeyMatrices", "Scan", "Schedule", "TensorBoard", "Trackio", "WandB", "Watch",
    "count_rows", "find_layout", "forget_measure", "measure_call", "read_neurons", "register_measure", "scan", "tap",
    "watch",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
