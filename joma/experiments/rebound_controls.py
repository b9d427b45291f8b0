"""Which ingredient the rebound of the attention entropy needs: one taken away at a time.

The whole validation set decides. Asked since the result was seen, and beside: the paper's single window; and, as runs
without dropout overfit, each curve up to the lowest loss of its own run (`rebound_until_best`). Frozen attention takes
the rebound away nearly by construction, and stands beside as well.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from joma.engine.measuring import ENTROPY, WINDOW
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import CONTROLS, LINEAR, PAPER, Config
from joma.experiments.language_model_settings import NOTHING_YET, Setting, absent
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import (
    ABSENT,
    AFTERWARDS,
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
from joma.verdicts import Evidence, Ruling, Verdict, finding, ruling

NO_DROPOUT, NO_RESTART, FROZEN = "no dropout", "no optimiser restart", "frozen attention"
COUNTED = (
    "Curves that rebound are counted on the whole validation set, which decides, and in brackets on the paper's single "
    f"window, {AFTERWARDS}."
)
UNTIL_BEST = f"What curves do up to the lowest loss of their run stands beside, {AFTERWARDS}."
WINDOW_IS = f"Window: the paper's single one; it and the lowest losses decide nothing, {AFTERWARDS}."
TAUTOLOGY = (
    "It tells nothing of the MLP: with its weights kept, nothing but the states moves attention, so that a rebound "
    "that goes is nearly a tautology. Its rows stand beside since the result was seen"
)
NOT_KEPT = (
    "What curves do up to the lowest loss of their run was asked since this result was kept, and is not in it: without "
    "the experiment's folder `kept`, the same command reads it off the records of its runs."
)
NEVER_RESTARTS = "; trainings are shorter than an epoch here, so that the optimiser never restarts"


def ingredient_verdict(result: Result, config: Config) -> Verdict:
    """Judge the claim that it is the MLP's nonlinearity which brings the entropy back, and nothing else."""
    text = config.texts[0]
    wanted = controlled_settings(config)
    lacking = absent(wanted, result.tables["runs"])
    there = {(each.condition, each.depth): Controlled.of(result, each) for each in wanted if each not in lacking}
    rows = {key: _evidence(runs, there.get((PAPER, runs.depth))) for key, runs in there.items()}
    others = [row for (name, _), row in rows.items() if name not in (PAPER, LINEAR)]
    found = _ruling(rows, [row for row in others if row.decides], config)
    is_same = found == _ruling(rows, others, config)
    all_runs = list(there.values())
    return decided(found, config, lacking).verdict(
        id="rebound-ingredients",
        title="What the rebound needs",
        source="Sections 4 and 5, Figure 6",
        claim="In the nonlinear case the entropy of the attention bounces back: it is the MLP's nonlinearity that does "
        "it.",
        explanation=" ".join(
            [size_in_words(config, text, lacking), *_in_words(all_runs, is_same=is_same), *_not_asked(config)]
        ),
        correction="" if lacking else needed_in_words(all_runs, config),
        evidence=(
            *(row for (name, _), row in rows.items() if name == LINEAR),
            *others,
            *(row for (name, _), row in rows.items() if name == PAPER),
            *(_on_window(runs) for runs in all_runs),
            *(_until_best(runs, runs.until_best.own) for runs in all_runs if runs.until_best is not None),
        ),
    )


def _ruling(rows: "dict[tuple[str, int], Evidence]", others: Iterable[Evidence], config: Config) -> Ruling:
    """By the claim a linear MLP takes the rebound of the paper's setting away at each depth, and none of the others."""
    settings = [
        finding(rows[PAPER, depth], rows[LINEAR, depth])
        for depth in config.control_depths
        if {(PAPER, depth), (LINEAR, depth)} <= set(rows)
    ]
    return ruling(settings, besides=[finding(row) for row in others])


@dataclass(frozen=True, kw_only=True, slots=True)
class Controlled:
    """What the runs of one condition and depth do, which differ in their seed alone."""

    condition: str
    depth: int
    count: Count
    """Curves that rebound, of the layers that should."""
    on_window: Count
    """The same on the paper's single window."""
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
        runs, regimes = of_setting(result.tables["runs"], *setting), result.tables["regimes"]
        curves = of_judged(of_setting(regimes, *setting, ENTROPY), setting.depth)
        return cls(
            condition=setting.condition,
            depth=setting.depth,
            count=rebound_count(regimes, *setting, ENTROPY),
            on_window=rebound_count(regimes, *setting, WINDOW),
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


def needed_in_words(all_runs: Sequence[Controlled], config: Config) -> str:
    """Say at each depth with which ingredient taken away the rebound goes and with which it stays, in counts."""
    if not any(each.count.share >= REBOUNDS for each in all_runs if each.condition == PAPER):
        return "The paper's setting rebounds at none of the depths."
    told = [_needed_at(depth, all_runs, config) for depth in sorted(config.control_depths, reverse=True)]
    return " ".join([*told, WINDOW_IS])


def _needed_at(depth: int, all_runs: Sequence[Controlled], config: Config) -> str:
    own = {each.condition: each for each in all_runs if each.depth == depth}
    usual = own[PAPER]
    where = f"At depth {depth} ({judged_in_words(depth)}, {counted(len(config.seeds), 'seed')})"
    if usual.count.share < REBOUNDS:
        return f"{where} the paper's setting does not rebound ({usual.count} curves)."
    told: dict[str, list[str]] = {"goes away with": [], "is there in part with": [], "stays with": []}
    for each in own.values():
        if each.condition not in (PAPER, FROZEN):  # what frozen attention does says nothing of the rebound's cause
            told[_fate(each.count.share)].append(f"{each.condition} ({_counts_in_words(each)})")
    parts = [f"{fate} {enumerated(names)}" for fate, names in told.items() if names]
    return f"{where} the rebound ({usual.count} curves, rise {usual.rise:.2f} nats) {'; it '.join(parts)}."


def _fate(share: float) -> str:
    if share <= ABSENT:
        return "goes away with"
    return "stays with" if share >= REBOUNDS else "is there in part with"


def _counts_in_words(runs: Controlled) -> str:
    """Tell the curves that rebound; where they are gone without dropout, how many there are before runs overfit."""
    told = f"{runs.count}, rise {runs.rise:.2f}, window {runs.on_window}"
    if runs.condition == NO_DROPOUT and runs.count.share <= ABSENT and runs.overfit and runs.until_best is not None:
        told += f"; up to the lowest loss of their run {runs.until_best.own}, of the paper's curves cut at the same "
        told += f"steps {runs.until_best.usual}"
    return told


def _evidence(runs: Controlled, usual: Controlled | None) -> Evidence:
    """By the claim a linear MLP must take the rebound away, and nothing else may; frozen attention cannot but do so."""
    is_linear = runs.condition == LINEAR
    return runs.count.row(
        f"curves that dip and rebound {_as(runs)}, {judged_in_words(runs.depth)}: {runs.count}",
        threshold=ABSENT if is_linear else REBOUNDS,
        at_least=not is_linear,
        control=(usual.count.share if usual else math.nan) if is_linear else None,
        control_name=PAPER if is_linear else "",
        decides=runs.condition != FROZEN,
    )


def _on_window(runs: Controlled) -> Evidence:
    """Hold what the paper's figure shows beside it."""
    return _beside(
        runs, f"on the paper's single window, {_as(runs)}", runs.on_window, against="the regime of each curve"
    )


def _until_best(runs: Controlled, count: Count) -> Evidence:
    """Hold what comes before a run overfits beside it."""
    what = f"up to the lowest loss of their run, {steps_in_words(runs.best_steps)}, {_as(runs)}"
    return _beside(runs, what, count, against="the regime of each curve up to there")


def _beside(runs: Controlled, what: str, count: Count, *, against: str) -> Evidence:
    return replace(
        _evidence(runs, None),
        name=f"curves that dip and rebound {what}, {judged_in_words(runs.depth)}: {count}",
        against=against,
        value=count.share,
        control=None,
        control_name="",
        decides=False,
    )


def _as(runs: Controlled) -> str:
    named = runs.condition if runs.condition == PAPER else f"with {runs.condition}"
    return f"{named}, depth {runs.depth}"


def _in_words(all_runs: Sequence[Controlled], *, is_same: bool) -> Iterator[str]:
    """Tell the counts, an ingredient a sentence, and what to think of overfitting and of frozen attention."""
    if not all_runs:
        yield NOTHING_YET
        return
    yield COUNTED
    for name in dict.fromkeys(each.condition for each in all_runs):
        own = [each for each in all_runs if each.condition == name]
        counts = enumerated([f"{each.count} ({each.on_window}) at depth {each.depth}" for each in own])
        yield f"{name.capitalize()}: {counts}."
        if name == NO_DROPOUT:
            yield from _overfit_in_words(own)
        if name == FROZEN:
            yield f"{TAUTOLOGY}{', and with them the outcome is the same' if is_same else ''}."


def _not_asked(config: Config) -> Iterator[str]:
    """Tell which ingredients are never taken away at this size, and why the optimiser's restart is not."""
    names = [name for name in CONTROLS if name not in config.controls]
    if names:
        yield f"Not asked at this size: {enumerated(names)}{NEVER_RESTARTS if NO_RESTART in names else ''}."


def _overfit_in_words(without: Sequence[Controlled]) -> Iterator[str]:
    """Tell by how much runs without dropout overfit, and where to see what they did before."""
    overfit = [each for each in without if each.overfit]
    if not overfit:
        return
    rises = enumerated([f"{each.end_loss - each.best_loss:.2f} nats at depth {each.depth}" for each in overfit])
    yield f"These runs overfit, their loss ending {rises} above its lowest: dropout and overfitting are not told apart."
    yield NOT_KEPT if any(each.until_best is None for each in overfit) else UNTIL_BEST
