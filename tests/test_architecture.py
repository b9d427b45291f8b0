"""What docs/architecture.md promises: few types between a model and a chart, and every folder on the page."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import joma
from joma.charts import Chart, lines
from joma.measure.entropy import AttentionStatistics
from joma.probe import measurement, measures
from joma.probe.calls import AttentionCall
from joma.probe.measurement import Readings, Row

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs/images/architecture.svg").read_text(encoding="utf-8")
PATH = (AttentionCall, AttentionStatistics, Readings, Row, pd.DataFrame, Chart)


def naive_entropy(call):
    """Mean entropy of a call without a mask, from the whole matrix of attention."""
    p = torch.softmax(call.q.double() @ call.k.double().mT / call.q.shape[-1] ** 0.5, dim=-1)
    return float(torch.special.entr(p).sum(-1).mean())


def spy(monkeypatch, owner, name, seen):
    """Keep what a function takes first and what it returns."""
    original = getattr(owner, name)

    def watched(first, *args, **options):
        result = original(first, *args, **options)
        result = list(result) if name == "rows" else result
        seen.extend((first, result))
        return result

    monkeypatch.setattr(owner, name, watched)


def test_an_entropy_passes_six_types_between_model_and_chart(monkeypatch, tmp_path):
    seen, read = [], []
    spy(monkeypatch, measures, "measure_call", seen)
    spy(monkeypatch, measurement.Readings, "rows", read)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    with joma.watch(model, measures="full", every=1, out=tmp_path) as watch:
        model(torch.randn(3, 8, 16))
        watch.step(0)
    call, statistics = seen
    readings, rows = read
    row = next(each for each in rows if each.metric == "entropy")
    frame = joma.read(tmp_path).query("metric == 'entropy'")
    chart = lines(frame, "step", "value", color="layer", title="Attention entropy")
    met = (call, statistics, readings, row, frame, chart)
    assert tuple(type(each) for each in met) == PATH
    drawn = chart.spec["data"]["columns"]["y"]
    values = [float(statistics.entropy.mean()), row.value, float(frame["value"].iloc[0]), drawn[0]]
    assert values == pytest.approx([naive_entropy(call)] * 4, rel=1e-5)


def test_the_page_and_the_picture_name_these_types_in_this_order():
    names = [each.__name__ for each in PATH]
    for text in (PAGE, PICTURE):
        found = re.findall(rf"\b({'|'.join(names)})\b", text.partition("The path of an entropy")[2])
        assert list(dict.fromkeys(found)) == names


def test_the_page_and_the_picture_show_every_folder():
    folders = {path.parent.name for path in (ROOT / "joma").glob("*/__init__.py")}
    for text in (PAGE, PICTURE):
        assert folders <= set(re.findall(r"\w+", text)), folders - set(re.findall(r"\w+", text))
