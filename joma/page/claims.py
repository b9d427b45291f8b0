"""Claims of a reproduction as rows of tables: all of them at a glance, and the evidence of each."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from joma.experiments.record import Record, Status
from joma.experiments.registry import named
from joma.page.document import code
from joma.page.table import Cell, digits, number, table, words
from joma.page.unfinished import reason
from joma.verdicts import Evidence, Outcome, Verdict

BY_INTEREST: tuple[str, ...] = (
    Status.FAILED,
    Outcome.REFUTED,
    Outcome.CONDITIONAL,
    Outcome.HOLDS,
    Status.UNFINISHED,
    Outcome.INCONCLUSIVE,
    Outcome.NOT_RUN,
    Status.DONE,
)
"""What can be said of a claim, or of an experiment without claims, in the order of the table."""
UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.NOT_RUN)
"""Rows that are folded away where there are others."""
COLUMNS = ("experiment", "claim", "verdict", "statistic", "measured", "threshold", "control", "published")
EVIDENCE_COLUMNS = (
    "statistic",
    "measured",
    "threshold",
    "control",
    "published",
    "what the control is",
    "against",
    "unit",
)
BESIDE = "beside"
"""Mark, and class of the style sheet, of a number that does not decide its claim."""
MOST_BESIDE = 3
"""Numbers beside that are shown with those that decide; more are folded away."""
OPTIONAL = ("published",)
"""Columns of all claims that are left out where no row has anything there."""
NO_NUMBER = Cell(
    text="none",
    raw="",
    is_number=True,
    title="There is no such number here: what it tells of did not occur, or could not be fitted.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One row of the summary: a claim, or an experiment that has none to show."""

    record: Record
    verdict: Verdict | None = None

    @property
    def said(self) -> str:
        """What the evidence says of it, or how far its experiment came."""
        return self.record.status.value if self.verdict is None else self.record.said_of(self.verdict)

    @property
    def title(self) -> str:
        """What is claimed."""
        return self.record.title if self.verdict is None else self.verdict.title

    @property
    def link(self) -> str:
        """Where the page says more."""
        return f"#{self.record.id if self.verdict is None else anchor(self.record, self.verdict)}"

    @property
    def control_passes_too(self) -> bool:
        """Whether it is said to hold while a control passes where it does."""
        if self.verdict is None or self.said not in (Outcome.HOLDS, Outcome.CONDITIONAL):
            return False
        shown = self.verdict.decisive
        return self.verdict.control_passes or (shown is not None and _is_matched(shown))


def claims(records: Sequence[Record]) -> list[Claim]:
    """Return the claims of all experiments, the most interesting first."""
    found = [
        Claim(record=record, verdict=verdict)
        for record in records
        for verdict in (record.verdicts if record.is_shown and record.verdicts else (None,))
    ]
    return sorted(found, key=lambda claim: BY_INTEREST.index(claim.said))


def counts(found: Sequence[Claim]) -> list[tuple[str, int]]:
    """Return how many claims have which verdict, for each that occurs."""
    number_of = Counter(claim.said for claim in found)
    return [(said, number_of[said]) for said in BY_INTEREST if number_of[said]]


def summary_table(found: Sequence[Claim]) -> Markup:
    """Return a row for each claim; those that are not decided are folded away where there are others."""
    rows = [_row(claim) for claim in found]
    columns = [
        place for place, name in enumerate(COLUMNS) if name not in OPTIONAL or any(row[place].text for row in rows)
    ]
    undecided = [claim.said in UNDECIDED for claim in found]
    return table(
        [COLUMNS[place] for place in columns],
        [[row[place] for place in columns] for row in rows],
        outcomes=[claim.said for claim in found],
        folded=undecided if not all(undecided) else (),
        cards=True,
    )


def evidence_table(verdict: Verdict, *, judged: bool = True) -> Markup:
    """Return a row for each number of a verdict, without the columns that none of them has.

    None is marked as failing unless they are `judged`: those of a part are not. Those that do not decide are muted, and
    folded away where they are many.
    """
    is_beside = [not each.decides for each in verdict.evidence]
    is_folded = not all(is_beside) and sum(is_beside) > MOST_BESIDE
    rows = [_evidence_row(each, judged=judged) for each in verdict.evidence]
    used = [place for place in range(len(EVIDENCE_COLUMNS)) if any(row[place].text or row[place].mark for row in rows)]
    shown = [[row[place] for place in used] for row in rows]
    return table(
        [EVIDENCE_COLUMNS[place] for place in used],
        shown,
        folded=is_beside if is_folded else (),
        folded_are="shown beside, they decide nothing",
        cards=True,
    )


def anchor(record: Record, verdict: Verdict) -> str:
    """Name the place of a claim on the page."""
    return f"{record.id}--{verdict.id}"


def _row(claim: Claim) -> list[Cell]:
    record, verdict = claim.record, claim.verdict
    here = words(named(record.id), tone="id", link=f"#{record.id}")
    title = words(claim.title, tone="what", link=claim.link if verdict else "")
    shown = verdict.decisive if verdict else None
    if verdict and shown:
        said = words(code(_statistic(shown, record.part)), tone="long", mark=_mark(verdict, shown))
    else:
        said = words(code(verdict.explanation if verdict else reason(record)), tone="long")
    return [here, title, _outcome(claim.said), said, *_numbers(shown, judged=claim.said != Status.UNFINISHED)]


def _evidence_row(evidence: Evidence, *, judged: bool) -> list[Cell]:
    row = [
        words(evidence.name, tone="what", mark="" if evidence.decides else BESIDE),
        *_numbers(evidence, judged=judged),
        words(evidence.control_name, mark=_control_mark(evidence)),
        *(words(text, tone="brief") for text in (evidence.against, evidence.unit)),
    ]
    return row if evidence.decides else [replace(cell, tone=f"{cell.tone} {BESIDE}".strip()) for cell in row]


def _outcome(said: str) -> Cell:
    return Cell(text=said, raw=BY_INTEREST.index(said), tone=f"verdict {said.replace(' ', '-')}")


def _statistic(evidence: Evidence, part: str) -> str:
    control = f"control: {evidence.control_name}" if evidence.control_name else ""
    return "; ".join(words for words in (part and f"so far {part}", evidence.name, control) if words)


def _mark(verdict: Verdict, shown: Evidence) -> str:
    """Say of the number that is shown that its control passes, or else of how many of those that decide."""
    deciding = [each for each in verdict.evidence if each.decides]
    num = sum(map(_is_matched, deciding))
    return _control_mark(shown) or (f"control passes too in {num} of {len(deciding)} numbers" if num else "")


def _control_mark(evidence: Evidence) -> str:
    """Say where the control is on the right side of the threshold: there the number alone does not tell them apart."""
    if _is_matched(evidence):
        return "control passes too"
    return "only the control passes" if evidence.control_holds else ""


def _is_matched(evidence: Evidence) -> bool:
    return evidence.holds and evidence.control_holds is True


def _numbers(evidence: Evidence | None, *, judged: bool) -> list[Cell]:
    """Measured, threshold, control and published value."""
    if evidence is None:
        return [number(None)] * 4
    bound = Cell(
        text=f"{'≥' if evidence.at_least else '≤'} {digits(evidence.threshold)}",
        raw=evidence.threshold,
        is_number=True,
    )
    return [
        _measured(evidence.value, tone="bad" if judged and not evidence.holds else ""),
        bound,
        number(None) if evidence.control is None else _measured(evidence.control),
        number(evidence.published),
    ]


def _measured(value: float, tone: str = "") -> Cell:
    return number(value, tone=tone) if math.isfinite(value) else replace(NO_NUMBER, tone=tone)
