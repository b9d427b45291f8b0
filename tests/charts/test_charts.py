"""Charts from tidy tables: data, axes, colours, files and pages."""

import json
import re
import struct

import numpy as np
import pandas as pd
import pytest

from joma.charts import Chart, Rule, bars, beside, bundle, heatmap, lines, points, stack
from joma.charts.builders import extremes, log_ticks
from joma.charts.chart import THEMES
from joma.metrics import METRICS

STEPS = np.array([0, 1, 10, 100, 1000])


def curves(depths=(1, 2)):
    return pd.concat(
        pd.DataFrame({"step": STEPS, "entropy": 3.0 - layer - 0.1 * np.arange(5), "layer": layer, "depth": depth})
        for depth in depths
        for layer in range(depth)
    )


def views(spec):
    return [leaf for child in spec["concat"] for leaf in views(child)] if "concat" in spec else [spec]


def rows(view):
    return pd.DataFrame(view["data"]["values"])


def encoding(view, channel, field):
    found = [layer["encoding"].get(channel, {}) for layer in view["layer"]]
    return next(each for each in found if each.get("field") == field)


def test_spec_holds_the_table_in_one_panel_for_each_facet():
    spec = lines(curves(), "step", "entropy", color="layer", facet="depth", title="t").to_dict()
    for view, (depth, own) in zip(views(spec), curves().groupby("depth"), strict=True):
        found = rows(view).sort_values(["color", "x"])
        assert str(depth) in view["title"]
        np.testing.assert_allclose(found["y"], own.sort_values(["layer", "step"])["entropy"], rtol=1e-6)
        np.testing.assert_array_equal(found["x"], own.sort_values(["layer", "step"])["step"])


def test_panels_share_axes_unless_told_otherwise():
    for shared in (True, False):
        spec = lines(curves(), "step", "entropy", facet="depth", detail="layer", share_y=shared, title="t").to_dict()
        domains = [tuple(encoding(view, "y", "y")["scale"]["domain"]) for view in views(spec)]
        assert (len(set(domains)) == 1) is shared
        assert min(domains)[0] < curves()["entropy"].min() and max(domains)[1] > curves()["entropy"].max()


def test_a_facet_without_values_has_no_panel():
    table = curves()
    table.loc[table["depth"] == 2, "entropy"] = np.nan
    assert len(views(lines(table, "step", "entropy", facet="depth", title="t").to_dict())) == 1
    with pytest.raises(ValueError, match="no value"):
        lines(table.assign(entropy=np.nan), "step", "entropy", title="t")


def test_a_logarithmic_axis_keeps_step_zero_and_has_powers_of_ten():
    view = lines(curves((1,)), "step", "entropy", x_log=True, title="t").to_dict()
    axis = encoding(view, "x", "x")
    assert axis["scale"]["type"] == "symlog" and axis["scale"]["domain"] == [0, 1000]
    assert axis["axis"]["values"] == [0, 1, 10, 100, 1000]
    positive = lines(curves((1,)).query("step > 0"), "step", "entropy", x_log=True, y_log=True, title="t").to_dict()
    assert encoding(positive, "x", "x")["scale"]["type"] == encoding(positive, "y", "y")["scale"]["type"] == "log"


def test_what_has_no_logarithm_is_a_gap():
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, -1.0, np.inf], "low": [-1.0, 0.1, 0.1], "high": [2.0, 2, 2]})
    found = rows(lines(table, "x", "y", band=("low", "high"), y_log=True, title="t").to_dict())
    assert found["y"].isna().tolist() == [False, True, True]
    assert found["low"].min() > 0


def test_log_ticks_are_few_and_inside():
    for low, high in ((0.5, 3.0), (30, 300), (1e-9, 1e9), (1.0, 6e4)):
        ticks = log_ticks(low, high)
        assert 1 < len(ticks) <= 9
        assert all(low <= tick <= high * (1 + 1e-9) for tick in ticks)


def test_a_layer_has_its_colour_in_every_chart():
    for depths in ((1, 2), (5,), (2, 9)):
        spec = lines(curves(depths), "step", "entropy", color="layer", facet="depth", title="t").to_dict()
        scale = encoding(views(spec)[-1], "color", "color")["scale"]
        assert scale["range"] == "ordinal" and scale["domain"] == list(range(max(depths)))
    light, dark = (THEMES[name]["layers"] for name in ("light", "dark"))
    assert len(light) == len(dark) == len(set(light))


def test_order_keeps_colours_of_names_and_a_constant_looks_flat():
    table = pd.DataFrame({"x": [1, 2], "y": [2.0, 2.0 + 1e-9], "run": ["b", "c"]})
    spec = lines(table, "x", "y", color="run", order=["a", "b", "c"], title="t").to_dict()
    assert encoding(spec, "color", "color")["scale"]["domain"] == ["a", "b", "c"]
    low, high = encoding(spec, "y", "y")["scale"]["domain"]
    assert high - low > 0.03


def test_rules_and_marks_belong_to_their_panels_and_are_on_the_axis():
    marks = pd.DataFrame({"step": [10], "entropy": [1.5], "depth": [2], "low": [0.5], "high": [2.0], "label": ["dip"]})
    rules = [Rule(4.5, "uniform"), Rule(100, axis="x", facet=1, alert=True)]
    chart = lines(
        curves(), "step", "entropy", color="layer", facet="depth", rules=rules, marks=marks, x_log=True, title="t"
    )
    first, second = views(chart.to_dict())
    low, high = encoding(first, "y", "y")["scale"]["domain"]
    assert low < 0.5 and high > 4.5
    own = [json.dumps([layer.get("data") for layer in view["layer"]]) for view in (first, second)]
    assert ["4.5" in text for text in own] == [True, True]
    assert ["dip" in text for text in own] == [False, True]
    assert ['"x": 100' in text for text in own] == [True, False]


def test_labels_of_rules_that_are_close_stand_side_by_side():
    rules = [Rule(2.0, "second"), Rule(1.98, "first"), Rule(4.0, "far")]
    view = lines(curves((1,)), "step", "entropy", rules=rules, title="t").to_dict()
    words = [layer for layer in view["layer"] if layer["mark"]["type"] == "text"]
    places = {layer["data"]["values"][0]["label"]: layer["encoding"]["x"]["value"] for layer in words}
    assert places["second"] > places["first"] + 30 and places["far"] == places["first"]


def test_unreliable_values_are_crosses_off_the_lines():
    flagged = pd.DataFrame(
        {"step": [10, 100], "entropy": [2.5, 900.0], "layer": [0, 1], "depth": [2, 2], "flag": "odd"}
    )
    chart = lines(curves(), "step", "entropy", color="layer", facet="depth", crosses=flagged, title="t")
    first, second = views(chart.to_dict())
    assert not [layer for layer in first["layer"] if "shape" in layer["mark"]]
    [layer] = [layer for layer in second["layer"] if "shape" in layer["mark"]]
    found = pd.DataFrame(layer["data"]["values"])
    low, high = encoding(second, "y", "y")["scale"]["domain"]
    assert high < 4 and found["y"].between(low, high).all()  # what lies beyond the axis is at its edge
    assert found["value"].tolist() == [2.5, 900.0] and found["color"].tolist() == [0, 1]
    assert 2.5 not in rows(second)["y"].tolist() and len(chart.render("svg"))


@pytest.mark.parametrize("size", [4, 10, 501])
def test_thinning_keeps_ends_and_extremes(size):
    values = np.sin(np.arange(5000) / 7.0) + np.random.default_rng(0).normal(size=5000)
    values[1234], values[4321], values[7] = 50.0, -50.0, np.nan
    kept = extremes(values, size)
    assert len(kept) <= size and {0, 1234, 4321, 4999} <= set(kept.tolist())
    assert np.array_equal(extremes(values, 5000), np.arange(5000))


def test_long_lines_are_thinned_each_on_its_own():
    table = pd.DataFrame({"x": np.tile(np.arange(2000), 2), "y": np.arange(4000.0), "run": np.repeat(["a", "b"], 2000)})
    table.loc[500, "y"] = -9e9
    found = rows(lines(table, "x", "y", color="run", title="t").to_dict())
    assert found.groupby("color").size().between(490, 500).all() and found["y"].min() == -9e9
    short = table[table["x"] < 500]
    assert len(rows(lines(short, "x", "y", color="run", title="t").to_dict())) == len(short)


def test_merged_cells_keep_the_value_that_differs():
    table = pd.DataFrame({"step": np.arange(1000), "layer": 0, "entropy": 1.0})
    table.loc[777, "entropy"] = 0.0
    found = rows(heatmap(table, "step", "layer", "entropy", title="t", max_cells=50).to_dict())
    assert len(found) == 50 and found["value"].min() == 0.0


def every_kind():
    table = pd.DataFrame({"name": ["a", "b"], "y": [1.0, -2.0], "low": [0.5, -3.0], "high": [2.0, -1.0], "n": [3, 4]})
    cells = pd.DataFrame(
        {"i": [0, 0, 1, 1], "j": [0, 1, 0, 1], "v": [1.0, -1.0, 2.0, 0.0], "when": ["start", "end"] * 2}
    )
    line = lines(curves(), "step", "entropy", color="layer", facet="depth", x_log=True, title="Lines: μ, η", id="lines")
    spread = points(table, "name", "y", error=("low", "high"), n="n", title="Points", id="points")
    return [
        line,
        spread,
        points(table.assign(x=[1.0, 2.0]), "x", "y", error=("low", "high"), diagonal=True, title="Scatter"),
        bars(table, "name", "y", error=("low", "high"), title="Bars", id="bars"),
        bars(table, "name", "y", color="n", title="Coloured", id="coloured"),
        heatmap(cells, "i", "j", "v", facet="when", diverging=True, title="Map", id="map"),
        lines(curves((2,)), "step", "entropy", choose="layer", dash="layer", title="Choice", id="choice"),
        stack(line, beside(spread, spread, title="Two"), title="All", id="all"),
    ]


@pytest.mark.parametrize("chart", every_kind(), ids=lambda chart: chart.id)
def test_every_kind_is_drawn_the_same_each_time(chart, tmp_path):
    saved = chart.save(tmp_path)
    assert [path.name for path in saved] == [f"{chart.id}.{kind}" for kind in ("png", "svg", "pdf")]
    png, svg, pdf = (path.read_bytes() for path in saved)
    assert chart.render("svg") == svg
    assert png.startswith(b"\x89PNG") and pdf.startswith(b"%PDF") and svg.startswith(b"<svg")


def test_a_narrow_chart_is_narrow():
    for chart in every_kind():
        width, _ = struct.unpack(">II", chart.render("png", 358)[16:24])
        assert width / 2 < 358 + 60


def test_names_from_outside_stay_text():
    evil = "</script><script>alert(1)</script>"
    table = pd.DataFrame({"x.y[0]": [1, 2], evil: [1.0, 2.0], "run": [evil, '"a",b']})
    chart = lines(table, "x.y[0]", evil, color="run", title=evil, caption=evil, id="evil")
    page = chart.html()
    assert page.count("<script") == page.count("</script>") == 1
    spec = json.loads(re.search(r"<script[^>]*>(.*)</script>", page, re.DOTALL)[1])
    assert spec["data"]["columns"]["color"] == table["run"].tolist()
    assert chart.render("svg").startswith(b"<svg")
    with pytest.raises(ValueError, match="`id`"):
        Chart("../x", "t", "", chart.spec)


def test_pages_need_no_network():
    page = every_kind()[0].html() + bundle()
    for loader in ("src=", "href=", "@import", "cdn", "importScripts", "import("):
        assert loader not in re.sub(r"<script type=\"module\">.*</script>", "", page, flags=re.DOTALL)
    assert bundle().count("<script") == 1
    assert len(page) < 1_000_000


def test_notebooks_show_a_picture():
    shown = every_kind()[0]._repr_mimebundle_()
    assert "<svg" in shown["text/html"]
    assert {"text/plain", "application/vnd.vegalite.v6+json"} <= set(shown)


def test_a_metric_has_its_label_and_others_their_name():
    for labels, expected in (({}, METRICS["entropy"].axis), ({"entropy": "H"}, "H")):
        view = lines(curves((1,)), "step", "entropy", title="t", labels=labels).to_dict()
        assert encoding(view, "y", "y")["axis"]["title"] == expected
        assert encoding(view, "x", "x")["axis"]["title"] == "step"


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="no column 'depht'"):
        lines(curves(), "step", "entropy", facet="depht", title="t")
