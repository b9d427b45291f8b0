"""The folder of one experiment as a reader finds it: its record, its tables and its figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joma.data.cache import digest
from joma.experiments import cache
from joma.experiments.experiment import Result
from joma.experiments.record import Record
from joma.figures.chart import Chart, save_static
from joma.store.files import write_bytes, write_text
from joma.store.record import plain

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
    known = _drawings(folder)
    written = [] if result is None else _write_tables(folder / TABLES, result)
    drawings = {}
    for chart in charts:
        drawings[chart.id] = _draw(chart, folder / FIGURES, known.get(chart.id))
        written += [folder / FIGURES / name for name in drawings[chart.id]["files"]]
    _remove_others(folder, written)
    facts = {} if result is None else cache.plain_facts(result.facts)
    content = record.as_dict() | dict(about) | {"facts": facts, "drawings": drawings}
    write_text(folder / FILE_NAME, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


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


def published_part(folder: Path) -> str:
    """Return which part of an experiment its published tables are; empty for all of it."""
    return str(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")).get("part", ""))


def _write_tables(folder: Path, result: Result) -> list[Path]:
    written = []
    for name, frame in result.tables.items():
        written.append(write_bytes(folder / f"{name}.parquet", cache.encode(frame)))
        written.append(write_text(folder / f"{name}.csv", frame.to_csv(index=False)))
    return written


def _draw(chart: Chart, folder: Path, known: dict[str, Any] | None) -> dict[str, Any]:
    """Draw a chart unless that very chart is there; return its files with the hash of what they show."""
    shown = digest(json.dumps(plain(chart)))
    if known and known["digest"] == shown and all((folder / name).exists() for name in known["files"]):
        return known
    return {"digest": shown, "files": [path.name for path in save_static(chart, folder)]}


def _drawings(folder: Path) -> dict[str, Any]:
    """Return what an earlier publication says of its drawings, by chart; nothing where there is none to trust."""
    try:
        known = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))["drawings"]
        return {name: {"digest": each["digest"], "files": list(each["files"])} for name, each in known.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _remove_others(folder: Path, written: Sequence[Path]) -> None:
    for name in (TABLES, FIGURES):
        for path in (folder / name).glob("*"):
            if path not in written:
                path.unlink()
