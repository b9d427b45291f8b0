"""One verdict for statements of the paper and for experiments alike."""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What the evidence says of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under conditions"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive at this size"
    NOT_RUN = "not run"


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
    """The same number as the paper prints it, where it does."""

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of its threshold; NaN is not."""
        return self._holds(self.value)

    @property
    def control_holds(self) -> bool | None:
        """Whether the control is on the right side of the same threshold; None without a control."""
        return None if self.control is None else self._holds(self.control)

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

    @property
    def decisive(self) -> Evidence | None:
        """The evidence to show first: a failing check, else a failing control, else the nearest to its threshold."""
        if not self.evidence:
            return None
        return max(self.evidence, key=lambda e: (not e.holds, e.control_holds is False, _strain(e)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON, with the derived `holds` flags spelled out; null stands for not finite."""
        record = asdict(self)
        for row, evidence in zip(record["evidence"], self.evidence, strict=True):
            row |= {"holds": evidence.holds, "control_holds": evidence.control_holds}
            row |= {key: _finite_or_none(row[key]) for key in ("value", "threshold", "control", "published")}
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Verdict":
        """Rebuild a verdict from `as_dict`, with NaN where a measured number was not finite."""
        fields = record | {
            "outcome": Outcome(record["outcome"]),
            "evidence": tuple(_evidence(row) for row in record["evidence"]),
        }
        return cls(**fields)


def _evidence(row: dict[str, Any]) -> Evidence:
    kept = {key: value for key, value in row.items() if key not in ("holds", "control_holds")}
    numbers = {key: math.nan for key in ("value", "threshold") if kept[key] is None}
    if kept["control"] is None and kept["control_name"]:
        numbers["control"] = math.nan
    return Evidence(**kept | numbers)


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _strain(evidence: Evidence) -> float:
    """How near the value is to its threshold: larger is nearer, and beyond 1 it is on the wrong side."""
    best, worst = (evidence.value, evidence.threshold) if evidence.at_least else (evidence.threshold, evidence.value)
    return worst / best if best else worst
