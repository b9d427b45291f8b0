"""Claims of a paper, and the one rule that turns numbers into an outcome.

A number *passes* if its 95 % interval lies wholly past its threshold. Then:

- **holds**: it passes, and the difference to its control excludes zero in the claimed direction;
- **matches its control**: it passes, but so does the control: the difference includes zero, or the control does better.
  An exact number has no interval, so its control must fail the same threshold;
- **refuted**: its interval lies wholly on the other side of the threshold;
- **undecided**: everything else.

A claim that is asked in several settings is answered for each of them; if the answers differ, the outcome is *depends
on the setting*. The primary claims of one experiment share an error of 5 % (Holm's correction, by the clearest setting
of each). All other numbers are reported without an outcome. A statement that is checked exactly holds as printed, holds
under a condition, or is wrong as printed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict
from scipy import stats

from joma.claims.number import CONFIDENCE, Number

MOST_PRIMARY = 3
"""Primary claims of one experiment that rest on seeds."""


class Outcome(StrEnum):
    """What the numbers say of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under a condition"
    WRONG = "wrong as printed"
    MATCHES_CONTROL = "matches its control"
    MIXED = "depends on the setting"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    REPORTED = "reported"
    """Numbers without an outcome: not a primary claim."""
    NOT_RUN = "not run"
    FAULTY = "our check failed"
    """A check of our own failed, so nothing is decided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Something that a paper says, and how an experiment tests it."""

    id: str
    title: str
    """What it is about, in a few words, for tables."""
    says: str
    """The paper's own words, written down before the result."""
    source: str
    """Where the paper says it, for example `Section 6, Figure 6`."""
    numbers: Callable[[Any], Iterable[Number]]
    """Tables of the experiment in, numbers out."""
    primary: bool = True
    """Whether it gets an outcome. At most three claims of an experiment that rest on seeds do."""
    ours: bool = False
    """Whether we ask it, and not the paper."""


def claim(id: str, title: str, **fields: Any) -> Callable[[Callable[[Any], Iterable[Number]]], Claim]:
    """Make a claim of the function that returns its numbers; the arguments are fields of `Claim`.

    Without `says` the function's docstring is what the paper says.

    >>> @claim("rise", "The entropy rises", says="it rises", source="Section 4")
    ... def rise(tables):
    ...     yield Number.exact("rise", tables["rise"], at_least=0.1)
    >>> judge([rise], {"rise": 0.3}, tested_by="example")[0].outcome.value
    'holds'
    """

    def of(numbers: Callable[[Any], Iterable[Number]]) -> Claim:
        says = " ".join((numbers.__doc__ or "").split())
        return Claim(**{"says": says, **fields}, id=id, title=title, numbers=numbers)

    return of


class Answer(BaseModel):
    """What one test says of a claim."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claim: str
    """Id of the claim."""
    title: str
    says: str
    source: str
    outcome: Outcome
    settings: dict[str, Outcome] = {}
    """The outcome of each setting, where there are several."""
    numbers: tuple[Number, ...] = ()
    tested_by: str = "verify"
    """`verify`, or the id of the experiment."""
    ours: bool = False

    @classmethod
    def to(cls, asked: Any, **fields: Any) -> "Answer":
        """Answer a claim or a statement."""
        words = {name: getattr(asked, name) for name in ("title", "says", "source", "ours")}
        return cls(claim=asked.id, **words, **fields)

    @property
    def sound(self) -> bool:
        """Whether our own checks passed."""
        return self.outcome is not Outcome.FAULTY

    @property
    def main(self) -> Number | None:
        """The number to show first: judged, with the outcome that stands for the claim, nearest to its threshold.

        Of a statement that does not hold as printed it is a check that the printed form fails.
        """
        judged = [each for each in self.numbers if each.is_judged and not each.sanity]
        if self.outcome in (Outcome.WRONG, Outcome.CONDITIONAL):
            judged = [each for each in judged if each.control is not None and not each.passes(each.control)]
        wanted = {self.outcome, *([Outcome.HOLDS] if self.outcome is Outcome.MIXED else [])}
        return max(
            judged or self.numbers, key=lambda each: (outcome_of(each) in wanted, -_distance(each)), default=None
        )


def outcome_of(number: Number, confidence: float = CONFIDENCE) -> Outcome:
    """Judge one number.

    >>> rise = Number.mean("rise", [0.30, 0.34, 0.32], control=[0.02, 0.00, 0.01], at_least=0.1)
    >>> outcome_of(rise).value, outcome_of(rise.model_copy(update={"at_least": 0.5})).value
    ('holds', 'refuted')
    >>> outcome_of(Number.mean("rise", [0.30, 0.34], control=[0.3, 0.4], at_least=0.1)).value
    'undecided'
    """
    if not number.is_judged:
        return Outcome.REPORTED
    low, high = number.interval(confidence)
    if math.isnan(number.value) or number.error is None:
        return Outcome.UNDECIDED
    if number.passes(low) and number.passes(high):
        return _beside_control(number, confidence)
    misses_below = number.at_least is not None and high < number.at_least
    misses_above = number.at_most is not None and low > number.at_most
    return Outcome.REFUTED if misses_below or misses_above else Outcome.UNDECIDED


def _beside_control(number: Number, confidence: float) -> Outcome:
    """Judge a number that passes by its control."""
    if number.control is None:
        return Outcome.HOLDS
    if math.isnan(number.control):
        return Outcome.UNDECIDED
    if number.is_exact and not number.difference_error:
        return Outcome.MATCHES_CONTROL if number.passes(number.control) else Outcome.HOLDS
    if number.difference_error is None:
        return Outcome.UNDECIDED
    low, high = number.difference(confidence)
    if number.at_least is not None and number.at_most is not None:
        is_clear = low > 0 or high < 0
    else:
        is_clear = low > 0 if number.at_least is not None else high < 0
    return Outcome.HOLDS if is_clear else Outcome.MATCHES_CONTROL


def judge(claims: Sequence[Claim], tables: Any, *, tested_by: str) -> list[Answer]:
    """Answer the claims of one experiment from its tables; primary claims that rest on seeds share the error.

    Without tables no claim has a number.
    """
    numbers = {each.id: () if tables == {} else tuple(each.numbers(tables)) for each in claims}
    sampled = [each.id for each in claims if each.primary and not _is_exact(numbers[each.id])]
    if len(sampled) > MOST_PRIMARY:
        raise ValueError(
            f"{tested_by} has {len(sampled)} primary claims, at most {MOST_PRIMARY} are allowed: {sampled}."
        )
    levels = holm({id: _p_value(numbers[id]) for id in sampled})
    return [
        answer(each, numbers[each.id], tested_by=tested_by, confidence=levels.get(each.id, CONFIDENCE))
        for each in claims
    ]


def answer(claim: Claim, numbers: Sequence[Number], *, tested_by: str, confidence: float = CONFIDENCE) -> Answer:
    """Answer one claim from its numbers."""
    by_setting: dict[str, list[Outcome]] = {}
    for number in numbers:
        if number.is_judged and not number.sanity:
            by_setting.setdefault(number.setting, []).append(outcome_of(number, confidence))
    settings = {setting: _together(found) for setting, found in by_setting.items()}
    if any(number.sanity and outcome_of(number) is not Outcome.HOLDS for number in numbers):
        outcome = Outcome.FAULTY
    elif not numbers:
        outcome = Outcome.NOT_RUN
    elif not claim.primary or not settings:
        outcome = Outcome.REPORTED
    else:
        outcome = next(iter(settings.values())) if len(set(settings.values())) == 1 else Outcome.MIXED
    settings = settings if len(settings) > 1 and claim.primary else {}
    return Answer.to(claim, outcome=outcome, settings=settings, numbers=tuple(numbers), tested_by=tested_by)


def holm(p_values: dict[str, float], alpha: float = 1 - CONFIDENCE) -> dict[str, float]:
    """Return the confidence level at which each claim is judged.

    The claim with the smallest p-value is judged at 1 − α/m, the next at 1 − α/(m−1), and so on. After the first one
    that stays open no other may be decided, so those get the level 1.

    >>> {name: round(level, 4) for name, level in holm({"a": 0.001, "b": 0.04, "c": 0.5}).items()}
    {'a': 0.9833, 'b': 0.975, 'c': 1.0}
    """
    levels: dict[str, float] = {}
    is_open = False
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        share = alpha / (len(p_values) - rank)
        levels[name] = 1.0 if is_open else 1 - share
        is_open = is_open or p_values[name] > share
    return levels


def _together(outcomes: list[Outcome]) -> Outcome:
    """Join the outcomes of several numbers that a claim needs in one setting: the weakest counts."""
    order = (Outcome.REFUTED, Outcome.UNDECIDED, Outcome.MATCHES_CONTROL, Outcome.HOLDS)
    return next(each for each in order if each in outcomes)


def _is_exact(numbers: Iterable[Number]) -> bool:
    return all(number.is_exact for number in numbers if number.is_judged)


def _p_value(numbers: Iterable[Number]) -> float:
    """Return how surely a claim is off its threshold somewhere: the smallest of its settings' two-sided p-values.

    Within a setting the claim needs all its numbers, so there the largest counts.
    """
    by_setting: dict[str, float] = {}
    for number in numbers:
        if number.is_judged and not number.is_exact and not number.sanity:
            by_setting[number.setting] = max(by_setting.get(number.setting, 0.0), _p_of(number))
    return min(by_setting.values(), default=0.0)


def _p_of(number: Number) -> float:
    if not number.error or math.isnan(number.value):
        return 1.0
    nearest = min(abs(number.value - limit) for limit in number.limits)
    return float(2 * stats.t.sf(nearest / number.error, number.df))


def _distance(number: Number) -> float:
    """Return how far a number is from its nearest threshold, in relation to the threshold."""
    return min((abs(number.value - limit) / (abs(limit) or 1.0) for limit in number.limits), default=math.inf)
