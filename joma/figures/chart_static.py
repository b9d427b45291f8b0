"""Charts as still figures on white: PNG, PDF and SVG, the same bytes for the same chart."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.figures.chart import Bars, Chart, HeatMap, Item, Line, Panel
from joma.figures.chart_style import (
    MAX_LABEL,
    MAX_TICK_LABEL,
    Painter,
    band,
    brief,
    can_share_legend,
    edges,
    kept,
    least_colors,
    least_ends,
    names_of,
    visible,
)
from joma.figures.curves import COLOR_MAP, GRID, INK, LIGHT_RANGE, MAX_LEGEND, MAX_LINE_MARKERS, MAX_TICKS, SOFT
from joma.store.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 144
SINGLE, SEVERAL = (7.0, 4.4), (4.4, 3.5)
"""Inches of a panel alone, and of each of several."""
HEAD, LEGEND_ROW = 0.45, 0.24
"""Inches above the panels, and of a row of the legend below them."""
MAX_COLUMNS = 3
LEGEND_MARK, LETTER = 0.6, 0.07
"""Inches of an entry of the legend below the panels, beside its name, and of a letter."""
BAND_OPACITY = 0.18
BAR_ROOM = 0.8
"""Part of a category's place that its bars take."""
LABEL_ROOM, ENTRY_ROOM = 0.12, 0.07
"""Part of the scale that is left free above bars with words on top, and for an entry of a legend."""
LINE_STYLES = ("-", "--", ":", "-.")
SALT = "joma"
"""What names inside of an SVG are made from; matplotlib draws it at random otherwise."""
STAMPS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""Formats, without the time and the versions that would make every file another one."""


def figure(chart: Chart) -> "Figure":
    """Draw all panels, with one legend below them where it can name what is in each."""
    from matplotlib.figure import Figure

    num = len(chart.panels)
    is_even_alone = num % 2 == 0 and num % MAX_COLUMNS != 0  # two by two, such panels leave no gap
    num_columns = num if num < MAX_COLUMNS else 2 if is_even_alone else MAX_COLUMNS
    num_rows = -(-num // num_columns)
    painter = Painter(chart)
    width, height = SINGLE if num == 1 else SEVERAL
    drawn = Figure(dpi=DPI, layout="constrained")
    grid = drawn.subplots(num_rows, num_columns, squeeze=False).ravel()
    legends = [_panel(axes, panel, painter) for axes, panel in zip(grid, chart.panels, strict=False)]
    for axes in grid[num:]:
        axes.set_visible(False)
    num_lines = _legends(drawn, legends, chart, painter, width * num_columns)
    drawn.set_size_inches(width * num_columns, height * num_rows + HEAD + LEGEND_ROW * num_lines)
    drawn.suptitle(_text(chart.title), color=INK, fontsize=13, wrap=True)
    return drawn


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write every format, each file whole or absent."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": SALT}), _glyphs_may_be_missing():
        drawn = figure(chart)
        return [write_bytes(folder / f"{chart.id}.{kind}", _bytes(drawn, kind)) for kind in STAMPS]


def _bytes(drawn: "Figure", kind: str) -> bytes:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=kind, metadata=STAMPS[kind], facecolor="white")
    return buffer.getvalue()


@contextmanager
def _glyphs_may_be_missing() -> Iterator[None]:
    """A name in a script that the font lacks is drawn as boxes, and no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _panel(axes: "Axes", panel: Panel, painter: Painter) -> dict[str, Any]:
    """Draw a panel and return what its legend shows."""
    handles: dict[str, Any] = {}
    bars = [item for item in panel.items if isinstance(item, Bars)]
    for item in panel.items:
        artist = _draw(axes, item, panel, painter, bars)
        if item.label and artist is not None:
            handles.setdefault(item.label, artist)
    axes.set_title(_text(panel.title), fontsize=10.5, color=INK, wrap=True)
    axes.set_xlabel(_text(panel.x_label), color=INK)
    axes.set_ylabel(_text(panel.y_label), color=INK)
    axes.tick_params(colors=SOFT, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    if not any(isinstance(item, HeatMap) for item in panel.items):
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    if ends := least_ends(panel):
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, ends[0]), max(high, ends[1]))
    _keep_whole(axes, panel)
    _name_ticks(axes, panel)
    return handles


def _draw(axes: "Axes", item: Item, panel: Panel, painter: Painter, bars: list[Bars]) -> Any:
    if isinstance(item, HeatMap):
        _map(axes, item, panel)
        return None
    color = painter(item).colors["light"]
    if isinstance(item, Bars):
        return _bars(axes, item, panel, color, bars)
    return _line(axes, item, panel, color, painter(item).turn)


def _line(axes: "Axes", line: Line, panel: Panel, color: str, turn: int) -> Any:
    places = kept(line, log_x=panel.log_x)
    x = line.x[places]
    if line.low is not None:
        low, high = (edge[places] for edge in band(line, log=panel.log_y))
        axes.fill_between(x, low, high, where=~np.isnan(low), color=color, alpha=BAND_OPACITY, linewidth=0)
    y = visible(line.y[places], log=panel.log_y)
    if line.style == "points":
        look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3.5}
    else:
        look = {"linestyle": LINE_STYLES[(turn + (line.style == "dashed")) % len(LINE_STYLES)], "linewidth": 1.6}
        if line.style == "line" and places.size <= MAX_LINE_MARKERS:
            look |= {"marker": "o", "markersize": 2.5}
    [artist] = axes.plot(x, y, color=color, **look)
    return artist


def _bars(axes: "Axes", item: Bars, panel: Panel, color: str, bars: list[Bars]) -> Any:
    names = names_of(panel, "x")
    width = BAR_ROOM / len(bars)
    shift = (next(place for place, each in enumerate(bars) if each is item) - (len(bars) - 1) / 2) * width
    places = [names.index(name) + shift for name in item.categories]
    values = visible(item.values, log=panel.log_y)
    errors = None if item.errors is None else visible(item.errors, log=False)
    drawn = axes.bar(places, values, width, yerr=errors, color=color, ecolor=INK, capsize=2)
    if item.labels is not None:
        axes.bar_label(drawn, [_text(label) for label in item.labels], padding=2, fontsize=8, color=INK)
        axes.margins(y=LABEL_ROOM)
    return drawn


def _map(axes: "Axes", item: HeatMap, panel: Panel) -> None:
    x, y = edges(item.x, log=panel.log_x), edges(item.y, log=panel.log_y)
    low, high = least_colors(item) or (None, None)
    mesh = axes.pcolormesh(x, y, np.ma.masked_invalid(item.z), cmap=COLOR_MAP, vmin=low, vmax=high, rasterized=True)
    bar = axes.figure.colorbar(mesh, ax=axes)
    bar.set_label(_text(item.label), color=INK)


def _keep_whole(axes: "Axes", panel: Panel) -> None:
    """Put ticks at whole numbers where a heat map has no others: there is no token 2.5."""
    from matplotlib.ticker import MaxNLocator

    for item in panel.items:
        if isinstance(item, HeatMap):
            for axis, ticks, is_log in ((axes.xaxis, item.x, panel.log_x), (axes.yaxis, item.y, panel.log_y)):
                if isinstance(ticks, np.ndarray) and not is_log and (ticks == ticks.round()).all():
                    axis.set_major_locator(MaxNLocator("auto", integer=True))


def _name_ticks(axes: "Axes", panel: Panel) -> None:
    for axis in ("x", "y"):
        names = names_of(panel, axis)
        if not names:
            continue
        places = range(0, len(names), -(-len(names) // MAX_TICKS))
        shown = [_text(brief(names[place], MAX_TICK_LABEL)) for place in places]
        turned = axis == "x" and sum(len(name) for name in shown) > 40  # noqa: PLR2004 (characters that fit below)
        look: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if turned else {}
        getattr(axes, f"set_{axis}ticks")(list(places), shown, **look)
        if axis == "y":
            axes.invert_yaxis()


def _legends(drawn: "Figure", legends: list[dict[str, Any]], chart: Chart, painter: Painter, inches: float) -> int:
    """Name the lines; return how many rows of the figure's own legend that takes."""
    every = {label: handle for legend in legends for label, handle in legend.items()}
    if len(every) > MAX_LEGEND and painter.shades:
        _shade_bar(drawn, painter)
        return 0
    if len(every) < 2:  # noqa: PLR2004 (one line needs no name beside the title)
        return 0
    if can_share_legend(chart, painter):
        return _legend_below(drawn, every, inches)
    for axes, legend in zip(drawn.axes, legends, strict=False):
        if legend:
            if axes.patches:  # bars may fill their axes, and leave no place where a legend would not lie on one
                axes.margins(y=LABEL_ROOM + ENTRY_ROOM * len(legend))
            _legend(axes, legend, {"loc": "best", "fontsize": 7.5})
    return 0


def _legend_below(drawn: "Figure", handles: dict[str, Any], inches: float) -> int:
    """Name what is in all panels, in rows about as long as each other; return how many."""
    longest = max(len(brief(label, MAX_LABEL)) for label in handles)
    most = max(1, int(inches / (LEGEND_MARK + LETTER * longest)))
    num_rows = -(-len(handles) // most)
    num_columns = -(-len(handles) // num_rows)
    names = list(handles)
    by_column = [name for column in range(num_columns) for name in names[column::num_columns]]  # as it is filled
    look = {"loc": "outside lower center", "ncols": num_columns, "fontsize": 8.5}
    _legend(drawn, {name: handles[name] for name in by_column}, look)
    return num_rows


def _legend(place: Any, handles: dict[str, Any], look: dict[str, Any]) -> None:
    names = [_text(brief(label, MAX_LABEL)) for label in handles]
    place.legend(list(handles.values()), names, frameon=False, labelcolor=INK, **look)


def _shade_bar(drawn: "Figure", painter: Painter) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colors = colormaps[COLOR_MAP](np.linspace(*LIGHT_RANGE, 256))
    ends = Normalize(min(painter.shades), max(painter.shades))
    drawn.colorbar(ScalarMappable(ends, ListedColormap(colors)), ax=drawn.axes, pad=0.01)


def _text(name: str) -> str:
    """Return a name that matplotlib and XML take as it is: no mathematics, no characters that cannot be written."""
    shown = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in name)
    return shown.replace("$", r"\$")
