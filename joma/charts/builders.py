"""Charts from tidy tables: one row for each value, columns by name.

A value that is not finite, or not positive on a logarithmic axis, is a gap. A facet without values gets no panel. Names
are shown as they are, whatever is in them: inside of a spec the columns have names of ours.
"""

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from joma.charts.chart import LEGEND_ROOM, LIGHT, Chart, num_columns

MAX_POINTS = 500
"""Points of a line; of a longer one the extremes of equal stretches are drawn."""
MAX_CELLS = 250
"""Columns of a heat map; more are merged."""
MAX_DOTS = 40
"""Points of a line up to which each gets a dot."""
MAX_NAMED = 12
"""Numbers that a legend names; more get a colour bar."""
MAX_LABELS = 4
"""Marks of a panel up to which each has its label next to it."""
MAX_TICKS = 7
MAX_LETTERS = 40
"""Letters of all names below an axis before they are slanted."""
DIGITS = 7
"""Significant digits of numbers in a spec."""
MIN_SPAN = 0.02
"""Least span of a y axis over its largest value, so that a constant looks flat."""
MARGIN = 0.05
"""Part of an axis that stays free at its ends."""
LAYER = "layer"
"""The column whose values have the same colour in every chart."""
NUMBER = f",.{DIGITS}~g"
TICK = "datum.value == 0 || abs(datum.value) >= 0.01 && abs(datum.value) < 1e7 ? format(datum.value, ',.7~g') : "
TICK += "format(datum.value, '.3~e')"
"""How Vega writes a tick of a logarithmic axis, or a number of a legend: 1,000 and 1e-4."""
Ends = tuple[str, str] | None
"""Names of the columns of a lower and an upper end."""
Draw = Callable[["pd.DataFrame", "Axes"], list[Any]]


class _Altair:
    """Altair, imported when it is first used: machines that only compute do not need it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("altair"), name)


alt: Any = _Altair()


@dataclass(frozen=True)
class Rule:
    """A line across a panel: the entropy of uniform attention, a published loss, a blow-up time."""

    value: float | int
    label: str = ""
    axis: Literal["x", "y"] = "y"
    facet: Any = None
    """The panel it belongs to; None is all of them."""
    color: Any = None
    """The value of the colour column whose colour it has; None is grey."""
    alert: bool = False
    """Drawn in the colour of warnings."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all charts take by name."""

    title: str
    """States what is shown."""
    caption: str = ""
    """One or two sentences: what to look for, what bands and error bars are."""
    id: str = ""
    """Name of its files; made from the title where it is empty."""
    color: str | None = None
    """Column. `layer` has the same colours in every chart, other numbers are shades, names are a palette."""
    order: Sequence[Any] = ()
    """Values of `color` in the order of the palette, the same for all charts that shall match."""
    facet: str | None = None
    """Column; one panel for each value."""
    rules: Sequence[Rule] = ()
    marks: pd.DataFrame | None = None
    """Points to mark, such as dips: the columns of x and y and, where wanted, those of color and facet, all by their
    names in the table; `low` and `high`, an interval of y; `x_low` and `x_high`; `label`; `shape`, as Vega calls it."""
    x_log: bool = False
    """A logarithmic axis; zeros in the table get a place left of it."""
    y_log: bool = False
    share_x: bool = True
    """Whether panels have the same x axis."""
    share_y: bool = True
    """Whether panels have the same y axis."""
    zero: bool = False
    """Whether the y axis must reach zero."""
    height: int | None = None
    """Pixels of a panel; by its width where it is None."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of columns on axes and legends. A metric has its own, other columns are called by their name."""

    def label(self, column: str) -> str:
        """Return what an axis or a legend says of a column."""
        if column in self.labels:
            return self.labels[column]
        return metric_label(column) or column.replace("_", " ")


@dataclass(frozen=True)
class Axes:
    """The channels of a panel's axes, and where its y axis ends."""

    x: Any
    y: Any
    ends: dict[str, tuple[float, float]]


def metric_label(name: str) -> str | None:
    """Return the axis label of a metric; None if there is no such metric."""
    try:
        metrics = importlib.import_module("joma.metrics").METRICS
    except ModuleNotFoundError:
        return None
    return metrics[name].label if name in metrics else None


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    band: Ends = None,
    dash: str | None = None,
    detail: str | None = None,
    choose: str | None = None,
    max_points: int = MAX_POINTS,
    **options: Any,
) -> Chart:
    """Draw lines over numbers.

    Args:
        frame: one row for each point.
        x: column of numbers.
        y: column of values.
        band: columns of the lower and the upper edge of a band.
        dash: column of line styles.
        detail: column that separates lines of one colour, such as the seed.
        choose: column; a menu of the page picks the value that is shown. Files show the first.
        max_points: points of a line; a longer one keeps its ends and its extremes.
        options: fields of `Options`.
    """
    o = Options(**options)
    figure = _Figure(frame, {"x": x, "y": y, "dash": dash, "detail": detail, "choose": choose} | _ends(band), o)
    keys = [key for key in ("facet", "color", "dash", "detail", "choose") if key in figure.table]
    figure.table = thinned(figure.table.sort_values("x", kind="stable"), "y", keys, max_points)
    groups = figure.table.groupby(keys, dropna=False, observed=True).size() if keys else [len(figure.table)]
    channels = figure.color("stroke") | figure.named("dash", alt.StrokeDash, "stroke")
    channels |= {"detail": "detail:N"} if detail else {}
    signal, options_of = f"choose_{figure.id.replace('-', '_')}", _unique(figure.table["choose"]) if choose else []

    def draw(own: pd.DataFrame, axes: Axes) -> list[Any]:
        base = alt.Chart().encode(axes.x, axes.y, **channels)
        base = base.transform_filter(f"datum.choose == {signal}") if choose else base
        dots = base.encode(tooltip=figure.tooltip, strokeDash=alt.Undefined)
        few = max(groups) <= MAX_DOTS
        area = base.mark_area(opacity=0.18, line=False).encode(
            alt.Y("low:Q"), alt.Y2("high:Q"), strokeDash=alt.Undefined, detail=["dash:N"] if dash else alt.Undefined
        )
        return [
            *([area] if band else []),
            base.mark_line(strokeWidth=1.8),
            dots.mark_circle(size=18, opacity=1) if few else dots.mark_circle(size=80, opacity=0),
        ]

    chart = figure.chart(draw)
    if choose:
        menu = alt.binding_select(options=options_of, name=f"{o.label(choose)} ")
        chart.spec.params = [alt.param(name=signal, bind=menu, value=options_of[0]).param]
    return chart


def points(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    error: Ends = None,
    x_error: Ends = None,
    n: str | None = None,
    shape: str | None = None,
    diagonal: bool = False,
    **options: Any,
) -> Chart:
    """Draw points with error bars, over numbers or names.

    Args:
        frame: one row for each point.
        x: column of numbers or names.
        y: column of values.
        error: columns of the lower and the upper end of y.
        x_error: columns of the lower and the upper end of x.
        n: column of sample sizes; written at the foot where x is a name, shown by the pointer otherwise.
        shape: column of point shapes.
        diagonal: draw the line y = x.
        options: fields of `Options`.
    """
    o = Options(**options)
    figure = _Figure(frame, {"x": x, "y": y, "shape": shape, "n": n} | _ends(error) | _ends(x_error, "x_"), o)
    offset = figure.offset(alt.XOffset) if not _is_numeric(figure.table["x"]) else {}
    color = figure.color("circle")

    def draw(own: pd.DataFrame, axes: Axes) -> list[Any]:
        base = alt.Chart().encode(axes.x, axes.y, **color, **offset)
        bar = base.mark_rule(strokeWidth=1.6)
        dots = base.mark_point(size=55, opacity=0.9, filled=True).encode(
            tooltip=figure.tooltip, **figure.named("shape", alt.Shape, None)
        )
        layers = [bar.encode(alt.Y("low:Q"), alt.Y2("high:Q"))] if error else []
        layers += [bar.encode(alt.X("x_low:Q"), alt.X2("x_high:Q"))] if x_error else []
        layers.append(dots)
        if diagonal:
            (left, right), (low, high) = axes.ends["x"], axes.ends["y"]
            ends = [{"x": each, "y": each} for each in (max(left, low), min(right, high))]
            layers.insert(0, alt.Chart(alt.Data(values=ends)).mark_line(style="guide").encode(axes.x, axes.y))
        if n and not _is_numeric(own["x"]):
            foot = alt.Chart().transform_calculate(count="'n = ' + datum.n")
            foot = foot.mark_text(baseline="bottom", dy=-2).encode(axes.x, alt.YValue("height"), text="count:N")
            layers.append(foot.encode(**offset))
        return layers

    return figure.chart(draw)


def bars(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    error: Ends = None,
    text: str | None = None,
    n: str | None = None,
    horizontal: bool = False,
    **options: Any,
) -> Chart:
    """Draw a bar for each name, side by side where there are colours.

    Args:
        frame: one row for each bar.
        x: column of names.
        y: column of values.
        error: columns of the lower and the upper end of error bars.
        text: column of a few words above each bar, such as "0 of 6".
        n: column of sample sizes, shown by the pointer.
        horizontal: bars from left to right, for long names.
        options: fields of `Options`.
    """
    o = Options(zero=True, **options)
    named = frame.assign(**{x: frame[x].map(_name)}) if x in frame else frame
    figure = _Figure(named, {"x": x, "y": y, "text": text, "n": n} | _ends(error), o)
    offset = figure.offset(alt.YOffset if horizontal else alt.XOffset)
    end, other = (alt.X, alt.X2) if horizontal else (alt.Y, alt.Y2)
    words = {"align": "left", "dx": 4} if horizontal else {"baseline": "bottom", "dy": -3}

    def draw(own: pd.DataFrame, axes: Axes) -> list[Any]:
        base = alt.Chart().encode(axes.x, axes.y, **offset)
        layers = [base.mark_bar(opacity=0.9).encode(tooltip=figure.tooltip, **figure.color("square"))]
        layers += [base.mark_rule(style="error").encode(end("low:Q"), other("high:Q"))] if error else []
        top = base.encode(end("high:Q")) if error else base
        return [*layers, *([top.mark_text(**words).encode(text="text:N")] if text else [])]

    return figure.chart(draw, turned=horizontal)


def heatmap(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    diverging: bool = False,
    share_color: bool = True,
    max_cells: int = MAX_CELLS,
    **options: Any,
) -> Chart:
    """Draw a value over two columns as colours.

    Args:
        frame: one row for each cell.
        x: column of numbers, which ascend, or of names, in their order. More than `max_cells` of them are merged: each
            row shows the value that is farthest from the median of the merged ones.
        y: column of numbers, which ascend from the bottom, or of names from the top.
        value: column of the colours.
        diverging: two colours around 0.
        share_color: whether panels have the same colours.
        max_cells: columns of a panel.
        options: fields of `Options`.
    """
    o = Options(**options)
    figure = _Figure(frame, {"x": x, "y": y, "value": value}, o)
    figure.table = pd.concat(_merged(own, max_cells) for _, own in figure.panels())

    def draw(own: pd.DataFrame, axes: Axes) -> list[Any]:
        values = (figure.table if share_color else own)["value"]
        ends = list(_widened(values.min(), values.max()))
        most = float(np.abs(ends).max())
        ends, kind = ([-most, most], "diverging") if diverging else (ends, "heatmap")
        scale = alt.Scale(domain=ends, range=kind, zero=False)
        color = alt.Color("value:Q", scale=scale, legend=alt.Legend(title=o.label(value)))
        return [alt.Chart().mark_rect().encode(axes.x, axes.y, color, tooltip=figure.tooltip)]

    return figure.chart(draw, cells=True, share_color=share_color)


def beside(
    *charts: Chart, title: str, caption: str = "", id: str = "", columns: int | None = None, titles: bool = True
) -> Chart:
    """Put charts next to each other, each under its title, as far as the width allows; `columns` at most."""
    if not charts:
        raise ValueError("`charts` must hold a chart, got none. Pass one or more.")
    views = [chart.spec.properties(title=chart.title) if titles else chart.spec.copy() for chart in charts]
    params = [param for view in views for param in (view.params if view.params is not alt.Undefined else [])]
    for view in views:
        view.params = alt.Undefined
    has_facets = any(hasattr(view, "concat") for view in views)  # these fill a row
    spec = alt.concat(*views, columns=columns or (1 if has_facets else num_columns(len(views))))
    spec = spec.resolve_scale(color="independent", strokeDash="independent", shape="independent")
    spec.params = params or alt.Undefined
    return Chart(id or slug(title), title, caption, spec)


def stack(*charts: Chart, title: str, caption: str = "", id: str = "", titles: bool = True) -> Chart:
    """Put charts below each other, each under its title."""
    return beside(*charts, title=title, caption=caption, id=id, columns=1, titles=titles)


def thinned(table: pd.DataFrame, y: str, keys: Sequence[str], max_points: int) -> pd.DataFrame:
    """Return at most `max_points` rows of each line; the lines are told apart by the columns `keys`."""
    if not keys:
        return table.iloc[extremes(table[y].to_numpy(float), max_points)]
    groups = table.groupby(list(keys), sort=False, dropna=False, observed=True)
    if groups.size().max() <= max_points:
        return table
    return pd.concat(own.iloc[extremes(own[y].to_numpy(float), max_points)] for _, own in groups)


def extremes(values: Float[np.ndarray, " n"], max_points: int) -> Int[np.ndarray, " k"]:
    """Return the indices of at most `max_points` values, in order: the ends, and the extremes of equal stretches.

    NaN is neither lowest nor highest; a stretch of nothing else keeps its first.

    >>> extremes(np.array([0.0, 1.0, 9.0, 1.0, 0.0, 1.0, -9.0, 1.0, 0.0]), 6).tolist()
    [0, 1, 2, 5, 6, 8]
    """
    fewest = 4  # the ends, the lowest and the highest
    if max_points < fewest:
        raise ValueError(f"`max_points` must be {fewest} or more, got {max_points}.")
    num = values.size
    if num <= max_points:
        return np.arange(num)
    edges = np.unique(np.linspace(0, num - 2, (max_points - 2) // 2 + 1).astype(int)) + 1
    low, high = (np.where(np.isnan(values), fill, values) for fill in (np.inf, -np.inf))
    kept = [0, num - 1]
    for begin, end in pairwise(edges):
        kept += [begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax())]
    return np.unique(kept)


def slug(title: str) -> str:
    """Return a title as a file name.

    >>> slug("Attention entropy, by depth")
    'attention-entropy-by-depth'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "chart"


class _Figure:
    """A table in our column names, and what its panels share: colours, axes, tooltips."""

    def __init__(self, frame: pd.DataFrame, columns: dict[str, str | None], options: Options) -> None:
        self.options = options
        self.id = options.id or slug(options.title)
        self.columns = {ours: name for ours, name in columns.items() if name is not None}
        self.columns |= {key: name for key in ("color", "facet") if (name := getattr(options, key)) is not None}
        self.table = self._tidy(frame, self.columns)
        if (
            self.table.empty
            or not np.isfinite(self.table["value" if "value" in self.table else "y"].to_numpy(float)).any()
        ):
            raise ValueError(f"Chart {options.title!r} has no value to draw. Pass a table with one, or leave it out.")
        marks = options.marks
        known = {ours: name for ours, name in self.columns.items() if marks is not None and name in marks}
        extra = {
            key: key
            for key in ("low", "high", "x_low", "x_high", "label", "shape")
            if marks is not None and key in marks
        }
        self.marks = None if marks is None or marks.empty else self._tidy(marks, known | extra)

    def _tidy(self, frame: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
        """Return the columns under our names, gaps as NaN, without rows that have no place."""
        if missing := [name for name in columns.values() if name not in frame]:
            raise ValueError(f"The table has no column {missing[0]!r}; it has {', '.join(map(str, frame.columns))}.")
        table = pd.DataFrame({ours: frame[name].to_numpy() for ours, name in columns.items()})
        for ours in table:
            if _is_numeric(table[ours]):
                table[ours] = table[ours].where(np.isfinite(table[ours].astype(float)))
            else:
                table[ours] = table[ours].map(str)
        if _is_numeric(table["x"]):
            table = table[table["x"].notna() & ((table["x"] >= 0) | (not self.options.x_log))]
        if self.options.y_log:
            known = [key for key in ("y", "low", "high") if key in table]
            floor = table[known].where(table[known] > 0).min(axis=None)
            table["y"] = table["y"].where(table["y"] > 0)
            if "low" in table:  # a band that reaches zero goes down to the lowest number
                table["low"] = table["low"].where(table["low"] > 0, floor)
        return table

    def panels(self) -> list[tuple[Any, pd.DataFrame]]:
        """Return the rows of each facet that has a value."""
        if "facet" not in self.table:
            return [(None, self.table)]
        parts = [(value, self.table[self.table["facet"] == value]) for value in _unique(self.table["facet"])]
        return [(value, own) for value, own in parts if own["value" if "value" in own else "y"].notna().any()]

    @cached_property
    def domain(self) -> list[Any]:
        """Values of the colour column in the order of their colours."""
        if "color" not in self.table:
            return []
        found = _unique(self.table["color"])
        if self.options.color == LAYER and _is_numeric(self.table["color"]) and min(found) >= 0:
            return list(range(int(max(found)) + 1))
        first = list(self.options.order) if _is_numeric(self.table["color"]) else list(map(str, self.options.order))
        return [*first, *(each for each in found if each not in first)]

    def color(self, symbol: str) -> dict[str, Any]:
        """Return the colour channel."""
        if "color" not in self.table:
            return {}
        title, numeric = self.options.label(str(self.options.color)), _is_numeric(self.table["color"])
        is_layer = self.options.color == LAYER and numeric and len(self.domain) <= len(LIGHT.layers)
        if numeric and not is_layer and len(self.domain) > MAX_NAMED:
            legend = alt.Legend(title=title)
            return {"color": alt.Color("color:Q", scale=alt.Scale(range="ramp", zero=False), legend=legend)}
        kind = "ordinal" if is_layer else "ramp" if numeric and not self.options.order else "category"
        shown = set(self.table["color"])
        legend = _legend([each for each in self.domain if each in shown], title, symbol)
        scale = alt.Scale(domain=self.domain, range=kind)
        return {"color": alt.Color(f"color:{'O' if numeric else 'N'}", scale=scale, legend=legend, sort=None)}

    def named(self, ours: str, channel: Any, symbol: str | None) -> dict[str, Any]:
        """Return the channel of a column of names, such as line styles; none where the table has no such column."""
        if ours not in self.table:
            return {}
        values = _unique(self.table[ours])
        legend = _legend(values, self.options.label(self.columns[ours]), symbol)
        made = channel(f"{ours}:N", sort=None, scale=alt.Scale(domain=values), legend=legend)
        return {"strokeDash" if ours == "dash" else ours: made}

    def offset(self, channel: Any) -> dict[str, Any]:
        """Return the channel that puts colours side by side; none where one colour has a name for itself."""
        if "color" not in self.table or not self.table.duplicated([k for k in ("facet", "x") if k in self.table]).any():
            return {}
        key = "xOffset" if channel is alt.XOffset else "yOffset"
        return {key: channel("color:N", sort=self.domain, scale=alt.Scale(domain=self.domain))}

    @property
    def tooltip(self) -> list[Any]:
        """Return what the pointer shows of a point."""
        hidden = {"text"}
        return [
            alt.Tooltip(
                f"{ours}:{'Q' if _is_numeric(self.table[ours]) else 'N'}",
                title=self.options.label(name),
                **({"format": NUMBER} if _is_numeric(self.table[ours]) else {}),
            )
            for ours, name in self.columns.items()
            if ours not in hidden
        ]

    def chart(self, draw: Draw, *, turned: bool = False, cells: bool = False, share_color: bool = True) -> Chart:
        """Draw each panel, add rules and marks, and put the panels side by side."""
        o = self.options
        views = []
        for value, own in self.panels():
            axes = self._axes(own, value, turned=turned, cells=cells)
            rules = [rule for rule in o.rules if rule.facet is None or rule.facet == value]
            view = alt.layer(*draw(own, axes), *self._rules(rules, axes), *self._marked(value, axes), data=_data(own))
            title = {} if value is None else {"title": _panel_name(o.label(str(o.facet)), value)}
            views.append(view.properties(**title, **({} if o.height is None else {"height": o.height})))
        if len(views) == 1 and o.facet is None:
            return Chart(self.id, o.title, o.caption, views[0])
        kind: Any = "shared" if share_color else "independent"
        spec = alt.concat(*views, columns=num_columns(len(views)))
        spec = spec.resolve_scale(color=kind, strokeDash="shared", shape="shared")
        return Chart(self.id, o.title, o.caption, spec)

    def _axes(self, own: pd.DataFrame, value: Any, *, turned: bool, cells: bool) -> Axes:
        made, ends = {}, {}
        for ours in ("x", "y"):
            o = self.options
            shared = o.share_x if ours == "x" else o.share_y
            log = o.x_log if ours == "x" else o.y_log
            channel = getattr(alt, (("Y" if ours == "x" else "X") if turned else ours.upper()))
            title = o.label(self.columns[ours]) or None
            if cells or not _is_numeric(own[ours]):
                made[ours] = _names_axis(channel, ours, self.table if shared else own, title, cells=cells)
                continue
            table = self.table if shared else own
            keys = ["x", "x_low", "x_high"] if ours == "x" else ["y", "low", "high"]
            seen = [table[key].to_numpy(float) for key in keys if key in table]
            if self.marks is not None:
                near = self.marks if shared or "facet" not in self.marks else self.marks[self.marks["facet"] == value]
                seen += [near[key].to_numpy(float) for key in keys if key in near]
            seen.append([r.value for r in o.rules if r.axis == ours and (shared or r.facet in (None, value))])
            numbers = np.concatenate([np.asarray(each, float) for each in seen])
            free = ours == "y" or "value" in own or not self._is_line
            made[ours], ends[ours] = _axis(
                channel, ours, numbers, title, log=log, zero=o.zero and ours == "y", free=free
            )
        return Axes(made["x"], made["y"], ends)

    @property
    def _is_line(self) -> bool:
        return not {"shape", "n", "x_low"} & set(self.table)

    def _rules(self, rules: Sequence[Rule], axes: Axes) -> list[Any]:
        layers: list[Any] = []
        for rule in rules:
            data = {rule.axis: float(rule.value), "label": rule.label} | (
                {} if rule.color is None else {"color": rule.color}
            )
            base = alt.Chart(alt.Data(values=[data])).encode(axes.x if rule.axis == "x" else axes.y)
            if rule.color is None:
                layers.append(base.mark_rule(style="alert" if rule.alert else "guide", strokeDash=[2, 3]))
            else:
                layers.append(base.mark_rule(strokeDash=[6, 4], strokeWidth=1.2).encode(**self.color("stroke")))
            if rule.label:
                words: Any = base.mark_text(style="alert-text" if rule.alert else "guide-text")
                if rule.axis == "y":
                    words = words.encode(x=alt.value(4), text="label:N")
                    words.mark.align, words.mark.baseline, words.mark.dy = "left", "bottom", -3
                else:
                    low, high = axes.ends["x"]
                    is_right = rule.value > (
                        math.sqrt(low * high) if low > 0 and self.options.x_log else (low + high) / 2
                    )
                    words = words.encode(y=alt.value(2), text="label:N")
                    words.mark.align, words.mark.dx = ("right", -5) if is_right else ("left", 5)
                    words.mark.baseline = "top"
                layers.append(words)
        return layers

    def _marked(self, value: Any, axes: Axes) -> list[Any]:
        if self.marks is None:
            return []
        own = self.marks if "facet" not in self.marks else self.marks[self.marks["facet"] == value]
        if own.empty:
            return []
        base = alt.Chart(_data(own)).encode(axes.x, axes.y)
        look = {} if "color" in own else {"style": "alert"}
        color = self.color("stroke") if "color" in own else {}
        layers = []
        for low, high, first, second in (("low", "high", alt.Y, alt.Y2), ("x_low", "x_high", alt.X, alt.X2)):
            if low in own:
                bar = base.mark_rule(strokeWidth=2, **look)
                layers.append(bar.encode(first(f"{low}:Q"), second(f"{high}:Q"), **color))
        shape = {"shape": alt.Shape("shape:N", scale=None)} if "shape" in own else {}
        tips = {"tooltip": "label:N"} if "label" in own else {"tooltip": self.tooltip[:2]}
        layers.append(base.mark_point(size=60, filled=True, opacity=1, **look).encode(**shape, **color, **tips))
        if "label" in own and len(own) <= MAX_LABELS:
            words = base.mark_text(style="alert-text", align="left", baseline="top", dx=6, dy=4)
            layers.append(words.encode(text="label:N"))
        return layers


def _axis(
    channel: Any, ours: str, values: np.ndarray, title: str | None, *, log: bool, zero: bool, free: bool
) -> tuple[Any, tuple[float, float]]:
    """Return the channel of an axis of numbers, and its ends."""
    numbers = values[np.isfinite(values) & ((values >= 0) if log else True)]
    positive = numbers[numbers > 0]
    if log and positive.size:
        low, high = float(positive.min()), float(positive.max())
        if ours == "x" and (numbers == 0).any():
            constant = 10.0 ** math.floor(math.log10(low))
            scale = alt.Scale(type="symlog", constant=constant, domain=[0, high], nice=False)
            return _ticked(channel, ours, title, scale, [0.0, *log_ticks(constant, high)]), (0.0, high)
        room = max((high / low) ** MARGIN, 1.02) if free or high == low else 1.0
        low, high = low / room, high * room
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        return _ticked(channel, ours, title, scale, log_ticks(low, high)), (low, high)
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    bottom, top = low, high
    if free or high == low:
        low, high = _widened(low, high)
        room = MARGIN * (high - low)
        low, high = low - room * (not zero or bottom < 0), high + room * (not zero or top > 0)
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    axis = alt.Axis(title=title, tickCount=5)
    return channel(f"{ours}:Q", scale=scale, axis=axis), (low, high)


def _ticked(channel: Any, ours: str, title: str | None, scale: Any, ticks: list[float]) -> Any:
    values: dict[str, Any] = {"values": ticks} if len(ticks) > 1 else {"tickCount": 4}
    axis = alt.Axis(title=title, labelExpr=TICK, labelOverlap="greedy", **values)
    return channel(f"{ours}:Q", scale=scale, axis=axis)


def _names_axis(channel: Any, ours: str, table: pd.DataFrame, title: str | None, *, cells: bool) -> Any:
    """Return the channel of an axis of names, or of the numbers of a heat map, each in a band of its own."""
    names, numeric = _unique(table[ours]), _is_numeric(table[ours])
    names = names[::-1] if numeric and ours == "y" else names
    shown = names[:: -(-len(names) // 14)] if cells else names
    slanted = channel is alt.X and sum(len(str(each)) for each in shown) > MAX_LETTERS and not numeric
    axis = alt.Axis(title=title, values=shown, labelAngle=-35 if slanted else 0, grid=False, labelOverlap=cells)
    axis.labelExpr = TICK if numeric else alt.Undefined
    return channel(f"{ours}:{'O' if numeric else 'N'}", sort=names, axis=axis)


def log_ticks(low: float | int, high: float | int) -> list[float]:
    """Return powers of ten between two numbers, or 1, 2 and 5 times them where there are fewer than three.

    >>> log_ticks(0.9, 1e5), log_ticks(30, 300)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0], [50.0, 100.0, 200.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    inside = [tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    powers = [tick for tick in inside if f"{tick:e}".startswith("1.000000e")]
    few = 3
    return powers[:: -(-len(powers) // MAX_TICKS)] if len(powers) >= few else inside


def _merged(own: pd.DataFrame, max_cells: int) -> pd.DataFrame:
    """Merge the columns of a heat map until at most `max_cells` are left, so that a dip does not drown."""
    places = _unique(own["x"])
    if len(places) <= max_cells:
        return own
    bucket = {place: at * max_cells // len(places) for at, place in enumerate(places)}
    own = own.assign(bucket=own["x"].map(bucket)).dropna(subset="value")
    groups = own.groupby(["y", "bucket"], sort=False, observed=True)
    distance = (own["value"] - groups["value"].transform("median")).abs()
    kept = own.loc[distance.groupby([own["y"], own["bucket"]], sort=False, observed=True).idxmax()]
    first = {at: place for place, at in reversed(bucket.items())}
    return kept.assign(x=kept["bucket"].map(first)).drop(columns="bucket")


def _widened(low: float, high: float) -> tuple[float, float]:
    span = MIN_SPAN * max(abs(low), abs(high)) or 1.0
    if high - low >= span:
        return low, high
    middle = (low + high) / 2
    return middle - span / 2, middle + span / 2


def _legend(values: Sequence[Any], title: str, symbol: str | None = None) -> Any:
    """Return a legend in columns that fit a width of `LEGEND_ROOM`; none for a single value."""
    if len(values) < 2:  # noqa: PLR2004 (one value needs no name)
        return None
    longest = max(len(_name(value)) for value in values)
    columns = max(1, LEGEND_ROOM // (34 + 7 * longest))
    expression = TICK if all(isinstance(value, int | float) for value in values) else alt.Undefined
    kind: Any = symbol or alt.Undefined
    return alt.Legend(
        title=title, columns=columns, symbolType=kind, symbolOpacity=1, values=list(values), labelExpr=expression
    )


def _data(table: pd.DataFrame) -> Any:
    """Return the rows as CSV, a third of the size of records, with numbers rounded and gaps empty."""
    shown = table.drop(columns="facet", errors="ignore")
    numbers = [name for name in shown if _is_numeric(shown[name])]
    text = shown.to_csv(index=False, float_format=f"%.{DIGITS}g", lineterminator="\n")
    return alt.Data(values=text, format=alt.CsvDataFormat(type="csv", parse=dict.fromkeys(numbers, "number")))


def _ends(ends: Ends, prefix: str = "") -> dict[str, str | None]:
    return {} if ends is None else {f"{prefix}low": ends[0], f"{prefix}high": ends[1]}


def _unique(values: pd.Series) -> list[Any]:
    """Return the values once each: numbers sorted, names in the order in which they come."""
    found = values.dropna().unique().tolist()
    return sorted(found) if _is_numeric(values) else found


def _is_numeric(values: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values))


def _name(value: Any) -> str:
    """Return a value as a name.

    >>> _name(1e-05), _name(1000), _name("exp")
    ('1e-5', '1,000', 'exp')
    """
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return re.sub(r"e([+-])0*", lambda found: "e" + found[1].replace("+", ""), f"{value:,.6g}")
    return str(value)


def _panel_name(label: str, value: Any) -> str:
    return f"{label} {_name(value)}" if isinstance(value, int | float | np.number) else str(value)
