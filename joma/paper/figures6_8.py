"""Figures 6 and 8: attention entropy and stable rank of language models while they learn, with controls.

Four depths at one learning rate (figure 6), seven learning rates at one depth (figure 8), and the same models with one
ingredient taken away, since the paper credits the MLP's nonlinearity with the rebound. Claims are judged on the fall
and rise of each run in nats, with an interval over seeds.
"""

from typing import Any

import numpy as np
import pandas as pd

from joma.charts import Chart, Rule, lines, points
from joma.claims import Claim, Number
from joma.paper.experiment import Experiment, Measured
from joma.paper.language_models import (
    CONTROLS,
    ENTROPY,
    FULL,
    FULL103,
    LINEAR,
    LOSS,
    OTHER_PRECISION,
    PAPER,
    QUICK,
    RANK,
    SHALLOW,
    UNTRAINED,
    WIKITEXT2,
    WIKITEXT103,
    WINDOW,
    LanguageModelConfig,
    effects_of,
    judged_layers,
    mean_curves,
    measured,
    needs,
    per_run,
    tasks,
)
from joma.store import Store

PUBLISHED = {
    WIKITEXT2: {1: 5.357, 2: 5.255, 5: 5.169, 10: 5.110},
    WIKITEXT103: {1: 5.047, 2: 4.912, 5: 4.762, 10: 4.679},
}
"""Lowest validation losses by depth at learning rate 1e-4, means over three seeds."""
LOSS_TOLERANCE = 0.03
"""Distance of a mean lowest loss from the published one that counts as the same."""
PRECISION_TOLERANCE = 0.02
"""Distance of the lowest losses of one seed in bf16 and in TF32."""
VISIBLE = 0.1
"""Rise of the entropy, in nats, that counts as a rebound."""
RANK_RISE = 0.1
"""Rise of the stable rank from its minimum, as a share of it, that counts as bouncing back."""
SUPPRESSED = 0.1
"""Nats by which the entropy of bottom layers must end below that of top ones."""
COLLAPSED = 0.05
"""Entropy at the end over that of the start, below which attention has collapsed."""
EXPONENT_TOLERANCE = 0.25
"""Distance of the exponent of the dip's time from -1 that counts as inverse proportion."""
NEEDED = 1 / 3
"""An ingredient is needed if the rise without it is below this share of the rise with it."""
FROZEN = "frozen attention"


def compute_figure6(config: LanguageModelConfig, store: Store) -> Measured:
    """Train all depths, the untrained networks, frozen attention as the control, and one seed in TF32."""
    controls = [name for name in config.controls if name == FROZEN]
    conditions = (PAPER, UNTRAINED, *controls, OTHER_PRECISION)
    return measured(store.gather(tasks(config, store.device, conditions, config.depths)))


def compute_ablations(config: LanguageModelConfig, store: Store) -> Measured:
    """Train the same models with one ingredient taken away at a time."""
    return measured(store.gather(tasks(config, store.device, (PAPER, *config.controls), config.control_depths)))


def compute_figure8(config: LanguageModelConfig, store: Store) -> Measured:
    """Train all learning rates at one depth."""
    return measured(store.gather(tasks(config, store.device, (PAPER,), (config.rate_depth,))))


def _entropy(t: Measured, metric: str = ENTROPY) -> pd.DataFrame:
    effects = effects_of(t) if len(t) else pd.DataFrame(columns=["metric", "depth", "layer", "condition", "lr", "seed"])
    return effects[effects["metric"] == metric]


def _losses(t: Measured, **chosen: Any) -> pd.Series:
    runs = t.runs
    for name, value in chosen.items():
        runs = runs[runs[name] == value]
    return runs.set_index("seed")["best_loss"].sort_index()


def _depths(t: Measured, condition: str = PAPER) -> list[int]:
    if "runs" not in t:
        return []
    own = t.runs[(t.runs["condition"] == condition) & (t.runs["lr"] == t.config.rate)]
    return sorted(own["depth"].unique())


# --- figure 6 ------------------------------------------------------------------------------------------------------


def loss_numbers(t: Measured) -> list[Number]:
    """Return the lowest validation losses by depth, to lie within a tolerance of the published ones."""
    published = PUBLISHED.get(t.config.text, {})
    numbers = []
    for depth in _depths(t):
        limits: dict[str, Any] = {}
        if depth in published:
            limits = {"at_least": published[depth] - LOSS_TOLERANCE, "at_most": published[depth] + LOSS_TOLERANCE}
        numbers.append(
            Number.mean(
                "lowest validation loss",
                _losses(t, condition=PAPER, depth=depth, lr=t.config.rate),
                control=_losses(t, condition=UNTRAINED, depth=depth),
                control_name=UNTRAINED,
                published=published.get(depth),
                unit="nats",
                setting=f"depth {depth}",
                key=f"depth{depth}",
                **limits,
            )
        )
    return numbers


def rebound_numbers(t: Measured) -> list[Number]:
    """Return how far the entropy rises after its dip, by depth, on the layers that the paper names."""
    numbers = []
    for metric, what in ((ENTROPY, "whole validation set"), (WINDOW, "the paper's single window")):
        judged = judged_layers(_entropy(t, metric))
        for depth in _depths(t):
            rises = per_run(judged, "rise", condition=PAPER, depth=depth, lr=t.config.rate)
            frozen = per_run(judged, "rise", condition=FROZEN, depth=depth, lr=t.config.rate)
            control: dict[str, Any] = {"control": frozen, "control_name": FROZEN} if len(frozen) else {}
            limit: dict[str, Any] = {"at_least": VISIBLE, "key": f"rise{depth}"} if metric == ENTROPY else {}
            numbers.append(
                Number.mean(
                    f"rise after the dip, {what}", rises, unit="nats", setting=f"depth {depth}", **limit, **control
                )
            )
            if metric == ENTROPY:
                falls = per_run(judged, "fall", condition=PAPER, depth=depth, lr=t.config.rate)
                numbers.append(
                    Number.mean("fall before it", falls, unit="nats", setting=f"depth {depth}", key=f"fall{depth}")
                )
    return numbers


def rank_numbers(t: Measured) -> list[Number]:
    """Return how far the lower matrix's stable rank rises from its minimum, as a share of it."""
    judged = _entropy(t, RANK)
    if judged.empty:
        return []
    judged = judged_layers(judged.assign(ratio=judged["rise"] / judged["lowest"]))
    return [
        Number.mean(
            "rise of the stable rank from its minimum, over the minimum",
            per_run(judged, "ratio", condition=PAPER, depth=depth, lr=t.config.rate),
            at_least=RANK_RISE,
            unit="share",
            setting=f"depth {depth}",
            key=f"rank{depth}",
        )
        for depth in _depths(t)
    ]


def bottom_numbers(t: Measured) -> list[Number]:
    """Return the entropy at the end, upper layers minus lower ones, of deep models."""
    effects, numbers = _entropy(t), []
    for depth in (depth for depth in _depths(t) if depth > SHALLOW):
        difference = {}
        for condition, rate in ((PAPER, t.config.rate), (UNTRAINED, 0.0)):
            own = effects[(effects["depth"] == depth) & (effects["condition"] == condition) & (effects["lr"] == rate)]
            upper = own["layer"] >= (depth + 1) // 2
            difference[condition] = own[upper].groupby("seed")["end"].mean() - own[~upper].groupby("seed")["end"].mean()
        numbers.append(
            Number.mean(
                "entropy at the end, upper half of the layers minus the others",
                difference[PAPER],
                control=difference[UNTRAINED],
                control_name=UNTRAINED,
                at_least=SUPPRESSED,
                unit="nats",
                setting=f"depth {depth}",
                key=f"depth{depth}",
            )
        )
    return numbers


def precision_numbers(t: Measured) -> list[Number]:
    """Return how far the lowest loss of one seed in bf16 is from that in TF32."""
    numbers = []
    for depth in _depths(t, OTHER_PRECISION):
        other = _losses(t, condition=OTHER_PRECISION, depth=depth)
        own = _losses(t, condition=PAPER, depth=depth, lr=t.config.rate).reindex(other.index)
        name = f"lowest loss in bf16 against TF32, depth {depth}, one seed"
        numbers.append(
            Number(name=name, value=float((own - other).abs().max()), at_most=PRECISION_TOLERANCE, unit="nats")
        )
    return numbers


def ingredient_numbers(t: Measured) -> list[Number]:
    """Return the rise with each ingredient taken away; without the nonlinearity it should vanish."""
    judged, numbers = judged_layers(_entropy(t)), []
    for depth in _depths(t, LINEAR):
        base = per_run(judged, "rise", condition=PAPER, depth=depth, lr=t.config.rate)
        for condition in CONTROLS:
            rises = per_run(judged, "rise", condition=condition, depth=depth, lr=t.config.rate)
            limit: dict[str, Any] = {"at_most": float(NEEDED * base.mean())} if condition == LINEAR else {}
            if len(rises):
                numbers.append(
                    Number.mean(
                        f"rise after the dip, {condition}",
                        rises,
                        control=base,
                        control_name=PAPER,
                        unit="nats",
                        setting=f"depth {depth}",
                        key=f"{condition.replace(' ', '_')}{depth}",
                        **limit,
                    )
                )
    return numbers


FIGURE6_CLAIMS = (
    Claim(
        id="figure6-losses",
        title="Validation losses by depth",
        says="At learning rate 1e-4 the lowest validation losses are 5.357 at depth 1, 5.255 at depth 2, 5.169 at "
        "depth 5, 5.110 at depth 10.",
        source="Figure 6",
        numbers=loss_numbers,
    ),
    Claim(
        id="figure6-rebound",
        title="Attention entropy dips and rebounds",
        says="Attention entropy drops and climbs back in every layer of shallow models and in the top layers of deep "
        "ones.",
        source="Section 6, Figure 6",
        numbers=rebound_numbers,
    ),
    Claim(
        id="figure6-rank",
        title="The lower matrix's rank drops and bounces back",
        says="The rank of the MLP's lower matrix first drops, then bounces back.",
        source="Section 4, relationship with the rank of the MLP's lower layer",
        numbers=rank_numbers,
    ),
    Claim(
        id="figure6-bottom",
        title="Bottom layers are suppressed",
        says="In deep models the entropy of bottom layers is suppressed by the interaction of layers.",
        source="Figure 6, caption",
        numbers=bottom_numbers,
        primary=False,
    ),
    Claim(
        id="figure6-precision",
        title="Half precision leaves the losses alone",
        says="Products in bf16 with weights in fp32 give the losses of TF32.",
        source="Our own check of the runs of figures 6 and 8",
        numbers=precision_numbers,
        primary=False,
        ours=True,
    ),
)


ABLATION_CLAIMS = (
    Claim(
        id="rebound-ingredients",
        title="What the rebound needs",
        says="In the nonlinear case the entropy of the attention bounces back: it is the MLP's nonlinearity that does "
        "it.",
        source="Sections 4 and 5, Figure 6",
        numbers=ingredient_numbers,
    ),
)


def figure6_charts(t: Measured) -> list[Chart]:
    """Draw entropy, rank and loss over training by depth, and the rises with and without each ingredient."""
    if "curves" not in t:
        return []
    effects, drawn = _entropy(t), []
    common: dict[str, Any] = {"x_log": True, "labels": {"step": "training step"}, "band": ("low", "high")}
    for metric, slug, title in (
        (ENTROPY, "figure6-entropy", "Attention entropy falls and recovers at every depth"),
        (WINDOW, "figure6-window", "The same on the paper's single window"),
        (RANK, "figure6-rank", "The stable rank of the lower matrix falls and stays low"),
    ):
        curves = mean_curves(t, metric)
        curves = curves[(curves["condition"] == PAPER) & (curves["lr"] == t.config.rate)]
        curves = curves.assign(depth="depth " + curves["depth"].astype(str)).rename(columns={"value": metric})
        drawn.append(
            lines(
                curves,
                "step",
                metric,
                color="layer",
                facet="depth",
                id=slug,
                title=title,
                marks=_dips(effects, t, metric),
                caption="Mean over seeds; bands from the lowest to the highest. Dots: the lowest point of each layer.",
                **common,
            )
        )
    losses = mean_curves(t, LOSS)
    losses = losses[(losses["condition"] == PAPER) & (losses["lr"] == t.config.rate)]
    drawn.append(
        lines(
            losses.rename(columns={"value": LOSS}),
            "step",
            LOSS,
            color="depth",
            id="figure6-loss",
            rules=[
                Rule(value, f"published, depth {depth}") for depth, value in PUBLISHED.get(t.config.text, {}).items()
            ],
            title="Validation losses agree with the published ones",
            caption="Dashed: lowest losses as published.",
            **common,
        )
    )
    return drawn


def ablation_charts(t: Measured) -> list[Chart]:
    """Draw the rises with and without each ingredient."""
    effects = _entropy(t)
    if effects.empty:
        return []
    shown = effects[(effects["lr"] == t.config.rate) & (effects["condition"] != OTHER_PRECISION)]
    rises = judged_layers(shown)
    table = rises.groupby(["condition", "depth", "seed"])["rise"].mean().groupby(["condition", "depth"])
    table = table.agg(["mean", "sem", "size"]).reset_index()
    table = table.assign(low=table["mean"] - 2 * table["sem"], high=table["mean"] + 2 * table["sem"])
    table = table[table["depth"].isin(t.config.control_depths)].assign(depth="depth " + table["depth"].astype(str))
    return [
        points(
            table,
            "condition",
            "mean",
            facet="depth",
            error=("low", "high"),
            n="size",
            id="rebound-controls",
            labels={"mean": "rise after the dip (nats)", "condition": ""},
            rules=[Rule(0.0)],
            title="A linear MLP recovers too at depth 1, and not at depth 5",
            caption="Mean over seeds of the judged layers; bars are two standard errors.",
        )
    ]


def _dips(effects: pd.DataFrame, t: Measured, metric: str) -> pd.DataFrame | None:
    """Return the lowest point of each layer, mean over seeds, to be marked."""
    if metric != ENTROPY:
        return None
    own = effects[(effects["condition"] == PAPER) & (effects["lr"] == t.config.rate)]
    means = own.groupby(["depth", "layer"], as_index=False)[["dip_step", "lowest"]].mean()
    return means.assign(depth="depth " + means["depth"].astype(str)).rename(
        columns={"dip_step": "step", "lowest": metric}
    )


# --- figure 8 ------------------------------------------------------------------------------------------------------


def _rates(t: Measured) -> pd.DataFrame:
    effects = _entropy(t)
    return effects[(effects["condition"] == PAPER) & (effects["depth"] == t.config.rate_depth)]


def best_numbers(t: Measured) -> list[Number]:
    """Return the lowest loss at the paper's learning rate minus that at the best other one, seed by seed."""
    runs = t.runs[(t.runs["condition"] == PAPER) & (t.runs["depth"] == t.config.rate_depth)] if "runs" in t else None
    if runs is None or t.config.rate not in set(runs["lr"]):
        return []
    losses = runs.pivot(index="seed", columns="lr", values="best_loss")
    other = losses.mean().drop(t.config.rate).idxmin()
    return [
        Number.mean(
            f"lowest loss at {t.config.rate:g} minus that at the best other learning rate, {other:g}",
            losses[t.config.rate] - losses[other],
            at_most=0.0,
            unit="nats",
            key="gain",
        )
    ]


def collapse_numbers(t: Measured) -> list[Number]:
    """Return, layer by layer, the entropy that is left at the largest learning rate."""
    effects = _rates(t)
    left = effects.assign(left=effects["end"] / effects["start"]) if len(effects) else effects
    return [
        Number.mean(
            f"entropy at the end over that of the start, learning rate {max(t.config.rates):g}",
            per_run(left, "left", lr=max(t.config.rates), layer=layer),
            control=per_run(left, "left", lr=t.config.rate, layer=layer),
            control_name=f"learning rate {t.config.rate:g}",
            at_most=COLLAPSED,
            unit="share",
            setting=f"layer {layer}",
            key=f"layer{layer}",
        )
        for layer in (sorted(left["layer"].unique()) if len(left) else ())
    ]


def dip_numbers(t: Measured) -> list[Number]:
    """Return the exponent of the dip's step as a power of the learning rate, fitted for each seed."""
    effects = _rates(t)
    if effects.empty:
        return []
    effects = effects[(effects["name"] == "rebounding") & (effects["dip_step"] > 0)]
    slopes = [
        np.polyfit(np.log(own["lr"]), np.log(own["dip_step"]), 1)[0]
        for _, own in effects.groupby("seed")
        if own["lr"].nunique() > 2  # noqa: PLR2004 - a slope through two points has no error
    ]
    limits: dict[str, Any] = {"at_least": -1 - EXPONENT_TOLERANCE, "at_most": -1 + EXPONENT_TOLERANCE}
    name = "exponent of the dip's step as a power of the learning rate, layers that rebound"
    return [
        Number.mean(name, slopes, key="exponent", **limits),
        *(
            Number.mean(
                f"learning rate times step of the dip, at {lr:g}",
                (own["dip_step"] * lr).groupby(own["seed"]).mean(),
                unit="steps × rate",
            )
            for lr, own in effects.groupby("lr")
        ),
    ]


def rise_numbers(t: Measured) -> list[Number]:
    """Return the rise at each learning rate, and the correlation over rates of the rise with the lowest loss."""
    effects = _rates(t)
    if effects.empty:
        return []
    numbers = [
        Number.mean(f"rise after the dip, learning rate {lr:g}", own.groupby("seed")["rise"].mean(), unit="nats")
        for lr, own in effects.groupby("lr")
    ]
    losses = t.runs[(t.runs["condition"] == PAPER) & (t.runs["depth"] == t.config.rate_depth)]
    together = (
        effects.groupby(["seed", "lr"])["rise"].mean().to_frame().join(losses.set_index(["seed", "lr"])["best_loss"])
    )
    ranks = [
        own["rise"].corr(own["best_loss"], method="spearman")
        for _, own in together.groupby("seed")
        if own.nunique().min() > 1  # constants have no correlation
    ]
    name = "rank correlation over learning rates of the rise with the lowest loss"
    return [*numbers, Number.mean(name, ranks, key="correlation")]


FIGURE8_CLAIMS = (
    Claim(
        id="figure8-best",
        title="The best learning rate",
        says="Learning rate 1e-4 gives the lowest validation loss.",
        source="Section 6, Figure 8",
        numbers=best_numbers,
    ),
    Claim(
        id="figure8-collapse",
        title="Large learning rates collapse attention",
        says="With a large learning rate attention becomes extremely sparse.",
        source="Section 6, Figure 8",
        numbers=collapse_numbers,
    ),
    Claim(
        id="figure8-dip",
        title="Time of the dip",
        says="The dip comes in inverse proportion to the learning rate.",
        source="Figure 8, asked further",
        numbers=dip_numbers,
        ours=True,
    ),
    Claim(
        id="figure8-regime",
        title="The rebound goes with the lowest loss",
        says="The attention patterns that agree with the theory give the lowest validation losses.",
        source="Section 6, Figure 8",
        numbers=rise_numbers,
        primary=False,
    ),
)


def figure8_charts(t: Measured) -> list[Chart]:
    """Draw entropy by learning rate, and when it is lowest."""
    if "curves" not in t:
        return []
    curves = mean_curves(t, ENTROPY)
    curves = curves[(curves["condition"] == PAPER) & (curves["depth"] == t.config.rate_depth)]
    curves = curves.assign(rate="learning rate " + curves["lr"].map("{:g}".format)).rename(columns={"value": ENTROPY})
    dips = _rates(t)
    dips = dips[(dips["name"] == "rebounding") & (dips["dip_step"] > 0)]
    means = dips.groupby(["lr", "layer"], as_index=False)["dip_step"].mean()
    names = {"step": "training step", "lr": "learning rate", "dip_step": "step of the dip"}
    return [
        lines(
            curves.sort_values("lr"),
            "step",
            ENTROPY,
            color="layer",
            facet="rate",
            band=("low", "high"),
            x_log=True,
            id="figure8-entropy",
            labels=names,
            title="At large learning rates the bottom layer collapses",
            caption="Mean over seeds; bands from the lowest to the highest.",
        ),
        points(
            means,
            "lr",
            "dip_step",
            color="layer",
            x_log=True,
            y_log=True,
            id="figure8-dip",
            labels=names,
            title="The dip comes earlier with a larger learning rate",
            caption="Layers that rebound; mean over seeds.",
        ),
    ]


# --- WikiText-103 --------------------------------------------------------------------------------------------------

WIKITEXT103_CLAIMS = (
    Claim(
        id="figure6-losses-wikitext103",
        title="The same on WikiText-103",
        says="The lowest validation losses are 5.047, 4.912, 4.762 and 4.679 at depths 1, 2, 5 and 10.",
        source="Figure 6, bottom row",
        numbers=loss_numbers,
    ),
)

EXPERIMENTS = (
    Experiment(
        id="figure6",
        title="Attention of language models while they learn",
        source="Section 6, Figure 6; Section 4 on ranks",
        question="Does attention first become sparse and then dense again, in which layers, and does the rank follow?",
        presets={"quick": QUICK, "full": FULL},
        compute=compute_figure6,
        claims=FIGURE6_CLAIMS,
        charts=figure6_charts,
        needs=needs,
        in_tasks=True,
    ),
    Experiment(
        id="rebound-controls",
        title="What the rebound of the entropy needs",
        source="Sections 4 and 5, Figure 6",
        question="Is it the MLP's nonlinearity that brings attention back, or another ingredient?",
        presets={"quick": QUICK, "full": FULL},
        compute=compute_ablations,
        claims=ABLATION_CLAIMS,
        charts=ablation_charts,
        needs=needs,
        in_tasks=True,
    ),
    Experiment(
        id="figure8",
        title="Attention entropy by learning rate",
        source="Section 6, Figure 8",
        question="Which learning rate gives the lowest loss, what does attention do there, and where does it collapse?",
        presets={"quick": QUICK, "full": FULL},
        compute=compute_figure8,
        claims=FIGURE8_CLAIMS,
        charts=figure8_charts,
        needs=needs,
        in_tasks=True,
    ),
    Experiment(
        id="figure6-wikitext103",
        title="Figure 6 on WikiText-103",
        source="Section 6, Figure 6, bottom row",
        question="Are the losses on a larger text as published?",
        presets={"quick": FULL103, "full": FULL103},
        compute=compute_figure6,
        claims=WIKITEXT103_CLAIMS,
        charts=figure6_charts,
        needs=needs,
        in_tasks=True,
    ),
)
