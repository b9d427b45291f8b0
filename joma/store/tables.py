"""Rows of a run as Parquet files, `00000001.parquet` and so on, in which the last write of a key wins.

A file is written under another name and renamed. Files are ordered by number. Merging writes the merged rows in place
of the newest file and then removes the others: dying in between leaves old rows that newer ones outweigh.

When a run is begun again, the first file that is written then holds what is left of the older ones too. It is marked as
standing for all before it, and is the last that a reader looks at. So the replaced rows are gone at once or not at all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.store.files import remove_leftovers, write_bytes

if TYPE_CHECKING:
    import pyarrow

MAX_SMALL_PARTS = 64
"""So many files are merged while the run goes on: a long one must not leave a file every few seconds."""
_PART = re.compile(r"\d{8,}\.parquet")
_STANDS_FOR_ALL = b"joma.stands_for_all_before"
"""Key in the metadata of a file that stands for all older ones."""
_READ_ATTEMPTS = 20
"""How often to list the files again when a writer merges them meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLayout:
    """The columns of a table and which of them tell rows apart."""

    name: str
    """Name of the folder with the files."""
    columns: dict[str, str]
    """Column names with their Arrow types."""
    key: tuple[str, ...]
    """Of the rows that agree in these columns, the last one written counts."""
    order: tuple[str, ...] = ()
    """Columns to sort by; as written when there are none."""

    def schema(self) -> "pyarrow.Schema":
        """Return the columns as an Arrow schema without nulls."""
        import pyarrow

        types = {name: pyarrow.type_for_alias(alias) for name, alias in self.columns.items()}
        return pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in types.items()])


METRICS = TableLayout(
    name="metrics",
    columns={
        "step": "int64",
        "site": "string",
        "kind": "string",
        "layer": "int32",
        "head": "int32",
        "metric": "string",
        "value": "float64",
        "flag": "string",
    },
    key=("step", "site", "head", "metric"),
    order=("step", "layer", "site", "head", "metric"),
)
EVENTS = TableLayout(
    name="events",
    columns={
        "step": "int64",
        "site": "string",
        "level": "string",
        "kind": "string",
        "message": "string",
        "evidence": "string",
    },
    key=("step", "site", "kind", "message"),
)


@dataclass(frozen=True, slots=True)
class _Part:
    """The file to be written next. Replaced as one object, so that no interruption writes rows twice or drops them."""

    number: int
    rows: list[tuple[Any, ...]]


class Table:
    """The one writer of a table: rows in memory, and the files on disk before them."""

    def __init__(self, folder: Path, layout: TableLayout) -> None:
        """Continue after the files in the run's folder."""
        self._folder = folder / layout.name
        self._layout = layout
        _load_libraries()
        remove_leftovers(self._folder)
        self._earlier = max((_number(path) for path in parts(folder, layout)), default=0)
        """Number of the last file that is not ours."""
        self._merged = self._earlier
        self._part = _Part(self._merged + 1, [])
        self._begun_again_at: int | None = None
        """Step from which on earlier rows are still to be removed."""

    def append(self, row: tuple[Any, ...]) -> None:
        """Keep a row in memory until the next flush."""
        self._part.rows.append(row)

    def begin_again(self, step: int) -> None:
        """Remove, with the next flush, the rows from a step on that were there before this writer."""
        self._begun_again_at = step

    def flush(self) -> None:
        """Write the rows in memory; when that fails they stay, and the next flush writes the same file."""
        if self._begun_again_at is not None:
            self._replace_earlier(self._begun_again_at)
        if not self._part.rows:
            return
        part = self._part
        self._write(part.number, _arrow(part.rows, self._layout))
        self._part = _Part(part.number + 1, [])
        if part.number - self._merged >= MAX_SMALL_PARTS:
            self._merge(after=self._merged)

    def compact(self) -> None:
        """Merge all files into one."""
        self._merge(after=0)

    def _replace_earlier(self, step: int) -> None:
        """Write a file in place of all others: earlier rows before a step, and our own. Trying again does no harm."""
        import pyarrow
        from pyarrow import compute

        part, layout = self._part, self._layout
        paths = parts(self._folder.parent, layout)
        earlier = _concatenated([path for path in paths if _number(path) <= self._earlier], layout)
        kept = earlier.filter(compute.less(earlier["step"], step))
        if len(kept) < len(earlier):
            own = _concatenated([path for path in paths if _number(path) > self._earlier], layout)
            self._write(part.number, pyarrow.concat_tables([kept, own, _arrow(part.rows, layout)]), stands_for_all=True)
            self._part = _Part(part.number + 1, [])
            for path in paths:
                if _number(path) != part.number:
                    path.unlink(missing_ok=True)
            self._merged = part.number
        self._begun_again_at = None

    def _merge(self, *, after: int) -> None:
        """Merge the files after number `after`, up to the newest."""
        paths = [path for path in parts(self._folder.parent, self._layout) if _number(path) > after]
        if len(paths) > 1:
            self._write(_number(paths[-1]), _concatenated(paths, self._layout))
        for path in paths[:-1]:
            path.unlink(missing_ok=True)
        self._merged = self._part.number - 1

    def _write(self, number: int, table: "pyarrow.Table", *, stands_for_all: bool = False) -> None:
        import pyarrow
        from pyarrow import parquet

        table = _settled(table, self._layout)
        if stands_for_all:
            table = table.replace_schema_metadata({_STANDS_FOR_ALL: b""})
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
        write_bytes(self._folder / f"{number:08d}.parquet", sink.getvalue().to_pybytes())


def parts(folder: Path, layout: TableLayout) -> list[Path]:
    """Return the files of a table, oldest first; those with other names are left out."""
    found = [path for path in (folder / layout.name).glob("*.parquet") if _PART.fullmatch(path.name)]
    return sorted(found, key=_number)


def load(folder: Path, layout: TableLayout) -> "pyarrow.Table":
    """Read a table: each key once, with its last values, sorted as the layout says."""
    for _ in range(_READ_ATTEMPTS):
        try:
            return _settled(_concatenated(parts(folder, layout), layout), layout)
        except FileNotFoundError:
            continue  # a writer has just merged the files
    raise FileNotFoundError(f"The files of {folder / layout.name} vanish while they are read. Try again in a moment.")


def _number(part: Path) -> int:
    return int(part.stem)


def _load_libraries() -> None:
    """Load what writing needs at the start: not in the middle of a training, nor at exit, when it is too late."""
    import pyarrow
    from pyarrow import compute, parquet  # noqa: F401

    pyarrow.array([])  # looks for pandas when it is first called


def _arrow(rows: Sequence[tuple[Any, ...]], layout: TableLayout) -> "pyarrow.Table":
    import pyarrow

    def column(values: Sequence[Any], kind: "pyarrow.DataType") -> "pyarrow.Array":
        try:
            return pyarrow.array(values, kind)
        except UnicodeEncodeError:  # half characters, as in file names that are not UTF-8: written out as \udc80
            return pyarrow.array([text.encode("utf-8", "backslashreplace").decode("utf-8") for text in values], kind)

    schema = layout.schema()
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pyarrow.table([column(values, kind) for values, kind in zip(columns, schema.types, strict=True)], schema)


def _settled(table: "pyarrow.Table", layout: TableLayout) -> "pyarrow.Table":
    """Keep the last row of each key, and sort."""
    import numpy as np

    numbered = table.append_column("row", [np.arange(len(table))])
    last = numbered.group_by(list(layout.key), use_threads=False).aggregate([("row", "max")])["row_max"]
    kept = numbered.take(last).sort_by([(name, "ascending") for name in layout.order or ("row",)])
    return kept.drop_columns("row")


def _concatenated(paths: Sequence[Path], layout: TableLayout) -> "pyarrow.Table":
    """Read files, the newest first, down to one that stands for all before it."""
    import pyarrow
    from pyarrow import parquet

    schema = layout.schema()
    found = []
    for path in reversed(paths):
        try:
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:  # no columns guessed from folders
                table = file.read().select(schema.names)
                found.append(table.cast(schema.with_metadata(table.schema.metadata)))
        except FileNotFoundError:
            raise
        except (pyarrow.ArrowException, KeyError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} cannot be read ({reason}). Move it away to read the rest of the run.") from error
        if _STANDS_FOR_ALL in (found[-1].schema.metadata or {}):
            break
    return pyarrow.concat_tables([schema.empty_table(), *reversed(found)])
