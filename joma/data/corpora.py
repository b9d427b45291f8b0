"""Where a text lies: a folder of train, valid and test files, a corpus with a name, here or on the hub, python-docs."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from joma.data.cache import digest, digest_of_file
from joma.data.python_docs import PythonDocs
from joma.errors import UnknownNameError

SPLITS = ("train", "valid", "test")
"""Parts of a text."""
HUB_REPOSITORY = "Salesforce/wikitext"
"""Dataset on the Hugging Face hub that holds both WikiTexts."""
OWN_TEXT = "A text of your own is a folder with train.txt, valid.txt and test.txt: pass that folder."
"""For messages: what is taken instead of a corpus with a name."""
BLOCK_BYTES = 1 << 24
"""How much of a file is read at once: a text of any length is tokenised in little memory."""
_LAYOUT = re.compile(
    r"(wiki\.)?(?P<split>train|valid|validation|val|test)(-\d+-of-(?P<num_shards>\d+))?"
    r"\.(txt|tokens|raw|parquet)"
)
_SHARD = re.compile(r"-\d+-of-")
_SAME_SPLIT = {"validation": "valid", "val": "valid"}
_PARQUET_ROWS = 1 << 16
_PARQUET_COLUMN = "text"


KNOWN_CORPORA = {
    "wikitext2": ("wikitext-2", "wikitext2", "wikitext-2-v1"),
    "wikitext103": ("wikitext-103", "wikitext103", "wikitext-103-v1"),
}
"""Corpora that are asked for by name, with the names that their folder may have below `$JOMA_DATA`.

The last is that on the hub: rare words are `<unk>` there, as in the paper.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFolder:
    """A text in files: `train.txt`, `wiki.train.tokens` or `train-00000-of-00001.parquet`, and so for each part."""

    name: str
    files: Mapping[str, tuple[Path, ...]]
    """Files of each part, in order."""

    def digest(self) -> str:
        """Return a hash of the content of all files."""
        return digest(
            *(part for split in SPLITS for path in self.files[split] for part in (split, digest_of_file(path)))
        )

    def blocks(self, split: str) -> Iterator[str]:
        """Return the text of a part in blocks of whole lines."""
        for path in self.files[split]:
            yield from _parquet_blocks(path) if path.suffix == ".parquet" else _text_blocks(path)


def find_text(name_or_folder: str | Path) -> TextFolder | PythonDocs:
    """Find a text by its name or in a folder; says what is missing.

    Names are `python-docs`, `wikitext2`, `wikitext103` and those of the folders in `$JOMA_DATA`.
    """
    if name_or_folder == PythonDocs.name:
        return PythonDocs()
    if name_or_folder in KNOWN_CORPORA:
        name = str(name_or_folder)
        return open_folder(_known_folder(name), name)
    folder = Path(name_or_folder).expanduser()
    if folder.is_dir():
        return open_folder(folder)
    if folder.exists():
        raise NotADirectoryError(f"{folder} is a file. {OWN_TEXT}")
    name = str(name_or_folder)
    is_path = set(name) & {"/", os.sep} or folder.suffix or name.startswith((".", "~"))
    if isinstance(name_or_folder, str) and not is_path:
        if (data := os.environ.get("JOMA_DATA")) and (below := Path(data).expanduser() / name).is_dir():
            return open_folder(below, name)
        raise UnknownNameError("text or folder", name_or_folder, [PythonDocs.name, *KNOWN_CORPORA], remark=OWN_TEXT)
    raise FileNotFoundError(f"There is no folder {folder}. {OWN_TEXT}")


def open_folder(folder: Path, name: str | None = None) -> TextFolder:
    """Find the files of each part in a folder; refuses a folder that lacks a part or has one twice."""
    found: defaultdict[str, dict[str, list[re.Match[str]]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.iterdir()):
        if match := _LAYOUT.fullmatch(path.name):
            split = _SAME_SPLIT.get(match["split"], match["split"])
            found[split][_SHARD.sub("-of-", path.name)].append(match)
    if missing := [split for split in SPLITS if split not in found]:
        here = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise FileNotFoundError(
            f"{folder} has no file for {' and '.join(missing)}: a text needs train, valid and test as .txt, .tokens or "
            f".parquet, such as {missing[0]}.txt. It holds {here}."
        )
    files = {split: tuple(folder / file for file in _only_layout(folder, split, found[split])) for split in SPLITS}
    return TextFolder(name=folder.resolve().name if name is None else name, files=files)


def _only_layout(folder: Path, split: str, layouts: Mapping[str, list[re.Match[str]]]) -> list[str]:
    """Return the file names of a part that is there once and whole."""
    first, *others = layouts.values()
    if others:
        twice = f"{first[0].string} and {others[0][0].string}"
        raise ValueError(f"{folder} must have {split} once, got {twice}. Remove or rename one.")
    num_shards = int(first[0]["num_shards"] or 1)
    if len(first) != num_shards:
        raise FileNotFoundError(f"{folder} needs {num_shards} files of {split}, it has {len(first)}. Add the others.")
    return [match.string for match in first]


def _known_folder(name: str) -> Path:
    """Return the folder of a known corpus below `$JOMA_DATA` or in the hub's cache, downloading what is not there."""
    folders = KNOWN_CORPORA[name]
    if data := os.environ.get("JOMA_DATA"):
        for folder in folders:
            if (Path(data).expanduser() / folder).is_dir():
                return Path(data).expanduser() / folder
    where = f"{name} is not in $JOMA_DATA"
    place = f"set JOMA_DATA to a folder that holds {folders[0]}/train.txt, valid.txt and test.txt"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        needed = f"its download needs huggingface_hub. Install joma[hf], or {place}."
        raise FileNotFoundError(f"{where}, and {needed}") from None
    try:
        snapshot = snapshot_download(HUB_REPOSITORY, repo_type="dataset", allow_patterns=f"{folders[-1]}/*")
    except Exception as error:  # the hub's client raises its own errors and those of the network below it
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        reason = first_line.split(". ")[0].rstrip(".")
        raise ConnectionError(
            f"{where}, and the hub gave no {HUB_REPOSITORY}: {reason}. Connect to the network, or {place}."
        ) from None
    downloaded = Path(snapshot, folders[-1])
    if not downloaded.is_dir():  # without a network, the client is content with whatever it has of the repository
        raise ConnectionError(f"{where}, and not in the hub's cache. Connect to the network, or {place}.")
    return downloaded


def _text_blocks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as file:
        try:
            while lines := file.readlines(BLOCK_BYTES):
                yield "".join(lines)
        except UnicodeDecodeError as error:
            byte = f"0x{error.object[error.start]:02x}"
            raise ValueError(f"{path} must be UTF-8, got the byte {byte} ({error.reason}). Convert the file.") from None


def _parquet_blocks(path: Path) -> Iterator[str]:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            if _PARQUET_COLUMN not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise ValueError(f"{path} must have a column `{_PARQUET_COLUMN}`, it has {columns}. Rename one.")
            for batch in file.iter_batches(_PARQUET_ROWS, columns=[_PARQUET_COLUMN]):
                yield "\n".join(row or "" for row in batch.column(0).to_pylist())
    except ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}. Fetch it again.") from None
