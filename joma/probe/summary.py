"""Runs in one table: the first, lowest and last value of what matters, for every layer."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from joma.formatting import NO_LAYER, fixed, short
from joma.measure.effects import curve_effects
from joma.metrics import METRICS
from joma.store import read

if TYPE_CHECKING:
    import pandas

    from joma.charts import Chart
    from joma.measure.effects import Effects

CURVE = ("first", "lowest (step)", "last", "effect")
SHOWN = {"entropy": CURVE, "stable_rank": CURVE, "max_logit": ("last",)}
"""Columns of the summary of one run."""
DIGITS = {"entropy": 2}  # decimals of a metric; 1 of others. Small values have two significant digits
SCANNED = {
    "entropy": CURVE,
    "stable_rank": CURVE,
    "qk_stable_rank": ("first", "last"),
    "qk_spectral_norm": ("first", "last"),
}
"""Columns of the summary of a series of checkpoints."""
GAP = "    "


def first_lowest_last(table: "pandas.DataFrame", shown: Mapping[str, Sequence[str]] = SHOWN) -> "pandas.DataFrame":
    """Return a row for each metric and layer: its first, lowest and last value, and the step of the lowest.

    Sites of one layer are reduced as its heads are. Values that are not finite are left out.

    Args:
        table: rows of a record with step, metric, layer, head and value, as `joma.read` returns them.
        shown: metrics to describe; the loss comes along.
    """
    import pandas

    rows = []
    known = table[(table["head"] == -1) & table["metric"].isin([*shown, "loss"])]
    known = known[known["value"].abs() < float("inf")]
    for (metric, layer), own in known.groupby(["metric", "layer"], observed=True):
        values = own.groupby("step")["value"].agg(METRICS[metric].reduction.value)
        rows.append((metric, int(layer), values.iloc[0], values.min(), int(values.idxmin()), values.iloc[-1]))
    found = pandas.DataFrame(rows, columns=["metric", "layer", "first", "lowest", "lowest_step", "last"])
    order = {metric: i for i, metric in enumerate(METRICS)}
    return found.sort_values(["metric", "layer"], key=lambda column: column.replace(order), ignore_index=True)


def as_html(table: "pandas.DataFrame", remarks: Iterable[str], shown: Mapping[str, Sequence[str]] = SHOWN) -> str:
    """Return `first_lowest_last` as a table for notebooks, with remarks below it."""
    rows = first_lowest_last(table, shown).to_html(index=False, float_format="{:.3g}".format)
    return rows + "".join(f"<p>{escape(line)}</p>" for line in remarks)


def chart_of(table: "pandas.DataFrame", shown: Iterable[str], title: str, *, otherwise: str) -> "Chart":
    """Draw metrics of every layer over the steps; sites of one layer are reduced as its heads are.

    `otherwise` is the error where there is no value.
    """
    import pandas

    from joma.charts import lines

    table = table[table["head"] == -1]
    curves = [
        own.groupby(["layer", "step"])["value"]
        .agg(METRICS[name].reduction.value)
        .reset_index()
        .assign(metric=METRICS[name].axis)
        for name in shown
        if len(own := table[table["metric"] == name])
    ]
    if not curves:
        raise ValueError(otherwise)
    return lines(pandas.concat(curves), "step", "value", color="layer", facet="metric", share_y=False, title=title)


def effects_of(table: "pandas.DataFrame") -> dict[tuple[str, int], "Effects"]:
    """Return fall and rise of every metric and layer whose curve has enough points, of its first site."""
    found: dict[tuple[str, int], Effects] = {}
    for each in curve_effects(table):
        if each.effects.resolved:
            found.setdefault((each.metric, each.layer), each.effects)
    return found


def layer_lines(table: "pandas.DataFrame", shown: Mapping[str, Sequence[str]] = SHOWN) -> list[str]:
    """Return the summary of one run as lines of text, a row for each layer; nothing where there is no value."""
    found = first_lowest_last(table, shown).set_index(["metric", "layer"])
    layers = sorted({layer for metric, layer in found.index if metric in shown})
    metrics = [metric for metric in shown if metric in found.index.get_level_values("metric")]
    effects = effects_of(table) if any("effect" in columns for columns in shown.values()) else {}
    lines = [["layer"], [" " * 5], *([f"{'–' if layer == NO_LAYER else layer:>5}"] for layer in layers)]
    for metric in metrics:
        cells = [list(shown[metric])]
        digits = DIGITS.get(metric, 1)
        for layer in layers:
            written = dict.fromkeys(shown[metric], "")
            if (metric, layer) in found.index:
                row = found.loc[(metric, layer)]
                written |= {which: fixed(row[which], digits) for which in ("first", "lowest", "last")}
                written["lowest (step)"] = f"{written['lowest']} ({int(row['lowest_step']):,})"
            if (metric, layer) in effects:
                effect = effects[metric, layer]
                written["effect"] = f"−{effect.fall.value:.{digits}f} +{effect.rise.value:.{digits}f}"
            cells.append([written[which] for which in shown[metric]])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        block = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
        width = max(len(METRICS[metric].axis), len(block[0]))
        for line, text in zip(lines, (METRICS[metric].axis, *block), strict=True):
            line.append(f"{text:<{width}}")
    return [GAP.join(line).rstrip() for line in lines] if metrics else []


def compare(folders: Sequence[Path | str]) -> "pandas.DataFrame":
    """Return runs side by side: for each metric and layer the first, lowest and last value of every run.

    Args:
        folders: two or more folders of runs, of watch, train or scan.
    """
    if len(folders) < 2:  # noqa: PLR2004 (a comparison)
        raise ValueError(f"`folders` must name two runs or more, got {len(folders)}. Use `joma report` for one.")
    values = read([Path(folder) for folder in folders])
    tables = {run: first_lowest_last(own) for run, own in values.groupby("run", observed=True, sort=False)}
    import pandas

    found = pandas.concat([table.assign(run=run) for run, table in tables.items()], ignore_index=True)
    if found.empty:
        raise ValueError(f"None of {', '.join(map(str, folders))} has an entropy, rank, logit or loss to compare.")
    return found[["metric", "layer", "run", "first", "lowest", "lowest_step", "last"]]


def side_by_side(found: "pandas.DataFrame") -> list[dict[str, str]]:
    """Return what `compare` found as rows to print, a column for each run."""
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for each in found.itertuples():
        layer = "" if each.layer == NO_LAYER else str(each.layer)
        row = rows.setdefault(
            (each.metric, each.layer),
            {"metric": METRICS[each.metric].axis, "layer": layer} | dict.fromkeys(found["run"].unique(), ""),
        )
        row[each.run] = " → ".join(short(value, digits=3) for value in (each.first, each.lowest, each.last))
    order = list(METRICS)  # runs may differ in their number of layers
    return [rows[key] for key in sorted(rows, key=lambda key: (order.index(key[0]), key[1]))]
