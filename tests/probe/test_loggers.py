"""Loggers get every value; one that fails does no harm."""

import sys

import loops
import pytest
from loops import run

from joma.probe.loggers import MLflow, Trackio, WandB
from joma.probe.watching import watch


class Collecting:
    """Keeps what it receives; raises at one step."""

    def __init__(self, bad_step=-1):
        self.received, self.closed, self.bad_step = {}, False, bad_step

    def __call__(self, step, values):
        if step == self.bad_step:
            raise ConnectionError("no line")
        self.received[step] = dict(values)

    def close(self):
        self.closed = True


def test_loggers_get_every_value_and_may_fail():
    model, logger, broken = loops.build("hand_written"), Collecting(), Collecting(bad_step=0)
    with watch(model, every=1, loggers=(broken, logger), heads=True) as seen:
        run(model, "hand_written", seen, range(2))
    assert logger.received.keys() == {0, 1} and broken.received.keys() == {1}
    assert {"loss", "entropy/blocks.0", "entropy/blocks.1/head 3", "stable_rank/blocks.0.mlp.0"} <= logger.received[
        0
    ].keys()
    assert logger.closed and broken.closed
    assert seen.events()["message"].tolist() == ["ConnectionError: no line"]


class FakeRun:
    """A run of W&B as far as its documentation goes: rows are filled until something commits them."""

    def __init__(self):
        self.step, self.rows, self.defined, self.open = 0, [], {}, {}

    def define_metric(self, name, step_metric=None):
        self.defined[name] = step_metric

    def log(self, values, commit=True):
        self.open |= values
        if commit:
            self.rows.append(self.open)
            self.step, self.open = self.step + 1, {}


def test_wandb_loses_nothing_and_does_not_move_the_steps_of_others():
    run = FakeRun()
    logger = WandB(run)
    logger(0, {"entropy/a": 1.0})
    run.log({"loss": 3.0})  # the user's own, which closes the row
    logger(100, {"entropy/a": 2.0})
    logger(200, {"entropy/a": 3.0})
    assert run.rows == [{"joma/step": 0, "joma/entropy/a": 1.0, "loss": 3.0}, {"joma/step": 100, "joma/entropy/a": 2.0}]
    assert run.open == {"joma/step": 200, "joma/entropy/a": 3.0}
    assert run.defined == {"joma/step": None, "joma/*": "joma/step"}


@pytest.mark.parametrize("adapter", [WandB, Trackio, MLflow])
def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch, adapter):
    name = adapter.__name__.lower()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"needs {name}, .*loggers"):
        adapter()
