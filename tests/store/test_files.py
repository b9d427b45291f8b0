"""A file is there whole or not at all, whatever fails on the way."""

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.faults import Faults

from joma.store.files import DiskFullError, explained, hidden_name, remove_leftovers, write_bytes, write_text


@given(content=st.binary(), before=st.none() | st.binary())
def test_what_was_written_is_read(tmp_path_factory, content, before):
    path = tmp_path_factory.mktemp("files") / "new" / "folder" / "file.bin"
    if before is not None:
        write_bytes(path, before)
    assert write_bytes(str(path), content) == path
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file.bin"]
    assert write_text(path, "ρ\r\n").read_bytes() == b"\xcf\x81\r\n"  # as UTF-8, line ends as they are


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_fault_at_any_point_leaves_the_old_or_the_new_file(tmp_path, code):
    old, new = b"old" * 1000, b"new" * 2000
    path = tmp_path / "file.bin"
    seen = []
    while True:
        path.write_bytes(old)
        with Faults(at=len(seen) + 1, code=code) as faults:
            try:
                write_bytes(path, new)
                break
            except OSError as error:
                assert error.errno == code
                assert isinstance(error, DiskFullError) == (code == errno.ENOSPC)
        renamed = "replace" in seen
        assert path.read_bytes() == (new if renamed else old), seen
        assert os.listdir(tmp_path) == ["file.bin"], seen
        seen.append(faults.trace[faults.at - 1])
    assert seen == ["open", "write", "flush", "fsync", "replace", "fsync"]


def test_leftovers_are_told_from_others_and_found_at_any_depth(tmp_path):
    whole = tmp_path / "kept" / "a"
    whole.mkdir(parents=True)
    half = hidden_name(whole)
    half.mkdir()
    for folder in (tmp_path, whole, half):
        for name in ("run.json", "page.html"):
            (folder / name).write_bytes(b"whole")
            hidden_name(folder / name).write_bytes(b"half")

    def left(folder):
        return sorted(path.name[:-14] for path in folder.glob(".*.part"))

    assert left(tmp_path) == [".page.html", ".run.json"]
    remove_leftovers(tmp_path, "run.json")
    assert left(tmp_path) == [".page.html"]
    remove_leftovers(tmp_path)
    assert half.exists() and not left(tmp_path) and len(left(whole)) == 2
    remove_leftovers(tmp_path, at_any_depth=True)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    names = {"run.json", "page.html"}
    assert found == {"kept", "kept/a", *names, *(f"kept/a/{name}" for name in names)}
    remove_leftovers(tmp_path / "is not there")


def test_readers_never_see_half_a_file(tmp_path):
    path = write_bytes(tmp_path / "file.bin", b"0" * 100_000)

    def rewrite() -> None:
        for number in range(1, 50):
            write_bytes(path, str(number % 10).encode() * 100_000)

    writers = [threading.Thread(target=rewrite) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert len(content) == 100_000
        assert len(set(content)) == 1
    assert os.listdir(tmp_path) == ["file.bin"]


def test_an_error_of_a_write_names_the_file(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="File too large") as caught:
        write_bytes(tmp_path / "metrics.parquet", b"rows")
    assert str(tmp_path / "metrics.parquet") in explained(caught.value)
    assert not os.listdir(tmp_path)
