"""What both renderings of a chart agree on: colours, places of names, gaps, and how many points are drawn."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from joma.figures.chart import Bars, Chart, HeatMap, Item, Line, Panel
from joma.figures.curves import PALETTE, shades
from joma.figures.span import least_span, widened
from joma.figures.thinning import extremes

MAX_LINE_POINTS = 1200
"""Points of a line; of a longer one the extremes of equal stretches are drawn."""
MAX_SCATTERED = 4000
"""Points of a cloud; of a larger one some, evenly spread."""
MAX_LABEL, MAX_TICK_LABEL = 44, 24
"""Characters of a name in a legend, and on an axis; the pointer shows all of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paint:
    """Colours of an item on a light page and on a dark one, and how often the palette was gone through before."""

    colors: dict[str, str]
    turn: int = 0


class Painter:
    """Gives an item its colour: by palette, by place among the chart's shades, or by the order of labels."""

    def __init__(self, chart: Chart) -> None:
        """Look through the chart."""
        items = [item for panel in chart.panels for item in panel.items]
        self.shades = tuple(item.shade for item in items if isinstance(item, Line) and item.shade is not None)
        labels = dict.fromkeys(item.label for item in items if not isinstance(item, HeatMap) and not _is_placed(item))
        self._order = {label: place for place, label in enumerate(labels)}

    def __call__(self, item: Line | Bars) -> Paint:
        """Return the item's colours."""
        if isinstance(item, Line) and item.shade is not None:
            low, high = min(self.shades), max(self.shades)
            return Paint(colors=shades((item.shade - low) / (high - low) if high > low else 0.0))
        place = self._order[item.label] if item.color is None else item.color
        return Paint(colors=PALETTE[place % len(PALETTE)], turn=place // len(PALETTE))


def can_share_legend(chart: Chart, painter: Painter) -> bool:
    """Whether one legend can name what is in all panels.

    It can where no panel has names that are all its own, a name has one colour, and no two of them look alike.
    """
    named = [[item for item in panel.items if item.label and not isinstance(item, HeatMap)] for panel in chart.panels]
    labels = [{item.label for item in items} for items in named if items]
    num_panels = Counter(label for own in labels for label in own)
    are_shared = len(labels) == 1 or all(any(num_panels[label] > 1 for label in own) for own in labels)
    colors: set[tuple[str, ...]] = set()
    looks: dict[str, tuple[str, ...]] = {}
    for item in (item for items in named for item in items):
        paint = painter(item)
        color = (paint.colors["light"], str(paint.turn))
        colors.add((item.label, *color))
        looks.setdefault(item.label, (*color, item.style if isinstance(item, Line) else "bars"))
    return are_shared and len(colors) == len(looks) == len(set(looks.values()))


def names_of(panel: Panel, axis: str) -> tuple[str, ...]:
    """Return the names on an axis in their order, at 0, 1, 2 and so on; none when the axis has numbers."""
    for item in panel.items:
        if isinstance(item, HeatMap):
            ticks = getattr(item, axis)
            return ticks if isinstance(ticks, tuple) else ()
    if axis == "y":
        return ()
    return tuple(dict.fromkeys(name for item in panel.items if isinstance(item, Bars) for name in item.categories))


def visible(values: Float[np.ndarray, "..."], *, log: bool) -> Float[np.ndarray, "..."]:
    """Return the values with NaN for what the axis cannot show."""
    seen = np.isfinite(values) & ((values > 0) if log else True)
    return np.where(seen, values, np.nan)


def least_ends(panel: Panel) -> list[float]:
    """Return what the scale of y must reach; nothing where the lines fill it, or bars or a map make it."""
    if not all(isinstance(item, Line) for item in panel.items):
        return []
    rows = [row for item in panel.items if isinstance(item, Line) for row in (item.y, item.low, item.high)]
    return _least_ends(np.concatenate([visible(row, log=panel.log_y) for row in rows if row is not None]))


def least_colors(heat_map: HeatMap) -> list[float]:
    """Return what the colours of a heat map must reach; nothing where its values fill them."""
    return _least_ends(heat_map.z.ravel())


def _least_ends(values: Float[np.ndarray, " n"]) -> list[float]:
    """A chart does not know what its quantity is, so that a small change may matter."""
    known = values[np.isfinite(values)]
    return widened(known, least_span(known, fine=True))


def kept(line: Line, *, log_x: bool) -> Int[np.ndarray, " k"]:
    """Return the places of a line's points that are drawn."""
    places = np.flatnonzero(line.x > 0) if log_x else np.arange(line.x.size)
    if line.style == "points":
        return places[np.unique(np.linspace(0, places.size - 1, MAX_SCATTERED).astype(int))] if places.size else places
    return places[extremes(line.y[places], MAX_LINE_POINTS)]


def brief(name: str, num: int) -> str:
    """Return a name with at most so many characters.

    >>> brief("attention frozen at its start", 16)
    'attention froze…'
    """
    return name if len(name) <= num else f"{name[: num - 1]}…"


def edges(ticks: Float[np.ndarray, " n"] | tuple[str, ...], *, log: bool) -> Float[np.ndarray, " m"]:
    """Return where the cells of a heat map begin and end: half way between ticks, as the axis measures it.

    >>> edges(("a", "b"), log=False).tolist(), edges(np.array([1.0, 100.0]), log=True).round(6).tolist()
    ([-0.5, 0.5, 1.5], [0.1, 10.0, 1000.0])
    """
    at = np.arange(len(ticks), dtype=np.float64) if isinstance(ticks, tuple) else ticks
    at = np.log(at) if log else at
    gaps = np.diff(at) if at.size > 1 else np.ones(1)
    found = np.concatenate([[at[0] - gaps[0] / 2], at[1:] - gaps[: at.size - 1] / 2, [at[-1] + gaps[-1] / 2]])
    return np.exp(found) if log else found


def stretches(seen: Bool[np.ndarray, " n"]) -> list[Int[np.ndarray, " k"]]:
    """Return the places of each unbroken stretch that is seen.

    >>> [part.tolist() for part in stretches(np.array([True, True, False, True]))]
    [[0, 1], [3]]
    """
    places = np.flatnonzero(seen)
    return [part for part in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if part.size]


def band(line: Line, *, log: bool) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the edges of a line's band, with NaN where there is none.

    On a logarithmic axis a lower edge that is not positive goes down to the smallest positive number of the line.
    """
    low, high = visible(line.low, log=False), visible(line.high, log=log)
    if log:
        numbers = np.concatenate([line.y, line.low, line.high])
        floor = np.min(numbers[np.isfinite(numbers) & (numbers > 0)], initial=np.inf)
        low = np.where(low > 0, low, floor)
    gap = np.isnan(low) | np.isnan(high)
    return np.where(gap, np.nan, low), np.where(gap, np.nan, high)


def _is_placed(item: Item) -> bool:
    return getattr(item, "color", None) is not None or getattr(item, "shade", None) is not None
