"""Pictures of measured curves show the numbers, the flags and the names, all of them as they are."""

import json
from dataclasses import replace

import numpy as np
import pytest

from joma.figures.curves import COMBINED, MAX_LEGEND, Compared, Curve, Mark, comparison, curves, heat_map, literal

HOSTILE = "</script><b>bold</b>%{y}\u2028"


def made(layer, num=50, *, errors=False, label=None):
    steps = np.arange(num) * 10
    values = 3 - np.exp(-(((steps - 200.0) / 90) ** 2)) + 0.1 * layer
    return Curve(
        label=label or f"layer {layer}",
        detail=label or f"layer {layer}, h.{layer}.attn",
        shade=float(layer),
        steps=steps,
        values=values,
        errors=np.full(num, 0.25) if errors else None,
    )


def test_lines_are_the_values_coloured_by_layer():
    lines = [made(layer) for layer in range(4)]
    figure = curves(lines, quantity="attention entropy, nats", max_points=100)
    for line, trace in zip(lines, figure.data, strict=True):
        np.testing.assert_array_equal(trace.x, line.steps)
        np.testing.assert_allclose(trace.y, line.values, rtol=1e-6)  # drawn in single precision
        assert trace.name == line.label and trace.text == line.detail and trace.error_y.array is None
    assert len({trace.line.color for trace in figure.data}) == 4
    assert figure.layout.yaxis.title.text == "attention entropy, nats" and figure.layout.xaxis.type == "linear"


def test_error_bars_are_drawn_where_there_are_errors():
    [trace] = curves([made(0, errors=True)], quantity="q", max_points=100).data
    np.testing.assert_array_equal(trace.error_y.array, np.full(50, 0.25, np.float32))
    assert "±" in trace.hovertemplate


def test_long_curves_are_thinned_with_their_dip_kept():
    line = made(0, num=5000)
    line.values[2345] = -7.0
    [trace] = curves([line], quantity="q", max_points=60).data
    assert len(trace.x) <= 60 and min(trace.y) == -7.0 and line.steps[2345] in trace.x


def test_flagged_values_are_crosses_where_they_are_and_at_the_foot_when_they_are_no_number():
    marks = [
        Mark(detail="layer 0, h.0.attn", step=100, value=9.5, text="residual 0.1"),
        Mark(detail="layer 0, h.0.attn", step=200, value=np.nan, text="nothing but NaN"),
    ]
    alarm = Mark(detail="", step=300, value=np.nan, text="collapsed")
    _, flagged, lost, rung = curves([made(0)], quantity="q", flagged=marks, alarms=[alarm], max_points=100).data
    assert flagged.x == (100,) and flagged.y == (9.5,) and flagged.text == ("residual 0.1",)
    assert lost.x == (200,) and lost.yaxis == "y2" and rung.x == (300,) and rung.yaxis == "y2"
    assert [trace.name for trace in (flagged, lost, rung)] == ["flagged", "not a finite number", "alarm"]


def test_many_layers_get_a_colour_bar_instead_of_a_legend():
    figure = curves([made(layer) for layer in range(MAX_LEGEND + 1)], quantity="q", max_points=100)
    *lines, bar = figure.data
    assert not any(trace.showlegend for trace in lines)
    assert bar.marker.cmin == 0 and bar.marker.cmax == MAX_LEGEND and bar.marker.colorbar.tickprefix == "layer "


def test_what_is_outside_of_the_layers_has_a_name_and_no_place_among_their_colours():
    outside = replace(made(0, label="pooler"), shade=None)
    *lines, bar = curves(
        [outside, *(made(layer) for layer in range(MAX_LEGEND + 1))], quantity="q", max_points=100
    ).data
    assert bar.marker.cmin == 0
    assert [trace.name for trace in lines if trace.showlegend] == ["pooler"]
    assert lines[0].line.color not in {trace.line.color for trace in lines[1:]}
    alone, among = (curves(own, quantity="q", max_points=100).data for own in ([made(3)], [outside, made(3)]))
    assert alone[0].line.color == among[1].line.color


def test_heat_map_has_a_row_for_each_layer_and_a_column_for_each_step():
    rows = [made(layer, num=20) for layer in range(3)]
    trace, crosses = heat_map(
        rows,
        flagged=[Mark(detail=rows[1].detail, step=70, value=5.0, text="why")],
        max_columns=100,
    ).data
    np.testing.assert_allclose(trace.z, [row.values for row in rows], rtol=1e-6)
    assert trace.x == tuple(str(step) for step in rows[0].steps) and trace.y == tuple(row.detail for row in rows)
    assert crosses.x == ("70",) and crosses.y == (rows[1].detail,) and crosses.text == ("why",)


def test_heat_map_of_curves_with_other_steps_has_holes_and_a_flagged_step_that_nobody_else_has():
    short = Curve(label="b", detail="b", shade=1.0, steps=np.array([0, 30]), values=np.array([1.0, 2.0]))
    mark = Mark(detail="b", step=15, value=np.nan, text="why")
    trace, crosses = heat_map([made(0, num=3, label="a"), short], flagged=[mark], max_columns=9).data
    assert trace.x == ("0", "10", "15", "20", "30") and crosses.x == ("15",)
    np.testing.assert_array_equal(np.isnan(trace.z), [[0, 0, 1, 0, 1], [0, 1, 1, 1, 0]])


def test_heat_map_of_many_steps_names_the_stretch_of_each_column():
    trace = heat_map([made(0, num=1000), made(1, num=1000)], max_columns=50).data[0]
    assert trace.z.shape == (2, 50) and trace.x[0] == "0–190" and trace.x[-1] == "9800–9990"


def test_heat_map_names_some_rows_only_when_there_are_many():
    figure = heat_map([made(layer, num=5) for layer in range(100)], max_columns=50)
    assert len(figure.layout.yaxis.ticktext) <= 14 and figure.layout.yaxis.ticktext[0] == "layer 0"


def test_comparison_shows_the_chosen_layer_of_every_run_and_hides_the_others():
    lines = [
        Compared(run=run, choice=choice, curve=made(run, label=f"run {run}"))
        for run in range(8)
        for choice in (COMBINED, "layer 0")
    ]
    figure = comparison(lines, quantity="q", max_points=100, choice=COMBINED)
    assert [trace.visible for trace in figure.data] == [True, False] * 8
    assert {trace.meta["choice"] for trace in figure.data} == {COMBINED, "layer 0"}
    assert len({(trace.line.color, trace.line.dash) for trace in figure.data}) == 8


def test_steps_can_be_logarithmic():
    assert curves([made(0)], quantity="q", max_points=100, log_steps=True).layout.xaxis.type == "log"


@pytest.mark.parametrize(
    "figure",
    [
        lambda: curves(
            [made(0, label=HOSTILE)],
            quantity=HOSTILE,
            flagged=[Mark(detail=HOSTILE, step=0, value=1.0, text=HOSTILE)],
            max_points=100,
        ),
        lambda: heat_map(
            [made(0, label=HOSTILE), made(1)],
            flagged=[Mark(detail=HOSTILE, step=0, value=1.0, text=HOSTILE)],
            max_columns=9,
        ),
        lambda: comparison(
            [Compared(run=0, choice=COMBINED, curve=made(0, label=HOSTILE))],
            quantity=HOSTILE,
            max_points=100,
            choice=COMBINED,
        ),
    ],
    ids=["curves", "heat map", "comparison"],
)
def test_names_reach_plotly_as_text_and_not_as_markup_or_template(figure):
    texts = json.dumps(json.loads(figure().to_json()), ensure_ascii=False)
    assert "&lt;/script&gt;" in texts and "</script>" not in texts and "<b>" not in texts
    assert "%{y}\u2028" not in texts and literal("%{y}") in texts
