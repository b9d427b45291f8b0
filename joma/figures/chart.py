"""Charts as plain values, which experiments make, and their two renderings: interactive and static.

A chart is data and words only, so `draw` of an experiment needs no drawing library. A value that is not finite, or not
positive on a logarithmic axis, is a gap; names are shown as they are, whatever is in them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joma.errors import finite, same_shape

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

Style = Literal["line", "dashed", "points"]
STYLES: tuple[Style, ...] = ("line", "dashed", "points")
CHART_ID = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Ids are names of files and anchors of the page."""
Values = Any
"""Numbers in a row: an array, a list or a column of a table; an array once the item is made."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Values over numbers: a line, a dashed line, or points; with a band where there are `low` and `high`.

    >>> Line("layer 0", [1, 2, 3], [0.5, 0.4, 0.6], low=[0.4, 0.3, 0.5], high=[0.6, 0.5, 0.7]).y
    array([0.5, 0.4, 0.6])
    """

    label: str
    """For the legend; lines of one label share an entry, and an empty label has none."""
    x: Values
    y: Values
    low: Values = None
    """Lower edge of the error band; comes with `high`."""
    high: Values = None
    style: Style = "line"
    color: Any = None
    """Place in the palette, from 0; when neither this nor `shade` is given, labels get theirs as they first come."""
    shade: Any = None
    """Place on a colour map that spans the chart's shades, for lines in an order: layers, learning rates, times."""

    def __post_init__(self) -> None:
        """Make arrays and refuse what cannot be drawn."""
        x, y = finite("x", _row("x", self.x)), _row("y", self.y)
        same_shape(x=x, y=y)
        if self.style not in STYLES:
            raise ValueError(f"`style` must be one of {', '.join(STYLES)}, got {self.style!r}. Pass one of them.")
        if self.color is not None and (self.shade is not None or self.color < 0):
            raise ValueError(f"Line {self.label!r} needs a `color` from 0 on or a `shade`, not both. Pass one of them.")
        if self.shade is not None:
            _set(self, shade=float(finite("shade", self.shade)))
        if (self.low is None) != (self.high is None):
            raise ValueError(f"Line {self.label!r} has one edge of a band. Pass `low` and `high`, or neither.")
        _set(self, x=x, y=y)
        if self.low is not None:
            low, high = _row("low", self.low), _row("high", self.high)
            same_shape(y=y, low=low, high=high)
            if (low > high).any():
                raise ValueError(f"The band of line {self.label!r} has `low` above `high`. Exchange them.")
            _set(self, low=low, high=high)


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """One bar for each category; several items of a panel stand side by side."""

    label: str
    categories: Values
    """Names in a row."""
    values: Values
    errors: Values = None
    """Half lengths of error bars."""
    labels: Values = None
    """A few words above each bar: "0 of 6" where a bar of no height would not be seen."""
    color: Any = None
    """Place in the palette, from 0; when it is not given, labels get theirs as they first come."""

    def __post_init__(self) -> None:
        """Make arrays and refuse what cannot be drawn."""
        categories, values = tuple(str(each) for each in self.categories), _row("values", self.values)
        if len(categories) != values.size or len(set(categories)) < len(categories):
            raise ValueError(
                f"Bars {self.label!r} need one value for each category, and each category once: got {values.size} "
                f"values for {list(categories)}. Pass as many values as categories."
            )
        _set(self, categories=categories, values=values)
        if self.errors is not None:
            errors = _row("errors", self.errors)
            same_shape(values=values, errors=errors)
            if (errors < 0).any():
                raise ValueError(f"`errors` of bars {self.label!r} must not be negative. Pass half lengths.")
            _set(self, errors=errors)
        if self.labels is not None:
            labels = tuple(str(each) for each in self.labels)
            if len(labels) != values.size:
                raise ValueError(
                    f"Bars {self.label!r} need one label for each value: got {len(labels)} for {values.size}. "
                    "Pass as many."
                )
            _set(self, labels=labels)


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Values over two axes, each of numbers in ascending order or of names."""

    label: str
    """What the colours mean."""
    x: Values
    y: Values
    z: Values
    """One row for each y, one column for each x."""

    def __post_init__(self) -> None:
        """Make arrays and refuse what cannot be drawn."""
        x, y = _ticks("x", self.x), _ticks("y", self.y)
        z = np.asarray(self.z, dtype=np.float64)
        if z.shape != (len(y), len(x)) or not z.size:
            raise ValueError(
                f"Heat map {self.label!r} needs `z` of shape (y, x) = ({len(y)}, {len(x)}) with an entry at least, "
                f"got {z.shape}. Transpose it, or pass the axes that it has."
            )
        _set(self, x=x, y=y, z=z)


Item = Line | Bars | HeatMap


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One pair of axes. Lines over bars or over named rows and columns count those as 0, 1, 2 and so on."""

    title: str
    x_label: str
    y_label: str
    items: Sequence[Item]
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        """Refuse items that do not go together."""
        _set(self, items=tuple(self.items))
        num_maps, num_bars = (sum(isinstance(item, kind) for item in self.items) for kind in (HeatMap, Bars))
        if not self.items:
            raise ValueError(f"Panel {self.title!r} has nothing to draw. Pass an item, or leave the panel out.")
        if num_maps > 1 or (num_maps and num_bars):
            raise ValueError(f"Panel {self.title!r} has a heat map beside other areas. Give each a panel of its own.")
        if self.log_x and num_bars:
            raise ValueError(f"Panel {self.title!r} has bars on a logarithmic x axis. Categories have no logarithm.")
        if not all(_has_logarithm(item, self) for item in self.items if isinstance(item, HeatMap)):
            raise ValueError(f"Panel {self.title!r} has a heat map on a logarithmic axis that is not all positive.")


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A figure: one panel or several, with a caption."""

    id: str
    """Name of its files and its anchor on the page."""
    title: str
    caption: str
    """What is seen, and what to look for."""
    panels: Sequence[Panel]

    def __post_init__(self) -> None:
        """Refuse an id that is no file name, and a chart without panels."""
        _set(self, panels=tuple(self.panels))
        if not CHART_ID.fullmatch(self.id):
            raise ValueError(
                f"`id` must be small letters, digits, - and _, got {self.id!r}. It names the files of the chart."
            )
        if not self.panels:
            raise ValueError(f"Chart {self.id!r} has no panel. Pass one.")


def to_plotly(chart: Chart) -> "list[go.Figure]":
    """Draw each panel as an interactive figure, so that a page can set them side by side or below each other."""
    from joma.figures.chart_interactive import figures

    return figures(chart)


def to_matplotlib(chart: Chart) -> "Figure":
    """Draw all panels as one still figure, on white."""
    from joma.figures.chart_static import figure

    return figure(chart)


def save_static(chart: Chart, folder: Path | str) -> list[Path]:
    """Write the chart as PNG, PDF and SVG into the folder, the same bytes for the same chart, and return the paths."""
    from joma.figures.chart_static import save

    return save(chart, Path(folder))


def _row(name: str, values: Values) -> np.ndarray:
    try:
        row = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be numbers, got {values!r}. Pass an array of floats.") from None
    if row.ndim != 1:
        raise ValueError(f"`{name}` must have one axis, got shape {row.shape}. Pass one line at a time.")
    return row


def _ticks(name: str, values: Values) -> np.ndarray | tuple[str, ...]:
    """Numbers as an array, names as a tuple."""
    if all(isinstance(each, str) for each in values):
        return tuple(values)
    numbers = finite(name, _row(name, values))
    if (np.diff(numbers) <= 0).any():
        raise ValueError(f"`{name}` of a heat map must ascend. Sort it, and the rows or columns with it.")
    return numbers


def _has_logarithm(heat_map: HeatMap, panel: Panel) -> bool:
    axes = ((heat_map.x, panel.log_x), (heat_map.y, panel.log_y))
    return all(isinstance(ticks, np.ndarray) and ticks[0] > 0 for ticks, is_log in axes if is_log)


def _set(item: object, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(item, name, value)
