"""What joma keeps on disk: records of runs, finished work, and the lock that lets one process write at a time."""

from joma.store.files import DiskFullError, UnwritableError, demand_writable
from joma.store.lock import RunLockedError, demand_closed, is_open
from joma.store.record import RunInfo, RunWriter, find_runs, info, open_run, read, read_events

__all__ = [
    "DiskFullError",
    "RunInfo",
    "RunLockedError",
    "RunWriter",
    "UnwritableError",
    "demand_closed",
    "demand_writable",
    "find_runs",
    "info",
    "is_open",
    "open_run",
    "read",
    "read_events",
]
