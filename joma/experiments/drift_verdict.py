"""The verdict on Assumption 1: is E[g x] stationary, trained whole and layer by layer?"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from joma.experiments.assumption1 import ALONE, TOGETHER
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import Config
from joma.experiments.language_model_settings import not_yet
from joma.experiments.rebound_shares import AFTERWARDS, decided
from joma.verdicts import Evidence, Verdict, finding, ruling

STATIONARY = 0.9
"""Cosine from which a matrix points where it pointed before."""
SAME_LENGTH = 1.5
"""Factor by which its length may change."""
SETTLED = 0.1
"""Part of the training that is left out: 'during most of the training' is what comes behind it."""
SMALL = "Small models decide nothing; the full preset does. "


def drift_verdict(result: Result, config: Config) -> Verdict:
    """Judge Assumption 1; as of the other trainings, nothing follows from small models."""
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
    return (found.undecided() if lacking else decided(found, config)).verdict(
        id="assumption1",
        title="E[g x] stays as it is",
        source="Section 2, Assumption 1",
        claim="E[g x] remains constant during training: true when one layer is trained and the others are fixed, and "
        "approximately for joint training.",
        explanation=(
            f"{SMALL if config.small else ''}The matrix of token frequencies and gradients of the hidden neurons at "
            f"step {start:,}, held against that of the end, mean over layers and {seeds}. The end is step {end:,} of "
            "trainings of their own, not the runs of figure 6: of the whole model, and of one block at a time. "
            + (_what_is_there(lacking, by_mode) if lacking else _from_the_start(drift, end))
            + " A layer that is trained changes its own output, and with it the error that comes back."
            + _sampling_in_words(by_mode.values())
        ),
        correction="" if lacking else _correction(by_mode, start, end),
        evidence=[row for moved in by_mode.values() for row in (moved.direction, moved.length)]
        + [
            row
            for moved in by_mode.values()
            for row in (moved.halves, moved.halves_at_end, moved.corrected, moved.turned_from_start, moved.from_start)
        ],
    )


def _from_the_start(drift: pd.DataFrame, end: int) -> str:
    """Tell how far the matrix and the loss move over all of the training, in both modes."""
    return (
        f"From the very start the cosines are {_mean(drift, ALONE, 0, 'cosine'):.2f} layer by layer and "
        f"{_mean(drift, TOGETHER, 0, 'cosine'):.2f} together; the loss went from "
        f"{_mean(drift, TOGETHER, 0, 'loss'):.2f} to {_mean(drift, ALONE, end, 'loss'):.2f} and "
        f"{_mean(drift, TOGETHER, end, 'loss'):.2f}."
    )


def _sampling_in_words(moves: "Iterable[_Moved]") -> str:
    """Tell where the threshold lies above what sampling leaves, and how the cosine is corrected for it."""
    all_moves = list(moves)
    reached = [row.value for moved in all_moves for row in (moved.halves, moved.halves_at_end)]
    if not reached:
        return ""
    corrected = [moved.corrected for moved in all_moves]
    return (
        (
            f" The threshold of {STATIONARY:g} lies above what two halves of the text reach at one step "
            f"({min(reached):.2f} to {max(reached):.2f}), so that failing it alone says little."
            if max(reached) < STATIONARY
            else ""
        )
        + " Corrected for sampling (since the result was seen, and beside), the cosine is divided by what two samples "
        "of this size would reach of one matrix, which the halves foretell by Spearman and Brown; as both steps are "
        "read off the same windows, that corrects too much rather than too little."
        + (" It fails the threshold so, too." if not any(row.holds for row in corrected) else "")
    )


def ceiling(one: float, other: float) -> float:
    r"""Return the cosine that two whole samples of one matrix would reach, from the cosines of halves of each.

    Of a cosine $r$ between halves, Spearman and Brown foretell $2r / (1 + r)$ between wholes; of two steps the
    geometric mean counts. NaN where halves do not agree at all.

    >>> round(ceiling(0.6, 0.6), 2), ceiling(1.0, 1.0)
    (0.75, 1.0)
    """
    wholes = [2 * half / (1 + half) if half > 0 else math.nan for half in (one, other)]
    return math.sqrt(math.prod(wholes))


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
    """What sampling alone does to the direction, at the step that is held against the end."""
    halves_at_end: Evidence
    corrected: Evidence
    """The direction as it would be without sampling, by what the halves say of it."""
    turned_from_start: Evidence
    """The direction over all of the training."""
    from_start: Evidence
    """The length over all of the training."""

    @classmethod
    def of(cls, drift: pd.DataFrame, mode: str, start: int, config: Config) -> "_Moved":
        """Read it off the table."""
        end = config.drift.steps[-1]
        direction = Evidence(
            name=f"cosine of E[g x] at step {start:,} with that of the end, step {end:,}, {mode}",
            against="1: a matrix that does not turn",
            unit="cosine, mean over layers and seeds",
            value=_mean(drift, mode, start, "cosine"),
            threshold=STATIONARY,
            at_least=True,
        )
        length = Evidence(
            name=f"change of length of E[g x] between step {start:,} and the end, step {end:,}, {mode}",
            against="1: a matrix that keeps its length",
            unit="factor, mean over layers and seeds",
            value=_factor(drift, mode, start),
            threshold=SAME_LENGTH,
        )
        at_start, at_end = (_mean(drift, mode, step, "between_halves") for step in (start, end))
        halves, halves_at_end = (
            replace(
                direction,
                name=f"cosine of E[g x] over two halves of the text at step {step:,}: what sampling does, {mode}",
                against="1: halves that agree",
                value=value,
                decides=False,
            )
            for step, value in ((start, at_start), (end, at_end))
        )
        corrected = replace(
            direction,
            name=f"{direction.name}, corrected for sampling",
            value=direction.value / ceiling(at_start, at_end),
            decides=False,
        )
        turned_from_start = replace(
            direction,
            name=f"cosine of E[g x] at the very start with that of the end, step {end:,}, {mode}",
            value=_mean(drift, mode, 0, "cosine"),
            decides=False,
        )
        from_start = replace(
            length,
            name=f"change of length of E[g x] between the very start and the end, step {end:,}, {mode}",
            value=_factor(drift, mode, 0),
            decides=False,
        )
        return cls(
            direction=direction,
            length=length,
            halves=halves,
            halves_at_end=halves_at_end,
            corrected=corrected,
            turned_from_start=turned_from_start,
            from_start=from_start,
        )

    def in_words(self) -> str:
        """Say what the matrix does, with its numbers."""
        turn = (
            f"cosine {self.direction.value:.2f}, {self.corrected.value:.2f} corrected for sampling; between halves of "
            f"the text {self.halves.value:.2f}, at the end {self.halves_at_end.value:.2f}"
        )
        factor = f"a factor of {self.length.value:.2f}"
        if self.direction.holds and self.length.holds:
            return f"stays as it is ({turn}; {factor} in length)"
        kept_direction = "keeps its direction" if self.direction.holds else "turns"
        kept_length = "keeps its length" if self.length.holds else "changes its length"
        return f"{kept_direction} ({turn}) and {kept_length} ({factor})"


def _correction(by_mode: dict[str, _Moved], start: int, end: int) -> str:
    """Say what the matrix does in each mode, and in which of the two it moves less, late in training and in all."""
    told = [f"{mode} E[g x] {moved.in_words()}" for mode, moved in by_mode.items()]
    alone, together = by_mode[ALONE], by_mode[TOGETHER]
    late = _moves_less((alone.direction, alone.length), (together.direction, together.length))
    ever = _moves_less((alone.turned_from_start, alone.from_start), (together.turned_from_start, together.from_start))
    compared = [
        f"from step {start:,} on it moves less with {late}" if late else "",
        f"from the very start it moves less with {ever} (cosine {alone.turned_from_start.value:.2f} with {ALONE} and "
        f"{together.turned_from_start.value:.2f} with {TOGETHER}, factors of {alone.from_start.value:.2f} and "
        f"{together.from_start.value:.2f} in length; {AFTERWARDS})"
        if ever
        else "",
    ]
    return f"from step {start:,} to the end, step {end:,}, {'; '.join(filter(None, [*told, *compared]))}"


def _moves_less(alone: tuple[Evidence, Evidence], together: tuple[Evidence, Evidence]) -> str:
    """Return the mode that moves less in direction and in length; nothing where the two do not agree."""
    (turned, grew), (turned_together, grew_together) = alone, together
    if turned.value > turned_together.value and grew.value < grew_together.value:
        return ALONE
    if turned.value < turned_together.value and grew.value > grew_together.value:
        return TOGETHER
    return ""


def _factor(drift: pd.DataFrame, mode: str, step: int) -> float:
    """Factor by which the length changes from a step to the end, 1 or more."""
    ratio = _mean(drift, mode, step, "length_ratio")
    return max(ratio, 1 / ratio)


def _mean(drift: pd.DataFrame, mode: str, step: int, column: str) -> float:
    own = drift[(drift["mode"] == mode) & (drift["step"] == step)]
    return float(own[column].mean()) if len(own) else math.nan
