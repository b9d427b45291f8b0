r"""Does attention entropy fall and rise in every architecture? Residuals, norms, GPT and BERT.

One arm is one way to build the model of figure 6: with or without the residual around attention or around the MLP,
with layer norms, RMS norms or none, before or after each part, and one factor at a time around two bases. Three
learning rates and three seeds choose each arm's rate; ten arms named beforehand get five fresh seeds at it, and these
are judged. An arm counts if its loss ends well below the entropy of single words. Of the states x that the output layer
reads, the token uniformity is $\|x - 1\bar x^\top\|/\|x\|$, averaged over sequences. The rise of a run is that of the
layer which rises most. BERT is the engine's own, with a mask for 15 % of the words; there is no image model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats

from joma.charts import Chart, Rule, points
from joma.claims import Number, claim
from joma.engine.config import RunConfig
from joma.engine.sources import corpus_of, source_of
from joma.models.batch import Parameters
from joma.models.decoder import Decoder
from joma.paper import language_models as models
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, over_seeds, select
from joma.paper.language_models import FROZEN, LONG, SETTING, VISIBLE, Settings, small
from joma.paper.latent_neurons import of_one_run
from joma.store import Store, Task

AFTER, BEFORE, RMS, GELU = "norms after", "norms before", "RMS before", "GELU, norms before"
NO_ATTENTION, NO_MLP, BERT = "no attention residual", "no MLP residual", "BERT"
NORMS: dict[str, Settings] = {
    AFTER: {"norm_place": "after"},
    BEFORE: {"norm_place": "before"},
    "RMS after": {"norm": "rms"},
    RMS: {"norm": "rms", "norm_place": "before"},
    "no norms": {"norm": "none"},
}
TAKEN_AWAY: dict[str, Settings] = {NO_ATTENTION: {"residual_attention": False}, NO_MLP: {"residual_mlp": False}}
BASES: dict[str, Settings] = {AFTER: NORMS[AFTER], GELU: {"norm_place": "before", "activation": "gelu"}}
FACTORS: dict[str, Settings] = {"gated": {"gated": True}, "4 heads": {"heads": 4}}
FACTORS |= {"linear": {"activation": "linear"}, "rotary": {"positions": "rotary"}}
LEARNED: Settings = {"positions": "learned", "max_length": 35}
ARMS: dict[str, Settings] = (
    NORMS
    | {f"{norm}, {less}": NORMS[norm] | TAKEN_AWAY[less] for norm in NORMS for less in TAKEN_AWAY}
    | {GELU: BASES[GELU]}
    | {f"{base}, {factor}": BASES[base] | FACTORS[factor] for base in BASES for factor in FACTORS}
    | {BERT: LEARNED | {"readout": "masked_word", "causal": False, "activation": "gelu", "heads": 4}}
)
"""Settings in which each arm differs from figure 6's recipe."""
WITHOUT = {f"{norm}, {NO_ATTENTION}": norm for norm in (AFTER, BEFORE, RMS)}
"""Judged arms without the residual around attention, each with the arm that has it: its control."""
WITH = {AFTER: AFTER, f"{AFTER}, linear": AFTER} | dict.fromkeys((BEFORE, RMS, GELU), BEFORE)
WITH |= {f"{GELU}, gated": BEFORE, f"{GELU}, rotary": BEFORE}
"""Judged arms with that residual, each with the base whose frozen attention is its control."""
JUDGED = (*WITH, *WITHOUT)
"""The ten arms that were named before any result; they get fresh seeds."""
CONTROLS = {f"{norm}, {FROZEN}": norm for norm in (AFTER, BEFORE)}
"""Arms whose attention keeps its start, each with the arm whose rate it is trained at."""
SPREAD, SPREAD_START, UNIGRAM = "token_spread", "token_spread_start", "unigram_entropy"
LEAST_CORRELATION, LEAST_ARMS, NUM_BOOTSTRAPS = 0.5, 5, 2000
"""Threshold of the correlation over arms, arms from which on it is asked, and draws for its error."""
SHORT = small(1000, 64, steps=3000, measure_every=50, measure_spacing="early", valid_windows=10)
TINY = small(500, 32, steps=80, measure_every=8, valid_windows=3)
"""Settings of small models and of trials on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchitecturesConfig:
    """Arms, depths, rates and seeds; no earlier result used these seeds."""

    text: str = "wikitext2"
    settings: Mapping[str, Any] = field(default_factory=lambda: LONG)
    depths: tuple[int, ...] = (1, 5)
    arms: tuple[str, ...] = tuple(ARMS)
    """Arms whose rate is chosen among `rates`; others are trained at `rate`."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    rate: float = 1e-4
    choosing_seeds: tuple[int, ...] = (221, 222, 223)
    judged: tuple[str, ...] = JUDGED
    seeds: tuple[int, ...] = (224, 225, 226, 227, 228)
    """Fresh seeds, of the judged arms and the controls."""
    below_unigram: float = 1.0
    """Nats below the entropy of single words at which the loss of an arm that counts must end."""
    needs_gpu: bool = True


FEW: Settings = {"judged": (AFTER, BEFORE, *list(WITHOUT)[:2]), "depths": (1,), "needs_gpu": False}
SMALL = ArchitecturesConfig(arms=(), rate=1e-3, seeds=(231, 232, 233, 234), below_unigram=0.5, settings=SHORT, **FEW)
"""Two arms with and without the residual, 1,000 words, width 64: minutes on one CPU core. Of so few words, pairs of
neighbours say 0.6 nats more than single ones, so an arm counts from 0.5 nats on."""
QUICK = ArchitecturesConfig(
    text="python-docs", settings=TINY, arms=(*FEW["judged"], BERT), rates=(1e-3, 1e-2), choosing_seeds=(1,),
    seeds=(2, 3), below_unigram=-1.0, **FEW,
)  # fmt: skip


def states(config: RunConfig, parameters: Parameters, device: str) -> dict[str, float]:
    """Return a run's token uniformity at its end and at its start, and the entropy of single words of its text."""
    data, decoder = config.data, Decoder(config.model)
    words = torch.bincount(corpus_of(data.data, data.vocabulary_cap, data.shuffle_seed).train).double()
    tokens = next(iter(source_of([config], device).validation())).tokens
    found = {UNIGRAM: float(torch.special.entr(words / words.sum()).sum())}
    for name, own in ((SPREAD, parameters), (SPREAD_START, of_one_run(decoder.initial(config.seed), device))):
        with torch.no_grad():  # with a tap, so that nothing is compiled for this one batch
            x = decoder.hidden(own, decoder.embed(own, tokens), tokens, tap=lambda reading: None)
        x = x.double()
        apart = torch.linalg.vector_norm(x - x.mean(dim=-2, keepdim=True), dim=(-2, -1))
        found[name] = float((apart / torch.linalg.vector_norm(x, dim=(-2, -1))).mean())  # ‖x − 1x̄ᵀ‖/‖x‖
    return found


def arm_task(config: ArchitecturesConfig, device: str, arm: str, depth: int, **axes: Any) -> Task:
    """Return the task that trains one arm at one depth, with the token uniformity of every run."""
    own = ARMS[CONTROLS[arm]] | {"frozen": "attention"} if arm in CONTROLS else ARMS[arm]
    return models.with_ends(models.one_task(config, device, arm, depth, **own, **axes), "ends", states)


def best_rates(runs: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return the rate of lowest mean validation loss at the end, by arm and depth; a failed run's loss is infinite."""
    losses = runs["end_loss"].where(runs["status"] == "finished", np.inf)
    means = losses.groupby([runs["condition"], runs["depth"], runs["lr"]]).mean()
    return {(arm, depth): float(rate) for arm, depth, rate in means.groupby(level=[0, 1]).idxmin()}


def compute(config: ArchitecturesConfig, store: Store) -> Measured:
    """Choose the rate of every arm, and train the judged arms and the controls at it with fresh seeds."""
    plan = [(arm, depth) for arm in config.arms for depth in config.depths]
    axes: Settings = {"lr": config.rates, "seed": config.choosing_seeds}
    tasks = [arm_task(config, store.device, *each, **axes) for each in plan]
    chosen = gathered(store, tasks)
    rates = best_rates(chosen.runs) if chosen else {}
    for arm in (*config.judged, *CONTROLS):
        for depth in config.depths:
            own = (CONTROLS.get(arm, arm), depth)
            if own in plan and own not in rates:
                continue  # its rate is not chosen yet
            rates[arm, depth] = rates.get(own, config.rate)
            tasks.append(arm_task(config, store.device, arm, depth, lr=(rates[arm, depth],), seed=config.seeds))
    t = gathered(store, tasks)
    if not t:
        return t
    best = pd.DataFrame([(*key, rate) for key, rate in rates.items()], columns=["condition", "depth", "lr"])
    return models.described(t.copy_with(curves=select(t.curves, metric=models.ENTROPY).merge(best)))


def trained(t: Measured) -> pd.DataFrame:
    """Return one row for each run at its arm's rate: the largest rise of a layer, uniformity, and whether it counts."""
    rise = t.effects.groupby(SETTING)["rise"].max()
    table = t.ends.set_index(SETTING).join([rise, t.runs.set_index(SETTING)["end_loss"]], how="inner").reset_index()
    gain = (table[UNIGRAM] - table["end_loss"]).groupby([table["condition"], table["depth"]]).transform("mean")
    return table.assign(counts=gain >= t.config.below_unigram)


def rises(t: Measured, arms: Mapping[str, str], **limits: Any) -> Iterator[Number]:
    """Return the rise of those arms that count, each with a control on the same seeds, at every depth."""
    table = trained(t)
    for depth, own in table[table["seed"].isin(t.config.seeds)].groupby("depth"):
        by_seed = own.pivot_table("rise", "seed", "condition")
        counting = [arm for arm in arms if arm in set(own.loc[own["counts"], "condition"])]
        about: Settings = {"setting": f"depth {depth}"}
        yield Number.exact("arms that count", len(counting), **about)
        for arm in counting:
            both = by_seed.reindex(columns=[arm, arms[arm]]).dropna()
            about |= {"control": both.iloc[:, 1], "control_name": arms[arm], "paired": True, "unit": "nats"}
            yield Number.mean(
                f"largest rise of a layer, {arm}", both.iloc[:, 0], key=f"{arm} {depth}", **limits, **about
            )


@claim("architectures-rise", "The rebound in every architecture", source="Open question 3", ours=True)
def rise_numbers(t: Measured) -> Iterator[Number]:
    """With a residual around attention, the entropy of at least one layer rises again in every architecture."""
    yield from rises(t, {arm: f"{base}, {FROZEN}" for arm, base in WITH.items()}, at_least=VISIBLE)


@claim("architectures-residual", "The residual around attention", source="Open question 3", ours=True)
def residual_numbers(t: Measured) -> Iterator[Number]:
    """Without the residual around attention the entropy of no layer rises again."""
    yield from rises(t, WITHOUT, at_most=VISIBLE)


def rank_correlations(samples: Float[np.ndarray, "*batch N K"]) -> Float[np.ndarray, "*batch K-1"]:
    """Return Spearman's correlation of the first column with each of the others; NaN where one is constant."""
    ranks = stats.rankdata(samples, axis=-2)
    centred = ranks - ranks.mean(axis=-2, keepdims=True)
    with np.errstate(invalid="ignore"):
        unit = centred / np.linalg.norm(centred, axis=-2, keepdims=True)
    return np.einsum("...n,...nk->...k", unit[..., 0], unit[..., 1:])


@claim("architectures-uniformity", "Rise and token uniformity over architectures", source="Open question 3", ours=True)
def uniformity_numbers(t: Measured) -> Iterator[Number]:
    """Over architectures, the rise goes with how different the states of a sequence's tokens are at the end."""
    table = trained(t)
    for depth, own in table[table["counts"] & ~table["condition"].isin(CONTROLS)].groupby("depth"):
        arms = own.groupby("condition")[["rise", SPREAD, SPREAD_START]].mean().to_numpy()
        if len(arms) < LEAST_ARMS:
            continue
        drawn = np.random.default_rng(0).integers(len(arms), size=(NUM_BOOTSTRAPS, len(arms)))
        (value, control), bootstraps = rank_correlations(arms), rank_correlations(arms[drawn])
        about: Settings = {"n": len(arms), "df": len(arms) - 1, "difference_df": len(arms) - 1}
        about |= {"error": np.nanstd(bootstraps[:, 0]), "difference_error": np.nanstd(-np.diff(bootstraps))}
        about |= {"control": control, "control_name": "uniformity before training", "setting": f"depth {depth}"}
        yield Number(name="rank correlation over arms", value=value, at_least=LEAST_CORRELATION, **about)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the rise of every arm, and the rises over the token uniformity."""
    table = trained(t)
    table["depth"] = "depth " + table["depth"].astype(str)
    means, spread = (over_seeds(table, ["condition", "depth"], name) for name in ("rise", SPREAD))
    means[SPREAD] = spread["mean"]
    by: Settings = {"facet": "depth", "rules": [Rule(VISIBLE)]}
    yield points(means, "condition", "mean", n="size", **by, **caption("architectures-rise"))
    arms = means[~means["condition"].isin(CONTROLS)]
    yield points(arms, SPREAD, "mean", **by, **caption("architectures-uniformity"))


EXPERIMENTS = (
    Experiment(
        **catalogue("architectures"),
        presets={"quick": QUICK, "small": SMALL, "full": ArchitecturesConfig()},
        compute=compute,
        claims=(rise_numbers, residual_numbers, uniformity_numbers),
        charts=charts,
        needs=models.needs,
        in_tasks=True,
    ),
)
