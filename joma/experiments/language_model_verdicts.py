"""The verdicts of figures 6 and 8. Every threshold is a constant of this file, set before the models were trained."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from joma.engine.measuring import ENTROPY, RANK, WINDOW
from joma.experiments import rebound_ranks
from joma.experiments.drift_verdict import drift_verdict
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import (
    OTHER_PRECISION,
    PAPER,
    PUBLISHED,
    UNTRAINED,
    WIKITEXT2,
    WIKITEXT103,
    Config,
)
from joma.experiments.language_model_settings import NOTHING_YET, Setting, absent, by_depth, in_words, not_yet
from joma.experiments.learning_rate_verdicts import rate_verdicts
from joma.experiments.rebound_controls import ingredient_verdict
from joma.experiments.rebound_earlier_dips import RULE, earlier_dips
from joma.experiments.rebound_shares import (
    SHALLOW,
    Count,
    counts_in_words,
    decided,
    id_on,
    is_top,
    judged_in_words,
    kinds_in_words,
    of_setting,
    rebound_count,
    size_in_words,
)
from joma.figures.numbers import short
from joma.measure.regime import Kind
from joma.verdicts import Evidence, Finding, Outcome, Verdict, finding, ruling

LOSS_TOLERANCE = 0.03
"""Distance of a mean lowest loss from the published one that counts as the same."""
PRECISION_TOLERANCE = 0.02
"""Distance of the lowest losses of one seed in bf16 and in TF32: less than the tolerance above."""
SUPPRESSED = 0.1
"""Nats by which the entropy of bottom layers must end below that of top ones."""
STILL = 1e-3
"""Nats by which an untrained model's entropy may move: by the order of sums on a GPU, and nothing else."""

CAUSE = Finding.OPEN
"""That the interaction of layers is what keeps the bottom down is claimed besides, and no run takes it away."""
CAUSE_IN_WORDS = (
    "That the interaction of layers does it is claimed besides and was not tested: no run takes the interaction away "
    "(said so since the result was seen)."
)
COLLAPSED_RANK = "A rank that collapsed fell nearly all the way to 1, the smallest there is."
JUDGED_LAYERS = (
    f"The paper names the top layers of deep models: above depth {SHALLOW} the upper half of the layers decides, and a "
    "middle layer is not of it."
)
SMALL_MODELS = (
    "A model of width 64 with 2,000 words dips on any text within a few hundred steps; it rebounds clearly on "
    "WikiText-2 and weakly on the embedded text."
)


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge every claim, on every text that was trained on; one that lacks runs says which, and decides nothing."""
    found: list[Verdict] = []
    for text in config.texts:
        found += [
            losses_verdict(result, config, text),
            rebound_verdict(result, config, text),
            rank_verdict(result, config, text),
            *bottom_verdict(result, config, text),
            *rate_verdicts(result, config, text),
        ]
    found += [ingredient_verdict(result, config), drift_verdict(result, config)]
    if config.checked_depths:
        found.append(precision_verdict(result, config))
    return (*found, *_not_run(config))


def losses_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Hold the lowest validation losses against the published ones, and deep models against shallow ones."""
    runs = result.tables["runs"]
    published = PUBLISHED.get(text, {})
    lacking, depths = _lacking(runs, config, text, config.depths)
    losses = {depth: _loss(runs, text, PAPER, depth, config.rate) for depth in depths}
    untrained = {depth: _loss(runs, text, UNTRAINED, depth, 0.0) for depth in config.depths}
    evidence = [
        Evidence(
            name=f"lowest validation loss, depth {depth}: ours {losses[depth]:.3f}",
            against="the published loss",
            unit="distance in nats, means over seeds",
            value=abs(losses[depth] - published[depth]),
            threshold=LOSS_TOLERANCE,
            control=abs(untrained[depth] - published[depth]),
            control_name=UNTRAINED,
            published=published[depth],
        )
        for depth in depths
        if depth in published
    ]
    found = ruling([finding(row) for row in evidence])
    if {min(config.depths), max(config.depths)} <= set(depths):
        evidence.append(_gain_of_depth(losses, untrained, published))
    ours = ", ".join(f"{loss:.3f} at depth {depth}" for depth, loss in losses.items())
    idle = [f"untrained {loss:.2f}" for _, loss in sorted(untrained.items()) if not math.isnan(loss)][:1]
    told = "; ".join(filter(None, (ours, *idle)))
    return decided(found, config, lacking).verdict(
        id=id_on("figure6-losses", text),
        title="Validation losses by depth",
        source="Figure 6",
        claim="At learning rate 1e-4 the lowest validation losses are "
        + ", ".join(f"{loss:.3f} at depth {depth}" for depth, loss in PUBLISHED.get(text, PUBLISHED[WIKITEXT2]).items())
        + ".",
        explanation=f"{size_in_words(config, text, lacking)} " + (f"Lowest losses: {told}." if told else NOTHING_YET),
        correction=f"lowest validation losses {ours}; within {LOSS_TOLERANCE:g} they count as the published ones",
        evidence=evidence,
    )


def rebound_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether every layer of shallow models and the top layers of deep ones dip and rebound."""
    regimes = result.tables["regimes"]
    lacking, depths = _lacking(result.tables["runs"], config, text, config.depths)
    whole = _shares(regimes, config, text, ENTROPY, "whole validation set", depths)
    single = _shares(regimes, config, text, WINDOW, "the paper's single window", depths)
    idle = regimes[(regimes["condition"] == UNTRAINED) & (regimes["text"] == text) & (regimes["metric"] == ENTROPY)]
    moved = float((idle["first"] - idle["lowest"]).abs().max())
    beside = [replace(row, decides=False) for row in single.values()]
    return decided(ruling([finding(row) for row in whole.values()]), config, lacking).verdict(
        id=id_on("figure6-rebound", text),
        title="Attention entropy dips and rebounds",
        source="Section 6, Figure 6",
        claim="Attention entropy drops and climbs back in every layer of shallow models and in the top layers of deep "
        "ones.",
        explanation=" ".join(
            filter(
                None,
                (
                    size_in_words(config, text, lacking),
                    counts_in_words(regimes, config, text, ENTROPY, "on the whole validation set"),
                    counts_in_words(regimes, config, text, WINDOW, "on the paper's single window"),
                    kinds_in_words(regimes, config, text, ENTROPY),
                    _earlier_in_words(result.tables["curves"], config, text, depths),
                    JUDGED_LAYERS if any(depth > SHALLOW for depth in depths) else "",
                    SMALL_MODELS if config.small else "",
                ),
            )
        ),
        correction=f"curves that are to rebound and do: {_counts_in_words(regimes, config, text, ENTROPY, depths)}",
        evidence=(*whole.values(), *beside),
        sound=idle.empty or moved <= STILL,
    )


def rank_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether the stable rank of the lower matrix drops and bounces back in the same layers."""
    regimes = result.tables["regimes"]
    lacking, depths = _lacking(result.tables["runs"], config, text, config.depths)
    shares = _shares(regimes, config, text, RANK, rebound_ranks.WHAT, depths)
    kinds = set(rebound_ranks.rank_regimes(result, config, text, depths)["kind"])
    is_first = text == config.texts[0]  # controls are trained on that one
    if is_first:
        lacking += absent(rebound_ranks.controls(config), result.tables["runs"])
    return decided(ruling([finding(row) for row in shares.values()]), config, lacking).verdict(
        id=id_on("figure6-rank", text),
        title="The lower matrix's rank drops and bounces back",
        source="Section 4, relationship with the rank of the MLP's lower layer",
        claim="The rank of the MLP's lower matrix first drops, then bounces back.",
        explanation=" ".join(
            filter(
                None,
                (
                    size_in_words(config, text, lacking),
                    kinds_in_words(regimes, config, text, RANK),
                    COLLAPSED_RANK if Kind.COLLAPSED.value in kinds else "",
                    rebound_ranks.bounces_in_words(result, config, text, depths),
                    rebound_ranks.controls_in_words(regimes, config) if is_first else "",
                ),
            )
        ),
        correction=f"{rebound_ranks.ranks_in_words(result, config, text, depths)}; curves that drop and bounce back: "
        + _counts_in_words(regimes, config, text, RANK, depths),
        evidence=(*shares.values(), *(rebound_ranks.control_rows(regimes, config) if is_first else ())),
    )


def bottom_verdict(result: Result, config: Config, text: str) -> Iterator[Verdict]:
    """Judge whether the entropy of bottom layers is kept down in deep models, where there are any."""
    regimes = result.tables["regimes"]
    deep = [depth for depth in config.depths if depth > SHALLOW]
    lacking, depths = _lacking(result.tables["runs"], config, text, deep)
    evidence = {
        depth: Evidence(
            name=f"entropy at the end, {judged_in_words(depth)} less the others, depth {depth}",
            against="the other half",
            unit="nats, mean over seeds",
            value=_top_less_bottom(of_setting(regimes, text, PAPER, depth, config.rate, ENTROPY), depth),
            threshold=SUPPRESSED,
            at_least=True,
            control=_top_less_bottom(of_setting(regimes, text, UNTRAINED, depth, 0.0, ENTROPY), depth),
            control_name=UNTRAINED,
        )
        for depth in depths
    }
    if deep:
        told = ", ".join(f"{row.value:+.2f} nats at depth {depth}" for depth, row in evidence.items())
        halves = ", ".join(judged_in_words(depth) for depth in evidence)
        is_lower = all(row.holds for row in evidence.values())
        found = ruling([finding(row) for row in evidence.values()], besides=[CAUSE])
        yield decided(found, config, lacking).verdict(
            id=id_on("figure6-bottom", text),
            title="Bottom layers are suppressed",
            source="Figure 6, caption",
            claim="In deep models the entropy of bottom layers is suppressed by the interaction of layers.",
            explanation=f"{size_in_words(config, text, lacking)} "
            + (
                f"Entropy at the end, upper layers ({halves}) less the others: {told}. {CAUSE_IN_WORDS}"
                if told
                else NOTHING_YET
            ),
            correction=f"{'lower' if is_lower else 'not lower everywhere'} at the bottom (entropy at the end, upper "
            f"less lower layers: {told}); that the interaction of layers does it was not tested",
            evidence=evidence.values(),
        )


def precision_verdict(result: Result, config: Config) -> Verdict:
    """Check that bf16 costs nothing that counts: a check of our own."""
    runs, text = result.tables["runs"], config.texts[0]
    seed = config.seeds[0]
    evidence = []
    lacking = absent(
        [each for name in (PAPER, OTHER_PRECISION) for each in by_depth(config, text, config.checked_depths, name)],
        runs,
    )
    gone = {setting.depth for setting in lacking}
    for depth in (each for each in config.checked_depths if each not in gone):
        ours = of_setting(runs, text, PAPER, depth, config.rate)
        fine = of_setting(runs, text, OTHER_PRECISION, depth, config.rate)
        own = float(ours.loc[ours["seed"] == seed, "best_loss"].iloc[0])
        between_seeds = float(ours["best_loss"].max() - ours["best_loss"].min())
        evidence.append(
            Evidence(
                name=f"lowest loss in {config.settings['precision']}, depth {depth}, seed {seed} (seeds differ by up "
                f"to {short(between_seeds)})",
                against=f"the same run in {OTHER_PRECISION}",
                unit="distance in nats",
                value=abs(own - float(fine["best_loss"].iloc[0])),
                threshold=PRECISION_TOLERANCE,
            )
        )
    found = ruling([finding(*evidence)])
    return (found.undecided() if lacking else found).verdict(
        id="figure6-precision",
        title="Half precision leaves the losses alone",
        source="Our own check of the runs of figures 6 and 8",
        claim="Products in bf16 with weights in fp32 give the losses of TF32.",
        explanation=f"One seed at each of these depths is trained a second time, in {OTHER_PRECISION.upper()}."
        + (f" {not_yet(in_words(lacking))}" if lacking else ""),
        correction="; ".join(f"{row.name}: off by {row.value:.3f}" for row in evidence),
        evidence=evidence,
        sound=all(each.holds for each in evidence),
    )


def _not_run(config: Config) -> Iterator[Verdict]:
    if not config.small and WIKITEXT103 not in config.texts:
        yield Verdict(
            id=id_on("figure6-losses", WIKITEXT103),
            title="The same on WikiText-103",
            source="Figure 6, bottom row",
            claim="The lowest validation losses are 5.047, 4.912, 4.762 and 4.679 at depths 1, 2, 5 and 10.",
            outcome=Outcome.NOT_RUN,
            explanation="WikiText-103 is not here. Put its train.txt, valid.txt and test.txt into the folder "
            "wikitext-103 below $JOMA_DATA, and the same command trains on it as well.",
        )


def _gain_of_depth(losses: dict[int, float], untrained: dict[int, float], published: dict[int, float]) -> Evidence:
    first, last = min(losses), max(losses)
    return Evidence(
        name=f"loss of depth {last} less that of depth {first}",
        against="zero: no gain by depth",
        unit="nats, means over seeds",
        value=losses[last] - losses[first],
        threshold=0.0,
        control=untrained[last] - untrained[first],
        control_name=UNTRAINED,
        published=published[last] - published[first] if {first, last} <= set(published) else None,
        decides=False,  # losses that agree with the published ones have it
    )


def _lacking(runs: pd.DataFrame, config: Config, text: str, depths: Sequence[int]) -> tuple[list[Setting], list[int]]:
    """Return what a claim on these depths lacks, trained or untrained, and the depths that are trained."""
    trained, untrained = (by_depth(config, text, depths, condition) for condition in (PAPER, UNTRAINED))
    gone = {setting.depth for setting in absent(trained, runs)}
    return absent([*trained, *untrained], runs), [depth for depth in depths if depth not in gone]


def _shares(
    regimes: pd.DataFrame, config: Config, text: str, metric: str, what: str, depths: Sequence[int]
) -> dict[int, Evidence]:
    """Return for each depth the share of curves that rebound, of the layers that should."""
    shares = {}
    for depth in depths:
        trained, untrained = _counts(regimes, config, text, metric, depth)
        shares[depth] = trained.row(
            f"curves that dip and rebound, {what}, depth {depth}, {judged_in_words(depth)}: {trained}",
            control=untrained.share,
            control_name=UNTRAINED,
        )
    return shares


def _counts(regimes: pd.DataFrame, config: Config, text: str, metric: str, depth: int) -> tuple[Count, Count]:
    """Count the curves that rebound, of the layers that should: of the paper's setting, and untrained."""
    return (
        rebound_count(regimes, text, PAPER, depth, config.rate, metric),
        rebound_count(regimes, text, UNTRAINED, depth, 0.0, metric),
    )


def _counts_in_words(regimes: pd.DataFrame, config: Config, text: str, metric: str, depths: Sequence[int]) -> str:
    told = []
    for depth in depths:
        trained, untrained = _counts(regimes, config, text, metric, depth)
        told.append(f"{trained} at depth {depth} ({judged_in_words(depth)}; untrained {untrained})")
    return ", ".join(told)


def _earlier_in_words(curves: pd.DataFrame, config: Config, text: str, depths: Sequence[int]) -> str:
    """Tell which layers have a dip before that of their regime."""
    own = [of_setting(curves, text, PAPER, depth, config.rate, ENTROPY) for depth in depths]
    found = [dip for each in own for dip in earlier_dips(each)]
    if not found:
        return ""
    return f"Layers with an earlier, shorter dip ({RULE}), in nats, at {'; '.join(map(str, found))}."


def _loss(runs: pd.DataFrame, text: str, condition: str, depth: int, lr: float) -> float:
    return float(of_setting(runs, text, condition, depth, lr)["best_loss"].mean())


def _top_less_bottom(curves: pd.DataFrame, depth: int) -> float:
    top = curves["layer"].map(lambda layer: is_top(layer, depth))
    return float(curves.loc[top, "end"].mean() - curves.loc[~top, "end"].mean()) if len(curves) else math.nan
