"""Which ingredient the rebound of the attention entropy needs: one taken away at a time.

Runs that overfit are told apart: without dropout the loss rises again long before the end, so each setting is looked at
up to its lowest loss as well. Seeds' own curves are not kept with a result, so that this is read off their mean.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from joma.engine.measuring import ENTROPY
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import LINEAR, PAPER, Config
from joma.experiments.language_model_settings import NOTHING_YET, absent, by_depth
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import (
    ABSENT,
    REBOUNDS,
    Count,
    decided,
    judged_in_words,
    of_judged,
    of_setting,
    rebound_count,
    size_in_words,
    steps_in_words,
)
from joma.figures.numbers import counted
from joma.measure.regime import Curve, Kind, classify_all
from joma.verdicts import Evidence, Verdict, finding, ruling

NO_DROPOUT, FROZEN = "no dropout", "frozen attention"
TAUTOLOGY = (
    "Frozen attention is nearly a tautology: with its weights kept nothing moves the entropy but the states, so that "
    "it must take the rebound away; it tells nothing of the MLP."
)
AFTERWARDS = "asked since the result was seen, and beside; a mean hides rebounds that come at different steps"


def ingredient_verdict(result: Result, config: Config) -> Verdict:
    """Judge the claim that it is the MLP's nonlinearity which brings the entropy back, and nothing else."""
    text = config.texts[0]
    wanted = [
        each for name in (PAPER, *config.controls) for each in by_depth(config, text, config.control_depths, name)
    ]
    lacking = absent(wanted, result.tables["runs"])
    there = {
        (each.condition, each.depth): Controlled.of(result, config, each.condition, each.depth)
        for each in wanted
        if each not in lacking
    }
    rows = {key: _evidence(runs, there.get((PAPER, runs.depth))) for key, runs in there.items()}
    settings = [
        finding(rows[PAPER, depth], rows[LINEAR, depth])
        for depth in config.control_depths
        if {(PAPER, depth), (LINEAR, depth)} <= set(there)
    ]
    others = [row for (name, _), row in rows.items() if name not in (PAPER, LINEAR)]
    found = ruling(settings, besides=[finding(row) for row in others])
    return decided(found, config, lacking).verdict(
        id="rebound-ingredients",
        title="What the rebound needs",
        source="Sections 4 and 5, Figure 6",
        claim="In the nonlinear case the entropy of the attention bounces back: it is the MLP's nonlinearity that does "
        "it.",
        explanation=f"{size_in_words(config, text, lacking)} {_in_words(there.values(), config)}",
        correction="" if lacking else needed_in_words(list(there.values()), config),
        evidence=(
            *(row for (name, _), row in rows.items() if name == LINEAR),
            *others,
            *(row for (name, _), row in rows.items() if name == PAPER),
            *(_until_lowest(runs) for runs in there.values()),
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Controlled:
    """What the runs of one condition and depth do, which differ in their seed alone."""

    condition: str
    depth: int
    count: Count
    """Curves that rebound, of the layers that should."""
    rise: float
    """Mean rise in nats from the lowest point to the end, of these layers."""
    until_lowest: Count
    """Layers whose mean curve over seeds rebounds up to the first of the steps below."""
    best_steps: tuple[int, ...]
    """When the validation loss is lowest, by seed."""
    best_loss: float
    end_loss: float

    @classmethod
    def of(cls, result: Result, config: Config, condition: str, depth: int) -> "Controlled":
        """Read it off the tables."""
        where = (config.texts[0], condition, depth, config.rate)
        runs = of_setting(result.tables["runs"], *where)
        curves = of_judged(of_setting(result.tables["regimes"], *where, ENTROPY), depth)
        steps = tuple(sorted(int(step) for step in runs["best_step"]))
        means = of_judged(of_setting(result.tables["curves"], *where, ENTROPY), depth)
        return cls(
            condition=condition,
            depth=depth,
            count=rebound_count(result.tables["regimes"], *where, ENTROPY),
            rise=float((curves["end"] - curves["lowest"]).mean()),
            until_lowest=_rebounding_until(means, steps[0]),
            best_steps=steps,
            best_loss=float(runs["best_loss"].mean()),
            end_loss=float(runs["end_loss"].mean()),
        )

    @property
    def overfit(self) -> bool:
        """Whether the loss ends above its lowest."""
        return self.end_loss > self.best_loss

    def loss_in_words(self) -> str:
        """Tell when the loss is lowest, and where it ends."""
        when = steps_in_words(self.best_steps)
        return f"lowest loss {self.best_loss:.2f} at {when}, {self.end_loss:.2f} at the end"


def needed_in_words(all_runs: Sequence[Controlled], config: Config) -> str:
    """Say at each depth with which ingredient taken away the rebound goes and with which it stays, in counts."""
    if not any(each.count.share >= REBOUNDS for each in all_runs if each.condition == PAPER):
        return "The paper's setting rebounds at none of the depths."
    return " ".join(_needed_at(depth, all_runs, config) for depth in sorted(config.control_depths, reverse=True))


def _needed_at(depth: int, all_runs: Sequence[Controlled], config: Config) -> str:
    own = {each.condition: each for each in all_runs if each.depth == depth}
    usual = own[PAPER]
    where = f"At depth {depth} ({judged_in_words(depth)}, {counted(len(config.seeds), 'seed')})"
    if usual.count.share < REBOUNDS:
        return f"{where} the paper's setting does not rebound ({usual.count} curves)."
    told: dict[str, list[str]] = {"goes away with": [], "is there in part with": [], "stays with": []}
    for each in own.values():
        if each.condition not in (PAPER, FROZEN):  # what frozen attention does says nothing of the rebound's cause
            told[_fate(each.count.share)].append(_taken_away(each))
    parts = [f"{fate} {enumerated(names)}" for fate, names in told.items() if names]
    return f"{where} the rebound ({usual.count} curves, rise {usual.rise:.2f} nats) {'; it '.join(parts)}."


def _fate(share: float) -> str:
    if share <= ABSENT:
        return "goes away with"
    return "stays with" if share >= REBOUNDS else "is there in part with"


def _taken_away(runs: Controlled) -> str:
    """Name an ingredient with its curves; without dropout, what overfitting has to do with it."""
    told = f"{runs.count}, rise {runs.rise:.2f}"
    if runs.condition == NO_DROPOUT and runs.count.share <= ABSENT:
        told += f"; {runs.loss_in_words()}: before they overfit {runs.until_lowest} mean curves rebound" * runs.overfit
    return f"{runs.condition} ({told})"


def _evidence(runs: Controlled, usual: Controlled | None) -> Evidence:
    """By the claim a linear MLP must take the rebound away, and nothing else may."""
    is_linear = runs.condition == LINEAR
    return Evidence(
        name=f"curves that dip and rebound {_as(runs)}, {judged_in_words(runs.depth)}: {runs.count}",
        against="the regime of each curve",
        unit="share of layers and seeds",
        value=runs.count.share,
        threshold=ABSENT if is_linear else REBOUNDS,
        at_least=not is_linear,
        control=(usual.count.share if usual else math.nan) if is_linear else None,
        control_name=PAPER if is_linear else "",
    )


def _until_lowest(runs: Controlled) -> Evidence:
    """Hold what comes before a run overfits beside it."""
    is_linear = runs.condition == LINEAR
    return Evidence(
        name=f"layers whose mean curve over seeds dips and rebounds up to the first lowest loss of a seed, step "
        f"{runs.best_steps[0]:,}, {_as(runs)}: {runs.until_lowest}",
        against="the regime of each mean curve",
        unit="share of layers",
        value=runs.until_lowest.share,
        threshold=ABSENT if is_linear else REBOUNDS,
        at_least=not is_linear,
        decides=False,
    )


def _as(runs: Controlled) -> str:
    named = runs.condition if runs.condition == PAPER else f"with {runs.condition}"
    return f"{named}, depth {runs.depth}"


def _in_words(all_runs: Collection[Controlled], config: Config) -> str:
    """Tell the counts and rises by depth, and what overfitting and freezing do to them."""
    by_depth = {depth: [each for each in all_runs if each.depth == depth] for depth in config.control_depths}
    told = [
        f"depth {depth} ({judged_in_words(depth)}, {counted(len(config.seeds), 'seed')}): "
        + ", ".join(f"{each.condition} {each.count} (rise {each.rise:.2f})" for each in own)
        for depth, own in by_depth.items()
        if own
    ]
    if not told:
        return NOTHING_YET
    sentences = [
        f"Curves that rebound, and the mean rise in nats from the lowest point to the end, at {'; at '.join(told)}.",
        *_overfit_in_words(by_depth),
        TAUTOLOGY if any(each.condition == FROZEN for own in by_depth.values() for each in own) else "",
    ]
    return " ".join(filter(None, sentences))


def _overfit_in_words(by_depth: dict[int, list[Controlled]]) -> Iterator[str]:
    without = [each for own in by_depth.values() for each in own if each.condition == NO_DROPOUT and each.overfit]
    if not without:
        return
    losses = "; ".join(f"depth {each.depth}: {each.loss_in_words()}" for each in without)
    yield f"Without dropout runs overfit, at {losses}."
    asked = [
        f"depth {depth}: " + ", ".join(f"{each.condition} {each.until_lowest}" for each in own)
        for depth, own in by_depth.items()
        if own
    ]
    yield (
        "Layers whose mean curve over seeds rebounds up to the first lowest loss of a seed "
        f"({AFTERWARDS}), at {'; at '.join(asked)}."
    )


def _rebounding_until(curves: pd.DataFrame, step: int) -> Count:
    """Count the layers whose curve rebounds up to a step."""
    known = curves[(curves["step"] <= step) & np.isfinite(curves["mean"])].sort_values("step")
    found = classify_all(
        Curve(steps=own["step"].to_numpy(), values=own["mean"].to_numpy()) for _, own in known.groupby("layer")
    )
    return Count(sum(each.kind is Kind.REBOUNDING for each in found), curves["layer"].nunique())
