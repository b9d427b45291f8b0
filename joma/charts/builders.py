"""Charts from tidy tables: one row for each value, columns by name.

A value that is not finite, or not positive on a logarithmic axis, is a gap. A facet without values gets no panel. Names
are shown as they are, whatever is in them: inside of a spec the columns have names of ours.
"""

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

from joma.charts.chart import LEGEND_ROOM, THEMES, Chart, num_columns
from joma.errors import import_extra
from joma.metrics import METRICS

MAX_POINTS = 500
"""Points of a line; of a longer one the extremes of equal stretches are drawn."""
MAX_CELLS = 250
"""Columns of a heat map; more are merged."""
MAX_DOTS = 40
"""Points of a line up to which each gets a dot."""
MAX_LEGEND = 30
"""Names of a legend; of more the pointer shows each."""
MAX_NAMED = 12
"""Numbers that a legend names; more get a colour bar."""
MAX_LABELS = 4
"""Marks of a panel up to which each has its label next to it."""
MAX_CROSSES = 300
"""Unreliable values that a chart marks."""
LABEL_ROOM, LETTER = 0.07, 6
"""Part of the y axis that the label of a rule takes, and the width of its letters."""
EDGE = 0.03
"""Part of the y axis by which crosses stay inside of it."""
CROSS = "M-1,-1L1,1M-1,1L1,-1"
MAX_TICKS, MAX_LETTERS, MAX_FEET = 7, 40, 12
"""Ticks of a log axis, letters of all names below an axis before they are slanted, points with their `n`."""
DIGITS = 7
"""Significant digits of numbers in a spec."""
MIN_SPAN = 0.02
"""Least span of a y axis over its largest value, so that a constant looks flat."""
MARGIN = 0.05
"""Part of an axis that stays free at its ends."""
FOOT = 0.1
"""Part of a y axis that is left for sample sizes."""
LINE_KEYS = ("facet", "color", "dash", "detail", "choose")
"""Columns that separate lines."""
LAYER = "layer"
"""The column whose values have the same colour in every chart."""
NUMBER = f",.{DIGITS}~g"
TICK = "datum.value == 0 || abs(datum.value) >= 0.01 && abs(datum.value) < 1e7 ? format(datum.value, ',.7~g') : "
TICK += "format(datum.value, '.3~e')"
"""How Vega writes a tick of a logarithmic axis, or a number of a legend: 1,000 and 1e-4."""
Ends = tuple[str, str] | None
"""Names of the columns of a lower and an upper end."""
ENDS = ("low", "high")
"""Their names unless others are given; without these columns there is no band or error bar."""
Draw = Callable[[pd.DataFrame, Any, Any], list[Any]]
"""Returns the layers of a panel from its rows and the channels of its axes."""


class _Altair:
    """Altair, imported when it is first used: machines that only compute do not need it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_extra("altair", "report"), name)


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
    shades: bool = False
    """Shades for names as well, in the order of `order`."""
    facet: str | None = None
    """Column; one panel for each value."""
    rules: Sequence[Rule] = ()
    marks: pd.DataFrame | None = None
    """Points to mark, such as dips: the columns of x and y and, where wanted, those of color and facet, all by their
    names in the table; `low` and `high`, an interval of y; `label`."""
    x_log: bool = False
    """A logarithmic axis; zeros in the table get a place left of it."""
    y_log: bool = False
    x_ends: Sequence[float | int] = ()
    """Numbers that the x axis reaches too: those of another chart that this one is stacked with."""
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
        return METRICS[column].axis if column in METRICS else column.replace("_", " ")


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    band: Ends = ENDS,
    dash: str | None = None,
    detail: str | None = None,
    choose: str | None = None,
    crosses: pd.DataFrame | None = None,
    max_points: int = MAX_POINTS,
    **options: Any,
) -> Chart:
    """Draw lines over numbers.

    Args:
        frame: one row for each point.
        x: column of numbers.
        y: column of values.
        band: columns of the lower and the upper edge of a band, drawn where the table has them.
        dash: column of line styles.
        detail: column that separates lines of one colour, such as the seed.
        choose: column; a menu of the page picks the value that is shown. Files show the first.
        crosses: values that are not reliable, drawn as crosses off the lines, at the edge if they lie beyond the axis:
            the columns of x, y, color and facet, and `flag`, the reason.
        max_points: points of a line; a longer one keeps its ends and its extremes.
        options: fields of `Options`.
    """
    o = Options(**options)
    figure = _Figure(frame, {"x": x, "y": y, "dash": dash, "detail": detail, "choose": choose} | _ends(frame, band), o)
    longest = figure.thin(max_points)
    apart = [f"{key}:N" for key in ("dash", "detail") if key in figure.table]
    channels = figure.color("stroke") | ({"detail": apart} if apart else {})
    dashes = {}
    if dash:
        names = _unique(figure.table["dash"])
        legend, scale = _legend(names, o.label(dash), "stroke"), alt.Scale(domain=names)
        dashes = {"strokeDash": alt.StrokeDash("dash:N", sort=None, scale=scale, legend=legend)}
    if crosses is not None and len(crosses):
        kept = {key: figure.columns[key] for key in ("x", "y", "color", "facet") if key in figure.columns}
        figure.crosses = figure.tidy(crosses.iloc[:: -(-len(crosses) // MAX_CROSSES)], kept | {"flag": "flag"})
    signal, choices = f"choose_{figure.id.replace('-', '_')}", _unique(figure.table["choose"]) if choose else []
    dot = {"size": 18, "opacity": 1} if longest <= MAX_DOTS else {"size": 80, "opacity": 0}

    def draw(own: pd.DataFrame, x_axis: Any, y_axis: Any) -> list[Any]:
        base = alt.Chart().encode(x_axis, y_axis, **channels)
        base = base.transform_filter(f"datum.choose == {signal}") if choose else base
        area = base.mark_area(opacity=0.18, line=False).encode(alt.Y("low:Q"), alt.Y2("high:Q"))
        line, dots = base.mark_line(strokeWidth=1.8).encode(**dashes), base.mark_circle(**dot)
        return [*([area] if "low" in own else []), line, dots.encode(tooltip=figure.tooltip)]

    chart = figure.chart(draw)
    if choose:
        menu = alt.binding_select(options=choices, name=f"{o.label(choose)} ")
        chart.spec["params"] = [{"name": signal, "bind": menu.to_dict(), "value": choices[0]}]
    return chart


def points(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    error: Ends = ENDS,
    n: str | None = None,
    diagonal: bool = False,
    **options: Any,
) -> Chart:
    """Draw points with error bars, over numbers or names.

    Args:
        frame: one row for each point.
        x: column of numbers or names.
        y: column of values.
        error: columns of the lower and the upper end of y, drawn where the table has them.
        n: column of sample sizes; written at the foot where x is a name and points are few, else shown by the pointer.
        diagonal: draw the line y = x.
        options: fields of `Options`.
    """
    figure = _Figure(frame, {"x": x, "y": y, "n": n} | _ends(frame, error), Options(**options))
    offset = {} if _is_numeric(figure.table["x"]) else figure.offset()
    color = figure.color("circle")

    def draw(own: pd.DataFrame, x_axis: Any, y_axis: Any) -> list[Any]:
        base = alt.Chart().encode(x_axis, y_axis, **color, **offset)
        layers = [base.mark_rule(strokeWidth=1.6).encode(alt.Y("low:Q"), alt.Y2("high:Q"))] if "low" in own else []
        layers.append(base.mark_point(size=55, opacity=0.9, filled=True).encode(tooltip=figure.tooltip))
        if diagonal:
            (left, right), (low, high) = (axis["scale"]["domain"] for axis in (x_axis, y_axis))
            ends = [{"x": each, "y": each} for each in (max(left, low), min(right, high))]
            layers.insert(0, alt.Chart(alt.Data(values=ends)).mark_line(style="guide").encode(x_axis, y_axis))
        if n and not _is_numeric(own["x"]) and len(own) <= MAX_FEET:
            foot = alt.Chart().transform_calculate(count="'n = ' + datum.n")
            foot = foot.mark_text(baseline="bottom", dy=-2).encode(x_axis, alt.YValue("height"), text="count:N")
            layers.append(foot.encode(**offset))
        return layers

    return figure.chart(draw, free=True)


def bars(frame: pd.DataFrame, x: str, y: str, *, error: Ends = ENDS, **options: Any) -> Chart:
    """Draw a bar for each name, side by side where there are colours.

    Args:
        frame: one row for each bar.
        x: column of names.
        y: column of values.
        error: columns of the lower and the upper end of error bars, drawn where the table has them.
        options: fields of `Options`.
    """
    named = frame.assign(**{x: frame[x].map(_name)}) if x in frame else frame
    figure = _Figure(named, {"x": x, "y": y, **_ends(frame, error)}, Options(**{"zero": True} | options))

    def draw(own: pd.DataFrame, x_axis: Any, y_axis: Any) -> list[Any]:
        base = alt.Chart().encode(x_axis, y_axis, **figure.offset())
        layers = [base.mark_bar(opacity=0.9).encode(tooltip=figure.tooltip, **figure.color("square"))]
        return [
            *layers,
            *([base.mark_rule(style="error").encode(alt.Y("low:Q"), alt.Y2("high:Q"))] if "low" in own else []),
        ]

    return figure.chart(draw)


def heatmap(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    diverging: bool = False,
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
        max_cells: columns of a panel.
        options: fields of `Options`.
    """
    o = Options(**options)
    figure = _Figure(frame, {"x": x, "y": y, "value": value}, o)
    figure.table = pd.concat(_merged(own, max_cells) for _, own in figure.panels())
    ends = list(_widened(figure.table["value"].min(), figure.table["value"].max()))
    if diverging:
        ends = [-float(np.abs(ends).max()), float(np.abs(ends).max())]
    scale = alt.Scale(domain=ends, range="diverging" if diverging else "heatmap", zero=False)
    color = alt.Color("value:Q", scale=scale, legend=alt.Legend(title=o.label(value)))

    def draw(own: pd.DataFrame, x_axis: Any, y_axis: Any) -> list[Any]:
        return [alt.Chart().mark_rect().encode(x_axis, y_axis, color, tooltip=figure.tooltip)]

    return figure.chart(draw, cells=True)


def beside(
    *charts: Chart, title: str, caption: str = "", id: str = "", columns: int | None = None, titles: bool = True
) -> Chart:
    """Put charts next to each other, each under its title, as far as the width allows; `columns` at most."""
    if not charts:
        raise ValueError("`charts` must hold a chart, got none. Pass one or more.")
    views = [chart.spec | ({"title": chart.title} if titles else {}) for chart in charts]
    params = [param for view in views for param in view.pop("params", ())]
    has_facets = any("concat" in view for view in views)  # these fill a row
    spec = _concat(views, "independent", columns or (1 if has_facets else num_columns(len(views))))
    return Chart(id or slug(title), title, caption, spec | ({"params": params} if params else {}))


def stack(*charts: Chart, title: str, caption: str = "", id: str = "", titles: bool = True) -> Chart:
    """Put charts below each other, each under its title."""
    return beside(*charts, title=title, caption=caption, id=id, columns=1, titles=titles)


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
        self.table = self.tidy(frame, self.columns)
        self.measured = "value" if "value" in self.columns else "y"
        if not self.table[self.measured].notna().any():
            raise ValueError(f"Chart {options.title!r} has no value to draw. Pass a table with one, or leave it out.")
        self.marks: pd.DataFrame | None = None
        self.crosses: pd.DataFrame | None = None
        if options.marks is not None and len(options.marks):
            known = {ours: name for ours, name in self.columns.items() if ours in ("x", "y") or name in options.marks}
            extra = {key: key for key in ("low", "high", "label") if key in options.marks}
            self.marks = self.tidy(options.marks, known | extra)

    def tidy(self, frame: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
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

    def thin(self, max_points: int) -> int:
        """Leave at most so many points of each line; return how many the longest has then."""
        keys = [key for key in LINE_KEYS if key in self.table]
        table = self.table.sort_values("x", kind="stable")
        lines = [own for _, own in table.groupby(keys, dropna=False, observed=True)] if keys else [table]
        longest = max(map(len, lines))
        if longest > max_points:
            kept = [own.iloc[extremes(own["y"].to_numpy(float), max_points)] for own in lines]
            self.table = pd.concat(kept).sort_index()  # names keep the order in which they came
        return min(longest, max_points)

    def panels(self) -> list[tuple[Any, pd.DataFrame]]:
        """Return the rows of each facet that has a value."""
        if "facet" not in self.table:
            return [(None, self.table)]
        parts = [(value, self.table[self.table["facet"] == value]) for value in _unique(self.table["facet"])]
        return [(value, own) for value, own in parts if own[self.measured].notna().any()]

    @cached_property
    def domain(self) -> list[Any]:
        """Values of the colour column in the order of their colours."""
        if "color" not in self.table:
            return []
        found = _unique(self.table["color"])
        if self.options.color == LAYER and _is_numeric(self.table["color"]) and min(found) >= 0:
            return list(range(int(max(found)) + 1))
        first = [each if _is_numeric(self.table["color"]) else str(each) for each in self.options.order]
        return [*first, *(each for each in found if each not in first)]

    def color(self, symbol: str) -> dict[str, Any]:
        """Return the colour channel."""
        if "color" not in self.table:
            return {}
        title, numeric = self.options.label(str(self.options.color)), _is_numeric(self.table["color"])
        is_layer = self.options.color == LAYER and numeric and len(self.domain) <= len(THEMES["light"]["layers"])
        if numeric and not is_layer and len(self.domain) > MAX_NAMED:
            legend = alt.Legend(title=title)
            return {"color": alt.Color("color:Q", scale=alt.Scale(range="ramp", zero=False), legend=legend)}
        kind = "ordinal" if is_layer else "ramp" if numeric or self.options.shades else "category"
        shown = set(self.table["color"])
        legend = _legend([each for each in self.domain if each in shown], title, symbol)
        scale = alt.Scale(domain=self.domain, range=kind)
        return {"color": alt.Color(f"color:{'O' if numeric else 'N'}", scale=scale, legend=legend, sort=None)}

    def offset(self) -> dict[str, Any]:
        """Return the channel that puts colours side by side; none where one colour has a name for itself."""
        if "color" not in self.table or not self.table.duplicated([k for k in ("facet", "x") if k in self.table]).any():
            return {}
        return {"xOffset": alt.XOffset("color:N", sort=self.domain, scale=alt.Scale(domain=self.domain))}

    @property
    def tooltip(self) -> list[Any]:
        """Return what the pointer shows of a point."""
        return [
            alt.Tooltip(
                f"{ours}:{'Q' if _is_numeric(self.table[ours]) else 'N'}",
                title=self.options.label(name),
                **({"format": NUMBER} if _is_numeric(self.table[ours]) else {}),
            )
            for ours, name in self.columns.items()
        ]

    def chart(self, draw: Draw, *, cells: bool = False, free: bool = False) -> Chart:
        """Draw each panel, add rules and marks, and put the panels side by side.

        Args:
            draw: returns the layers of a panel.
            cells: each number has a band of its own, as names have.
            free: leave room at the ends of the x axis.
        """
        o, views = self.options, []
        for value, own in self.panels():
            x, y = (self._axis(ours, own, value, cells=cells, free=free) for ours in "xy")
            layers = draw(own, x, y)
            rules = [rule for rule in o.rules if rule.facet in (None, value)]
            for rule, shift in zip(rules, _shifts(rules, y), strict=True):
                layers += self._rule(rule, x if rule.axis == "x" else y, shift)
            layers += [*self._crossed(value, x, y), *self._marked(value, x, y)]
            view = {"data": _columns(own), "layer": [_plain_layer(layer) for layer in layers]}
            if value is not None:
                view["title"] = f"{o.label(str(o.facet))} {_name(value)}" if _is_numeric(own["facet"]) else value
            views.append(view if o.height is None else view | {"height": o.height})
        spec = views[0] if o.facet is None else _concat(views, "shared", num_columns(len(views)))
        return Chart(self.id, o.title, o.caption, spec)

    def _axis(self, ours: str, own: pd.DataFrame, value: Any, *, cells: bool, free: bool) -> Any:
        """Return the channel of an axis."""
        o, is_x = self.options, ours == "x"
        title = o.label(self.columns[ours]) or None
        shared = o.share_x if is_x else o.share_y
        table = self.table if shared else own
        if cells or not _is_numeric(own[ours]):
            return _names_axis(ours, table, title, cells=cells)
        marks = self.marks if shared else _in_panel(self.marks, value)
        seen = [table] if marks is None else [table, marks]
        ends = ["x"] if is_x else ["y", "low", "high"]
        numbers = [float(each) for part in seen for key in ends if key in part for each in part[key]]
        numbers += list(o.x_ends) if is_x else []
        numbers += [rule.value for rule in o.rules if rule.axis == ours and (shared or rule.facet in (None, value))]
        if not is_x and "n" in own and not _is_numeric(own["x"]) and not o.y_log:  # room for n at the foot
            numbers.append(np.nanmin(numbers) - FOOT * (np.nanmax(numbers) - np.nanmin(numbers)))
        log, zero = (o.x_log, False) if is_x else (o.y_log, o.zero)
        return _number_axis(ours, np.array(numbers, float), title, log=log, zero=zero, free=free or not is_x)

    def _rule(self, rule: Rule, axis: Any, shift: int) -> list[Any]:
        data = {rule.axis: float(rule.value), "label": rule.label, "color": rule.color}
        base = alt.Chart(alt.Data(values=[data])).encode(axis)
        if rule.color is None:
            layers = [base.mark_rule(style="alert" if rule.alert else "guide", strokeDash=[2, 3])]
        else:
            layers = [base.mark_rule(strokeDash=[6, 4], strokeWidth=1.2).encode(**self.color("stroke"))]
        if not rule.label:
            return layers
        if rule.axis == "y":
            side, place = {"align": "left", "baseline": "bottom", "dy": -3}, {"x": alt.value(4 + shift)}
        else:
            low, high = axis["scale"]["domain"]
            middle = math.sqrt(low * high) if axis["scale"]["type"] == "log" else (low + high) / 2
            side = {"align": "right", "dx": -5} if rule.value > middle else {"align": "left", "dx": 5}
            side, place = side | {"baseline": "top"}, {"y": alt.value(2)}
        style = "alert-text" if rule.alert else "guide-text"
        return [*layers, base.mark_text(style=style, **side).encode(text="label:N", **place)]

    def _crossed(self, value: Any, x: Any, y: Any) -> list[Any]:
        own = _in_panel(self.crosses, value)
        if own is None or own.empty:
            return []
        inside = np.array([EDGE, 1 - EDGE])
        low, high = y["scale"]["domain"]
        ends = low * (high / low) ** inside if self.options.y_log else low + (high - low) * inside
        marks = alt.Chart(_own_data(own.assign(value=own["y"], y=own["y"].clip(*ends))))
        title = self.options.label(self.columns["y"])
        tips = [*self.tooltip[:1], alt.Tooltip("value:Q", title=title, format=NUMBER), "flag:N"]
        marks = marks.mark_point(shape=CROSS, size=36, strokeWidth=2, opacity=1)
        return [marks.encode(x, y, tooltip=tips, **self.color("stroke"))]

    def _marked(self, value: Any, x: Any, y: Any) -> list[Any]:
        own = _in_panel(self.marks, value)
        if own is None or own.empty:
            return []
        base = alt.Chart(_own_data(own)).encode(x, y)
        look, color = ({}, self.color("stroke")) if "color" in own else ({"style": "alert"}, {})
        bar = base.mark_rule(strokeWidth=2, **look)
        layers = [bar.encode(alt.Y("low:Q"), alt.Y2("high:Q"), **color)] if "low" in own else []
        tips = "label:N" if "label" in own else self.tooltip[:2]
        layers.append(base.mark_point(size=60, filled=True, opacity=1, **look).encode(tooltip=tips, **color))
        if "label" in own and len(own) <= MAX_LABELS:
            words = base.mark_text(style="alert-text", align="left", baseline="top", dx=6, dy=4)
            layers.append(words.encode(text="label:N"))
        return layers


def _in_panel(table: pd.DataFrame | None, value: Any) -> pd.DataFrame | None:
    return table if table is None or "facet" not in table else table[table["facet"] == value]


def _shifts(rules: Sequence[Rule], y: Any) -> list[int]:
    """Return by how many pixels the label of each rule moves to the right, clear of those of rules close below."""
    shifts, before, shift = dict.fromkeys(rules, 0), -math.inf, 0
    for rule in sorted((rule for rule in rules if rule.axis == "y" and rule.label), key=lambda rule: rule.value):
        low, high = y["scale"]["domain"]
        shifts[rule] = shift = shift if rule.value - before < LABEL_ROOM * (high - low) else 0
        before, shift = rule.value, shift + LETTER * (len(rule.label) + 2)
    return [shifts[rule] for rule in rules]


def _number_axis(ours: str, values: np.ndarray, title: str | None, *, log: bool, zero: bool, free: bool) -> Any:
    """Return the channel of an axis of numbers; `free` leaves room at its ends."""
    numbers = values[np.isfinite(values)]
    positive = numbers[numbers > 0]
    look: dict[str, Any] = {"tickCount": 5}
    if log and positive.size:
        low, high = float(positive.min()), float(positive.max())
        scale: dict[str, Any] = {"type": "log"}
        if ours == "x" and (numbers == 0).any():
            low, first = 0.0, 10.0 ** math.floor(math.log10(low))
            scale = {"type": "symlog", "constant": first}
            ticks = [0.0, *log_ticks(first, high)]
        else:
            room = max((high / low) ** MARGIN, 1.02) if free or high == low else 1.0
            low, high = low / room, high * room
            ticks = log_ticks(low, high)
        look = {"labelExpr": TICK, "labelOverlap": "greedy"}
        look |= {"values": ticks} if len(ticks) > 1 else {"tickCount": 4}  # Vega thins the values to its count
    else:
        scale = {"zero": False}
        low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
        bottom, top = low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        if free or high == low:
            low, high = _widened(low, high)
            room = MARGIN * (high - low)
            low, high = low - room * (not zero or bottom < 0), high + room * (not zero or top > 0)
    channel = alt.X if ours == "x" else alt.Y
    limits = alt.Scale(domain=[low, high], nice=False, **scale)
    return channel(f"{ours}:Q", scale=limits, axis=alt.Axis(title=title, **look))


def _names_axis(ours: str, table: pd.DataFrame, title: str | None, *, cells: bool) -> Any:
    """Return the channel of an axis of names, or of the numbers of a heat map, each in a band of its own."""
    names, numeric = _unique(table[ours]), _is_numeric(table[ours])
    names = names[::-1] if numeric and ours == "y" else names
    shown = names[:: -(-len(names) // 14)] if cells else names
    channel = alt.X if ours == "x" else alt.Y
    slanted = ours == "x" and sum(len(str(each)) for each in shown) > MAX_LETTERS and not numeric
    axis = alt.Axis(title=title, values=shown, labelAngle=-35 if slanted else 0, grid=False, labelOverlap=cells)
    axis.labelExpr = TICK if numeric else alt.Undefined
    axis.labelFlush = alt.Undefined if numeric else False  # names stay at their ticks
    return channel(f"{ours}:{'O' if numeric else 'N'}", sort=None, scale=alt.Scale(domain=names), axis=axis)


def log_ticks(low: float | int, high: float | int) -> list[float]:
    """Return powers of ten between two numbers, or 1, 2 and 5 times them where there are fewer than two.

    >>> log_ticks(0.9, 1e5), log_ticks(30, 300)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0], [50.0, 100.0, 200.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    inside = [tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    powers = [tick for tick in inside if f"{tick:e}".startswith("1.000000e")]
    return powers[:: -(-len(powers) // MAX_TICKS)] if len(powers) > 1 else inside


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


def _legend(values: Sequence[Any], title: str, symbol: str) -> Any:
    """Return a legend in columns that fit a width of `LEGEND_ROOM`; none for a single value or very many."""
    if not 1 < len(values) <= MAX_LEGEND:
        return None
    columns = max(1, LEGEND_ROOM // (34 + 7 * max(len(_name(value)) for value in values)))
    expression = TICK if all(isinstance(value, int | float) for value in values) else alt.Undefined
    look = {"symbolType": symbol, "symbolOpacity": 1, "labelExpr": expression}
    return alt.Legend(title=title, columns=columns, values=list(values), **look)


def _concat(views: list[dict[str, Any]], scales: str, columns: int) -> dict[str, Any]:
    """Put panels side by side; colours, dashes and shapes are `shared` or `independent`."""
    resolve = dict.fromkeys(("color", "strokeDash", "shape"), scales)
    return {"concat": views, "columns": columns, "resolve": {"scale": resolve}}


def _plain_layer(layer: Any) -> dict[str, Any]:
    """Return a layer of Altair as Vega-Lite; one without data of its own has those of its panel."""
    made = layer.to_dict(validate=False, context={"top_level": False})
    if rows := made.pop("data").get("values"):
        made["data"] = {"columns": {name: [row[name] for row in rows] for name in rows[0]}}
    return made


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a panel as a spec holds them; numbers rounded, gaps null."""
    shown = table.drop(columns="facet", errors="ignore")
    return {"columns": {name: [_plain(value) for value in shown[name].tolist()] for name in shown}}


def _own_data(table: pd.DataFrame) -> Any:
    """Return the few rows of a layer that has data of its own."""
    columns = _columns(table)["columns"]
    return alt.Data(values=[dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _ends(frame: pd.DataFrame, ends: Ends) -> dict[str, str | None]:
    """Return the columns of a band or of error bars under our names; none where the default ones are missing."""
    return {} if ends is None or (ends == ENDS and not {*ends} <= {*frame}) else dict(zip(ENDS, ends, strict=True))


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
