"""Pieces of work: begun only if they end in time, foretold by what others took, told when they are left."""

import json
import math
import random
from dataclasses import replace

import pytest

from joma.experiments import timetable as module
from joma.experiments.measured_times import COMPARABLE, USUAL_RATIO, MeasuredTimes
from joma.experiments.timetable import WHOLE, OutOfTime, Piece, Timetable
from joma.experiments.work_log import WorkLog


class Clock:
    """Time that passes when work is done."""

    now = 1000.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "monotonic", made)
    return made


def piece(clock, done, name, counted, took, *, kind="packs", setup=0.0):
    """A piece of which `counted` seconds were expected and that takes `took`."""

    def work(tell):
        for tenth in range(10):
            tell(tenth / 10, name)
            clock.advance(took / 10)
        done.append(name)

    return Piece(kind=kind, name=name, seconds=counted, setup=setup, work=work)


def silent(share, doing):
    pass


def test_without_a_limit_all_is_done_in_order(clock):
    done = []
    pieces = [piece(clock, done, str(i), 100.0 * i, 1e6) for i in range(4)]
    Timetable().work_off(pieces, silent)
    assert done == ["0", "1", "2", "3"]


def test_what_does_not_fit_is_passed_over_and_told(clock):
    done = []
    sizes = {"large": 50.0, "small": 10.0, "larger": 60.0, "tiny": 2.0}
    pieces = [piece(clock, done, name, size, 2 * size) for name, size in sizes.items()]
    with pytest.raises(OutOfTime, match=r"2 of 4 packs left\. That takes about 3 min 40 s: run the same") as left:
        Timetable(limit=90.0).work_off(pieces, silent)
    assert done == ["small", "tiny"]
    assert left.value.needs_minutes == 3  # the larger one takes 120 s, and not all of a call is for it


def test_a_limit_that_allows_nothing_says_so(clock):
    done = []
    table = Timetable(limit=6.0)
    with pytest.raises(OutOfTime) as left:
        table.work_off([piece(clock, done, "only", 100.0, 200.0)], silent)
    assert not done and clock.now == 1000.0
    assert left.value.left == "1 of 1 packs left."  # nothing of this call, which is for the advice alone
    assert left.value.advice == (
        "That takes about 3 min 20 s: run the same command again with --minutes 4 or more, since the longest takes "
        "about 3 min 20 s in one piece and a call has 6 s."
    )
    assert str(left.value) == f"{left.value.left} {left.value.advice}"


def test_a_whole_experiment_is_not_counted_in_pieces(clock):
    with pytest.raises(OutOfTime, match=r"All of it left\. That takes about 20 s: run the same command again with"):
        Timetable(limit=1.0).work_off([piece(clock, [], "", 10.0, 20.0, kind=WHOLE)], silent)


def test_kinds_are_counted_apart(clock):
    done = []
    pieces = [
        piece(clock, done, "a", 10.0, 20.0),
        piece(clock, done, "b", 50.0, 100.0),
        piece(clock, done, "c", 50.0, 100.0, kind="drift trainings"),
    ]
    with pytest.raises(OutOfTime, match=r"1 of 2 packs and 1 of 1 drift trainings left\. That takes about 3 min 20 s"):
        Timetable(limit=100.0).work_off(pieces, silent)


def test_a_piece_that_was_passed_over_is_done_once_others_were_faster_than_feared(clock):
    done = []
    pieces = [piece(clock, done, "long", 60.0, 66.0), piece(clock, done, "short", 20.0, 22.0)]
    Timetable(limit=100.0).work_off(pieces, silent)  # 120 s were feared, and 66 s are known after the short one
    assert done == ["short", "long"]


@pytest.mark.parametrize("seed", range(20))
def test_a_call_ends_in_time_if_no_piece_takes_longer_than_expected(clock, seed):
    rng = random.Random(seed)
    done = []
    pieces = [piece(clock, done, str(i), size := rng.uniform(1, 60), rng.uniform(1.0, 2.0) * size) for i in range(12)]
    # a piece is held against the worst of its kind, so that the first of each size sets the measure
    times = MeasuredTimes()
    times.note("", "packs", 1000.0, took=2000.0)
    table = Timetable(limit=300.0, times=times)
    with pytest.raises(OutOfTime):
        table.work_off(pieces, silent)
    assert clock.now <= 1300.0 and done


def test_calls_one_after_the_other_do_everything_once(clock, tmp_path):
    done, calls = [], 0
    sizes = {str(i): 20.0 + i for i in range(8)}
    while len(done) < 8:
        table = Timetable(
            limit=100.0, owner="e", times=MeasuredTimes(tmp_path / "times.json"), log=WorkLog(tmp_path / "log.json")
        )
        try:
            left = [name for name in sizes if name not in done]
            table.work_off([piece(clock, done, name, sizes[name], 1.5 * sizes[name]) for name in left], silent)
        except OutOfTime as out:
            assert f"{8 - len(done)} of 8 packs left" in str(out) and out.needs_minutes is None
        calls += 1
    assert sorted(done) == list(sizes) and calls == 4  # two or three fit into a call


def test_progress_goes_on_where_the_last_call_stopped(clock, tmp_path):
    shares, done = [], []

    def tell(share, doing):
        shares.append(share)

    def call(names, limit):
        table = Timetable(limit=limit, log=WorkLog(tmp_path / "log.json"))
        table.work_off([piece(clock, done, name, 20.0, 40.0) for name in names], tell)

    with pytest.raises(OutOfTime):
        call("abc", 50.0)
    assert max(shares) == pytest.approx((0 + 0.9) / 3)
    call("bc", math.inf)
    assert shares == sorted(shares) and shares[11] == pytest.approx(1 / 3) and shares[-1] < 1


def test_ratios_are_the_worst_of_comparable_pieces_of_the_same_kind_and_device(tmp_path):
    path = tmp_path / "times.json"
    times = MeasuredTimes(path, "cuda (a GPU)")
    assert times.expected("e", "packs", 10.0, 3.0) == 3.0 + 10 * USUAL_RATIO
    times.note("e", "packs", 10.0, took=15.0)
    times.note("e", "packs", 20.0, took=26.0, setup=2.0)
    assert times.expected("e", "packs", 30.0) == 45.0
    assert times.expected("e", "packs", 10.0 * COMPARABLE + 1) == pytest.approx(1.2 * (10.0 * COMPARABLE + 1))
    assert times.expected("e", "packs", 20.0 * COMPARABLE + 1) == USUAL_RATIO * (20.0 * COMPARABLE + 1)
    again = MeasuredTimes(path, "cuda (a GPU)")
    assert again.expected("e", "packs", 30.0) == 45.0
    assert again.expected("e", "drift trainings", 30.0) == 45.0  # the next best
    assert again.expected("another", "packs", 30.0) == 60.0
    assert again.knows("e") and not again.knows("another")
    assert MeasuredTimes(path, "cpu").expected("e", "packs", 30.0) == 60.0


def test_pieces_that_take_less_than_their_setup_foretell_no_more_than_it():
    times = MeasuredTimes()
    times.note("e", "packs", 0.1, took=5.0, setup=30.0)
    assert times.expected("e", "packs", 0.1, 30.0) == 30.0


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"cpu": 3}', '{"cpu": {"e": {"packs": [[0, 1], [1]]}}}', '{"cpu": {"e": "ab"}}']
)
def test_times_that_cannot_be_read_are_none(tmp_path, text):
    (tmp_path / "times.json").write_text(text)
    assert MeasuredTimes(tmp_path / "times.json").expected("e", "packs", 1.0) == USUAL_RATIO


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"seconds": "x", "pieces": 3}',
        '{"pieces": {"cpu": 1}}',
        '{"origins": 3}',
        '{"origins": [{"versions": []}]}',
    ],
)
def test_a_log_that_cannot_be_read_starts_anew(tmp_path, text):
    (tmp_path / "log.json").write_text(text)
    log = WorkLog(tmp_path / "log.json")
    assert log.weight == 0.0 and log.devices == () and log.seconds < 1
    log.add("packs", "cpu", 2.0)
    [origin] = json.loads((tmp_path / "log.json").read_text())["origins"]
    assert origin["pieces"] == {"cpu": {"packs": 1}}


def test_a_log_tells_what_did_the_work(clock, tmp_path, monkeypatch):
    path = tmp_path / "log.json"
    for on_a_gpu in (True, False, True):
        monkeypatch.setattr(module, "_was_on_a_gpu", lambda allocated, used=on_a_gpu: used)
        Timetable(device="cuda (a GPU)", log=WorkLog(path)).work_off([piece(clock, [], "a", 1.0, 1.0)], silent)
    [origin] = WorkLog(path).origins
    assert origin.pieces == {"cuda (a GPU)": {"packs": 2}, "cpu": {"packs": 1}}
    assert WorkLog(path).num_done("packs") == 3


def test_pieces_that_are_counted_to_take_no_time_are_done(clock):
    shares, done = [], []
    Timetable(limit=1.0).work_off(
        [piece(clock, done, name, 0.0, 0.1) for name in "ab"], lambda share, doing: shares.append(share)
    )
    assert done == ["a", "b"] and set(shares) == {0.0}


@pytest.mark.parametrize("ratio", [0.6, 1.3, 5.0])
def test_time_left_is_right_within_a_factor_of_two_once_the_first_piece_was_measured(clock, ratio):
    rng = random.Random(3)
    counted = [200.0, *(rng.uniform(60, 250) for _ in range(9))]
    took = [30.0 + ratio * rng.uniform(0.8, 1.25) * size for size in counted]
    told, done = [], []
    table = Timetable(expect=lambda seconds: told.append((clock.now, seconds)))
    names = [str(i) for i in range(len(counted))]
    rows = zip(names, counted, took, strict=True)
    table.work_off([piece(clock, done, *row, setup=30.0) for row in rows], silent)
    end, measured_from = clock.now, 1000.0 + took[0]
    later = [(at, seconds) for at, seconds in told if at < end]
    assert len(later) > 80 and min(later)[0] == pytest.approx(measured_from)  # before that nothing is said
    wrong = [(end - at, seconds) for at, seconds in later if not (end - at) / 2 <= seconds <= 2 * (end - at)]
    assert not wrong


def test_an_interrupted_piece_is_neither_timed_nor_counted(clock, tmp_path):
    def stop(tell):
        raise KeyboardInterrupt

    table = Timetable(times=MeasuredTimes(tmp_path / "times.json"), log=WorkLog(tmp_path / "log.json"))
    with pytest.raises(KeyboardInterrupt):
        table.work_off([replace(piece(clock, [], "a", 1.0, 1.0), work=stop)], silent)
    assert not (tmp_path / "times.json").exists() and table.log.num_done("packs") == 0
