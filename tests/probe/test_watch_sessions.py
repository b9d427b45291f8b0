"""Several sessions in one folder: the same run goes on or begins again, and another run is refused."""

import json
import logging
from dataclasses import dataclass
from itertools import count

import loops
import models
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from models import ENTROPY_ALONE, Scaled, collapse
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from joma.probe.alarm import Alarm
from joma.probe.watching import watch
from joma.store import RunWriter, info, read, read_events

ABOUT = {"seed": 3, "about": {"learning_rate": 0.1}}


class Linears(nn.Module):
    """Two layers in a row: ranks alone, and cheap."""

    def __init__(self, width=6, hidden=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, width, bias=False)
        )


class Others(Linears):
    """The same of another name."""


def watched(folder, model=None, **changes):
    return watch(model or Linears(), out=folder, **{"every": 1, "measures": "ranks"} | ABOUT | changes)


def measure(folder, steps, model=None, **changes):
    with watched(folder, model, **changes) as seen:
        for step in steps:
            seen.step(step, loss=step)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Another run


@pytest.mark.parametrize(
    ("model", "changes", "there", "here"),
    [
        (Linears(), {"seed": 4}, "`seed` 3", "`seed` 4"),
        (Others(), {}, "`model` Linears", "`model` Others"),
        (Linears(hidden=9), {}, "`num_parameters` 96", "`num_parameters` 108"),
        (Linears(width=4, hidden=12), {}, "`parameter_shapes` ", "`parameter_shapes` "),
        (Linears(), {"about": {"learning_rate": 0.2}}, "`learning_rate` 0.1", "`learning_rate` 0.2"),
        (Linears(), {"mlp_pattern": "0.weight"}, "`mlp_pattern` None", "`mlp_pattern` 0.weight"),
    ],
    ids=["seed", "class", "size", "shapes", "about", "pattern"],
)
def test_another_run_is_refused_and_nothing_is_written(tmp_path, model, changes, there, here):
    measure(tmp_path, range(3))
    before = content(tmp_path)
    with pytest.raises(ValueError, match="Take another folder as `out`, or remove that one") as refused:
        watched(tmp_path, model, **changes)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path} holds another run, with {there}") and f"; this one has {here}" in message
    assert "\n" not in message
    assert content(tmp_path) == before
    watch(model, measures="ranks").close()  # the model is free


def test_values_of_another_batch_are_another_run(tmp_path):
    model = loops.build("hand_written")
    watch(model, out=tmp_path).close()
    with pytest.raises(ValueError, match="with `batch` training; this one has `batch` probe"):
        watch(model, out=tmp_path, probe_batch=loops.batch("hand_written", 0), measures="full")


def test_how_often_and_how_much_is_measured_may_change_and_so_may_what_only_one_session_records(tmp_path):
    measure(tmp_path, range(3))
    changes = {"every": 5, "measures": "full", "heads": True, "alarm": Alarm(patience=1)}
    model = models.HandWritten()
    watch(model, out=tmp_path / "full").close()
    watch(model, out=tmp_path / "full", **changes).close()
    measure(tmp_path, range(3, 4), seed=None, about={"batch_size": 2})
    measure(tmp_path, range(4, 5), schedule=[4], alarm=False)
    assert sorted(set(read(tmp_path)["step"])) == [0, 1, 2, 3, 4]
    assert info(tmp_path).about["batch_size"] == 2 and info(tmp_path).about["seed"] == 3


def test_a_wrapped_model_is_the_same_one_and_so_is_that_of_a_record_that_holds_less(tmp_path):
    measure(tmp_path, range(2))
    model = Linears()
    model.layers[0] = CheckpointWrapper(model.layers[0])
    measure(tmp_path, range(2, 3), model)
    record = json.loads((tmp_path / "run.json").read_text())
    del record["about"]["parameter_shapes"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    measure(tmp_path, range(3, 4))
    assert sorted(set(read(tmp_path)["step"])) == [0, 1, 2, 3]


# The same run


@dataclass(frozen=True)
class Session:
    """Steps in a row, measured every so often, and whether the process died after them."""

    first: int
    length: int
    every: int
    dies: bool

    @property
    def steps(self):
        return range(self.first, self.first + self.length)

    @property
    def due(self):
        return [step for step in self.steps if step % self.every == 0]


sessions = st.builds(
    Session, first=st.integers(0, 8), length=st.integers(1, 6), every=st.integers(1, 3), dies=st.booleans()
)


def uninterrupted(losses):
    """The record of one session over these steps and losses."""
    with watch(Linears(), every=1, measures="ranks") as seen:
        for step in sorted(losses):
            seen.step(step, loss=losses[step])
    return seen.frame()


def assert_same_record(found, losses):
    """Same rows, same losses; how long measuring took is each session's own."""
    columns = ["step", "site", "kind", "layer", "head", "metric"]
    assert found[columns].to_numpy().tolist() == uninterrupted(losses)[columns].to_numpy().tolist()
    assert dict(found.loc[found["metric"] == "loss", ["step", "value"]].to_numpy()) == losses


@example(sessions=[Session(0, 6, every=1, dies=False), Session(3, 3, every=2, dies=True)])  # its first is not due
@given(sessions=st.lists(sessions, min_size=1, max_size=4))
@settings(max_examples=12)
def test_any_sessions_leave_what_one_over_the_last_values_would(tmp_path_factory, sessions):
    folder, losses = tmp_path_factory.mktemp("run"), {}
    for number, session in enumerate(sessions):
        seen = watched(folder, every=session.every)
        for step in session.steps:
            seen.step(step, loss=100 * number + step)
            if step == min(session.due, default=None):
                losses = {each: losses[each] for each in losses if each < session.first}
            if step in session.due:
                losses[step] = 100 * number + step
            if step in (session.first, session.steps[-1]):  # at any moment, of which these two matter
                assert_same_record(seen.frame(), losses)
        seen._record.abandon() if session.dies else seen.close()
        assert_same_record(read(folder), losses)
    watched(folder).close()
    if losses:
        directly = pandas.read_parquet(folder / "metrics")
        assert directly.equals(read(folder))


def test_the_rows_of_a_step_are_written_together_and_at_its_end(tmp_path, monkeypatch):
    """A process killed in the middle of a step leaves all rows of the steps before it, however long it takes.

    Else a run killed twice in the step at which it goes on would lose rows that were on disk.
    """
    clock, added = count(step=60), []
    monkeypatch.setattr("joma.store.record.monotonic", lambda: next(clock))  # time to write at every look

    def add(run, step, *row, **settings):
        real_add(run, step, *row, **settings)
        added.append(read(tmp_path).groupby("step").size().to_dict())

    real_add = RunWriter.add
    monkeypatch.setattr(RunWriter, "add", add)
    for first, last in ((0, 2), (2, 3)):
        seen, before = watched(tmp_path), set(range(first + 1)) if first else set()
        for step in range(first, last + 1):
            seen.step(step, loss=1.0)
            full = read(tmp_path).groupby("step").size().to_dict()
            assert set(full) == before | {step}
            assert all(found.items() <= full.items() and set(found) >= before for found in added)
            added.clear()
            before |= {step}
        seen._record.abandon()  # as a killed process does


def test_what_is_replaced_is_reported_in_one_line(tmp_path, caplog):
    measure(tmp_path, range(0, 301, 100))
    measure(tmp_path, [400])  # later: nothing to report
    assert not caplog.records
    measure(tmp_path, [150, 250])
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("joma", logging.WARNING)
    assert record.message.startswith("This run starts again at step 150") and "for steps 200 to 400" in record.message
    assert sorted(set(read(tmp_path)["step"])) == [0, 100, 150, 250]


def test_changes_since_a_restart_are_flagged_and_one_that_measures_nothing_replaces_nothing(tmp_path):
    measure(tmp_path, range(2), measures=("ranks", "updates"))
    measure(tmp_path, range(2, 4), measures=("ranks", "updates"))
    before = read(tmp_path)
    flags = before.query("metric == 'update_norm'").groupby("step")["flag"].first()
    assert ["step 2" in flag for flag in flags] == [False, False, True, True]
    measure(tmp_path, range(1, 3), every=10)
    pandas.testing.assert_frame_equal(read(tmp_path), before)


def test_values_of_the_user_count_from_the_first_step_on(tmp_path):
    """A constant noted at step 0 before a resumed loop begins does not take everything away."""
    measure(tmp_path, range(0, 31, 10), every=10)
    with watched(tmp_path, every=10) as seen:
        seen.record(0, "num_layers", 2.0)
        seen.step(11)
        seen.record(11, "own", 1.0)
    table = read(tmp_path)
    assert sorted(set(table["step"])) == [0, 10, 11]
    assert set(table.query("step == 0")["metric"]) > {"num_layers", "loss", "stable_rank"}


def test_events_go_with_their_steps_and_an_alarm_rings_anew(tmp_path):
    def alarms(steps, first_sharp):
        model, alerts = Scaled(), []
        with watch(model, out=tmp_path, every=1, alarm=ENTROPY_ALONE, on_alarm=alerts.append) as seen:
            collapse(seen, model, steps, first_sharp=first_sharp)
        recorded = read_events(tmp_path).query("kind == 'alarm'")["step"].tolist()
        return [alert.step for alert in alerts], recorded

    assert alarms(range(10), first_sharp=4) == ([6], [6])
    assert alarms(range(5, 10), first_sharp=6) == ([8], [8])  # step 4 was sharp and step 5 is not any more
    assert alarms(range(8, 10), first_sharp=0) == ([8], [8])  # two before it, one anew
    assert alarms(range(9, 10), first_sharp=0) == ([], [8])
    assert alarms(range(3, 10), first_sharp=99) == ([], [])
