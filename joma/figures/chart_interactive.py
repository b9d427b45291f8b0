"""Charts as plotly figures, one for each panel; titles and captions are the page's, which can break their lines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.figures.chart import Bars, Chart, HeatMap, Line, Panel
from joma.figures.chart_style import (
    MAX_LABEL,
    MAX_TICK_LABEL,
    Paint,
    Painter,
    band,
    brief,
    edges,
    kept,
    least_colors,
    least_ends,
    names_of,
    stretches,
    visible,
)
from joma.figures.curves import (
    BAR,
    BAR_MARGIN,
    DARK_RANGE,
    DASHES,
    INK,
    LIGHT_RANGE,
    MAX_LEGEND,
    MAX_LINE_MARKERS,
    MAX_TICKS,
    blank,
    color_scale,
    literal,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

HEIGHT, MAP_HEIGHT = 360, 420
"""Pixels of a panel."""
LEGEND_ROW, LEGEND_MARK, LETTER, LEGEND_SIDES, NARROW = 22, 50, 7, 90, 340
"""Pixels: height of a legend's row, width of the mark of an entry and of a letter, what lies beside the legend, and a
narrow panel."""
LEGEND_GAP = 8
"""Pixels between the buttons of a figure and its legend."""
MANY_DECADES = 2.5
"""From here on powers of ten alone are named on an x axis: 2 and 5 between them would overlap."""
MANY_LETTERS, TURNED = 40, -35
"""Letters that fit below a panel, and the degrees by which longer names are turned, so that they end at their tick."""
BAND_OPACITY = 0.18
LINE_WIDTH, POINT_SIZE = 2.0, 6


def figures(chart: Chart) -> "list[go.Figure]":
    """Draw each panel; colours and shades are those of the whole chart."""
    painter = Painter(chart)
    return [_figure(panel, painter) for panel in chart.panels]


def _figure(panel: Panel, painter: Painter) -> "go.Figure":
    traces = _told_once([trace for item in panel.items for trace in _traces(item, panel, painter)])
    num_named = sum(trace.get("showlegend", False) for trace in traces)
    shaded = any(isinstance(item, Line) and item.shade is not None for item in panel.items)
    if num_named > MAX_LEGEND and shaded:
        traces = [trace | {"showlegend": False} for trace in traces] + [_shade_bar(painter)]
        num_named = 0
    has_bar = any("colorbar" in (trace | trace.get("marker", {})) for trace in traces)
    figure = blank(traces, MAP_HEIGHT if has_bar else HEIGHT)
    figure.update_layout(hovermode="closest", barmode="group", showlegend=num_named > 1)
    if has_bar:
        figure.update_layout(margin_b=BAR_MARGIN)
    if num_named > 1:
        _make_room(figure, num_named, max(len(trace.get("name", "")) for trace in traces))
    figure.update_xaxes(_axis(panel.x_label, names_of(panel, "x"), log=panel.log_x))
    if panel.log_x and _num_decades(panel) > MANY_DECADES:
        figure.update_xaxes(dtick=1)
    if sum(map(len, figure.layout.xaxis.ticktext or ())) > MANY_LETTERS:
        figure.update_xaxes(tickangle=TURNED)
    figure.update_yaxes(_axis(panel.y_label, names_of(panel, "y"), log=panel.log_y) | {"automargin": True})
    if names_of(panel, "y"):
        figure.update_yaxes(autorange="reversed", showgrid=False)
    if ends := least_ends(panel):  # a logarithmic axis is given its range in exponents, and includes no values
        figure.update_yaxes({"range": np.log10(ends).tolist()} if panel.log_y else {"autorangeoptions_include": ends})
    return figure


def _make_room(figure: "go.Figure", num_named: int, longest: int) -> None:
    """Put the legend above the panel, where nothing else grows, with room for it on a narrow screen.

    `page.js` does the same for the width that there is, from what `meta` says.
    """
    columns = max(1, (NARROW - LEGEND_SIDES) // (LEGEND_MARK + LETTER * longest))
    rows = -(-num_named // columns)
    meta = {"num": num_named, "entry": LEGEND_MARK + LETTER * longest, "row": LEGEND_ROW, "sides": LEGEND_SIDES}
    top = figure.layout.margin.t + LEGEND_GAP
    figure.update_layout(
        height=figure.layout.height + LEGEND_GAP + LEGEND_ROW * rows,
        margin_t=top + LEGEND_ROW * rows,
        legend={"y": 1.0, "yanchor": "bottom"},
        meta={"legend": meta | {"top": top, "height": figure.layout.height + LEGEND_GAP}},
    )


def _traces(item: Line | Bars | HeatMap, panel: Panel, painter: Painter) -> Iterator[dict[str, Any]]:
    if isinstance(item, HeatMap):
        yield _map(item, panel)
    elif isinstance(item, Bars):
        yield _bars(item, panel, painter(item))
    else:
        paint = painter(item)
        if item.low is not None:
            yield from _bands(item, panel, paint)
        yield _line(item, panel, paint)


def _line(line: Line, panel: Panel, paint: Paint) -> dict[str, Any]:
    places = kept(line, log_x=panel.log_x)
    lines = "lines+markers" if line.style == "line" and places.size <= MAX_LINE_MARKERS else "lines"
    color = paint.colors["light"]
    dash = DASHES[(paint.turn + (line.style == "dashed")) % len(DASHES)]
    return _entry(line.label, paint) | {
        "type": "scatter",
        "mode": "markers" if line.style == "points" else lines,
        "text": literal(line.label),
        "x": line.x[places],
        "y": visible(line.y[places], log=panel.log_y).astype(np.float32),
        "line": {"color": color, "width": LINE_WIDTH, "dash": dash},
        "marker": {"size": POINT_SIZE if line.style == "points" else 4, "color": color},
        "hovertemplate": f"%{{text}}<br>{literal(panel.x_label)} %{{x:.6~g}}: %{{y:.5~g}}<extra></extra>",
    }


def _bands(line: Line, panel: Panel, paint: Paint) -> Iterator[dict[str, Any]]:
    """Areas between the edges, one for each stretch without a gap."""
    places = kept(line, log_x=panel.log_x)
    low, high = (edge[places] for edge in band(line, log=panel.log_y))
    colors = {page: _see_through(color) for page, color in paint.colors.items()}
    for part in stretches(~np.isnan(low)):
        around = np.concatenate([part, part[::-1]])
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": line.x[places][around],
            "y": np.concatenate([high[part], low[part[::-1]]]).astype(np.float32),
            "fill": "toself",
            "fillcolor": colors["light"],
            "line": {"width": 0, "color": colors["light"]},
            "meta": colors,
            "legendgroup": literal(line.label),
            "showlegend": False,
            "hoverinfo": "skip",
        }


def _bars(bars: Bars, panel: Panel, paint: Paint) -> dict[str, Any]:
    names = names_of(panel, "x")
    trace = _entry(bars.label, paint) | {
        "type": "bar",
        "hovertext": [literal(f"{bars.label}, {name}" if bars.label else name) for name in bars.categories],
        "x": [names.index(name) for name in bars.categories],
        "y": visible(bars.values, log=panel.log_y).astype(np.float32),
        "marker": {"color": paint.colors["light"]},
        "hovertemplate": "%{hovertext}: %{y:.5~g}<extra></extra>",
    }
    if bars.labels is not None:
        trace |= {"text": [literal(label) for label in bars.labels], "textposition": "outside", "cliponaxis": False}
        trace["hovertemplate"] = "%{hovertext}: %{y:.5~g} (%{text})<extra></extra>"
    if bars.errors is not None:
        errors = visible(bars.errors, log=False).astype(np.float32)
        trace["error_y"] = {"type": "data", "array": errors, "color": INK, "thickness": 1.5, "width": 3}
        trace["customdata"] = np.nan_to_num(errors)
        trace["hovertemplate"] = "%{hovertext}: %{y:.5~g} ± %{customdata:.2~g}<extra></extra>"
    return trace


def _map(heat_map: HeatMap, panel: Panel) -> dict[str, Any]:
    rows, columns = ([_shown(tick) for tick in ticks] for ticks in (heat_map.y, heat_map.x))
    ends = least_colors(heat_map)
    return ({"zmin": ends[0], "zmax": ends[1]} if ends else {}) | {
        "type": "heatmap",
        "x": edges(heat_map.x, log=panel.log_x),
        "y": edges(heat_map.y, log=panel.log_y),
        "z": visible(heat_map.z, log=False).astype(np.float32),
        "text": [[f"{row}<br>{column}" for column in columns] for row in rows],
        "colorscale": color_scale(0.0, 1.0),
        "colorbar": BAR,
        "hovertemplate": f"%{{text}}<br>{literal(heat_map.label)} %{{z:.5~g}}<extra></extra>",
    }


def _entry(label: str, paint: Paint) -> dict[str, Any]:
    """What an item has in the legend, and its colours for `page.js`."""
    return {
        "name": literal(brief(label, MAX_LABEL)),
        "legendgroup": literal(label),
        "showlegend": bool(label),
        "meta": paint.colors,
    }


def _told_once(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave one entry of the legend for each label."""
    told: set[str] = set()
    for trace in traces:
        if trace.get("showlegend"):
            trace["showlegend"] = trace["legendgroup"] not in told
            told.add(trace["legendgroup"])
    return traces


def _shade_bar(painter: Painter) -> dict[str, Any]:
    """A colour bar for lines that are too many for a legend; it hangs on a trace without points."""
    scales = {"light": color_scale(*LIGHT_RANGE), "dark": color_scale(*DARK_RANGE)}
    ends = {"cmin": min(painter.shades), "cmax": max(painter.shades)}
    marker = ends | {"color": [ends["cmin"]], "colorscale": scales["light"], "colorbar": BAR}
    empty = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": False, "hoverinfo": "skip"}
    return empty | {"marker": marker, "meta": scales}


def _num_decades(panel: Panel) -> float:
    """How many powers of ten the lines of a panel with a logarithmic x axis go through."""
    x = np.concatenate([item.x[item.x > 0] for item in panel.items if isinstance(item, Line)] or [np.ones(1)])
    return float(np.log10(x.max() / x.min())) if x.size else 0.0


def _axis(label: str, names: tuple[str, ...], *, log: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": literal(label)}, "type": "log" if log else "linear", "nticks": 7}
    if log:
        axis["exponentformat"] = "power"
    if names:
        places = range(0, len(names), -(-len(names) // MAX_TICKS))
        axis |= {
            "automargin": True,
            "tickvals": list(places),
            "ticktext": [literal(brief(names[place], MAX_TICK_LABEL)) for place in places],
        }
    return axis


def _see_through(color: str) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{BAND_OPACITY})"


def _shown(tick: str | float) -> str:
    return literal(tick) if isinstance(tick, str) else f"{tick:.6g}"
