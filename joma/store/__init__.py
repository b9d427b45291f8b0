"""What joma keeps on disk: records of runs, finished work, and the lock that lets one process write at a time."""

from joma.store.files import DiskFullError, UnwritableError, demand_writable
from joma.store.lock import RunLockedError, demand_closed, is_open
from joma.store.record import RunInfo, RunWriter, find_runs, info, open_run, read, read_events
from joma.store.work import Artefact, OutOfTime, Provenance, Store, Tables, Task, WorkProgress, Workspace, provenance

__all__ = [
    "Artefact", "DiskFullError", "OutOfTime", "Provenance", "RunInfo", "RunLockedError", "RunWriter", "Store", "Tables",
    "Task", "UnwritableError", "WorkProgress", "Workspace", "demand_closed", "demand_writable", "find_runs", "info",
    "is_open", "open_run", "provenance", "read", "read_events",
]  # fmt: skip
