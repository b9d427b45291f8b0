"""Sentences of Table 1's verdicts: what stands behind a mean, how near a number is to its threshold, what is pooled."""

from collections.abc import Callable, Mapping
from math import isnan, log
from typing import Any

import pandas as pd

from joma.engine.config import HIERARCHY
from joma.experiments.experiment import Result
from joma.experiments.markdown import enumerated
from joma.experiments.seed_errors import NUM_ERRORS
from joma.experiments.table1_measure import LOWEST_LOSS, TRAINED, TREE_DEPTH, Config, distance_error, fall_along
from joma.experiments.table1_seeds import of_planned, setting_in_words
from joma.figures.numbers import fewest_letters
from joma.verdicts import Evidence, Finding

FAR_OFF = 0.1
"""Distance from a published number from which on it is named."""
AT_THE_LOWEST = 0.01
"""Nats above the lowest possible loss up to which a task counts as learned."""

Row = dict[Any, Any]


def excess_name(row: Row, ranges: Mapping[tuple, str]) -> str:
    """Name an open choice and level, with the numbers behind the excess and of how many runs they are."""
    choice = f"level {row['level']}, hidden {row['hidden']}, learning rate {fewest_letters(row['lr'])}"
    missing = of_planned(row["num_runs"], row["num_runs_planned"], "run") if "num_runs" in row else ""
    if isnan(row["excess"]):
        return f"{choice}{missing}"
    scores = f"{row['trained']:.3f} trained, {row['untrained']:.3f} untrained, ± {row['excess_error']:.3f}"
    return f"{choice}: {scores}{ranges.get((row['hidden'], row['lr'], row['level']), '')}{missing}"


def ranges(settings: pd.DataFrame, data: str) -> dict[tuple, str]:
    """Say from where to where the gains of settings go, by open choice and level; nothing of a single setting."""
    own = settings[settings["data"] == data].dropna(subset="excess")
    groups = own.groupby(["hidden", "lr", "level"])["excess"]
    return {key: f", {part.min():+.3f} to {part.max():+.3f} by setting" for key, part in groups if len(part) > 1}


def gains(rows: list[Row]) -> str:
    """List what training adds level by level."""
    return "; ".join(
        f"level {level} " + ", ".join(f"{_gain(row)} {_choice(row)}" for row in rows if row["level"] == level)
        for level in sorted({row["level"] for row in rows})
    )


def near(rows: list[Row], findings: list[Finding], least: float) -> str:
    """Say which gains seeds do not tell from the smallest that counts, and which are above 0 and do not count."""

    def named(kind: Finding, is_meant: Callable[[Row], bool]) -> list[str]:
        meant = [row for row, own in zip(rows, findings, strict=True) if own is kind and is_meant(row)]
        return [f"level {row['level']} {_gain(row)} {_choice(row)}" for row in meant]

    def is_near(row: Row) -> bool:
        return bool(abs(row["excess"] - least) <= NUM_ERRORS * row["excess_error"])

    def is_matched(row: Row) -> bool:
        return is_near(row) and bool(row["excess_shuffled"] >= least)

    told = {
        f"By seeds above 0, and not told from {least}": named(Finding.SHOWN, is_near),
        f"Left open, below {least} and not told from it by seeds": named(Finding.OPEN, is_near),
        f"By seeds above 0, and below {least}": named(
            Finding.FAILED, lambda row: row["excess"] > NUM_ERRORS * row["excess_error"]
        ),
    }
    words = "".join(f" {words}: {'; '.join(names)}." for words, names in told.items() if names)
    if named(Finding.OPEN, is_matched):
        words += " Shuffled latents gain as much as counts there: no number of seeds makes a sign of learning of it."
    return words


def not_beyond_shuffled(rows: list[Row]) -> str:
    """Say where training adds to the correlation with latents no more than to that with shuffled ones."""
    num_alike = sum(row["excess"] <= row["excess_shuffled"] for row in rows)
    return f" In {num_alike} of {len(rows)} it is no more than shuffled latents gain." if num_alike else ""


def of_the_trees(config: Config, result: Result) -> str:
    """Say what the trees are, which latents the class fixes, and why one control can hardly move there."""
    choices, settings = result.tables["choices"], result.tables["settings"]
    shuffled, own = choices[choices["data"] != HIERARCHY]["shuffled"], settings[settings["data"] != HIERARCHY]
    num_leaves = own["num_children"].iloc[0] ** TREE_DEPTH
    rhos, hiddens = (enumerated([f"{value:g}" for value in own[name].unique()]) for name in ("rho", "hidden"))
    return (
        f"Trees of {num_leaves} leaves and {config.tree_classes} classes, a mean over ρ = {rhos}; hidden width "
        f"{hiddens} alone. The latents of the top level, {TREE_DEPTH - 2}, are fixed by the class that networks are "
        f"trained on, those of the levels below are not. Shuffled latents are dealt to {config.num_samples} different "
        f"inputs and score {shuffled.min():.2f} to {shuffled.max():.2f}: as a control they can hardly move. "
    )


def what_the_class_fixes(data: str) -> str:
    """Say of trees that the latents of their top level follow from what the networks are trained on."""
    return f"; the latents of level {TREE_DEPTH - 2} are fixed by the class" if data != HIERARCHY else ""


def of_the_task(runs: pd.DataFrame, data: str) -> str:
    """Say whether the networks have learned what they are trained on; nothing of a result that does not know."""
    own = runs[runs["data"].eq(data) & runs["network"].eq(TRAINED) & runs["level"].eq(0)]
    if data != HIERARCHY:
        losses = own.groupby("rho")["loss"].mean()
        told = enumerated([f"{loss:.2f} (ρ = {rho:g})" for rho, loss in losses.items()])
        return f" Losses end at {told} nats, where guessing has {log(own['num_classes'].iloc[0]):.2f}."
    if LOWEST_LOSS not in own:
        return ""
    above = own["loss"] - own[LOWEST_LOSS]
    ended = [
        f"{(part <= AT_THE_LOWEST).sum()} of {len(part)} ({_named(hidden, lr)}, largest {part.max():.2g})"
        for (hidden, lr), part in above.groupby([own["hidden"], own["lr"]])
    ]
    hierarchies = own.drop_duplicates(["num_classes", "num_children", "num_latents", "seed"])
    return (
        f" Runs that end within {AT_THE_LOWEST} nats of the lowest loss that their task has: {enumerated(ended)}; in "
        f"{(hierarchies[LOWEST_LOSS] > 0).sum()} of {len(hierarchies)} hierarchies classes share a sequence, and it is "
        "above 0."
    )


def off_by_level(settings: pd.DataFrame, network: str) -> str:
    """Say level by level how far a network is off the published numbers."""
    off = (settings[network] - settings["published"]).abs().groupby(settings["level"]).mean()
    return ", ".join(f"level {level} by {distance:.3f}" for level, distance in off.items())


def side_of_the_threshold(row: Evidence, settings: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Say so where seeds do not tell on which side of its threshold a distance lies, which the rule does not ask."""
    own = runs[runs["data"].eq(HIERARCHY) & runs["hidden"].isin(settings["hidden"]) & runs["lr"].isin(settings["lr"])]
    error = distance_error(own)
    if not abs(row.value - row.threshold) < NUM_ERRORS * error:
        return ""
    side = "within" if row.holds else "beyond"
    return (
        f" The trained one's distance is {side} the threshold by {abs(row.value - row.threshold):.4f}, where leaving "
        f"out one seed at a time makes a standard error of {error:.4f}: seeds do not tell on which side it lies, which "
        "the rule of this claim does not ask. That was asked since the result was seen and decides nothing."
    )


def far_off(settings: pd.DataFrame, row: Evidence) -> str:
    """Name the numbers that are far from the published ones, and what the distance is without them."""
    off = (settings["trained"] - settings["published"]).abs()
    far = settings[off >= FAR_OFF]
    if row.holds or far.empty or len(far) == len(settings):
        return ""
    named = "; ".join(
        f"{setting_in_words(each)} at level {each['level']}, {each['trained']:.2f} for {each['published']:.2f}"
        for each in far.to_dict("records")
    )
    return (
        f" Off by {FAR_OFF} or more (classes / children / latents; asked since the result was seen): {named}; without "
        f"them the distance is {off[off < FAR_OFF].mean():.3f}."
    )


def pooled(table: pd.DataFrame) -> str:
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


def by_choice(runs: pd.DataFrame, level: int, axis: str) -> str:
    """Say from where to where a fall goes over the open choices; nothing where there is but one."""
    falls = [fall_along(own, level, axis) for _, own in runs.groupby(["hidden", "lr"])]
    values = [fall.trained for fall in falls if fall is not None]
    return f", {min(values):+.3f} to {max(values):+.3f} by choice" if len(values) > 1 else ""


def _gain(row: Row) -> str:
    return "no number" if isnan(row["excess"]) else f"{row['excess']:+.3f} ± {row['excess_error']:.3f}"


def _choice(row: Row) -> str:
    return f"({_named(row['hidden'], row['lr'])})"


def _named(hidden: int, lr: float) -> str:
    return f"hidden {hidden}, rate {fewest_letters(lr)}"
