"""When the entropy of figure 4 rebounds: the condition on random targets, and on targets that it refuses."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.checks.theorem4 import efolds_by_ode
from joma.experiments.figure4_flows import PRINTED, Config
from joma.theory.convergence import ConvergenceFlow
from joma.theory.rebound import attention_entropy, entropy_finally_rises, entropy_rebound, rebound
from joma.theory.simulation import simulate

REFUSED = {"all targets equal": (2.0,) * 10, "one target zero": (0.0, 2.0)}
"""Targets without a rebound: all equal, and one that is not wanted at all."""
LATE_EFOLDS, LAST_PART = 60.0, 1e-4
"""Time at which the slowest component alone still moves, in units of its rate, and the part of the way then left."""


def tried_condition(config: Config, progress: Callable[[float], None]) -> pd.DataFrame:
    """Random targets, half of them with zeros: what the condition says of the final trend, and what the ODE shows."""
    rng = np.random.default_rng(config.seed)
    rows = []
    for draw in range(config.num_draws):
        progress(draw / config.num_draws)
        mu = rng.uniform(0.5, 2.5, size=8) * rng.choice([-1.0, 1.0], size=8)
        mu[: draw % 2 * rng.integers(4, 8)] = 0.0
        rows.append(
            {
                "draw": draw,
                "zeros": int((mu == 0).sum()),
                "predicted": entropy_finally_rises(mu),
                "rises": _finally_rises(mu),
                "rise": entropy_rebound(ConvergenceFlow(mu=mu)).rise,
            }
        )
    return pd.DataFrame(rows)


def _finally_rises(mu: Float[np.ndarray, " M"]) -> bool:
    """Whether the entropy of softmax(v²/2) rises at the very end, by the ODE of ln(1/δ), in which nothing is lost."""
    moving = mu != 0
    late = LATE_EFOLDS * np.exp(-np.square(mu[moving]).min() / 2)
    efolds = efolds_by_ode(tuple(mu), (float(late),))[0]
    # v²/2 = μ²/2 − way, way ∝ μ²δ, scaled to a small part for the slowest
    way = np.square(mu) * np.exp(efolds[moving].min() - efolds)
    logits = np.square(mu) / 2
    before, after = (attention_entropy(np.sqrt(2 * (logits - part * way))) for part in (LAST_PART, 0.0))
    return bool(after > before)


def condition_facts(conditions: pd.DataFrame) -> dict[str, float | int]:
    """How often the entropy rises at the end, and how often the condition is wrong."""
    without_zeros, refused = conditions[conditions["zeros"] == 0], conditions[~conditions["predicted"]]
    return {
        "draws": len(conditions),
        "draws judged wrongly": int((conditions["predicted"] != conditions["rises"]).sum()),
        "draws refused": len(refused),
        "rising share": float(conditions["rises"].mean()),
        "rising share without zeros": float(without_zeros["rises"].mean()),
        "rising share of refused": float(refused["rises"].mean()) if len(refused) else float("nan"),
        "median rise without zeros": float(without_zeros["rise"].median()),
    }


def refused_targets(config: Config) -> tuple[pd.DataFrame, dict[str, float]]:
    """Entropy under Eqn 6, from zero, for targets that the condition refuses, and how far it rises."""
    rows, rises = [], {}
    for name, mu in REFUSED.items():
        run = simulate(flow=PRINTED, targets=mu, v0=0.0, num_points=config.num_points)
        rows.append(pd.DataFrame({"targets": name, "t": run.t, "entropy": run.entropy}))
        rises[f"rise, {name}"] = rebound(run.t, run.entropy).rise
    return pd.concat(rows, ignore_index=True), rises
