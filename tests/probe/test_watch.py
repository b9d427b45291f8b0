"""Attaching a watch, stepping and letting go; what it leaves alone is in test_untouched."""

import runpy
import sys
from pathlib import Path

import loops
import models
import pytest
import torch
from loops import run
from torch import nn

import joma
from joma.probe.measures import register_measure
from joma.probe.schedule import Logarithmic
from joma.probe.watch import watch
from joma.store import read

EXAMPLE = Path(__file__).parents[2] / "examples" / "watch_a_loop.py"


def test_one_line_in_a_loop_is_found_at_the_top():
    assert joma.watch is watch
    assert joma.register_measure is register_measure


def test_the_example_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["watch_a_loop.py", "--steps", "10", "--out", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "Measured 5 times, last at step 10." in capsys.readouterr().out
    assert sorted(set(read(tmp_path / "run")["step"])) == [0, 1, 2, 5, 10]


def test_steps_are_counted_where_none_is_given():
    model = loops.build("hand_written")
    with watch(model, schedule=Logarithmic(), measures="ranks") as seen:
        for _ in range(12):
            seen.step()
    assert sorted(set(seen.frame()["step"])) == [0, 1, 2, 5, 10]


def test_steps_that_jump_are_measured_late_rather_than_never():
    """The forward pass of a step that nobody could foresee was not tapped: the next one is, and says so by its step."""
    model = loops.build("hand_written")
    with watch(model, schedule=[0, 1000, 1040], measures="entropy") as seen:
        run(model, "hand_written", seen, [0, 10, 20, 1000, 1010, 1020, 1030, 1040])
    # 10 apart: 1000 came unforeseen after 20, 1010 made up for it; the stride of 10 was known again at 1040.
    assert sorted(set(seen.frame()["step"])) == [0, 1010, 1040]


class NoAttention(nn.Module):
    """Linear layers with a softmax between them."""

    def __init__(self):
        """Make three layers."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).softmax(-1)
        return x


def test_a_model_without_attention_is_refused_in_one_line(tmp_path):
    for settings in ({}, {"probe_batch": torch.zeros(1, 4)}, {"attention_pattern": "nowhere"}):
        with pytest.raises(ValueError, match="attention") as caught:
            watch(NoAttention(), out=tmp_path / "run", **settings)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_is_refused():
    model = models.HandWritten()
    with watch(model), pytest.raises(ValueError, match="This HandWritten is being watched already"):
        watch(model)
    watch(model).close()
    with pytest.raises(ValueError, match=r"does not run on the probe batch \(TypeError"):
        watch(model, probe_batch={"token": torch.zeros(1, 3, dtype=torch.long)})
    with pytest.raises(ValueError, match="at least 1, got 0"):
        watch(model, every=0)
    watch(model).close()


def test_the_name_of_a_model_is_no_model(as_a_user_runs_it):
    with pytest.raises(
        TypeError, match=r"`model` must be a torch\.nn\.Module, got str 'gpt2'\. Build or load the model"
    ):
        watch("gpt2")


def test_a_probe_batch_that_is_none(as_a_user_runs_it):
    with pytest.raises(TypeError, match=r"`probe_batch` must be keyword arguments, .* got int"):
        watch(models.HandWritten(), probe_batch=3)


def test_closing_twice_and_stepping_after():
    seen = watch(models.HandWritten())
    seen.close()
    seen.close()
    with pytest.raises(ValueError, match="it is closed"):
        seen.step()
