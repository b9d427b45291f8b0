"""The examples of docs/extending.md run, and are as short as promised."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import joma
from joma.claims import Outcome, judge
from joma.metrics import METRICS
from joma.paper import experiment as registry
from joma.paper.reproduce import Status, reproduce, tables_of
from joma.probe.measures import forget_measure

PAGE = (Path(__file__).parents[1] / "docs/extending.md").read_text(encoding="utf-8")


def example(name):
    """The Python of the page that is marked with a name."""
    return re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1]


def load(name, module_name, monkeypatch):
    """Import an example under a module name, for the length of a test."""
    module = ModuleType(module_name)
    monkeypatch.setitem(sys.modules, module_name, module)
    exec(compile(example(name), module_name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("name", "limit"), [("measure", 80), ("experiment", 250)])
def test_the_examples_are_short(name, limit):
    assert len(example(name).splitlines()) <= limit


def test_the_measure_reaches_the_record_and_is_right(monkeypatch):
    load("measure", "neurons_example", monkeypatch)
    try:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        nn.init.ones_(model.layers[0].linear1.weight)
        with torch.no_grad():
            model.layers[1].linear1.weight[1:] = 0
        with joma.watch(model, measures=("cheap", "effective_neurons"), every=1) as watch:
            model(torch.randn(2, 8, 16))
            watch.step(0)
        values = watch.frame().query("metric == 'effective_neurons'").set_index("layer")["value"]
        assert values[0] == pytest.approx(32)  # equal neurons
        assert values[1] == pytest.approx(1)  # one neuron
        assert METRICS["effective_neurons"].axis == "effective number of neurons (neurons)"
    finally:
        forget_measure("effective_neurons")
        del METRICS["effective_neurons"]


def test_the_experiment_runs_and_its_claim_can_fail(monkeypatch, tmp_path):
    module = load("experiment", "joma.paper.size_rebound", monkeypatch)
    monkeypatch.setitem(registry.MODULES, "size-rebound", "size_rebound")
    (result,) = reproduce("size-rebound", preset="full", out=tmp_path).experiments
    assert result.status is Status.DONE, result.reason
    assert result.answers[0].outcome is Outcome.HOLDS
    assert len(result.answers[0].settings) == 3
    assert (tmp_path / "size-rebound/charts/size-rebound.svg").exists()
    tables = tables_of(tmp_path, result)
    flat = tables.copy_with(rises=tables.rises.assign(rise=tables.rises["rise"] / 100))
    same = tables.copy_with(rises=tables.rises.assign(control=tables.rises["rise"] + tables.rises["seed"] % 2 - 0.5))
    assert judge(module.CLAIMS, flat, tested_by="page")[0].outcome is Outcome.REFUTED
    assert judge(module.CLAIMS, same, tested_by="page")[0].outcome is Outcome.MATCHES_CONTROL
