"""The verdicts of figure 7: shape of the stable rank, its salience, the audit, and the public series."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from joma.experiments.claim_kinds import FURTHER
from joma.experiments.experiment import Result
from joma.experiments.figure7_regimes import (
    BOTTOM,
    ENTROPY,
    IN_ORDER,
    NUM_SHUFFLES,
    OURS,
    RANK,
    SHUFFLED,
    TOP,
    UNTRAINED,
    in_words,
    of_series,
    turns_of,
)
from joma.experiments.hub_access import without_address
from joma.experiments.neox_series import NeoxConfig
from joma.measure.regime import MIN_REBOUND, Kind
from joma.probe.findings import Fault
from joma.verdicts import Evidence, Finding, Outcome, Ruling, Verdict, finding, ruling

SOURCE = "Section 6, Figure 7"
OWN_SOURCE = f"{SOURCE}, {FURTHER}"
"""Of claims on a model trained here: the paper speaks of OPT and Pythia."""
HERE = "In a small GPT-NeoX too"
CLAIM = "The stable rank of the MLP's lower matrix drops and bounces back in top layers, and falls in bottom layers."
MOST_LAYERS = 2 / 3
"""Share of the upper half of the layers that must dip and rebound, and of the lower half that must fall."""
MIN_SALIENCE = 0.02
"""Smallest drop and bounce that matters, as part of the value at the start."""
LEAST_WITHOUT_TENTHS = 20.0
"""Numbers from which on words leave out what follows the point."""
CORRECTED = "Corrected after the result was seen"
SHUFFLED_NAME = f"the same checkpoints in {NUM_SHUFFLES} shuffled orders"
ABSENT, NO_ENTROPY = "absent ", "no entropy "
"""Beginnings of facts on a public series: what no call can have of it, and why its entropy is not measured."""
LEAST_CAUGHT = 0.95
"""Share of planted duplicates that the audit must find."""


def as_claimed(regimes: pd.DataFrame, series: str, order: str) -> tuple[float, float]:
    """Share of top layers whose stable rank rebounds and of bottom layers where it falls; NaN without layers."""
    chosen = of_series(regimes, series, RANK, order)
    top, bottom = (chosen.loc[chosen["part"] == part, "kind"] for part in (TOP, BOTTOM))
    falling = bottom.isin([Kind.FALLING.value, Kind.COLLAPSED.value])
    return float((top == Kind.REBOUNDING.value).mean()), float(falling.mean())


def _shape_evidence(regimes: pd.DataFrame, series: str) -> tuple[Evidence, Evidence]:
    values, shuffled = as_claimed(regimes, series, IN_ORDER), as_claimed(regimes, series, SHUFFLED)
    names = ("top layers whose stable rank dips and rebounds", "bottom layers whose stable rank falls")
    top, bottom = (
        Evidence(
            name=name,
            against="the regime of each layer's curve",
            unit="share of the layers",
            value=value,
            threshold=MOST_LAYERS,
            at_least=True,
            control=control,
            control_name=SHUFFLED_NAME,
        )
        for name, value, control in zip(names, values, shuffled, strict=True)
    )
    return top, bottom


def _shape_ruling(top: Evidence, bottom: Evidence) -> Ruling:
    """Without the rebound of the top layers, which the theory is about, the claim is refuted; with it, conditional."""
    return ruling([finding(top)], besides=[finding(bottom)])


def _what_the_rank_does(result: Result, series: str) -> str:
    """Say how far the stable rank falls and rises again, in words that do not depend on its regime."""
    turns = turns_of(result.tables["curves"], series, RANK)
    regimes = of_series(result.tables["regimes"], series, RANK, IN_ORDER)
    return "; ".join(
        f"in {part} layers the stable rank falls from {_span(own['first'])} to {_span(own['lowest'])} and rises again "
        f"by {_span(100 * own['rise'] / own['lowest'])} % of that ({_span(100 * own['rise'] / own['first'])} % of the "
        f"start), by the rule {', '.join(dict.fromkeys(regimes.loc[regimes['part'] == part, 'kind']))}"
        for part, own in ((part, turns[turns["part"] == part]) for part in (TOP, BOTTOM))
        if len(own)
    )


def _span(values: pd.Series) -> str:
    """Return the smallest and the largest value, or the one that both are.

    >>> _span(pd.Series([3.541, 8.9])), _span(pd.Series([115.2, 115.4]))
    ('3.5–8.9', '115')
    """
    low, high = (
        f"{value:.0f}" if value >= LEAST_WITHOUT_TENTHS else f"{value:.1f}" for value in (values.min(), values.max())
    )
    return low if low == high else f"{low}–{high}"


def _layer_by_layer(result: Result, series: str, metric: str) -> str:
    """List for each layer its lowest point, where that is, its end, and the rise as part of the lowest point."""
    return "; ".join(
        f"layer {layer} {row.lowest:.3g} at step {row.step:,.0f}, then {row.last:.3g} ({row.rise / row.lowest:+.0%})"
        for layer, row in turns_of(result.tables["curves"], series, metric).iterrows()
    )


def _loss_in_words(loss: pd.DataFrame) -> str:
    """Say from which step on the validation loss rises again, if it does; nothing of a rise that no digit shows."""
    lowest, last = loss.loc[loss["loss"].idxmin()], loss.loc[loss["step"].idxmax()]
    if lowest["step"] == last["step"]:
        return "The validation loss falls to the end. "
    low, high = f"{lowest['loss']:.2f}", f"{last['loss']:.2f}"
    if low == high:
        return ""
    return f"The validation loss rises again from step {lowest['step']:,.0f} on, from {low} to {high}. "


def rank_verdict(result: Result, neox: NeoxConfig, *, small: bool) -> Verdict:
    """Judge the shape of the stable rank in our series; without learning every layer must be flat, or we erred."""
    regimes = result.tables["regimes"]
    top, bottom = _shape_evidence(regimes, OURS)
    idle = regimes[(regimes["series"] == UNTRAINED) & (regimes["metric"] == RANK)]
    size = (
        f"A GPT-NeoX of {result.facts['num_layers']} layers and width {neox.width}, "
        f"{neox.num_steps} steps on {result.facts['text']} (loss {result.facts['first_loss']:.2f} to "
        f"{result.facts['last_loss']:.2f})"
    )
    found = _shape_ruling(top, bottom).limited(small=small)
    return found.verdict(
        id="figure7-rank",
        title="Stable rank over a small GPT-NeoX series",
        source=OWN_SOURCE,
        claim=f"{HERE}, {CLAIM[0].lower()}{CLAIM[1:]}",
        explanation=(
            f"{size}. One seed. Lowest stable rank, and the end: {_layer_by_layer(result, OURS, RANK)}. By the rule, "
            f"which wants a rise of {MIN_REBOUND:.0%} of the fall before: {in_words(regimes, OURS, RANK)}; with "
            f"learning rate 0: {in_words(regimes, UNTRAINED, RANK)}. {_loss_in_words(result.tables['loss'])}"
            + (_too_small(neox) if small else "It is a series of its own and says nothing of OPT or Pythia.")
        ),
        correction=_what_the_rank_does(result, OURS),
        evidence=(top, bottom),
        sound=bool((idle["kind"] == Kind.FLAT.value).all()),
    )


def _too_small(neox: NeoxConfig) -> str:
    return f"{neox.num_steps} steps of so small a model do not decide what the paper saw in far larger ones."


def salience(turns: pd.DataFrame, start: pd.Series) -> float:
    """Mean over top layers of the smaller of fall and rise, as a part of the start, whatever the regime."""
    top = turns[turns["part"] == TOP]
    return float((top[["fall", "rise"]].min(axis=1) / start[top.index]).mean())


def salience_verdict(result: Result, *, small: bool) -> Verdict:
    """Judge whether the stable rank drops and bounces more than the entropy does, in the top layers of our series.

    The start is the first checkpoint, the untrained network, or the median of the first tenth of them, from which
    regimes start and where the rank has lost half already; where the two disagree the question is open. The control is
    the series without learning and not shuffled orders, since unequal values fall and rise in nearly any order.
    """
    regimes, curves = result.tables["regimes"], result.tables["curves"]
    turns, idle = (
        {metric: turns_of(curves, series, metric) for metric in (RANK, ENTROPY)} for series in (OURS, UNTRAINED)
    )
    rank, entropy = (salience(own, own["first"]) for own in turns.values())
    late_rank, late_entropy = (
        salience(own, of_series(regimes, OURS, metric, IN_ORDER).set_index("layer")["start"])
        for metric, own in turns.items()
    )
    evidence = Evidence(
        name="drop-and-bounce of the stable rank less that of the entropy, top layers",
        against="the entropy of the same layers",
        unit="smaller of fall and rise, as part of the first checkpoint",
        value=rank - entropy,
        threshold=MIN_SALIENCE,
        at_least=True,
        control=salience(idle[RANK], idle[RANK]["first"]) - salience(idle[ENTROPY], idle[ENTROPY]["first"]),
        control_name="learning rate 0",
    )
    late = replace(
        evidence,
        unit="smaller of fall and rise, as part of the median of the first tenth of the checkpoints",
        value=late_rank - late_entropy,
    )
    neither = max(rank, entropy) < MIN_SALIENCE
    agree = evidence.holds == late.holds
    found = ruling([finding(evidence, late) if agree else Finding.OPEN]).limited(small=small or neither)
    return found.verdict(
        id="figure7-salience",
        title="Stable rank against entropy",
        source=OWN_SOURCE,
        claim=f"{HERE}, the drop and bounce is less salient in the attention patterns than in the stable ranks.",
        explanation=(
            f"Smaller of fall and rise in the top layers, as part of the first checkpoint: stable rank {rank:.3f}, "
            f"entropy {entropy:.3f}; as part of the median of the first tenth of them {late_rank:.3f} and "
            f"{late_entropy:.3f}{'' if agree else ', and the two do not agree on the claim'}. "
            + (f"Neither comes to {MIN_SALIENCE:.0%} of the first: too little to compare. " if neither else "")
            + f"Lowest entropy, and the end: {_layer_by_layer(result, OURS, ENTROPY)}; by the rule "
            f"{in_words(regimes, OURS, ENTROPY)}. One seed. {CORRECTED}: what is no rebound by the rule counted as 0, "
            "the start was that median alone, and the control shuffled checkpoints."
        ),
        correction=f"in top layers the stable rank drops and bounces by {rank:.3f} of its start, the entropy by "
        f"{entropy:.3f}",
        evidence=(evidence, late),
    )


def audit_verdict(result: Result) -> Verdict:
    """Check our own audit: nothing wrong with the series as trained, and planted duplicates found."""
    table, facts = result.tables["audit"], result.facts
    faults = table[table["series"].eq(OURS) & table["flags_values"].astype(bool)]
    caught = int(facts["num_caught"]) / max(int(facts["num_planted"]), 1)
    is_copy = table["kind"].eq(Fault.IDENTICAL_CHECKPOINT.value)
    evidence = (
        Evidence(
            name="findings in the series trained here",
            against="the checkpoints as the training wrote them",
            unit="findings that flag values",
            value=float(len(faults)),
            threshold=0.0,
            control=float(len(table[is_copy & table["series"].eq(UNTRAINED)])),
            control_name="a series without learning, all copies",
        ),
        Evidence(
            name="planted duplicates that the audit finds",
            against="the last weights put under each other step in turn",
            unit="share",
            value=caught,
            threshold=LEAST_CAUGHT,
            at_least=True,
            control=float(len(table[is_copy & table["series"].eq(OURS)])),
            control_name="duplicates that it finds where none was planted",
        ),
    )
    told = f"{int(facts['num_caught'])} of {int(facts['num_planted'])} planted duplicates found"
    return ruling([finding(*evidence)]).verdict(
        id="figure7-audit",
        title="The series is what it says",
        source="joma",
        claim="The audit passes the series that was trained here, and finds weights that stand under a wrong step.",
        explanation=f"{told}.",
        correction=f"{told}; findings in the series trained here: {len(faults)}",
        evidence=evidence,
        sound=all(each.holds for each in evidence),
    )


def public_verdicts(result: Result) -> Iterator[Verdict]:
    """Yield a verdict for each public series, or one that says what they need."""
    curves, audited = result.tables["curves"], result.tables["audit"]
    reason = without_address(str(result.facts["public_missing"]))  # older results keep the address
    if reason:
        yield _public_verdict(Ruling(Outcome.NOT_RUN), "OPT-2.7B and Pythia-70M/1.4B/6.9B", reason)
    not_had = _not_had(result)
    scanned = [name for name in dict.fromkeys([*curves["series"], *audited["series"]]) if name not in (OURS, UNTRAINED)]
    for name in scanned:
        yield _scanned_verdict(result, name, not_had.get(name, ""))
    for name in sorted(not_had.keys() - set(scanned)):
        yield _public_verdict(Ruling(Outcome.NOT_RUN), name, not_had[name])


def _not_had(result: Result) -> dict[str, str]:
    """Return for each public series of which something could not be had why: now, or by any call."""
    absent = _told_of_series(result, ABSENT)
    return {
        name: " ".join(filter(None, (result.failures.get(name), absent.get(name)))) for name in result.failures | absent
    }


def _told_of_series(result: Result, kind: str) -> dict[str, str]:
    return {name.removeprefix(kind): str(why) for name, why in result.facts.items() if name.startswith(kind)}


def _scanned_verdict(result: Result, name: str, not_had: str) -> Verdict:
    """Judge a public series; one that a later call may complete can hold, and refutes nothing yet."""
    regimes, audited = result.tables["regimes"], result.tables["audit"]
    faults = audited[audited["series"].eq(name) & audited["flags_values"].astype(bool)]
    missed = f" Not all was reached: {not_had}" if not_had else ""
    if of_series(regimes, name, RANK, IN_ORDER).empty:
        words = f"The audit trusts no stable rank of the series: {' '.join(dict.fromkeys(faults['message']))}{missed}"
        return _public_verdict(Ruling(Outcome.INCONCLUSIVE), name, words)
    evidence = _shape_evidence(regimes, name)
    words = (
        f"Stable rank from the bottom up: {in_words(regimes, name, RANK)}. {_entropy_in_words(result, name)} "
        f"Audit: {len(faults)} findings.{missed}"
    )
    found = _shape_ruling(*evidence).limited(small=name in result.failures)
    return _public_verdict(found, name, words, _what_the_rank_does(result, name), evidence)


def _entropy_in_words(result: Result, name: str) -> str:
    """Say what the entropy of a public series does, or why it is not known."""
    regimes = result.tables["regimes"]
    if len(of_series(regimes, name, ENTROPY, IN_ORDER)):
        return f"Attention entropy: {in_words(regimes, name, ENTROPY)}."
    why = _told_of_series(result, NO_ENTROPY).get(name, "The checkpoints show no attention that the audit trusts.")
    return f"Attention entropy was not measured. {why}"


def _public_verdict(
    found: Ruling, name: str, words: str, correction: str = "", evidence: tuple[Evidence, ...] = ()
) -> Verdict:
    short = name.rpartition("/")[2].lower() if "/" in name and " " not in name else "public"
    return found.verdict(
        id=f"figure7-{short}",
        title=f"Stable rank over the checkpoints of {name}",
        source=SOURCE,
        claim=CLAIM,
        explanation=words,
        correction=correction,
        evidence=evidence,
    )
