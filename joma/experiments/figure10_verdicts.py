"""The verdicts of figure 10: pairs of unrelated contexts, several patterns, and the paper's texts in Pythia."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from joma.experiments.experiment import Result
from joma.experiments.figure10_public import UNTRAINED_REVISION
from joma.experiments.hub_access import without_address
from joma.figures.numbers import counted
from joma.verdicts import Evidence, Finding, Outcome, Ruling, Verdict, finding, ruling, seeds_say

TRAINED, UNTRAINED, SHUFFLED = "trained", "untrained", "contexts shuffled"
STANDARD_ERRORS = 4.0
"""By how many the score must exceed that of shuffled contexts, and that of the untrained network."""
LEAST_SHARE = 0.05
"""Share of neurons with a pair of unrelated contexts from which the paper's examples are no exceptions."""
LEAST_DIFFERENCE = 0.05
"""Share of neurons by which the trained network must exceed its controls in pairs of unrelated contexts."""
MOST_SILENT = 0.05
"""Share of silent neurons by which the untrained network may exceed the trained one and still be a strong control.

Shown beside, and set after the result was seen.
"""
SOURCE = "Appendix, Figure 10 and Eqn 60"
CORRECTED = (
    " Corrected after a result was seen: that there are such neurons decides as well, beside its controls. Before, "
    "only what they are beyond the controls was marked as deciding; that fails, and alone it would refute the claim."
)
REACHED = ": what has learned nothing does no worse, and pairs of contexts alone show no superposition"


def pairs_verdict(result: Result) -> Verdict:
    """Judge the claim as figure 10 shows it: two contexts of one neuron, unrelated; controls may show the same.

    Without such neurons it is refuted. With them it holds where no control has them and there are more than in any.
    """
    layers = result.tables["layers"]
    share = {
        name: float(np.average(own["unrelated_pairs"], weights=own["num_neurons"]))
        for name, own in layers.groupby("network")
    }
    controls = (UNTRAINED, SHUFFLED)
    raw = [
        Evidence(
            name="neurons whose two strongest contexts attend to unrelated tokens",
            against="overlap of the attended tokens",
            unit="share of the neurons",
            value=share[TRAINED],
            threshold=LEAST_SHARE,
            at_least=True,
            control=share[control],
            control_name=control,
        )
        for control in controls
    ]
    beyond = [
        Evidence(
            name=f"such neurons beyond those with {control} {'network' if control == UNTRAINED else ''}".rstrip(),
            against="overlap of the attended tokens",
            unit="share of the neurons",
            value=share[TRAINED] - share[control],
            threshold=LEAST_DIFFERENCE,
            at_least=True,
        )
        for control in controls
    ]
    there, learned = finding(*raw), finding(*beyond)
    is_reached = there is Finding.MATCHED and max(share[control] for control in controls) >= share[TRAINED]
    told = f"{share[UNTRAINED]:.0%} before training, {share[SHUFFLED]:.0%} with contexts shuffled"
    return ruling([there], besides=[learned]).verdict(
        id="figure10-pairs",
        title="One neuron, two unrelated contexts",
        source=SOURCE,
        claim="The same neuron can be activated by multiple irrelevant combinations of tokens.",
        explanation=f"The two contexts that fire a neuron most attend to unrelated tokens for {share[TRAINED]:.0%} of "
        f"the neurons; for {told}." + CORRECTED * (learned is Finding.FAILED and there is not Finding.FAILED),
        correction=(f"{share[TRAINED]:.0%} of the neurons have such a pair, {told}" + (REACHED if is_reached else "")),
        evidence=(*raw, *beyond),
    )


def _pooled(layers: pd.DataFrame, network: str, column: str) -> tuple[float, float]:
    """Mean over all neurons of a network, with its standard error."""
    own = layers[layers["network"] == network]
    count = own["num_neurons"].to_numpy(dtype=float)
    error = float(np.sqrt(np.square(count * own["error"]).sum()) / count.sum())
    return float(np.average(own[column], weights=count)), error


def _in_errors(difference: float, error: float) -> float:
    """Difference in standard errors; one that is zero counts as none."""
    return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0


def patterns_verdict(result: Result) -> Verdict:
    """Judge superposition proper: several patterns that recur, against chance and the untrained network."""
    layers = result.tables["layers"]
    (excess, error), (idle, idle_error) = (_pooled(layers, name, "excess") for name in (TRAINED, UNTRAINED))
    (score, _), (idle_score, _) = (_pooled(layers, name, "score") for name in (TRAINED, UNTRAINED))
    above_chance = Evidence(
        name="score of superposition above that of firing dealt to random contexts",
        against="random contexts",
        unit="standard errors",
        value=_in_errors(excess, error),
        threshold=STANDARD_ERRORS,
        at_least=True,
        control=_in_errors(idle, idle_error),
        control_name="the untrained network",
    )
    above_untrained = Evidence(
        name="score of superposition above that of the untrained network",
        against="the same network before training",
        unit="standard errors",
        value=_in_errors(score - idle_score, math.hypot(error, idle_error)),
        threshold=STANDARD_ERRORS,
        at_least=True,
        control=0.0,
        control_name="the untrained network against itself",
    )
    # Too few neurons with patterns to tell from chance refute nothing.
    chance = seeds_say(above_chance.holds or None, above_chance)
    counts = layers.groupby("network")[["one_pattern", "several_patterns", "num_neurons", "num_silent"]].sum()
    silent = counts["num_silent"] / counts["num_neurons"]
    more_silent = Evidence(
        name="silent neurons, which can have no pattern: untrained less trained",
        against="the same network before training",
        unit="share of the neurons",
        value=float(silent[UNTRAINED] - silent[TRAINED]),
        threshold=MOST_SILENT,
        decides=False,
    )
    told = "; ".join(
        f"{name}: {row.several_patterns} of {row.num_neurons} neurons with several patterns, {row.one_pattern} with one"
        for name, row in counts.loc[[TRAINED, UNTRAINED, SHUFFLED]].iterrows()
    )
    return ruling([chance], besides=[finding(above_untrained)]).verdict(
        id="figure10-patterns",
        title="One neuron, several patterns",
        source=SOURCE,
        claim="One weight vector holds several query tokens with their pattern templates.",
        explanation=f"{told}. {result.facts['num_contexts']} contexts of {result.facts['text']}, one seed. "
        f"{_strength_in_words(int(counts.loc[TRAINED, 'several_patterns']), above_chance)} Silent neurons: "
        f"{silent[UNTRAINED]:.0%} untrained, {silent[TRAINED]:.0%} trained"
        + ("." if more_silent.holds else ", so that the untrained network is a weak control."),
        correction=f"the score is {above_chance.value:.1f} standard errors above that of random contexts, before "
        f"training {above_chance.control:.1f}; above the untrained network's it is by {above_untrained.value:.1f}",
        evidence=(above_chance, above_untrained, more_silent),
    )


def _strength_in_words(num_neurons: int, above_chance: Evidence) -> str:
    r"""Say what a result in standard errors between neurons rests on: how many neurons have several patterns.

    If $n$ of $N$ scores are about $s$ and the others 0, their mean is $ns/N$ and its standard error $s\sqrt n/N$.
    """
    if not num_neurons:
        return "No neuron has several patterns, and there is nothing to hold against chance."
    margin = above_chance.value - STANDARD_ERRORS
    return (
        f"The result rests on {counted(num_neurons, 'neuron')} of one model, taken as independent: "
        f"{above_chance.value:.2f} standard errors, where {STANDARD_ERRORS:g} were demanded, so that it "
        f"{'passes' if above_chance.holds else 'fails'} by {abs(margin):.2f}. As n neurons with scores nearly alike, "
        "and no score in the others, are √n standard errors above zero whatever the scores, the demand amounts to at "
        f"least {STANDARD_ERRORS**2:g} such neurons (seen after the result): √{num_neurons} is "
        f"{math.sqrt(num_neurons):.2f}."
    )


def public_verdicts(result: Result) -> Iterator[Verdict]:
    """Yield a verdict for each Pythia, or one that says what they need."""
    pairs = result.tables["pairs"]
    if reason := without_address(str(result.facts["public_missing"])):  # older results keep the address
        yield _public_verdict(Ruling(Outcome.NOT_RUN), "Pythia-70M and Pythia-160M", "public", reason)
    for name, failure in result.failures.items():
        yield _public_verdict(Ruling(Outcome.NOT_RUN), name, name.rpartition("/")[2], failure)
        pairs = pairs[pairs["model"] != name]
    for name, own in pairs.groupby("model"):
        yield _pythia_verdict(str(name), own)


def _pythia_verdict(name: str, own: pd.DataFrame) -> Verdict:
    """Every pair of the paper needs a neuron, and more of them than before training."""
    counts = own.pivot(index="pair", columns="revision", values="num_shared")
    raw = {
        str(pair): Evidence(
            name=f"neurons that fire for both: {pair}",
            against="firing over all positions of the eight texts",
            unit="neurons",
            value=float(row["main"]),
            threshold=1.0,
            at_least=True,
            control=float(row[UNTRAINED_REVISION]),
            control_name=f"revision {UNTRAINED_REVISION}",
        )
        for pair, row in counts.iterrows()
    }
    more = [
        replace(
            row,
            name=f"neurons that fire for both beyond those before training: {pair}",
            value=row.value - (row.control or 0.0),
            control=None,
            control_name="",
        )
        for pair, row in raw.items()
    ]
    told = "; ".join(f"{pair}: {row.value:.0f}, before training {row.control:.0f}" for pair, row in raw.items())
    return _public_verdict(
        ruling(map(finding, raw.values()), besides=map(finding, more), everywhere=True),
        name,
        name.rpartition("/")[2],
        f"Neurons that fire for both texts. {told}.",
        correction=f"neurons that fire for both texts: {told}",
        evidence=(*raw.values(), *more),
    )


def _public_verdict(
    found: Ruling, name: str, short: str, words: str, *, correction: str = "", evidence: tuple[Evidence, ...] = ()
) -> Verdict:
    return found.verdict(
        id=f"figure10-{short}",
        title=f"The paper's eight texts in {name}",
        source=SOURCE,
        claim="The same neuron is activated by both texts of each pair, which attend to unrelated tokens.",
        explanation=words,
        correction=correction,
        evidence=evidence,
    )
