"""The first part of docs/results.md: how it was computed, what holds, what does not, and what the controls say."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from joma.experiments.claim_kinds import FURTHER, ClaimKind, by_kind, kind_of
from joma.experiments.control_matches import shows_beyond_controls
from joma.experiments.markdown import enumerated, escaped, first_sentence, table
from joma.experiments.record import Record, Reproduction, Status
from joma.experiments.registry import find, named
from joma.figures.numbers import counted, duration, short
from joma.verdicts import Evidence, Outcome, Verdict

DIGITS = 4
QUICK = "quick"
COUNTED = {
    Outcome.HOLDS: ("holds", "hold"),
    Outcome.CONDITIONAL: ("holds under conditions", "hold under conditions"),
    Outcome.REFUTED: ("is refuted", "are refuted"),
    Outcome.INCONCLUSIVE: ("is inconclusive at this size", "are inconclusive at this size"),
    Outcome.NOT_RUN: ("was not run", "were not run"),
}
"""What is said of one claim, and of several."""
BY_OUTCOME = {
    Outcome.REFUTED: "Refuted",
    Outcome.CONDITIONAL: "Holds under conditions that the paper does not state, or in part",
    Outcome.HOLDS: "Holds",
    Outcome.INCONCLUSIVE: "Not decided at this size",
    Outcome.NOT_RUN: "Not run here",
}
PASSES_ALIKE = "Passes, but so does the control"
"""Heading of claims that are said to hold under conditions since a control passes too."""
HEADINGS = (
    BY_OUTCOME[Outcome.REFUTED],
    PASSES_ALIKE,
    *(heading for outcome, heading in BY_OUTCOME.items() if outcome is not Outcome.REFUTED),
)
"""In the order in which a reader wants to know."""
EXPLAINED = (
    PASSES_ALIKE,
    *(BY_OUTCOME[outcome] for outcome in (Outcome.REFUTED, Outcome.CONDITIONAL, Outcome.NOT_RUN)),
)
"""Headings below which a sentence stands beside each claim."""
MATCHED = "control passes too"
"""Mark beside a verdict whose numbers come out as well without the claim's cause."""
CLAIM_COLUMNS = ("experiment", "claim", "verdict", "statistic", "measured", "threshold", "control", "published")
_GPU = re.compile(r"cuda(:\d+)?")


def overview(done: Reproduction) -> list[str]:
    """Return the parts before the experiments one by one."""
    settled = replace(done, experiments=tuple(record for record in done.experiments if not _is_unfinished(record)))
    return [
        _standing(done),
        _how(done),
        "One by one: " + ", ".join(f"[{named(record.id)}](#{record.id})" for record in done.experiments) + ".",
        *([SMALL] if any(record.preset == QUICK for record in done.experiments) else []),
        "## What holds, and what does not",
        _counts(done),
        RULE,
        *_by_outcome(settled),
        *_unfinished(done),
        "## What the controls say",
        *_controls(settled),
        "## Every claim in numbers",
        "Of each claim the number that decides it: one whose control passes as well if there is any, else a failing "
        "one (of a claim that stays open the one that might yet pass), else the one nearest to its threshold.",
        _claims(done),
    ]


SMALL = (
    "> **Small size.** Where the preset is `quick` models are small, training is short and the text is what comes with "
    "Python: it shows that everything works, and which way things point."
)


RULE = (
    "A claim holds if in every setting all numbers that decide pass their thresholds and no control does; it holds "
    "under conditions if it passes in some settings and not in others, with a control that passes as well, or while a "
    "part of what it says was not tested; it is refuted if it passes in none, or fails in one where its own words "
    "allow no exception; it is inconclusive at this size where seeds are asked and do not tell, a number or its "
    "control is missing, or nothing follows from what was measured for the claim. In the tables a number in bold fails "
    "its threshold, and one marked *beside* does not decide."
)


def claim_anchor(record: Record, verdict: Verdict) -> str:
    """Name of the place of a claim in the document."""
    return f"{record.id}--{verdict.id}"


def device_in_words(device: str) -> str:
    """Return what computed a result as a sentence names it.

    >>> device_in_words("cuda:0 (NVIDIA H200) and cpu"), device_in_words("cuda")
    ('a GPU (NVIDIA H200) and the CPU', 'a GPU')
    """
    words = [_GPU.sub("a GPU", each) if each != "cpu" else "the CPU" for each in device.split(" and ")]
    return enumerated(list(dict.fromkeys(words)))


def numbers(evidence: Evidence | None, *, judged: bool) -> tuple[str, str, str, str]:
    """Measured value, threshold, control and published value; where they are `judged`, one that fails says so."""
    if evidence is None:
        return "", "", "", ""
    value = _digits(evidence.value)
    return (
        f"**{value}** (fails)" if judged and not evidence.holds else value,
        f"{'≥' if evidence.at_least else '≤'} {_digits(evidence.threshold)}",
        _digits(evidence.control),
        _digits(evidence.published),
    )


def _digits(value: float | None) -> str:
    return short(None if value is None else value + 0.0, DIGITS)  # no -0


def _is_unfinished(record: Record) -> bool:
    return record.status is Status.UNFINISHED


def _standing(done: Reproduction) -> str:
    """Say which experiments are whole, which are parts, and which are not there, before anything else is said."""
    records = {record.id: record for record in done.experiments}

    def those(chosen: Callable[[Record], bool]) -> list[str]:
        return [_with_part(record) for record in done.experiments if chosen(record)]

    whole = those(lambda record: record.status is Status.DONE)
    others = {
        "In part, and deciding nothing yet": those(lambda record: bool(record.part)),
        "Begun, with nothing to show yet": those(lambda record: _is_unfinished(record) and not record.part),
        "Not run, since something is missing": those(lambda record: record.status is Status.NOT_RUN),
        "Not run yet": [named(name) for name in find() if name not in records],
    }
    if not any(others.values()):
        return "All experiments are whole."
    told = {"Whole": whole or ["none"], **others}
    return "> **Not all experiments are whole.** " + " ".join(
        f"{what}: {enumerated(names)}." for what, names in told.items() if names
    )


def _with_part(record: Record) -> str:
    return f"{named(record.id)} ({record.part})" if record.part else named(record.id)


def _how(done: Reproduction) -> str:
    computed = [record for record in done.experiments if record.is_shown]
    presets = _shared(done.experiments, lambda record: f"`{record.preset}`")
    devices = _shared(computed, lambda record: f"on {device_in_words(record.device)}")
    return (
        "The figures and the table of the JoMA paper (arXiv:2310.00535v3), rebuilt by `joma reproduce` with the preset "
        f"{presets}: {duration(done.seconds)} of computing"
        + (f" {devices}" if computed else "")
        + ". Thresholds stood in the code before the results. A control is the same number where the claim's cause is "
        "absent: one that does as well as the claim speaks against it. Tables are in [`results/`](../results), and "
        "`joma reproduce` makes all of it again."
    )


def _shared(records: tuple[Record, ...] | list[Record], word: Callable[[Record], str]) -> str:
    """One word where all records share it, else each word with the experiments that it is said of."""
    by_word: dict[str, list[str]] = {}
    for record in records:
        by_word.setdefault(word(record), []).append(named(record.id))
    if len(by_word) == 1:
        return next(iter(by_word))
    return ", and ".join(f"{each} for {enumerated(names)}" for each, names in by_word.items())


def _counts(done: Reproduction) -> str:
    settled = [verdict for record, verdict in _with_records(done) if not _is_unfinished(record)]
    each = by_kind(settled, lambda verdict: verdict)
    told = [f"Of {counted(len(own), kind.value, kind.several)} {_outcomes(own)}." for kind, own in each.items()]
    text = " ".join(told) or "Nothing was judged."
    text += _with_controls(settled)
    if left := [_with_part(record) for record in done.experiments if _is_unfinished(record)]:
        text += f" The claims of {enumerated(left)} are not among them: nothing is decided before all of it is done."
    return text


def _with_controls(settled: list[Verdict]) -> str:
    """Say beside how many claims that hold under conditions a control passes too, and how many have no other number."""
    marked = [verdict for verdict in settled if verdict.outcome is Outcome.CONDITIONAL and verdict.control_passes]
    if not marked:
        return ""
    alike = sum(map(_is_matched, marked))
    have, lack = ("has" if count == 1 else "have" for count in (len(marked), alike))
    told = f" Of those that hold under conditions {len(marked)} {have} a control that passes too"
    return told + (f"; {alike} of them {lack} no number that passes where its control fails." if alike else ".")


def _outcomes(verdicts: list[Verdict]) -> str:
    found = Counter(verdict.outcome for verdict in verdicts)
    counts = [(outcome, found[outcome]) for outcome in Outcome if found[outcome]]
    return enumerated([f"{count} {COUNTED[outcome][count > 1]}" for outcome, count in counts])


def _is_matched(verdict: Verdict) -> bool:
    """Whether it passes, and so does a control, with no number beyond that."""
    return verdict.outcome is Outcome.CONDITIONAL and verdict.control_passes and not shows_beyond_controls(verdict)


def _with_records(done: Reproduction) -> Iterator[tuple[Record, Verdict]]:
    for record in done.experiments:
        for verdict in record.verdicts:
            yield record, verdict


def _by_outcome(done: Reproduction) -> Iterator[str]:
    for heading in HEADINGS:
        judged = [(record, verdict) for record, verdict in _with_records(done) if _heading(verdict) == heading]
        if judged:
            yield f"### {heading}"
            yield "\n".join(_explained(judged) if heading in EXPLAINED else _listed(judged))


def _heading(verdict: Verdict) -> str:
    return PASSES_ALIKE if _is_matched(verdict) else BY_OUTCOME[verdict.outcome]


def _explained(judged: list[tuple[Record, Verdict]]) -> Iterator[str]:
    for record, verdict in judged:
        link = _named_link(record, verdict)
        yield f"- {link if _is_matched(verdict) else _marked(link, verdict)}. {_why(verdict)}"


def _listed(judged: list[tuple[Record, Verdict]]) -> Iterator[str]:
    links: dict[str, list[str]] = {}
    for record, verdict in judged:
        links.setdefault(named(record.id), []).append(_marked(_link(record, verdict), verdict))
    for name, own in links.items():
        yield f"- {name}: {'; '.join(own)}"


def _unfinished(done: Reproduction) -> Iterator[str]:
    """Name the claims that rest on a part; of what has none, say why.

    What a part leaves to do is told to whoever runs it: minutes of that machine are no news here.
    """
    left = [record for record in done.experiments if _is_unfinished(record)]
    if left:
        yield "### Unfinished"
        yield "\n".join(
            f"- {_with_part(record)}: {'; '.join(_link(record, verdict) for verdict in record.verdicts)}"
            + ("" if record.part else f". {escaped(record.reason)}")
            for record in left
        )


def _link(record: Record, verdict: Verdict) -> str:
    return f"[{escaped(verdict.title)}](#{claim_anchor(record, verdict)})"


def _marked(text: str, verdict: Verdict) -> str:
    """Say beside a claim that it is not the paper's own, and that a control passes too."""
    remarks = [FURTHER] * (kind_of(verdict) is ClaimKind.FURTHER) + [MATCHED] * verdict.control_passes
    return f"{text} ({', '.join(remarks)})" if remarks else text


def _named_link(record: Record, verdict: Verdict) -> str:
    """A link that says of which experiment it is, once."""
    name = named(record.id)
    return ("" if verdict.title.startswith(name) else f"{name}: ") + _link(record, verdict)


def _why(verdict: Verdict) -> str:
    """What holds in its place, else why it does not as it stands."""
    if verdict.correction:
        return f"What holds: {escaped(verdict.correction.rstrip('.'))}."
    return escaped(first_sentence(verdict.explanation))


def _controls(done: Reproduction) -> Iterator[str]:
    """Say which claims' numbers come out as well without the claim's cause."""
    controlled = sum(row.control is not None for verdict in done.verdicts for row in verdict.evidence)
    alike = [
        (record, verdict, [row for row in verdict.evidence if row.holds and row.control_holds])
        for record, verdict in _with_records(done)
    ]
    count = sum(len(rows) for _, _, rows in alike)
    if not count:
        yield f"Numbers with a control beside them: {controlled}. No control passes a threshold that its claim passes."
        return
    yield (
        f"Numbers with a control beside them: {controlled}. In {count} of them the claim's number passes the threshold "
        "and the control's does too, so that passing it shows nothing of the claim's cause:"
    )
    yield "\n".join(f"- {_named_link(record, verdict)}: {_beside(rows)}" for record, verdict, rows in alike if rows)


def _beside(rows: list[Evidence]) -> str:
    first, *others = rows
    value, threshold, control, _ = numbers(first, judged=False)
    more = f"; and {len(others)} more" if others else ""
    name = f" ({escaped(first.control_name)})" if first.control_name else ""
    return f"{escaped(first.name)}: {value}, control {control}{name}, threshold {threshold}{more}."


def _claims(done: Reproduction) -> str:
    rows = [
        [
            f"[{named(record.id)}](#{record.id})",
            _link(record, verdict),
            record.label if _is_unfinished(record) else _marked(verdict.outcome.value, verdict),
            _statistic(verdict.decisive),
            *numbers(verdict.decisive, judged=record.status is Status.DONE),
        ]
        for record, verdict in _with_records(done)
    ]
    return table(CLAIM_COLUMNS, rows)


def _statistic(evidence: Evidence | None) -> str:
    """What the numbers of a row are numbers of."""
    if evidence is None:
        return "no number"
    return escaped(f"{evidence.name} ({evidence.unit})" if evidence.unit else evidence.name)
