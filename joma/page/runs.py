"""Runs on pages: an overview, runs side by side, and a page for each run or group of seeds."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from joma.charts import Chart, Rule, heatmap, lines, stack
from joma.charts.builders import MAX_CELLS, MAX_POINTS
from joma.claims.table import short
from joma.formatting import NO_LAYER, counted, layer_name
from joma.measure.effects import CurveEffects, curve_effects
from joma.metrics import METRICS, metric_named
from joma.page.site import Page, figure, render, table
from joma.store import RunInfo, find_runs, info, is_open, read, read_events

SEED_KEY = re.compile(r"(^|[_.-])seeds?$", re.IGNORECASE)
"""Names of settings that are seeds: seed, seeds, data_seed."""
SEED_IN_NAME = re.compile(r"seed[-_= ]?(\d+)", re.IGNORECASE)
"""A seed in the name of a folder, a file or a repository: seed-3, pythia-70m-seed3."""
ANY_SEED = "seed*"
COST = "cost"
"""Kind of the rows that say what measuring took."""
ALL_HEADS, NO_STEP = -1, -1
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
EVENTS = {"alarm": "Alarms", "audit": "Audit of the checkpoints", "unseen": "Not measured"}
"""Kinds of events that have a table of their own; what layers do is in the table of layers."""
OTHER = "other"
EFFECTS = {"start": "start", "fall": "fall", "lowest at step": "dip_time", "rise": "rise", "end": "end"}
"""Columns of the table of layers, and the fields of effects that they show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRun:
    """A run with its tables."""

    name: str
    """Path below the folder of the report."""
    info: RunInfo
    values: pd.DataFrame
    events: pd.DataFrame
    """What happened and was not withdrawn; `evidence` is a dictionary."""
    status: str
    seed: str
    """Empty when no setting and no name has one."""

    @property
    def measured(self) -> pd.DataFrame:
        """Rows of what was measured, without what that took."""
        return self.values[self.values["kind"] != COST]

    @property
    def cost(self) -> pd.Series:
        """Seconds of each measurement."""
        rows = self.values
        return rows.loc[(rows["kind"] == COST) & (rows["metric"] == "seconds"), "value"]

    @property
    def wall_seconds(self) -> float | None:
        """Time from start to end, of a run that was not interrupted."""
        if self.info.ended is None or self.info.resumed:
            return None
        begun, ended = (datetime.fromisoformat(time) for time in (self.info.started, self.info.ended))
        return (ended - begun).total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs of one kind and configuration that differ only in their seed; often a single one."""

    name: str
    runs: tuple[ReportRun, ...]

    def rows(self, metric: str) -> pd.DataFrame:
        """Return the values of a metric in all runs, with a column `run`."""
        own = [run.measured[run.measured["metric"] == metric].assign(run=run.name) for run in self.runs]
        return pd.concat(own, ignore_index=True)

    def events(self, kind: str) -> pd.DataFrame:
        """Return the events of one kind, those that repeat at every step once."""
        own = []
        for run in self.runs:
            kinds = run.events["kind"]
            chosen = ~kinds.isin([*EVENTS, "effects", "regime"]) if kind == OTHER else kinds == kind
            own.append(run.events[chosen].assign(run=run.name))
        return pd.concat(own, ignore_index=True).drop_duplicates(["run", "site", "message"])


def run_pages(folder: Path, *, without: Sequence[Path] = ()) -> list[Page]:
    """Return the pages of all runs at or below a folder, those below `without` left out; none when there is no run."""
    folders = [each for each in find_runs(folder) if not any(each.is_relative_to(other) for other in without)]
    if not folders:
        return []
    runs, unreadable = load(folders, folder)
    if not runs:
        raise ValueError(unreadable[0]["reason"])
    groups = grouped(runs)
    metrics = metrics_of(groups)
    effects = {run.name: curve_effects(run.measured[trusted(run.measured)]) for run in runs}
    slugs = {group.name: f"run-{place}" for place, group in enumerate(groups[:MAX_PAGES], start=1)}
    links = {run.name: f"{slugs[group.name]}.html" for group in groups if group.name in slugs for run in group.runs}
    overview = render(
        "runs",
        unreadable=unreadable,
        table=table([_overview(group, run, effects[run.name]) for group in groups for run in group.runs], links=links),
        charts=[figure(chart) for chart in _side_by_side(groups, metrics)] if len(groups) > 1 else [],
        differences=table(_differences(groups)) if len(groups) > 1 else "",
        left_out=max(0, len(groups) - MAX_PAGES),
    )
    alone = leading_charts(groups[0], "index") if len(groups) == 1 else []  # with one run the index shows its curves
    summary = Markup("").join([*map(figure, alone), overview])
    first = Page(slug="runs", title=counted(len(runs), "run"), group="Runs", body=overview, summary=summary)
    pages = [_page(group, slugs[group.name], metrics, effects) for group in groups[:MAX_PAGES]]
    return [first, *pages]


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
    about = info(folder)
    seeds = [*_seeds(about.config), *_seeds(about.about)] or SEED_IN_NAME.findall(name)
    events = read_events(folder)
    events["evidence"] = [_parsed(text) for text in events["evidence"]]
    stands = [not each.get("withdrawn") for each in events["evidence"]]
    seed = ", ".join(dict.fromkeys(seeds))
    values, status = read(folder), status_of(about)
    return ReportRun(name=name, info=about, values=values, events=events.loc[stands], status=status, seed=seed)


def grouped(runs: Sequence[ReportRun]) -> list[Group]:
    """Gather runs of the same kind and configuration, each seed once; the others stay alone. In order of name."""
    alike: dict[str, list[ReportRun]] = {}
    for run in runs:
        has_setting = any(_seeds(run.info.config)) or any(_seeds(run.info.about))
        name = "" if has_setting else SEED_IN_NAME.sub(ANY_SEED, run.name)
        identity = [run.info.kind, name, _seedless(run.info.config), _seedless(run.info.about)]
        alike.setdefault(json.dumps(identity, sort_keys=True), []).append(run)
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


def trusted(values: pd.DataFrame) -> "pd.Series[bool]":
    """Return which values have no flag and are finite."""
    return (values["flag"] == "") & np.isfinite(values["value"])


def metrics_of(groups: Sequence[Group]) -> list[str]:
    """Return the metrics to draw, in the order of the table of metrics; principal ones alone where there are many."""
    found = {name for group in groups for run in group.runs for name in run.measured["metric"].unique()}
    if len(found) * min(len(groups), MAX_PAGES) > MAX_METRICS:
        found = {name for name in found if metric_named(name).is_principal}
    known = list(METRICS)
    return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))


# --- overview and comparison ---------------------------------------------------------------------------------------


def _overview(group: Group, run: ReportRun, effects: Sequence[CurveEffects]) -> dict[str, Any]:
    alone = Group(name=run.name, runs=(run,))
    losses = alone.rows("loss").sort_values("step")
    held_out = losses[losses["site"] == "validation"]
    losses = (held_out if len(held_out) else losses)["value"]
    losses = losses[np.isfinite(losses)]
    doubtful = int((~trusted(run.measured)).sum())
    names = {
        metric: Counter(each.name.value for each in effects if each.metric == metric)
        for metric in ("entropy", "stable_rank")
    }
    return {
        "run": run.name,
        "kind": run.info.kind,
        "status": run.status,
        "seed": run.seed,
        "last step": short(float(run.values["step"].max())) if len(run.values) else "",
        "measurements": short(float(run.measured["step"].nunique())),
        "layers": short(float(run.measured.loc[run.measured["layer"] != NO_LAYER, "layer"].nunique())),
        "best loss": short(float(losses.min())) if len(losses) else "",
        "last loss": short(float(losses.iloc[-1])) if len(losses) else "",
        "entropy": ", ".join(f"{name} {count}" for name, count in names["entropy"].most_common()),
        "stable rank": ", ".join(f"{name} {count}" for name, count in names["stable_rank"].most_common()),
        "alarms": _count(alone, "alarm"),
        "findings": _count(alone, "audit"),
        "not measured": _count(alone, "unseen"),
        "flagged values": short(float(doubtful)) if doubtful else "",
        "seconds measuring": short(float(run.cost.sum())) if len(run.cost) else "",
    }


def _count(group: Group, kind: str) -> str:
    return str(len(group.events(kind)) or "")


def _side_by_side(groups: Sequence[Group], metrics: Sequence[str]) -> Iterator[Chart]:
    """Draw the mean over layers of each metric, one line for each group."""
    for metric in metrics:
        curves = []
        for group in groups:
            values = group.rows(metric)
            values = values[trusted(values) & (values["head"] == ALL_HEADS)]
            where = "site" if (values["layer"] == NO_LAYER).all() else "layer"
            over_layers = values.groupby(["run", where, "step"])["value"].mean().groupby(["run", "step"]).mean()
            curves.append(_over_runs(over_layers.reset_index(), ["step"]).assign(run=group.name))
        frame = pd.concat(curves)
        if len(frame):
            yield lines(
                frame,
                "step",
                "value",
                color="run",
                band=("low", "high"),
                x_log=_is_log(frame["step"]),
                id=f"compare-{_slug(metric)}",
                title=f"{metric_named(metric).label}, mean over layers",
                caption="Bands are standard errors over seeds.",
                labels={"value": metric_named(metric).axis, "step": "training step"},
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


def _page(group: Group, slug: str, metrics: Sequence[str], effects: dict[str, list[CurveEffects]]) -> Page:
    charts = leading_charts(group, slug)
    for metric in metrics:
        if metric not in leading(group):
            charts += [*_lines(group, metric, slug), *_heads(group, metric, slug)]
    settings = [{"setting": name, "value": value} for name, value in _settings(group).items()]
    tables = [*EVENTS.items(), (OTHER, "Other events")]
    body = render(
        "run",
        states=[(run.name, STATES[run.status]) for run in group.runs if run.status in STATES],
        seeds=[run.seed for run in group.runs],
        costs=[_cost(run) for run in group.runs if len(run.cost)],
        charts=[figure(chart) for chart in charts],
        layers=table(_layers(group, effects)),
        events=[(title, table(_events(group.events(kind)))) for kind, title in tables if _count(group, kind)],
        settings=table(settings),
    )
    return Page(slug=slug, title=group.name, group="Runs", body=body)


def leading(group: Group) -> tuple[str, str]:
    """Return what is drawn first, on one axis of steps: the loss, and the entropy or else the stable rank."""
    return "loss", "stable_rank" if group.rows("entropy").empty else "entropy"


def leading_charts(group: Group, slug: str, max_points: int = MAX_POINTS) -> list[Chart]:
    """Draw the loss over the entropy of each layer on one axis of steps, then the heads where they were recorded."""
    _, lower = metrics = leading(group)
    steps = pd.concat([group.rows(metric) for metric in metrics])["step"]
    if steps.empty:
        return []
    shared = {"x_ends": (int(steps.min()), int(steps.max())), "x_log": _is_log(steps), "max_points": max_points}
    shared["alarms"] = group.events("alarm").drop_duplicates(["site", "step"]).head(MAX_ALARMS)
    curves = [*_lines(group, "loss", slug, height=180, **shared), *_lines(group, lower, slug, height=280, **shared)]
    if len(curves) > 1:
        title = f"Loss over {metric_named(lower).label}"
        caption = "Both over the same steps. Red marks are alarms."
        curves = [stack(*curves, id=f"{slug}-curves", title=title, caption=caption, titles=False)]
    return [*curves, *_heads(group, lower, slug)]


def _lines(
    group: Group, metric: str, slug: str, *, alarms: pd.DataFrame | None = None, **options: Any
) -> Iterator[Chart]:
    """Draw a metric over steps, by layer, with alarms as marks."""
    known, values = metric_named(metric), group.rows(metric)
    good = values[trusted(values)]
    over_heads = good[good["head"] == ALL_HEADS] if (good["head"] == ALL_HEADS).any() else good
    if over_heads.empty:
        return
    several = over_heads.groupby("layer")["site"].nunique().max() > 1
    frame = _over_runs(over_heads, ["layer", "site", "head", "step"])
    has_layers = (frame["layer"] != NO_LAYER).any()
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
        id=f"{slug}-{_slug(metric)}",
        title=known.label.capitalize(),
        caption=known.description,
        labels={"step": "training step", "value": known.axis, "site": "where"},
        **{"x_log": _is_log(values["step"])} | options,
    )


def _heads(group: Group, metric: str, slug: str) -> Iterator[Chart]:
    """Draw single heads as colours, where they were recorded next to their mean."""
    known, values = metric_named(metric), group.rows(metric)
    good = values[trusted(values)]
    heads = good[good["head"] != ALL_HEADS]
    if heads.empty or len(heads) == len(good):
        return
    frame = heads.groupby(["layer", "head", "step"], as_index=False)["value"].mean()
    num_heads = len(frame[["layer", "head"]].drop_duplicates())
    labels = {"step": "training step", "value": known.axis}
    look: dict[str, Any] = {"id": f"{slug}-{_slug(metric)}-heads", "labels": labels}
    title = f"{known.label.capitalize()} by head"
    if num_heads > MAX_HEADS:
        last = frame[frame["step"] == frame["step"].max()]
        yield heatmap(last, "head", "layer", "value", title=f"{title}, last step", caption="", **look)
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


def _over_runs(values: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the mean over runs with its standard error as a band."""
    parts = values.groupby(key, as_index=False)["value"].agg(["mean", "sem"])
    error = parts["sem"].fillna(0.0)
    return parts.assign(value=parts["mean"], low=parts["mean"] - error, high=parts["mean"] + error)


def _layers(group: Group, effects: dict[str, list[CurveEffects]]) -> list[dict[str, str]]:
    """Return what entropy and stable rank do in each layer: the mean over seeds, ± its standard error."""
    found: dict[tuple[str, int, str], list[CurveEffects]] = {}
    for run in group.runs:
        for each in effects[run.name]:
            found.setdefault((each.metric, each.layer, each.site), []).append(each)
    return [
        {
            "layer": str(layer),
            "quantity": METRICS[metric].axis,
            "where": site,
            "name": ", ".join(
                f"{name} {n}" if len(own) > 1 else name for name, n in Counter(e.name.value for e in own).most_common()
            ),
            **{title: _estimate([getattr(each.effects, field) for each in own]) for title, field in EFFECTS.items()},
        }
        for (metric, layer, site), own in sorted(found.items())
    ]


def _estimate(estimates: Sequence[Any]) -> str:
    values = np.array([each.value for each in estimates])
    half = (estimates[0].high - estimates[0].low) / 2 if values.size == 1 else values.std(ddof=1) / np.sqrt(values.size)
    return short(float(values.mean())) + (f" ± {short(float(half), 2)}" if np.isfinite(half) else "")


def _events(events: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "step": "" if row.step == NO_STEP else f"{row.step:,}",
            "where": row.site,
            "what happened": row.message,
            "evidence": "; ".join(f"{name}: {value}" for name, value in flat(row.evidence) if name)[:300],
            "run": row.run if events["run"].nunique() > 1 else "",
        }
        for row in events.sort_values("step", kind="stable").head(MAX_EVENTS).itertuples()
    ]


def _cost(run: ReportRun) -> dict[str, str]:
    wall = run.wall_seconds
    share = f"{100 * run.cost.sum() / wall:.2g} %" if wall else ""
    return {"run": run.name, "seconds": short(float(run.cost.sum())), "share": share, "times": str(len(run.cost))}


def _settings(group: Group) -> dict[str, str]:
    """Return configuration, versions and times by name; where the runs of a group differ, one after the other."""
    each = [dict(_described(run.info)) for run in group.runs]
    names = dict.fromkeys(chain.from_iterable(each))
    values = {name: [settings.get(name, "") for settings in each] for name in names}
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


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "metric"


def _parsed(text: str) -> dict[str, Any]:
    """Read evidence; what is no JSON object is kept as it is."""
    try:
        evidence = json.loads(text)
    except ValueError:
        evidence = text
    return evidence if isinstance(evidence, dict) else {"evidence": evidence}


def _seeds(value: Any) -> Iterator[str]:
    """Yield the seeds among settings: under names that say so, and inside of names such as pythia-70m-seed3."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if SEED_KEY.search(key) and entry is not None:
                yield _shown(entry)
            else:
                yield from _seeds(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _seeds(entry)
    elif isinstance(value, str):
        yield from SEED_IN_NAME.findall(value)


def _seedless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _seedless(entry) for key, entry in value.items() if not SEED_KEY.search(key)}
    if isinstance(value, list):
        return [_seedless(entry) for entry in value]
    return SEED_IN_NAME.sub(ANY_SEED, value) if isinstance(value, str) else value
