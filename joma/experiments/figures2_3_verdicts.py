"""The verdicts of figures 2 and 3: correlation, size, the two terms alone, and who wins."""

from joma.experiments.experiment import Result
from joma.experiments.figures2_3_measure import LEARNED, NOT_LEARNED, OTHER, SHUFFLED
from joma.experiments.figures2_3_training import CONSTANT, ESTIMATE, FIRST, SECOND, Config
from joma.verdicts import Evidence, Outcome, Verdict

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


def _judged(result: Result, config: Config, outcome: Outcome) -> tuple[Outcome, bool, Evidence]:
    """Outcome as it may be said at this size, whether our own check holds, and that check."""
    check = Evidence(
        name="sum of the logits, which every step of gradient descent conserves",
        against="training",
        unit="largest change",
        value=float(result.facts["logit_sum_drift"]),
        threshold=ROUNDING,
    )
    decided = outcome if check.holds and not config.is_small else Outcome.INCONCLUSIVE
    return decided, check.holds, check


def _fact(result: Result, law: str, name: str) -> float:
    return float(result.facts[f"{law}: {name}"])


def _correlates(result: Result, config: Config) -> Verdict:
    controls = {
        OTHER: f"correlation of {OTHER}",
        SHUFFLED: f"correlation of {SHUFFLED}",
        "untrained layer": "untrained",
    }
    evidence = tuple(
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
        for law in config.laws
        for name, fact in controls.items()
    )
    matched = [e for e in evidence if e.control_holds]
    if not all(e.holds for e in evidence):
        found = Outcome.REFUTED
    else:
        found = Outcome.CONDITIONAL if matched else Outcome.HOLDS
    outcome, sound, check = _judged(result, config, found)
    lows = ", ".join(f"{_fact(result, law, f'correlation of {ESTIMATE}'):.3f} ({law})" for law in config.laws)
    others = ", ".join(f"{_fact(result, law, f'correlation of {OTHER}'):.3f} ({law})" for law in config.laws)
    return Verdict(
        id="fig2-correlation",
        title="The estimate correlates with the logits",
        source="Section 3, figure 2",
        claim="ẑ_m(t) of Theorem 1 shows high correlation with the true logits z_m(t), despite the assumption on b̄_m",
        outcome=outcome,
        explanation=(
            f"The correlation at the end is {lows}; with the logits of another run, trained on other draws of the same "
            f"law, it is {others}. Where the two are alike the data decide both sides, and the correlation says "
            "nothing of the run's own law; where only the first is high, it does."
        ),
        correction="ẑ correlates with z; where another run's logits do so as well, the data alone decide both"
        if found is Outcome.CONDITIONAL
        else "",
        evidence=(*evidence, check),
        sound=sound,
    )


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
    if not all(e.holds for e in early):
        found = Outcome.REFUTED
    elif any(e.control_holds for e in (*early, *late)) or not all(e.holds for e in late):
        found = Outcome.CONDITIONAL
    else:
        found = Outcome.HOLDS
    outcome, sound, check = _judged(result, config, found)
    moved = ", ".join(f"{_fact(result, law, 'attention moved'):.2f} ({law})" for law in config.laws)
    errors = ", ".join(f"{e.value:.2f} ({law})" for law, e in zip(config.laws, late, strict=True))
    slow = [result.facts.get(f"slower, {law}: error of {ESTIMATE}") for law in config.laws]
    same = (
        ""
        if None in slow
        else f" (at 1/{config.slower} of the learning rate {', '.join(f'{float(v or 0):.2f}' for v in slow)})"
    )
    return Verdict(
        id="fig2-close",
        title="The estimate predicts the logits",
        source="Section 3, text below Theorem 1",
        claim="for softmax attention the invariance of Theorem 1 still predicts z_m(t) fairly well",
        outcome=outcome,
        explanation=(
            f"Its relative error at the end is {errors}{same}, where the constant alone, no estimate at all, has 1. "
            f"The estimate takes b̄ as constant, and the mean attention moves by {moved} in L1 (2 is the most)."
        ),
        correction="ẑ is close to z early in training; later it keeps the order of the tokens and not the scale",
        evidence=(*late, *early, check),
        sound=sound,
    )


def _components(result: Result, config: Config) -> Verdict:
    evidence = [
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
        for law in config.laws
    ]
    together_correlates = not any(e.control_holds for e in evidence)
    if all(e.holds for e in evidence) and together_correlates:
        found = Outcome.HOLDS
    elif any(e.holds for e in evidence) and together_correlates:
        found = Outcome.CONDITIONAL
    else:
        found = Outcome.REFUTED
    outcome, sound, check = _judged(result, config, found)
    first = ", ".join(f"{_fact(result, law, f'correlation of {FIRST}'):.3f} ({law})" for law in config.laws)
    second = ", ".join(f"{_fact(result, law, f'correlation of {SECOND}'):.3f} ({law})" for law in config.laws)
    return Verdict(
        id="fig2-components",
        title="Neither term of the estimate correlates alone",
        source="Caption of figure 2",
        claim="its two components ẑ_m1 = ½Σ_k v_k² and ẑ_m2 = −½Σ_k ‖v_k‖² b̄_m do not correlate highly with z_m",
        outcome=outcome,
        explanation=f"At the end the first term alone has {first}, the second {second}.",
        evidence=(*evidence, check),
        sound=sound,
    )


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
    told_apart = [e.holds and not e.control_holds for e in some]
    if all(told_apart) and all(e.holds for e in alone):
        found = Outcome.HOLDS
    else:
        found = Outcome.CONDITIONAL if any(told_apart) else Outcome.REFUTED
    outcome, sound, check = _judged(result, config, found)
    shares = ", ".join(f"{e.value:.0%} ({law})" for law, e in zip(config.laws, some, strict=True))
    frozen = ", ".join(f"{e.control:.0%} ({law})" for law, e in zip(config.laws, some, strict=True))
    return Verdict(
        id="fig3-winners",
        title="Only some components keep growing",
        source="Section 3.1, figure 3",
        claim="only some components of v_0 grow while the remaining ones saturate after initial growing, consistent "
        "with Theorem 2",
        outcome=outcome,
        explanation=(
            f"At the end {shares} of the components still grow, against {frozen} where attention does not learn. "
            "Theorem 2 has one winner, the most salient token; under softmax a single winner would make all samples "
            "alike, and two or more tokens share the growth."
        ),
        correction="learned attention lets components saturate, on smooth tokens most of them; several win, not one",
        evidence=(*some, *alone, check),
        sound=sound,
    )
