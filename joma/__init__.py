"""joma shows how a transformer learns."""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.charts import frame, plot
    from joma.checks.check import verify
    from joma.engine.training import train
    from joma.measure.entropy import attention_entropy
    from joma.measure.rank import stable_rank
    from joma.page.report import report
    from joma.paper.reproduce import reproduce
    from joma.probe.measures import register_measure
    from joma.probe.scanning import scan
    from joma.probe.summary import compare
    from joma.probe.watching import watch
    from joma.store import read
    from joma.theory.simulation import simulate

__version__ = "0.2.0"

__all__ = [
    "attention_entropy", "compare", "frame", "plot", "read", "register_measure", "report", "reproduce", "scan",
    "simulate", "stable_rank", "train", "verify", "watch",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
