"""Figures 6 and 8: attention entropy and stable rank of language models while they learn, with controls.

Four depths at one learning rate (figure 6), seven learning rates at one depth (figure 8), and the same models with one
ingredient taken away, since the paper credits the MLP's nonlinearity with the rebound.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from joma.charts import Chart, Rule, lines, points
from joma.claims import Number, claim
from joma.engine.grid import FIGURE_6_DEPTHS, TEXT_RATES, TEXT_SEEDS
from joma.paper.experiment import Experiment, Measured, caption, catalogue, over_seeds, select
from joma.paper.language_models import (
    ENTROPY,
    FROZEN,
    LINEAR,
    LOSS,
    NEEDED,
    PAPER,
    RANK,
    VISIBLE,
    WINDOW,
    Settings,
    mean_curves,
    measured,
    needs,
    one_task,
    per_run,
    small,
)
from joma.store import Store, Task

UNTRAINED, OTHER_PRECISION = "untrained", "tf32"
CONTROLS: dict[str, Settings] = {
    LINEAR: {"activation": "linear"},
    "no optimiser restart": {"restart_every_epoch": False},
    "no dropout": {"dropout": 0.0},
    FROZEN: {"frozen": "attention"},
}
"""Ingredients that the rebound of the entropy may need, each taken away on its own."""
SHALLOW = 2
"""Up to this depth every layer is judged; above it the upper half."""
PUBLISHED = {
    "wikitext2": {1: 5.357, 2: 5.255, 5: 5.169, 10: 5.110},
    "wikitext103": {1: 5.047, 2: 4.912, 5: 4.762, 10: 4.679},
}
"""Lowest validation losses by depth at learning rate 1e-4, means over three seeds."""
LOSS_TOLERANCE = 0.03
"""Distance of a mean lowest loss from the published one that counts as the same."""
PRECISION_TOLERANCE = 0.02
"""Distance of the lowest losses of one seed in bf16 and in TF32."""
RANK_RISE = 0.1
"""Rise of the stable rank from its minimum, as a share of it, that counts as bouncing back."""
SUPPRESSED = 0.1
"""Nats by which the entropy of bottom layers must end below that of top ones."""
COLLAPSED = 0.05
"""Entropy at the end over that of the start, below which attention has collapsed."""
EXPONENT_TOLERANCE = 0.25
"""Distance of the exponent of the dip's time from -1 that counts as inverse proportion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelConfig:
    """Runs of figures 6 and 8 and their controls."""

    text: str = "wikitext2"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which every run differs from the paper's recipe."""
    depths: tuple[int, ...] = FIGURE_6_DEPTHS
    rate: float = 1e-4
    """The learning rate that the paper calls best."""
    rates: tuple[float, ...] = TEXT_RATES
    """Figure 8, at the depth `rate_depth`."""
    rate_depth: int = 5
    seeds: tuple[int, ...] = TEXT_SEEDS
    controls: tuple[str, ...] = tuple(CONTROLS)
    control_depths: tuple[int, ...] = (1, 5)
    checked_depths: tuple[int, ...] = (1, 5)
    """Depths at which one seed is trained in TF32 as well, to compare bf16 with it."""
    needs_gpu: bool = True


EARLY: Settings = {"precision": "bf16", "measure_spacing": "early"}
FULL = LanguageModelConfig(settings=EARLY | {"measure_every": 400})
"""The paper's settings, measured at about 170 steps, densely around the dip."""
FULL103 = LanguageModelConfig(
    text="wikitext103", settings=EARLY | {"epochs": 5, "measure_every": 2500}, controls=(), checked_depths=()
)
QUICK = LanguageModelConfig(
    text="python-docs", depths=(1, 2, 3), rate=3e-3, rates=(1e-3, 3e-3, 1e-2), rate_depth=2, seeds=(1, 2),
    controls=(LINEAR, "no dropout", FROZEN), control_depths=(1,), checked_depths=(), needs_gpu=False,
    settings=small(2000, 64, steps=400, measure_every=5, valid_windows=3),
)  # fmt: skip
"""Width 64, 2,000 words of Python's documentation, 400 steps, two seeds: what fits on two cores."""


def tasks(config: LanguageModelConfig, device: str, conditions: Iterable[str], depths: Sequence[int]) -> list[Task]:
    """Return one task for each condition and depth; at the depth of figure 8 all learning rates are one task.

    Args:
        config: The runs.
        device: Where they are trained, for the expected time.
        conditions: `PAPER`, `UNTRAINED`, `OTHER_PRECISION` or names of `CONTROLS`.
        depths: Depths of the paper's own condition and of untrained networks; the others have theirs in the config.
    """
    plan: dict[str, tuple[Iterable[int], Settings]] = {
        PAPER: (depths, {}),
        UNTRAINED: (depths, {"lr": (0.0,), "steps": 8, "epochs": None, "measure_every": 1}),
        OTHER_PRECISION: (config.checked_depths, {"seed": config.seeds[:1], "precision": OTHER_PRECISION}),
        **{name: (config.control_depths, own) for name, own in CONTROLS.items()},
    }
    all_rates = PAPER, config.rate_depth
    return [
        one_task(config, device, name, depth, **own | ({"lr": config.rates} if (name, depth) == all_rates else {}))
        for name in conditions
        for of, own in [plan[name]]
        for depth in of
    ]


def _effects(t: Measured, metric: str = ENTROPY, **chosen: Any) -> pd.DataFrame:
    """Return fall, dip and rise of curves; of results of version 0.1 from the lowest raw value."""
    if "effects" in t:
        return select(t.effects, metric=metric, **chosen)
    old = select(t.regimes.rename(columns={"first": "start", "kind": "name"}), metric=metric, **chosen)
    fall, rise = (old[name] - old["lowest"] for name in ("start", "end"))
    return old.assign(fall=fall, rise=rise, dip_step=old["dip_step"].fillna(old["lowest_step"]))


def judged_layers(effects: pd.DataFrame) -> pd.DataFrame:
    """Keep the layers that the paper speaks of: all of shallow models, the upper half of deep ones."""
    return effects[(effects["depth"] <= SHALLOW) | (effects["layer"] >= (effects["depth"] + 1) // 2)]


def compute_figure6(config: LanguageModelConfig, store: Store) -> Measured:
    """Train all depths, the untrained networks, frozen attention as the control, and one seed in TF32."""
    conditions = [PAPER, UNTRAINED, *({FROZEN} & set(config.controls)), OTHER_PRECISION]
    return measured(store, tasks(config, store.device, conditions, config.depths))


def compute_ablations(config: LanguageModelConfig, store: Store) -> Measured:
    """Train the same models with one ingredient taken away at a time."""
    return measured(store, tasks(config, store.device, (PAPER, *config.controls), config.control_depths))


def compute_figure8(config: LanguageModelConfig, store: Store) -> Measured:
    """Train all learning rates at one depth."""
    return measured(store, tasks(config, store.device, (PAPER,), (config.rate_depth,)))


def _losses(t: Measured, **chosen: Any) -> pd.Series:
    return select(t.runs, **chosen).set_index("seed")["best_loss"].sort_index()


def _depths(t: Measured, condition: str = PAPER) -> Iterator[tuple[int, Settings]]:
    """Yield each depth that was trained at the paper's rate, with how its numbers are labelled."""
    for depth in sorted(select(t.runs, condition=condition, lr=t.config.rate)["depth"].unique()):
        yield depth, {"unit": "nats", "setting": f"depth {depth}", "key": f"depth{depth}"}


@claim("figure6-losses", "Validation losses by depth", source="Figure 6")
def loss_numbers(t: Measured) -> Iterator[Number]:
    """At learning rate 1e-4 the lowest validation losses are 5.357 at depth 1, 5.255 at depth 2, 5.169 at depth 5,
    5.110 at depth 10.
    """
    for depth, about in _depths(t):
        if published := PUBLISHED.get(t.config.text, {}).get(depth):
            about |= {"at_least": published - LOSS_TOLERANCE, "at_most": published + LOSS_TOLERANCE}
        own = _losses(t, condition=PAPER, depth=depth, lr=t.config.rate)
        about |= {"control": _losses(t, condition=UNTRAINED, depth=depth), "control_name": UNTRAINED}
        yield Number.mean("lowest validation loss", own, published=published, **about)


@claim("figure6-rebound", "Attention entropy dips and rebounds", source="Section 6, Figure 6")
def rebound_numbers(t: Measured) -> Iterator[Number]:
    """Attention entropy drops and climbs back in every layer of shallow models and in the top layers of deep ones."""
    for metric, what in ((ENTROPY, "whole validation set"), (WINDOW, "the paper's single window")):
        judged = select(judged_layers(_effects(t, metric)), lr=t.config.rate)
        for depth, about in _depths(t):
            rises, frozen = (per_run(judged, "rise", condition=each, depth=depth) for each in (PAPER, FROZEN))
            fields = about | ({"key": f"rise{depth}", "at_least": VISIBLE} if metric == ENTROPY else {"key": ""})
            fields |= {"control": frozen, "control_name": FROZEN} if len(frozen) else {}
            yield Number.mean(f"rise after the dip, {what}", rises, **fields)
            if metric == ENTROPY:
                falls = per_run(judged, "fall", condition=PAPER, depth=depth)
                yield Number.mean("fall before it", falls, **about | {"key": f"fall{depth}"})


@claim(
    "figure6-rank",
    "The lower matrix's rank drops and bounces back",
    source="Section 4, relationship with the rank of the MLP's lower layer",
)
def rank_numbers(t: Measured) -> Iterator[Number]:
    """The rank of the MLP's lower matrix first drops, then bounces back."""
    judged = judged_layers(_effects(t, RANK, condition=PAPER, lr=t.config.rate))
    judged = judged.assign(ratio=judged["rise"] / judged["lowest"])
    for depth, about in _depths(t) if len(judged) else ():
        about |= {"unit": "share", "key": f"rank{depth}", "at_least": RANK_RISE}
        name = "rise of the stable rank from its minimum, over the minimum"
        yield Number.mean(name, per_run(judged, "ratio", depth=depth), **about)


@claim("figure6-bottom", "Bottom layers are suppressed", source="Figure 6, caption", primary=False)
def bottom_numbers(t: Measured) -> Iterator[Number]:
    """In deep models the entropy of bottom layers is suppressed by the interaction of layers."""
    for depth, about in _depths(t):
        if depth <= SHALLOW:
            continue
        difference = []
        for condition, rate in ((PAPER, t.config.rate), (UNTRAINED, 0.0)):
            own = _effects(t, depth=depth, condition=condition, lr=rate)
            upper = own["layer"] >= (depth + 1) // 2
            difference.append(per_run(own[upper], "end") - per_run(own[~upper], "end"))
        name, (trained, idle) = "entropy at the end, upper half of the layers minus the others", difference
        yield Number.mean(name, trained, control=idle, control_name=UNTRAINED, at_least=SUPPRESSED, **about)


@claim(
    "figure6-precision",
    "Half precision leaves the losses alone",
    source="Our own check of the runs of figures 6 and 8",
    primary=False,
    ours=True,
)
def precision_numbers(t: Measured) -> Iterator[Number]:
    """Products in bf16 with weights in fp32 give the losses of TF32."""
    for depth, _ in _depths(t, OTHER_PRECISION):
        other = _losses(t, condition=OTHER_PRECISION, depth=depth)
        own = _losses(t, condition=PAPER, depth=depth, lr=t.config.rate).reindex(other.index)
        name = f"lowest loss in bf16 against TF32, depth {depth}, one seed"
        yield Number(name=name, value=float((own - other).abs().max()), at_most=PRECISION_TOLERANCE, unit="nats")


@claim("rebound-ingredients", "What the rebound needs", source="Sections 4 and 5, Figure 6")
def ingredient_numbers(t: Measured) -> Iterator[Number]:
    """In the nonlinear case the entropy of the attention bounces back: it is the MLP's nonlinearity that does it."""
    judged = select(judged_layers(_effects(t)), lr=t.config.rate)
    for depth, about in _depths(t, LINEAR):
        base = per_run(judged, "rise", condition=PAPER, depth=depth)
        for condition in CONTROLS:
            rises = per_run(judged, "rise", condition=condition, depth=depth)
            about |= {"key": f"{condition.replace(' ', '_')}{depth}", "control": base, "control_name": PAPER}
            limit = float(NEEDED * base.mean()) if condition == LINEAR else None
            if len(rises):
                yield Number.mean(f"rise after the dip, {condition}", rises, at_most=limit, **about)


def _rates(t: Measured, **chosen: Any) -> pd.DataFrame:
    return _effects(t, condition=PAPER, depth=t.config.rate_depth, **chosen)


@claim("figure8-best", "The best learning rate", source="Section 6, Figure 8")
def best_numbers(t: Measured) -> Iterator[Number]:
    """Learning rate 1e-4 gives the lowest validation loss."""
    runs, rate = select(t.runs, condition=PAPER, depth=t.config.rate_depth), t.config.rate
    if rate in set(runs["lr"]):
        losses = runs.pivot(index="seed", columns="lr", values="best_loss")
        other = losses.mean().drop(rate).idxmin()
        name = f"lowest loss at {rate:g} minus that at the best other learning rate, {other:g}"
        yield Number.mean(name, losses[rate] - losses[other], at_most=0.0, unit="nats", key="gain")


@claim("figure8-collapse", "Large learning rates collapse attention", source="Section 6, Figure 8")
def collapse_numbers(t: Measured) -> Iterator[Number]:
    """With a large learning rate attention becomes extremely sparse."""
    effects, largest, rate = _rates(t), max(t.config.rates), t.config.rate
    effects = effects.assign(left=effects["end"] / effects["start"])
    name = f"entropy at the end over that of the start, learning rate {largest:g}"
    for layer, own in effects.groupby("layer"):
        about: Settings = {"unit": "share", "setting": f"layer {layer}", "key": f"layer{layer}"}
        left, control = (per_run(own, "left", lr=each) for each in (largest, rate))
        about |= {"control": control, "control_name": f"learning rate {rate:g}"}
        yield Number.mean(name, left, at_most=COLLAPSED, **about)


@claim("figure8-dip", "Time of the dip", source="Figure 8, asked further", ours=True)
def dip_numbers(t: Measured) -> Iterator[Number]:
    """The dip comes in inverse proportion to the learning rate."""
    dips = _rates(t, name="rebounding").query("dip_step > 0")
    slopes = [
        np.polyfit(np.log(own["lr"]), np.log(own["dip_step"]), 1)[0]
        for _, own in dips.groupby("seed")
        if own["lr"].nunique() > 2  # noqa: PLR2004 - a slope through two points has no error
    ]
    limits: Settings = {"at_least": -1 - EXPONENT_TOLERANCE, "at_most": -1 + EXPONENT_TOLERANCE}
    name = "exponent of the dip's step as a power of the learning rate, layers that rebound"
    yield Number.mean(name, slopes, key="exponent", **limits)
    for lr, own in dips.groupby("lr"):
        name = f"learning rate times step of the dip, at {lr:g}"
        yield Number.mean(name, (own["dip_step"] * lr).groupby(own["seed"]).mean(), unit="steps × rate")


@claim("figure8-regime", "The rebound goes with the lowest loss", source="Section 6, Figure 8", primary=False)
def rise_numbers(t: Measured) -> Iterator[Number]:
    """The attention patterns that agree with the theory give the lowest validation losses."""
    effects = _rates(t)
    for lr, own in effects.groupby("lr"):
        yield Number.mean(f"rise after the dip, learning rate {lr:g}", per_run(own, "rise"), unit="nats")
    losses = select(t.runs, condition=PAPER, depth=t.config.rate_depth).set_index(["seed", "lr"])["best_loss"]
    together = effects.groupby(["seed", "lr"])["rise"].mean().to_frame().join(losses)
    ranks = [
        own["rise"].corr(own["best_loss"], method="spearman")
        for _, own in together.groupby("seed")
        if own.nunique().min() > 1  # constants have no correlation
    ]
    name = "rank correlation over learning rates of the rise with the lowest loss"
    yield Number.mean(name, ranks, key="correlation")


losses_wikitext103 = claim(
    "figure6-losses-wikitext103",
    "The same on WikiText-103",
    says="The lowest validation losses are 5.047, 4.912, 4.762 and 4.679 at depths 1, 2, 5 and 10.",
    source="Figure 6, bottom row",
)(loss_numbers.numbers)

FIGURE6_CLAIMS = (loss_numbers, rebound_numbers, rank_numbers, bottom_numbers, precision_numbers)
ABLATION_CLAIMS = (ingredient_numbers,)
FIGURE8_CLAIMS = (best_numbers, collapse_numbers, dip_numbers, rise_numbers)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose depths are names, for panels: `depth 5`."""
    return table.assign(depth="depth " + table["depth"].astype(str))


def figure6_charts(t: Measured) -> Iterator[Chart]:
    """Draw entropy, rank and loss over training by depth."""
    chosen: Settings = {"condition": PAPER, "lr": t.config.rate}
    dips = _effects(t, **chosen).groupby(["depth", "layer"], as_index=False)[["dip_step", "lowest"]].mean()
    dips = _named(dips.rename(columns={"dip_step": "step", "lowest": ENTROPY}))
    for metric, id in ((ENTROPY, "figure6-entropy"), (WINDOW, "figure6-window"), (RANK, "figure6-rank")):
        by: Settings = {"color": "layer", "facet": "depth", "marks": dips if metric == ENTROPY else None}
        yield lines(_named(mean_curves(t, metric, **chosen)), "step", metric, x_log=True, **by, **caption(id))
    published = PUBLISHED.get(t.config.text, {}).items()
    by = {"color": "depth", "rules": [Rule(value, f"published, depth {depth}") for depth, value in published]}
    yield lines(mean_curves(t, LOSS, **chosen), "step", LOSS, x_log=True, **by, **caption("figure6-loss"))


def ablation_charts(t: Measured) -> Iterator[Chart]:
    """Draw the rises with and without each ingredient."""
    judged = select(judged_layers(_effects(t)), lr=t.config.rate)
    judged = judged[judged["depth"].isin(t.config.control_depths) & (judged["condition"] != OTHER_PRECISION)]
    means = _named(over_seeds(judged, ["condition", "depth"], "rise"))
    rules = [Rule(0.0)]
    yield points(means, "condition", "mean", n="size", facet="depth", rules=rules, **caption("rebound-controls"))


def figure8_charts(t: Measured) -> Iterator[Chart]:
    """Draw entropy by learning rate, and when it is lowest."""
    curves = mean_curves(t, ENTROPY, condition=PAPER, depth=t.config.rate_depth).sort_values("lr")
    curves = curves.assign(rate="learning rate " + curves["lr"].map("{:g}".format))
    by: Settings = {"color": "layer", "x_log": True}
    yield lines(curves, "step", ENTROPY, facet="rate", **by, **caption("figure8-entropy"))
    dips = _rates(t, name="rebounding").query("dip_step > 0").groupby(["lr", "layer"], as_index=False)
    yield points(dips["dip_step"].mean(), "lr", "dip_step", y_log=True, **by, **caption("figure8-dip"))


FIGURE6 = Experiment(
    **catalogue("figure6"),
    presets={"quick": QUICK, "full": FULL},
    compute=compute_figure6,
    claims=FIGURE6_CLAIMS,
    charts=figure6_charts,
    needs=needs,
    in_tasks=True,
)
EXPERIMENTS = (
    FIGURE6,
    replace(
        FIGURE6,
        **catalogue("rebound-controls"),
        compute=compute_ablations,
        claims=ABLATION_CLAIMS,
        charts=ablation_charts,
    ),
    replace(
        FIGURE6,
        **catalogue("figure8"),
        compute=compute_figure8,
        claims=FIGURE8_CLAIMS,
        charts=figure8_charts,
    ),
    replace(
        FIGURE6,
        **catalogue("figure6-wikitext103"),
        presets={"quick": FULL103, "full": FULL103},
        claims=(losses_wikitext103,),
    ),
)
