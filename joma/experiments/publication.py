"""The folder of one experiment as a reader finds it: its record, its tables and its figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joma.experiments import cache
from joma.experiments.experiment import Result
from joma.experiments.record import Record
from joma.figures.chart import Chart, save_static
from joma.runs.files import write_bytes, write_text

FILE_NAME = "result.json"
TABLES = "tables"
FIGURES = "figures"


def publish(
    folder: Path,
    record: Record,
    about: Mapping[str, Any],
    result: Result | None = None,
    charts: Sequence[Chart] = (),
) -> None:
    """Write tables, figures and at last the record of an experiment, in place of what was there before."""
    written = [] if result is None else _write_tables(folder / TABLES, result)
    for chart in charts:
        written += save_static(chart, folder / FIGURES)
    _remove_others(folder, written)
    facts = {} if result is None else cache.plain_facts(result.facts)
    text = json.dumps(record.as_dict() | dict(about) | {"facts": facts}, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / FILE_NAME, text + "\n")


def published(folder: Path) -> Result:
    """Read the result of an experiment back from its folder."""
    path = folder / FILE_NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        tables = {name: cache.decode((folder / TABLES / f"{name}.parquet").read_bytes()) for name in record["tables"]}
        return Result(tables=tables, facts=cache.exact_facts(record["facts"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}, {' '.join(str(error).split())}"
        raise ValueError(f"{path} and its tables are no result of an experiment: {reason}. Write them again.") from None


def _write_tables(folder: Path, result: Result) -> list[Path]:
    written = []
    for name, frame in result.tables.items():
        written.append(write_bytes(folder / f"{name}.parquet", cache.encode(frame)))
        written.append(write_text(folder / f"{name}.csv", frame.to_csv(index=False)))
    return written


def _remove_others(folder: Path, written: Sequence[Path]) -> None:
    for name in (TABLES, FIGURES):
        for path in (folder / name).glob("*"):
            if path not in written:
                path.unlink()
