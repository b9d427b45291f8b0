"""Finding a text: layouts of folders, corpora with a name, and what is said when something is missing."""

import sys
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from pyarrow import parquet

from joma.data import corpora
from joma.data.corpora import SPLITS, find_text, open_folder
from joma.errors import UnknownNameError

LINES = {"train": ["one two", "", "three é"], "valid": ["four"], "test": ["five"]}


def write_parquet(path: Path, lines: list[str | None], column: str = "text") -> None:
    parquet.write_table(pa.table({column: pa.array(lines, pa.string())}), path)


def fill(folder: Path, pattern: str) -> Path:
    """Write a small text, its files named by a pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in LINES.items():
        path = folder / pattern.format(split)
        if path.suffix == ".parquet":
            write_parquet(path, lines)
        else:
            path.write_text("\n".join(lines), encoding="utf-8")
    return folder


def read(folder: Path) -> dict[str, list[str]]:
    source = open_folder(folder)
    return {split: "\n".join(source.blocks(split)).split("\n") for split in SPLITS}


@pytest.fixture
def nowhere(monkeypatch):
    """A machine without data and without a network."""
    monkeypatch.delenv("JOMA_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def refuse(*_, **__):
    raise LocalEntryNotFoundError("Cannot reach https://huggingface.co. More lines\nof no use")


@pytest.mark.parametrize("pattern", ["{}.txt", "wiki.{}.tokens", "wiki.{}.raw", "{}-00000-of-00001.parquet"])
@pytest.mark.parametrize("spelling", ["valid", "validation", "val"])
def test_every_layout_gives_the_same_lines_whatever_else_there_is(tmp_path, pattern, spelling):
    (tmp_path / "training.txt").write_text("no")
    path = fill(tmp_path, pattern) / pattern.format("valid")
    path.rename(path.with_name(pattern.format(spelling)))
    assert read(tmp_path) == LINES


def test_shards_are_read_in_order_and_missing_rows_are_empty_lines(tmp_path):
    fill(tmp_path, "{}.txt")
    (tmp_path / "train.txt").unlink()
    write_parquet(tmp_path / "train-00001-of-00002.parquet", ["c"])
    write_parquet(tmp_path / "train-00000-of-00002.parquet", ["a", None, "b"])
    assert read(tmp_path)["train"] == ["a", "", "b", "c"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["unix", "windows"])
def test_marks_and_line_ends_do_not_matter(tmp_path, mark, end):
    fill(tmp_path, "{}.txt")
    (tmp_path / "train.txt").write_bytes(mark + end.join(line.encode() for line in LINES["train"]))
    assert read(tmp_path) == LINES


def test_blocks_are_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "BLOCK_BYTES", 4)
    blocks = list(open_folder(fill(tmp_path, "{}.txt")).blocks("train"))
    assert blocks == ["one two\n", "\nthree é"]


def test_the_digest_follows_the_content_and_not_the_place(tmp_path):
    first, second = fill(tmp_path / "a", "{}.txt"), fill(tmp_path / "b", "{}.txt")
    assert open_folder(first).digest() == open_folder(second).digest()
    (second / "valid.txt").rename(second / "swap")
    (second / "test.txt").rename(second / "valid.txt")
    (second / "swap").rename(second / "test.txt")
    assert open_folder(first).digest() != open_folder(second).digest()


@pytest.mark.parametrize("folder", ["wikitext-2", "wikitext2", "wikitext-2-v1"])
def test_a_known_corpus_lies_below_the_data_folder(tmp_path, monkeypatch, nowhere, folder):
    fill(tmp_path / folder, "{}.txt")
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    source = find_text("wikitext2")
    assert source.name == "wikitext2"
    assert source.files["train"] == (tmp_path / folder / "train.txt",)


def test_any_folder_below_the_data_folder_has_a_name(tmp_path, monkeypatch, nowhere):
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    with pytest.raises(UnknownNameError):
        find_text("diary")
    fill(tmp_path / "diary", "{}.txt")
    source = find_text("diary")
    assert (source.name, source.files["valid"]) == ("diary", (tmp_path / "diary" / "valid.txt",))


def test_a_known_corpus_comes_from_the_hub(tmp_path, monkeypatch, nowhere):
    def download(repository, *, repo_type, allow_patterns):
        assert (repository, repo_type, allow_patterns) == ("Salesforce/wikitext", "dataset", "wikitext-103-v1/*")
        fill(tmp_path / "wikitext-103-v1", "{}-00000-of-00001.parquet")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert "".join(find_text("wikitext103").blocks("test")) == "five"


def test_without_data_and_network_one_line_says_what_is_needed(tmp_path, monkeypatch, nowhere):
    with pytest.raises(ConnectionError, match=r"Cannot reach https://huggingface.co\. Connect .* JOMA_DATA") as raised:
        find_text("wikitext2")
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(ConnectionError, match="hub's cache"):
        find_text("wikitext2")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=r"Install joma\[hf\], or set JOMA"):
        find_text("wikitext103")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("wikitxt2", UnknownNameError, "Did you mean 'wikitext2'"),
        ("diary", UnknownNameError, r"Known: python-docs, .*\. A text of your own is a folder"),
        ("nothere.txt", FileNotFoundError, "A text of your own is a folder"),
        ("~/nowhere", FileNotFoundError, "A text of your own is a folder"),
        (Path("none"), FileNotFoundError, "A text of your own is a folder"),
        (__file__, NotADirectoryError, "A text of your own is a folder"),
    ],
)
def test_names_and_paths_that_are_not_there_are_refused(name, error, words):
    with pytest.raises(error, match=words):
        find_text(name)


def test_a_folder_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="train and valid and test"):
        find_text(tmp_path)
    (fill(tmp_path, "{}.txt") / "valid.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"valid\.txt\. It holds test\.txt, train"):
        find_text(tmp_path)
    (fill(tmp_path, "{}.txt") / "wiki.train.tokens").write_text("again")
    with pytest.raises(ValueError, match=r"train\.txt and wiki\.train\.tokens"):
        find_text(tmp_path)
    with pytest.raises(FileNotFoundError, match="needs 2 files of train, it has 1"):
        find_text(fill(tmp_path / "shards", "{}-00000-of-00002.parquet"))


@pytest.mark.parametrize(
    ("kind", "spoil", "words"),
    [
        ("txt", lambda path: path.write_bytes("naïve".encode("latin-1")), "0xef"),
        ("parquet", lambda path: write_parquet(path, ["a"], column="body"), "`text`, it has body"),
        ("parquet", lambda path: path.write_bytes(b"spoilt"), "Fetch it again"),
    ],
    ids=["latin-1", "no text", "spoilt"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind, spoil, words):
    spoil(fill(tmp_path, "{}." + kind) / f"train.{kind}")
    with pytest.raises(ValueError, match=rf"train\.{kind} .*{words}"):
        list(open_folder(tmp_path).blocks("train"))
