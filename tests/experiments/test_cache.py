"""Results on disk are exact, whole or absent, and not trusted when damaged."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.fakes import Config, fake
from joma.experiments import cache
from joma.experiments.cache import DamagedResultError, Kept, keep, key_of, load
from joma.experiments.experiment import Result

NUMBERS = [0.1, math.pi, 5e-324, -0.0, math.nan, math.inf]


@pytest.fixture
def kept():
    walk = pd.DataFrame({"x": NUMBERS, "n": np.arange(6), "name": list("abcdeé"), "on": [True, False] * 3})
    facts = {"low": -math.inf, "third": 1 / 3, "count": 3, "name": "é", "on": True, "lost": math.nan}
    return Kept(result=Result(tables={"walk": walk, "empty": walk[:0]}, facts=facts), about={"seconds": 1.5})


def test_a_kept_result_is_the_same_bit_for_bit(tmp_path, kept):
    keep(tmp_path / "a", kept)
    found = load(tmp_path / "a")
    for name, table in kept.result.tables.items():
        pd.testing.assert_frame_equal(found.result.tables[name], table, check_exact=True)
    before, after = (np.array([each.result.tables["walk"]["x"]]).tobytes() for each in (kept, found))
    assert before == after
    assert repr(found.result.facts) == repr(kept.result.facts)
    assert found.about == kept.about


@given(value=st.one_of(st.floats(), st.integers(), st.booleans(), st.text()))
def test_facts_come_back_as_they_were(value):
    [back] = cache.exact_facts(cache.plain_facts({"fact": value})).values()
    assert repr(back) == repr(value) and type(back) is type(value)


def test_where_nothing_is_kept_nothing_is_found(tmp_path):
    assert load(tmp_path / "absent") is None


def test_the_index_is_left_out(tmp_path):
    table = pd.DataFrame({"x": [1, 2, 3]})[1:]
    keep(tmp_path / "a", Kept(result=Result(tables={"walk": table}, facts={})))
    assert list(load(tmp_path / "a").result.tables["walk"].index) == [0, 1]


def test_another_result_takes_the_place_of_the_first(tmp_path, kept):
    keep(tmp_path / "a", kept)
    keep(tmp_path / "a", replace(kept, about={"seconds": 2}))
    assert load(tmp_path / "a").about == {"seconds": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_every_flipped_byte_is_noticed(tmp_path, kept):
    keep(tmp_path / "a", kept)
    rng = np.random.default_rng(1)
    for path in sorted((tmp_path / "a").iterdir()):
        whole = path.read_bytes()
        for place in rng.integers(len(whole), size=30):
            broken = bytearray(whole)
            broken[place] ^= 0x15
            path.write_bytes(broken)
            try:
                found = load(tmp_path / "a")
            except DamagedResultError as error:
                assert "damaged" in str(error)
            else:  # white space, or the name of a field that is not read: the content is untouched
                assert path.name == cache.FILE_NAME
                assert repr(found.result.facts) == repr(kept.result.facts)
        path.write_bytes(whole)
    assert load(tmp_path / "a") is not None


@pytest.mark.parametrize("name", [cache.FILE_NAME, "walk.parquet"])
def test_a_file_cut_off_or_gone_is_noticed(tmp_path, kept, name):
    keep(tmp_path / "a", kept)
    path = tmp_path / "a" / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedResultError, match="damaged"):
        load(tmp_path / "a")
    path.unlink()
    with pytest.raises(DamagedResultError, match="damaged"):
        load(tmp_path / "a")


def test_a_failing_write_leaves_nothing_and_the_old_result(tmp_path, kept, monkeypatch):
    keep(tmp_path / "a", kept)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_text", full)
    with pytest.raises(OSError, match="disk is full"):
        keep(tmp_path / "a", replace(kept, about={}))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert load(tmp_path / "a").about == kept.about


def test_whatever_changes_the_result_changes_its_key():
    first = key_of(fake("a"), Config())
    assert first == key_of(fake("a"), Config())
    others = [
        key_of(fake("b"), Config()),
        key_of(fake("a"), Config(num_steps=6)),
        key_of(fake("a"), Config(seeds=(3,))),
        key_of(fake("a", schema=2), Config()),
    ]
    assert len({first, *others}) == 5
