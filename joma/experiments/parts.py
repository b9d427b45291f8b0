"""Charts and verdicts of an experiment that is not finished: labelled, so that a part is not taken for the whole."""

from collections.abc import Iterable
from dataclasses import replace

from joma.figures.chart import Chart
from joma.verdicts import Outcome, Verdict


def labelled(charts: Iterable[Chart], part: str) -> tuple[Chart, ...]:
    """Return charts whose titles, and so their pictures, say which part they show; as they are where it is empty."""
    return tuple(replace(chart, title=f"{chart.title} (unfinished: {part})") if part else chart for chart in charts)


def undecided(verdict: Verdict, part: str) -> Verdict:
    """Return a verdict on a part: it keeps its evidence and decides nothing, and offers nothing in the claim's place.

    >>> whole = Verdict(id="a", title="", source="", claim="", outcome=Outcome.REFUTED, explanation="It is off.")
    >>> undecided(whole, "1 of 2 runs").outcome.value, undecided(whole, "1 of 2 runs").explanation
    ('inconclusive at this size', 'So far 1 of 2 runs are done. It is off.')
    """
    if verdict.outcome is Outcome.NOT_RUN:
        return verdict
    explanation = f"So far {part} are done. {verdict.explanation}".rstrip()
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, explanation=explanation, correction="")
