"""The verdict on Assumption 1: is E[g x] stationary, trained whole and layer by layer?"""

import math

import pandas as pd

from joma.experiments.assumption1 import ALONE, TOGETHER
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import Config
from joma.verdicts import Evidence, Outcome, Verdict

STATIONARY = 0.9
"""Cosine from which a matrix points where it pointed before."""
SAME_LENGTH = 1.5
"""Factor by which its length may change."""
SETTLED = 0.1
"""Part of the training that is left out: 'during most of the training' is what comes behind it."""


def drift_verdict(result: Result, config: Config) -> Verdict:
    """Judge Assumption 1: one counterexample is enough, at any size."""
    drift = result.tables["drift"]
    start = reference_step(config)
    by_mode = {
        mode: (_direction(drift, mode, start, config), _length(drift, mode, start, config))
        for mode in (ALONE, TOGETHER)
    }
    num_still = sum(_is_still(*pair) for pair in by_mode.values())
    outcome = {2: Outcome.HOLDS, 1: Outcome.CONDITIONAL, 0: Outcome.REFUTED}[num_still]
    end = config.drift.steps[-1]
    seeds = "one seed" if len(config.drift.seeds) == 1 else f"{len(config.drift.seeds)} seeds"
    return Verdict(
        id="assumption1",
        title="E[g x] stays as it is",
        source="Section 2, Assumption 1",
        claim="E[g x] remains constant during training: true when one layer is trained and the others are fixed, and "
        "approximately for joint training.",
        outcome=outcome,
        explanation=(
            f"The matrix of token frequencies and gradients of the hidden neurons at step {start:,}, held against step "
            f"{end:,}, mean over layers and {seeds}. From the very start the cosines are "
            f"{_mean(drift, ALONE, 0, 'cosine'):.2f} layer by layer and {_mean(drift, TOGETHER, 0, 'cosine'):.2f} "
            f"together; the loss went from {_mean(drift, TOGETHER, 0, 'loss'):.2f} to "
            f"{_mean(drift, ALONE, end, 'loss'):.2f} and {_mean(drift, TOGETHER, end, 'loss'):.2f}. A layer that is "
            "trained changes its own output, and with it the error that comes back."
        ),
        correction="" if outcome is Outcome.HOLDS else _correction(by_mode, start),
        evidence=tuple(each for pair in by_mode.values() for each in pair),
    )


def reference_step(config: Config) -> int:
    """Return the first measured step behind the part of the training that is left out.

    With steps 0, 100, 1000 and 10,000 that is 1000.
    """
    return min(step for step in config.drift.steps if step >= SETTLED * config.drift.steps[-1])


def _is_still(direction: Evidence, length: Evidence) -> bool:
    return direction.holds and length.holds


def _correction(by_mode: dict[str, tuple[Evidence, Evidence]], start: int) -> str:
    """Say what the matrix does in each mode, and in which of the two it moves less if one does in every respect."""
    if not all(math.isfinite(each.value) for pair in by_mode.values() for each in pair):
        return ""
    told = [f"{mode} E[g x] {_in_words(*pair)}" for mode, pair in by_mode.items()]
    (turned_alone, grown_alone), (turned, grown) = by_mode[ALONE], by_mode[TOGETHER]
    if turned_alone.value > turned.value and grown_alone.value < grown.value:
        told.append(f"it moves less with {ALONE}")
    elif turned_alone.value < turned.value and grown_alone.value > grown.value:
        told.append(f"it moves less with {TOGETHER}")
    return f"from step {start:,} to the end, {'; '.join(told)}"


def _in_words(direction: Evidence, length: Evidence) -> str:
    """Say what the matrix does, with its numbers."""
    turn = f"cosine {direction.value:.2f}, between halves of the text {direction.control:.2f}"
    factor = f"a factor of {length.value:.2f}"
    if _is_still(direction, length):
        return f"stays as it is ({turn}; {factor} in length)"
    kept_direction = "keeps its direction" if direction.holds else "turns"
    kept_length = "keeps its length" if length.holds else "changes its length"
    return f"{kept_direction} ({turn}) and {kept_length} ({factor})"


def _direction(drift: pd.DataFrame, mode: str, start: int, config: Config) -> Evidence:
    return Evidence(
        name=f"cosine of E[g x] at step {start:,} with that of the end, {mode}",
        against="1: a matrix that does not turn",
        unit="cosine, mean over layers and seeds",
        value=_mean(drift, mode, start, "cosine"),
        threshold=STATIONARY,
        at_least=True,
        control=_mean(drift, mode, config.drift.steps[-1], "between_halves"),
        control_name="two halves of the text at one step: what sampling does",
    )


def _length(drift: pd.DataFrame, mode: str, start: int, config: Config) -> Evidence:
    ratio = _mean(drift, mode, start, "length_ratio")
    return Evidence(
        name=f"change of length of E[g x] between step {start:,} and the end, {mode}",
        against="1: a matrix that keeps its length",
        unit="factor, mean over layers and seeds",
        value=max(ratio, 1 / ratio),
        threshold=SAME_LENGTH,
        control=_start_ratio(drift, mode),
        control_name="from the very start",
    )


def _start_ratio(drift: pd.DataFrame, mode: str) -> float:
    ratio = _mean(drift, mode, 0, "length_ratio")
    return max(ratio, 1 / ratio)


def _mean(drift: pd.DataFrame, mode: str, step: int, column: str) -> float:
    own = drift[(drift["mode"] == mode) & (drift["step"] == step)]
    return float(own[column].mean()) if len(own) else math.nan
