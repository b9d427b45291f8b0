"""The record as its users see it: what is added is read, by joma and without it."""

import itertools
import json
import math
import os
import subprocess
import sys
import threading

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from store.faults import Faults

from joma.store import find_runs, info, is_open, open_run, read, read_events, record, tables

COLUMNS = ["step", "site", "kind", "layer", "head", "metric", "value", "flag"]
EVENT_COLUMNS = ["step", "site", "level", "kind", "message", "evidence"]


def opened(folder, **settings):
    return open_run(folder, **{"kind": "watch", "config": {}} | settings)


def parts(folder, name="metrics"):
    return sorted(path.name for path in (folder / name).iterdir())


# What goes in comes out


def test_columns_types_and_defaults_are_the_contract(tmp_path):
    run = opened(tmp_path)
    assert list(read(tmp_path).columns) == COLUMNS and list(read_events(tmp_path).columns) == EVENT_COLUMNS
    assert read(tmp_path)["step"].dtype == "int64"  # of an empty table too
    run.add(0, "loss", 2)
    run.add(3, "entropy", 1.5, site="layers.0", kind="attention", layer=0, head=2, flag="clamped")
    run.event(0, "unseen", "no attention")
    run.event(3, "alarm", "entropy collapsed", level="warning", site="layers.0", evidence={"entropy": 0.01})
    run.close()
    table, events = read(tmp_path), read_events(tmp_path)
    assert list(table.columns) == COLUMNS and list(events.columns) == EVENT_COLUMNS
    assert table[table["step"] == 3].attrs["run"] == json.loads((tmp_path / "run.json").read_text())
    table.to_parquet(tmp_path / "copy.parquet")  # which writes the attributes as JSON
    types = [str(table[name].dtype) for name in ("step", "layer", "head", "value")]
    assert types == ["int64", "int32", "int32", "float64"]
    assert table.to_numpy().tolist() == [
        [0, "", "", -1, -1, "loss", 2.0, ""],
        [3, "layers.0", "attention", 0, 2, "entropy", 1.5, "clamped"],
    ]
    assert events.iloc[0].tolist() == [0, "", "info", "unseen", "no attention", "{}"]
    assert events.iloc[1].tolist()[:-1] == [3, "layers.0", "warning", "alarm", "entropy collapsed"]
    assert json.loads(events.iloc[1]["evidence"]) == {"entropy": 0.01}


def test_half_characters_of_foreign_file_names_are_written_out(tmp_path):
    name = os.fsdecode(b"\xff.weight")
    with opened(tmp_path) as run:
        run.add(0, "loss", 1.0, site=name)
        run.add(0, "loss", 2.0, site="ρ\0\n'\"")
        run.event(0, "audit", "bad name", site=name, evidence={"name": name})
    assert set(read(tmp_path)["site"]) == {"\\udcff.weight", "ρ\0\n'\""}
    assert json.loads(read_events(tmp_path).iloc[0]["evidence"]) == {"name": name}


def test_the_last_row_of_a_key_counts_and_what_is_begun_again_goes_with_the_next_value(tmp_path):
    with opened(tmp_path) as run:
        for step in (0, 1, 2, 3, 1):
            run.add(step, "loss", step)
            run.event(step, "audit", f"step {step}")
        run.add(1, "loss", 10.0)
    with opened(tmp_path, flush_seconds=1e9) as run:
        run.begin_again(2)
        run.flush()
        assert len(read(tmp_path)) == 4
        run.add(3, "loss", 30.0)
        run.flush()
        for table in (read(tmp_path), pd.read_parquet(tmp_path / "metrics")):
            assert dict(table[["step", "value"]].to_numpy()) == {0: 0, 1: 10, 3: 30}
        assert pd.read_parquet(tmp_path / "events")["message"].tolist() == ["step 0", "step 1"]


def test_earlier_rows_stay_until_the_step_that_replaces_them_has_ended(tmp_path, monkeypatch):
    """Writing what was there before its first row must not take them away."""
    clock = itertools.count(step=60)
    monkeypatch.setattr("joma.store.record.monotonic", lambda: next(clock))  # time to write at every look
    with opened(tmp_path) as run:
        run.add(5, "loss", 1.0)
    with opened(tmp_path) as run:
        run.begin_again(5)
        run.event(0, "unseen", "no attention")
        run.add(5, "entropy", 2.0)  # writes the event, which is of another step
        assert read_events(tmp_path)["step"].tolist() == [0]
        assert read(tmp_path)["metric"].tolist() == ["loss"]
        run.end_step()
        assert read(tmp_path)["metric"].tolist() == ["entropy"]


sites = st.sampled_from(["", "ρ"]) | st.text(max_size=3)  # mostly few, so that keys come again
keys = st.tuples(st.integers(-1, 2), sites, st.integers(-1, 0), st.sampled_from(["entropy", "loss"]))


class Rewriting(RuleBasedStateMachine):
    """Adding, beginning again, flushing, closing, crashing and reading in any order, beside a dictionary."""

    folders = None

    def __init__(self):
        """Open a run of its own."""
        super().__init__()
        self.folder = self.folders.mktemp("run")
        self.memory, self.disk = {}, {}
        self.told, self.told_on_disk = [], []
        self.open()

    def open(self):
        self.run = opened(self.folder, flush_seconds=1e9)
        self.own, self.own_told, self.anew, self.has_begun_again = set(), set(), None, False

    @rule(key=keys, value=st.floats(), layer=st.integers(-1, 3), flag=st.text(max_size=2))
    def add(self, key, value, layer, flag):
        step, site, head, metric = key
        self.run.add(step, metric, value, site=site, head=head, layer=layer, flag=flag)
        if self.anew is not None:
            self.memory = {each: self.memory[each] for each in self.memory if each[0] < self.anew or each in self.own}
            self.told = [each for each in self.told if each[0] < self.anew or each in self.own_told]
            self.anew = None
        self.memory[key] = (value, layer, flag)
        self.own.add(key)

    @precondition(lambda self: not self.has_begun_again)
    @rule(step=st.integers(-3, 4))
    def begin_again(self, step):
        self.run.begin_again(step)
        self.anew, self.has_begun_again = step, True

    @rule(step=st.integers(0, 2), message=st.text(max_size=2))
    def event(self, step, message):
        self.run.event(step, "audit", message)
        self.told = [each for each in self.told if each != (step, message)] + [(step, message)]
        self.own_told.add((step, message))

    @rule()
    def flush(self):
        self.run.flush()
        self.disk, self.told_on_disk = dict(self.memory), list(self.told)

    @rule(status=st.sampled_from(["finished", "failed", "running"]))
    def close_and_reopen(self, status):
        self.run.close(status)
        self.disk, self.told_on_disk = dict(self.memory), list(self.told)
        assert info(self.folder).status == status
        assert len(list(self.folder.glob("metrics/*"))) == bool(self.disk)
        if self.disk:
            assert len(pd.read_parquet(self.folder / "metrics")) == len(self.disk)
        self.open()

    @rule()
    def crash_and_reopen(self):
        self.run.abandon()  # as a killed process: what is in memory is gone, and so is the lock, which would be stale
        self.memory, self.told = dict(self.disk), list(self.told_on_disk)
        self.open()

    @rule(at=st.integers(1, 30), closing=st.booleans())
    def fail_and_go_on(self, at, closing):
        with Faults(at=at) as faults:
            try:
                self.run.close() if closing else self.run.flush()
            except OSError:
                assert len(faults.trace) >= at
        if not self.run._open:
            self.open()
        self.has_begun_again |= closing  # one that failed to close may have merged all parts
        self.flush()

    @invariant()
    def the_disk_holds_what_the_dictionary_holds(self):
        table = read(self.folder)
        found = {
            (row.step, row.site, row.head, row.metric): (row.value, row.layer, row.flag) for row in table.itertuples()
        }
        assert len(found) == len(table)
        assert repr(sorted(found.items())) == repr(sorted(self.disk.items()))  # repr: NaN equals NaN
        events = read_events(self.folder)
        assert list(zip(events["step"], events["message"], strict=True)) == self.told_on_disk

    def teardown(self):
        self.run.abandon()


def test_any_order_of_writing_crashing_and_reading(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tables, "MAX_SMALL_PARTS", 3)
    monkeypatch.setattr("joma.store.record.versions", dict)
    Rewriting.folders = tmp_path_factory
    run_state_machine_as_test(Rewriting, settings=settings(max_examples=20, stateful_step_count=20))


# Buffering, parts and merging


def test_a_long_run_does_not_pile_up_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_SMALL_PARTS", 4)
    run = opened(tmp_path, flush_seconds=0.0)
    for step in range(18):
        run.add(step, "loss", float(step))
    assert len(parts(tmp_path)) == 1 + 18 % 4
    assert read(tmp_path)["value"].tolist() == list(range(18))
    run.close()
    assert len(parts(tmp_path)) == 1


def test_a_run_can_be_read_while_its_parts_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_SMALL_PARTS", 3)
    run = opened(tmp_path, flush_seconds=0.0)
    stop = threading.Event()

    def write() -> None:
        for step in range(60):
            run.add(step, "loss", float(step))
        run.close()
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    longest = 0
    while not stop.is_set():
        values = read(tmp_path)["value"].tolist()
        assert values == list(range(len(values)))
        assert len(values) >= longest
        longest = len(values)
    thread.join()
    assert len(read(tmp_path)) == 60


def test_threads_add_together(tmp_path):
    with opened(tmp_path, flush_seconds=0.01) as run:

        def work(head: int) -> None:
            for step in range(300):
                run.add(step, "entropy", float(step), head=head)

        threads = [threading.Thread(target=work, args=(head,)) for head in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = read(tmp_path)
    assert len(table) == 4 * 300
    assert (table["value"] == table["step"]).all()


# Without joma


def test_plain_pandas_and_duckdb_read_the_record(tmp_path):
    folder = tmp_path / "lr=0.1"
    run = opened(folder, flush_seconds=0.0)
    run.add(0, "entropy", 2.0, site="a", layer=0)
    run.add(1, "entropy", math.nan, site="a", layer=0, flag="no rows")
    run.add(2, "entropy", math.inf, site="a", layer=0)
    run.event(2, "alarm", "collapsed", evidence={"entropy": 0.5})
    for closing in (False, True):
        if closing:
            run.close()
        frames = [
            pd.concat([pd.read_parquet(path, partitioning=None) for path in sorted(folder.glob("metrics/*.parquet"))]),
            duckdb.sql(f"from read_parquet('{folder}/metrics/*.parquet', hive_partitioning=false) order by step").df(),
        ]
        for frame in frames:
            assert list(frame.columns) == COLUMNS
            np.testing.assert_array_equal(frame["value"], [2.0, math.nan, math.inf])
            assert frame["flag"].tolist() == ["", "no rows", ""]
            assert str(frame["layer"].dtype) == "int32"
    query = f"select evidence->>'entropy' from '{folder}/events/*.parquet'"
    assert duckdb.sql(query).fetchall() == [("0.5",)]
    assert list(pd.read_parquet(tmp_path / "lr=0.1" / "events", partitioning=None).columns) == EVENT_COLUMNS
    description = json.loads((folder / "run.json").read_text())
    assert (description["schema"], description["kind"], description["status"]) == (record.SCHEMA, "watch", "finished")


# Several runs


def test_several_runs_are_told_apart(tmp_path):
    folders = [tmp_path / seed / "small" for seed in ("seed1", "seed2")]
    for value, folder in enumerate(folders):
        with opened(folder) as run:
            run.add(0, "loss", float(value))
            run.event(0, "audit", "fine")
    both = read(folders)
    assert both.columns[0] == "run"
    assert dict(zip(both["run"], both["value"], strict=True)) == {"seed1/small": 0.0, "seed2/small": 1.0}
    assert both.attrs["runs"]["seed2/small"]["kind"] == "watch"
    assert read([folders[0]])["run"].tolist() == ["small"]
    assert read_events(map(str, folders))["run"].tolist() == ["seed1/small", "seed2/small"]
    assert find_runs(tmp_path) == folders
    assert find_runs(folders[0]) == [folders[0]]


def test_only_runs_are_found_and_broken_ones_are_shown(tmp_path):
    for name, content in {"foreign": "{}", "broken": "{", "list": "[]"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    assert find_runs(tmp_path) == [tmp_path / "broken"]
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        find_runs(tmp_path / "nothing")
    with pytest.raises(ValueError, match="list of folders is empty"):
        read([])


# Ending


def test_status_follows_the_run(tmp_path):
    run = opened(tmp_path, about={"seed": 3})
    assert (info(tmp_path).status, is_open(tmp_path)) == ("running", True)
    run.add(0, "loss", 1.0)
    for _ in range(2):
        run.close()
    assert (info(tmp_path).status, is_open(tmp_path)) == ("finished", False)
    assert info(tmp_path).about == {"seed": 3}
    with pytest.raises(ValueError, match=r"is closed. Open it again"):
        run.add(0, "loss", 1.0)
    run = opened(tmp_path)
    run.add(1, "loss", 2.0)
    for leave in (run.abandon, run.abandon, run.close):  # an abandoned run stays as it is on disk
        leave()
    assert (info(tmp_path).status, is_open(tmp_path)) == ("running", False)
    assert read(tmp_path)["step"].tolist() == [0]


def test_an_exception_closes_the_run_as_failed_and_is_told(tmp_path):
    with pytest.raises(ZeroDivisionError), opened(tmp_path) as run:
        run.add(41, "loss", 1.0)
        run.add(int(1 / 0), "loss", 1.0)
    assert info(tmp_path).status == "failed"
    event = read_events(tmp_path).iloc[0]
    assert (event["step"], event["level"], event["message"]) == (41, "error", "ZeroDivisionError: division by zero")
    assert len(read(tmp_path)) == 1


def test_an_exception_is_not_hidden_by_a_full_disk(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught, Faults(at=20, code=28), opened(tmp_path) as run:
        run.add(0, "loss", 1 / 0)
    assert "could not be closed: [Errno 28] The disk is full" in caught.value.__notes__[0]
    run.close("failed")


def test_a_program_that_forgets_to_close_loses_nothing(tmp_path):
    code = (
        "import sys; from joma.store import open_run\n"
        "run = open_run(sys.argv[1], kind='watch', config={}); run.add(1, 'loss', 2.0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert len(read(tmp_path)) == 1
    assert (info(tmp_path).status, is_open(tmp_path)) == ("running", False)


def test_a_forked_process_does_not_write_and_does_not_unlock(tmp_path):
    code = """
import os, sys
from joma.store import open_run
run = open_run(sys.argv[1], kind="watch", config={})
run.add(1, "loss", 2.0)
if os.fork() == 0:
    try:
        run.add(2, "loss", 2.0)
    except ValueError as error:
        assert "belongs to process" in str(error)
        sys.exit(0)  # through the handlers at exit
    os._exit(1)
assert os.wait()[1] == 0
run.add(3, "loss", 2.0)
run.close()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert read(tmp_path)["step"].tolist() == [1, 3]


# Bad input


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "walk"}, "`kind` must be one of watch, scan, train, got 'walk'"),
        ({"flush_seconds": -1.0}, "`flush_seconds` must be 0 or more, got -1.0"),
        ({"flush_seconds": math.nan}, "`flush_seconds` must be 0 or more, got nan"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, change, match):
    with pytest.raises(ValueError, match=match):
        opened(tmp_path / "new", **change)
    assert not os.listdir(tmp_path)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda run: run.add(1.5, "loss", 1.0), TypeError, "float"),
        (lambda run: run.add(2**63, "loss", 1.0), ValueError, "`step` must fit 64 bits"),
        (lambda run: run.add(1, "loss", 1.0, layer=2**31), ValueError, "`layer` and `head` 32 bits"),
        (lambda run: run.add(1, "loss", 1.0, head=-(2**31) - 1), ValueError, "`layer` and `head` 32 bits"),
        (lambda run: run.add(1, "loss", "high"), ValueError, "high"),
        (lambda run: run.add(1, "loss", 1.0, site=None), TypeError, "`site` must be a string, got None"),
        (lambda run: run.add(1, 3, 1.0), TypeError, "`metric` must be a string, got 3"),
        (
            lambda run: run.event(0, "alarm", "text", level="loud"),
            ValueError,
            "one of info, warning, error, got 'loud'",
        ),
        (lambda run: run.event(2**63, "alarm", "text"), ValueError, "`step` must fit 64 bits"),
        (lambda run: run.event(0, "alarm", None), TypeError, "`message` must be a string"),
        (lambda run: run.close("done"), ValueError, "`status` must be one of running, finished, failed, got 'done'"),
    ],
)
def test_a_bad_row_event_or_end_is_refused_at_once_and_the_rest_is_kept(tmp_path, call, error, match):
    with opened(tmp_path) as run:
        run.add(0, "loss", 1.0)
        with pytest.raises(error, match=match):
            call(run)
    assert len(read(tmp_path)) == 1 and read_events(tmp_path).empty


def flipped(content):
    """Every bit in turn would take long; these lie in the data, the footer and the marks at both ends."""
    for at in range(0, len(content), max(len(content) // 40, 1)):
        yield content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


@pytest.mark.parametrize("name", ["metrics", "events"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_file_that_is_missing_or_damaged_is_named_and_nothing_is_written(tmp_path, name, closed):
    run = opened(tmp_path, flush_seconds=0.0)
    for step in range(3):
        run.add(step, "loss", step / 3)
        run.event(step, "audit", f"step {step}")
    run.close() if closed else run.abandon()
    path = sorted(tmp_path.glob(f"{name}/*.parquet"))[0]
    content = path.read_bytes()
    for damaged in (None, b"", content[:-9], *flipped(content)):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        before = (tmp_path / "run.json").read_bytes()
        for use in (read if name == "metrics" else read_events, opened):
            with pytest.raises((ValueError, FileNotFoundError), match=path.name) as caught:
                use(tmp_path)
            assert "\n" not in str(caught.value) and not is_open(tmp_path)
        assert (tmp_path / "run.json").read_bytes() == before
    path.write_bytes(content)
    opened(tmp_path).close()
    assert len(read(tmp_path)) == len(read_events(tmp_path)) == 3


# Price


def test_adding_is_cheap_and_importing_light():
    code = """
import sys, tempfile, timeit
from joma.store import open_run
assert not {"pandas", "pyarrow", "numpy", "torch"} & set(sys.modules)
with tempfile.TemporaryDirectory() as folder, open_run(folder, kind="watch", config={}, flush_seconds=1e9) as run:
    add = lambda: run.add(1, "entropy", 2.0, site="layers.0.attention", kind="attention", layer=0, head=3)
    print(min(timeit.repeat(add, number=2000, repeat=10)) / 2000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5e-6
