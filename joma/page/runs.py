"""Runs and scans as sections of the page: an overview, runs side by side, and each with its layers and events."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from markupsafe import Markup

from joma.figures.numbers import NO_LAYER, counted
from joma.page import effects, events, layers, panels
from joma.page.document import Section, render
from joma.page.panels import Room
from joma.page.plot import plot_scripts
from joma.page.records import Group, Run, Unreadable, flat, grouped, load, trusted
from joma.page.table import Cell, number, table, words
from joma.store import find_runs

COLUMNS = (
    *("run", "kind", "status", "seed", "last step", "measured", "layers", "best loss", "last loss"),
    *("entropy", "stable rank", "alarms", "findings", "unseen", "not trusted", "seconds"),
)
"""Of the overview."""
TITLES = {
    "measured": "steps with a measured value",
    "not trusted": "values that are flagged or not finite, of those of all quantities, layers and heads together",
    "seconds": "what measuring took, reading what could not be measured included",
}
"""What the headings of the overview count."""
OPTIONAL = ("best loss", "last loss", "alarms", "findings", "unseen", "not trusted", "seconds")
"""Columns that are left out where no run has anything but 0 there."""
_COUNTED = {"scan": "checkpoint"}
"""What has a cost in runs of a kind: a scan reads also what it cannot measure."""
OWN_SETTINGS = ("seed", "started", "ended", "resumed")
"""Entries of a run's description in which runs differ in any case."""


def is_below(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path is one of these folders or lies in one of them."""
    return any(path.is_relative_to(folder) for folder in folders)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """A group, its anchor on the page, and the effects of its curves."""

    group: Group
    anchor: str
    sites: Sequence[effects.SiteEffects]


def sections(folder: Path, *, without: Sequence[Path] = (), with_plotly: bool = True) -> list[Section]:
    """Return the sections of all runs at or below a folder, those below `without` left out; none when there is no run.

    Only one section of a page needs plotly's script. Refuses when no run at all can be read.
    """
    folders = [place for place in find_runs(folder) if not is_below(place, without)]
    if not folders:
        return []
    runs, unreadable = load(folders, folder)
    if not runs:
        raise ValueError(unreadable[0].reason)
    groups = grouped(runs)
    room = panels.share(groups)
    entries = [
        _Entry(group=group, anchor=f"run-{place}", sites=effects.described(group))
        for place, group in enumerate(groups, start=1)
    ]
    side_by_side = [_side_by_side(groups, room)] if len(groups) > 1 else []
    overview = _overview(entries, unreadable, plot_scripts() if with_plotly else Markup(""))
    return [overview, *side_by_side, *(_section(entry, room) for entry in entries)]


def _overview(entries: Sequence[_Entry], unreadable: Sequence[Unreadable], scripts: Markup) -> Section:
    rows = [_overview_row(entry, index) for entry in entries for index in range(len(entry.group.runs))]
    told = [place for place, name in enumerate(COLUMNS) if name not in OPTIONAL or any(row[place].raw for row in rows)]
    shown = table([COLUMNS[place] for place in told], [[row[place] for place in told] for row in rows], titles=TITLES)
    body = render("runs", scripts=scripts, unreadable=unreadable, table=shown)
    return Section(anchor="runs", title=counted(len(rows), "run"), body=body)


def _overview_row(entry: _Entry, index: int) -> list[Cell]:
    run = entry.group.runs[index]
    values, alone = run.values, Group(name=run.name, runs=(run,))
    measured = values[values["layer"] != NO_LAYER]
    counts = [_num_events(alone, kind) for kind in ("alarm", "audit", "unseen")]
    tones = ["bad", "bad", "warned"]
    return [
        words(run.name, tone="name", link=f"#{entry.anchor}"),
        words(run.info.kind),
        words(run.status, tone="" if run.status == "finished" else "bad"),
        words(run.seed),
        number(int(values["step"].max()) if len(values) else None),
        number(run.num_measurements),
        number(int(measured["layer"].nunique())),
        *_losses(alone),
        *(effects.counted(entry.sites, metric, index) for metric in ("entropy", "stable_rank")),
        *(number(num, tone=tone if num else "") for num, tone in zip(counts, tones, strict=True)),
        _not_trusted(run),
        number(run.seconds),
    ]


def _not_trusted(run: Run) -> Cell:
    num = int((~trusted(run.measured)).sum())
    return Cell(text=f"{num} of {len(run.measured)}" if num else "0", raw=num, is_number=True)


def _losses(group: Group) -> list[Cell]:
    """Best and last loss, in validation where that was measured."""
    values = layers.rows(group, "loss")
    held_out = values[values["site"] == "validation"]
    values = (held_out if len(held_out) else values).sort_values("step")
    trusted = values[values["trusted"]]["value"]
    return [number(trusted.min()), number(trusted.iloc[-1])] if len(trusted) else [number(None)] * 2


def _num_events(group: Group, kind: str) -> int:
    """Count events, those that are told again at every step once."""
    told = events.of_kind(group, kind)
    return len(told.drop_duplicates(["site", "message"]))


def _side_by_side(groups: Sequence[Group], room: Room) -> Section:
    drawn = [
        panels.compared(groups, metric, f"side-by-side-{index}", room) for index, metric in enumerate(room.metrics)
    ]
    columns, rows = _differences(groups)
    body = render(
        "side_by_side",
        panels=[panel for panel in drawn if panel is not None],
        log_steps=panels.are_logarithmic(groups),
        has_seeds=any(group.is_averaged for group in groups),
        differences=table(columns, rows) if rows else "",
    )
    return Section(anchor="side-by-side", title="Side by side", body=body)


def _differences(groups: Sequence[Group]) -> tuple[list[str], list[list[Cell]]]:
    """Settings and versions in which the groups differ, one column for each group."""
    settings = [_settings(group) for group in groups]
    rows = [
        [words(name), *(words(each.get(name, "")) for each in settings)]
        for name in dict.fromkeys(chain.from_iterable(settings))
        if name not in OWN_SETTINGS and len({each.get(name) for each in settings}) > 1
    ]
    return ["setting", *(group.name for group in groups)], rows


def _section(entry: _Entry, room: Room) -> Section:
    group = entry.group
    drawn = [panels.panel(group, metric, f"{entry.anchor}-{index}", room) for index, metric in enumerate(room.metrics)]
    settings = [[words(name), words(value)] for name, value in _settings(group).items()]
    body = render(
        "run",
        remarks=[*_states(group), *_seed_remarks(group), *_cost(group), *_left_out(room)],
        panels=[panel for panel in drawn if panel is not None],
        log_steps=panels.are_logarithmic([group]),
        effects=table(effects.COLUMNS, effects.rows(entry.sites), titles=effects.TITLES) if entry.sites else "",
        event_tables=events.tables(group),
        settings=table(["setting", "value"], settings),
    )
    return Section(anchor=entry.anchor, title=group.name, body=body)


def _states(group: Group) -> list[dict[str, str]]:
    """Say of every run that did not finish how it stands."""
    said = {
        "being written": "is being written: this is how it stood at step {last}.",
        "interrupted": "was interrupted, or killed, after step {last}. Nobody is writing it; opening it again goes on.",
        "failed": "failed after step {last}.",
    }
    return [
        _remark(f"{run.name} {said[run.status].format(last=_last_step(run))}", "alarm")
        for run in group.runs
        if run.status in said
    ]


def _seed_remarks(group: Group) -> list[dict[str, str]]:
    if not group.is_averaged:
        return []
    seeds = ", ".join(run.seed for run in group.runs)
    remarks = [
        f"Mean over {len(group.runs)} runs that differ only in their seed ({seeds}). "
        "Error bars are the standard error of the mean over seeds."
    ]
    steps = [set(run.values["step"].unique()) for run in group.runs]
    some = set.union(*steps) - set.intersection(*steps)
    if some:
        remarks.append(
            f"Not every seed has every step: at {len(some)} of them the mean is over fewer, from {min(some)} on."
        )
    made = {(run.info.git_commit, tuple(run.info.versions.items())) for run in group.runs}
    if len(made) > 1:
        remarks.append("These runs were not all made with the same versions: see the configuration.")
    return [_remark(text) for text in remarks]


def _cost(group: Group) -> list[dict[str, str]]:
    remarks = []
    for run in group.runs:
        seconds = run.cost["value"].to_numpy()
        if not seconds.size:
            continue
        wall = run.wall_seconds
        part = f", {100 * run.seconds / wall:.2g} % of its {wall:.4g} s" if wall else ""
        whose = f"Measuring {run.name}" if group.is_averaged else "Measuring"
        each = f"{counted(len(seconds), _COUNTED.get(run.info.kind, 'measurement'))}, median {np.median(seconds):.3g} s"
        remarks.append(_remark(f"{whose} took {run.seconds:.3g} s{part} ({each})."))
    return remarks


def _left_out(room: Room) -> list[dict[str, str]]:
    if not room.left_out:
        return []
    return [_remark(f"There are too many runs on this page to draw {', '.join(room.left_out)}; the records have them.")]


def _remark(text: str, tone: str = "") -> dict[str, str]:
    return {"text": text, "tone": tone}


def _last_step(run: Run) -> str:
    return str(run.values["step"].max()) if len(run.values) else "none"


def _settings(group: Group) -> dict[str, str]:
    """Return configuration, versions and times by name; where the runs of a group differ, one after the other."""
    each = [dict(_described(run)) for run in group.runs]
    names = dict.fromkeys(chain.from_iterable(each))
    values = {name: [settings.get(name, "") for settings in each] for name in names}
    return {name: found[0] if len(set(found)) == 1 else " | ".join(found) for name, found in values.items()}


def _described(run: Run) -> list[tuple[str, str]]:
    info = run.info
    known = [("kind", info.kind), ("git commit", info.git_commit or "")]
    times = [("started", info.started), ("ended", info.ended or ""), ("resumed", ", ".join(info.resumed))]
    return [
        *known,
        *flat(info.config),
        *flat(info.about),
        *flat(info.versions, "version"),
        *((name, time) for name, time in times if time),
    ]
