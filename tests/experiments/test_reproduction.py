"""A reproduction runs what it can, says what it cannot, and goes on where it stopped."""

import json
import random
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from store.mortality import orders

from experiments.fakes import Config, compute_in_pieces, draw, fake, fake_in_pieces, verdicts
from joma.experiments import cache, figures2_3, record
from joma.experiments.experiment import FAILURE, Result
from joma.experiments.record import Record, Status
from joma.experiments.reproduction import available, charts_of, reproduce
from joma.experiments.timetable import OutOfTime
from joma.store.lock import Lock, RunLockedError
from joma.verdicts import Outcome

NUM_KILLS = 12


def broken(*_):
    raise KeyError("no such column")


def unsound(result, config):
    return tuple(replace(verdict, sound=False) for verdict in verdicts(result, config))


def test_everything_lies_where_the_layout_says(tmp_path, install):
    install(fake("a", draw=draw), fake("b"))
    done = reproduce(out=tmp_path, device="cpu")
    assert [each.status for each in done.experiments] == [Status.DONE, Status.DONE] and done.sound
    files = {path.name for path in (tmp_path / "a").rglob("*") if path.parent.name in ("a", "tables", "figures")}
    named = {"walk.parquet", "walk.csv", "walk.png", "walk.pdf", "walk.svg", "result.json"}
    assert named | {"tables", "figures", "kept", "work"} == files
    found = json.loads((tmp_path / "a/result.json").read_text())
    assert found["seeds"] == [3, 4] and found["config"]["num_steps"] == 5 and found["seconds"] > 0
    assert found["versions"]["joma"] and found["git_commit"] is None and found["computed"]
    assert found["facts"]["lost"] == {"float": "nan"}
    csv, parquet = pd.read_csv(tmp_path / "a/tables/walk.csv"), pd.read_parquet(tmp_path / "a/tables/walk.parquet")
    pd.testing.assert_frame_equal(csv, parquet)


def test_the_summary_comes_back(tmp_path, install):
    install(fake("a", draw=draw), fake("b", compute=broken), fake("c", missing=lambda config, place: "Needs a moon."))
    done = reproduce(out=tmp_path, device="cpu")
    assert record.read(tmp_path) == done
    [chart] = charts_of(tmp_path, "a")
    assert chart.id == "walk"
    summary = json.loads((tmp_path / "reproduction.json").read_text())
    assert set(summary) == {"preset", "started", "seconds", "experiments"}
    assert [each["status"] for each in summary["experiments"]] == ["done", "failed", "not run"]
    assert summary["experiments"][0]["verdicts"][0]["evidence"][0]["published"] == 0.5


@pytest.mark.parametrize("text", ["{", "[]", '{"preset": "quick"}', '{"experiments": [1]}'])
def test_what_is_no_summary_is_refused_and_then_replaced(tmp_path, install, text):
    (tmp_path / "reproduction.json").write_text(text)
    with pytest.raises(ValueError, match="is no summary of `joma reproduce`"):
        record.read(tmp_path)
    install(fake("a"))
    assert record.read(reproduce(out=tmp_path, device="cpu").folder).sound
    with pytest.raises(FileNotFoundError, match=r"has no reproduction\.json"):
        record.read(tmp_path / "a")


def test_an_experiment_that_cannot_run_here_says_so_and_the_rest_goes_on(tmp_path, install):
    install(fake("a", missing=lambda config, place: "Needs a GPU, and there is none.", compute=broken), fake("b"))
    first, second = reproduce(out=tmp_path, device="cpu").experiments
    assert first.status is Status.NOT_RUN and first.sound and second.status is Status.DONE
    [verdict] = first.verdicts
    assert (
        verdict.outcome is Outcome.NOT_RUN and verdict.explanation == first.reason == "Needs a GPU, and there is none."
    )


def test_a_kept_result_is_used_where_the_experiment_could_not_run(tmp_path, install):
    install(fake("a"))
    reproduce(out=tmp_path, device="cpu")
    install(fake("a", missing=lambda config, place: "Needs a GPU."))
    [found] = reproduce(out=tmp_path, device="cpu").experiments
    assert found.status is Status.DONE


@pytest.mark.parametrize("part", ["compute", "draw", "verdicts", "missing"])
def test_an_exception_is_recorded_and_the_rest_goes_on(tmp_path, install, part):
    install(fake("a", **{part: broken}), fake("b"))
    done = reproduce(out=tmp_path, device="cpu")
    first, second = done.experiments
    assert first.status is Status.FAILED and second.status is Status.DONE and not done.sound
    assert first.reason.startswith("KeyError: 'no such column'")
    assert "no such column" in (tmp_path / "a/error.txt").read_text()
    install(fake("a"), fake("b"))
    assert reproduce(out=tmp_path, device="cpu").sound
    assert not (tmp_path / "a/error.txt").exists()


def test_a_module_that_cannot_be_imported_is_a_failure_of_one_experiment(tmp_path, install, monkeypatch):
    install(fake("a"), fake("b"))
    monkeypatch.delitem(sys.modules, "joma.experiments.fake_a")
    first, second = reproduce(out=tmp_path, device="cpu").experiments
    assert first.status is Status.FAILED and "No module named" in first.reason and second.status is Status.DONE


def test_a_failing_check_of_our_own_is_unsound_and_a_refuted_claim_is_not(tmp_path, install):
    def refuted(result, config):
        return tuple(replace(verdict, outcome=Outcome.REFUTED) for verdict in verdicts(result, config))

    install(fake("a", verdicts=refuted))
    assert reproduce(out=tmp_path / "refuted", device="cpu").sound
    install(fake("a", verdicts=unsound))
    assert not reproduce(out=tmp_path / "unsound", device="cpu").sound


def test_the_second_call_computes_nothing(tmp_path, install):
    install(fake("a"), fake("b"))
    first = reproduce(out=tmp_path, device="cpu")
    install(fake("a", compute=broken), fake("b", compute=broken))
    second = reproduce(out=tmp_path, device="cpu")
    assert second.experiments == first.experiments


def test_a_chart_is_drawn_again_only_when_it_changed_or_was_lost(tmp_path, install):
    install(fake("a", draw=draw))
    reproduce(out=tmp_path, device="cpu")
    picture, still = tmp_path / "a/figures/walk.png", tmp_path / "a/figures/walk.svg"
    picture.write_bytes(b"mark")
    reproduce(out=tmp_path, device="cpu")
    assert picture.read_bytes() == b"mark"
    still.unlink()
    reproduce(out=tmp_path, device="cpu")
    assert picture.read_bytes() != b"mark" and still.exists()
    picture.write_bytes(b"mark")
    install(fake("a", draw=lambda result: tuple(replace(chart, title="Another") for chart in draw(result))))
    reproduce(out=tmp_path, device="cpu")
    assert picture.read_bytes() != b"mark"


def test_other_settings_are_computed_anew_and_both_results_stay(tmp_path, install):
    install(fake("a"))
    reproduce(out=tmp_path, device="cpu")
    assert len(reproduce(out=tmp_path, preset="full", device="cpu").experiments[0].seeds) == 2
    assert len(list((tmp_path / "a/kept").iterdir())) == 2
    install(fake("a", compute=broken))
    assert reproduce(out=tmp_path, device="cpu").sound


def test_a_damaged_result_is_computed_again_and_said(tmp_path, install):
    install(fake("a"))
    [whole] = reproduce(out=tmp_path, device="cpu").experiments
    [kept] = (tmp_path / "a/kept").iterdir()
    (kept / "walk.parquet").write_bytes(b"nonsense")
    [again] = reproduce(out=tmp_path, device="cpu").experiments
    assert again.verdicts == whole.verdicts
    [note] = again.notes
    assert "is damaged" in note and "It was computed again." in note
    assert reproduce(out=tmp_path, device="cpu").experiments[0].notes == ()


def test_a_damaged_result_that_cannot_be_computed_here_is_not_said_to_be(tmp_path, install):
    install(fake("a"))
    reproduce(out=tmp_path, device="cpu")
    [kept] = (tmp_path / "a/kept").iterdir()
    (kept / "walk.parquet").write_bytes(b"nonsense")
    install(fake("a", missing=lambda config, place: "It needs a GPU."))
    [record] = reproduce(out=tmp_path, device="cpu").experiments
    [note] = record.notes
    assert record.reason == "It needs a GPU." and "is damaged" in note and "computed again" not in note


def with_a_gap(config, place):
    """Walk, and say that a part of it could not be had."""
    walked = compute_in_pieces(config, place)
    return replace(walked, facts=walked.facts | {f"{FAILURE}moon": "It is behind a cloud."})


def test_a_result_in_which_something_failed_is_shown_and_tried_again_until_nothing_does(tmp_path, install):
    log = tmp_path / "log"
    config = Config(log=str(log))
    install(fake_in_pieces("a", config, compute=with_a_gap))
    first, second = (reproduce(out=tmp_path / "out", device="cpu") for _ in range(2))
    install(fake_in_pieces("a", config))
    whole, kept = (reproduce(out=tmp_path / "out", device="cpu") for _ in range(2))
    assert all(each.sound and each.experiments[0].status is Status.DONE for each in (first, second, whole, kept))
    assert first.verdicts == whole.verdicts and kept.experiments == whole.experiments
    assert len(log.read_text().split()) == 3  # the whole result is kept
    [done] = (tmp_path / "out/a/work").glob("*.json")
    [origin] = json.loads(done.read_text())["origins"]
    assert origin["pieces"] == {"cpu": {"walks": 2}}  # what was finished is not done again


def test_a_result_in_which_something_failed_stays_where_it_cannot_be_tried_again(tmp_path, install):
    install(fake_in_pieces("a", compute=with_a_gap))
    [first] = reproduce(out=tmp_path, device="cpu").experiments

    def out_of_time(config, place):
        raise OutOfTime([("walks", 1, 2)], seconds=9.0, longest=9.0, limit=1.0)

    for changes, why in (
        ({"missing": lambda config, place: "It needs a clear sky."}, "It needs a clear sky."),
        ({"compute": out_of_time}, "the time of the call was not enough."),
    ):
        install(fake_in_pieces("a", **changes))
        [stays] = reproduce(out=tmp_path, device="cpu").experiments
        assert stays.notes == (f"What could not be had was not tried again: {why}",)
        assert replace(stays, notes=()) == first


def test_the_same_command_twice_gives_the_same_numbers_bit_for_bit(tmp_path, install):
    install(fake("a", Config(num_steps=30), draw=draw))
    for name in ("one", "two"):
        reproduce(out=tmp_path / name, device="cpu")
    one, two = (tmp_path / name / "a" for name in ("one", "two"))
    assert (one / "tables/walk.parquet").read_bytes() == (two / "tables/walk.parquet").read_bytes()
    for name in ("walk.png", "walk.svg", "walk.pdf"):
        assert (one / "figures" / name).read_bytes() == (two / "figures" / name).read_bytes()
    facts = [json.loads((folder / "result.json").read_text())["facts"] for folder in (one, two)]
    assert facts[0] == facts[1]


def test_a_real_training_twice_gives_the_same_numbers_bit_for_bit(tmp_path, install):
    config = figures2_3.Config(seeds=(0, 1), num_steps=80, num_reported=8)
    install(fake("a", config, compute=figures2_3.compute, verdicts=figures2_3.EXPERIMENT.verdicts))
    one, two = (reproduce(out=tmp_path / name, device="cpu") for name in ("one", "two"))
    assert one.verdicts == two.verdicts and one.experiments[0].status is Status.DONE
    tables = sorted((tmp_path / "one/a/tables").iterdir())
    assert tables
    for path in tables:
        assert path.read_bytes() == (tmp_path / "two/a/tables" / path.name).read_bytes()


def test_experiments_of_earlier_calls_stay_in_the_summary(tmp_path, install):
    install(fake("a"), fake("b"), fake("c"))
    reproduce("c", out=tmp_path, device="cpu")
    done = reproduce(["b"], out=tmp_path, device="cpu")
    assert [each.id for each in done.experiments] == ["b"]
    assert [each.id for each in record.read(tmp_path).experiments] == ["b", "c"]


def test_what_an_earlier_result_drew_is_taken_away(tmp_path, install):
    install(fake("a", draw=draw))
    reproduce(out=tmp_path, device="cpu")
    nothing = Result(tables={}, facts={})
    install(fake("a", Config(num_steps=2), compute=lambda config, place: nothing, verdicts=lambda result, config: ()))
    reproduce(out=tmp_path, device="cpu")
    assert not list((tmp_path / "a/tables").iterdir()) and not list((tmp_path / "a/figures").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": ["figur"]}, "There is no experiment named 'figur'"),
        ({"preset": "ful"}, r"There is no preset named 'ful'\. Did you mean 'full'\?"),
        ({"device": "gpu"}, "There is no device named 'gpu'"),
    ],
    ids=["experiment", "preset", "device"],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        reproduce(**{"device": "cpu"} | options, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_two_reproductions_do_not_share_a_folder(tmp_path, install):
    install(fake("a"))
    lock = Lock(tmp_path)
    with pytest.raises(RunLockedError, match="is writing to this folder"):
        reproduce(out=tmp_path, device="cpu")
    lock.release()
    assert reproduce(out=tmp_path, device="cpu").sound


def test_progress_covers_everything_and_never_goes_back(tmp_path, install):
    install(fake("a"), fake("b", missing=lambda config, place: "Needs a moon."), fake("c"))
    seen = []
    reproduce(out=tmp_path, device="cpu", progress=seen.append)
    assert [at.id for at in seen if at.share == 0 and not at.doing] == ["a", "b", "c"]
    assert seen[-1].num_done == 3 and seen[-1].id == "" and seen[-1].whole_share == 1
    assert all(at.total_seconds_left >= at.seconds_left >= 0 for at in seen)
    places = [(at.num_done, at.share) for at in seen]
    assert places == sorted(places)


def test_an_interrupt_leaves_what_was_finished(tmp_path, install):
    def interrupted(*_):
        raise KeyboardInterrupt

    install(fake("a"), fake("b", compute=interrupted))
    with pytest.raises(KeyboardInterrupt):
        reproduce(out=tmp_path, device="cpu")
    assert [each.id for each in record.read(tmp_path).experiments] == ["a"]
    install(fake("a", compute=broken), fake("b"))
    assert reproduce(out=tmp_path, device="cpu").sound


def test_available_says_what_is_missing(tmp_path, install):
    def missing(config, place):
        return "Needs a GPU." if config.num_steps > 10 and place.device == "cpu" else ""

    install(fake("a", missing=missing), fake("b", missing=broken))
    first, second = available(out=tmp_path / "new", device="cpu")
    assert first.missing == {"quick": "", "full": "Needs a GPU."}
    assert second.missing["quick"].startswith("fails: KeyError")
    assert not (tmp_path / "new").exists()


def test_records_of_a_later_joma_are_read(tmp_path, install):
    install(fake("a"))
    [found] = reproduce(out=tmp_path, device="cpu").experiments
    assert Record.from_dict(found.as_dict() | {"something": "new"}) == found


@pytest.fixture
def reproduce_mortally(tmp_path):
    """Reproduce fake experiments in a child that may be killed; returns how it ended and after how long."""
    log = tmp_path / "log"

    def reproduced(order, out, **death):
        finished = {each.parents[1].name for each in out.glob("*/kept/*") if not each.name.startswith(".")}
        log.write_text("")
        answer = order({"out": str(out), "log": str(log), **death})
        assert not finished & set(log.read_text().split()), "what was finished is not computed again"
        assert_whole(out)
        return answer["ended"], answer["seconds"]

    with orders(Path(__file__).with_name("mortal_reproduce.py")) as order:
        yield partial(reproduced, order)


@pytest.mark.slow
def test_dying_at_every_operation_in_turn(tmp_path, reproduce_mortally):
    assert reproduce_mortally(tmp_path / "whole", num_steps=1, pause=0.0)[0] == 0
    at, ended = 0, None
    while ended != 0:
        at += 1
        out = tmp_path / str(at)
        ended, _ = reproduce_mortally(out, num_steps=1, pause=0.0, at=at)
        assert ended in (9, 0)
        assert reproduce_mortally(out, num_steps=1, pause=0.0)[0] == 0
        assert_same(out, tmp_path / "whole")
    assert at > 100  # the lock; of each experiment its steps, what is kept, its tables and records, the summary


@pytest.mark.slow
def test_kill_9_at_random_moments(tmp_path, reproduce_mortally):
    ended, seconds = reproduce_mortally(tmp_path / "whole", num_steps=4, pause=0.02)
    assert ended == 0
    rng, num_kills, num_rounds = random.Random(1), 0, 0
    while num_kills < NUM_KILLS or ended != 0:
        out = tmp_path / f"out{num_rounds}"
        kill_after = rng.uniform(0.0, 0.6 * seconds) if num_kills < NUM_KILLS else None
        ended, _ = reproduce_mortally(out, num_steps=4, pause=0.02, kill_after=kill_after)
        assert ended in (-signal.SIGKILL, 0)
        num_kills += ended == -signal.SIGKILL
        if ended == 0:
            assert_same(out, tmp_path / "whole")
            num_rounds += 1
    assert num_rounds > 1


def assert_whole(out):
    """Whatever is there can be read."""
    for kept in out.glob("*/kept/[0-9a-f]*"):
        assert cache.load(kept) is not None
    if (out / record.FILE_NAME).exists():
        assert record.read(out).sound


def assert_same(out, whole):
    ours, theirs = record.read(out).experiments, record.read(whole).experiments
    assert [replace(each, seconds=0.0) for each in ours] == [replace(each, seconds=0.0) for each in theirs]
    tables = sorted(path.relative_to(whole) for path in whole.glob("*/tables/*"))
    assert tables and all((out / path).read_bytes() == (whole / path).read_bytes() for path in tables)
    assert not [path for path in out.rglob(".*") if path.name.endswith(".part")]
