"""Why does attention entropy fall and rise again? A ladder of ingredients, changed one at a time.

The paper's answer is the nonlinearity of the MLP. At depth 1 a linear MLP rebounds too, so that answer is not enough.
Here one ingredient of figure 6's models is changed at a time: the activation, what is trained, norms, residuals, width,
optimiser and, above all, positions. Sinusoidal positions have a vector that all positions share, their mean, and terms
of the logits that contain it do not depend on where a token stands. Judged is the rise after the later dip, in nats, of
every layer of depth 1 and of the first layer of depth 2; deeper models are reported layer by layer. A run whose entropy
falls by less than half as far as in the base is not comparable.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from joma.charts import Chart, Rule, lines, points
from joma.claims import Claim, Number, claim
from joma.paper.experiment import Experiment, Measured, caption, catalogue, over_seeds, select
from joma.paper.language_models import (
    ENTROPY,
    LINEAR,
    LONG,
    NEEDED,
    Settings,
    measured,
    needs,
    one_task,
    per_run,
    small,
)
from joma.store import Store

BASE = "base"
CENTRED, MEAN, DISPLACED, NONE = "centred", "mean alone", "random direction taken away", "no positions"
LADDER: dict[str, Settings] = {
    BASE: {},
    "leaky activation": {"negative_slope": 0.5},
    LINEAR: {"activation": "linear"},
    "frozen MLP": {"frozen": "mlp"},
    "frozen embedding": {"frozen": "embedding"},
    "frozen values and outputs": {"frozen": "value+output"},
    "frozen norms": {"frozen": "norm"},
    "no norms": {"norm": "none"},
    "RMS norms": {"norm": "rms"},
    "norms before": {"norm_place": "before"},
    "no residual around attention": {"residual_attention": False},
    "no residual around the MLP": {"residual_mlp": False},
    "narrow MLP": {"hidden": 50},
    "wide MLP": {"hidden": 2000},
    "no dropout": {"dropout": 0.0},
    "no optimiser restart": {"restart_every_epoch": False},
    "weight decay": {"optimiser": "adamw", "weight_decay": 0.1},
    "logits halved": {"attention_scale": 0.5},
}
"""Settings in which each arm differs from figure 6's recipe."""
POSITIONS: dict[str, Settings] = {
    CENTRED: {"positions": "centred"},
    "centred, full norm": {"positions": "rescaled"},
    DISPLACED: {"positions": "displaced"},
    MEAN: {"positions": "mean"},
    "a constant vector": {"positions": "constant"},
    "learned": {"positions": "learned", "max_length": 35},
    "rotary": {"positions": "rotary"},
    NONE: {"positions": "none"},
}
ARMS = LADDER | POSITIONS
POSITION_NAMES = {
    BASE: "sinusoidal", CENTRED: "without the mean", MEAN: "the mean alone", NONE: "none",
    DISPLACED: "minus a random vector",
}  # fmt: skip
"""Arms whose curves are drawn."""
KEPT = 2 / 3
"""An ingredient is enough if the rise with it alone is at least this share of the base's."""
COMPARABLE = 0.5
"""Least fall of a comparable run, as a share of the base's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReboundCauseConfig:
    """Arms, depths and seeds; no earlier result on the rebound used these seeds."""

    text: str = "wikitext2"
    settings: Mapping[str, Any] = field(default_factory=lambda: LONG | {"valid_windows": 200})
    rate: float = 1e-4
    depths: tuple[int, ...] = (1, 2)
    """Depths at which all arms are trained."""
    deep: int | None = 5
    """Depth at which `deep_arms` are trained and reported layer by layer."""
    arms: tuple[str, ...] = tuple(ARMS)
    deep_arms: tuple[str, ...] = (BASE, LINEAR, CENTRED, MEAN, "rotary", NONE)
    seeds: tuple[int, ...] = (101, 102, 103, 104, 105)
    needs_gpu: bool = True


ONE_LAYER = ReboundCauseConfig(
    depths=(1,), deep=None, deep_arms=(), arms=(BASE, CENTRED, MEAN, DISPLACED, NONE, LINEAR)
)
"""The part of the ladder that decides on positions, at depth 1: what ten minutes of a GPU can train."""
SMALL = replace(
    ONE_LAYER, rate=3e-4, seeds=(111, 112, 113, 114), needs_gpu=False, arms=(BASE, CENTRED, MEAN, DISPLACED, NONE),
    settings={
        "vocabulary_cap": 2000, "batch": 10, "steps": 7000, "measure_every": 100, "measure_spacing": "early",
        "valid_windows": 10, "precision": "fp32",
    },
)  # fmt: skip
"""Positions at depth 1 with the 2,000 most frequent words, half the batch and three times the learning rate, so that a
third of the steps goes as far. Rate and steps were chosen on one run of the base with another seed."""
FRESH = replace(ONE_LAYER, arms=(BASE, CENTRED, MEAN), seeds=(151, 152, 153, 154, 155))
"""What small models had pointed to, asked of fresh seeds; chosen before any run of full size."""
QUICK = replace(
    SMALL, text="python-docs", rate=3e-3, seeds=(1, 2), arms=(BASE, LINEAR, CENTRED, MEAN, DISPLACED),
    settings=small(1000, 32, steps=150, measure_every=5, valid_windows=2),
)  # fmt: skip


def compute(config: ReboundCauseConfig, store: Store) -> Measured:
    """Train every arm at every depth: a task each."""
    plan = [(arm, depth) for depth in config.depths for arm in config.arms]
    plan += [(arm, config.deep) for arm in config.deep_arms if config.deep]
    return measured(store, [one_task(config, store.device, arm, depth, **ARMS[arm]) for arm, depth in plan])


def rises(t: Measured) -> dict[str, pd.DataFrame]:
    """Return, for each judged setting, one row a run: its arm, seed, fall, rise and whether it is comparable."""
    entropy, found = select(t.effects, metric=ENTROPY), {}
    for depth in t.config.depths:
        own = select(entropy, depth=depth, layer=0).rename(columns={"condition": "arm"})
        least = COMPARABLE * own.loc[own["arm"] == BASE, "fall"].mean()
        setting = f"depth {depth}" if depth == 1 else f"depth {depth}, first layer"
        words = t.config.settings.get("vocabulary_cap")
        setting += f", {words:,} words" if words else ""
        found[setting] = own.assign(comparable=own["fall"] >= least)
    return found


def of_arm(runs: pd.DataFrame, arm: str) -> pd.Series:
    """Return the rise of each comparable run of an arm, by seed."""
    return per_run(runs[runs["comparable"]], "rise", arm=arm)


@claim("rebound-positions", "A vector common to all positions", source="Open question, positions", ours=True)
def position_numbers(t: Measured) -> Iterator[Number]:
    """The later dip and rise of the first layer need a vector common to all positions, and it is enough."""
    for setting, runs in rises(t).items():
        base, centred, mean, displaced, none = (of_arm(runs, arm) for arm in (BASE, CENTRED, MEAN, DISPLACED, NONE))
        about: Settings = {"unit": "nats", "setting": setting}
        depth, needed, enough = runs["depth"].iloc[0], float(NEEDED * base.mean()), float(KEPT * base.mean())
        without = about | {"at_most": needed, "control": displaced, "control_name": DISPLACED}
        yield Number.mean("rise with centred positions", centred, key=f"centred{depth}", **without)
        alone = about | ({"at_least": enough, "control": none, "control_name": NONE} if NONE in t.config.arms else {})
        yield Number.mean("rise with the mean of the positions alone", mean, key=f"mean{depth}", **alone)
        name = "rise with a random vector subtracted from all positions"
        yield Number.mean(name, displaced, key=f"displaced{depth}", at_least=enough, **about)
        yield Number.mean("rise of the base", base, key=f"base{depth}", **about)
        if NONE in t.config.arms:
            own = per_run(runs, "rise", arm=NONE)
            yield Number.mean("rise without positions, comparable or not", own, key=f"none{depth}", **about)


@claim("rebound-answer", "The vector that all positions share, on fresh seeds", source="Open question", ours=True)
def answer_numbers(t: Measured) -> Iterator[Number]:
    """Without the vector that all positions share less than a third of the rise is left; alone it gives two thirds."""
    for setting, runs in rises(t).items():
        base, centred, mean = (of_arm(runs, arm) for arm in (BASE, CENTRED, MEAN))
        about: Settings = {"unit": "nats", "setting": setting}
        name, left = "rise with centred positions, less a third of the base's", (centred - NEEDED * base).dropna()
        without = about | {"at_most": 0.0, "control": (1 - NEEDED) * base, "control_name": BASE}
        yield Number.mean(name, left, key="without", **without)
        name, won = "rise with the mean of the positions alone, less two thirds of the base's", mean - KEPT * base
        alone = about | {"at_least": 0.0, "control": (centred - KEPT * base).dropna(), "control_name": CENTRED}
        yield Number.mean(name, won.dropna(), key="alone", **alone)
        for arm, own in ((BASE, base), (CENTRED, centred), (MEAN, mean)):
            yield Number.mean(f"rise, {arm}", own, key=arm.replace(" ", "_"), **about)


@claim("rebound-dip", "Fall, end and dip", source="Added after seeing the result", primary=False, ours=True)
def dip_numbers(t: Measured) -> Iterator[Number]:
    """How far the entropy falls, where it ends and when it is lowest, with each kind of positions."""
    for setting, runs in rises(t).items():
        for arm in t.config.arms:
            for column, name in (("fall", "fall"), ("end", "entropy at the end"), ("dip_step", "step of the dip")):
                about: Settings = {"unit": "" if column == "dip_step" else "nats", "setting": setting}
                about["key"] = f"{column.removesuffix('_step')}_{arm.replace(' ', '_')}"
                yield Number.mean(f"{name}, {arm}", per_run(runs, column, arm=arm), **about)


@claim("rebound-nonlinearity", "The nonlinearity of the MLP", source="Sections 4 and 5, Figure 6")
def nonlinearity_numbers(t: Measured) -> Iterator[Number]:
    """In the nonlinear case the entropy of the attention bounces back: it is the MLP's nonlinearity that does it."""
    for setting, runs in rises(t).items() if LINEAR in t.config.arms else ():
        base, linear = of_arm(runs, BASE), of_arm(runs, LINEAR)
        limits = {"at_most": float(NEEDED * base.mean()), "control": base, "control_name": BASE}
        about: Settings = {"unit": "nats", "setting": setting, "key": f"linear{runs['depth'].iloc[0]}"}
        yield Number.mean("rise with a linear MLP", linear, **about, **limits)


@claim("rebound-ladder", "What changes the rise", source="Open question", primary=False, ours=True)
def ladder_numbers(t: Measured) -> Iterator[Number]:
    """The rise with each ingredient changed, and the share of runs that are comparable."""
    for setting, runs in rises(t).items():
        for arm in t.config.arms:
            of = runs[runs["arm"] == arm]
            yield Number.mean(f"rise, {arm}", per_run(of, "rise"), unit="nats", setting=setting)
            yield Number.mean(f"comparable runs, {arm}", of["comparable"].astype(float), unit="share", setting=setting)


def charts(t: Measured, name: str) -> Iterator[Chart]:
    """Draw the entropy of the positions' arms over training, and the rises of all arms, ingredients and positions."""
    runs = pd.concat([runs.assign(setting=setting) for setting, runs in rises(t).items()])
    dips = runs.rename(columns={"arm": "condition", "dip_step": "step", "lowest": "mean"})
    curves, dips = (
        own.assign(what=own["condition"].map(POSITION_NAMES)).dropna(subset="what")
        for own in (select(each, layer=0, metric=ENTROPY, depth=t.config.depths[0]) for each in (t.curves, dips))
    )
    curves, dips = over_seeds(curves, ["what", "step"], "value"), dips.groupby("what", as_index=False)
    by: Settings = {"color": "what", "order": list(POSITION_NAMES.values()), "x_log": True}
    yield lines(curves, "step", "mean", marks=dips[["step", "mean"]].mean(), **by, **caption(f"{name}-curves"))
    base = float(np.mean(runs.loc[runs["arm"] == BASE, "rise"]))
    for what, arms in (("positions", [BASE, *POSITIONS]), ("ladder", [*LADDER])):
        own = over_seeds(runs[runs["arm"].isin(arms)], ["arm", "setting"], "rise")
        if what == "positions":
            own["arm"] = own["arm"].map(POSITION_NAMES)
        rules = [
            Rule(base, POSITION_NAMES[BASE] if what == "positions" else BASE),
            Rule(NEEDED * base, "a third of it"),
        ]
        if len(own) > 1:
            yield points(own, "arm", "mean", facet="setting", n="size", rules=rules, **caption(f"{name}-{what}"))


def _asked(id: str, claims: tuple[Claim, ...], **presets: ReboundCauseConfig) -> Experiment:
    """Return the experiment that asks some claims of these settings."""
    own: Settings = {**catalogue(id), "charts": partial(charts, name=id)}
    return Experiment(presets=presets, compute=compute, claims=claims, needs=needs, in_tasks=True, **own)


OF_LADDER = (position_numbers, nonlinearity_numbers, ladder_numbers)
EXPERIMENTS = (
    _asked("rebound-cause", OF_LADDER, quick=QUICK, small=SMALL, full=ReboundCauseConfig()),
    _asked("rebound-cause-depth1", OF_LADDER, quick=QUICK, full=ONE_LAYER),
    _asked("rebound-answer", (answer_numbers, dip_numbers), quick=replace(QUICK, arms=FRESH.arms), full=FRESH),
)
