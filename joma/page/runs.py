"""Runs on pages: an overview, runs side by side, and a page for each run or group of seeds."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from joma.charts import Chart, Rule, heatmap, lines, stack
from joma.charts.builders import MAX_CELLS, MAX_POINTS, slug
from joma.claims.table import short
from joma.formatting import NO_LAYER, counted, layer_name
from joma.measure.effects import ALL_HEADS, CurveEffects, curve_effects
from joma.metrics import METRICS, metric_named
from joma.page.site import Page, figure, link, render, table
from joma.store import RunInfo, find_runs, info, is_open, read, read_events

SEED_KEY = re.compile(r"(^|[_.-])seeds?($|[.\[])", re.IGNORECASE)
"""Names of settings that are seeds: seed, seeds, data_seed."""
SEED_IN_NAME = re.compile(r"seed[-_= ]?(\d+)", re.IGNORECASE)
"""A seed in the name of a folder, a file or a repository: seed-3, pythia-70m-seed3."""
ANY_SEED = "seed*"
NO_STEP, LARGE = -1, 100
MAX_PAGES = 40
"""Groups that get a page of their own; the overview lists all."""
MAX_METRICS = 200
"""Charts of all pages together; with more, only the principal metrics are drawn."""
MAX_EVENTS = 300
"""Events that one table shows."""
MAX_ALARMS = 50
"""Alarms that a chart marks; the table has all."""
MAX_HEADS, MAX_HEAD_CELLS = 400, 20_000
"""Rows of a heat map over steps, and its cells; of more heads the last step is drawn, layer by head."""
LOG_SPAN, LOG_MEDIAN = 100, 0.2
"""Steps get a logarithmic axis when they span two decades and half of them lie in the first fifth."""
OWN_SETTINGS = ("seed", "started", "ended", "resumed")
"""Entries in which runs differ in any case."""
STATES = {
    "being written": "is still being written",
    "interrupted": "was interrupted or killed; opening it again continues",
    "failed": "failed",
}
OTHER = "other"
EVENTS = {"alarm": "Alarms", "audit": "Audit of the checkpoints", "unseen": "Not measured", OTHER: "Other events"}
"""Tables of events by kind."""
IN_LAYERS = ("effects", "regime")
"""Kinds of events that the table of layers shows."""
EFFECTS = {"start": "start", "fall": "fall", "lowest at step": "dip_time", "rise": "rise", "end": "end"}
"""Columns of the table of layers, and the fields of effects that they show."""
STEP, ALL_LAYERS = "training step", "mean over layers"
MAX_COMPARED = 120
"""Lines of runs side by side: with few runs, more layers can be chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRun:
    """A run with its tables."""

    name: str
    """Path below the folder of the report."""
    info: RunInfo
    values: pd.DataFrame
    """What was measured; `trusted` is False for values that have a flag or are not finite."""
    cost: pd.Series
    """Seconds of each measurement."""
    events: pd.DataFrame
    """What happened and was not withdrawn, once each; `kind` is one of `EVENTS`, `evidence` a dictionary."""
    status: str
    seed: str
    """Empty when no setting and no name has one."""
    identity: str
    """The same for runs that differ only in their seed."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one kind and configuration that differ only in their seed; often a single one."""

    name: str
    runs: tuple[ReportRun, ...]

    @cached_property
    def metrics(self) -> dict[str, pd.DataFrame]:
        """The values of all runs by metric, with a column `run`."""
        values = pd.concat([run.values.assign(run=run.name) for run in self.runs], ignore_index=True)
        return dict(list(values.groupby("metric")))

    def rows(self, metric: str) -> pd.DataFrame:
        """Return the values of a metric in all runs, with a column `run`."""
        return self.metrics[metric] if metric in self.metrics else self.runs[0].values[:0].assign(run="")

    @cached_property
    def _events(self) -> pd.DataFrame:
        own = [run.events.assign(run=run.name) for run in self.runs]
        return pd.concat(own, ignore_index=True).sort_values("step", kind="stable")

    def events(self, kind: str) -> pd.DataFrame:
        """Return the events of one kind, by step, with a column `run`."""
        return self._events[self._events["kind"] == kind]


def run_pages(root: Path, folders: Sequence[Path] | None = None) -> list[Page]:
    """Return the pages of runs, of all at or below a root when no folders are given; none when there is no run."""
    folders = find_runs(root) if folders is None else folders
    if not folders:
        return []
    runs, unreadable = load(folders, root)
    if not runs:
        raise ValueError(unreadable[0]["reason"])
    groups = grouped(runs)
    metrics = metrics_of(groups)
    effects = {run.name: curve_effects(run.values[run.values["trusted"]]) for run in runs}
    slugs = {group.name: f"run-{place}" for place, group in enumerate(groups[:MAX_PAGES], start=1)}
    overviews = [
        _overview(run, effects[run.name])
        | ({"run": link(f"{slugs[group.name]}.html", run.name)} if group.name in slugs else {})
        for group in groups
        for run in group.runs
    ]
    several = len(groups) > 1
    overview = render(
        "runs",
        unreadable=unreadable,
        table=table(overviews),
        charts=[figure(chart) for chart in _side_by_side(groups, metrics)] if several else [],
        differences=table(_differences(groups)) if several else "",
        left_out=max(0, len(groups) - MAX_PAGES),
    )
    alone = [] if several else leading_charts(groups[0], "index")  # with one run the index shows its curves
    summary = Markup("").join([*map(figure, alone), overview])
    first = Page(slug="runs", title=counted(len(runs), "run"), group="Runs", body=overview, summary=summary)
    return [first, *(_page(group, slugs[group.name], metrics, effects) for group in groups[:MAX_PAGES])]


def load(folders: Sequence[Path], root: Path) -> tuple[list[ReportRun], list[dict[str, str]]]:
    """Read runs; one that cannot be read is listed and does not stop the others."""
    runs, unreadable = [], []
    for folder in folders:
        name = run_name(folder, root)
        try:
            runs.append(_load(folder, name))
        except (ValueError, OSError) as error:
            unreadable.append({"name": name, "reason": " ".join(str(error).split())})
    return runs, unreadable


def run_name(folder: Path, root: Path) -> str:
    """Return the path of a run below the folder of the report, as text."""
    path = folder.resolve().name if folder == root else folder.relative_to(root)
    return os.fsencode(path).decode("utf-8", "replace")


def status_of(about: RunInfo) -> str:
    """Return finished, failed, interrupted (nobody writes it any more) or being written."""
    if about.status != "running":
        return about.status
    return "being written" if is_open(about.folder) else "interrupted"


def _load(folder: Path, name: str) -> ReportRun:
    about, values, events = info(folder), read(folder), read_events(folder)
    values["trusted"] = (values["flag"] == "") & np.isfinite(values["value"])
    is_cost = values["kind"] == "cost"
    events["evidence"] = [_parsed(text) for text in events["evidence"]]
    stands = np.array([not each.get("withdrawn") for each in events["evidence"]], bool)
    events = events[stands & ~events["kind"].isin(IN_LAYERS)].drop_duplicates(["kind", "site", "message"])
    events["kind"] = events["kind"].where(events["kind"].isin(EVENTS), OTHER)
    settings = [*flat(about.config), *flat(about.about)]
    seeds = [text for key, text in settings if SEED_KEY.search(key) and text != "none"]
    seeds += [seed for key, text in settings if not SEED_KEY.search(key) for seed in SEED_IN_NAME.findall(text)]
    common = [(key, SEED_IN_NAME.sub(ANY_SEED, text)) for key, text in settings if not SEED_KEY.search(key)]
    return ReportRun(
        name=name,
        info=about,
        values=values[~is_cost],
        cost=values.loc[is_cost & (values["metric"] == "seconds"), "value"],
        events=events,
        status=status_of(about),
        seed=", ".join(dict.fromkeys(seeds or SEED_IN_NAME.findall(name))),
        identity=json.dumps([about.kind, "" if seeds else SEED_IN_NAME.sub(ANY_SEED, name), sorted(common)]),
    )


def grouped(runs: Sequence[ReportRun]) -> list[Group]:
    """Gather runs of the same kind and configuration, each seed once; the others stay alone. In order of name."""
    alike: dict[str, list[ReportRun]] = {}
    for run in runs:
        alike.setdefault(run.identity, []).append(run)
    groups = []
    for members in alike.values():
        seeds = {run.seed for run in members}
        if len(members) > 1 and "" not in seeds and len(seeds) == len(members):
            ordered = sorted(members, key=lambda run: (not run.seed.isdecimal(), run.seed.zfill(20), run.seed))
            names = {SEED_IN_NAME.sub(ANY_SEED, run.name) for run in members}
            name = names.pop() if len(names) == 1 else f"{ordered[0].name} and {len(members) - 1} more"
            groups.append(Group(name=name, runs=tuple(ordered)))
        else:
            groups += [Group(name=run.name, runs=(run,)) for run in members]
    return sorted(groups, key=lambda group: group.name)


def metrics_of(groups: Sequence[Group]) -> list[str]:
    """Return the metrics to draw, in the order of the table of metrics; principal ones alone where there are many."""
    found = set(chain.from_iterable(group.metrics for group in groups))
    if len(found) * min(len(groups), MAX_PAGES) > MAX_METRICS:
        found = {name for name in found if metric_named(name).is_principal}
    known = list(METRICS)
    return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))


# --- overview and comparison ---------------------------------------------------------------------------------------


def _overview(run: ReportRun, effects: Sequence[CurveEffects]) -> dict[str, Any]:
    values = run.values
    losses = values[(values["metric"] == "loss") & np.isfinite(values["value"])]
    held_out = losses[losses["site"] == "validation"]
    losses = (held_out if len(held_out) else losses).sort_values("step")["value"]
    happened = Counter(run.events["kind"])
    return {
        "run": run.name,
        "kind": run.info.kind,
        "status": run.status,
        "seed": run.seed,
        "last step": values["step"].max() if len(values) else "",
        "measured steps": values["step"].nunique(),
        "layers": values.loc[values["layer"] != NO_LAYER, "layer"].nunique(),
        "best loss": losses.min() if len(losses) else "",
        "last loss": losses.iloc[-1] if len(losses) else "",
        "entropy": _counted([each.name.value for each in effects if each.metric == "entropy"]),
        "stable rank": _counted([each.name.value for each in effects if each.metric == "stable_rank"]),
        "alarms": happened["alarm"] or "",
        "findings": happened["audit"] or "",
        "not measured": happened["unseen"] or "",
        "flagged values": (~values["trusted"]).sum() or "",
        "seconds measuring": run.cost.sum() or "",
    }


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(names).most_common())


def _side_by_side(groups: Sequence[Group], metrics: Sequence[str]) -> Iterator[Chart]:
    """Draw each metric, one line for each group: of all layers, of one that is chosen, or of a site without layers."""
    is_band, room = any(len(group.runs) > 1 for group in groups), max(1, MAX_COMPARED // len(groups))
    for metric in metrics:
        values = pd.concat([group.rows(metric).assign(group=group.name) for group in groups])
        values = values[values["trusted"] & (values["head"] == ALL_HEADS)]
        if values.empty:
            continue
        inside = values[values["layer"] != NO_LAYER]
        if inside.empty:
            values = values.assign(where=values["site"].where(values["site"] != "", metric))
            num_groups = values.groupby("where")["group"].nunique()
            choices = sorted(num_groups.index, key=lambda site: (-num_groups[site], site != "validation"))[:room]
        else:
            layers = sorted(inside["layer"].unique())
            kept = layers[:: -(-len(layers) // (room - 1))] if min(room, len(layers)) > 1 else []
            means = inside.groupby(["group", "run", "layer", "step"], as_index=False)["value"].mean()
            means["where"] = means["layer"].map(layer_name)
            values = pd.concat([means.assign(where=ALL_LAYERS), means])
            choices = [ALL_LAYERS, *map(layer_name, kept)]
        values = values[values["where"].isin(choices)]
        by_run = values.groupby(["where", "group", "run", "step"], as_index=False)["value"].mean()
        frame = _over_runs(by_run, ["where", "group", "step"])
        order = {choice: place for place, choice in enumerate(choices)}
        yield lines(
            frame.sort_values("where", key=lambda where: where.map(order), kind="stable"),
            "step",
            "value",
            color="group",
            order=[group.name for group in groups],
            choose="where" if frame["where"].nunique() > 1 else None,
            band=("low", "high") if is_band else None,
            x_log=_is_log(frame["step"]),
            id=f"compare-{slug(metric)}",
            title=f"{metric_named(metric).label.capitalize()}, run by run",
            caption="Bands are standard errors over seeds." if is_band else "",
            labels={"value": metric_named(metric).axis, "step": STEP, "group": "run", "where": "show"},
        )


def _differences(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Return settings and versions in which the groups differ, one column for each group."""
    settings = {group.name: _settings(group) for group in groups[:MAX_PAGES]}
    names = dict.fromkeys(chain.from_iterable(settings.values()))
    return [
        {"setting": name, **{group: own.get(name, "") for group, own in settings.items()}}
        for name in names
        if name not in OWN_SETTINGS and len({own.get(name) for own in settings.values()}) > 1
    ]


# --- one group -----------------------------------------------------------------------------------------------------


def _page(group: Group, name: str, metrics: Sequence[str], effects: dict[str, list[CurveEffects]]) -> Page:
    charts = leading_charts(group, name)
    for metric in metrics:
        if metric not in leading(group):
            charts += [*_lines(group, metric, name), *_heads(group, metric, name)]
    events = {title: group.events(kind) for kind, title in EVENTS.items()}
    body = render(
        "run",
        states=[(run.name, STATES[run.status]) for run in group.runs if run.status in STATES],
        seeds=[run.seed for run in group.runs],
        costs=[_cost(run) for run in group.runs if len(run.cost)],
        charts=[figure(chart) for chart in charts],
        flagged=sum(int(_is_flagged(run.values).sum()) for run in group.runs),
        layers=table(_layers(group, effects)),
        events=[(title, table(_events(own))) for title, own in events.items() if len(own)],
        settings=table([{"setting": name, "value": value} for name, value in _settings(group).items()]),
    )
    return Page(slug=name, title=group.name, group="Runs", body=body)


def leading(group: Group) -> tuple[str, str]:
    """Return what is drawn first, on one axis of steps: the loss, and the entropy or else the stable rank."""
    return "loss", "entropy" if "entropy" in group.metrics else "stable_rank"


def leading_charts(group: Group, name: str, max_points: int = MAX_POINTS) -> list[Chart]:
    """Draw the loss over the entropy of each layer on one axis of steps, then the heads where they were recorded."""
    _, lower = metrics = leading(group)
    steps = pd.concat([group.rows(metric) for metric in metrics])["step"]
    if steps.empty:
        return []
    shared = {"x_ends": (int(steps.min()), int(steps.max())), "x_log": _is_log(steps), "max_points": max_points}
    shared["alarms"] = group.events("alarm").drop_duplicates(["site", "step"]).head(MAX_ALARMS)
    curves = [*_lines(group, "loss", name, height=180, **shared), *_lines(group, lower, name, height=280, **shared)]
    if len(curves) > 1:
        title = f"Loss over {metric_named(lower).label}"
        caption = "Both over the same steps. Red marks are alarms."
        curves = [stack(*curves, id=f"{name}-curves", title=title, caption=caption, titles=False)]
    return [*curves, *_heads(group, lower, name)]


def _lines(
    group: Group, metric: str, name: str, *, alarms: pd.DataFrame | None = None, **options: Any
) -> Iterator[Chart]:
    """Draw a metric over steps, by layer, with flagged values as crosses and alarms as marks."""
    known, values = metric_named(metric), group.rows(metric)
    good = values[values["trusted"]]
    over_heads = good[good["head"] == ALL_HEADS] if (good["head"] == ALL_HEADS).any() else good
    if over_heads.empty:
        return
    several = over_heads.groupby("layer")["site"].nunique().max() > 1
    frame = _over_runs(over_heads, ["layer", "site", "head", "step"])
    has_layers = (frame["layer"] != NO_LAYER).any()
    flagged = values[_is_flagged(values) & values["head"].isin(over_heads["head"])]
    rules, marks = [], None
    if alarms is not None:
        steps = sorted(set(alarms["step"]))
        rules = [Rule(int(step), "alarm" if step == steps[0] else "", axis="x", alert=True) for step in steps]
        marks = alarms[["site", "step"]].merge(frame[["site", "layer", "step", "value"]])
        marks = marks.assign(label=[layer_name(layer) for layer in marks.pop("layer")])
    yield lines(
        frame,
        "step",
        "value",
        color="layer" if has_layers else "site",
        dash="site" if has_layers and several else None,
        detail="head",
        band=("low", "high") if len(group.runs) > 1 else None,
        rules=rules,
        marks=marks,
        crosses=flagged,
        id=f"{name}-{slug(metric)}",
        title=known.label.capitalize(),
        caption=known.description,
        labels={"step": STEP, "value": known.axis, "site": "where"},
        **{"x_log": _is_log(values["step"])} | options,
    )


def _heads(group: Group, metric: str, name: str) -> Iterator[Chart]:
    """Draw single heads as colours, where they were recorded next to their mean."""
    known, values = metric_named(metric), group.rows(metric)
    good = values[values["trusted"]]
    heads = good[good["head"] != ALL_HEADS]
    if heads.empty or len(heads) == len(good):
        return
    frame = heads.groupby(["layer", "head", "step"], as_index=False)["value"].mean()
    num_heads = len(frame[["layer", "head"]].drop_duplicates())
    labels = {"step": STEP, "value": known.axis, "where": ""}
    look: dict[str, Any] = {"id": f"{name}-{slug(metric)}-heads", "labels": labels}
    title = f"{known.label.capitalize()} by head"
    if num_heads > MAX_HEADS:
        last = frame[frame["step"] == frame["step"].max()]
        yield heatmap(last, "head", "layer", "value", title=f"{title}, last step", **look)
        return
    frame["where"] = "layer " + frame["layer"].astype(str) + ", head " + frame["head"].astype(str)
    yield heatmap(
        frame,
        "step",
        "where",
        "value",
        max_cells=min(MAX_CELLS, MAX_HEAD_CELLS // num_heads),
        height=min(max(120, 12 * num_heads), 420),
        title=title,
        caption="One row for each head.",
        **look,
    )


def _is_flagged(values: pd.DataFrame) -> "pd.Series[bool]":
    """Return which values can be drawn and are not reliable."""
    return ~values["trusted"] & np.isfinite(values["value"])


def _over_runs(values: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the mean over runs with its standard error as a band."""
    parts = values.groupby(key, as_index=False)["value"].agg(["mean", "sem"])
    error = parts["sem"].fillna(0.0)
    return parts.assign(value=parts["mean"], low=parts["mean"] - error, high=parts["mean"] + error)


def _layers(group: Group, effects: dict[str, list[CurveEffects]]) -> list[dict[str, str]]:
    """Return what entropy and stable rank do in each layer: the mean over seeds, ± its standard error."""
    found: dict[tuple[str, int, str], list[CurveEffects]] = {}
    for each in chain.from_iterable(effects[run.name] for run in group.runs):
        found.setdefault((each.metric, each.layer, each.site), []).append(each)
    return [
        {
            "layer": str(layer),
            "quantity": METRICS[metric].axis,
            "where": site,
            "name": own[0].name.value if len(own) == 1 else _counted([each.name.value for each in own]),
            **{title: _estimate([getattr(each.effects, field) for each in own]) for title, field in EFFECTS.items()},
        }
        for (metric, layer, site), own in sorted(found.items())
    ]


def _estimate(estimates: Sequence[Any]) -> str:
    values = np.array([each.value for each in estimates])
    half = (estimates[0].high - estimates[0].low) / 2 if values.size == 1 else values.std(ddof=1) / np.sqrt(values.size)
    return short(float(values.mean())) + (
        f" ± {short(float(half), 2 if half < LARGE else 4)}" if np.isfinite(half) else ""
    )


def _events(events: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "step": "" if row.step == NO_STEP else f"{row.step:,}",
            "where": row.site,
            "what happened": row.message,
            "evidence": "; ".join(f"{name}: {value}" for name, value in flat(row.evidence) if name)[:300],
            "run": row.run if events["run"].nunique() > 1 else "",
        }
        for row in events.head(MAX_EVENTS).itertuples()
    ]


def _cost(run: ReportRun) -> dict[str, str]:
    """Return what measuring took, and its share of the time of a run that was not interrupted."""
    share = ""
    if run.info.ended is not None and not run.info.resumed:
        begun, ended = (datetime.fromisoformat(time) for time in (run.info.started, run.info.ended))
        wall = (ended - begun).total_seconds()
        share = f"{100 * run.cost.sum() / wall:.2g} %" if wall else ""
    return {"run": run.name, "seconds": short(float(run.cost.sum())), "share": share, "times": str(len(run.cost))}


def _settings(group: Group) -> dict[str, str]:
    """Return configuration, versions and times by name; where the runs of a group differ, one after the other."""
    each = [dict(_described(run.info)) for run in group.runs]
    values = {name: [own.get(name, "") for own in each] for name in dict.fromkeys(chain.from_iterable(each))}
    return {name: found[0] if len(set(found)) == 1 else " | ".join(found) for name, found in values.items()}


def _described(about: RunInfo) -> Iterator[tuple[str, str]]:
    yield from (("kind", about.kind), ("git commit", about.git_commit or ""))
    yield from chain(flat(about.config), flat(about.about), flat(about.versions, "version"))
    times = {"started": about.started, "ended": about.ended or "", "resumed": ", ".join(about.resumed)}
    yield from ((name, time) for name, time in times.items() if time)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Walk through nested settings and yield each with its path.

    >>> list(flat({"alarm": {"patience": 3}, "measures": ["entropy", "ranks"], "text": None}))
    [('alarm.patience', '3'), ('measures', 'entropy, ranks'), ('text', 'none')]
    """
    if isinstance(value, dict) and (value or not name):
        for key, entry in value.items():
            yield from flat(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        for index, entry in enumerate(value):
            yield from flat(entry, f"{name}[{index}]")
    else:
        yield name, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, list) and value:
        return ", ".join(_shown(entry) for entry in value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else json.dumps(value)


def _is_log(steps: pd.Series) -> bool:
    positive = steps[steps > 0]
    if positive.empty:
        return False
    return bool(positive.max() >= LOG_SPAN * positive.min() and positive.median() <= LOG_MEDIAN * positive.max())


def _parsed(text: str) -> dict[str, Any]:
    """Read evidence; what is no JSON object is kept as it is."""
    try:
        evidence = json.loads(text)
    except ValueError:
        evidence = text
    return evidence if isinstance(evidence, dict) else {"evidence": evidence}
