"""The verdicts of figure 8: the best learning rate, the collapse, and what the regime foretells."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pandas as pd

from joma.experiments.experiment import Result
from joma.experiments.language_model_config import UNTRAINED, Config
from joma.experiments.language_model_settings import NOTHING_YET, absent, by_depth
from joma.experiments.learning_rate_dips import dip_verdict, dips_on, lacking_rates
from joma.experiments.learning_rates import ANY_RULE, LOSS_RULE, REGIME_RULE, SHARES, of_rates, settled_from
from joma.experiments.rebound_shares import REBOUNDS, decided, id_on, size_in_words
from joma.figures.numbers import counted, fewest_letters
from joma.verdicts import Evidence, Verdict, finding, ruling

SOURCE = "Section 6, Figure 8"
REGRET = 0.03
"""Nats by which the learning rate that a rule chooses may end above the best one."""
EARLY = 0.5
"""Part of the training up to which a prediction is early."""
SOONER = min(later - sooner for sooner, later in pairwise(SHARES)) / 2
"""Part of the training by which a rule must be sooner: at all, and so by one of the parts that are looked at."""


def rate_verdicts(result: Result, config: Config, text: str) -> Iterator[Verdict]:
    """Judge all claims on learning rates."""
    yield best_verdict(result, config, text)
    yield collapse_verdict(result, config, text)
    yield dip_verdict(result, config, text)
    yield regime_verdict(result, config, text)
    yield early_verdict(result, config, text)


def best_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether the paper's learning rate gives the lowest loss."""
    runs = result.tables["runs"]
    lacking = lacking_rates(result, config, text)
    losses = dips_on(result, text).set_index("lr")["best_loss"]
    evidence = [] if lacking else [_best_and_others(losses, runs, config, text)]
    lacking += absent(by_depth(config, text, [config.rate_depth], UNTRAINED), runs)
    told = ", ".join(f"{loss:.3f} at {fewest_letters(lr)}" for lr, loss in losses.items())
    return decided(ruling(map(finding, evidence)), config, lacking).verdict(
        id=id_on("figure8-best", text),
        title="The best learning rate",
        source=SOURCE,
        claim="Learning rate 1e-4 gives the lowest validation loss.",
        explanation=f"{size_in_words(config, text, lacking)} "
        + (f"Lowest losses by learning rate: {told}." if told else NOTHING_YET),
        correction=f"the lowest loss is that of learning rate {fewest_letters(losses.idxmin())}: {told}"
        if evidence
        else "",
        evidence=evidence,
    )


def _best_and_others(losses: pd.Series, runs: pd.DataFrame, config: Config, text: str) -> Evidence:
    others = losses.drop(config.rate)
    untrained = of_rates(runs, config, text, UNTRAINED)["best_loss"].mean()
    return Evidence(
        name=f"lowest loss at {fewest_letters(config.rate)} less that of the best other learning rate, "
        f"{fewest_letters(others.idxmin())}",
        against="zero",
        unit="nats, means over seeds",
        value=float(losses[config.rate] - others.min()),
        threshold=0.0,
        control=float(untrained - others.min()),
        control_name=UNTRAINED,
    )


def collapse_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether attention collapses at the largest learning rate, and not at the usual one."""
    dips = dips_on(result, text).set_index("lr")
    largest = max(config.rates)
    name, usual_name = fewest_letters(largest), fewest_letters(config.rate)
    shares = {lr: float(dips["collapsed"].get(lr, math.nan)) for lr in (largest, config.rate)}
    evidence = Evidence(
        name=f"curves that collapse at learning rate {name}",
        against="the regime of each curve",
        unit="share of layers and seeds",
        value=shares[largest],
        threshold=REBOUNDS,
        at_least=True,
        control=shares[config.rate],
        control_name=f"learning rate {usual_name}",
    )
    lacking = lacking_rates(result, config, text)
    is_there = all(each.lr != largest for each in lacking)
    runs = of_rates(result.tables["runs"], config, text)
    failed = int(((runs["lr"] == largest) & (runs["failed_at"] >= 0)).sum())
    told = "; ".join(
        f"{fewest_letters(lr)}: {row.usual_kind}, ends at {row.end_entropy:.2f}" for lr, row in dips.iterrows()
    )
    return decided(ruling([finding(evidence)]), config, lacking).verdict(
        id=id_on("figure8-collapse", text),
        title="Large learning rates collapse attention",
        source=SOURCE,
        claim="With a large learning rate attention becomes extremely sparse.",
        explanation=f"{size_in_words(config, text, lacking)} "
        + (
            f"What most layers do, and their mean entropy at the end, by learning rate: {told}."
            if told
            else NOTHING_YET
        )
        + (f" {counted(failed, 'run') if failed else 'No run'} diverged at {name}." if is_there else ""),
        correction=f"curves that collapse: {shares[largest]:.0%} at learning rate {name}, "
        f"{shares[config.rate]:.0%} at {usual_name}",
        evidence=(evidence,) if is_there else (),
    )


def regime_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether the learning rates whose attention dips and rebounds are the ones with the lowest loss."""
    lacking = lacking_rates(result, config, text)
    last = _rules(result, text).query("share == 1").set_index("rule").reindex([REGIME_RULE, ANY_RULE])
    evidence = Evidence(
        name=f"regret of the learning rates that rebound most: {last.loc[REGIME_RULE, 'choice']}",
        against="the best learning rate",
        unit="nats",
        value=float(last.loc[REGIME_RULE, "regret"]),
        threshold=REGRET,
        control=float(last.loc[ANY_RULE, "regret"]),
        control_name="any learning rate",
    )
    told = ", ".join(f"{row.rebounding:.0%} at {fewest_letters(row.lr)}" for row in dips_on(result, text).itertuples())
    return decided(ruling([finding(evidence)]), config, lacking).verdict(
        id=id_on("figure8-regime", text),
        title="The regime goes with the lowest loss",
        source=SOURCE,
        claim="The attention patterns that agree with the theory give the lowest validation losses.",
        explanation=f"{size_in_words(config, text, lacking)} "
        + (f"Curves that rebound, by learning rate: {told}." if told else NOTHING_YET),
        correction=f"learning rates that rebound most end {evidence.value:.3f} nats above the best one, any learning "
        f"rate {evidence.control:.3f}",
        evidence=() if lacking else (evidence,),
    )


def early_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether the regime tells the best learning rate early, and earlier than the loss itself."""
    lacking, rules = lacking_rates(result, config, text), _rules(result, text)
    regime, loss = (settled_from(rules, text, rule, REGRET) for rule in (REGIME_RULE, LOSS_RULE))
    early = Evidence(
        name="part of the training after which the regime tells the best learning rate for good",
        against=f"a regret of at most {REGRET} nats",
        unit="part of the training",
        value=regime,
        threshold=EARLY,
    )
    sooner = Evidence(
        name="by how much sooner than the lowest loss so far tells it",
        against="reading the loss",
        unit="part of the training",
        value=loss - regime if regime < math.inf else -math.inf,
        threshold=SOONER,
        at_least=True,
    )
    return decided(ruling([finding(early)], besides=[finding(sooner)]), config, lacking).verdict(
        id=id_on("figure8-early", text),
        title="The regime as an early sign",
        source="Figure 8, asked further",
        claim="The regime of the entropy tells the best learning rate early in training.",
        explanation=f"{size_in_words(config, text, lacking)} Reading the loss so far is the rule to beat: a sign that "
        "comes no sooner adds nothing.",
        correction=f"{_settled_in_words('the regime', regime)}; {_settled_in_words('the lowest loss so far', loss)}",
        evidence=() if lacking else (early, sooner),
    )


def _settled_in_words(rule: str, settled: float) -> str:
    """Tell from when on a rule chooses well."""
    if settled == math.inf:
        return f"{rule} never tells the best learning rate for good"
    return f"{rule} tells the best learning rate after {settled:g} of the training"


def _rules(result: Result, text: str) -> pd.DataFrame:
    rules = result.tables["rules"]
    return rules[rules["text"] == text]
