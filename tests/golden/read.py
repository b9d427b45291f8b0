"""Numbers of a reproduction folder as plain values: today's format is read here and nowhere else in the golden tests.

The golden files were written with version 0.1 (commit 8d306a4) and stay as they are: a change is listed in
`changes.toml`.
"""

import hashlib
import json
import math
from pathlib import Path

import pandas as pd

from joma.experiments import record

GOLDEN = Path(__file__).parent
RESULTS = GOLDEN.parents[1] / "results"

Key = tuple[str, str, str]
"""Experiment, claim and name of a number. The outcome of a claim is a number of the name `outcome`."""


def kept_numbers(folder: Path = RESULTS) -> dict[Key, dict]:
    """Return every number of a reproduction: value, threshold, its direction, control and published value.

    A name that a claim uses again gets a count: `name (2)`. Numbers that an experiment keeps outside its claims
    have the claim `facts`.
    """
    numbers: dict[Key, dict] = {}
    for experiment in record.read(folder).experiments:
        for claim in experiment.verdicts:
            numbers[experiment.id, claim.id, "outcome"] = {"value": claim.outcome.value}
            names = [row.name for row in claim.evidence]
            for place, row in enumerate(claim.evidence):
                count = names[:place].count(row.name) + 1
                name = row.name if count == 1 else f"{row.name} ({count})"
                fields = ("value", "threshold", "at_least", "control", "published")
                numbers[experiment.id, claim.id, name] = {field: getattr(row, field) for field in fields}
        facts = json.loads((folder / experiment.id / "result.json").read_text())["facts"]
        for name, value in facts.items():
            if isinstance(value, int | float):
                numbers[experiment.id, "facts", name] = {"value": value}
    return numbers


def kept_files(folder: Path = RESULTS) -> dict[tuple[str], dict]:
    """Return the SHA-256 of each kept table by its path."""
    paths = sorted(folder.glob("*/tables/*.parquet"))
    return {
        (path.relative_to(folder).as_posix(),): {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in paths
    }


def table_sums(folder: Path) -> dict[tuple[str, str], dict]:
    """Return the rows of each table, and of each column its filled cells, sum and absolute sum, or number of texts."""
    tables = {}
    for path in sorted(folder.glob("*/tables/*.parquet")):
        table = pd.read_parquet(path)
        tables[path.parts[-3], path.stem] = {"rows": len(table)} | {name: _column_sums(table[name]) for name in table}
    return tables


def same(old: object, new: object, relative: float, absolute: float = 0.0) -> bool:
    """Compare two values; NaN equals NaN, and text and flags must be equal."""
    if isinstance(old, bool | str | None) or isinstance(new, bool | str | None):
        return old == new
    return math.isclose(old, new, rel_tol=relative, abs_tol=absolute) or (math.isnan(old) and math.isnan(new))


def load(name: str) -> dict[tuple, dict]:
    """Read a golden file: one row for each number or table, its key and then its fields."""
    return {tuple(key): fields for *key, fields in json.loads((GOLDEN / name).read_text())}


def write(name: str, rows: dict[tuple, dict]) -> None:
    """Write a golden file, sorted, one row a line."""
    lines = [json.dumps([*key, fields], ensure_ascii=False) for key, fields in sorted(rows.items())]
    (GOLDEN / name).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _column_sums(column: pd.Series) -> list:
    if pd.api.types.is_numeric_dtype(column):
        filled = column.dropna().astype(float)
        finite = filled[filled.abs() < math.inf]
        return [len(filled), float(finite.sum()), float(finite.abs().sum())]
    filled = column.dropna()
    return [len(filled), f"{filled.astype(str).nunique()} kinds"]
