r"""Figure 5 and Theorem 5: how a hierarchy of latents shows in co-occurrence, in attention and in hidden neurons.

Three questions. Does co-occurrence fall with the height of the common ancestor as Theorem 5 says, down to the limit
$1 - H/L$? In which order does attention pick tokens up, by the flow of Eqn 6 and in a trained network? And which level
of latents does each block of a 3-layer decoder learn first, on deep and on shallow trees? Controls: trees without
order, relabelled leaves, the untrained network, shuffled latents.
"""

import pandas as pd

from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.experiments.figure5_measure import (
    ATTENTION,
    DEEP,
    NCORR,
    SHALLOW,
    Config,
    attention_leads,
    cooccurrences,
    flows,
    learned_levels,
    limits,
    over_seeds,
    training_curves,
)
from joma.experiments.figure5_verdicts import first_levels, verdicts
from joma.figures.chart import Chart, Line, Panel


def quick() -> Config:
    """A narrow network, two seeds and few steps: half a minute on a CPU."""
    return Config(
        is_small=True,
        num_blocks=16,
        block_size=2000,
        width=64,
        hidden=64,
        lr=1e-4,
        steps=160,
        checkpoint_every=16,
        seeds=(1, 2),
        batch=64,
        precision="fp32",
        num_samples=640,
        num_shuffles=5,
    )


def full() -> Config:
    """A wider network, ten seeds, until the loss has settled."""
    return Config()


def compute(config: Config, workplace: Workplace) -> Result:
    """Co-occurrences, flows and trained networks."""
    workplace.progress(0.0, "co-occurrence on latent trees")
    table, limit = cooccurrences(config), limits(config)
    flow, times = flows(config)
    runs = training_curves(config, workplace)
    levels = learned_levels(runs)
    losses = runs[runs["step"] == config.steps].groupby("tree")["loss"].mean()
    firsts = first_levels(levels[levels["tree"] == DEEP])
    return Result(
        tables={
            "cooccurrence": table,
            "limit": limit,
            "flow": flow,
            "flow_times": times,
            "curves": over_seeds(runs),
            "levels": levels,
            "leads": attention_leads(runs),
        },
        facts={
            "is_small": config.is_small,
            "num_seeds": len(config.seeds),
            "rho": config.rho,
            "loss_deep": float(losses[DEEP]),
            "loss_shallow": float(losses[SHALLOW]),
        }
        | {f"first_level_block{layer}": level for layer, level in firsts.items()},
    )


def draw(result: Result) -> tuple[Chart, ...]:
    """Co-occurrence, attention and levels."""
    note = " Small size." if result.facts["is_small"] else ""
    curves, flow = result.tables["curves"], result.tables["flow"]
    return (
        Chart(
            id="figure5-cooccurrence",
            title="Co-occurrence and the height of the common ancestor",
            caption="Exact, sampled (two standard errors) and the limit 1 − H/L of Eqn 8; H = L is the root, where "
            "Theorem 5 does not apply." + note,
            panels=[
                *(_cooccurrence_panel(result.tables["cooccurrence"], tree) for tree in (DEEP, SHALLOW)),
                _limit_panel(result.tables["limit"]),
            ],
        ),
        Chart(
            id="figure5-flow",
            title="Attention by the height of the common ancestor: the flow",
            caption="Eqn 6 with saliency proportional to co-occurrence, the query itself left out. 1 is uniform "
            "attention." + note,
            panels=[
                _flow_panel(part, tree) for tree, part in flow[flow["flow"] == "Eqn 6"].groupby("tree", sort=False)
            ],
        ),
        Chart(
            id="figure5-attention",
            title="Attention by the height of the common ancestor: in training",
            caption="Of the query to the other tokens in each block of a trained network, by the height H of their "
            "lowest common ancestor (1 is the nearest). 1 is uniform attention. Lines are means over the seeds, bands "
            "one standard error between seeds. Dashed: relabelled, the same attention with the leaves dealt to other "
            f"places in the tree. Losses at the end: {result.facts['loss_deep']:.3f} on the deep tree, "
            f"{result.facts['loss_shallow']:.3f} on the shallow one." + note,
            panels=_training_panels(curves, ATTENTION, "attention / uniform", ("value", "control")),
        ),
        Chart(
            id="figure5-levels",
            title="Latents in hidden neurons over training",
            caption="What training added since step 0 to NCorr, the largest correlation of a latent with a "
            "neuron of the block, averaged over the latents of height H (1 lies above tokens). Lines are means "
            "over the seeds; bands are one standard error of NCorr itself between seeds, so they have a width at step "
            "0 too. Dashed: shuffled latents." + note,
            panels=_training_panels(curves, NCORR, "NCorr added since step 0", ("added", "added_control")),
        ),
    )


def _cooccurrence_panel(table: pd.DataFrame, tree: str) -> Panel:
    own = table[table["tree"] == tree]
    spread = 2 * own["error"]
    items = [
        Line("exact", own["height"], own["exact"]),
        Line(
            "sampled",
            own["height"],
            own["sampled"],
            low=own["sampled"] - spread,
            high=own["sampled"] + spread,
            style="points",
        ),
        Line("1 − H/L", own["height"], own["limit"], style="dashed"),
        Line("ρ = 0", own["height"], own["control"], style="dashed"),
    ]
    return Panel(f"{tree} tree", "height H of the common ancestor", "P[l | m]", items)


def _limit_panel(limit: pd.DataFrame) -> Panel:
    items = [
        Line(f"ε = {epsilon:g}", part["height"], part["exact"], shade=at)
        for at, (epsilon, part) in enumerate(limit.groupby("epsilon"))
    ]
    last = limit[limit["epsilon"] == limit["epsilon"].min()]
    items.append(Line("1 − H/L", last["height"], last["limit"], style="dashed"))
    return Panel("ρ = ρ₀ = 1 − ε", "height H of the common ancestor", "P[l | m]", items)


def _flow_panel(flow: pd.DataFrame, tree: str) -> Panel:
    items = [
        Line(f"H = {height}", part["t"], part["attention"], shade=float(height))
        for height, part in flow.groupby("height")
    ]
    return Panel(f"Eqn 6, {tree} tree", "time", "attention / uniform", items)


def _training_panels(curves: pd.DataFrame, what: str, label: str, columns: tuple[str, str]) -> list[Panel]:
    own = curves[curves["what"] == what]
    return [
        Panel(f"{tree} tree, block {layer}", "step", label, _training_lines(part, *columns))
        for (tree, layer), part in own.groupby(["tree", "layer"])
    ]


def _training_lines(part: pd.DataFrame, column: str, control: str) -> list[Line]:
    items = []
    for height, one in part.groupby("height"):
        value, error = one[column], one["error"]
        shade = float(height)
        items.append(Line(f"H = {height}", one["step"], value, low=value - error, high=value + error, shade=shade))
        items.append(Line("", one["step"], one[control], style="dashed", shade=shade))
    return items


EXPERIMENT = Experiment(
    id="figure5",
    title="Hierarchies of latents: co-occurrence, attention and neurons",
    place="Section 5, Theorem 5, Eqn 8, figure 5",
    question="Does co-occurrence fall with the height of the common ancestor, does attention pick tokens up in that "
    "order, and which level of latents does each block learn first?",
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    in_pieces=True,
    schema=3,
)
