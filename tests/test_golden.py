"""The kept results give the numbers of version 0.1, except for the changes that `golden/changes.toml` lists."""

import math
import subprocess
import sys
import tomllib

import pytest
from golden.compare_quick import differences as quick_differences
from golden.read import GOLDEN, kept_files, kept_numbers, load, same

RELATIVE = 1e-9
EMPTY = {"changed": [], "renamed": [], "gone": [], "file": []}


def changes() -> dict[str, list[dict]]:
    return EMPTY | tomllib.loads((GOLDEN / "changes.toml").read_text())


def matches(pattern: list[str], key: tuple) -> bool:
    return all(part in ("*", name) for part, name in zip(pattern, key, strict=True))


def differences(golden: dict, now: dict, listed: dict) -> list[str]:
    """Return what changed without being listed, and what is listed without having changed."""
    found, used = [], set()
    changed = {(tuple(entry["key"]), entry["field"]): entry for entry in listed["changed"]}
    for key, fields in golden.items():
        new_key = key
        for entry in listed["renamed"]:
            if matches(entry["old"], key):
                new_key = tuple(old if new == "*" else new for old, new in zip(key, entry["new"], strict=True))
                used.add(id(entry))
        gone = [entry for entry in listed["gone"] if matches(entry["key"], key)]
        if new_key not in now:
            used.update(map(id, gone))
            found += [f"{key} is gone"] * (not gone)
            continue
        found += [f"{key} is listed as gone and is still there"] * bool(gone)
        for field, old in fields.items():
            new, entry = now[new_key].get(field), changed.get((key, field))
            if entry and same(entry["old"], old, RELATIVE) and same(entry["new"], new, RELATIVE):
                used.add(id(entry))
            elif not same(old, new, RELATIVE):
                found.append(f"{key} {field}: {old} became {new}")
    entries = [entry for kind in ("changed", "renamed", "gone") for entry in listed[kind]]
    idle = [entry for entry in entries if id(entry) not in used]
    same_value = [entry for entry in listed["changed"] if same(entry["old"], entry["new"], RELATIVE)]
    return found + [f"listed and did not happen: {entry}" for entry in [*idle, *same_value]]


def test_kept_numbers_are_those_of_version_0_1_or_listed():
    found = differences(load("numbers.json"), kept_numbers(), changes())
    assert not found, "\n".join(found)


def test_kept_files_are_those_of_version_0_1_or_listed():
    golden, now = load("files.json"), kept_files()
    changed = {path for (path,), fields in golden.items() if now.get((path,)) != fields}
    assert changed == {entry["path"] for entry in changes()["file"]}


def test_every_change_has_its_reason():
    assert all(entry["reason"].strip() for entries in changes().values() for entry in entries)


@pytest.mark.slow
def test_two_cheap_experiments_give_the_numbers_of_version_0_1(tmp_path):
    """As a user runs them, from the command to the files; `golden/compare_quick.py` compares all of preset quick."""
    ids = ["figure1", "figure4"]
    command = [sys.executable, "-m", "joma", "reproduce", *ids, "--preset", "quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    found = quick_differences(tmp_path, ids)
    assert not found, "\n".join(found)


def one(value: object, key: tuple = ("a", "b", "c")) -> dict:
    return {key: {"value": value, "control": None}}


CHANGED = {"key": ["a", "b", "c"], "field": "value", "old": 1.0, "new": 2.0}
RENAMED = {"old": ["a", "*", "*"], "new": ["d", "*", "*"]}
GONE = {"key": ["a", "b", "*"]}


@pytest.mark.parametrize(
    ("now", "listed", "agree"),
    [
        (one(1.0), {}, True),
        (one(1.0) | one(3.0, ("x", "y", "z")), {}, True),  # what is new needs no entry
        (one(1 + 1e-12), {}, True),
        (one(2.0), {}, False),
        (one(math.nan), {}, False),
        ({}, {}, False),
        (one(2.0), {"changed": [CHANGED]}, True),
        (one(3.0), {"changed": [CHANGED]}, False),
        (one(1.0), {"changed": [CHANGED]}, False),
        (one(1.0, ("d", "b", "c")), {"renamed": [RENAMED]}, True),
        (one(2.0, ("d", "b", "c")), {"renamed": [RENAMED]}, False),
        (one(2.0, ("d", "b", "c")), {"renamed": [RENAMED], "changed": [CHANGED]}, True),
        (one(1.0), {"renamed": [RENAMED]}, False),
        ({}, {"gone": [GONE]}, True),
        (one(1.0), {"gone": [GONE]}, False),
        (one(1.0), {"gone": [{"key": ["x", "*", "*"]}]}, False),
    ],
)
def test_only_listed_changes_pass(now, listed, agree):
    assert (differences(one(1.0), now, EMPTY | listed) == []) is agree
