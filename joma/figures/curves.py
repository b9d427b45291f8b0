"""Measured curves of many layers as interactive pictures: lines over steps, layer × step, several runs at once.

Names come from outside: plotly reads a little HTML in every text, so they are escaped here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from joma.figures.span import widened
from joma.figures.thinning import columns, extremes

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOR_MAP = "viridis"
LIGHT_RANGE, DARK_RANGE = (0.0, 0.88), (0.3, 1.0)
"""Parts of the map that are visible on a light page and on a dark one."""
INK, SOFT, GRID = "#1d2433", "#5b6478", "#d9dde6"
ALARM = {"light": "#b3261e", "dark": "#ff8a80"}
OUTSIDE = {"light": SOFT, "dark": "#a9b1c4"}
"""What is measured outside of the layers, beside lines that are coloured by theirs."""
PALETTE = (
    {"light": "#0b62a8", "dark": "#6db3f2"},
    {"light": "#c4500b", "dark": "#ff9d5c"},
    {"light": "#0b7a53", "dark": "#56d3a2"},
    {"light": "#a13a86", "dark": "#e98fd0"},
    {"light": "#7a6200", "dark": "#e5c84b"},
    {"light": "#5b4bb5", "dark": "#b3a6ff"},
)
"""Runs side by side; a seventh takes the first colour with another dash."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MAX_LEGEND = 12
"""Lines that a legend can name; more get a colour bar."""
MAX_LINE_MARKERS = 40
"""Points of a line up to which each gets a dot."""
MAX_TICKS = 14
"""Rows of a heat map that are named on its axis."""
MAX_LABEL = 26
"""Characters of a name in a legend or on an axis; the pointer shows all of it."""
CURVES_HEIGHT, MIN_MAP_HEIGHT, ROW_HEIGHT, MAX_MAP_HEIGHT = 440, 240, 18, 640
"""Pixels."""
BAR = {"orientation": "h", "thickness": 10, "yref": "container", "y": 0, "yanchor": "bottom", "outlinewidth": 0}
"""A colour bar along the foot."""
BAR_MARGIN = 96
"""Pixels below a picture with a colour bar."""
STEP = "training step"
COMBINED = "mean over layers"
_RUG_LOW, _RUG_HIGH = 0.015, 0.985
"""Heights, as parts of the picture, of marks that have no value: below those that are not finite, above the alarms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over steps, all of them finite and trusted."""

    label: str
    """Short, for the legend and the axis."""
    detail: str
    """All of the name, for the pointer."""
    shade: float | None
    """Place on the colour map: the layer; None outside of the layers."""
    steps: Int[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]
    errors: Float[np.ndarray, " n"] | None = None
    """Half lengths of the error bars; NaN draws none."""
    dash: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A value that is not to be trusted, or an alarm."""

    detail: str
    """Name of the curve it belongs to."""
    step: int
    value: float
    """NaN puts the mark at the edge of the picture."""
    text: str
    """What the pointer shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A curve of one of several runs, shown when its layer is chosen."""

    run: int
    choice: str
    """The layer, or `COMBINED`."""
    curve: Curve


def curves(
    lines: Sequence[Curve],
    *,
    quantity: str,
    flagged: Sequence[Mark] = (),
    alarms: Sequence[Mark] = (),
    max_points: int,
    min_span: float = 0.0,
    log_steps: bool = False,
) -> "go.Figure":
    """Draw one line for each curve, coloured by layer, with flagged values as crosses and alarms along the top.

    A curve of more than `max_points` is thinned to the lowest and the highest of equal stretches. The axis spans
    `min_span` at least.
    """
    named = len(lines) <= MAX_LEGEND
    layers = [line.shade for line in lines if line.shade is not None]
    low, high = (pick(layers, default=0.0) for pick in (min, max))
    outside_named = named or 0 < len(lines) - len(layers) <= MAX_LEGEND  # beside layers that a colour bar names
    traces = []
    for line in lines:
        if line.shade is None:
            colors, is_named = OUTSIDE if layers else shades(0.0), outside_named
        else:
            colors, is_named = shades((line.shade - low) / (high - low) if high > low else 0.0), named
        traces.append(_line(line, colors, max_points) | {"showlegend": is_named, "meta": colors})
    if not named and high > low:
        traces.append(_layer_bar(low, high))
    figure = _over_steps([*traces, *_marks(flagged, alarms)], quantity, log_steps=log_steps)
    figure.update_layout(yaxis_autorangeoptions_include=widened(all_values(lines), min_span))
    if not named:
        figure.update_layout(margin_b=BAR_MARGIN, legend={"y": 1.0, "yanchor": "bottom"})
    return figure


def comparison(
    curves: Sequence[Compared],
    *,
    quantity: str,
    max_points: int,
    choice: str,
    min_span: float = 0.0,
    log_steps: bool = False,
) -> "go.Figure":
    """Draw one line for each run, of the layer `choice`; those of other layers are in the figure, hidden.

    For each layer the axis spans `min_span` at least, which `page.js` sees to when another one is chosen.
    """
    traces = []
    for each in curves:
        colors, dash = PALETTE[each.run % len(PALETTE)], DASHES[each.run // len(PALETTE) % len(DASHES)]
        trace = _line(each.curve, colors, max_points)
        trace["line"]["dash"] = dash
        shown = {"visible": each.choice == choice, "legendrank": each.run, "showlegend": True}
        traces.append(trace | shown | {"meta": colors | {"choice": each.choice}})
    figure = _over_steps(traces, quantity, log_steps=log_steps)
    spans = {
        each: widened(all_values([other.curve for other in curves if other.choice == each]), min_span)
        for each in dict.fromkeys(other.choice for other in curves)
    }
    figure.update_layout(yaxis_autorangeoptions_include=spans.get(choice, []), meta={"spans": spans})
    return figure


def heat_map(
    rows: Sequence[Curve], *, flagged: Sequence[Mark] = (), max_columns: int, min_span: float = 0.0
) -> "go.Figure":
    """Draw rows × steps: one row for each curve, one column for each measured step, crosses on flagged values.

    With more than `max_columns` steps a column stands for several of them and shows each row's most extreme value. The
    colours span `min_span` at least.
    """
    steps = np.unique(np.concatenate([row.steps for row in rows] + [np.array([each.step for each in flagged], int)]))
    matrix = np.full((len(rows), steps.size), np.nan)
    for index, row in enumerate(rows):
        matrix[index, np.searchsorted(steps, row.steps)] = row.values
    matrix, begins = columns(matrix, max_columns)
    names, details = _stretches(steps, begins), [literal(row.detail) for row in rows]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": names,
        "y": details,
        "z": matrix.astype(np.float32),
        "colorscale": color_scale(0.0, 1.0),
        "colorbar": BAR,
        "hovertemplate": "%{y}<br>step %{x}: %{z:.7~g}<extra></extra>",
    }
    if ends := widened(all_values(rows), min_span):
        trace |= {"zmin": ends[0], "zmax": ends[1]}
    known = {row.detail for row in rows}
    shown = [each for each in flagged if each.detail in known]
    places = np.searchsorted(steps[begins], [each.step for each in shown], side="right") - 1
    crosses = _crosses(shown) | {"x": [names[place] for place in places], "y": [literal(each.detail) for each in shown]}
    figure = blank([trace, crosses] if shown else [trace], _map_height(len(rows)))
    figure.update_xaxes(type="category", title_text=STEP, showgrid=False, nticks=8, tickangle=0)
    figure.update_layout(margin_b=BAR_MARGIN)
    ticks = range(0, len(rows), -(-len(rows) // MAX_TICKS))
    figure.update_yaxes(
        type="category",
        tickvals=[details[tick] for tick in ticks],
        ticktext=[_short(rows[tick].label) for tick in ticks],
        showgrid=False,
        automargin=True,
    )
    return figure


def all_values(lines: Sequence[Curve]) -> Float[np.ndarray, " n"]:
    """Return the values of several curves in a row."""
    return np.concatenate([line.values for line in lines]) if lines else np.empty(0)


def _line(line: Curve, colors: dict[str, str], max_points: int) -> dict[str, Any]:
    kept = extremes(line.values, max_points)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if kept.size <= MAX_LINE_MARKERS else "lines",
        "name": _short(line.label),
        "text": literal(line.detail),
        "x": line.steps[kept],
        "y": line.values[kept].astype(np.float32),
        "line": {"color": colors["light"], "width": 1.8, "dash": DASHES[line.dash % len(DASHES)]},
        "marker": {"size": 4, "color": colors["light"]},
        "hovertemplate": "%{text}<br>step %{x:,d}: %{y:.7~g}<extra></extra>",
    }
    if line.errors is not None:
        errors = line.errors[kept].astype(np.float32)
        bars = {"type": "data", "array": errors, "color": colors["light"], "thickness": 1, "width": 0}
        known = np.nan_to_num(errors)  # where there is no error bar the pointer says ± 0
        told = "%{text}<br>step %{x:,d}: %{y:.7~g} ± %{customdata:.2g}<extra></extra>"
        trace |= {"error_y": bars, "customdata": known, "hovertemplate": told}
    return trace


def _marks(flagged: Sequence[Mark], alarms: Sequence[Mark]) -> list[dict[str, Any]]:
    """Crosses where the values are, or at the foot where there is no number; triangles along the top for alarms."""
    finite = [each for each in flagged if np.isfinite(each.value)]
    lost = [each for each in flagged if not np.isfinite(each.value)]
    traces = []
    if finite:
        traces.append(_crosses(finite) | {"y": [each.value for each in finite], "name": "flagged"})
    if lost:
        at_foot = {"y": [_RUG_LOW] * len(lost), "yaxis": "y2", "name": "not a finite number"}
        traces.append(_crosses(lost) | at_foot)
    if alarms:
        on_top = {"y": [_RUG_HIGH] * len(alarms), "yaxis": "y2", "name": "alarm"}
        traces.append(_crosses(alarms) | on_top)
        traces[-1]["marker"] = traces[-1]["marker"] | {"symbol": "triangle-down", "size": 11}
    return traces


def _crosses(marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [each.step for each in marks],
        "text": [literal(each.text) for each in marks],
        "marker": {
            "symbol": "x-thin",
            "size": 8,
            "color": ALARM["light"],
            "line": {"width": 2, "color": ALARM["light"]},
        },
        "hovertemplate": "%{text}<extra></extra>",
        "meta": ALARM,
        "name": "flagged",
    }


def _over_steps(traces: list[dict[str, Any]], quantity: str, *, log_steps: bool) -> "go.Figure":
    figure = blank(traces, CURVES_HEIGHT)
    figure.update_xaxes(
        title_text=STEP,
        type="log" if log_steps else "linear",
        hoverformat=",d",
        nticks=7,
    )
    figure.update_yaxes(title_text=literal(quantity), automargin=True)
    rug = {"overlaying": "y", "range": [0, 1], "fixedrange": True, "visible": False}
    figure.update_layout(yaxis2=rug, hovermode="closest")
    return figure


def blank(traces: list[dict[str, Any]], height: int) -> "go.Figure":
    """Return the traces on axes in the style of the page, without titles."""
    import plotly.graph_objects as go

    figure = go.Figure(data=traces)
    figure.update_layout(
        template=None,  # plotly's own would be repeated in every figure of a page
        height=height,
        autosize=True,
        font={"color": INK, "family": "system-ui, sans-serif", "size": 13},
        dragmode=False,  # a finger on the picture scrolls the page; the bar above has zoom
        margin={"l": 60, "r": 24, "t": 34, "b": 50},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0, "itemwidth": 30},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left", "namelength": -1},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, ticks="outside", tickcolor=GRID)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    return figure


def _layer_bar(low: float, high: float) -> dict[str, Any]:
    """A colour bar for lines that are too many for a legend; it hangs on a trace without points."""
    scales = {"light": color_scale(*LIGHT_RANGE), "dark": color_scale(*DARK_RANGE)}
    marker = {
        "color": [low],
        "cmin": low,
        "cmax": high,
        "colorscale": scales["light"],
        "colorbar": BAR | {"tickprefix": "layer "},
    }
    empty = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": False, "hoverinfo": "skip"}
    return empty | {"marker": marker, "meta": scales}


def _stretches(steps: Int[np.ndarray, " n"], begins: Int[np.ndarray, " k"]) -> list[str]:
    """Name columns by their step, or by the first and the last of those that they stand for."""
    ends = [*(begins[1:] - 1), steps.size - 1]
    pairs = [(int(steps[begin]), int(steps[end])) for begin, end in zip(begins, ends, strict=True)]
    return [str(first) if first == last else f"{first}–{last}" for first, last in pairs]


def shades(position: float) -> dict[str, str]:
    """Return the colours of a place on the map, from 0 to 1, for a light page and a dark one."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return {
        page: to_hex(colormaps[COLOR_MAP](low + (high - low) * position))
        for page, (low, high) in (("light", LIGHT_RANGE), ("dark", DARK_RANGE))
    }


def color_scale(low: float, high: float) -> list[list[Any]]:
    """Return a part of the map as plotly wants it."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [[float(at), to_hex(colormaps[COLOR_MAP](low + (high - low) * at))] for at in np.linspace(0, 1, 9)]


def _map_height(num_rows: int) -> int:
    return int(np.clip(130 + ROW_HEIGHT * num_rows, MIN_MAP_HEIGHT, MAX_MAP_HEIGHT))


def _short(label: str) -> str:
    """Escape a name, of a long one the end, which tells more.

    >>> _short("layer 3"), _short("transformer.encoder.layers.3.attention.self")
    ('layer 3', '…er.layers.3.attention.self')
    """
    return literal(label if len(label) <= MAX_LABEL else f"…{label[-MAX_LABEL:]}")


def literal(text: str) -> str:
    """Escape a text that plotly shall show as it is: it reads tags, and in names also templates.

    >>> literal("<b>%{y}")
    '&lt;b&gt;&#37;{y}'
    """
    return escape(text, quote=False).replace("%{", "&#37;{")
