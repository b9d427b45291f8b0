"""Curves of a group of runs, layer by layer: means and standard errors over seeds, and what is not to be trusted."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from joma.figures.curves import COMBINED, MAX_LABEL, Compared, Curve, Mark, all_values
from joma.figures.numbers import NO_LAYER, layer_name
from joma.figures.span import least_span
from joma.figures.thinning import extremes
from joma.metrics import METRICS, metric_named
from joma.page.records import Group, trusted
from joma.page.table import Cell, number

Item = TypeVar("Item")

ALL_HEADS = -1
MAX_MARKS = 300
"""Flagged values that one picture shows."""
FINE = ("loss",)
"""Quantities in which a small change may matter."""
SETTING = re.compile(r"-(?=[^\W\d])|/")
"""Where the name of a run has another setting: lr1e-3-seed2 has two."""
_SITE = ["layer", "site", "head"]


def metrics(groups: Sequence[Group]) -> list[str]:
    """Return the names of what was measured, the well known first; what measuring took is not among them."""
    found = set()
    for run in (run for group in groups for run in group.runs):
        found |= set(run.measured["metric"].unique())
    known = list(METRICS)
    return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))


def min_span(metric: str, curves: Sequence[Curve]) -> float:
    """Return how much a scale must span at least, so that what counts as flat looks flat."""
    lower, upper = metric_named(metric).bounds
    return least_span(
        all_values(curves),
        lower=float(lower) if np.isfinite(lower) else 0.0,
        upper=float(upper) if np.isfinite(upper) else None,
        fine=metric in FINE,
    )


def layer_cell(layer: int) -> Cell:
    """Return a layer as a cell; what is outside of the layers sorts behind them."""
    return Cell(text=layer_name(layer), raw="", is_number=True) if layer == NO_LAYER else number(layer)


def rows(group: Group, metric: str, *, heads: bool = False) -> pd.DataFrame:
    """Return the values of a metric in all runs of a group, with a column `run`, its position in the group.

    Those over all heads where there are any, single heads otherwise; or single heads where `heads` says so.
    """
    tables = []
    for index, run in enumerate(group.runs):
        values = run.measured
        chosen = values[values["metric"] == metric]
        over_all = chosen["head"] == ALL_HEADS
        single = heads or not over_all.any()
        tables.append(chosen[~over_all if single else over_all].assign(run=index))
    table = pd.concat(tables, ignore_index=True)
    return table.assign(
        site=table["site"].astype(str),
        flag=table["flag"].astype(str),
        trusted=trusted(table),
    )


def curves(table: pd.DataFrame) -> list[Curve]:
    """Return one curve for each site (and head), the mean over runs, by layer; flagged values are left out."""
    names = _Names(table)
    num_sites: dict[int, int] = {}
    found = []
    for (layer, site, head), own in _over_runs(table[table["trusted"]], _SITE):
        num_sites[layer] = num_sites.get(layer, 0) + 1
        label, detail = names.label(layer, site, head), names.detail(layer, site, head)
        found.append(_curve(own, label, detail, layer, dash=num_sites[layer] - 1))
    return found


def by_layer(table: pd.DataFrame) -> list[Curve]:
    """Return one curve for each layer: the mean over its sites, then over runs."""
    means = table[table["trusted"]].groupby(["layer", "run", "step"], as_index=False)["value"].mean()
    names = ((layer, layer_name(layer), own) for (layer,), own in _over_runs(means, ["layer"]))
    return [_curve(own, name, name, layer) for layer, name, own in names]


def combined(table: pd.DataFrame, name: str) -> Curve | None:
    """Return the mean over all sites, then over runs, at the steps where every site of a run has a trusted value."""
    trusted = table[table["trusted"]]
    if trusted.empty:
        return None
    by_step = trusted.groupby(["run", "step"], as_index=False)["value"].agg(["mean", "size"])
    whole = by_step[by_step["size"] == by_step.groupby("run")["size"].transform("max")]
    [(_, own)] = _over_runs(whole.rename(columns={"mean": "value"}).assign(all=0), ["all"])
    return _curve(own, name, name, 0)


def compared(groups: Sequence[Group], metric: str, max_choices: int) -> list[Compared]:
    """Return the curves of several groups for comparison: over all layers, and layer by layer.

    What is measured outside of layers (the loss in training and in validation) has no such mean: it goes site by site.
    """
    tables = [rows(group, metric) for group in groups]
    if all((table["layer"] == NO_LAYER).all() for table in tables):
        return _compared_sites(groups, tables)
    names = told_apart([group.name for group in groups])
    layers = sorted({layer for table in tables for layer in table["layer"].unique() if layer != NO_LAYER})
    kept = spread(layers, max_choices - 1) if len(layers) > 1 else []
    found = []
    for index, (group, table) in enumerate(zip(groups, tables, strict=True)):
        over_all = combined(table, group.name)
        if over_all is not None:
            found.append(Compared(run=index, choice=COMBINED, curve=replace(over_all, label=names[index])))
        for curve in by_layer(table[table["layer"].isin(kept)]):
            named = replace(curve, label=names[index], detail=f"{group.name}, {curve.label}")
            found.append(Compared(run=index, choice=curve.label, curve=named))
    return found


def told_apart(names: Sequence[str]) -> list[str]:
    """Return names short enough for a legend: where some are not, without the parts that all of them share.

    >>> told_apart(["lr1e-3-optimisersgd-momentum0.9-seed*", "lr1e-2-optimisersgd-momentum0.9-seed*"])
    ['lr1e-3', 'lr1e-2']
    """
    if all(len(name) <= MAX_LABEL for name in names):
        return list(names)
    parts = [SETTING.split(name) for name in names]
    num_first, num_last = (_num_shared([part[::way] for part in parts]) for way in (1, -1))
    kept = [part[num_first : max(len(part) - num_last, num_first)] for part in parts]
    return ["-".join(part) or name for part, name in zip(kept, names, strict=True)]


def _num_shared(parts: Sequence[Sequence[str]]) -> int:
    """Count the first parts that all have in common."""
    return next((place for place, each in enumerate(zip(*parts, strict=False)) if len(set(each)) > 1), 0)


def _compared_sites(groups: Sequence[Group], tables: Sequence[pd.DataFrame]) -> list[Compared]:
    names = told_apart([group.name for group in groups])
    return [
        Compared(
            run=index,
            choice=each.label,
            curve=replace(each, label=names[index], detail=f"{group.name}, {each.label}", dash=0),
        )
        for index, (group, table) in enumerate(zip(groups, tables, strict=True))
        for each in curves(table)
    ]


def flagged(group: Group, table: pd.DataFrame) -> tuple[list[Mark], int]:
    """Return the values that are not to be trusted, as many as a picture shows, and how many there are in all."""
    bad = table[~table["trusted"]].sort_values([*_SITE, "run", "step"])
    names = _Names(table)
    kept = bad.iloc[extremes(bad["value"].to_numpy(), MAX_MARKS)]
    return [
        Mark(
            detail=detail,
            step=int(row.step),
            value=float(row.value),
            text=_told(detail, row.step, row.value, row.flag, group.runs[row.run].name if group.is_averaged else ""),
        )
        for row in kept.itertuples()
        for detail in [names.detail(row.layer, row.site, row.head)]
    ], len(bad)


def spread(items: Sequence[Item], num: int) -> list[Item]:
    """Return at most `num` of the items, evenly spread, the first and the last among them.

    >>> spread(range(12), 4)
    [0, 3, 7, 11]
    """
    if len(items) <= num:
        return list(items)
    return [items[place] for place in np.unique(np.linspace(0, len(items) - 1, max(num, 0)).astype(int))]


class _Names:
    """Names of curves: short ones where a layer has one site, all of the site otherwise."""

    def __init__(self, table: pd.DataFrame) -> None:
        sites = table[["layer", "site"]].drop_duplicates()
        self._several = sites.groupby("layer").size() > 1

    def label(self, layer: int, site: str, head: int) -> str:
        """For the legend and the axis."""
        if layer == NO_LAYER:
            return _with_head(site or "model", head)
        return _with_head(f"{layer}: {site}" if self._several[layer] else layer_name(layer), head)

    def detail(self, layer: int, site: str, head: int) -> str:
        """For the pointer."""
        where = _with_head(site or "model", head)
        return where if layer == NO_LAYER else f"{layer_name(layer)}, {where}"


def _with_head(site: str, head: int) -> str:
    return site if head == ALL_HEADS else f"{site}, head {head}"


def _over_runs(table: pd.DataFrame, key: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield for each key the mean over runs at every step and, of several runs, its standard error.

    At a step that only some of the runs have, it is the mean of those; one alone has no error.
    """
    parts = table.groupby([*key, "step"])["value"]
    means = pd.DataFrame({"value": parts.mean(), "error": parts.sem() if table["run"].nunique() > 1 else None})
    for place, own in means.groupby(level=key, sort=True):
        yield place, own.droplevel(key)


def _curve(own: pd.DataFrame, label: str, detail: str, layer: int, dash: int = 0) -> Curve:
    is_mean = own["error"].notna().any()
    return Curve(
        label=label,
        detail=detail,
        shade=None if layer == NO_LAYER else float(layer),
        steps=own.index.to_numpy(),
        values=own["value"].to_numpy(),
        errors=own["error"].to_numpy(dtype=np.float64) if is_mean else None,
        dash=dash,
    )


def _told(detail: str, step: Any, value: float, flag: str, run: str) -> str:
    why = flag or "not a finite number"
    return f"{detail}, step {step}: {value:.5g}. {why}" + (f" ({run})" if run else "")
