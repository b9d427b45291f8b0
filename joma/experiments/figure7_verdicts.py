"""The verdicts of figure 7: shape of the stable rank, its salience, the audit, and the public series."""

from collections.abc import Iterator

import pandas as pd

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
)
from joma.experiments.neox_series import NeoxConfig
from joma.measure.regime import Kind
from joma.probe.findings import Fault
from joma.verdicts import Evidence, Outcome, Ruling, Verdict, finding, ruling

SOURCE = "Section 6, Figure 7"
CLAIM = "The stable rank of the MLP's lower matrix drops and bounces back in top layers, and falls in bottom layers."
MOST_LAYERS = 2 / 3
"""Share of the upper half of the layers that must dip and rebound, and of the lower half that must fall."""
MIN_SALIENCE = 0.02
"""Smallest drop and bounce that matters, as part of the value at the start."""
SHUFFLED_NAME = f"the same checkpoints in {NUM_SHUFFLES} shuffled orders"
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


def _shape_in_words(top: Evidence, bottom: Evidence) -> str:
    return "; ".join(
        f"{row.name}: {row.value:.0%}, with shuffled checkpoints {row.control:.0%}" for row in (top, bottom)
    )


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
        source=SOURCE,
        claim=CLAIM,
        explanation=(
            f"{size}. Layers from the bottom up: {in_words(regimes, OURS, RANK)}. With learning rate 0: "
            f"{in_words(regimes, UNTRAINED, RANK)}. "
            + (_too_small(neox) if small else "It is a series of its own and says nothing of OPT or Pythia.")
        ),
        correction=_shape_in_words(top, bottom),
        evidence=(top, bottom),
        sound=bool((idle["kind"] == Kind.FLAT.value).all()),
    )


def _too_small(neox: NeoxConfig) -> str:
    return f"{neox.num_steps} steps of so small a model do not decide what the paper saw in far larger ones."


def salience(regimes: pd.DataFrame, metric: str, order: str = IN_ORDER) -> float:
    """Mean over top layers of the smaller of fall and rise, as a part of the start; 0 where there is no rebound."""
    chosen = of_series(regimes, OURS, metric, order)
    top = chosen[chosen["part"] == TOP]
    swing = top[["dip_depth", "rebound"]].min(axis=1) / top["start"]
    return float(swing.fillna(0.0).mean())


def salience_verdict(result: Result, *, small: bool) -> Verdict:
    """Judge whether the stable rank drops and bounces more than the entropy does, in the top layers of our series."""
    regimes = result.tables["regimes"]
    rank, entropy = salience(regimes, RANK), salience(regimes, ENTROPY)
    evidence = Evidence(
        name="drop-and-bounce of the stable rank less that of the entropy, top layers",
        against="the entropy of the same layers",
        unit="smaller of fall and rise, as part of the start",
        value=rank - entropy,
        threshold=MIN_SALIENCE,
        at_least=True,
        control=salience(regimes, RANK, SHUFFLED) - salience(regimes, ENTROPY, SHUFFLED),
        control_name=SHUFFLED_NAME,
    )
    neither = max(rank, entropy) < MIN_SALIENCE
    found = ruling([finding(evidence)]).limited(small=small or neither)
    return found.verdict(
        id="figure7-salience",
        title="Stable rank against entropy",
        source=SOURCE,
        claim="The drop and bounce is less salient in the attention patterns than in the stable ranks.",
        explanation=(
            f"Smaller of fall and rise in the top layers, as part of the start: stable rank {rank:.3g}, entropy "
            f"{entropy:.3g}. Entropy from the bottom up: {in_words(regimes, OURS, ENTROPY)}."
            + (f" Neither rebounds by {MIN_SALIENCE:.0%}." if neither else "")
        ),
        correction=f"in top layers the stable rank drops and bounces by {rank:.3g} of its start, the entropy by "
        f"{entropy:.3g}",
        evidence=(evidence,),
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
    regimes, audited = result.tables["regimes"], result.tables["audit"]
    reason = str(result.facts["public_missing"])
    if reason:
        yield _public_verdict(Ruling(Outcome.NOT_RUN), "OPT-2.7B and Pythia-70M/1.4B/6.9B", reason)
    failures = {
        name.removeprefix("failure "): str(text) for name, text in result.facts.items() if name.startswith("failure ")
    }
    scanned = [name for name in dict.fromkeys(regimes["series"]) if name not in (OURS, UNTRAINED)]
    for name in scanned:
        evidence = _shape_evidence(regimes, name)
        flagged = audited[audited["series"].eq(name) & audited["flags_values"].astype(bool)]
        words = f"Stable rank from the bottom up: {in_words(regimes, name, RANK)}. Audit: {len(flagged)} findings."
        words += f" Not all was reached: {failures[name]}" if name in failures else ""
        yield _public_verdict(_shape_ruling(*evidence), name, words, _shape_in_words(*evidence), evidence)
    for name in sorted(failures.keys() - set(scanned)):
        yield _public_verdict(Ruling(Outcome.NOT_RUN), name, failures[name])


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
