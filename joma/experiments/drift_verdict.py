"""The verdict on Assumption 1: is E[g x] stationary, trained whole and layer by layer?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from joma.experiments.assumption1 import ALONE, TOGETHER
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import Config
from joma.experiments.language_model_settings import not_yet
from joma.verdicts import Evidence, Verdict, finding, ruling

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
    num_layers = {mode: drift.loc[drift["mode"] == mode, "layer"].nunique() for mode in (ALONE, TOGETHER)}
    by_mode = {
        mode: _Moved.of(drift, mode, start, config) for mode, num in num_layers.items() if num == config.drift.depth
    }
    lacking = [
        f"{mode} ({num} of {config.drift.depth} layers)" for mode, num in num_layers.items() if mode not in by_mode
    ]
    found = ruling(finding(moved.direction, moved.length) for moved in by_mode.values())
    end = config.drift.steps[-1]
    seeds = "one seed" if len(config.drift.seeds) == 1 else f"{len(config.drift.seeds)} seeds"
    return (found.undecided() if lacking else found).verdict(
        id="assumption1",
        title="E[g x] stays as it is",
        source="Section 2, Assumption 1",
        claim="E[g x] remains constant during training: true when one layer is trained and the others are fixed, and "
        "approximately for joint training.",
        explanation=(
            f"The matrix of token frequencies and gradients of the hidden neurons at step {start:,}, held against step "
            f"{end:,}, mean over layers and {seeds}. "
            + (_what_is_there(lacking, by_mode) if lacking else _from_the_start(drift, end))
            + " A layer that is trained changes its own output, and with it the error that comes back."
        ),
        correction="" if lacking else _correction(by_mode, start),
        evidence=[row for moved in by_mode.values() for row in (moved.direction, moved.length)]
        + [row for moved in by_mode.values() for row in (moved.halves, moved.from_start)],
    )


def _from_the_start(drift: pd.DataFrame, end: int) -> str:
    """Tell how far the matrix and the loss move over all of the training, in both modes."""
    return (
        f"From the very start the cosines are {_mean(drift, ALONE, 0, 'cosine'):.2f} layer by layer and "
        f"{_mean(drift, TOGETHER, 0, 'cosine'):.2f} together; the loss went from "
        f"{_mean(drift, TOGETHER, 0, 'loss'):.2f} to {_mean(drift, ALONE, end, 'loss'):.2f} and "
        f"{_mean(drift, TOGETHER, end, 'loss'):.2f}."
    )


def _what_is_there(lacking: Sequence[str], by_mode: "dict[str, _Moved]") -> str:
    """Tell which modes of training lack layers, and what the matrix does in those that do not."""
    told = "".join(f" {mode.capitalize()} it {moved.in_words()}." for mode, moved in by_mode.items())
    return not_yet(", ".join(lacking)) + told


def reference_step(config: Config) -> int:
    """Return the first measured step behind the part of the training that is left out.

    With steps 0, 100, 1000 and 10,000 that is 1000.
    """
    return min(step for step in config.drift.steps if step >= SETTLED * config.drift.steps[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Moved:
    """How far the matrix moves in one mode of training, and two numbers to hold beside it."""

    direction: Evidence
    length: Evidence
    halves: Evidence
    """What sampling alone does to the direction."""
    from_start: Evidence
    """The length over all of the training."""

    @classmethod
    def of(cls, drift: pd.DataFrame, mode: str, start: int, config: Config) -> "_Moved":
        """Read it off the table."""
        direction = Evidence(
            name=f"cosine of E[g x] at step {start:,} with that of the end, {mode}",
            against="1: a matrix that does not turn",
            unit="cosine, mean over layers and seeds",
            value=_mean(drift, mode, start, "cosine"),
            threshold=STATIONARY,
            at_least=True,
        )
        length = Evidence(
            name=f"change of length of E[g x] between step {start:,} and the end, {mode}",
            against="1: a matrix that keeps its length",
            unit="factor, mean over layers and seeds",
            value=_factor(drift, mode, start),
            threshold=SAME_LENGTH,
        )
        halves = replace(
            direction,
            name=f"cosine of E[g x] over two halves of the text at one step: what sampling does, {mode}",
            value=_mean(drift, mode, config.drift.steps[-1], "between_halves"),
            decides=False,
        )
        from_start = replace(
            length,
            name=f"change of length of E[g x] between the very start and the end, {mode}",
            value=_factor(drift, mode, 0),
            decides=False,
        )
        return cls(direction=direction, length=length, halves=halves, from_start=from_start)

    def in_words(self) -> str:
        """Say what the matrix does, with its numbers."""
        turn = f"cosine {self.direction.value:.2f}, between halves of the text {self.halves.value:.2f}"
        factor = f"a factor of {self.length.value:.2f}"
        if self.direction.holds and self.length.holds:
            return f"stays as it is ({turn}; {factor} in length)"
        kept_direction = "keeps its direction" if self.direction.holds else "turns"
        kept_length = "keeps its length" if self.length.holds else "changes its length"
        return f"{kept_direction} ({turn}) and {kept_length} ({factor})"


def _correction(by_mode: dict[str, _Moved], start: int) -> str:
    """Say what the matrix does in each mode, and in which of the two it moves less if one does in every respect."""
    told = [f"{mode} E[g x] {moved.in_words()}" for mode, moved in by_mode.items()]
    alone, together = by_mode[ALONE], by_mode[TOGETHER]
    if alone.direction.value > together.direction.value and alone.length.value < together.length.value:
        told.append(f"it moves less with {ALONE}")
    elif alone.direction.value < together.direction.value and alone.length.value > together.length.value:
        told.append(f"it moves less with {TOGETHER}")
    return f"from step {start:,} to the end, {'; '.join(told)}"


def _factor(drift: pd.DataFrame, mode: str, step: int) -> float:
    """Factor by which the length changes from a step to the end, 1 or more."""
    ratio = _mean(drift, mode, step, "length_ratio")
    return max(ratio, 1 / ratio)


def _mean(drift: pd.DataFrame, mode: str, step: int, column: str) -> float:
    own = drift[(drift["mode"] == mode) & (drift["step"] == step)]
    return float(own[column].mean()) if len(own) else math.nan
