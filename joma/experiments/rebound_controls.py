"""Which ingredient the rebound of the attention entropy needs: one taken away at a time.

Runs that overfit are told apart: without dropout the loss rises again long before the end, so each curve is looked at
up to the lowest loss of its own run as well (`rebound_until_best`). That was asked later, and decides nothing.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from joma.engine.measuring import ENTROPY
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import LINEAR, PAPER, Config
from joma.experiments.language_model_settings import NOTHING_YET, Setting, absent
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import (
    ABSENT,
    REBOUNDS,
    Count,
    controlled_settings,
    decided,
    judged_in_words,
    of_judged,
    of_setting,
    rebound_count,
    size_in_words,
    steps_in_words,
)
from joma.experiments.rebound_until_best import UntilBest
from joma.figures.numbers import counted
from joma.verdicts import Evidence, Verdict, finding, ruling

NO_DROPOUT, FROZEN = "no dropout", "frozen attention"
TAUTOLOGY = (
    "Frozen attention is nearly a tautology: with its weights kept nothing moves the entropy but the states, so that "
    "it must take the rebound away; it tells nothing of the MLP."
)
AFTERWARDS = "asked since the result was seen"
NOT_KEPT = (
    "What curves do up to the lowest loss of their run was asked since this result was kept, and is not in it: without "
    "the experiment's folder `kept`, the same command reads it off the records of its runs."
)


def ingredient_verdict(result: Result, config: Config) -> Verdict:
    """Judge the claim that it is the MLP's nonlinearity which brings the entropy back, and nothing else."""
    text = config.texts[0]
    wanted = controlled_settings(config)
    lacking = absent(wanted, result.tables["runs"])
    there = {(each.condition, each.depth): Controlled.of(result, each) for each in wanted if each not in lacking}
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
            *(_until_best(runs, runs.until_best.own) for runs in there.values() if runs.until_best is not None),
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
    until_best: UntilBest | None
    """Those that rebound up to the lowest validation loss of their own run; None where that was not kept."""
    best_steps: tuple[int, ...]
    """When the validation loss is lowest, by seed."""
    best_loss: float
    end_loss: float

    @classmethod
    def of(cls, result: Result, setting: Setting) -> "Controlled":
        """Read it off the tables."""
        runs = of_setting(result.tables["runs"], *setting)
        curves = of_judged(of_setting(result.tables["regimes"], *setting, ENTROPY), setting.depth)
        return cls(
            condition=setting.condition,
            depth=setting.depth,
            count=rebound_count(result.tables["regimes"], *setting, ENTROPY),
            rise=float((curves["end"] - curves["lowest"]).mean()),
            until_best=UntilBest.of(result, setting),
            best_steps=tuple(int(step) for step in runs["best_step"]),
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
    if runs.condition == NO_DROPOUT and runs.count.share <= ABSENT and runs.overfit:
        told += f"; {runs.loss_in_words()}"
        if runs.until_best is not None:
            told += f": up to the lowest loss of their run {runs.until_best.own} rebound, and of the paper's curves, "
            told += f"cut at the same steps, {runs.until_best.usual}, {AFTERWARDS}"
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


def _until_best(runs: Controlled, count: Count) -> Evidence:
    """Hold what comes before a run overfits beside it."""
    is_linear = runs.condition == LINEAR
    return Evidence(
        name=f"curves that dip and rebound up to the lowest loss of their run, {steps_in_words(runs.best_steps)}, "
        f"{_as(runs)}, {judged_in_words(runs.depth)}: {count}",
        against="the regime of each curve up to there",
        unit="share of layers and seeds",
        value=count.share,
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
    asked = {
        depth: [f"{each.condition} {each.until_best.own}" for each in own if each.until_best is not None]
        for depth, own in by_depth.items()
    }
    if not any(asked.values()):
        yield NOT_KEPT
        return
    told = "; at ".join(f"depth {depth}: {', '.join(counts)}" for depth, counts in asked.items() if counts)
    yield f"Curves that rebound up to the lowest loss of their own run ({AFTERWARDS}, and beside), at {told}."
    usual = [
        f"{each.until_best.usual} at depth {each.depth}"
        for each in without
        if each.until_best is not None and each.until_best.usual.asked
    ]
    if usual:
        yield (
            "A shorter curve shows less: cut at the steps of those without dropout, of the paper's curves "
            f"{enumerated(usual)} rebound."
        )
