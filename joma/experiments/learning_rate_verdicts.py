"""The verdicts of figure 8: the best learning rate, the collapse, and what the regime foretells."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pandas as pd

from joma.experiments.experiment import Result
from joma.experiments.language_model_config import UNTRAINED, Config
from joma.experiments.language_model_settings import NOTHING_YET, absent, by_depth
from joma.experiments.learning_rate_dips import dip_verdict, dips_on, entropies_of, lacking_rates, rates_in_words
from joma.experiments.learning_rate_window import window_in_short, window_in_words, window_rows
from joma.experiments.learning_rates import (
    ANY_RULE,
    LOSS_RULE,
    REGIME_RULE,
    SHARES,
    of_rates,
    regrets_by_seed,
    right_and_wrong,
    settled_from,
)
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import (
    REBOUNDS,
    Count,
    decided,
    id_on,
    layers_in_words,
    size_in_words,
    steps_in_words,
)
from joma.figures.numbers import counted, fewest_letters, short
from joma.measure.regime import Kind
from joma.verdicts import Evidence, Verdict, finding, ruling

SOURCE = "Section 6, Figure 8"
REGRET = 0.03
"""Nats by which the learning rate that a rule chooses may end above the best one."""
EARLY = 0.5
"""Part of the training up to which a prediction is early."""
SOONER = min(later - sooner for sooner, later in pairwise(SHARES)) / 2
"""Part of the training by which a rule must be sooner: at all, and so by one of the parts that are looked at."""
BY_SEED = "Each seed is asked by its own curves as well, since the result was seen."


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
    """Judge whether attention collapses at the largest learning rate, and not at the usual one.

    Judged on the whole validation set; what the paper's single window shows stands beside.
    """
    curves = entropies_of(result, config, text)
    by_rate = {lr: own for lr, own in curves.groupby("lr")}
    counts = {lr: Count.of(own, Kind.COLLAPSED) for lr, own in by_rate.items()}
    largest, usual_name = max(config.rates), fewest_letters(config.rate)
    name = fewest_letters(largest)
    rows = {
        lr: count.row(f"curves that collapse at learning rate {fewest_letters(lr)}: {count}", decides=False)
        for lr, count in counts.items()
    }
    lacking = lacking_rates(result, config, text)
    evidence: tuple[Evidence, ...] = ()
    if largest in rows:
        usual = counts[config.rate].share if config.rate in counts else math.nan
        deciding = replace(rows[largest], control=usual, control_name=f"learning rate {usual_name}", decides=True)
        others = (row for lr, row in rows.items() if lr not in (largest, config.rate))
        evidence = (deciding, *others, *window_rows(result, config, text))
    found = ruling([finding(*evidence[:1])])
    runs = of_rates(result.tables["runs"], config, text)
    told = [
        f"What decides is the end, on the whole validation set, over all layers and seeds. What collapses "
        f"({_size(config)}): {_collapses_in_words(by_rate)}.",
        f"Entropy at the end of the lowest and the top layer, in nats, means over seeds: {_ends_in_words(by_rate)}.",
        _largest_in_words(runs[runs["lr"] == largest], name) if largest in rows else "",
        window_in_words(result, config, text),
    ]
    return decided(found, config, lacking).verdict(
        id=id_on("figure8-collapse", text),
        title="Large learning rates collapse attention",
        source=SOURCE,
        claim="With a large learning rate attention becomes extremely sparse.",
        explanation=f"{size_in_words(config, text, lacking)} "
        + (" ".join(filter(None, told)) if by_rate else NOTHING_YET),
        correction="" if lacking else _sparse_in_words(by_rate, largest) + window_in_short(result, config, text),
        evidence=evidence,
    )


def _collapses_in_words(by_rate: dict[float, pd.DataFrame]) -> str:
    """Tell how many curves collapse at each learning rate, and of which layers."""
    told = []
    for lr, curves in by_rate.items():
        collapsed = curves[curves["kind"] == Kind.COLLAPSED.value]
        layers = f" ({layers_in_words(sorted(set(collapsed['layer'].tolist())))})" if len(collapsed) else ""
        told.append(f"{Count.of(curves, Kind.COLLAPSED)} curves at {fewest_letters(lr)}{layers}")
    return ", ".join(told)


def _ends_in_words(by_rate: dict[float, pd.DataFrame]) -> str:
    told = []
    for lr, curves in by_rate.items():
        ends = curves.groupby("layer")["end"].mean()
        told.append(f"{short(ends.iloc[0])} and {short(ends.iloc[-1])} at {fewest_letters(lr)}")
    return ", ".join(told)


def _largest_in_words(runs: pd.DataFrame, name: str) -> str:
    """Tell what becomes of the runs with the largest learning rate: where their loss is lowest, where it ends."""
    failed = int((runs["failed_at"] >= 0).sum())
    diverged = f"{counted(failed, 'run') if failed else 'No run'} diverged at {name}"
    whole = runs[runs["failed_at"] < 0]
    if whole.empty:
        return f"{diverged}."
    best, end = whole["best_loss"].mean(), whole["end_loss"].mean()
    when = steps_in_words(whole["best_step"])
    return f"{diverged}; the lowest loss there is {best:.2f} at {when}, and {end:.2f} at the end."


def _sparse_in_words(by_rate: dict[float, pd.DataFrame], largest: float) -> str:
    """Tell which curves collapse at which learning rates, and how the layers end at the largest."""
    ends = by_rate[largest].groupby("layer")["end"].mean()
    order = ": the lower the layer the sparser" if ends.is_monotonic_increasing and len(ends) > 1 else ""
    collapsing = {lr: own for lr, own in by_rate.items() if (own["kind"] == Kind.COLLAPSED.value).any()}
    told = f"what collapses is {_collapses_in_words(collapsing)}" if collapsing else "no curve collapses"
    return (
        f"{told}; at {fewest_letters(largest)} the layers end at {', '.join(map(short, ends))} nats from the bottom "
        f"up{order}"
    )


def regime_verdict(result: Result, config: Config, text: str) -> Verdict:
    """Judge whether the learning rates whose attention dips and rebounds are the ones with the lowest loss.

    Asked of the mean over seeds, and of each seed, which has to choose by its own curves.
    """
    lacking = lacking_rates(result, config, text)
    early = result.tables["early"]
    by_seed = regrets_by_seed(early[early["text"] == text])
    asked = {"mean over seeds": _rules(result, text), **{f"seed {seed}": own for seed, own in by_seed.groupby("seed")}}
    rows = [] if lacking else [_regret(rules, whose) for whose, rules in asked.items()]
    counts = {lr: Count.of(curves) for lr, curves in entropies_of(result, config, text).groupby("lr")}
    told = ", ".join(f"{count} at {fewest_letters(lr)}" for lr, count in counts.items())
    return decided(ruling([finding(row) for row in rows]), config, lacking).verdict(
        id=id_on("figure8-regime", text),
        title="The regime goes with the lowest loss",
        source=SOURCE,
        claim="The attention patterns that agree with the theory give the lowest validation losses.",
        explanation=f"{size_in_words(config, text, lacking)} "
        + (f"Curves that rebound, by learning rate ({_size(config)}): {told}. {BY_SEED}" if told else NOTHING_YET),
        correction="" if lacking else _separated_in_words(counts, dips_on(result, text), rows, by_seed),
        evidence=rows,
    )


def _regret(rules: pd.DataFrame, whose: str) -> Evidence:
    last = rules[rules["share"] == 1].set_index("rule").reindex([REGIME_RULE, ANY_RULE])
    choice = str(last.loc[REGIME_RULE, "choice"])
    return Evidence(
        name=f"regret of the learning rates that rebound most, {whose}: {choice}"
        + (" (a tie, losses averaged)" if ", " in choice else ""),
        against="the best learning rate",
        unit="nats",
        value=float(last.loc[REGIME_RULE, "regret"]),
        threshold=REGRET,
        control=float(last.loc[ANY_RULE, "regret"]),
        control_name="any learning rate",
    )


def _separated_in_words(
    counts: dict[float, Count], dips: pd.DataFrame, rows: Sequence[Evidence], by_seed: pd.DataFrame
) -> str:
    """Tell whether rebounding tells good learning rates from bad ones, and whether it tells the best of the good."""
    losses = dips.set_index("lr")["best_loss"]
    good = [lr for lr, count in counts.items() if count.share >= REBOUNDS]
    others = [lr for lr in counts if lr not in good]
    chosen = by_seed[(by_seed["share"] == 1) & (by_seed["rule"] == REGIME_RULE) & (by_seed["regret"] > REGRET)]
    misled = "; ".join(_misled_in_words(row.seed, row.choice.split(", "), row.regret) for row in chosen.itertuples())
    if not good or not others or losses[good].max() >= losses[others].min():
        told = f"learning rates that rebound most end {rows[0].value:.3f} nats above the best one, any learning rate "
        return f"{told}{rows[0].control:.3f}" + (f"; {misled}" if misled else "")
    found = "; ".join(f"{fewest_letters(lr)}: {counts[lr]} curves, loss {losses[lr]:.2f}" for lr in good)
    most = max((counts[lr] for lr in others), key=lambda count: count.share)
    return (
        f"rebounding separates {rates_in_words(good)} ({found}) from the other learning rates (at most {most} curves, "
        f"losses from {losses[others].min():.2f} up)"
        + (f"; among these {len(good)} it does not order the losses: {misled}" if misled else "")
    )


def _misled_in_words(seed: int, choice: Sequence[str], regret: float) -> str:
    """Tell by how much a seed's choice is above the best; learning rates at which as many curves rebound are a tie.

    >>> _misled_in_words(2, ["1e-3"], 0.14)
    'seed 2 chooses 1e-3, 0.14 nats above the best'
    >>> _misled_in_words(1, ["5e-5", "1e-3"], 0.06)
    'in seed 1 equally many rebound at 5e-5 and 1e-3, a tie whose losses are on average 0.06 nats above the best'
    """
    if len(choice) == 1:
        return f"seed {seed} chooses {choice[0]}, {regret:.2f} nats above the best"
    return (
        f"in seed {seed} equally many rebound at {enumerated(choice)}, a tie whose losses are on average "
        f"{regret:.2f} nats above the best"
    )


def _size(config: Config) -> str:
    """Tell how many curves a learning rate has."""
    return f"{counted(config.rate_depth, 'layer')} x {counted(len(config.seeds), 'seed')}"


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
        "comes no sooner adds nothing."
        + (
            ""
            if lacking
            else f" By means over seeds, at the parts of the training that are looked at, the regime is "
            f"{_right_in_words(rules, text, REGIME_RULE)}; the lowest loss so far is "
            f"{_right_in_words(rules, text, LOSS_RULE)}."
        ),
        correction=f"{_settled_in_words('the regime', regime)} ({_right_in_words(rules, text, REGIME_RULE)}), "
        f"{_settled_in_words('the lowest loss so far', loss)} ({_right_in_words(rules, text, LOSS_RULE)})",
        evidence=() if lacking else (early, sooner),
    )


def _right_in_words(rules: pd.DataFrame, text: str, rule: str) -> str:
    """Tell after which parts of the training a rule chooses well, and after which it does not."""
    right, wrong = (
        enumerated([f"{share:g}" for share in shares]) for shares in right_and_wrong(rules, text, rule, REGRET)
    )
    return ", ".join(filter(None, (f"right after {right}" * bool(right), f"wrong after {wrong}" * bool(wrong))))


def _settled_in_words(rule: str, settled: float) -> str:
    """Tell from when on a rule chooses well."""
    if settled == math.inf:
        return f"{rule} never tells the best learning rate for good"
    return f"{rule} tells the best learning rate for good after {settled:g} of the training"


def _rules(result: Result, text: str) -> pd.DataFrame:
    rules = result.tables["rules"]
    return rules[rules["text"] == text]
