r"""Table 1: do hidden neurons learn the latents of a hierarchy, and how much of that is there without training?

NCorr(s) is the mean over the latents of level s of the correlation with the best hidden neuron of block s. Controls:
the same network untrained, latents dealt to other inputs, and neurons assigned to latents one to one. The sources leave
the learning rate and the hidden width open; all four combinations are trained.

The hierarchy is deterministic, with at most C different inputs, so a wide random layer separates them anyhow. The
question is asked again on latent trees HBLT(ρ) with ρ < 1, where inputs vary within a class, for all three levels.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import isnan
from typing import Any

import pandas as pd

from joma.engine.config import HIERARCHY, TREES
from joma.experiments.experiment import NOT_FINISHED, Experiment, Part, Result, Workplace, nothing_missing
from joma.experiments.markdown import enumerated
from joma.experiments.seed_errors import NUM_ERRORS, exceeds
from joma.experiments.table1_finished import finished
from joma.experiments.table1_measure import Config, by_choice, by_setting, fall_along, grids_of, score_runs
from joma.experiments.table1_seeds import (
    DIVERGED,
    NUM_PLANNED,
    SETTING,
    diverged_runs,
    of_planned,
    planned_numbers,
    setting_in_words,
    told,
)
from joma.figures.chart import Bars, Chart, Line, Panel
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
IN_PART = "settings_in_part"
"""Table of settings whose open choice is not finished: drawn, and not judged."""
COMPLEXITY = {"more latents": "num_latents", "more children": "num_children"}

SMALL = "At small size, which decides nothing about the paper's settings: "


def quick() -> Config:
    """Two settings, two seeds, a narrow network and few steps: a minute on a CPU."""
    return Config(
        is_paper_size=False,
        num_children=(2,),
        num_classes=(20,),
        lrs=(1e-3,),
        hiddens=(64,),
        width=128,
        seeds=(1, 2),
        steps=200,
        rhos=(0.8,),
        tree_hiddens=(64,),
        tree_steps=120,
        batch=64,
        precision="fp32",
        num_samples=640,
        num_shuffles=10,
    )


def full() -> Config:
    """The paper's twelve settings and five seeds, both open choices."""
    return Config()


def compute(config: Config, workplace: Workplace) -> Result:
    """Train and score all runs; average over seeds."""
    planned = planned_numbers(run.config for runs in grids_of(config) for run in runs)
    return _result(score_runs(config, workplace), planned, config)


def so_far(config: Config, workplace: Workplace) -> Part | None:
    """Average what is finished, as `table1_finished` says; None until a setting has all its seeds."""
    found = finished(config, workplace)
    if found is None or (found.whole.empty and found.in_part.empty):
        return None
    whole = _result(found.whole, found.whole_planned, config)
    in_part = {IN_PART: by_setting(found.in_part, found.in_part_planned)} if len(found.in_part_planned) else {}
    left = "; ".join(found.absent)
    notes = [
        f"Means and verdicts rest on the open choices of which all settings and seeds are finished. Not yet: {left}."
    ]
    if in_part:
        notes.append(f"Of these, settings with all their seeds are shown by themselves, in the table {IN_PART}.")
    return Part.of(
        replace(whole, tables={**whole.tables, **in_part}),
        num_done=found.num_done,
        num_all=found.num_all,
        left=left,
        num_waiting=found.num_waiting,
        notes=notes,
    )


def _result(runs: pd.DataFrame, planned: pd.DataFrame, config: Config) -> Result:
    settings, choices, diverged = by_setting(runs, planned), by_choice(runs, planned), diverged_runs(runs, planned)
    fits = _fits(settings)
    best = min(fits, key=lambda choice: fits[choice]) if fits else None
    facts: dict[str, float | int | str | bool] = {
        "num_runs": len(runs[["seed", *SETTING]].drop_duplicates()),
        NUM_PLANNED: len(planned[["seed", *SETTING]].drop_duplicates()),
        "num_diverged": len(diverged),
        "is_paper_size": config.is_paper_size,
    }
    if best is not None:
        facts |= {"best_hidden": best[0], "best_lr": best[1]}
        facts |= {f"distance_hidden{hidden}_lr{lr:g}": fit for (hidden, lr), fit in fits.items()}
    tables = {"runs": runs, "settings": settings, "choices": choices}
    return Result(tables=tables | ({DIVERGED: diverged} if len(diverged) else {}), facts=facts)


def _fits(settings: pd.DataFrame) -> dict[tuple[int, float], float]:
    """Return the mean distance from the published numbers for each open choice."""
    known = settings.dropna(subset=["published", "trained"])
    distance = (known["trained"] - known["published"]).abs()
    means = distance.groupby([known["hidden"], known["lr"]]).mean()
    return {(int(hidden), float(lr)): float(value) for (hidden, lr), value in means.items()}


def draw(result: Result) -> tuple[Chart, ...]:
    """Show every setting beside its control, and what training adds on the two kinds of data, as far as finished."""
    settings, choices = result.tables["settings"], result.tables["choices"]
    is_small = not result.facts["is_paper_size"]
    scores = [*_score_panels(settings), *_score_panels(result.tables.get(IN_PART, settings[:0]), " (some settings)")]
    adds = [_excess_panel(own, data) for data in (HIERARCHY, TREES) if len(own := choices[choices["data"] == data])]
    note = f" {told(result)}".rstrip() + (" Small size: not the paper's settings." if is_small else "")
    if NOT_FINISHED in result.facts:
        note += " Open choices that are not finished are left out, or shown by some settings alone."
    score_words = (
        "Each setting is classes / children / latents. The untrained network is the same one at its start; shuffled "
        "latents are dealt to other inputs. What is not above the control was not learned."
    )
    adds_words = (
        "Trained less untrained, averaged over settings, with the standard error between seeds, on the paper's "
        "deterministic hierarchy and on latent trees whose inputs vary within a class."
    )
    drawn = (
        ("table1", "NCorr of latents and hidden neurons", score_words, scores),
        ("table1-training", "What training adds to NCorr", adds_words, adds),
    )
    return tuple(Chart(name, title, words + note, panels) for name, title, words, panels in drawn if panels)


def _score_panels(settings: pd.DataFrame, remark: str = "") -> Iterator[Panel]:
    own = settings[settings["data"] == HIERARCHY]
    for (hidden, lr, level), part in own.groupby(["hidden", "lr", "level"]):
        yield _score_panel(part, f"s = {level}, hidden {hidden}, learning rate {fewest_letters(lr)}{remark}")


def _score_panel(part: pd.DataFrame, title: str) -> Panel:
    names = [_setting_name(row) for row in part.to_dict("records")]
    items: list[Bars | Line] = [
        Bars("trained", names, part["trained"], errors=part["trained_error"].fillna(0.0)),
        Bars("untrained", names, part["untrained"], errors=part["untrained_error"].fillna(0.0)),
        Bars("shuffled latents", names, part["shuffled"]),
    ]
    if part["published"].notna().any():
        items.append(Line("published", list(range(len(part))), part["published"], style="points"))
    return Panel(title, "setting", "NCorr", items)


def _setting_name(row: dict[Any, Any]) -> str:
    name = setting_in_words(row)
    return name + of_planned(row["num_seeds"], row["num_seeds_planned"], "seed") if "num_seeds" in row else name


def _excess_panel(part: pd.DataFrame, data: str) -> Panel:
    items = []
    for (hidden, lr), own in part.groupby(["hidden", "lr"]):
        names = [f"level {level}" for level in own["level"]]
        errors = own["excess_error"].fillna(0.0)
        items.append(Bars(f"hidden {hidden}, rate {fewest_letters(lr)}", names, own["excess"], errors=errors))
    title = "hierarchy of Table 1" if data == HIERARCHY else "latent trees"
    return Panel(title, "level of latents, from the tokens up", "trained − untrained NCorr", items)


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
    evidence = [
        Evidence(
            name=f"hidden {hidden}, learning rate {fewest_letters(lr)}: mean of {len(part)} numbers "
            f"{part['trained'].mean():.3f}",
            against="Table 1 as printed",
            unit="mean absolute difference of NCorr",
            value=float((part["trained"] - part["published"]).abs().mean()),
            threshold=LARGEST_DIFFERENCE,
            control=float((part["untrained"] - part["published"]).abs().mean()),
            control_name="the same network untrained",
            published=float(part["published"].mean()),
        )
        for (hidden, lr), part in known.groupby(["hidden", "lr"])
    ]
    best = min(evidence, key=lambda each: each.value, default=None)
    # The sources leave the choice open: the one that comes nearest decides.
    findings = [] if best is None else [finding(best)]
    text = "There is nothing yet to hold against the published numbers"
    if best is not None:
        text = (
            f"Nearest to the published numbers: {best.name}, off by {best.value:.3f}; the untrained network is off by "
            f"{best.control:.3f}"
        )
    found = ruling(findings)
    return (found if config.is_paper_size else found.undecided()).verdict(
        id="table1-numbers",
        title="Table 1, the numbers",
        source=SOURCE,
        claim="NCorr between latents and their best hidden node is .94 to 1.00 at s = 0 and .55 to .81 at s = 1",
        explanation=_in_full(f"{text}.", result, config),
        correction=text,
        evidence=[replace(each, decides=each is best) for each in evidence],
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
    evidence = tuple(
        Evidence(
            name=_excess_name(row),
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
        explanation=_excess_explanation(rows, findings, result, config),
        correction=f"training adds, with the standard error between seeds: {_excess_in_words(rows)}",
        evidence=evidence,
    )


def _excess_name(row: dict[Any, Any]) -> str:
    """Name an open choice and level, with the numbers behind the excess and of how many runs they are."""
    choice = f"level {row['level']}, hidden {row['hidden']}, learning rate {fewest_letters(row['lr'])}"
    missing = of_planned(row["num_runs"], row["num_runs_planned"], "run") if "num_runs" in row else ""
    if isnan(row["excess"]):
        return f"{choice}{missing}"
    scores = f"{row['trained']:.3f} trained, {row['untrained']:.3f} untrained, ± {row['excess_error']:.3f}"
    return f"{choice}: {scores}{missing}"


def _excess_number(row: dict[Any, Any]) -> str:
    return "no number" if isnan(row["excess"]) else f"{row['excess']:+.3f} ± {row['excess_error']:.3f}"


def _excess_in_words(rows: list[dict]) -> str:
    return "; ".join(
        f"level {level} "
        + ", ".join(
            f"{_excess_number(row)} (hidden {row['hidden']}, rate {fewest_letters(row['lr'])})"
            for row in rows
            if row["level"] == level
        )
        for level in sorted({row["level"] for row in rows})
    )


def _excess_explanation(rows: list[dict], findings: list[Finding], result: Result, config: Config) -> str:
    if not findings:
        return "There is nothing on these data yet."
    text = (
        f"What training adds: {_excess_in_words(rows)}. It counts as learning from {LEAST_EXCESS} and {NUM_ERRORS:g} "
        f"standard errors on, where shuffled latents gain less than {LEAST_EXCESS}: "
        f"{findings.count(Finding.SHOWN)} of {len(findings)} do.{_not_beyond_shuffled(rows)}"
    )
    return _in_full(text, result, config)


def _not_beyond_shuffled(rows: list[dict]) -> str:
    """Say where training adds to the correlation with latents no more than to that with shuffled ones."""
    alike = sorted((row for row in rows if row["excess"] <= row["excess_shuffled"]), key=lambda row: row["level"])
    if not alike:
        return ""
    told = "; ".join(
        f"level {row['level']} {row['excess']:+.3f}, shuffled {row['excess_shuffled']:+.3f} (hidden {row['hidden']}, "
        f"rate {fewest_letters(row['lr'])})"
        for row in alike
    )
    return f" In {len(alike)} of {len(rows)} that is no more than shuffled latents gain: {told}."


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
    pooled = _pooled_in_words(own)
    found = ruling(finding(*rows) for rows in by_level)
    return found.limited(small=not config.is_paper_size).verdict(
        id="table1-chance",
        title="Table 1, against chance",
        source=SOURCE,
        claim="For each latent there is a hidden node with a high normalised correlation with it",
        explanation=_in_full(f"NCorr{pooled}: {text}.", result, config)
        if by_level
        else "There is nothing on these data yet.",
        correction=f"NCorr{pooled}: {text}; what an untrained network has as well is no sign of learning",
        evidence=[row for rows in by_level for row in rows],
    )


def _pooled_in_words(table: pd.DataFrame) -> str:
    """Say over which open choices a mean is taken, where there is more than one."""
    choices = table[["hidden", "lr"]].drop_duplicates().sort_values(["hidden", "lr"])
    if len(choices) <= 1:
        return ""
    named = [
        f"hidden {hidden}, {'learning rates' if len(own) > 1 else 'learning rate'} "
        + enumerated([fewest_letters(lr) for lr in own["lr"]])
        for hidden, own in choices.groupby("hidden")
    ]
    return f", a mean over the open choices together ({'; '.join(named)})"


def complexity_verdict(result: Result, config: Config) -> Verdict:
    """Say whether NCorr falls with more latents and more children, and whether it does so untrained."""
    falls = [
        (level, what, fall)
        for level, (what, axis) in product(range(NUM_LEVELS), COMPLEXITY.items())
        if (fall := fall_along(result.tables["runs"], level, axis)) is not None
    ]
    evidence = tuple(
        Evidence(
            name=f"level {level}, fall with {what}, ± {fall.error:.3f}",
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
    text = "; ".join(f"{each.name}: {each.value:+.3f} (untrained {each.control:+.3f})" for each in evidence)
    runs = result.tables["runs"]
    pooled = _pooled_in_words(runs[runs["data"] == HIERARCHY])
    text = f"Falls of NCorr{pooled}: {text}" if text else "There are no two settings to compare"
    found = ruling(findings).limited(small=not config.is_paper_size)
    return found.verdict(
        id="table1-complexity",
        title="Table 1, complexity",
        source=SOURCE,
        claim="When the generative model is more complicated (N_ch and N_l larger), the correlation goes down a bit",
        explanation=_in_full(f"{text}.", result, config),
        correction=text,
        evidence=evidence,
    )


EXPERIMENT = Experiment(
    id="table1",
    title="Latents and hidden neurons",
    place=SOURCE,
    question="Do hidden neurons learn the latents of a hierarchy, or does an untrained network score the same? And on "
    "latent trees, where inputs vary within a class?",
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    in_pieces=True,
    so_far=so_far,
)
