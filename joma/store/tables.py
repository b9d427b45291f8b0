"""Rows of a run as Parquet part files, `00000001.parquet` and so on, in which the last write of a key wins.

A part is written under another name and renamed. Parts are ordered by number. Merging parts puts the merged rows in
place of the newest of them and then removes the others: dying in between leaves old rows that newer ones outweigh.

Rows that a run which is begun again replaces go with the first part that is written then: it holds what is left of the
older parts too, is marked as standing for all of them, and is the last that a reader looks at. So they are gone at once
or not at all, and removing the older parts can be made up for.
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
"""So many parts are merged while the run goes on, so that a long one does not leave a file every few seconds."""
_PART = re.compile(r"\d{8,}\.parquet")
_STANDS_FOR_ALL = b"joma.stands_for_all_before"
"""Key in the description of a part's columns that marks one in whose place no older part counts."""
_READ_ATTEMPTS = 20
"""How often to list the parts again when a writer merges them under our eyes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The columns of a table and which of them tell rows apart."""

    name: str
    """Name of the folder with the parts."""
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


METRICS = Layout(
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
EVENTS = Layout(
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
    """The part that is being filled. Swapped as one object, so that no interruption writes rows twice or drops them."""

    number: int
    rows: list[tuple[Any, ...]]


class Table:
    """The one writer of a table: rows in memory, and the parts on disk before them."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        """Go on behind the parts that lie in the run's folder."""
        self._folder = folder / layout.name
        self._layout = layout
        _load_libraries()
        remove_leftovers(self._folder)
        self._earlier = max((_number(path) for path in parts(folder, layout)), default=0)
        """Number of the last part that is not ours."""
        self._merged = self._earlier
        self._part = _Part(self._merged + 1, [])
        self._begun_again_at: int | None = None
        """Step from which on earlier rows are still to be taken away."""

    def append(self, row: tuple[Any, ...]) -> None:
        """Keep a row in memory until the next flush."""
        self._part.rows.append(row)

    def begin_again(self, step: int) -> None:
        """Take away, with the next flush, the rows from a step on that were there before this writer."""
        self._begun_again_at = step

    def flush(self) -> None:
        """Write the rows in memory as a part; when that fails they stay, and the next flush writes the same part."""
        if self._begun_again_at is not None:
            self._replace_earlier(self._begun_again_at)
            return
        part = self._part
        if not part.rows:
            return
        path = self._folder / f"{part.number:08d}.parquet"
        write_bytes(path, _encode(_settled(_arrow(part.rows, self._layout), self._layout)))
        self._part = _Part(part.number + 1, [])
        if part.number - self._merged >= MAX_SMALL_PARTS:
            self._merge(after=self._merged)

    def compact(self) -> None:
        """Merge all parts into one."""
        self._merge(after=0)

    def _replace_earlier(self, step: int) -> None:
        """Write a part in place of all others: earlier rows before a step, and our own. Trying again does no harm."""
        import pyarrow
        from pyarrow import compute

        part, layout = self._part, self._layout
        paths = parts(self._folder.parent, layout)
        earlier = _concatenated([path for path in paths if _number(path) <= self._earlier], layout)
        kept = earlier.filter(compute.less(earlier["step"], step))
        if len(kept) < len(earlier):
            own = _concatenated([path for path in paths if _number(path) > self._earlier], layout)
            whole = pyarrow.concat_tables([kept, own, _arrow(part.rows, layout)])
            write_bytes(self._folder / f"{part.number:08d}.parquet", _encode(_settled(whole, layout), for_all=True))
            self._part = _Part(part.number + 1, [])
            for path in paths:
                if _number(path) != part.number:
                    path.unlink(missing_ok=True)
            self._merged = part.number
        self._begun_again_at = None
        self.flush()

    def _merge(self, *, after: int) -> None:
        """Merge the parts behind number `after`, up to the newest."""
        paths = [path for path in parts(self._folder.parent, self._layout) if _number(path) > after]
        if len(paths) > 1:
            write_bytes(paths[-1], _encode(_settled(_concatenated(paths, self._layout), self._layout)))
        for path in paths[:-1]:
            path.unlink(missing_ok=True)
        self._merged = self._part.number - 1


def parts(folder: Path, layout: Layout) -> list[Path]:
    """Return the parts of a table, oldest first; files of other names are left out."""
    found = [path for path in (folder / layout.name).glob("*.parquet") if _PART.fullmatch(path.name)]
    return sorted(found, key=_number)


def load(folder: Path, layout: Layout) -> "pyarrow.Table":
    """Read a table: each key once, with its last values, sorted as the layout says."""
    for _ in range(_READ_ATTEMPTS):
        try:
            return _settled(_concatenated(parts(folder, layout), layout), layout)
        except FileNotFoundError:
            continue  # a writer has just merged the parts
    raise FileNotFoundError(f"The parts of {folder / layout.name} vanish while they are read. Try again in a moment.")


def _number(part: Path) -> int:
    return int(part.stem)


def _load_libraries() -> None:
    """Load what writing needs at the start: not in the middle of a training, nor at exit, when it is too late."""
    import pyarrow
    from pyarrow import compute, parquet  # noqa: F401

    pyarrow.array([])  # looks for pandas when it is first called


def _arrow(rows: Sequence[tuple[Any, ...]], layout: Layout) -> "pyarrow.Table":
    import pyarrow

    schema = layout.schema()
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pyarrow.table([_column(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema)


def _column(values: Sequence[Any], kind: "pyarrow.DataType") -> "pyarrow.Array":
    import pyarrow

    try:
        return pyarrow.array(values, kind)
    except UnicodeEncodeError:  # half characters, as in file names that are not UTF-8: written out as \udc80
        return pyarrow.array([text.encode("utf-8", "backslashreplace").decode("utf-8") for text in values], kind)


def _settled(table: "pyarrow.Table", layout: Layout) -> "pyarrow.Table":
    """Keep the last row of each key, and sort."""
    import numpy as np

    numbered = table.append_column("row", [np.arange(len(table))])
    last = numbered.group_by(list(layout.key), use_threads=False).aggregate([("row", "max")])["row_max"]
    kept = numbered.take(last).sort_by([(name, "ascending") for name in layout.order or ("row",)])
    return kept.drop_columns("row")


def _encode(table: "pyarrow.Table", *, for_all: bool = False) -> bytes:
    import pyarrow
    from pyarrow import parquet

    if for_all:
        table = table.replace_schema_metadata({_STANDS_FOR_ALL: b""})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _concatenated(paths: Sequence[Path], layout: Layout) -> "pyarrow.Table":
    """Read parts, the newest first, down to one that stands for all before it."""
    import pyarrow

    schema = layout.schema()
    found = []
    for path in reversed(paths):
        table = _decode(path, schema)
        found.append(table)
        if _STANDS_FOR_ALL in (table.schema.metadata or {}):
            break
    return pyarrow.concat_tables([schema.empty_table(), *reversed(found)])


def _decode(path: Path, schema: "pyarrow.Schema") -> "pyarrow.Table":
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:  # the file alone: no columns guessed from folders such as lr=0.1
            table = file.read().select(schema.names)
            return table.cast(schema.with_metadata(table.schema.metadata))
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read ({reason}). Move it away to read the rest of the run.") from error
