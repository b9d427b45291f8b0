"""What figure 5 and Section 5 claim, held against what was measured. The thresholds stand before any result."""

import numpy as np
import pandas as pd

from joma.experiments.experiment import Result
from joma.experiments.figure5_measure import DEEP, FLOWS, NO_ORDER, SHALLOW, Config
from joma.experiments.seed_errors import exceeds, mean_and_error
from joma.verdicts import Evidence, Outcome, Verdict

LARGEST_Z = 4.5
"""Standard errors by which a sampled co-occurrence may differ from the exact one."""
ROUNDING = 1e-12
"""Distance of Theorem 5's closed form from the exact sum over the tree."""
NEAR_LIMIT = 0.01
"""Distance from 1 − H/L at the smallest ε that counts as the limit."""
LEAST_FALL = 0.01
"""Co-occurrence that each further level must cost."""
LEAST_DELAY = 1.2
"""Factor by which a token of the highest common ancestor must be learned later than one of the lowest."""
LEAST_LEAD = 0.1
"""Logarithm of the factor by which attention must grow more for the nearest tokens than for the farthest."""
LEAST_RETURN = 0.2
"""Part of the largest lead that must be given back by the end for attention to have reached out."""
LEAST_GAIN = 0.05
"""NCorr that training must add for a level to count as learned."""
LEAST_SHARE = 2 / 3
"""Of blocks and seeds that must gain most on the level of their own; a third does by chance."""

SMALL = "At small size: "


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge Theorem 5 and its limit, the order of attention in theory and in training, and the levels learned."""
    return (
        theorem_verdict(result, config),
        limit_verdict(result, config),
        order_verdict(result, config),
        attention_verdict(result, config),
        depth_verdict(result, config),
        levels_verdict(result, config),
        blocks_verdict(result, config),
    )


def theorem_verdict(result: Result, config: Config) -> Verdict:
    """Theorem 5 against samples and against the exact sum; as printed it has another ρ₀."""
    table = result.tables["cooccurrence"]
    binary = table.dropna(subset="formula")
    evidence = (
        Evidence(
            name="Theorem 5 with ρ₀ = 2P[y₁=0] − 1",
            against="samples",
            unit="standard errors",
            value=float(((binary["formula"] - binary["sampled"]) / binary["error"]).abs().max()),
            threshold=LARGEST_Z,
            control=float(((binary["printed"] - binary["sampled"]) / binary["error"]).abs().max()),
            control_name="ρ₀ = P[y₁=0] as printed",
        ),
        Evidence(
            name="exact co-occurrence, also below the root alone",
            against="samples",
            unit="standard errors",
            value=float(((table["exact"] - table["sampled"]) / table["error"]).abs().max()),
            threshold=LARGEST_Z,
        ),
        Evidence(
            name="Theorem 5 with ρ₀ = 2P[y₁=0] − 1",
            against="the exact sum over the tree",
            unit="max abs error",
            value=float((binary["formula"] - binary["exact"]).abs().max()),
            threshold=ROUNDING,
            control=float((binary["printed"] - binary["exact"]).abs().max()),
            control_name="ρ₀ = P[y₁=0] as printed",
        ),
    )
    is_sound = all(each.holds for each in evidence)
    is_needed = any(each.control_holds is False for each in evidence)
    outcome = (Outcome.CONDITIONAL if is_needed else Outcome.HOLDS) if is_sound else Outcome.REFUTED
    return Verdict(
        id="figure5-theorem5",
        title="Theorem 5, co-occurrence",
        source="Section 5, Theorem 5, figure 5",
        claim="P[y_l=1 | y_m=1] = ½ (1 + ρ^2H − 2ρ^(L−1)ρ₀) / (1 − ρ^(L−1)ρ₀) with ρ₀ = P[y₁=0]",
        outcome=outcome,
        explanation="It holds for a binary common ancestor (H < L) with ρ₀ = 2P[y₁=0] − 1; with ρ₀ as printed the "
        "samples refute it.",
        correction="ρ₀ = 2P[y₁=0] − 1, 1 ≤ H ≤ L − 1",
        evidence=evidence,
        sound=is_sound,
    )


def limit_verdict(result: Result, config: Config) -> Verdict:
    """Eqn 8: 1 − H/L as ρ and ρ₀ approach 1 together."""
    table = result.tables["limit"]
    gap = (table["exact"] - table["limit"]).abs().groupby(table["epsilon"]).max()
    evidence = Evidence(
        name=f"distance from 1 − H/L at ε = {gap.index.min():g}",
        against="Theorem 5",
        unit="max abs error",
        value=float(gap[gap.index.min()]),
        threshold=NEAR_LIMIT,
        control=float(gap[gap.index.max()]),
        control_name=f"the same at ε = {gap.index.max():g}",
    )
    if evidence.holds:
        outcome = Outcome.HOLDS if evidence.control_holds else Outcome.CONDITIONAL
    else:
        outcome = Outcome.REFUTED
    return Verdict(
        id="figure5-limit",
        title="Eqn 8, 1 − H/L",
        source="Section 5, Eqn 8",
        claim="P[y_l=1 | y_m=1] → 1 − H/L for ρ = ρ₀ = 1 − ε",
        outcome=outcome,
        explanation=f"Off by up to {evidence.value:.2g} at ε = {gap.index.min():g} and by {evidence.control:.2g} at "
        f"ε = {gap.index.max():g}: a limit for ρ near 1, left at first order in ε.",
        evidence=(evidence,),
    )


def order_verdict(result: Result, config: Config) -> Verdict:
    """The theory's order: co-occurrence falls with height, and with it the time at which attention gets to a token."""
    table, times = result.tables["cooccurrence"], result.tables["flow_times"]
    deep = table[table["tree"] == DEEP].sort_values("height")
    evidence = [
        Evidence(
            name="fall of co-occurrence from each height to the next, deep tree",
            against="the exact sum over the tree",
            unit="least difference of P[l|m]",
            value=float(-deep["exact"].diff().max()),
            threshold=LEAST_FALL,
            at_least=True,
            control=float(-deep["control"].diff().max()),
            control_name="ρ = 0 on all edges",
        )
    ]
    for flow in FLOWS:
        own = times[(times["tree"] == DEEP) & (times["flow"] == flow)]
        evidence.append(
            Evidence(
                name=f"{flow}: half time of the farthest tokens over that of the nearest",
                against="exact solution of the flow with saliency ∝ P[l|m]",
                unit="ratio",
                value=_delay(own[own["rho"] == config.rho]),
                threshold=LEAST_DELAY,
                at_least=True,
                control=_delay(own[own["rho"] == NO_ORDER]),
                control_name="ρ = 0 on all edges",
            )
        )
    holds = all(each.holds for each in evidence)
    return Verdict(
        id="figure5-order",
        title="Figure 5b, the order in theory",
        source="Section 5, figure 5b, Eqn 6",
        claim="The query m associates first with the token l that co-occurs most, and eventually with l'",
        outcome=Outcome.HOLDS if holds else Outcome.REFUTED,
        explanation="For saliencies proportional to co-occurrence, tokens under the nearest common ancestor come first "
        "and all come in the end, in the printed flow and in the one that the model has; what saliencies a trained "
        "network has is another question.",
        evidence=tuple(evidence),
    )


def _delay(times: pd.DataFrame) -> float:
    by_height = times.set_index("height")["half"]
    return float(by_height[by_height.index.max()] / by_height[by_height.index.min()])


def attention_verdict(result: Result, config: Config) -> Verdict:
    """In training: does the first block attend to the nearest tokens first, and reach out later?"""
    leads = result.tables["leads"]
    own = leads[(leads["tree"] == DEEP) & (leads["layer"] == 0)]
    lead, error = mean_and_error(own["largest"] - own["control_largest"])
    returned, return_error = mean_and_error(1 - own["end"] / own["largest"].where(own["largest"] > 0))
    evidence = (
        Evidence(
            name=f"largest lead of the nearest tokens in block 0, {lead:+.3f} ± {error:.3f} above its control",
            against="attention at the start of training",
            unit="ln(a_near / a_far)",
            value=float(own["largest"].mean()),
            threshold=LEAST_LEAD,
            at_least=True,
            control=float(own["control_largest"].mean()),
            control_name="leaves dealt to other places in the tree",
        ),
        Evidence(
            name=f"part of the largest lead given back by the end, ± {return_error:.3f}",
            against="the largest lead",
            unit="fraction",
            value=returned,
            threshold=LEAST_RETURN,
            at_least=True,
        ),
    )
    leads_first, reaches_out = exceeds(lead, error, LEAST_LEAD), exceeds(returned, return_error, LEAST_RETURN)
    if leads_first and reaches_out:
        outcome = Outcome.HOLDS
    elif leads_first and reaches_out is False and not config.is_small:
        outcome = Outcome.CONDITIONAL
    else:
        outcome = _failed(leads_first, config)
    text = (
        f"Attention in block 0 grows {np.exp(lead):.2f} times as much for tokens under the nearest ancestor as for "
        f"those under the root, beyond what relabelled leaves show, and gives back {returned:.0%} of it by the end."
    )
    return _trained(
        config,
        id="figure5-attention",
        title="Figure 5b, attention in training",
        claim="Attention first goes to tokens of the same lowest hierarchy as the query, then reaches out to others",
        outcome=outcome,
        explanation=text,
        evidence=evidence,
    )


def depth_verdict(result: Result, config: Config) -> Verdict:
    """In training: is the association across the root held back more on deep trees than on shallow ones?"""
    leads = result.tables["leads"]
    first = leads[leads["layer"] == 0]
    deep, shallow = (first[first["tree"] == tree] for tree in (DEEP, SHALLOW))
    (high, high_error), (low, low_error) = mean_and_error(deep["end"]), mean_and_error(shallow["end"])
    error = float(np.hypot(high_error, low_error))
    control = float(deep["control_end"].mean() - shallow["control_end"].mean())
    evidence = Evidence(
        name=f"lead of the nearest tokens at the end, deep {high:+.3f} less shallow {low:+.3f}, ± {error:.3f}",
        against="the shallow tree over as many leaves",
        unit="difference of ln(a_near / a_far)",
        value=high - low,
        threshold=LEAST_LEAD,
        at_least=True,
        control=control,
        control_name="leaves dealt to other places in the tree",
    )
    is_slower = exceeds(high - low, error, LEAST_LEAD)
    outcome = Outcome.HOLDS if is_slower and high - low > control else _failed(is_slower, config)
    return _trained(
        config,
        id="figure5-depth",
        title="Figure 5b against 5c, deep and shallow trees",
        claim="On deep trees the association of tokens that are not directly correlated is slower than on shallow ones",
        outcome=outcome,
        explanation=f"Block 0 prefers the nearest tokens over those under the root by {high:+.3f} on the deep tree and "
        f"by {low:+.3f} on the shallow one, in logarithms of attention since the start.",
        evidence=(evidence,),
    )


def levels_verdict(result: Result, config: Config) -> Verdict:
    """In training: are low levels of latents learned before high ones?"""
    own = result.tables["levels"]
    own = own[own["tree"] == DEEP]
    delays = _delays(own)
    gain, gain_error = mean_and_error(own.groupby("seed")["gain"].mean())
    delay, error = mean_and_error(delays)
    firsts = first_levels(own)
    evidence = (
        Evidence(
            name=f"NCorr added by training, over blocks and levels, ± {gain_error:.3f}",
            against="the same network untrained",
            unit="excess of NCorr",
            value=gain,
            threshold=LEAST_GAIN,
            at_least=True,
            control=float(own["control_gain"].mean()),
            control_name="shuffled latents",
        ),
        Evidence(
            name=f"half time of the highest level over that of the lowest, ln = {delay:+.3f} ± {error:.3f}",
            against="the lowest level in the same block",
            unit="ratio",
            value=float(np.exp(delay)),
            threshold=LEAST_DELAY,
            at_least=True,
        ),
    )
    is_learned = exceeds(gain, gain_error, LEAST_GAIN)
    is_later = exceeds(delay, error, float(np.log(LEAST_DELAY)))
    outcome = Outcome.HOLDS if is_learned and is_later else _failed(is_later if is_learned else None, config)
    text = "; ".join(f"block {layer} has level {level} first" for layer, level in firsts.items())
    return _trained(
        config,
        id="figure5-levels",
        title="Figure 5c, which level is learned first",
        claim="The lowest latents are learned first; once they are, the next level is picked up, and so on",
        outcome=outcome,
        explanation=(text or "No block learned a level by what counts as learning")
        + f". The highest level takes {np.exp(delay):.2f} times as long as the lowest to get half of its gain.",
        evidence=evidence,
    )


def _delays(levels: pd.DataFrame) -> pd.Series:
    """Return for each seed ln(half time of the highest level / of the lowest), over blocks that learned both."""
    learned = levels[levels["gain"] >= LEAST_GAIN]
    wide = np.log(learned.pivot(index=["seed", "layer"], columns="height", values="half_step"))
    low, high = levels["height"].min(), levels["height"].max()
    if low not in wide or high not in wide:
        return pd.Series(dtype=np.float64)
    return (wide[high] - wide[low]).dropna().groupby(level="seed").mean()


def first_levels(levels: pd.DataFrame) -> dict[int, int]:
    """Return for each block the height whose mean half time is the earliest, among those that were learned."""
    learned = levels[(levels["gain"] >= LEAST_GAIN) & levels["half_step"].notna()]
    means = learned.groupby(["layer", "height"])["half_step"].mean()
    return {int(layer): int(part.idxmin()[1]) for layer, part in means.groupby(level="layer")}


def blocks_verdict(result: Result, config: Config) -> Verdict:
    """In training: does each block gain most on the level of its own number?"""
    own = result.tables["levels"]
    own = own[own["tree"] == DEEP]
    trained, untrained = (_own_level(own, column) for column in ("gain", "start"))
    share, error = mean_and_error(trained)
    evidence = Evidence(
        name=f"blocks whose own level gains most, ± {error:.3f}",
        against="the other levels in the same block",
        unit="share of blocks and seeds",
        value=share,
        threshold=LEAST_SHARE,
        at_least=True,
        control=float(untrained.mean()),
        control_name="highest NCorr of the untrained network",
    )
    holds = bool(share >= LEAST_SHARE and not evidence.control_holds)
    outcome = Outcome.HOLDS if holds else _failed(exceeds(share, error, LEAST_SHARE), config)
    return _trained(
        config,
        id="figure5-blocks",
        title="Figure 5c, blocks and levels",
        claim="Hidden nodes of each layer come to represent the latents of the level of the same number",
        outcome=outcome,
        explanation=f"{share:.0%} of blocks gain most on the level of their own, {float(untrained.mean()):.0%} have "
        "their highest NCorr there untrained; a third would by chance.",
        evidence=(evidence,),
    )


def _own_level(levels: pd.DataFrame, column: str) -> pd.Series:
    """Return for each seed the share of blocks in which the level of their own number has the largest value."""
    wide = levels.pivot(index=["seed", "layer"], columns="height", values=column)
    best = wide.idxmax(axis=1)
    is_own = best.to_numpy() == best.index.get_level_values("layer").to_numpy() + 1
    return pd.Series(is_own, index=best.index, dtype=np.float64).groupby(level="seed").mean()


def _failed(found: bool | None, config: Config) -> Outcome:
    """A claim that did not hold is refuted where the seeds deny it at full size; else nothing can be said."""
    return Outcome.REFUTED if found is False and not config.is_small else Outcome.INCONCLUSIVE


def _trained(
    config: Config,
    *,
    id: str,
    title: str,
    claim: str,
    outcome: Outcome,
    explanation: str,
    evidence: tuple[Evidence, ...],
) -> Verdict:
    """Return a verdict on networks trained here."""
    return Verdict(
        id=id,
        title=title,
        source="Section 5, figure 5",
        claim=claim,
        outcome=outcome,
        explanation=(SMALL if config.is_small else "") + explanation,
        evidence=evidence,
    )
