"""Cached arrays: found again as they were, and never trusted when damaged."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.data.cache import cache_folder, digest, digest_of_arrays, read_arrays, write_arrays

ARRAYS = {"train": np.arange(7, dtype=np.int32), "words": np.frombuffer(b"a\nb", dtype=np.uint8)}


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    """A file of the cache."""
    path = tmp_path_factory.mktemp("whole") / "arrays.safetensors"
    write_arrays(path, ARRAYS)
    return path.read_bytes()


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory) -> Path:
    """A place for damaged files."""
    return tmp_path_factory.mktemp("spoilt") / "arrays.safetensors"


def same(first: dict, second: dict) -> bool:
    return digest_of_arrays(first) == digest_of_arrays(second)


def test_arrays_are_found_again(tmp_path):
    path = tmp_path / "made" / "on the way.safetensors"
    assert read_arrays(path) is None
    write_arrays(path, ARRAYS)
    found = read_arrays(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@given(st.data())
def test_no_flipped_bit_passes_for_content(content, spoilt, data):
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    spoilt.write_bytes(damaged)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = read_arrays(spoilt)
    # A flip in what the format ignores may leave the content as it was.
    assert same(found, ARRAYS) if found is not None else re.search("is damaged; it is made again", str(told[0].message))


@given(st.data())
def test_no_part_passes_for_the_whole(content, spoilt, data):
    spoilt.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.warns(RuntimeWarning, match="is damaged; it is made again"):
        assert read_arrays(spoilt) is None


def test_a_cache_that_cannot_be_used_is_told_and_does_no_harm(tmp_path):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "arrays.safetensors"
    with pytest.warns(RuntimeWarning, match=r"cannot be read \(Not a directory\)"):
        assert read_arrays(path) is None
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(.*\); its content will be made again next time"):
        write_arrays(path, ARRAYS)


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_a_digest_tells_where_parts_begin(first, second):
    assert (digest(*first) == digest(*second)) == (first == second)


def test_a_digest_of_arrays_tells_names_types_and_shapes():
    zeros = np.zeros(4, dtype=np.int32)
    variants = [{"a": zeros}, {"b": zeros}, {"a": zeros.reshape(2, 2)}, {"a": zeros.view(np.float32)}, {"a": zeros + 1}]
    assert len({digest_of_arrays(arrays) for arrays in variants}) == len(variants)


def test_the_folder_is_that_of_the_environment_or_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/user")
    monkeypatch.setenv("JOMA_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("JOMA_CACHE")
    assert cache_folder() == Path("/of/the/user/joma")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/joma")
