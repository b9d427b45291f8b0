"""Charts: what cannot be drawn is refused; both renderings show the values, with bands, names as they are, and gaps."""

import json
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from joma.figures.chart import Bars, Chart, HeatMap, Line, Panel, save_static, to_matplotlib, to_plotly
from joma.figures.chart_style import MAX_LINE_POINTS, MAX_SCATTERED, edges, stretches
from joma.figures.curves import MAX_LEGEND, PALETTE, Curve, curves
from joma.page.layers import min_span

HOSTILE = "</script><b>$x$</b>%{y} \x00_"
STEPS = np.arange(1, 21)


def line(label="a", **options):
    return Line(label, STEPS, np.sqrt(STEPS), **options)


def chart(*items, **options):
    return Chart("made", "Title", "Caption.", [Panel("panel", "x", "y", items, **options)])


def traces(made):
    return [trace for figure in to_plotly(made) for trace in figure.data]


def drawn(made):
    return to_matplotlib(made).axes[0]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Line("a", [1, 2], [1]), "Shapes must agree"),
        (lambda: Line("a", [1, np.nan], [1, 2]), "`x` must be finite"),
        (lambda: Line("a", [[1]], [[1]]), "`x` must have one axis"),
        (lambda: Line("a", ["one"], [1]), "`x` must be numbers"),
        (lambda: Line("a", [1], [1], style="wavy"), "line, dashed, points, got 'wavy'"),
        (lambda: Line("a", [1], [1], low=[0]), "one edge of a band"),
        (lambda: Line("a", [1], [1], low=[2], high=[1]), "`low` above `high`"),
        (lambda: Line("a", [1], [1], low=[2, 1], high=[3, 3]), "Shapes must agree"),
        (lambda: Line("a", [1], [1], color=1, shade=0.5), "not both"),
        (lambda: Line("a", [1], [1], color=-1), "from 0 on"),
        (lambda: Line("a", [1], [1], shade=np.nan), "`shade` must be finite"),
        (lambda: Bars("a", ["p", "q"], [1]), "one value for each category"),
        (lambda: Bars("a", ["p", "p"], [1, 2]), "each category once"),
        (lambda: Bars("a", ["p"], [1], errors=[-1]), "must not be negative"),
        (lambda: Bars("a", ["p"], [1], labels=["x", "y"]), "one label for each value"),
        (lambda: HeatMap("a", [1, 2], [1], [[1], [2]]), r"\(y, x\) = \(1, 2\)"),
        (lambda: HeatMap("a", [2, 1], [1], [[1, 2]]), "must ascend"),
        (lambda: HeatMap("a", [], [], np.zeros((0, 0))), "an entry at least"),
        (lambda: Panel("p", "x", "y", []), "nothing to draw"),
        (lambda: Panel("p", "x", "y", [HeatMap("a", [1], [1], [[1]])] * 2), "a panel of its own"),
        (lambda: Panel("p", "x", "y", [Bars("a", ["p"], [1])], log_x=True), "no logarithm"),
        (lambda: Panel("p", "x", "y", [HeatMap("a", [0, 1], [1], [[1, 2]])], log_x=True), "not all positive"),
        (lambda: Chart("made", "t", "c", []), "no panel"),
        (lambda: Chart("../made", "t", "c", [Panel("p", "x", "y", [line()])]), "small letters"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_drawn(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_lines_are_the_values_and_panels_are_figures_of_their_own():
    panels = [Panel(f"p{place}", "x", "y", [line()], log_x=bool(place)) for place in range(3)]
    figures = to_plotly(Chart("made", "t", "c", panels))
    assert [figure.layout.xaxis.type for figure in figures] == ["linear", "log", "log"]
    for figure in figures:
        np.testing.assert_array_equal(figure.data[0].x, STEPS)
        np.testing.assert_allclose(figure.data[0].y, np.sqrt(STEPS), rtol=1e-6)  # drawn in single precision


def test_columns_of_tables_and_lists_are_taken():
    frame = pd.DataFrame({"x": [1, 2], "y": [3.0, 4.0]}, index=[7, 9])
    made = Line("a", frame["x"], frame["y"], low=[2, 3], high=frame["y"] + 1)
    np.testing.assert_array_equal(made.high, [4, 5])


def test_a_band_goes_around_its_edges_and_has_the_colour_of_its_line():
    band, curve = traces(chart(line(low=np.zeros(20), high=np.full(20, 5.0))))
    assert band.fill == "toself" and set(band.y) == {0.0, 5.0} and len(band.x) == 40 and not band.showlegend
    assert curve.meta == PALETTE[0] and band.meta["dark"].startswith("rgba(109,179,242")


def test_a_band_is_broken_where_an_edge_is_missing():
    low = np.zeros(20)
    low[[4, 11]] = np.nan, -np.inf
    bands = traces(chart(line(low=low, high=np.ones(20))))[:-1]
    assert [len(band.x) // 2 for band in bands] == [4, 6, 8]


def test_what_a_logarithmic_axis_cannot_show_is_a_gap():
    made = Line("a", [0, 1, 2, 3], [5, 1, 0, np.inf], low=[0] * 4, high=[6, 2, 1, 1])
    band, curve = traces(chart(made, log_x=True, log_y=True))
    np.testing.assert_array_equal(curve.x, [1, 2, 3])
    np.testing.assert_array_equal(curve.y, [1, np.nan, np.nan])
    assert min(band.y) == 1.0  # an edge at 0 goes down to the smallest positive number of the line


def test_labels_have_one_entry_and_one_colour_over_all_panels():
    panels = [
        Panel("p", "x", "y", [line("a"), line("a"), line("b")]),
        Panel("q", "x", "y", [line("b"), line("c", color=0), line("", style="dashed")]),
    ]
    first, second = to_plotly(Chart("made", "t", "c", panels))
    assert [trace.showlegend for trace in first.data] == [True, False, True]
    assert [trace.meta for trace in second.data][:2] == [PALETTE[1], PALETTE[0]]
    assert second.data[2].line.dash == "dash" and not second.data[2].showlegend


def test_the_palette_goes_round_with_other_dashes():
    shown = traces(chart(*(line(str(place)) for place in range(8))))
    assert len({(trace.line.color, trace.line.dash) for trace in shown}) == 8


def test_shades_span_the_chart_and_many_of_them_get_a_colour_bar():
    few = traces(chart(*(line(str(place), shade=place) for place in range(3))))
    assert len({trace.meta["light"] for trace in few}) == 3
    *many, bar = traces(chart(*(line(str(place), shade=place) for place in range(MAX_LEGEND + 1))))
    assert not any(trace.showlegend for trace in many) and bar.marker.cmax == MAX_LEGEND


def test_bars_stand_at_their_category_side_by_side():
    left, right = (
        Bars("left", ["p", "q"], [1, 2], errors=[0.1, np.nan]),
        Bars("right", ["r", "q"], [3, 4]),
    )
    made = chart(left, right, Line("goal", [0, 1, 2], [5, 5, 5], style="points"))
    first, second, points = traces(made)
    assert first.x == (0, 1) and second.x == (2, 1) and points.mode == "markers"
    [figure] = to_plotly(made)
    assert figure.layout.xaxis.ticktext == ("p", "q", "r") and figure.layout.barmode == "group"
    np.testing.assert_allclose(first.error_y.array, [0.1, np.nan], rtol=1e-6)


def test_bars_say_what_is_written_above_them_also_where_they_have_no_height():
    made = chart(Bars("a", ["p", "q"], [0.0, 1.0], labels=["0 of 6", "6 of 6"]))
    [trace] = traces(made)
    assert list(trace.text) == ["0 of 6", "6 of 6"] and trace.textposition == "outside"
    assert list(trace.hovertext) == ["a, p", "a, q"]
    axes = drawn(made)
    assert [text.get_text() for text in axes.texts] == ["0 of 6", "6 of 6"] and axes.get_ylim()[1] > 1.1


def test_heat_maps_have_cells_around_their_numbers_and_names_from_the_top():
    [figure] = to_plotly(chart(HeatMap("z", [1, 10, 100], ["top", "below"], np.arange(6.0).reshape(2, 3)), log_x=True))
    np.testing.assert_allclose(np.log10(figure.data[0].x), [-0.5, 0.5, 1.5, 2.5], atol=1e-12)
    assert figure.layout.yaxis.autorange == "reversed" and figure.layout.yaxis.ticktext == ("top", "below")


def test_whole_numbers_of_a_heat_map_have_whole_ticks():
    for numbers, are_whole in ((np.arange(20.0), True), (np.arange(20.0) / 20, False)):
        ticks = drawn(chart(HeatMap("v", numbers, ["a"], np.zeros((1, 20))))).get_xticks()
        assert (ticks == ticks.round()).all() == are_whole


def test_ticks_of_a_logarithmic_axis_name_powers_of_ten_alone_where_there_are_many():
    for steps, dtick in (([1, 10, 10_000], 1), ([1, 10, 30], None)):
        [figure] = to_plotly(chart(Line("a", steps, [1, 2, 3]), log_x=True))
        assert figure.layout.xaxis.dtick == dtick


def test_long_names_below_bars_end_at_their_tick():
    for name, angle in (("a long name of a category", -35), ("a", None)):
        [figure] = to_plotly(chart(Bars("a", [name, f"{name}, too"], [1, 2])))
        assert figure.layout.xaxis.tickangle == angle


def test_long_lines_keep_their_extremes_and_clouds_some_points():
    y = np.sin(np.arange(50_000.0))
    y[23_456] = -7
    curve, cloud = traces(chart(Line("a", np.arange(50_000), y), Line("b", np.arange(50_000), y, style="points")))
    assert len(curve.x) <= MAX_LINE_POINTS and min(curve.y) == -7 and len(cloud.x) == MAX_SCATTERED


def test_names_reach_plotly_as_text():
    items = [line(HOSTILE), Bars(HOSTILE, [HOSTILE], [1])]
    panels = [
        Panel(HOSTILE, HOSTILE, HOSTILE, items),
        Panel("", "x", "y", [HeatMap(HOSTILE, [HOSTILE], [HOSTILE], [[1]])]),
    ]
    for figure in to_plotly(Chart("made", HOSTILE, HOSTILE, panels)):
        texts = json.dumps(json.loads(figure.to_json()), ensure_ascii=False)
        assert "&lt;/script&gt;" in texts and "</script>" not in texts and "<b>" not in texts
        assert "%{y} " not in texts


def test_lines_bands_and_bars_are_the_values():
    axes = drawn(chart(line(low=np.zeros(20), high=np.full(20, 5.0)), Bars("b", ["p", "q"], [1, 2], errors=[1, 1])))
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.sqrt(STEPS))
    assert [bar.get_height() for bar in axes.patches] == [1, 2]
    assert axes.collections[0].get_datalim(axes.transData).ymax == 5


def test_panels_that_share_their_labels_have_one_legend():
    same = Chart("made", "t", "c", [Panel("p", "x", "y", [line("a"), line("b")])] * 2)
    figure = to_matplotlib(same)
    assert len(figure.legends) == 1 and all(axes.get_legend() is None for axes in figure.axes)
    other = Chart("made", "t", "c", [*same.panels, Panel("q", "x", "y", [line("c")])])
    figure = to_matplotlib(other)
    assert not figure.legends and [len(axes.get_legend().texts) for axes in figure.axes] == [2, 2, 1]


def test_panels_with_some_names_in_common_have_one_legend_of_all_of_them():
    panels = [
        Panel(f"depth {depth}", "x", "y", [line(f"layer {layer}", shade=layer) for layer in range(depth)])
        for depth in (1, 2, 5, 10)
    ]
    figure = to_matplotlib(Chart("made", "t", "c", panels))
    [legend] = figure.legends
    assert all(axes.get_legend() is None for axes in figure.axes)
    assert {text.get_text() for text in legend.texts} == {f"layer {layer}" for layer in range(10)}
    figure.draw_without_rendering()
    tops = {round(text.get_window_extent().y1) for text in legend.texts}
    by_row = sorted(legend.texts, key=lambda text: (-round(text.get_window_extent().y1), text.get_window_extent().x0))
    assert len(tops) == 2 and [text.get_text() for text in by_row] == [f"layer {layer}" for layer in range(10)]
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes if axes.get_visible())
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 and extent.x1 <= figure.bbox.width and 0 <= extent.y0 and extent.y1 <= lowest


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([line("a", color=0), line("b", color=1)], [line("a", color=1), line("b", color=0)]),
        ([line("a", color=0), line("b", color=1)], [line("b", color=1), line("c", color=0)]),
    ],
    ids=["one name in two colours", "two names in one colour"],
)
def test_a_legend_for_all_panels_would_mislead(first, second):
    figure = to_matplotlib(Chart("made", "t", "c", [Panel("p", "x", "y", first), Panel("q", "x", "y", second)]))
    assert not figure.legends and [len(axes.get_legend().texts) for axes in figure.axes] == [2, 2]


def test_a_legend_lies_above_the_bars():
    bars = [Bars(name, ["p", "q", "r"], [1.0, 1.0, 1.0]) for name in ("one", "two")]
    figure = to_matplotlib(Chart("made", "T", "C.", [Panel("", "x", "y", bars), Panel("", "x", "y", [line("other")])]))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    top = max(bar.get_window_extent().y1 for bar in axes.patches)
    assert axes.get_legend().get_window_extent().y0 > top


def test_places_without_a_panel_are_empty():
    figure = to_matplotlib(Chart("made", "t", "c", [Panel("p", "x", "y", [line()])] * 5))
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]


def test_a_long_title_stays_within_the_picture():
    panels = [Panel("panel", "x", "y", [line()])]
    made = Chart("made", "Stable rank of the lower matrix of every layer " * 4, "Caption.", panels)
    figure = to_matplotlib(made)
    figure.draw_without_rendering()
    extent = figure._suptitle.get_window_extent()
    assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width


def test_the_same_chart_is_the_same_three_files(tmp_path):
    panels = [
        Panel(HOSTILE, HOSTILE, "y", [line(HOSTILE), line("_hidden", shade=1), Bars("b", [HOSTILE], [1])]),
        Panel("東", "x", "y", [HeatMap("z", ["a", "東"], [1, 2], [[1, np.nan], [3, 4]])]),
        Panel("", "x", "y", [Line("gap", [0, 1, 2], [1, np.nan, 0], low=[0, 0, 0], high=[2, 2, 2])], log_y=True),
    ]
    made = Chart("made", "cost in $ and €", "c", panels)
    paths = save_static(made, tmp_path / "one")
    assert [path.name for path in paths] == ["made.png", "made.pdf", "made.svg"]
    again = save_static(made, tmp_path / "two")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert paths[0].read_bytes().startswith(b"\x89PNG") and paths[1].read_bytes().startswith(b"%PDF")
    assert ElementTree.parse(paths[2]).getroot().tag.endswith("svg")


def test_many_shades_get_a_colour_bar():
    figure = to_matplotlib(chart(*(line(str(place), shade=place) for place in range(MAX_LEGEND + 1))))
    assert len(figure.axes) == 2 and not figure.legends


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_stretches_are_what_is_seen_in_order_and_unbroken(seen):
    parts = stretches(np.array(seen))
    np.testing.assert_array_equal(np.concatenate([*parts, []]), np.flatnonzero(seen))
    assert all((np.diff(part) == 1).all() for part in parts)
    assert all(after[0] - before[-1] > 1 for before, after in pairwise(parts))


@given(arrays.arrays(np.float64, st.integers(1, 12), elements=st.floats(0.1, 5.0)), st.booleans())
def test_every_number_lies_in_its_cell(gaps, log):
    ticks = np.cumsum(gaps)
    cells = edges(ticks, log=log)
    assert cells.size == ticks.size + 1 and (cells[:-1] < ticks).all() and (ticks < cells[1:]).all()


NOISE = 1e-7 * np.random.default_rng(0).normal(size=50)
"""Rounding, which is no curve."""


@pytest.mark.parametrize("log_y", [False, True], ids=["linear", "logarithmic"])
def test_a_flat_line_with_noise_looks_flat(log_y):
    flat = Line("flat", np.arange(50), 3 + NOISE, low=3 + NOISE - 1e-6, high=3 + NOISE + 1e-6)
    made = chart(flat, log_y=log_y)
    low, high = drawn(made).get_ylim()
    assert high - low == pytest.approx(0.02 * 3, rel=1e-3) and low < 3 < high
    [figure] = to_plotly(made)
    axis = figure.layout.yaxis
    ends = 10.0 ** np.array(axis.range) if log_y else axis.autorangeoptions.include
    assert ends[1] - ends[0] == pytest.approx(0.02 * 3, rel=1e-3)


def test_the_least_span_is_that_of_the_pages_of_runs():
    """One rule: a chart, which does not know its quantity, has the axis of one in which a small change matters."""
    flat = 3 + NOISE
    [of_chart] = to_plotly(chart(Line("flat", np.arange(50), flat)))
    curve = Curve(label="a", detail="a", shade=0.0, steps=np.arange(50), values=flat)
    of_page = curves([curve], quantity="loss", max_points=100, min_span=min_span("loss", [curve]))
    assert of_chart.layout.yaxis.autorangeoptions == of_page.layout.yaxis.autorangeoptions


def test_what_is_no_noise_fills_its_axis():
    made = chart(Line("a", [0, 1, 2], [1.0, 1.1, 1.05]))
    low, high = drawn(made).get_ylim()
    assert high - low < 0.12
    assert to_plotly(made)[0].layout.yaxis.autorangeoptions.include is None
    around_zero = drawn(chart(Line("a", [0, 1], [-1e-9, 1e-9]))).get_ylim()
    assert around_zero == pytest.approx((-1.1e-9, 1.1e-9))  # there is nothing to call it small against


def test_bars_begin_at_zero_and_are_left_alone():
    low, _ = drawn(chart(Bars("a", ["x", "y"], [3.0, 3.0 + 1e-7]))).get_ylim()
    assert low == 0


def test_a_flat_heat_map_has_one_colour():
    [figure] = to_plotly(chart(HeatMap("v", [0, 1], [0, 1], 3 + NOISE[:4].reshape(2, 2))))
    trace = figure.data[0]
    assert trace.zmax - trace.zmin == pytest.approx(0.02 * 3, rel=1e-3)
    mesh = drawn(chart(HeatMap("v", [0, 1], [0, 1], 3 + NOISE[:4].reshape(2, 2)))).collections[0]
    assert mesh.get_clim() == pytest.approx((trace.zmin, trace.zmax))
    [varied] = to_plotly(chart(HeatMap("v", [0, 1], [0, 1], [[1, 2], [3, 4]])))
    assert varied.data[0].zmin is None
