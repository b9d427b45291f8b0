"""run.json: what goes in comes out, and what is no run or too new is refused."""

import json
import subprocess
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.store import open_run
from joma.store import record as description
from joma.store.record import SCHEMA, RunInfo, load, plain, save

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@dataclass
class Config:
    """As a user may write it."""

    lr: float
    sizes: tuple[int, ...]


class Attention(StrEnum):
    """A choice within a config."""

    EXP = "exp"


@given(config=st.dictionaries(st.text(), JSON), about=st.dictionaries(st.text(), JSON))
def test_config_and_about_come_back(tmp_path_factory, config, about):
    folder = tmp_path_factory.mktemp("run")
    info = RunInfo(folder=folder, kind="watch", status="running", started="2024", config=config, about=about)
    save(info)
    assert load(folder) == info


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Config(lr=0.1, sizes=(1, 2)), {"lr": 0.1, "sizes": [1, 2]}),
        ({1: Path("a/b"), None: Attention.EXP}, {"1": "a/b", "None": "exp"}),
        ({"b", "a"}, ["a", "b"]),
        ([float("nan"), float("inf"), -float("inf")], ["nan", "inf", "-inf"]),
        (np.float32(0.5), 0.5),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.float64("nan"), "nan"),
        (Config, str(Config)),
        (1 + 2j, "(1+2j)"),
        (True, True),
    ],
    ids=["dataclass", "keys and paths", "set", "not finite", "float32", "array", "nan", "class", "complex", "bool"],
)
def test_values_become_plain_json(value, expected):
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_versions_and_commit_are_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert description.started(tmp_path, "scan", {}, None).git_commit is None
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert description.started(tmp_path, "scan", {}, None).git_commit is None
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    info = description.started(tmp_path, "scan", {}, None)
    assert len(info.git_commit) == 40
    assert {"python", "joma", "pyarrow"} <= info.versions.keys()


def test_a_machine_without_git_will_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert description.started(tmp_path, "scan", {}, None).git_commit is None


def test_reopening_keeps_the_start_and_tells_what_changed(tmp_path):
    first = replace(description.started(tmp_path, "train", {"lr": 1}, {"seed": 1, "data": "x"}), started="2024")
    same = description.reopened(first, "train", {"lr": 1}, None)
    assert (same.started, len(same.resumed), same.earlier, same.about) == ("2024", 1, [], first.about)
    other = description.reopened(same, "train", {"lr": 2}, {"data": "y"})
    assert (other.started, len(other.resumed), other.config) == ("2024", 2, {"lr": 2})
    assert [each["config"] for each in other.earlier] == [{"lr": 1}]
    assert other.about == {"seed": 1, "data": "y"}


def test_a_finished_run_that_is_reopened_runs_again(tmp_path):
    first = description.started(tmp_path, "train", {}, None)
    done = description.ended(first, "finished")
    assert done.ended is not None
    again = description.reopened(done, "train", {}, None)
    assert (again.status, again.ended) == ("running", None)
    assert description.ended(again, "running").ended is None


def test_a_run_is_refused_that_is_another_by_what_it_is_known_by(tmp_path):
    known_by = ("seed", "model", "batch")
    open_run(tmp_path, kind="watch", config={"batch": "probe", "every": 1}, about={"seed": (0, 1)}).close()
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(
        ValueError, match=r"holds another run, with `seed` \[0, 1\]; this one has `seed` \[0, 2\]\. Take"
    ):
        open_run(tmp_path, kind="watch", config={}, about={"seed": (0, 2)}, known_by=known_by)
    with pytest.raises(ValueError, match="with `batch` probe; this one has `batch` training"):
        open_run(tmp_path, kind="watch", config={"batch": "training"}, known_by=known_by)
    assert (tmp_path / "run.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]
    about = {"seed": (0, 1), "model": "told by one alone"}
    open_run(tmp_path, kind="watch", config={"every": 2}, about=about, known_by=known_by).close()


def test_another_kind_of_run_is_refused(tmp_path):
    info = description.started(tmp_path, "train", {}, None)
    with pytest.raises(ValueError, match=r"holds a run of kind 'train', not 'scan'. Take a new folder"):
        description.reopened(info, "scan", {}, None)


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (None, FileNotFoundError, "is no run: it has no run.json"),
        ("{", ValueError, "is not JSON"),
        ("[]", ValueError, "was not written by joma"),
        ('{"schema": 1}', ValueError, "was not written by joma"),
        ('{"format": "joma run", "schema": 1}', ValueError, "lacks kind, started, status"),
        (
            json.dumps({"format": "joma run", "schema": SCHEMA + 1}),
            ValueError,
            f"written by a newer joma: its schema is {SCHEMA + 1}, this one reads up to {SCHEMA}. Update joma",
        ),
        ('{"format": "joma run", "schema": "two"}', ValueError, "newer joma: its schema is two"),
    ],
)
def test_what_is_no_run_is_said_in_one_line(tmp_path, content, error, match):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(error, match=match) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_path_through_a_file_is_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="is no run"):
        load(tmp_path / "file")


def test_fields_that_a_later_version_adds_within_the_schema_are_left_alone(tmp_path):
    save(RunInfo(folder=tmp_path, kind="watch", status="running", started="2024"))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    assert load(tmp_path).kind == "watch"
