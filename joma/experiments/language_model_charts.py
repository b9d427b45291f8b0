"""The drawings of figures 6 and 8."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from joma.engine.measuring import ENTROPY, LOSS, RANK, WINDOW
from joma.experiments import rebound_until_best
from joma.experiments.assumption1 import ALONE, TOGETHER
from joma.experiments.experiment import NOT_FINISHED, Result
from joma.experiments.language_model_config import (
    CONTROLS,
    EMBEDDED,
    PAPER,
    PUBLISHED,
    TEXT_NAMES,
    UNTRAINED,
)
from joma.experiments.language_model_settings import Setting
from joma.experiments.rebound_shares import Count, id_on, of_setting, rebound_count
from joma.experiments.rebound_until_best import UntilBest
from joma.figures.chart import Bars, Chart, Line, Panel, Style
from joma.figures.numbers import counted, fewest_letters

STEP = "step + 1"
"""Steps start at 0, which has no logarithm; a dip lies within the first of them, where a linear axis hides it."""
NEAR = 1
"""Nats above the highest published loss up to which losses are drawn."""
ONE_LINE_EACH = "one line for each layer, the darkest at the bottom."
BAND = "Lines are means over the seeds, bands reach from the lowest to the highest."
UP_TO_THE_SAME = "as in the paper, up to the same steps"
UNTIL_BEST = (
    "Beside, asked since the result was seen: the same up to the lowest validation loss of each run, before it "
    "overfits; a shorter curve shows less, so that points give the paper's runs, cut at the same steps. "
)
IN_PART = " Settings of which a seed has not ended are left out."


def draw(result: Result) -> tuple[Chart, ...]:
    """Draw curves by depth and by learning rate, what the dips do, the controls and the drift of E[g x].

    Of a part, charts and panels are left out for which there is nothing yet.
    """
    charts: list[Chart] = []
    for text in result.tables["runs"]["text"].unique():
        charts += [*_by_depth(result, text), *_by_rate(result, text), *_dips(result, text), *_rules(result, text)]
    charts += [*_controls(result), *_drift(result)]
    note = IN_PART if NOT_FINISHED in result.facts else ""
    return tuple(replace(chart, caption=chart.caption + note) for chart in charts)


def _by_depth(result: Result, text: str) -> Iterator[Chart]:
    rate = float(result.facts["rate"])
    curves = _of(result, text, PAPER)
    curves = curves[curves["lr"] == rate]
    if curves.empty:
        return
    drawn = {
        ENTROPY: ("figure6-entropy", "Attention entropy by depth", "nats", "The whole validation set is averaged."),
        WINDOW: ("figure6-window", "Attention entropy of one window", "nats", "The paper's single validation window."),
        RANK: ("figure6-rank", "Stable rank of the MLP's lower matrix", "stable rank", "A function of weights alone."),
    }
    for metric, (name, title, label, what) in drawn.items():
        yield Chart(
            id=id_on(name, text),
            title=f"{title}: {_name(text)}",
            caption=f"Learning rate {fewest_letters(rate)}; {ONE_LINE_EACH} {what} {BAND}",
            panels=[
                Panel(f"depth {depth}", STEP, label, _layers(own[own["metric"] == metric]), log_x=True)
                for depth, own in curves.groupby("depth")
            ],
        )
    losses = curves[curves["metric"] == LOSS]
    yield Chart(
        id=id_on("figure6-loss", text),
        title=f"Validation loss by depth: {_name(text)}",
        caption=f"Learning rate {fewest_letters(rate)}. {_published_in_words(text)}{BAND}",
        panels=[Panel(f"validation loss{_only(losses['depth'])}", "step", "nats", list(_losses(losses, text)))],
    )


def _losses(losses: pd.DataFrame, text: str) -> Iterator[Line]:
    known = PUBLISHED.get(text, {})
    for color, (depth, own) in enumerate(losses.groupby("depth")):
        near = own[own["mean"] <= max(known.values()) + NEAR] if known else own
        shown = own if near.empty else near
        yield _band(f"depth {depth}", shown, color=color, shift=0)
        if depth in known:
            ends = [shown["step"].min(), shown["step"].max()]
            yield Line(f"depth {depth}, published", ends, [known[depth]] * len(ends), style="dashed", color=color)


def _published_in_words(text: str) -> str:
    if text not in PUBLISHED:
        return ""
    return (
        "Dashed: the lowest losses that were published. The first steps, whose loss is more than "
        f"{counted(NEAR, 'nat')} above the highest of them, are left out. "
    )


def _only(depths: pd.Series) -> str:
    """Name the depth where there is one alone: a single line has no legend."""
    return f", depth {depths.iloc[0]}" if depths.nunique() == 1 else ""


def _by_rate(result: Result, text: str) -> Iterator[Chart]:
    curves = _of(result, text, PAPER)
    curves = curves[(curves["depth"] == result.facts["rate_depth"]) & (curves["metric"] == ENTROPY)]
    if curves.empty:
        return
    yield Chart(
        id=id_on("figure8-entropy", text),
        title=f"Attention entropy by learning rate: {_name(text)}",
        caption=f"Depth {result.facts['rate_depth']}; {ONE_LINE_EACH} {BAND}",
        panels=[
            Panel(f"learning rate {fewest_letters(lr)}", STEP, "nats", _layers(own), log_x=True)
            for lr, own in curves.groupby("lr")
        ],
    )


def _dips(result: Result, text: str) -> Iterator[Chart]:
    dips, rules = (table[table["text"] == text] for table in (result.tables["dips"], result.tables["rules"]))
    if dips.empty:
        return
    rates, depth = dips["lr"], int(result.facts["rate_depth"])
    curves = {lr: of_setting(result.tables["regimes"], text, PAPER, depth, lr, ENTROPY) for lr in rates}
    seen = pd.concat(curves.values()).query("dip_step > 0")
    style: Style = "points" if rules.empty else "line"  # no line across learning rates that are not there

    def panel(title: str, label: str, columns: dict[str, str], *, log_y: bool = False) -> Panel:
        lines = [Line(name, rates, dips[column], style=style) for column, name in columns.items()]
        has_logarithm = bool(dips[list(columns)].gt(0).any(axis=None))  # without a dip there is nothing to scale
        return Panel(title, "learning rate", label, lines, log_x=True, log_y=log_y and has_logarithm)

    time = panel("time of the dip", "step", {"typical_step": "mean"}, log_y=True)
    points = [Line("one layer and seed", seen["lr"], seen["dip_step"], style="points", color=2)] if len(seen) else []
    law = [] if rules.empty else _inverse(dips, float(result.facts["rate"]))
    time = replace(time, items=[*points, *time.items, *law])
    counts = ", ".join(f"{Count.of(own)} at {fewest_letters(lr)}" for lr, own in curves.items())
    yield Chart(
        id=id_on("figure8-dip", text),
        title=f"Dip, rebound and loss by learning rate: {_name(text)}",
        caption=f"Depth {depth}. Time (a geometric mean) and size of the dip are means over the layers and seeds whose "
        f"entropy rebounds; where none does there is a gap. Curves that rebound: {counts}.",
        panels=[
            time,
            panel("size", "nats", {"dip_depth": "fall into the dip", "rebound": "rise out of it"}),
            panel("what curves do", "share of layers and seeds", {"rebounding": "rebound", "collapsed": "collapse"}),
            panel("lowest validation loss", "nats", {"best_loss": "loss"}),
        ],
    )


def _inverse(dips: pd.DataFrame, rate: float) -> Iterator[Line]:
    """Draw what the claim says of the learning rates with a dip, from the dip at the usual one."""
    known = dips.dropna(subset="inverse_step")
    if len(known):
        label = f"in inverse proportion, from {fewest_letters(rate)}"
        yield Line(label, known["lr"], known["inverse_step"], style="dashed", color=1)


def _rules(result: Result, text: str) -> Iterator[Chart]:
    rules = result.tables["rules"]
    lines = [
        Line(rule, own["share"], own["regret"])
        for rule, own in rules[rules["text"] == text].groupby("rule", sort=False)
    ]
    if not lines:
        return
    yield Chart(
        id=id_on("figure8-early", text),
        title=f"How early the best learning rate is known: {_name(text)}",
        caption="Each rule chooses a learning rate from what is known after a part of the training; its regret is how "
        "much higher the loss of that choice gets than the best one.",
        panels=[Panel("regret", "part of the training", "nats", lines)],
    )


def _controls(result: Result) -> Iterator[Chart]:
    text, rate = str(result.facts["text"]), float(result.facts["rate"])
    curves = result.tables["curves"]
    there = set(curves["condition"])
    names = [name for name in (PAPER, *CONTROLS) if name in there]
    controlled = sorted(set(curves.loc[curves["condition"].isin(CONTROLS), "depth"]))
    if not controlled:
        return
    panels: list[Panel] = []
    color = len(names)  # of no line
    for depth in controlled:
        settings = [Setting(text, name, depth, rate) for name in names]
        untrained = [Setting(text, UNTRAINED, depth, 0.0)] if UNTRAINED in there else []
        panels += [
            _top_layer(result, settings),
            _rebounding(result, [*settings, *untrained], color),
            *_rebounding_until_best(result, settings, color),
        ]
    yield Chart(
        id="rebound-controls",
        title=f"The rebound with one ingredient taken away: {_name(text)}",
        caption=f"Learning rate {fewest_letters(rate)}. Lines: entropy of the top layer. Bars: share of curves, over "
        "seeds and the layers that should, whose entropy dips and rebounds, and how many those are. "
        f"{UNTIL_BEST if rebound_until_best.TABLE in result.tables else ''}{BAND}",
        panels=panels,
    )


def _top_layer(result: Result, settings: Sequence[Setting]) -> Panel:
    own = [of_setting(result.tables["curves"], *setting, ENTROPY) for setting in settings]
    tops = [curves[curves["layer"] == curves["depth"] - 1] for curves in own]
    lines = [
        _band(setting.condition, top, color=color)
        for color, (setting, top) in enumerate(zip(settings, tops, strict=True))
        if len(top)
    ]
    alone = f", {lines[0].label}" if len(lines) == 1 else ""  # a single line has no legend
    return Panel(f"top layer, depth {settings[0].depth}{alone}", STEP, "nats", lines, log_x=True)


def _rebounding(result: Result, settings: Sequence[Setting], color: int) -> Panel:
    counts = [rebound_count(result.tables["regimes"], *setting, ENTROPY) for setting in settings]
    title = f"curves that rebound, depth {settings[0].depth}"
    return Panel(title, "", "share", [_bars(settings, counts, color)])


def _rebounding_until_best(result: Result, settings: Sequence[Setting], color: int) -> Iterator[Panel]:
    found = [each for setting in settings if (each := UntilBest.of(result, setting))]
    if not found:
        return
    items: list[Line | Bars] = [_bars(settings, [each.own for each in found], color)]
    if any(each.usual.asked for each in found):
        usual = [each.usual.share for each in found]
        items.append(Line(UP_TO_THE_SAME, range(len(usual)), usual, style="points", color=0))  # as its line
    yield Panel(f"up to the lowest loss, depth {settings[0].depth}", "", "share", items)


def _bars(settings: Sequence[Setting], counts: Sequence[Count], color: int) -> Bars:
    names, shares = [setting.condition for setting in settings], [each.share for each in counts]
    return Bars("", names, shares, labels=map(str, counts), color=color)


def _drift(result: Result) -> Iterator[Chart]:
    means = result.tables["drift_means"]
    modes = [mode for mode in (TOGETHER, ALONE) if mode in set(means["mode"])]
    if not modes:
        return

    def panel(mode: str, column: str, label: str) -> Panel:
        own = means[means["mode"] == mode]
        lines = [
            Line(f"layer {layer}", each["step"] + 1, each[column], shade=float(layer))
            for layer, each in own.groupby("layer")
        ]
        if column == "cosine":
            halves = own.drop_duplicates("step")
            lines.append(
                Line("two halves of the text", halves["step"] + 1, halves["halves_of_layers"], style="dashed", color=0)
            )
        return Panel(mode, STEP, label, lines, log_x=True)

    yield Chart(
        id="assumption1-drift",
        title="Assumption 1: E[g x] of a step against that of the end",
        caption="By the assumption a matrix does not change, so that its lines lie at 1 but for noise. What noise a "
        "text of this length leaves is dashed: the cosine between two halves of the text at one step, as a mean over "
        "the layers; of a matrix that does not change one sees about that much, or somewhat more. The end, step "
        f"{int(means['step'].max()):,} of trainings of their own, is 1 by definition. Trained whole, and with one "
        "block moving while everything else keeps its start.",
        panels=[
            panel(mode, column, label)
            for column, label in (("cosine", "cosine"), ("length_ratio", "ratio of lengths"))
            for mode in modes
        ],
    )


def _of(result: Result, text: str, condition: str) -> pd.DataFrame:
    curves = result.tables["curves"]
    return curves[(curves["text"] == text) & (curves["condition"] == condition)]


def _layers(curves: pd.DataFrame) -> list[Line]:
    return [_band(f"layer {layer}", own, shade=float(layer)) for layer, own in curves.groupby("layer")]


def _band(
    label: str, own: pd.DataFrame, *, color: int | None = None, shade: float | None = None, shift: int = 1
) -> Line:
    """Draw over the steps, which start at 0 and are shifted by one for a logarithmic axis."""
    return Line(label, own["step"] + shift, own["mean"], low=own["low"], high=own["high"], color=color, shade=shade)


def _name(text: str) -> str:
    return TEXT_NAMES.get(text, text) + (", small models" if text == EMBEDDED else "")
