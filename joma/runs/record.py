"""The record of a run on disk: a folder that pandas, polars and DuckDB read without joma.

```text
run.json            schema version, kind, status, config, about, versions, git commit, times
metrics/*.parquet   step, site, kind, layer, head, metric, value, flag
events/*.parquet    step, site, level, kind, message, evidence (JSON)
run.lock            only while it is written: the writing process
```
A process killed at any moment leaves whole files and loses the rows of the last few seconds (`flush_seconds`); the next
`open_run` goes on. Until the run is closed the parts may hold a key twice: of rows with the same step, site, head and
metric, the one in the part with the highest number counts. `read` sees to that, and closing merges the parts into one.
A run that is begun again at an earlier step (`begin_again`) takes away what was recorded from that step on.
"""

from joma.runs.description import SCHEMA, RunInfo
from joma.runs.files import DiskFullError
from joma.runs.lock import STALE_SECONDS, RunLockedError, demand_closed, is_open
from joma.runs.reader import find_runs, info, read, read_events
from joma.runs.writer import RunWriter, open_run

__all__ = [
    "SCHEMA",
    "STALE_SECONDS",
    "DiskFullError",
    "RunInfo",
    "RunLockedError",
    "RunWriter",
    "demand_closed",
    "find_runs",
    "info",
    "is_open",
    "open_run",
    "read",
    "read_events",
]
