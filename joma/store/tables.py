"""Rows of a run as Parquet files, `00000001.parquet` and so on, in which the last write of a key wins.

A file is written under another name and renamed, then `run.json` lists it with its rows and its checksum. Files are
ordered by number, and none is written twice. Rows that were merged, or that are left when a run is begun again, go into
a new file that stands for older ones: a reader passes those over, and they are removed once `run.json` is written. So a
death at any moment leaves the old rows or the new ones.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from joma.store.files import remove_leftovers, write_bytes

if TYPE_CHECKING:
    import pyarrow

MAX_SMALL_PARTS = 64
"""So many files are merged while the run goes on: a long one must not leave a file every few seconds."""
_PART = re.compile(r"\d{8,}\.parquet")
_STANDS_FOR = b"joma.stands_for_all_before"
"""Key in the metadata of a file that stands for older ones: those after the number that is its value, all for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLayout:
    """The columns of a table and which of them identify a row."""

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
        "step": "int64", "site": "string", "kind": "string", "layer": "int32", "head": "int32", "metric": "string",
        "value": "float64", "flag": "string",
    },
    key=("step", "site", "head", "metric"),
    order=("step", "layer", "site", "head", "metric"),
)  # fmt: skip
EVENTS = TableLayout(
    name="events",
    columns={
        "step": "int64", "site": "string", "level": "string", "kind": "string", "message": "string",
        "evidence": "string",
    },
    key=("step", "site", "kind", "message"),
)  # fmt: skip


class FileEntry(BaseModel):
    """What `run.json` says of a file of rows."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rows: int
    sha256: str


Files = Mapping[str, FileEntry]
"""Entries by path in the run's folder, such as `metrics/00000001.parquet`."""


class Table:
    """The one writer of a table: rows in memory, and the files on disk before them."""

    def __init__(self, folder: Path, layout: TableLayout, files: Files, listed: Callable[[], None]) -> None:
        """Continue after the files in the run's folder; `listed` writes `run.json` with the `files` of all tables."""
        self._folder, self._layout, self._listed = folder, layout, listed
        self.files = {name: entry for name, entry in files.items() if name.startswith(f"{layout.name}/")}
        _load_libraries()
        remove_leftovers(folder / layout.name)
        self._last = max((_number(path) for path in parts(folder, layout)), default=0)
        self._earlier = self._last
        """Number of the last file that is not ours."""
        self._num_small = 0
        self.rows: list[tuple[Any, ...]] = []
        """Kept in memory until the next flush."""
        self.begin_again_at: int | None = None
        """Step from which on the next flush removes the rows that were there before this writer."""

    def flush(self) -> None:
        """Write the rows in memory; when that fails they stay, and the next flush writes them into another file."""
        if self.begin_again_at is not None:
            self._replace_earlier(self.begin_again_at)
            self.begin_again_at = None
        if self.rows:
            self._write(_arrow(self.rows, self._layout))
            self.rows = []
            self._num_small += 1
        if self._num_small >= MAX_SMALL_PARTS:
            self.merge(after=self._earlier)
            self._num_small = 0

    def merge(self, *, after: int = 0) -> None:
        """Merge the files after a number into one."""
        paths = [path for path in parts(self._folder, self._layout) if _number(path) > after]
        if len(paths) > 1:
            self._write(_concatenated(paths, self._layout, self.files), stands_for=after)

    def _replace_earlier(self, step: int) -> None:
        """Write a file in place of all others: earlier rows before a step, and our own."""
        import pyarrow
        from pyarrow import compute

        paths = parts(self._folder, self._layout)
        split = sum(_number(path) <= self._earlier for path in paths)
        earlier, own = (_concatenated(each, self._layout, self.files) for each in (paths[:split], paths[split:]))
        kept = earlier.filter(compute.less(earlier["step"], step))
        if len(kept) < len(earlier):
            self._write(pyarrow.concat_tables([kept, own, _arrow(self.rows, self._layout)]), stands_for=0)
            self.rows = []

    def _write(self, table: "pyarrow.Table", *, stands_for: int | None = None) -> None:
        """Write a new file and list it; only then the files after number `stands_for` are removed, if it is given."""
        import pyarrow
        from pyarrow import parquet

        mark = {} if stands_for is None else {_STANDS_FOR: str(stands_for)}
        table = _settled(table, self._layout).replace_schema_metadata(mark)
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
        content = sink.getvalue().to_pybytes()
        self._last += 1  # before the write: one that failed may have reached the disk
        first_removed = self._last if stands_for is None else stands_for + 1
        new = self._folder / self._layout.name / f"{self._last:08d}.parquet"
        write_bytes(new, content)
        kept = {name: entry for name, entry in self.files.items() if _number(Path(name)) < first_removed}
        entry = FileEntry(rows=len(table), sha256=sha256(content).hexdigest())
        self.files = {**kept, f"{self._layout.name}/{new.name}": entry}
        self._listed()
        for path in parts(self._folder, self._layout):
            if first_removed <= _number(path) < self._last:
                path.unlink(missing_ok=True)


def parts(folder: Path, layout: TableLayout) -> list[Path]:
    """Return the files of a table, oldest first; those with other names are left out."""
    found = [path for path in (folder / layout.name).glob("*.parquet") if _PART.fullmatch(path.name)]
    return sorted(found, key=_number)


def load(folder: Path, layout: TableLayout, files: Files) -> "pyarrow.Table":
    """Read a table: each key once, with its last values, sorted as the layout says.

    A file that is listed must be there, and be what was written; a newer one may not be listed yet.
    """
    listed = {folder / name for name in files if name.startswith(f"{layout.name}/")}
    paths = sorted({*parts(folder, layout), *listed}, key=_number)
    return _settled(_concatenated(paths, layout, files), layout)


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


def _concatenated(paths: Sequence[Path], layout: TableLayout, files: Files) -> "pyarrow.Table":
    """Read files, the newest first; those that a newer one stands for are passed over."""
    import pyarrow
    from pyarrow import parquet

    schema = layout.schema()
    found: list[Any] = []
    stood_for: float = math.inf  # files after this number are passed over
    for path in reversed(paths):
        if found and _number(path) > stood_for:
            continue
        content, entry = path.read_bytes(), files.get(f"{layout.name}/{path.name}")
        if entry is not None and sha256(content).hexdigest() != entry.sha256:
            raise ValueError(f"{path} is damaged: it does not match its checksum in run.json. Restore it from a copy.")
        try:
            # From memory: no columns are guessed from the names of folders.
            table = parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True).read()
            found.append(table.select(schema.names).cast(schema.with_metadata(table.schema.metadata)))
        except (pyarrow.ArrowException, KeyError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} is damaged ({reason}). Restore it from a copy.") from error
        mark = (found[-1].schema.metadata or {}).get(_STANDS_FOR)
        if mark is not None:
            stood_for = int(mark or 0)
    return pyarrow.concat_tables([schema.empty_table(), *reversed(found)])
