"""Results kept on disk under the hash of their settings, whole or not at all; what is damaged is not trusted.

A kept result is a folder with a Parquet file for each table and `kept.json`, which holds the facts, what was noted with
the result, and a checksum of everything. It is built in a hidden folder and renamed when it is complete.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
from pyarrow import parquet

from joma.data.cache import digest
from joma.experiments.experiment import Experiment, Fact, Result
from joma.store.files import beside, full_disk_explained, write_bytes, write_text
from joma.store.record import plain

SCHEMA = 1
"""Version of the layout of a kept result; another one is another hash."""
FILE_NAME = "kept.json"
_TABLE = ".parquet"
_KEY_LETTERS = 16
_NOT_FINITE = "float"
"""Key under which JSON spells a number that it has none for: `{"float": "nan"}`."""


class DamagedResultError(ValueError):
    """A kept result cannot be read, or is not what was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A result with what was noted of its computation."""

    result: Result
    about: dict[str, Any] = field(default_factory=dict)
    """How it was computed, in plain types: versions, device, seconds."""


def key_of(experiment: Experiment, config: Any) -> str:
    """Return the hash of an experiment's id, its settings and the versions of what is kept."""
    settings = json.dumps(plain(config), sort_keys=True)
    return digest(experiment.id, settings, str(experiment.schema), str(SCHEMA))[:_KEY_LETTERS]


def keep(folder: Path, kept: Kept) -> None:
    """Write a result to `folder`, in place of one that may be there."""
    part = beside(folder)
    try:
        with full_disk_explained(folder):
            part.mkdir(parents=True)
            _write(part, kept)
            _replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load(folder: Path) -> Kept | None:
    """Read a kept result; None where there is none, `DamagedResultError` where it cannot be trusted."""
    try:
        record = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        contents = {name: (folder / f"{name}{_TABLE}").read_bytes() for name in record["tables"]}
        if record["checksum"] != _checksum(record["facts"], record["about"], contents):
            raise ValueError("its checksum differs")
        tables = {name: decode(content) for name, content in contents.items()}
        facts = exact_facts(record["facts"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        if not folder.exists():
            return None
        reason = " ".join(str(error).split())
        raise DamagedResultError(f"The result kept in {folder} is damaged ({reason}).") from error
    return Kept(result=Result(tables=tables, facts=facts), about=record["about"])


def encode(frame: pd.DataFrame) -> bytes:
    """Return a table as the content of a Parquet file, without its index."""
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def decode(content: bytes) -> pd.DataFrame:
    """Return the table that a Parquet file holds."""
    return parquet.read_table(pyarrow.BufferReader(content)).to_pandas()


def plain_facts(facts: Mapping[str, Fact]) -> dict[str, Any]:
    """Return facts as JSON holds them, numbers that are not finite as `{"float": "nan"}`."""
    return {name: _plain_fact(value) for name, value in facts.items()}


def exact_facts(record: Mapping[str, Any]) -> dict[str, Fact]:
    """Return the facts that `plain_facts` spelled."""
    return {name: _fact(value) for name, value in record.items()}


def _write(folder: Path, kept: Kept) -> None:
    contents = {name: encode(frame) for name, frame in kept.result.tables.items()}
    for name, content in contents.items():
        write_bytes(folder / f"{name}{_TABLE}", content)
    facts, about = plain_facts(kept.result.facts), plain(kept.about)
    record = {
        "schema": SCHEMA,
        "facts": facts,
        "about": about,
        "tables": list(contents),
        "checksum": _checksum(facts, about, contents),
    }
    write_text(folder / FILE_NAME, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _replace(part: Path, folder: Path) -> None:
    """Rename the folder; one that is in the way is moved aside first, since a full folder cannot be renamed over."""
    if folder.exists():
        old = beside(folder)
        os.replace(folder, old)
        shutil.rmtree(old, ignore_errors=True)
    os.replace(part, folder)


def _checksum(facts: Mapping[str, Any], about: Mapping[str, Any], contents: Mapping[str, bytes]) -> str:
    words = json.dumps([facts, about], sort_keys=True)
    return digest(words, *(part for name, content in contents.items() for part in (name, content)))


def _plain_fact(value: Fact) -> Any:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: str(value)}
    return value


def _fact(value: Any) -> Fact:
    return float(value[_NOT_FINITE]) if isinstance(value, dict) else value
