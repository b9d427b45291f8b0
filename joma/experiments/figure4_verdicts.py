"""The verdicts of figure 4: dip and rebound, the order of the components, the condition, and what is shown."""

from dataclasses import replace

import numpy as np

from joma.experiments.experiment import Result
from joma.experiments.figure4_condition import REFUSED
from joma.experiments.figure4_flows import LABELS, WITHOUT, Config
from joma.verdicts import Evidence, Finding, Verdict, finding, ruling

VISIBLE = 0.05
"""Rise of the entropy that can be seen in the figure, as a share of its axis from 0 to ln M."""
ONE_AFTER_ANOTHER = 1.5
"""Time to half way of the slowest component over that of the fastest, from which on one comes after the other."""
CLOSED_FORM = 1e-8
"""Largest distance of the closed form from the integrated flow: the integrator's error."""
DISCRETISED = 0.05
"""Nats by which the discretised run may differ from its flow and still show the same curve."""
ROUNDING = 1e-12


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge what figure 4 and its caption claim."""
    return (_rebounds(result), _salient_first(result), _condition(result), _steps(result, config))


def _solver_check(result: Result) -> Evidence:
    return Evidence(
        name="closed form of Eqn 6 and of the model's flow",
        against="ODE",
        unit="max relative error",
        value=float(result.facts["closed form distance"]),
        threshold=CLOSED_FORM,
        decides=False,
    )


def _rebounds(result: Result) -> Verdict:
    check = _solver_check(result)
    visible = VISIBLE * float(result.facts["largest entropy"])
    evidence = [
        Evidence(
            name=f"rise of the entropy of softmax(v²/{row.temperature:g}) after its dip, {LABELS[str(row.flow)]}",
            against="simulation",
            unit="nats",
            value=float(row.rise),
            threshold=visible,
            at_least=True,
            control=float(row.control_rise),
            control_name="the same targets without attention",
        )
        for row in result.tables["dips"].itertuples()
    ]
    findings = [finding(row) for row in evidence]
    rises = ", ".join(
        f"{row.rise:.3f} ({LABELS[str(row.flow)]}, T = {row.temperature:g})"
        for row in result.tables["dips"].itertuples()
    )
    return ruling(findings).verdict(
        id="fig4-rebound",
        title="The attention entropy drops, then rebounds",
        source="Section 4, figure 4, Eqn 6",
        claim="the entropy of softmax(v²) drops when salient components are learned first, and then rebounces when "
        "other components catch up",
        explanation=(
            f"Rise in nats: {rises}. The model's critical point is not μ but √W(μ²), far less spread, so its own "
            "attention hardly concentrates. Without attention all components grow in proportion and nothing rebounds."
        ),
        correction=_seen_in_words(result, findings),
        evidence=(*evidence, check),
        sound=check.holds,
    )


def _seen_in_words(result: Result, findings: list[Finding]) -> str:
    """Under which flows the rebound can be seen."""
    labels = [
        f"{LABELS[str(row.flow)]} (entropy of softmax(v²/{row.temperature:g}))"
        for row in result.tables["dips"].itertuples()
    ]
    said = {
        "can be seen": [Finding.SHOWN],
        "can be seen, and without attention as well": [Finding.MATCHED],
        "cannot be seen": [Finding.FAILED, Finding.OPEN],
    }
    under = {
        words: [label for label, found in zip(labels, findings, strict=True) if found in wanted]
        for words, wanted in said.items()
    }
    return "the rebound " + "; ".join(f"{words} under {', '.join(own)}" for words, own in under.items() if own)


def _salient_first(result: Result) -> Verdict:
    check = _solver_check(result)
    learning = result.tables["learning"]
    spread = {
        str(name): float(rows["half_time"].max() / rows["half_time"].min())
        for name, rows in learning.groupby("flow", sort=False)
    }
    disorder = {
        str(name): int((np.diff(rows.sort_values("target")["half_time"]) > ROUNDING).sum())
        for name, rows in learning.groupby("flow", sort=False)
    }
    flows = [name for name in spread if name != WITHOUT]
    evidence = [
        Evidence(
            name=f"time to half way, slowest component over fastest, {LABELS[name]}",
            against="simulation",
            unit="ratio",
            value=spread[name],
            threshold=ONE_AFTER_ANOTHER,
            at_least=True,
            control=spread[WITHOUT],
            control_name="without attention",
        )
        for name in flows
    ]
    order = Evidence(
        name="neighbouring components learned in the wrong order, all flows",
        against="simulation",
        unit="pairs",
        value=float(sum(disorder[name] for name in flows)),
        threshold=0.0,
    )
    findings = [finding(row, order) for row in evidence]
    told = ", ".join(f"{spread[name]:.2f} ({LABELS[name]})" for name in flows)
    return ruling(findings).verdict(
        id="fig4-order",
        title="Salient components are learned first",
        source="Section 4, figure 4",
        claim="components with large |μ| are learned first, followed by non-salient ones",
        explanation=(
            f"Time to half way of the least salient component over that of the most salient: {told}; without attention "
            f"{spread[WITHOUT]:.2f}."
        ),
        correction=(
            f"slowest over fastest component: {told}, without attention {spread[WITHOUT]:.2f}; from "
            f"{ONE_AFTER_ANOTHER:g} on one comes after the other. Pairs learned in the wrong order: {order.value:.0f}"
        ),
        evidence=(*evidence, order, check),
        sound=check.holds,
    )


def _condition(result: Result) -> Verdict:
    facts = result.facts
    check = Evidence(
        name="random targets whose final trend the condition ln p_i* + H(p) < 0 gets wrong",
        against="ODE",
        unit=f"of {facts['draws']}",
        value=float(facts["draws judged wrongly"]),
        threshold=0.0,
        decides=False,
    )
    without_zeros = Evidence(
        name="random targets without zeros whose entropy rises at the end",
        against="ODE",
        unit="share",
        value=float(facts["rising share without zeros"]),
        threshold=1.0,
        at_least=True,
        control=float(facts["rising share of refused"]),
        control_name="targets with zeros for which the condition says that there is no rebound",
    )
    all_targets = replace(
        without_zeros,
        name="all random targets whose entropy rises at the end, half of them with zeros",
        value=float(facts["rising share"]),
    )
    found = ruling([finding(without_zeros)], besides=[finding(all_targets)])
    return found.verdict(
        id="fig4-condition",
        title="When the entropy rebounds",
        source="Section 4; first sentence of Section 5",
        claim="in the nonlinear case the non-salient components still grow, and the entropy bounces back",
        explanation=(
            f"Of {facts['draws']} random targets {facts['draws refused']}, all with zeros among them, do not rise at "
            f"the end; with none the median rise is {float(facts['median rise without zeros']):.3g} nats. Controls: "
            + ", ".join(f"{name} {float(facts[f'rise, {name}']):.1g}" for name in REFUSED)
            + " nats."
        ),
        correction="the entropy rises at the end exactly if ln p_i* + H(p) < 0 at the limit p, i* the slowest token "
        "that moves: always without zeros in μ, unless all |μ| are equal",
        evidence=(without_zeros, all_targets, check),
        sound=check.holds,
    )


def _steps(result: Result, config: Config) -> Verdict:
    facts = result.facts
    printed = Evidence(
        name=f"steps of {config.step_size:g} that stay finite on Eqn 6",
        against="simulation",
        unit=f"share of {config.num_steps}",
        value=float(facts["Eqn 6 steps survived"]) / config.num_steps,
        threshold=1.0,
        at_least=True,
    )
    script = replace(
        printed,
        name=f"steps of {config.step_size:g} that stay finite on the scripts' variant",
        value=float(facts["script steps survived"]) / config.num_steps,
        decides=False,
    )
    distance = Evidence(
        name="entropy along the steps of the scripts' variant, against the flow that they discretise",
        against="ODE",
        unit="nats",
        value=float(facts["script distance from its flow"]),
        threshold=DISCRETISED,
        decides=False,
    )
    is_variant = script.holds and distance.holds
    return ruling([finding(printed)]).verdict(
        id="fig4-script",
        title="What the figure shows is Eqn 6",
        source="Caption of figure 4",
        claim="figure 4 shows the dynamics of Eqn 6",
        explanation=(
            f"{config.num_steps} explicit steps of {config.step_size:g} follow "
            f"(μ−v)∘softmax(v²/{config.temperature:g}) to {distance.value:.2g} nats: entropy "
            f"{float(facts['script lowest entropy']):.4f} at step {facts['script lowest at step']}, "
            f"{float(facts['script final entropy']):.4f} at the end, not yet settled. Of the same steps on Eqn 6 "
            f"{facts['Eqn 6 steps survived']} stay finite."
        ),
        correction=(
            f"it shows Eqn 6 with softmax(v²/{config.temperature:g}) for exp(v²/2); solved exactly, Eqn 6 has the same "
            "shape"
            if is_variant
            else "it shows neither Eqn 6 nor the flow of the scripts' variant"
        ),
        evidence=(printed, script, distance),
    )
