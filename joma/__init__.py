"""joma shows how a transformer learns."""

import importlib
from typing import TYPE_CHECKING, Any

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

__version__ = "0.1.0"

_HOMES = {
    "attention_entropy": "joma.measure.entropy",
    "compare": "joma.probe.summary",
    "frame": "joma.charts",
    "plot": "joma.charts",
    "read": "joma.store.record",
    "register_measure": "joma.probe.measures",
    "report": "joma.page.report",
    "reproduce": "joma.paper.reproduce",
    "scan": "joma.probe.scanning",
    "simulate": "joma.theory.simulation",
    "stable_rank": "joma.measure.rank",
    "train": "joma.engine.training",
    "verify": "joma.checks.check",
    "watch": "joma.probe.watching",
}

__all__ = [
    "attention_entropy",
    "compare",
    "frame",
    "plot",
    "read",
    "register_measure",
    "report",
    "reproduce",
    "scan",
    "simulate",
    "stable_rank",
    "train",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import a verb from its home when it is first asked for, so that `import joma` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'joma' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the verbs beside what is loaded already."""
    return sorted({*globals(), *_HOMES})
