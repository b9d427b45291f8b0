"""What figures 2 and 3 show of a training: how well weights tell the logits, and which weights go on growing."""

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.experiments.figures2_3_training import CONSTANT, ESTIMATE, FIRST, SECOND, Config, Training
from joma.theory.softmax_estimate import normalised_correlation
from joma.theory.winner_take_all import LinearFlow

SATURATED = 0.1
"""A component has saturated if over the second half it grows by less than this part of the fastest."""
SHUFFLES, SHUFFLED_QUANTILE = 200, 0.95
"""Shuffles of the tokens, and the quantile of their correlations that counts as chance."""
SHOWN = 4
"""Components of v_0 that figure 3 shows."""

OTHER, SHUFFLED = "logits of another run", "shuffled tokens"
LEARNED, NOT_LEARNED = "learned", "not learned"


def agreement_with_logits(config: Config, law: str, run: Training) -> pd.DataFrame:
    """Correlation and relative error of every estimate with the logits, for each seed and time."""
    steps = np.linspace(0, config.num_steps, config.num_reported + 1).astype(int)
    rows = []
    for index, seed in enumerate(config.seeds):
        z, parts = run.z[index], run.parts(index, config.temperature)
        correlations = {name: normalised_correlation(part, z) for name, part in parts.items()}
        terms = run.terms(index, config.temperature)
        correlations |= {name: normalised_correlation(term, z) for name, term in terms.items()}
        correlations[OTHER] = normalised_correlation(parts[ESTIMATE], run.z[(index + 1) % len(config.seeds)])
        correlations[SHUFFLED] = _by_chance(parts[ESTIMATE], z, np.random.default_rng(seed))
        size = np.linalg.norm(z, axis=-1)
        for name, values in correlations.items():
            error = np.linalg.norm(parts[name] - z, axis=-1) / size if name in parts else np.full(size.shape, np.nan)
            columns = {"step": steps, "correlation": values, "relative_error": error}
            rows.append(pd.DataFrame({"law": law, "seed": seed, "estimate": name, **columns}))
    return pd.concat(rows, ignore_index=True)


def _by_chance(
    estimated: Float[np.ndarray, "T M"], z: Float[np.ndarray, "T M"], rng: np.random.Generator
) -> Float[np.ndarray, " T"]:
    """Correlation that shuffled tokens reach in 5 % of the shuffles, in absolute value."""
    shuffles = rng.permuted(np.tile(np.arange(z.shape[1]), (SHUFFLES, 1)), axis=1)
    by_shuffle = normalised_correlation(np.repeat(estimated[:, None], SHUFFLES, axis=1), z[:, shuffles])
    return np.quantile(np.abs(by_shuffle), SHUFFLED_QUANTILE, axis=1)


def mean_curves(agreement: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds, with the lowest and the highest."""
    by = agreement.groupby(["law", "estimate", "step"], sort=False)[["correlation", "relative_error"]]
    table = by.agg(["mean", "min", "max"])
    table.columns = ["_".join(names) for names in table.columns]
    return table.reset_index()


def growth_of_node(config: Config, law: str, run: Training) -> pd.DataFrame:
    """The first weights of node 0 over time in the first run, beside Theorem 2's until that blows up."""
    steps = np.linspace(0, config.num_steps, config.num_reported + 1)
    flow = _theorem2(config, run, 0)
    before = steps * config.lr < flow.blow_up_time()
    predicted = np.full((steps.size, SHOWN), np.nan)
    predicted[before] = flow.solution(steps[before] * config.lr)[:, 0, :SHOWN]
    return pd.DataFrame(
        {
            "law": law,
            "step": np.repeat(steps.astype(int), SHOWN),
            "token": np.tile(np.arange(SHOWN), steps.size),
            "v": run.v[0, :, 0, :SHOWN].ravel(),
            "theorem2": predicted.ravel(),
        }
    )


def _theorem2(config: Config, run: Training, index: int) -> LinearFlow:
    """Constant saliencies, those of the start, and exp attention."""
    return LinearFlow(delta=run.saliency(index), v0=run.v[index, 0], z0=run.z[index, 0], temperature=config.temperature)


def start_and_end(law: str, run: Training) -> pd.DataFrame:
    """V of the first run at the start and at the end."""
    node, token = np.indices(run.v.shape[2:])
    return pd.concat(
        pd.DataFrame({"law": law, "when": when, "node": node.ravel(), "token": token.ravel(), "v": v.ravel()})
        for when, v in (("start", run.v[0, 0]), ("end", run.v[0, -1]))
    )


def growing_weights(config: Config, law: str, run: Training, attention: str) -> pd.DataFrame:
    """How many weights of node 0 still grow over the second half, and whether Theorem 2's winner does so alone."""
    sizes = np.abs(run.v[:, :, 0])
    growth = sizes[:, -1] - sizes[:, config.num_reported // 2]
    growing = growth >= SATURATED * growth.max(axis=1, keepdims=True)
    salient = np.array([_theorem2(config, run, index).winner() for index in range(len(config.seeds))])
    among = growing[np.arange(len(salient)), salient]
    return pd.DataFrame(
        {
            "law": law,
            "attention": attention,
            "seed": config.seeds,
            "growing": growing.sum(axis=1),
            "growing_share": growing.mean(axis=1),
            "theorem2_winner": salient,
            "fastest": growth.argmax(axis=1),
            "winner_grows": among,
            "winner_alone": among & (growing.sum(axis=1) == 1),
        }
    )


def mean_facts(config: Config, law: str, agreement: pd.DataFrame, winners: pd.DataFrame) -> dict[str, float]:
    """Means over seeds that the verdicts use."""
    early = agreement[agreement["step"] == config.judged_steps[0]]
    by_name = early[early["estimate"].isin([ESTIMATE, CONSTANT])].groupby("estimate")["relative_error"].mean()
    facts = at_the_end(agreement, law)
    facts |= {f"{law}: error of {name}, early": float(value) for name, value in by_name.items()}
    by_attention = winners.groupby("attention")
    facts |= {f"{law}: growing, attention {name}": float(v) for name, v in by_attention["growing_share"].mean().items()}
    learned = winners[winners["attention"] == LEARNED]
    return facts | {f"{law}: winner alone": float(learned["winner_alone"].mean())}


def at_the_end(agreement: pd.DataFrame, law: str) -> dict[str, float]:
    """Correlations and errors after the last step, means over seeds."""
    last = agreement[agreement["step"] == agreement["step"].max()].groupby("estimate", sort=False)
    facts = {f"{law}: correlation of {name}": float(value) for name, value in last["correlation"].mean().items()}
    errors = last["relative_error"].mean().dropna()
    return facts | {f"{law}: error of {name}": float(value) for name, value in errors.items()}


def untrained_correlation(config: Config, run: Training) -> float:
    """Correlation of the two sides at the start, before a constant makes them equal."""
    terms = [run.terms(index, config.temperature) for index in range(len(config.seeds))]
    at_start = np.stack([own[FIRST][0] + own[SECOND][0] for own in terms])
    return float(normalised_correlation(at_start, run.z[:, 0]).mean())


def attention_moved(config: Config, run: Training) -> float:
    """L1 distance of the mean attention at the end from the mean token frequencies, mean over seeds."""
    weighted = run.x * np.exp((run.z[:, -1] - run.z[:, -1].max(axis=-1, keepdims=True)) / config.temperature)[:, None]
    attention = (weighted / weighted.sum(axis=-1, keepdims=True)).mean(axis=1)
    return float(np.abs(attention - run.x.mean(axis=1)).sum(axis=-1).mean())
