"""The pictures of a quantity, and how much of them fits onto a page."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup

from joma.figures import curves as drawing
from joma.figures.curves import Curve, Mark
from joma.figures.numbers import NO_LAYER
from joma.figures.span import widened
from joma.metrics import METRICS, metric_named
from joma.page import events, layers
from joma.page.plot import plot
from joma.page.records import Group

NUM_POINTS = 200_000
"""Points of all lines on a page, which keeps it below 10 MB; one with an error bar takes the room of two."""
NUM_CELLS = 160_000
"""Cells of all heat maps."""
NUM_LINES = 3_000
"""Lines on a page; of more layers those evenly spread are drawn as lines, and all in the heat maps."""
NUM_COMPARED = 800
"""Lines of the runs side by side, of which one layer's are seen at a time."""
MAX_PANELS = 200
"""Quantities of runs on a page; with more, the principal ones are left."""
PRINCIPAL = [name for name, each in METRICS.items() if each.is_principal]
POINTS_RANGE, LINES_RANGE, COLUMNS_RANGE, MAX_ROWS = (40, 500), (8, 240), (24, 250), 1000
FIRST_CHOICES = (drawing.COMBINED, "validation")
"""What is shown of runs side by side until another layer or site is chosen."""
LOG_SPAN, LOG_MEDIAN = 100, 0.2
"""Steps are shown on a logarithmic axis when they span two decades and half of them lie in the first fifth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """How much of each picture fits onto the page."""

    metrics: tuple[str, ...]
    left_out: tuple[str, ...]
    """Metrics that do not fit."""
    max_lines: int
    max_points: int
    max_columns: int
    max_choices: int
    """Layers to choose from when runs are side by side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """The pictures of one quantity."""

    anchor: str
    title: str
    plots: tuple[Markup, ...]
    notes: tuple[str, ...]
    choices: tuple[str, ...] = ()
    """Layers, or sites outside of layers, to choose from; the first is shown."""
    choice_name: str = "layer"


def share(groups: Sequence[Group]) -> Room:
    """Share the page out among what there is to draw."""
    every = layers.metrics(groups)
    metrics = every if len(every) * len(groups) <= MAX_PANELS else [name for name in every if name in PRINCIPAL]
    num_panels = max(1, len(metrics) * len(groups))
    num_rows = [num for group in groups for num in _num_curves(group, metrics)]
    points_each = 2 if any(group.is_averaged for group in groups) else 1
    max_lines = int(np.clip(NUM_LINES // num_panels, *LINES_RANGE))
    max_choices = int(np.clip(NUM_COMPARED // num_panels, 1, max_lines)) if len(groups) > 1 else 0
    num_lines = sum(min(max_lines, num) + min(max_choices, num) for num in num_rows)
    num_rows_drawn = sum(min(MAX_ROWS, num) for num in num_rows)
    return Room(
        metrics=tuple(metrics),
        left_out=tuple(name for name in every if name not in metrics),
        max_lines=max_lines,
        max_points=int(np.clip(NUM_POINTS // max(1, points_each * num_lines), *POINTS_RANGE)),
        max_columns=int(np.clip(NUM_CELLS // max(1, num_rows_drawn), *COLUMNS_RANGE)),
        max_choices=max_choices,
    )


def panel(group: Group, metric: str, anchor: str, room: Room) -> Panel | None:
    """Draw a quantity of a group: lines over steps, and layer × step, and head × step, where there are several."""
    values = layers.rows(group, metric)
    if values.empty:
        return None
    rows = layers.curves(values)
    marks, num_flagged = layers.flagged(group, values)
    lines, notes = _lines(rows, values, room)
    quantity = metric_named(metric).axis
    figure = drawing.curves(
        lines,
        quantity=quantity,
        flagged=marks,
        alarms=_alarms(group) if metric.startswith("entropy") else [],
        max_points=room.max_points,
        min_span=layers.min_span(metric, rows),
        log_steps=are_logarithmic([group]),
    )
    plots = [plot(figure, f"{quantity} over training steps, one line for each layer")]
    if (values["layer"] != NO_LAYER).any():
        plots += _heat_map(metric, "layer", rows, marks, room)
    if (values["head"] == layers.ALL_HEADS).all():
        heads = layers.rows(group, metric, heads=True)
        plots += _heat_map(metric, "head", layers.curves(heads), layers.flagged(group, heads)[0], room)
    notes += _flatness(metric, rows)
    if num_flagged:
        notes.append(_flag_note(title(metric), num_flagged, len(marks), len(values)))
    return Panel(anchor=anchor, title=title(metric), plots=tuple(plots), notes=(*notes, *_thinning(lines, room)))


def compared(groups: Sequence[Group], metric: str, anchor: str, room: Room) -> Panel | None:
    """Draw a quantity of several groups in one picture; nothing when fewer than two of them have it."""
    curves = layers.compared(groups, metric, room.max_choices)
    if len({each.run for each in curves}) < 2:  # noqa: PLR2004 (there is nothing to compare)
        return None
    by_layer = sorted(curves, key=lambda each: (each.choice not in FIRST_CHOICES, each.curve.shade))
    figure = drawing.comparison(
        curves,
        quantity=metric_named(metric).axis,
        max_points=room.max_points,
        choice=by_layer[0].choice,
        min_span=layers.min_span(metric, [each.curve for each in curves]),
        log_steps=are_logarithmic(groups),
    )
    return Panel(
        anchor=anchor,
        title=title(metric),
        plots=(plot(figure, f"{metric_named(metric).axis} over training steps, one line for each run"),),
        notes=tuple(_thinning([each.curve for each in curves], room)),
        choices=tuple(dict.fromkeys(each.choice for each in by_layer)),
        choice_name="layer" if any(each.choice == drawing.COMBINED for each in curves) else "where",
    )


def title(metric: str) -> str:
    """Name a metric on a button."""
    return metric.replace("_", " ") if metric in METRICS else metric


def _num_curves(group: Group, metrics: Sequence[str]) -> list[int]:
    """Count the rows of each metric's heat maps: sites, and heads where they are recorded."""
    values = max((run.values for run in group.runs), key=len)
    curves = values[["metric", "site", "head"]].drop_duplicates()
    return [int((curves["metric"] == metric).sum()) for metric in metrics]


def are_logarithmic(groups: Sequence[Group]) -> bool:
    """Whether these runs were measured at steps that a logarithmic axis shows better."""
    steps = np.unique(np.concatenate([run.values["step"].unique() for group in groups for run in group.runs]))
    steps = steps[steps > 0]
    return bool(steps.size and steps[-1] >= LOG_SPAN * steps[0] and np.median(steps) <= LOG_MEDIAN * steps[-1])


def _lines(rows: list[Curve], values: pd.DataFrame, room: Room) -> tuple[list[Curve], list[str]]:
    """Choose what to draw as lines: all sites, or the means of layers when there are too many."""
    if len(rows) <= room.max_lines:
        return rows, []
    lines = layers.by_layer(values)
    notes = [f"Of {len(rows)} sites the lines show the mean of each layer; the heat map has them one by one."]
    if len(lines) > room.max_lines:
        notes = [f"Lines are drawn for {room.max_lines} of {len(lines)} layers; the heat map has them all."]
    return layers.spread(lines, room.max_lines), notes


def _heat_map(metric: str, unit: str, rows: list[Curve], marks: Sequence[Mark], room: Room) -> list[Markup]:
    """Draw rows × steps, a row for each `unit`; nothing when there is a single row, or none."""
    if len(rows) < 2:  # noqa: PLR2004 (one row is no map)
        return []
    quantity = f"{metric_named(metric).axis}, by {unit}"
    shown = layers.spread(rows, MAX_ROWS)
    min_span = layers.min_span(metric, rows)
    figure = drawing.heat_map(shown, flagged=marks, max_columns=room.max_columns, min_span=min_span)
    return [Markup('<p class="caption">{}</p>').format(quantity) + plot(figure, f"{quantity} and training step")]


def _flatness(metric: str, rows: Sequence[Curve]) -> list[str]:
    """Say where the scales span more than the values do."""
    if not widened(drawing.all_values(rows), layers.min_span(metric, rows)):
        return []
    low, high = (pick(pick(row.values) for row in rows) for pick in (min, max))
    return [f"All values lie between {low:.7g} and {high:.7g}; axis and colours span more than that."]


def _alarms(group: Group) -> list[Mark]:
    rows = events.of_kind(group, "alarm").itertuples()
    return [Mark(detail=row.site, step=row.step, value=np.nan, text=row.message) for row in rows]


def _flag_note(name: str, num_flagged: int, num_drawn: int, num_values: int) -> str:
    """Say what is left out of the pictures of one quantity; the overview counts those of all.

    >>> _flag_note("loss", 1, 1, 20)
    '1 of 20 values of loss is not to be trusted (drawn as a cross); lines, means and effects are without it.'
    """
    whole = f"{num_flagged} of {num_values} values of {name}"
    if num_flagged == 1:
        return f"{whole} is not to be trusted (drawn as a cross); lines, means and effects are without it."
    drawn = "all drawn" if num_drawn == num_flagged else f"{num_drawn} of them drawn"
    return f"{whole} are not to be trusted ({drawn} as crosses); they are left out of lines, means and effects."


def _thinning(lines: Sequence[Curve], room: Room) -> list[str]:
    longest = max((line.steps.size for line in lines), default=0)
    notes = []
    if longest > room.max_points:
        notes.append(
            f"Lines of {longest} points are drawn with at most {room.max_points}: "
            "the lowest and the highest of equal stretches."
        )
    if longest > room.max_columns:
        notes.append("A column of a heat map stands for several steps and shows each row's most extreme value.")
    return notes
