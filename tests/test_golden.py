"""The kept results give the numbers of version 0.1, except for the changes that `golden/changes.toml` lists.

Names of numbers are words and may change. A number counts as kept if its claim still has one of the same value, and,
where both have one, of the same threshold and control.
"""

import tomllib
from fnmatch import fnmatchcase

import pytest
from golden.read import GOLDEN, kept_files, kept_numbers, kept_outcomes, load, same

RELATIVE = 1e-9
CHANGES = tomllib.loads((GOLDEN / "changes.toml").read_text())


def is_kept(old: dict, numbers: list[dict]) -> bool:
    """Whether one of the numbers is the golden one."""

    def agrees(new: dict, field: str) -> bool:
        missing = new[field] is None or old.get(field) is None
        return missing or same(float(old[field]), float(new[field]), RELATIVE, 1e-12)

    return any(
        same(float(old["value"]), float(new["value"]), RELATIVE, 1e-12)
        and agrees(new, "threshold")
        and agrees(new, "control")
        for new in numbers
    )


def lost(golden: dict, now: dict[str, list[dict]]) -> set[tuple[str, str]]:
    """Return claim and name of the golden numbers that are not kept."""
    numbers = {key: fields for key, fields in golden.items() if key[1] != "facts" and key[2] != "outcome"}
    return {(claim, name) for (_, claim, name), old in numbers.items() if not is_kept(old, now.get(claim, []))}


def test_numbers_are_those_of_version_0_1_or_listed():
    found = lost(load("numbers.json"), kept_numbers())
    listed = [(entry["claim"], entry["name"]) for entry in CHANGES["number"]]
    unlisted = {
        key for key in found if not any(key[0] == claim and fnmatchcase(key[1], name) for claim, name in listed)
    }
    idle = [each for each in listed if not any(key[0] == each[0] and fnmatchcase(key[1], each[1]) for key in found)]
    assert not unlisted, "changed without being listed:\n" + "\n".join(map(str, sorted(unlisted)))
    assert not idle, f"listed and did not happen: {idle}"


def test_outcomes_are_those_that_are_listed():
    golden = {key[1]: fields["value"] for key, fields in load("numbers.json").items() if key[2] == "outcome"}
    listed = {entry["claim"]: (entry["old"], entry["new"]) for entry in CHANGES["outcome"]}
    now = kept_outcomes()
    changed = {claim: (old, now.get(claim, "gone")) for claim, old in golden.items() if now.get(claim, "gone") != old}
    assert changed == listed


def test_tables_are_those_of_version_0_1_or_listed_as_dropped():
    golden, now = load("files.json"), {fields["sha256"] for fields in kept_files().values()}
    gone = {path for (path,), fields in golden.items() if fields["sha256"] not in now}
    assert gone == {entry["path"] for entry in CHANGES["file"]}


def test_every_change_has_its_reason():
    assert all(entry["reason"].strip() for entries in CHANGES.values() for entry in entries)


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        ({"value": 1.0, "threshold": 2.0, "control": None}, True),
        ({"value": 1.0, "threshold": None, "control": None}, True),
        ({"value": 1.1, "threshold": 2.0, "control": None}, False),
        ({"value": 1.0, "threshold": 3.0, "control": None}, False),
        ({"value": 1.0, "threshold": 2.0, "control": 9.0}, False),
    ],
)
def test_a_change_of_value_threshold_or_control_is_seen(new, kept):
    golden = {("e", "c", "n"): {"value": 1.0, "threshold": 2.0, "control": 5.0}}
    assert (lost(golden, {"c": [new]}) == set()) is kept
