"""Which ingredient the rebound of the attention entropy needs: one taken away at a time."""

from collections.abc import Sequence

import pandas as pd

from joma.engine.measuring import ENTROPY
from joma.experiments.experiment import Result
from joma.experiments.language_model_config import LINEAR, PAPER, Config
from joma.experiments.language_model_settings import NOTHING_YET, absent, by_depth
from joma.experiments.rebound_shares import (
    ABSENT,
    REBOUNDS,
    decided,
    is_judged,
    of_setting,
    rebound_share,
    size_in_words,
)
from joma.verdicts import Evidence, Verdict, finding, ruling


def ingredient_verdict(result: Result, config: Config) -> Verdict:
    """Judge the claim that it is the MLP's nonlinearity which brings the entropy back, and nothing else."""
    regimes, text = result.tables["regimes"], config.texts[0]
    conditions = (PAPER, *config.controls)
    shares = {
        (name, depth): rebound_share(regimes, text, name, depth, config.rate, ENTROPY)
        for name in conditions
        for depth in config.control_depths
    }
    wanted = [each for name in conditions for each in by_depth(config, text, config.control_depths, name)]
    lacking = absent(wanted, result.tables["runs"])
    there = [(each.condition, each.depth) for each in wanted if each not in lacking]
    usual, linear, others = (
        {(name, depth): _evidence(name, depth, shares) for name, depth in there if name in names}
        for names in ((PAPER,), (LINEAR,), [name for name in config.controls if name != LINEAR])
    )
    settings = [
        finding(usual[PAPER, depth], linear[LINEAR, depth])
        for depth in config.control_depths
        if {(PAPER, depth), (LINEAR, depth)} <= set(there)
    ]
    found = ruling(settings, besides=[finding(row) for row in others.values()])
    return decided(found, config, lacking).verdict(
        id="rebound-ingredients",
        title="What the rebound needs",
        source="Sections 4 and 5, Figure 6",
        claim="In the nonlinear case the entropy of the attention bounces back: it is the MLP's nonlinearity that does "
        "it.",
        explanation=f"{size_in_words(config, text, lacking)} {_in_words(regimes, shares, there, config)}",
        correction=needed_in_words(shares, config),
        evidence=(*linear.values(), *others.values(), *usual.values()),
    )


def needed(shares: dict[tuple[str, int], float], config: Config) -> dict[str, list[int]]:
    """Return for each ingredient the depths at which the rebound goes away with it, of those that rebound at all."""
    depths = [depth for depth in config.control_depths if shares[PAPER, depth] >= REBOUNDS]
    return {name: [depth for depth in depths if shares[name, depth] <= ABSENT] for name in config.controls}


def needed_in_words(shares: dict[tuple[str, int], float], config: Config) -> str:
    """Tell which ingredients the rebound needs, and at which depths."""
    if not any(shares[PAPER, depth] >= REBOUNDS for depth in config.control_depths):
        return "The paper's setting rebounds at none of the depths."
    told = [
        f"{name} takes it away at depth {', '.join(map(str, depths))}"
        for name, depths in needed(shares, config).items()
        if depths
    ]
    return f"Of what was taken away: {'; '.join(told)}." if told else "The rebound needs none of what was taken away."


def _evidence(name: str, depth: int, shares: dict[tuple[str, int], float]) -> Evidence:
    """By the claim a linear MLP must take the rebound away, and nothing else may."""
    is_linear = name == LINEAR
    return Evidence(
        name=f"curves that dip and rebound {name if name == PAPER else f'with {name}'}, depth {depth}",
        against="the regime of each curve",
        unit="share of layers and seeds",
        value=shares[name, depth],
        threshold=ABSENT if is_linear else REBOUNDS,
        at_least=not is_linear,
        control=shares[PAPER, depth] if is_linear else None,
        control_name=PAPER if is_linear else "",
    )


def _in_words(
    regimes: pd.DataFrame, shares: dict[tuple[str, int], float], there: Sequence[tuple[str, int]], config: Config
) -> str:
    told = []
    for depth in config.control_depths:
        parts = [
            f"{name} {shares[name, depth]:.0%} (rise {_rise(regimes, config, name, depth):.3f})"
            for name, own in there
            if own == depth
        ]
        if parts:
            told.append(f"depth {depth}: {', '.join(parts)}")
    if not told:
        return NOTHING_YET
    return f"Curves that rebound, and the mean rise in nats from the lowest point to the end, at {'; at '.join(told)}."


def _rise(regimes: pd.DataFrame, config: Config, name: str, depth: int) -> float:
    curves = of_setting(regimes, config.texts[0], name, depth, config.rate, ENTROPY)
    judged = curves[[is_judged(layer, depth) for layer in curves["layer"]]]
    return float((judged["end"] - judged["lowest"]).mean())
