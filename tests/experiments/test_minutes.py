"""`reproduce` with a limit: whole pieces in each call, the same result in the end, and told what is left."""

import json
import shutil
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiments.fakes import Config, draw, fake, fake_in_pieces, walked_so_far
from joma import cli
from joma.experiments import measured_times, record, registry, timetable
from joma.experiments.keeping import keep
from joma.experiments.publication import published
from joma.experiments.record import Status
from joma.experiments.reproduction import charts_of, reproduce
from joma.page.report import report
from joma.verdicts import Outcome

FORMATS = ("png", "pdf", "svg")
WALKS = Config(num_steps=3, seeds=(3, 4, 5, 6), pause=10.0)
"""Four pieces of 30 s each: of 60 s while nothing is known of them, of 30 s afterwards."""


@pytest.fixture
def clock(monkeypatch):
    """A clock that sleeping turns, and nothing else."""
    now = [0.0]
    monkeypatch.setattr(timetable, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def broken(*_):
    raise KeyError("no such column")


def lend_a_gpu(patch):
    """Make everything look as if a GPU had done it."""
    patch.setattr("joma.experiments.reproduction.device_label", lambda device: "cuda (a lent GPU)")
    patch.setattr(timetable, "_was_on_a_gpu", lambda allocated: True)


def tables(out):
    return {path.relative_to(out): path.read_bytes() for path in out.glob("*/tables/*")}


def test_calls_with_a_limit_end_in_time_and_come_to_the_same(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS, draw=draw), fake("b", Config(num_steps=2)))
    reproduce(out=tmp_path / "whole", device="cpu")
    out, left = tmp_path / "parts", []
    while True:
        begun = clock[0]
        done = reproduce(out=out, device="cpu", minutes=1.4)
        assert clock[0] - begun <= 84 and done.sound
        first, second = done.experiments
        assert second.status is Status.DONE  # what fits goes on whatever becomes of the first
        if first.status is Status.DONE:
            break
        left.append((first.reason, first.advice))
    assert left == [("2 of 4 walks left.", "That takes about 1 min 0 s: run the same command again.")]
    assert tables(out) == tables(tmp_path / "whole") and tables(out)
    whole = record.read(tmp_path / "whole").verdicts
    assert done.verdicts == whole


def test_an_unfinished_experiment_has_a_record_and_no_result(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS), fake("b", Config(num_steps=2)))
    first, _ = reproduce(out=tmp_path, device="cpu", minutes=1.4).experiments
    assert first.status is Status.UNFINISHED and first.sound and first.tables == () == first.charts
    assert [verdict.outcome for verdict in first.verdicts] == [Outcome.NOT_RUN]
    assert first.verdicts[0].explanation == first.reason == "2 of 4 walks left."
    assert record.read(tmp_path).experiments[0] == first
    assert json.loads((tmp_path / "a/result.json").read_text())["status"] == "unfinished"
    page = report(tmp_path).read_text(encoding="utf8")
    assert first.reason in page and first.advice not in page and "1 min 0 s" not in page


def test_what_is_finished_is_shown_as_a_part(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS, draw=draw, so_far=walked_so_far))
    [part] = reproduce(out=tmp_path, device="cpu", minutes=1.4).experiments
    assert part.status is Status.UNFINISHED and part.part == "2 of 4 walks" and part.sound
    assert part.notes == ("The other 2 have not set out.",)
    [verdict] = part.verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE and verdict.explanation == "So far 2 of 4 walks are done."
    assert verdict.evidence[0].holds  # what was measured stays, though it decides nothing
    assert published(tmp_path / "a").tables["walk"]["seed"].unique().tolist() == [3, 4]
    assert record.read(tmp_path).experiments == (part,)
    [chart] = charts_of(tmp_path, "a")
    assert chart.title == "A walk (unfinished: 2 of 4 walks)" and len(chart.panels[0].items) == 2
    assert {path.name for path in (tmp_path / "a/figures").iterdir()} == {f"walk.{kind}" for kind in FORMATS}
    about = json.loads((tmp_path / "a/result.json").read_text())
    assert about["versions"] and about["computed"] and about["seconds"] == part.seconds


def test_the_whole_takes_the_place_of_the_part(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS, draw=draw, so_far=walked_so_far))
    reproduce(out=tmp_path, device="cpu", minutes=1.4)
    [whole] = reproduce(out=tmp_path, device="cpu", minutes=1.4).experiments
    assert whole.status is Status.DONE and whole.part == "" and whole.notes == ()
    assert [verdict.outcome for verdict in whole.verdicts] == [Outcome.HOLDS]
    assert [chart.title for chart in charts_of(tmp_path, "a")] == ["A walk"]
    assert len(published(tmp_path / "a").tables["walk"]) == 12


def test_before_anything_is_finished_nothing_is_shown(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS, draw=broken, so_far=walked_so_far))
    [left] = reproduce(out=tmp_path, device="cpu", minutes=0.01).experiments
    assert left.status is Status.UNFINISHED and left.part == "" and left.notes == () == left.charts
    assert [verdict.outcome for verdict in left.verdicts] == [Outcome.NOT_RUN]


@pytest.mark.parametrize("breaks", ["so_far", "draw", "verdicts"])
def test_a_part_that_cannot_be_shown_is_a_fault_of_ours_and_the_work_goes_on(tmp_path, install, clock, breaks):
    install(fake_in_pieces("a", WALKS, **{"so_far": walked_so_far, breaks: broken}))
    [left] = reproduce(out=tmp_path, device="cpu", minutes=1.4).experiments
    assert left.status is Status.UNFINISHED and not left.sound and left.part == "" and left.tables == () == left.charts
    assert left.reason.startswith("2 of 4 walks left")
    assert [verdict.outcome for verdict in left.verdicts] == [Outcome.NOT_RUN]
    [note] = left.notes
    assert note.startswith("What is finished could not be shown: KeyError: 'no such column' (traceback in ")
    assert "no such column" in (tmp_path / "a/error.txt").read_text()
    install(fake_in_pieces("a", WALKS))
    assert reproduce(out=tmp_path, device="cpu").experiments[0].status is Status.DONE
    assert not (tmp_path / "a/error.txt").exists()


def test_times_are_remembered_from_call_to_call(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS))
    reproduce(out=tmp_path, device="cpu", minutes=1.1)  # for the first 60 s are feared, for the second 30 known
    assert json.loads((tmp_path / "times.json").read_text()) == {"cpu": {"a": {"walks": [[30.0, 30.0]] * 2}}}
    begun = clock[0]
    [found] = reproduce(out=tmp_path, device="cpu", minutes=0.6).experiments
    assert clock[0] - begun == 30 and found.reason == "1 of 4 walks left."
    assert found.advice == "That takes about 30 s: run the same command again."


def test_a_limit_that_allows_nothing_says_what_would_do(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS), fake("b", WALKS))
    done = reproduce(out=tmp_path, device="cpu", minutes=0.01)
    assert clock[0] == 0 and not list(tmp_path.glob("*/kept/*")) and done.sound
    pieces, whole = done.experiments
    assert (pieces.reason, whole.reason) == ("4 of 4 walks left.", "All of it left.")
    assert pieces.advice == (
        "That takes about 4 min 0 s: run the same command again with --minutes 2 or more, since the longest takes "
        "about 1 min 0 s in one piece and a call has 1 s."
    )
    assert whole.advice.startswith("That takes about 2 s: run the same command again with --minutes 1 or more")


def test_an_experiment_without_pieces_is_begun_only_if_it_ends_in_time(tmp_path, install, clock, monkeypatch):
    install(fake("a", Config(num_steps=2)))
    monkeypatch.setitem(registry.SECONDS["quick"], "a", 40)
    [found] = reproduce(out=tmp_path, device="cpu", minutes=1).experiments
    assert found.status is Status.UNFINISHED
    [found] = reproduce(out=tmp_path, device="cpu", minutes=2).experiments
    assert found.status is Status.DONE and found.reason == "" == found.advice


def test_what_is_kept_needs_no_time(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS))
    [whole] = reproduce(out=tmp_path, device="cpu").experiments
    assert reproduce(out=tmp_path, device="cpu", minutes=0.001).experiments == (whole,)


def test_the_device_that_computed_is_told_and_not_the_one_that_drew(tmp_path, install, clock, monkeypatch):
    install(fake_in_pieces("a", WALKS, draw=broken), fake("b", Config(num_steps=2)))
    with monkeypatch.context() as patch:
        lend_a_gpu(patch)
        failed, whole = reproduce(out=tmp_path, device="cpu").experiments
    assert failed.status is Status.FAILED and whole.device == "cuda (a lent GPU)"
    for kept in (tmp_path / "a/kept").iterdir():
        shutil.rmtree(kept)
    install(fake_in_pieces("a", WALKS), fake("b", Config(num_steps=2)))
    finished, whole = reproduce(out=tmp_path, device="cpu").experiments
    assert finished.status is Status.DONE and finished.device == whole.device == "cuda (a lent GPU)"


def test_pieces_of_two_devices_are_both_told(tmp_path, install, clock, monkeypatch):
    install(fake_in_pieces("a", WALKS))
    with monkeypatch.context() as patch:
        lend_a_gpu(patch)
        reproduce(out=tmp_path, device="cpu", minutes=1.4)
    [found] = reproduce(out=tmp_path, device="cpu").experiments
    assert found.device == "cuda (a lent GPU) and cpu"
    assert measured_times.device_label("cpu") == "cpu"


def test_what_leaves_the_gpu_alone_was_computed_on_the_cpu(tmp_path, install, monkeypatch):
    install(fake("a", Config(num_steps=2)))
    monkeypatch.setattr("joma.experiments.reproduction.device_label", lambda device: "cuda (a lent GPU)")
    assert reproduce(out=tmp_path, device="cpu").experiments[0].device == "cpu"


def test_the_time_left_of_a_call_is_no_more_than_its_limit(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS), *(fake(name, WALKS) for name in "bcd"))
    seen = []
    reproduce(out=tmp_path, device="cpu", minutes=1.4, progress=seen.append)
    assert all(84 >= at.total_seconds_left >= at.seconds_left >= 0 for at in seen)


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_minutes_that_are_none_are_refused_before_anything_is_written(tmp_path, minutes):
    with pytest.raises(ValueError, match="`minutes` must be"):
        reproduce(out=tmp_path / "new", device="cpu", minutes=minutes)
    assert not (tmp_path / "new").exists()


def test_the_command_says_what_is_left_and_what_to_do(tmp_path, install, clock, monkeypatch):
    install(fake_in_pieces("a", WALKS), fake("b", Config(num_steps=2)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    call = ["reproduce", "--device", "cpu", "--minutes", "1.4"]
    first = CliRunner().invoke(cli.app, call)
    assert first.exit_code == 0
    assert "a unfinished: 2 of 4 walks left. That takes about 1 min 0 s: run the same command again." in first.stdout
    assert "Experiments: 1 unfinished, 1 done" in first.stdout
    assert "Not all is done. Run the same command again, where nothing is missing, to go on with a." in first.stdout
    [row] = [line for line in first.stdout.splitlines() if line.startswith("│ a ")]
    assert "unfinished" in row
    second = CliRunner().invoke(cli.app, call)
    assert second.exit_code == 0 and "2 done" in second.stdout and "Not all is done" not in second.stdout


def test_the_command_shows_the_part_with_its_label(tmp_path, install, clock, monkeypatch):
    install(fake_in_pieces("a", WALKS, so_far=walked_so_far), fake("b", Config(num_steps=2)))
    monkeypatch.setenv("COLUMNS", "160")
    call = ["reproduce", "--device", "cpu", "--minutes", "1.4", "--out", str(tmp_path)]
    shown = CliRunner().invoke(cli.app, call).stdout
    [row] = [line for line in shown.splitlines() if line.startswith("│ a ")]
    assert "The walk stays near" in row and "unfinished: 2 of 4 walks" in row and "≤ 100" in row
    assert "1 verdict: 1 holds" in shown and "Not all is done" in shown  # what is unfinished is not counted


def test_a_damaged_result_of_pieces_is_put_together_again(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS))
    [whole] = reproduce(out=tmp_path, device="cpu").experiments
    next((tmp_path / "a/kept").iterdir()).joinpath("walk.parquet").write_bytes(b"nonsense")
    begun = clock[0]
    [again] = reproduce(out=tmp_path, device="cpu").experiments
    assert clock[0] == begun and again.verdicts == whole.verdicts and replace(again, notes=()).status is Status.DONE


def test_what_was_begun_elsewhere_is_shown_where_it_cannot_go_on(tmp_path, install, clock):
    """As for figures that need a GPU, on the machine that the finished part was brought to."""
    lacking = "It needs a GPU."
    install(fake_in_pieces("a", WALKS, draw=draw, so_far=walked_so_far))
    [begun] = reproduce(out=tmp_path, device="cpu", minutes=1.4).experiments
    install(fake_in_pieces("a", WALKS, draw=draw, so_far=walked_so_far, missing=lambda config, place: lacking))
    [shown] = reproduce(out=tmp_path, device="cpu").experiments
    assert begun.status is shown.status is Status.UNFINISHED
    assert (shown.reason, shown.advice) == (lacking, "")  # and none of what the call said that ran out of time
    assert shown.part == begun.part and shown.charts == begun.charts
    call = ["reproduce", "--device", "cpu", "--out", str(tmp_path)]
    said = CliRunner().invoke(cli.app, call).stdout
    assert f"a unfinished: {lacking}" in said and "where nothing is missing, to go on with a." in said
    [elsewhere] = reproduce(out=tmp_path / "new", device="cpu").experiments
    assert elsewhere.status is Status.NOT_RUN and elsewhere.reason == lacking


SILLY = "67 of 91 packs left, about 6 d 20 h: run the same command again with --minutes 248 or more, a call has 6 s."
"""What one sentence was before, by a call that was too short, on a device that was too slow."""


def as_written_before(out, told):
    """Make the summary one of before: an unfinished experiment has all that was told as its reason, and no advice."""
    path = out / record.FILE_NAME
    summary = json.loads(path.read_text(encoding="utf8"))
    for row in summary["experiments"]:
        del row["advice"]
        if row["status"] == "unfinished":
            row["reason"] = told
            row["verdicts"] = [
                {**each, "explanation": told} if each["outcome"] == "not run" else each for each in row["verdicts"]
            ]
    path.write_text(json.dumps(summary), encoding="utf8")


def test_a_record_of_before_is_read_and_tells_readers_nothing_of_its_call(tmp_path, install, clock):
    install(
        fake_in_pieces("a", WALKS),
        fake_in_pieces("b", WALKS, draw=draw, so_far=walked_so_far),
        fake("c", Config(num_steps=2), missing=lambda config, place: "It needs a GPU."),
    )
    out = tmp_path / "out"
    reproduce("a", out=out, device="cpu", minutes=0.01)
    reproduce("b", out=out, device="cpu", minutes=1.4)
    as_written_before(out, SILLY)
    reproduce("c", out=out, device="cpu")  # which takes the others over as they were
    bare, part, lacking = record.read(out).experiments
    assert (bare.reason, bare.advice) == (part.reason, part.advice) == (record.NOT_ALL, SILLY)
    assert (lacking.reason, lacking.advice) == ("It needs a GPU.", "")
    assert bare.verdicts[0].explanation == bare.reason and part.part == "2 of 4 walks"
    page = report(out).read_text(encoding="utf8")
    keep(out, tmp_path)
    document = (tmp_path / "docs/results.md").read_text(encoding="utf8")
    for text in (page, document):
        assert record.NOT_ALL in text and "It needs a GPU." in text
        assert "6 d 20 h" not in text and "--minutes" not in text and "91 packs" not in text
    assert f"Done are {part.part}; the others have not been computed yet." in page


def test_documents_tell_what_is_left_and_no_estimate(tmp_path, install, clock):
    install(fake_in_pieces("a", WALKS), fake_in_pieces("b", WALKS, draw=draw, so_far=walked_so_far))
    reproduce("a", out=tmp_path / "out", device="cpu", minutes=0.01)
    reproduce("b", out=tmp_path / "out", device="cpu", minutes=1.4)
    keep(tmp_path / "out", tmp_path)
    document = (tmp_path / "docs/results.md").read_text(encoding="utf8")
    assert "4 of 4 walks left." in document
    assert "That takes" not in document and "--minutes" not in document and "4 min 0 s" not in document
