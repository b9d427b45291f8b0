"""What Table 1 claims, held against what was measured and against its controls. Thresholds stand before any result."""

from dataclasses import replace
from itertools import product

import pandas as pd

from joma.engine.config import HIERARCHY, TREES
from joma.experiments import table1_words as words
from joma.experiments.experiment import Result
from joma.experiments.seed_errors import NUM_ERRORS, exceeds
from joma.experiments.table1_measure import Config, fall_along
from joma.experiments.table1_seeds import DIVERGED, told
from joma.figures.numbers import fewest_letters
from joma.verdicts import Evidence, Finding, Verdict, finding, ruling, seeds_say

SOURCE = "Section 6, Table 1"
LARGEST_DIFFERENCE = 0.03
"""Mean distance from the published numbers up to which they count as reproduced."""
LEAST_EXCESS = 0.05
"""NCorr that training must add to count as learning; also what latents must have above shuffled ones."""
LEAST_FALL = 0.01
"""NCorr that a more complicated setting must cost."""
LARGEST_LOSS_BY_MATCHING = 0.05
"""NCorr that may be lost when no neuron is used twice."""
NUM_LEVELS = 2
"""Levels of latents that the table has."""
COMPLEXITY = {"more latents": "num_latents", "more children": "num_children"}

SMALL = "At small size, which decides nothing about the paper's settings: "


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge the table, its controls, and what training adds."""
    return (
        numbers_verdict(result, config),
        training_verdict(result, config),
        chance_verdict(result, config),
        complexity_verdict(result, config),
        trees_verdict(result, config),
    )


def numbers_verdict(result: Result, config: Config) -> Verdict:
    """Say whether any open choice gives the published numbers, and whether no training at all gives them too."""
    known = result.tables["settings"].dropna(subset=["published", "trained"])
    choices = [(_distance(part), part) for _, part in known.groupby(["hidden", "lr"])]
    # The sources leave the choice open: the one that comes nearest decides.
    best, nearest = min(choices, key=lambda choice: choice[0].value, default=(None, known))
    text = correction = "There is nothing yet to hold against the published numbers."
    if best is not None:
        text = (
            f"Networks are trained in {config.precision}. Nearest to the published numbers, and so deciding: "
            f"{best.name}, off by {best.value:.3f} on average ({words.off_by_level(nearest, 'trained')}); the "
            f"untrained network is off by {best.control:.3f} ({words.off_by_level(nearest, 'untrained')})."
            f"{words.side_of_the_threshold(best, nearest, result.tables['runs'])}{words.far_off(nearest, best)}"
        )
        correction = (
            f"the nearest is {best.name}, off by {best.value:.4f} on average where {best.threshold:g} was asked; the "
            f"untrained network is off by {best.control:.4f}"
        )
    found = ruling([] if best is None else [finding(best)])
    return (found if config.is_paper_size else found.undecided()).verdict(
        id="table1-numbers",
        title="Table 1, the numbers",
        source=SOURCE,
        claim="The 24 numbers of the table: NCorr between latents and their best hidden node is from .94 to 1.00 at "
        "s = 0 and from .55 to .81 at s = 1",
        explanation=_in_full(text, result, config),
        correction=correction,
        evidence=[replace(each, decides=each is best) for each, _ in choices],
    )


def _distance(settings: pd.DataFrame) -> Evidence:
    """Return how far the settings of an open choice are from the published numbers."""
    hidden, lr = settings["hidden"].iloc[0], settings["lr"].iloc[0]
    return Evidence(
        name=f"hidden {hidden}, learning rate {fewest_letters(lr)}: mean of {len(settings)} numbers "
        f"{settings['trained'].mean():.3f}",
        against="Table 1 as printed",
        unit="mean absolute difference of NCorr",
        value=float((settings["trained"] - settings["published"]).abs().mean()),
        threshold=LARGEST_DIFFERENCE,
        control=float((settings["untrained"] - settings["published"]).abs().mean()),
        control_name="the same network untrained",
        published=float(settings["published"].mean()),
    )


def _in_full(text: str, result: Result, config: Config) -> str:
    """Add the size that the numbers are of, and which runs they do not contain."""
    return f"{'' if config.is_paper_size else SMALL}{text} {told(result) if DIVERGED in result.tables else ''}".rstrip()


def training_verdict(result: Result, config: Config) -> Verdict:
    """Say what training adds to NCorr on the paper's data."""
    return _excess_verdict(
        result,
        config,
        data=HIERARCHY,
        id="table1-training",
        title="Table 1, what training adds",
        claim="Hidden nodes of the MLP learn the latent variables: the learned models have high NCorr",
    )


def trees_verdict(result: Result, config: Config) -> Verdict:
    """Say what training adds where inputs vary within a class."""
    return _excess_verdict(
        result,
        config,
        data=TREES,
        id="table1-trees",
        title="Table 1 asked on HBLT(ρ), ρ < 1",
        claim="Hidden nodes of block s learn the latents of level s of a hierarchical binary latent tree",
    )


def _excess_verdict(result: Result, config: Config, *, data: str, id: str, title: str, claim: str) -> Verdict:
    choices = result.tables["choices"]
    rows = choices[choices["data"] == data].to_dict("records")
    ranges = words.ranges(result.tables["settings"], data)
    evidence = tuple(
        Evidence(
            name=words.excess_name(row, ranges),
            against="the same network untrained",
            unit="excess of NCorr",
            value=row["excess"],
            threshold=LEAST_EXCESS,
            at_least=True,
            control=row["excess_shuffled"],
            control_name="the same excess on shuffled latents",
        )
        for row in rows
    )
    findings = [
        seeds_say(exceeds(row["excess"], row["excess_error"], LEAST_EXCESS), each)
        for row, each in zip(rows, evidence, strict=True)
    ]
    found = ruling(findings).limited(small=not config.is_paper_size)
    return found.verdict(
        id=id,
        title=title,
        source=SOURCE if data == HIERARCHY else "Section 5 and Table 1",
        claim=claim,
        explanation=_in_full(_gains(rows, findings, result, config), result, config)
        if findings
        else "There is nothing on these data yet.",
        correction=f"training adds, with the standard error between seeds: {words.gains(rows)}"
        f"{words.what_the_class_fixes(data)}",
        evidence=evidence,
    )


def _gains(rows: list[dict], findings: list[Finding], result: Result, config: Config) -> str:
    """Say what of training's gains counts, and what a reader must know of them; the evidence has the numbers."""
    data = rows[0]["data"]
    return (
        f"{words.of_the_trees(config, result) if data == TREES else ''}What training adds counts as learning from "
        f"{LEAST_EXCESS} and {NUM_ERRORS:g} standard errors between seeds on, where shuffled latents gain less than "
        f"{LEAST_EXCESS}: {findings.count(Finding.SHOWN)} of {len(findings)} do."
        f"{words.near(rows, findings, LEAST_EXCESS)}{words.not_beyond_shuffled(rows)}"
        f"{words.of_the_task(result.tables['runs'], data)}"
    )


def chance_verdict(result: Result, config: Config) -> Verdict:
    """Say whether NCorr is above that of shuffled latents, and needs a neuron of its own for each latent."""
    choices = result.tables["choices"]
    own = choices[choices["data"] == HIERARCHY].dropna(subset="trained")
    by_level = [
        (
            Evidence(
                name=f"level {level}, above shuffled latents",
                against="latents dealt to other inputs",
                unit="difference of NCorr",
                value=float((part["trained"] - part["shuffled"]).mean()),
                threshold=LEAST_EXCESS,
                at_least=True,
                control=float((part["untrained"] - part["shuffled_untrained"]).mean()),
                control_name="the same for the untrained network",
            ),
            Evidence(
                name=f"level {level}, lost by one-to-one matching",
                against="neurons assigned to latents one to one",
                unit="difference of NCorr",
                value=float((part["trained"] - part["matched"]).mean()),
                threshold=LARGEST_LOSS_BY_MATCHING,
            ),
        )
        for level, part in own.groupby("level")
    ]
    text = "; ".join(
        f"{above.name} {above.value:+.3f}, untrained {above.control:+.3f}, lost by one-to-one matching {lost.value:.4f}"
        for above, lost in by_level
    )
    pooled = words.pooled(own)
    found = ruling(finding(*rows) for rows in by_level)
    return found.limited(small=not config.is_paper_size).verdict(
        id="table1-chance",
        title="Table 1, against chance",
        source=SOURCE,
        claim="For each latent there is a hidden node with a high normalised correlation with it",
        explanation=_in_full(
            f"NCorr{pooled}: {text}. It is a mean over the latents that occur in some class; single latents are not "
            "judged.",
            result,
            config,
        )
        if by_level
        else "There is nothing on these data yet.",
        correction="on average over latents; "
        + "; ".join(f"{above.name} {above.value:+.3f}, untrained {above.control:+.3f}" for above, _ in by_level)
        + ": what an untrained network has as well is no sign of learning",
        evidence=[row for rows in by_level for row in rows],
    )


def complexity_verdict(result: Result, config: Config) -> Verdict:
    """Say whether NCorr falls with more latents and more children, and whether it does so untrained."""
    runs = result.tables["runs"]
    own = runs[runs["data"] == HIERARCHY]
    falls = [
        (level, what, fall)
        for level, (what, axis) in product(range(NUM_LEVELS), COMPLEXITY.items())
        if (fall := fall_along(own, level, axis)) is not None
    ]
    evidence = tuple(
        Evidence(
            name=f"level {level}, fall with {what}, ± {fall.error:.3f}{words.by_choice(own, level, COMPLEXITY[what])}",
            against="the simplest setting",
            unit="mean fall of NCorr",
            value=fall.trained,
            threshold=LEAST_FALL,
            at_least=True,
            control=fall.untrained,
            control_name="the same network untrained",
            published=fall.published,
        )
        for level, what, fall in falls
    )
    findings = [
        seeds_say(exceeds(fall.trained, fall.error, LEAST_FALL), row)
        for (_, _, fall), row in zip(falls, evidence, strict=True)
    ]
    fallen = [
        f"level {level} with {what} by {fall.trained:.3f} ± {fall.error:.3f}, untrained by {fall.untrained:.3f}"
        for (level, what, fall), each in zip(falls, findings, strict=True)
        if each in (Finding.SHOWN, Finding.MATCHED)
    ]
    text = (
        f"NCorr{words.pooled(own)}, falls from {LEAST_FALL} and {NUM_ERRORS:g} standard errors between seeds on in "
        f"{len(fallen)} of {len(falls)}."
    )
    found = ruling(findings).limited(small=not config.is_paper_size)
    return found.verdict(
        id="table1-complexity",
        title="Table 1, complexity",
        source=SOURCE,
        claim="When the generative model is more complicated (N_ch and N_l larger), the correlation goes down a bit",
        explanation=_in_full(text if falls else "There are no two settings to compare.", result, config),
        correction=f"it falls in {len(fallen)} of {len(falls)}{': ' if fallen else ''}{'; '.join(fallen)}",
        evidence=evidence,
    )
