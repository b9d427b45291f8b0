r"""Free attention logits Z against logits projected from embeddings: one function, one speed, the same guesses?

JoMA's theory gives every pair of tokens a logit of its own. Trained models project queries and keys from embeddings.
Here a model of depth 1 without positions is trained both ways, Z at several times the learning rate of the rest. Its
queries and keys see tokens alone, so its logits are a matrix over pairs of tokens too: of its embeddings minus their
mean over the text, the token-by-token part $(u_q - \bar u)^\top W_Q^\top W_K (u_k - \bar u)$. Asked is

- whether Z agrees with that part, over pairs that a window holds at least ten times, less the mean of each query;
- whether projected logits reach the lowest loss of free ones in half the steps;
- whether projected logits gain more where the pairs of a window were never seen in training. The gain at a position is
  the loss with free logits minus the loss with projected ones; its mean weighted by the share of pairs not seen is
  compared with its mean weighted by the share of pairs seen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from joma.charts import Chart, Rule, lines, points
from joma.claims import Number, claim
from joma.data.text import Windows
from joma.engine.config import RunConfig
from joma.engine.sources import corpus_of, source_of
from joma.paper import language_models as models
from joma.paper import token_pairs as pairs
from joma.paper.architectures import SHORT, TINY
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, joined, over_seeds, select
from joma.paper.language_models import LONG, Settings
from joma.store import Store, Task, Workspace, info

PROJECTED, PERMUTED = "projected", "keys permuted within deciles of frequency"
LEAST_SEEN, NUM_DECILES, NUM_PERMUTATIONS = 10, 10, 20
AGREEMENT = 0.7
"""Least correlation over pairs of free and projected logits."""
MARGIN = 0.02
"""Nats above the lowest loss with free logits at which that loss counts as reached."""
HALF = 0.5
"""Largest share of the steps in which projected logits reach it."""
REPORTED = {
    "whole": "free logits with all projected ones",
    "counts": "log pair counts with that part",
    "other_projected": "that part with another seed's",
    "other_free": "free logits with another seed's",
}
"""Further correlations, by column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FreeLogitsConfig:
    """Learning rates of Z and seeds; no earlier result used these seeds."""

    text: str = "wikitext2"
    settings: Mapping[str, Any] = field(default_factory=lambda: LONG | {"vocabulary_cap": 2000, "positions": "none"})
    rate: float = 1e-4
    factors: tuple[float, ...] = (1, 10, 100, 1000)
    """Learning rate of Z over that of the rest."""
    seeds: tuple[int, ...] = (241, 242, 243, 244, 245)
    needs_gpu: bool = True


FEW: Settings = {"rate": 1e-3, "needs_gpu": False}
SMALL = FreeLogitsConfig(factors=(10, 100), seeds=(251, 252, 253, 254), settings=SHORT | {"positions": "none"}, **FEW)
"""1,000 words, width 64, two learning rates of Z: minutes on one CPU core."""
FEW |= {"text": "python-docs", "settings": TINY | {"positions": "none"}}
QUICK = FreeLogitsConfig(factors=(1, 100), seeds=(1, 2), **FEW)


def compared(config: FreeLogitsConfig, ends: Mapping[tuple[float, int], Any], device: str) -> dict[str, pd.DataFrame]:
    """Compare the logits of each seed, from the runs' ends by factor and seed; projected ones have factor 0."""
    run: RunConfig = next(iter(ends.values()))[0]
    data, vocabulary = run.data, run.model.vocabulary
    corpus = corpus_of(data.data, data.vocabulary_cap)
    cut = Windows(corpus.train, data.batch, data.window)
    num = min(cut.num_windows, run.training.steps or cut.num_windows)
    windows = cut.streams[:, : num * data.window].reshape(-1, data.window)
    counts = pairs.pair_counts(windows, vocabulary)
    often, known = counts >= LEAST_SEEN, counts > 0
    frequency = torch.bincount(windows.flatten(), minlength=vocabulary).double() / windows.numel()
    log_counts, decile = counts.double().clamp(min=1).log(), np.arange(vocabulary) * NUM_DECILES // vocabulary
    tokens = torch.cat([batch.tokens[0].cpu() for batch in source_of([run], "cpu").validation()])
    unseen, of_word = pairs.unseen_share(tokens, known).flatten().numpy(), decile[tokens.flatten().numpy()]
    logits: dict[Any, Any] = {}
    losses: dict[Any, Any] = {}
    for key, (own, parameters) in ends.items():
        losses[key] = pairs.position_losses(own, parameters, device)
        if key[0]:
            logits[key] = (parameters["blocks.0.attention.logits"][0, 0].double().cpu(),) * 2
        else:
            logits[key] = tuple(each.cpu() for each in pairs.projected_logits(own, parameters, frequency))
    rows = []
    for factor, seed in ends:
        seeds = [other for other in config.seeds if (0, other) in ends and (factor, other) in ends]
        if not factor or seed not in seeds:
            continue
        other = seeds[(seeds.index(seed) + 1) % len(seeds)]
        rng, z, (part, whole) = np.random.default_rng(seed), logits[factor, seed][0], logits[0, seed]
        gain = losses[factor, seed] - losses[0, seed]
        shuffled = [pairs.advantage(gain, unseen[pairs.permuted(of_word, rng)]) for _ in range(NUM_PERMUTATIONS)]
        rows.append(
            {
                "factor": float(factor),
                "seed": seed,
                "agreement": pairs.agreement(z, part, often),
                "permuted": pairs.agreement(z, part[:, torch.from_numpy(pairs.permuted(decile, rng))], often),
                "whole": pairs.agreement(z, whole, often),
                "counts": pairs.agreement(log_counts, part, often),
                "other_projected": pairs.agreement(logits[0, other][0], part, often),
                "other_free": pairs.agreement(logits[factor, other][0], z, often),
                "advantage": pairs.advantage(gain, unseen),
                "advantage_permuted": float(np.mean(shuffled)),
                "gain": float(gain.mean()),
            }
        )
    shares = {"often": float(often.double().mean()), "unseen": float(unseen.mean())}
    return {"seeds": pd.DataFrame(rows), "shares": pd.DataFrame([shares])}


def arm(factor: float) -> str:
    """Return the name of the models with this learning rate of Z."""
    return f"free, factor {factor:g}" if factor else PROJECTED


def _report(space: Workspace, done: int, num: int, share: float, doing: str) -> None:
    space.progress((done + share) / num, doing)


def compute(config: FreeLogitsConfig, store: Store) -> Measured:
    """Train all models and compare them: one task, since logits of different runs meet."""
    settings: dict[float, Settings] = {0: {}}
    settings |= {factor: {"attention_logits": "free", "lr_logits": float(factor)} for factor in config.factors}
    parts = {factor: models.one_task(config, store.device, arm(factor), 1, **own) for factor, own in settings.items()}

    def work(space: Workspace) -> dict[str, pd.DataFrame]:
        tables, ends = [], {}
        for done, (factor, part) in enumerate(parts.items()):
            folder = space.folder / str(done)
            begun = partial(_report, space, done, len(parts))
            tables.append(part.work(Workspace(folder, space.device, begun)))
            for name in part.key["runs"]:
                if info(folder / name).status == "finished":
                    own, parameters = models.end_of(folder / name, space.device)
                    ends[factor, own.seed] = own, parameters
        return joined(tables) | compared(config, ends, space.device)

    key = {"arms": [part.key for part in parts.values()], "seen": LEAST_SEEN, "permutations": NUM_PERMUTATIONS}
    seconds = sum(part.seconds for part in parts.values())
    precision = str(config.settings["precision"])
    return gathered(store, [Task("free and projected logits", key, work, seconds, "free logits", precision)])


def steps_to(losses: pd.Series, level: float) -> float:
    """Return the first measured step at which a loss is at most this; the last step where it never is."""
    reached = losses.index[losses <= level]
    return float(max(1, reached[0] if len(reached) else losses.dropna().index[-1]))


def speeds(t: Measured, factor: float) -> pd.DataFrame:
    """Return, for each seed, the steps to the lowest loss with free logits, as a share of what these need.

    `projected` is the share of projected logits, `other` that of free logits with another seed.
    """
    losses = select(t.curves, metric=models.LOSS).pivot_table("value", "step", ["condition", "seed"])
    free, projected = losses[arm(factor)], losses[PROJECTED]
    seeds, rows = free.columns.intersection(projected.columns), []
    for at, seed in enumerate(seeds):
        level = free[seed].min() + MARGIN
        own, others = steps_to(free[seed], level), {"projected": projected[seed], "other": free[seeds[at - 1]]}
        rows.append({"seed": seed} | {name: steps_to(each, level) / own for name, each in others.items()})
    return pd.DataFrame(rows)


def paired(name: str, own: pd.DataFrame, columns: str, control_name: str, factor: float, **fields: Any) -> Number:
    """Return the mean of the first of two columns, with the second as its control, at one learning rate of Z."""
    values, control = (own[column] for column in columns.split())
    about: Settings = {"control_name": control_name, "paired": True, "setting": f"factor {factor:g}"}
    return Number.mean(name, values, control=control, **about, **fields)


@claim("free-logits-agree", "Free logits and projected ones", source="Section 7; slides", ours=True)
def agreement_numbers(t: Measured) -> Iterator[Number]:
    """Over pairs that are seen often, free logits agree with the token-by-token part of projected ones."""
    name = "correlation of free logits with the token-by-token part"
    for factor, own in t.seeds.groupby("factor"):
        yield paired(name, own, "agreement permuted", PERMUTED, factor, at_least=AGREEMENT, key=f"agree{factor:g}")
        for column, label in REPORTED.items():
            about: Settings = {"setting": f"factor {factor:g}", "key": f"{column}{factor:g}"}
            yield Number.mean(f"correlation of {label}", own[column], **about)


@claim("free-logits-speed", "Projected logits learn faster", source="Section 7", ours=True)
def speed_numbers(t: Measured) -> Iterator[Number]:
    """Projected logits may accelerate: they reach the lowest loss of free ones in at most half the steps."""
    name, control = "steps of projected logits over those of free ones", "free logits, another seed"
    for factor in t.config.factors:
        yield paired(name, speeds(t, factor), "projected other", control, factor, at_most=HALF, key=f"steps{factor:g}")


@claim("free-logits-unseen", "Pairs that were never seen", source="Section 7", ours=True)
def unseen_numbers(t: Measured) -> Iterator[Number]:
    """Projected logits gain more at positions whose pairs of tokens were never seen in training."""
    name, control = "gain over unseen pairs minus that over seen ones", "positions permuted within deciles of frequency"
    for factor, own in t.seeds.groupby("factor"):
        limits: Settings = {"at_least": 0.0, "unit": "nats", "key": f"unseen{factor:g}"}
        yield paired(name, own, "advantage advantage_permuted", control, factor, **limits)
        yield Number.mean("gain at all positions", own["gain"], unit="nats", setting=f"factor {factor:g}")


def charts(t: Measured) -> Iterator[Chart]:
    """Draw agreement and loss."""
    names = {"agreement": "free logits with that part", "permuted": "keys permuted"} | REPORTED
    long = t.seeds.rename(columns=names).melt(["factor", "seed"], [*names.values()], "pair", "value")
    means = over_seeds(long, ["factor", "pair"], "value")
    rules = [Rule(AGREEMENT)]
    yield points(means, "factor", "mean", color="pair", x_log=True, rules=rules, **caption("free-logits-agree"))
    losses = models.mean_curves(t, models.LOSS)
    yield lines(losses, "step", models.LOSS, color="condition", x_log=True, **caption("free-logits-loss"))


EXPERIMENTS = (
    Experiment(
        **catalogue("free-logits"),
        presets={"quick": QUICK, "small": SMALL, "full": FreeLogitsConfig()},
        compute=compute,
        claims=(agreement_numbers, speed_numbers, unseen_numbers),
        charts=charts,
        needs=models.needs,
        in_tasks=True,
    ),
)
