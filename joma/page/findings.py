"""What came out, in a few sentences that are computed from the verdicts: the first thing that a page says."""

from collections.abc import Sequence

from markupsafe import Markup

from joma.claims import Answer
from joma.claims import Outcome as Said
from joma.experiments.claim_kinds import by_kind
from joma.experiments.control_matches import shows_beyond_controls
from joma.experiments.record import Status
from joma.experiments.registry import named
from joma.figures.numbers import counted
from joma.page.claims import Claim, counts
from joma.page.document import code
from joma.verdicts import Outcome

VERBS: dict[str, tuple[str, str]] = {
    Status.FAILED: ("failed", "failed"),
    Outcome.REFUTED: ("is refuted", "are refuted"),
    Outcome.CONDITIONAL: ("holds under conditions", "hold under conditions"),
    Outcome.HOLDS: ("holds", "hold"),
    Status.UNFINISHED: ("is unfinished", "are unfinished"),
    Outcome.INCONCLUSIVE: ("is inconclusive at this size", "are inconclusive at this size"),
    Outcome.NOT_RUN: ("was not run", "were not run"),
    Status.DONE: ("is done without a verdict", "are done without a verdict"),
}
"""What is said of one claim and of several."""
AS_PRINTED: dict[str, tuple[str, str]] = {
    Said.WRONG: ("is wrong as printed", "are wrong as printed"),
    Said.CONDITIONAL: (
        "holds under conditions that it does not state",
        "hold under conditions that it does not state",
    ),
    Said.HOLDS: ("holds as printed", "hold as printed"),
    Said.FAULTY: ("has a check of ours that fails", "have a check of ours that fails"),
}
"""The same of a statement of the paper, which is printed."""


def findings(found: Sequence[Claim], statements: Sequence[Answer] = ()) -> list[Markup]:
    """Return sentences on the claims of a reproduction, and on the paper's statements where they were checked too."""
    refuted = [claim for claim in found if claim.said == Outcome.REFUTED]
    doubtful = [
        claim
        for claim in found
        if claim.verdict and claim.control_passes_too and not shows_beyond_controls(claim.verdict)
    ]
    each = by_kind(found, lambda claim: claim.verdict)
    told = [_counted(counts(own), len(own), kind.value, kind.several, VERBS) for kind, own in each.items()]
    said = [Markup.escape(" ".join(told))]
    if refuted:
        said.append(Markup("Refuted: {}.").format(_links(refuted)))
    if doubtful:
        said.append(Markup("Passes, but so does the control: {}.").format(_links(doubtful)))
    if statements:
        said.append(statements_finding(statements))
    return said


def statements_finding(answers: Sequence[Answer]) -> Markup:
    """Return the sentence on the paper's statements, with a link to them."""
    each = [(outcome, sum(answer.outcome is outcome for answer in answers)) for outcome in AS_PRINTED]
    told = _counted(
        [(outcome, count) for outcome, count in each if count],
        len(answers),
        "numbered statement of the paper",
        "numbered statements of the paper",
        AS_PRINTED,
    )
    return Markup('{} <a href="#statements">The statements, one by one.</a>').format(told)


def _counted(
    each: Sequence[tuple[str, int]], total: int, one: str, several: str, verbs: dict[str, tuple[str, str]]
) -> str:
    """Say of how many what is said.

    >>> _counted([("refuted", 1), ("holds", 2)], 3, "claim", "claims", VERBS)
    'Of 3 claims, 1 is refuted and 2 hold.'
    >>> _counted([("not run", 1)], 1, "claim", "claims", VERBS)
    'The one claim on this page was not run.'
    """
    if total == 1:
        return f"The one {one} on this page {verbs[each[0][0]][0]}."
    parts = [f"{count:,} {verbs[said][count > 1]}" for said, count in each]
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return f"Of {counted(total, one, several)}, {listed}."


def _links(found: Sequence[Claim]) -> Markup:
    """Name claims with the experiment that each belongs to, as links."""
    link = Markup('<a href="{}">{}</a> ({})')
    return Markup("; ").join(link.format(each.link, code(each.title), named(each.record.id)) for each in found)
