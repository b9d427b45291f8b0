"""Kept numbers as plain values, to be compared with those of version 0.1.

The golden files were written with version 0.1 (commit 8d306a4) and stay as they are: a change is listed in
`changes.toml`.
"""

import hashlib
import json
import math
from pathlib import Path

import pandas as pd

from joma.paper.documents import kept

GOLDEN = Path(__file__).parent
ROOT = GOLDEN.parents[1]
RESULTS = ROOT / "results"


def kept_numbers() -> dict[str, list[dict]]:
    """Return the numbers of every claim that is kept: value, threshold, control and published value."""
    found: dict[str, list[dict]] = {}
    for result in kept(ROOT):
        for answer in result.answers:
            found[answer.claim] = [
                {
                    "value": each.value,
                    "threshold": each.at_least if each.at_least is not None else each.at_most,
                    "control": each.control,
                    "published": each.published,
                }
                for each in answer.numbers
            ]
    return found


def kept_outcomes() -> dict[str, str]:
    """Return the outcome of every claim that is kept."""
    return {answer.claim: answer.outcome.value for result in kept(ROOT) for answer in result.answers}


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
