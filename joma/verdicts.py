"""One verdict for statements of the paper and for experiments alike, and the rule by which experiments reach it.

A claim is asked in one or more settings. In each of them it is *shown* (every number that decides passes its threshold,
and no control passes the same threshold), *matched* (it passes, and so does a control, so that passing says nothing of
the claim's cause), *failed* (a number does not pass) or *open* (seeds do not tell, there is no number, or there is none
for a control: one that was not measured is not one that fails).

- **Holds**: shown in every setting.
- **Holds under conditions**: passes in some settings and not in others, or everywhere with a control that passes as
  well. `correction` says where it holds, and the explanation says of a control that it passes as well.
- **Refuted**: passes in no setting; or fails in one, where the claim says in so many words that there is no such case
  ("at most", "for each"). `correction` says what holds in its place.
- **Inconclusive at this size**: open wherever it is not failed, or failed at a size from which nothing follows.

Numbers that are shown beside (`decides` is false), among them checks of our own, do not move the outcome; a check of
our own that fails makes the verdict unsound and, in an experiment, inconclusive, since numbers of a faulty measurement
decide nothing. A corrected form that holds does not make the printed one hold.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

_MEASURED = ("value", "threshold", "control", "published")
"""Numbers of an evidence that may be NaN or infinite."""


class Outcome(StrEnum):
    """What the evidence says of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under conditions"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive at this size"
    NOT_RUN = "not run"


class Finding(StrEnum):
    """What one setting says of a claim."""

    SHOWN = "shown"
    """It passes, and no control does."""
    MATCHED = "matched"
    """It passes, and so does a control."""
    FAILED = "failed"
    OPEN = "open"
    """Seeds do not tell, or the number or its control could not be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One measured number, beside its threshold and its control."""

    name: str
    """What was measured."""
    against: str
    """The independent side of the comparison: an ODE, a quadrature, enumeration, Monte Carlo, and so on."""
    unit: str
    """What the numbers mean, for example `max abs error` or `standard errors`."""
    value: float
    """Distance of the claim, in its corrected form, from the independent side; an experiment's statistic."""
    threshold: float
    """The largest value that counts as agreement; the smallest where `at_least` says so."""
    control: float | None = None
    """The same distance for the control: the form as printed, a broken hypothesis, an untrained network."""
    control_name: str = ""
    """What the control is."""
    seconds: float = 0.0
    """Time that the measurement took."""
    at_least: bool = False
    """Whether larger is better: then the value holds from the threshold up, not down."""
    published: float | None = None
    """What the paper prints, where it does: the same number, or the one that the value is a distance from."""
    decides: bool = True
    """Whether the outcome rests on it; false for a check of our own and for what is shown beside."""

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of its threshold; NaN is not."""
        return self._holds(self.value)

    @property
    def control_holds(self) -> bool | None:
        """Whether the control is on the right side of the same threshold; None without a control."""
        return None if self.control is None else self._holds(self.control)

    @property
    def lacks_control(self) -> bool:
        """Whether there is a control and no number for it."""
        return self.control is not None and math.isnan(self.control)

    def _holds(self, value: float) -> bool:
        return bool(value >= self.threshold if self.at_least else value <= self.threshold)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim, what the evidence says of it, and the numbers."""

    id: str
    title: str
    source: str
    """Where the claim is made, with numbers: `Section 3.1, Theorem 2, Eqns 4 and 22`."""
    claim: str
    """The claim as its source prints it."""
    outcome: Outcome
    explanation: str = ""
    """Why: what breaks, what is needed."""
    correction: str = ""
    """The form that does hold, where the claim as printed does not."""
    evidence: tuple[Evidence, ...] = ()
    sound: bool = True
    """False when one of our own checks failed: something that should hold does not."""
    control_passes: bool = False
    """Whether a control passes where the claim does, so that passing says nothing of the claim's cause."""

    @property
    def decisive(self) -> Evidence | None:
        """The evidence to show first, of what decides: where a control passes as well, that one; else a failing number.

        Where none fails it is one whose control fails, and else the number that is nearest to its threshold. Where
        nothing decides, all evidence is asked. Of a verdict that is open it is the failing number that might yet pass:
        one that clearly fails would contradict it.
        """
        is_open = self.outcome is Outcome.INCONCLUSIVE

        def order(row: Evidence) -> tuple[bool, bool, bool, float]:
            is_matched = self.control_passes and row.holds and row.control_holds is True
            if is_open and not row.holds:
                return is_matched, True, True, -_shortfall(row)
            return is_matched, not row.holds, row.control_holds is False, _strain(row)

        deciding = [row for row in self.evidence if row.decides]
        return max(deciding or self.evidence, key=order, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON, with the derived `holds` flags spelled out.

        Null stands for NaN, and "inf" and "-inf" for what JSON has no number for.
        """
        record = asdict(self)
        for row, evidence in zip(record["evidence"], self.evidence, strict=True):
            row |= {"holds": evidence.holds, "control_holds": evidence.control_holds}
            row |= {key: _plain(row[key]) for key in _MEASURED}
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Verdict":
        """Rebuild a verdict from `as_dict`; null is NaN where a number was measured, also of records without "inf"."""
        fields = record | {
            "outcome": Outcome(record["outcome"]),
            "evidence": tuple(_evidence(row) for row in record["evidence"]),
        }
        return cls(**fields)


CONTROL_PASSES = "the control passes as well"
CHECK_FAILS = "A check of our own fails, and nothing is decided before it passes."


@dataclass(frozen=True, slots=True)
class Ruling:
    """What settings together say of a claim; it writes the verdict, so that all verdicts keep the rule."""

    outcome: Outcome
    control_passes: bool = False

    def limited(self, *, small: bool) -> "Ruling":
        """Return the ruling as a small size allows it: what holds does; from failing there nothing follows."""
        return self.undecided() if small and self.outcome is not Outcome.HOLDS else self

    def undecided(self) -> "Ruling":
        """Return the ruling of numbers that decide nothing: of a small size, or beside a check of ours that fails."""
        return replace(self, outcome=Outcome.INCONCLUSIVE)

    def verdict(
        self,
        *,
        id: str,
        title: str,
        source: str,
        claim: str,
        explanation: str,
        correction: str,
        evidence: Iterable[Evidence],
        sound: bool = True,
    ) -> Verdict:
        """Return the verdict; `correction` says what holds if the claim does not, and is left out elsewhere.

        Beside a check of ours that fails, where it is not `sound`, the numbers decide nothing.
        """
        rows = tuple(evidence)
        control_passes = self.control_passes or any(row.decides and row.holds and row.control_holds for row in rows)
        outcome = self.outcome if sound else self.undecided().outcome
        is_corrected = outcome in (Outcome.CONDITIONAL, Outcome.REFUTED)
        assert correction or not is_corrected, f"{id} is {outcome.value} and does not say what holds"
        assert not (control_passes and self.outcome is Outcome.HOLDS), f"{id} holds, and so does its control"
        return Verdict(
            id=id,
            title=title,
            source=source,
            claim=claim,
            outcome=outcome,
            explanation=" ".join(filter(None, (explanation, _told(rows) * control_passes, CHECK_FAILS * (not sound)))),
            correction=correction if is_corrected else "",
            evidence=rows,
            sound=sound,
            control_passes=control_passes,
        )


def finding(*rows: Evidence) -> Finding:
    """Return what the numbers of one setting say together.

    >>> row = Evidence(name="", against="", unit="", value=0.9, threshold=0.5, at_least=True, control=0.8)
    >>> finding(row).value, finding(replace(row, control=0.1)).value, finding(replace(row, threshold=1.0)).value
    ('matched', 'shown', 'failed')
    """
    if any(not row.holds and not math.isnan(row.value) for row in rows):
        return Finding.FAILED
    if not rows or any(math.isnan(row.value) for row in rows):
        return Finding.OPEN
    return _passing(*rows)


def seeds_say(passes: bool | None, row: Evidence | None = None) -> Finding:
    """Return what a test between seeds says, None for nothing, with the control of the number that it was made on.

    >>> seeds_say(None).value, seeds_say(False).value, seeds_say(True).value
    ('open', 'failed', 'shown')
    """
    if passes is None:
        return Finding.OPEN
    if not passes:
        return Finding.FAILED
    return Finding.SHOWN if row is None else _passing(row)


def ruling(settings: Iterable[Finding], *, besides: Iterable[Finding] = (), everywhere: bool = False) -> Ruling:
    """Return what settings together say of a claim, by the rule of this module.

    What stands `besides` is claimed in addition: without it the claim holds under conditions at best, and alone it is
    not enough. A claim that holds `everywhere` by its own words is refuted by one setting in which it fails.

    >>> ruling([Finding.SHOWN, Finding.FAILED]).outcome.value
    'holds under conditions'
    >>> ruling([Finding.SHOWN, Finding.FAILED], everywhere=True).outcome.value
    'refuted'
    >>> ruling([Finding.MATCHED])
    Ruling(outcome=<Outcome.CONDITIONAL: 'holds under conditions'>, control_passes=True)
    """
    asked, added = set(settings), set(besides)
    passing = asked & {Finding.SHOWN, Finding.MATCHED}
    if asked == {Finding.SHOWN} and added <= {Finding.SHOWN}:
        outcome = Outcome.HOLDS
    elif everywhere and Finding.FAILED in asked:
        outcome = Outcome.REFUTED
    elif passing:
        outcome = Outcome.CONDITIONAL
    else:
        outcome = Outcome.REFUTED if asked == {Finding.FAILED} else Outcome.INCONCLUSIVE
    return Ruling(outcome, Finding.MATCHED in asked | added)


def _passing(*rows: Evidence) -> Finding:
    """Return what numbers that pass say beside their controls; one control that passes is enough to match them."""
    if any(row.control_holds for row in rows):
        return Finding.MATCHED
    return Finding.OPEN if any(row.lacks_control for row in rows) else Finding.SHOWN


def _told(rows: Iterable[Evidence]) -> str:
    """Say that a control passes as well, and which."""
    names = dict.fromkeys(row.control_name for row in rows if row.holds and row.control_holds and row.control_name)
    return CONTROL_PASSES.capitalize() + (f": {', '.join(names)}." if names else ".")


def _evidence(row: dict[str, Any]) -> Evidence:
    kept = {key: value for key, value in row.items() if key not in ("holds", "control_holds")}
    numbers = {key: float(kept[key]) for key in _MEASURED if kept.get(key) in ("inf", "-inf")}
    numbers |= {key: math.nan for key in ("value", "threshold") if kept[key] is None}
    if kept["control"] is None and kept["control_name"]:
        numbers["control"] = math.nan
    return Evidence(**kept | numbers)


def _plain(value: float | None) -> float | str | None:
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else str(float(value))


def _shortfall(evidence: Evidence) -> float:
    """How far a failing value is from its threshold, in relation; infinite where it is none, or of the other sign."""
    strain = _strain(evidence)
    return strain if strain >= 1 else math.inf


def _strain(evidence: Evidence) -> float:
    """How near the value is to its threshold: larger is nearer, and beyond 1 it is on the wrong side."""
    best, worst = (evidence.value, evidence.threshold) if evidence.at_least else (evidence.threshold, evidence.value)
    return worst / best if best else worst
