"""The verdicts of figures 2 and 3: correlation, size, the two terms alone, and who wins."""

from joma.experiments.experiment import Result
from joma.experiments.figures2_3_measure import LEARNED, NOT_LEARNED, OTHER, SHUFFLED
from joma.experiments.figures2_3_training import CONSTANT, ESTIMATE, FIRST, SECOND, Config
from joma.verdicts import Evidence, Finding, Ruling, Verdict, finding, ruling

HIGH = 0.9
"""Correlation from which on a reader of figure 2 would call it high."""
CLOSE = 0.3
"""Relative error up to which the estimate predicts 'fairly well'."""
UNCORRELATED = 0.5
"""Correlation up to which a component alone 'does not' correlate."""
FEW = 0.5
"""Share of the components up to which 'only some' of them grow."""
ROUNDING = 1e-12
"""Largest change of the sum of the logits, which every step conserves exactly."""


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge what figures 2 and 3 claim."""
    return (
        _correlates(result, config),
        _is_close(result, config),
        _components(result, config),
        _winner_takes_all(result, config),
    )


def _logit_sum(result: Result) -> Evidence:
    """Our own check: what every step conserves."""
    return Evidence(
        name="sum of the logits, which every step of gradient descent conserves",
        against="training",
        unit="largest change",
        value=float(result.facts["logit_sum_drift"]),
        threshold=ROUNDING,
        decides=False,
    )


def _at_this_size(found: Ruling, config: Config) -> Ruling:
    return found.undecided() if config.is_small else found


def _fact(result: Result, law: str, name: str) -> float:
    return float(result.facts[f"{law}: {name}"])


def _by_law(values: dict[str, float], digits: str) -> str:
    return ", ".join(f"{value:{digits}} ({law})" for law, value in values.items())


def _facts(result: Result, config: Config, name: str) -> dict[str, float]:
    return {law: _fact(result, law, name) for law in config.laws}


def _correlates(result: Result, config: Config) -> Verdict:
    controls = {
        OTHER: f"correlation of {OTHER}",
        SHUFFLED: f"correlation of {SHUFFLED}",
        "untrained layer": "untrained",
    }
    by_law = {
        law: [
            Evidence(
                name=f"correlation of ẑ with z at the end, {law} tokens",
                against="training",
                unit="correlation, mean over seeds",
                value=_fact(result, law, f"correlation of {ESTIMATE}"),
                threshold=HIGH,
                at_least=True,
                control=_fact(result, law, fact),
                control_name=name,
            )
            for name, fact in controls.items()
        ]
        for law in config.laws
    }
    findings = {law: finding(*rows) for law, rows in by_law.items()}
    check = _logit_sum(result)
    own = _by_law(_facts(result, config, f"correlation of {ESTIMATE}"), ".3f")
    others = _by_law(_facts(result, config, f"correlation of {OTHER}"), ".3f")
    return _at_this_size(ruling(findings.values()), config).verdict(
        id="fig2-correlation",
        title="The estimate correlates with the logits",
        source="Section 3, figure 2",
        claim="ẑ_m(t) of Theorem 1 shows high correlation with the true logits z_m(t), despite the assumption on b̄_m",
        explanation=(
            f"The correlation at the end is {own}; with the logits of another run, trained on other draws of the "
            f"same law, it is {others}. Where the two are alike the data decide both sides, and the correlation says "
            "nothing of the run's own law; where only the first is high, it does."
        ),
        correction="; ".join(_correlation_said(law, found) for law, found in findings.items()),
        evidence=(*(row for rows in by_law.values() for row in rows), check),
        sound=check.holds,
    )


def _correlation_said(law: str, found: Finding) -> str:
    said = {
        Finding.SHOWN: "ẑ correlates with z, and no control does",
        Finding.MATCHED: "ẑ correlates with z, and so does a control, so that the data alone may decide both",
        Finding.FAILED: "it does not",
        Finding.OPEN: "it was not measured",
    }
    return f"on {law} tokens {said[found]}"


def _is_close(result: Result, config: Config) -> Verdict:
    def evidence(law: str, when: str) -> Evidence:
        suffix, at = (", early", "at a quarter of the training") if when == "early" else ("", "at the end")
        return Evidence(
            name=f"relative L2 error of ẑ {at}, {law} tokens",
            against="training",
            unit="relative error, mean over seeds",
            value=_fact(result, law, f"error of {ESTIMATE}{suffix}"),
            threshold=CLOSE,
            control=_fact(result, law, f"error of {CONSTANT}{suffix}"),
            control_name="no estimate: the constant c alone",
        )

    early, late = ([evidence(law, when) for law in config.laws] for when in ("early", "late"))
    found = ruling([finding(row) for row in early], besides=[finding(row) for row in late])
    check = _logit_sum(result)
    at_first, at_last, idle = (
        _by_law(_facts(result, config, f"error of {name}"), ".2f")
        for name in (f"{ESTIMATE}, early", ESTIMATE, CONSTANT)
    )
    moved = _by_law(_facts(result, config, "attention moved"), ".2f")
    slow = [result.facts.get(f"slower, {law}: error of {ESTIMATE}") for law in config.laws]
    same = (
        ""
        if None in slow
        else f" (at 1/{config.slower} of the learning rate {', '.join(f'{float(v or 0):.2f}' for v in slow)})"
    )
    return _at_this_size(found, config).verdict(
        id="fig2-close",
        title="The estimate predicts the logits",
        source="Section 3, text below Theorem 1",
        claim="for softmax attention the invariance of Theorem 1 still predicts z_m(t) fairly well",
        explanation=(
            f"Its relative error at the end is {at_last}{same}, where the constant alone, no estimate at all, has "
            f"{idle}. The estimate takes b̄ as constant, and the mean attention moves by {moved} in L1 (2 is the most)."
        ),
        correction=(
            f"at a quarter of the training it {predicts_in_words(early)}, with a relative error of {at_first}; at the "
            f"end it {predicts_in_words(late)}, with {at_last}, where no estimate at all has {idle}"
        ),
        evidence=(*late, *early, check),
        sound=check.holds,
    )


def predicts_in_words(rows: list[Evidence]) -> str:
    """Say whether the estimate predicts the logits on all tokens, on some, on none, or was not measured."""
    findings = {finding(row) for row in rows}
    passing = findings & {Finding.SHOWN, Finding.MATCHED}
    if passing:
        return "predicts the logits" if findings == passing else "predicts some of the logits"
    return "does not predict the logits" if Finding.FAILED in findings else "was not measured"


def _components(result: Result, config: Config) -> Verdict:
    by_law = {
        law: [
            Evidence(
                name=f"correlation of z with ẑ's {name} at the end, {law} tokens",
                against="training",
                unit="correlation, mean over seeds",
                value=_fact(result, law, f"correlation of {name}"),
                threshold=UNCORRELATED,
                control=_fact(result, law, f"correlation of {ESTIMATE}"),
                control_name="both terms together",
            )
            for name in (FIRST, SECOND)
        ]
        for law in config.laws
    }
    check = _logit_sum(result)
    first, second, both = (
        _by_law(_facts(result, config, f"correlation of {name}"), ".3f") for name in (FIRST, SECOND, ESTIMATE)
    )
    return _at_this_size(ruling(finding(*rows) for rows in by_law.values()), config).verdict(
        id="fig2-components",
        title="Neither term of the estimate correlates alone",
        source="Caption of figure 2",
        claim="its two components ẑ_m1 = ½Σ_k v_k² and ẑ_m2 = −½Σ_k ‖v_k‖² b̄_m do not correlate highly with z_m",
        explanation=f"At the end the first term alone has {first}, the second {second}, both together {both}.",
        correction=f"the first term alone {_term_said(result, config, FIRST)}; the second alone "
        f"{_term_said(result, config, SECOND)}; both together: {both}",
        evidence=(*(row for rows in by_law.values() for row in rows), check),
        sound=check.holds,
    )


def _term_said(result: Result, config: Config, name: str) -> str:
    found = _facts(result, config, f"correlation of {name}")
    is_low = max(found.values()) <= UNCORRELATED
    return f"{'does not correlate' if is_low else 'correlates'} with z: {_by_law(found, '.3f')}"


def _winner_takes_all(result: Result, config: Config) -> Verdict:
    some = [
        Evidence(
            name=f"components of v₀ that still grow over the second half, {law} tokens",
            against="training",
            unit="share of the tokens, mean over seeds",
            value=_fact(result, law, f"growing, attention {LEARNED}"),
            threshold=FEW,
            control=_fact(result, law, f"growing, attention {NOT_LEARNED}"),
            control_name="attention does not learn",
        )
        for law in config.laws
    ]
    alone = [
        Evidence(
            name=f"runs in which Theorem 2's winner is the only component that grows, {law} tokens",
            against="training",
            unit="share of the seeds",
            value=_fact(result, law, "winner alone"),
            threshold=1.0,
            at_least=True,
        )
        for law in config.laws
    ]
    found = ruling([finding(row) for row in some], besides=[finding(row) for row in alone])
    check = _logit_sum(result)
    shares, frozen = (
        _by_law(_facts(result, config, f"growing, attention {name}"), ".0%") for name in (LEARNED, NOT_LEARNED)
    )
    winners = _by_law(_facts(result, config, "winner alone"), ".0%")
    return _at_this_size(found, config).verdict(
        id="fig3-winners",
        title="Only some components keep growing",
        source="Section 3.1, figure 3",
        claim="only some components of v_0 grow while the remaining ones saturate after initial growing, consistent "
        "with Theorem 2",
        explanation=(
            f"At the end {shares} of the components still grow, against {frozen} where attention does not learn. "
            "Theorem 2 has one winner, the most salient token; under softmax a single winner would make all samples "
            "alike, and two or more tokens share the growth."
        ),
        correction=(f"{_growth_said(some, config)}. Theorem 2's one winner grows alone in {winners} of the runs"),
        evidence=(*some, *alone, check),
        sound=check.holds,
    )


def _growth_said(some: list[Evidence], config: Config) -> str:
    """On which tokens only some components grow."""
    said = {
        Finding.SHOWN: "only some components grow",
        Finding.MATCHED: "only some grow, with and without learned attention",
        Finding.FAILED: "most grow",
        Finding.OPEN: "it was not measured",
    }
    return "; ".join(
        f"on {law} tokens {said[finding(row)]} ({row.value:.0%}, where attention does not learn {row.control:.0%})"
        for law, row in zip(config.laws, some, strict=True)
    )
