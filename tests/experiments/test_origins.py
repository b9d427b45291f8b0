"""A result says which software it comes from, all of it: whoever did its pieces and whoever put it together."""

import json
import re
import time

import pytest

from experiments.fakes import Config, fake, fake_in_pieces
from joma.experiments import cache, documents, timetable
from joma.experiments.origins import Origin, commits, commits_with_work, told
from joma.experiments.record import Status
from joma.experiments.reproduction import reproduce
from joma.experiments.work_log import WorkLog
from joma.page.report import report

ON_A_GPU, AT_HOME = "a" * 40, "b" * 40
"""Commits."""
WALKS = Config(num_steps=3, seeds=(3, 4, 5, 6), pause=10.0)
"""Four pieces, of which 84 s have room for two, while nothing is known of them."""


@pytest.fixture
def software(install, monkeypatch):
    """A function that makes this process another software; sleeping takes no time."""
    now = [0.0]
    monkeypatch.setattr(timetable, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def become(commit, **versions):
        monkeypatch.setattr("joma.store.record.git_commit", lambda: commit)
        monkeypatch.setattr("joma.store.record.versions", lambda: versions)

    return become


def record_of(out):
    return json.loads((out / "a/result.json").read_text())


def in_two_calls(out, software, install, second):
    """Do half of the pieces with one software and the rest with another."""
    install(fake_in_pieces("a", WALKS))
    software(ON_A_GPU, joma="0.1", torch="2.9")
    [left] = reproduce(out=out, device="cpu", minutes=1.4).experiments
    assert left.status is Status.UNFINISHED
    software(*second[:1], **second[1])
    [done] = reproduce(out=out, device="cpu").experiments
    assert done.status is Status.DONE
    return record_of(out)


def test_pieces_of_two_softwares_are_told_apart(tmp_path, software, install):
    found = in_two_calls(tmp_path, software, install, (AT_HOME, {"joma": "0.1", "torch": "2.8", "triton": "3.0"}))
    assert found["versions"] == {"joma": "0.1", "torch": "2.9 and 2.8", "triton": "none and 3.0"}
    assert found["git_commit"] == f"{ON_A_GPU} and {AT_HOME}"
    assert found["origins"] == [
        {"versions": {"joma": "0.1", "torch": "2.9"}, "git_commit": ON_A_GPU, "pieces": {"cpu": {"walks": 2}}},
        {
            "versions": {"joma": "0.1", "torch": "2.8", "triton": "3.0"},
            "git_commit": AT_HOME,
            "pieces": {"cpu": {"walks": 2}},
        },
    ]
    page = report(tmp_path).read_text(encoding="utf8")
    assert "2.9 and 2.8" in page and f"{ON_A_GPU} and {AT_HOME}" in page


def test_one_software_in_two_calls_is_one(tmp_path, software, install):
    found = in_two_calls(tmp_path, software, install, (ON_A_GPU, {"joma": "0.1", "torch": "2.9"}))
    assert (found["versions"], found["git_commit"]) == ({"joma": "0.1", "torch": "2.9"}, ON_A_GPU)
    assert "origins" not in found


def damage_what_is_kept(out):
    [kept] = (out / "a/kept").iterdir()
    (kept / cache.FILE_NAME).write_text("damaged")


def test_whoever_only_puts_the_pieces_together_is_named_with_no_pieces(tmp_path, software, install):
    install(fake_in_pieces("a", WALKS))
    software(ON_A_GPU, joma="0.1")
    reproduce(out=tmp_path, device="cpu")
    damage_what_is_kept(tmp_path)
    software(AT_HOME, joma="0.2")
    reproduce(out=tmp_path, device="cpu")
    assert [each["pieces"] for each in record_of(tmp_path)["origins"]] == [{"cpu": {"walks": 4}}, {}]


def test_a_call_that_had_no_time_for_a_piece_is_not_named(tmp_path, software, install):
    install(fake_in_pieces("a", WALKS))
    software(AT_HOME, joma="0.1")
    reproduce(out=tmp_path, device="cpu", minutes=0.01)
    software(ON_A_GPU, joma="0.1")
    reproduce(out=tmp_path, device="cpu")
    assert record_of(tmp_path)["git_commit"] == ON_A_GPU


def test_a_result_that_is_computed_again_whole_is_of_the_last_software_alone(tmp_path, software, install):
    install(fake("a"))
    software(ON_A_GPU, joma="0.1")
    reproduce(out=tmp_path, device="cpu")
    damage_what_is_kept(tmp_path)
    software(AT_HOME, joma="0.1")
    reproduce(out=tmp_path, device="cpu")
    assert record_of(tmp_path)["git_commit"] == AT_HOME and "origins" not in record_of(tmp_path)


def test_pieces_of_a_log_that_does_not_say_whose_they_are_have_an_unknown_origin(tmp_path, software):
    path = tmp_path / "log.json"
    path.write_text('{"seconds": 12.5, "weight": 3.0, "pieces": {"cuda (a GPU)": {"packs": 3}}}')
    software(AT_HOME, torch="2.9")
    log = WorkLog(path)
    assert log.num_done("packs") == 3 and log.devices == ("cuda (a GPU)",) and log.weight == 3.0
    log.add("packs", "cpu", 1.0)
    again = WorkLog(path)
    assert again.num_done("packs") == 4 and again.devices == ("cuda (a GPU)", "cpu")
    found = told(again.origins)
    assert found["versions"] == {"torch": "unknown and 2.9"} and found["git_commit"] == f"unknown and {AT_HOME}"


def test_a_piece_that_was_not_finished_counts_as_work(tmp_path, software):
    def stop(tell):
        raise KeyboardInterrupt

    software(ON_A_GPU, torch="2.9")
    log = WorkLog(tmp_path / "log.json")
    with pytest.raises(KeyboardInterrupt):
        timetable.Timetable(log=log).work_off(
            [timetable.Piece(kind="packs", seconds=1.0, work=stop)], lambda share, doing: None
        )
    log.save()
    assert WorkLog(tmp_path / "log.json").origins == [Origin(versions={"torch": "2.9"}, git_commit=ON_A_GPU)]


def test_the_document_names_every_commit_in_short(tmp_path, software, install):
    in_two_calls(tmp_path / "results", software, install, (AT_HOME, {"joma": "0.1"}))
    assert re.search(r"at commits aaaaaaa \([^)]+\) and bbbbbbb \([^)]+\)", documents.results(tmp_path))
    assert commits({"git_commit": AT_HOME}, 7) == ["b" * 7]


def test_commits_are_named_with_what_each_did_whatever_device_it_did_it_on():
    both = {"a GPU": {"packs": 2, "trainings": 1}, "cpu": {"packs": 3}}
    origins = [
        Origin(git_commit=ON_A_GPU, pieces=both),
        Origin(pieces={"cpu": {"packs": 1}}),
        Origin(git_commit=AT_HOME),
    ]
    again = Origin(git_commit=ON_A_GPU, versions={"torch": "2.9"}, pieces={"cpu": {"packs": 4}})
    assert commits_with_work(told([*origins, again]), 7) == [
        "aaaaaaa (packs: 9, trainings: 1)", "unknown (packs: 1)", "bbbbbbb (put together)",
    ]  # fmt: skip
    assert commits_with_work(told(origins[:1]), 7) == ["aaaaaaa"] and commits_with_work({}, 7) == []


def test_without_any_commit_none_is_named():
    assert told([Origin(versions={"torch": "2.9"}), Origin(versions={"torch": "2.8"})])["git_commit"] is None
