"""run.json: what goes in comes out, odd content is refused in one line, and folders of version 0.1 are read."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.page import runs as report_runs
from joma.store import find_runs, info, is_open, open_run, read, read_events
from joma.store.record import SCHEMA, git_commit, plain, versions

OLD = Path(__file__).with_name("folders-0.1")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


def edit(folder, **changes):
    """Change entries of run.json; `...` removes one."""
    path = folder / "run.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


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
    open_run(folder, kind="watch", config=config, about=about).close()
    assert (info(folder).config, info(folder).about) == (config, about)


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
)
def test_values_become_plain_json(value, expected):
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_versions_and_commit_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_commit() is None
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert len(git_commit()) == 40
    assert {"python", "joma", "pyarrow"} <= versions().keys()
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without git
    assert git_commit() is None


def test_reopening_keeps_the_start_and_records_what_changed(tmp_path):
    open_run(tmp_path, kind="train", config={"lr": 1}, about={"seed": 1, "data": "x"}).close()
    edit(tmp_path, started="2024-01-01T00:00:00+00:00")
    same = open_run(tmp_path, kind="train", config={"lr": 1})
    found = info(tmp_path)
    assert (found.status, found.ended, found.earlier, found.about) == ("running", None, [], {"seed": 1, "data": "x"})
    same.close("running")
    assert info(tmp_path).ended is None
    open_run(tmp_path, kind="train", config={"lr": 2}, about={"data": "y"}).close()
    found = info(tmp_path)
    assert (found.started[:4], len(found.resumed), found.config) == ("2024", 2, {"lr": 2})
    assert [each["config"] for each in found.earlier] == [{"lr": 1}]
    assert (found.about, found.status) == ({"seed": 1, "data": "y"}, "finished")


def test_another_run_is_refused_and_left_as_it_is(tmp_path):
    known_by = ("seed", "model", "batch")
    open_run(tmp_path, kind="watch", config={"batch": "probe", "every": 1}, about={"seed": (0, 1)}).close()
    before = (tmp_path / "run.json").read_bytes()
    others = [
        {"kind": "scan", "config": {}},
        {"kind": "watch", "config": {}, "about": {"seed": (0, 2)}},
        {"kind": "watch", "config": {"batch": "training"}},
    ]
    for other in others:
        with pytest.raises(ValueError, match="holds a"):
            open_run(tmp_path, **other, known_by=known_by)
    assert (tmp_path / "run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    about = {"seed": (0, 1), "model": "known to one alone"}
    open_run(tmp_path, kind="watch", config={"every": 2}, about=about, known_by=known_by).close()


# Odd content

VALUES = {
    "resumed": [None, "2024", [3], ["soon"]],
    "about": [[], None],
    "config": [3],
    "versions": [{"torch": 2}, []],
    "git_commit": [7],
    "earlier": [{}, [1]],
    "kind": [None, ...],
    "status": ["walking", None, ...],
    "started": ["yesterday", "2024-01-01", 5, ...],
    "ended": [False],
    "schema": [SCHEMA + 1, "two", None],
}
ODD = [{name: value} for name, values in VALUES.items() for value in values]
TEXTS = ["{", "[]", "", "null", '{"schema": 1}', '{"format": "joma run", "schema": 1}', "[" * 10**5, "\udcff"]


@pytest.mark.parametrize("odd", [*ODD, *TEXTS], ids=lambda odd: repr(odd)[:60])
def test_odd_json_in_one_run_is_said_in_one_line_and_the_others_are_read(tmp_path, odd):
    for name in ("good", "odd"):
        with open_run(tmp_path / name, kind="watch", config={}) as run:
            run.add(0, "loss", 1.0)
    path = tmp_path / "odd" / "run.json"
    if isinstance(odd, dict):
        edit(tmp_path / "odd", **odd)
    else:
        path.write_bytes(odd.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    actions = [info, read, read_events, lambda folder: open_run(folder, kind="watch", config={})]
    for action in actions:
        with pytest.raises(ValueError, match="odd") as caught:
            action(tmp_path / "odd")
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == before and not is_open(tmp_path / "odd")
    assert tmp_path / "good" in find_runs(tmp_path)
    runs, unreadable = report_runs.load([tmp_path / "odd", tmp_path / "good"], tmp_path)
    assert ([run.name for run in runs], [each["name"] for each in unreadable]) == (["good"], ["odd"])


@pytest.mark.parametrize("odd", [{"config": {}}, {"colour": "red"}, {"about": {"num_steps": None}}, {"config": ...}])
def test_what_is_valid_is_read(tmp_path, odd):
    open_run(tmp_path, kind="train", config={"lr": 1}).close()
    edit(tmp_path, **odd)
    assert read(tmp_path).empty and info(tmp_path).kind == "train"
    assert len(report_runs.load([tmp_path], tmp_path)[0]) == 1


def test_what_is_no_run_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(FileNotFoundError, match="is no run"):
            info(folder)


# Version 0.1


@pytest.mark.parametrize("name", ["train", "watch", "scan"])
def test_closed_folders_of_version_0_1_are_read(name):
    """Their rows are in one file, which pandas reads as well."""
    values = read(OLD / name)
    expected = pd.read_parquet(OLD / name / "metrics")
    pd.testing.assert_frame_equal(values, expected)
    assert len(values) > 10
    assert values.attrs["run"]["kind"] == info(OLD / name).kind == name
    assert info(OLD / name).versions["joma"] == "0.1.0"
    assert len(read_events(OLD / name)) == {"train": 2, "watch": 0, "scan": 6}[name]


def test_a_run_that_version_0_1_left_when_it_was_killed_is_read_and_continued(tmp_path):
    """It was begun again at step 3, and its rows are in several files."""
    folder = shutil.copytree(OLD / "killed", tmp_path / "killed")
    losses = {0: 0.0, 1: 0.5, 2: 1.0, 3: -1.5, 4: -2.0, 5: -2.5}
    table = read(folder)
    assert table.query("metric == 'loss'").set_index("step")["value"].to_dict() == losses
    assert table.query("metric == 'latest'")["value"].tolist() == [5.0]
    assert read_events(folder)["message"].tolist() == ["first"] * 3 + ["again"] * 3
    assert (info(folder).status, is_open(folder)) == ("running", False)
    with open_run(folder, kind="train", config={"depth": 2}) as run:
        run.add(6, "loss", 3.0)
    assert read(folder).query("metric == 'loss'").set_index("step")["value"].to_dict() == {**losses, 6: 3.0}
    assert len(info(folder).resumed) == 2
    assert not (folder / "run.lock").exists()
