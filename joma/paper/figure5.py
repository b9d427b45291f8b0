r"""Figure 5 and Theorem 5: how a hierarchy of latents shows in co-occurrence, in attention and in hidden neurons.

Three questions. Does co-occurrence fall with the height of the common ancestor as Theorem 5 says, down to the limit
$1 - H/L$? In which order does attention pick tokens up, by the flow of Eqn 6 and in a trained network? And which level
of latents does each block of a 3-layer decoder learn first? Controls: trees without order, relabelled leaves, the
untrained network, shuffled latents.

Deep and shallow trees have the same number of leaves. Heights count from the leaves: a latent of height 1 lies above
tokens, and tokens $l$, $m$ have a common ancestor of height $H$. Changes over training count from the same run's start.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from joma.charts import Chart, Rule, lines
from joma.claims import Number, Outcome, claim, outcome_of
from joma.data.latent_trees import TreeSampler
from joma.engine import grid as recipes
from joma.engine.config import TREES, DataConfig, RunConfig
from joma.engine.grid import Run, grid
from joma.engine.snapshots import CHECKPOINTS, load_snapshot, name_of
from joma.engine.sources import tree_of
from joma.models.batch import LayerReading, Parameters
from joma.models.decoder import Decoder
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, select
from joma.paper.latent_neurons import Row, latent_samples, ncorr, of_one_run, pack_tasks
from joma.randomness import run_keys
from joma.store import Store
from joma.theory.attention_flow import AttentionFlow
from joma.theory.convergence import ConvergenceFlow, TiedFlow
from joma.theory.latent_tree import cooccurrence

DEEP, SHALLOW = TREE_NAMES = ("deep", "shallow")
NCORR, ATTENTION = "ncorr", "attention"
FLOWS: dict[str, type[TiedFlow]] = {"Eqn 6": ConvergenceFlow, "the model's flow": AttentionFlow}
CURVE = ["tree", "what", "layer", "height"]
"""What one curve over training is of, apart from its seed."""
SALIENCY = 4.0
"""Target of a token that always occurs with the query: the largest of figure 4."""
FLOW_TIMES = np.linspace(0.0, 2.0, 401)
HALF = 0.5
"""Part of the way at which something counts as learned."""
NUM_LAST = 3
"""Measurements whose mean is the end of a run."""
NO_ORDER = 0.0
"""ρ of the control: all leaves below one child of the root occur together equally often."""
LEAST_DELAY = 1.2
"""Factor by which the farthest tokens, or the highest latents, must be learned later than the nearest or lowest."""
LEAST_LEAD = 0.1
"""Logarithm of the factor by which attention must grow more for the nearest tokens than for the farthest."""
LEAST_GAIN = 0.05
"""NCorr that training must add for a level to count as learned."""
RELABELLED, SHUFFLED = "leaves dealt to other places in the tree", "shuffled latents"


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A regular tree with classes."""

    tree_depth: int
    branching: int
    num_classes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure5Config:
    """Latent trees, and networks trained on them."""

    is_small: bool = False
    """Whether the networks are too small to judge claims on training."""
    deep: TreeShape = TreeShape(tree_depth=4, branching=2, num_classes=3)
    """Three levels of latents for three blocks."""
    shallow: TreeShape = TreeShape(tree_depth=2, branching=4, num_classes=4)
    """One level of latents over as many leaves."""
    rho: float = 0.8
    limit_depth: int = 5
    """L of the tree on which the limit 1 − H/L is approached."""
    epsilons: tuple[float, ...] = (0.2, 0.1, 0.01, 0.001)
    """1 − ρ = 1 − ρ₀ on the way there."""
    num_blocks: int = 32
    """Independent blocks of samples, whose spread gives the error of co-occurrences."""
    block_size: int = 4000
    width: int = 256
    hidden: int = 512
    lr: float = 3e-5
    steps: int = 2000
    checkpoint_every: int = 80
    """Steps between measurements of neurons and attention."""
    seeds: tuple[int, ...] = tuple(range(1, 11))
    batch: int = 128
    precision: str = "tf32"
    num_samples: int = 1280
    num_shuffles: int = 20

    def __post_init__(self) -> None:
        """Refuse measurements that miss the end, and trees that do not differ in depth."""
        if self.steps % self.checkpoint_every:
            raise ValueError(f"`checkpoint_every` must divide {self.steps} steps, got {self.checkpoint_every}.")
        if self.deep.tree_depth <= self.shallow.tree_depth:
            raise ValueError(f"`deep` must be deeper than `shallow`, got {self.deep} and {self.shallow}.")

    def data(self, name: str, rho: float) -> DataConfig:
        """Return the settings of the deep or of the shallow tree."""
        return DataConfig(data=TREES, rho=rho, batch=self.batch, **asdict(getattr(self, name)))


QUICK = Figure5Config(
    is_small=True, num_blocks=16, block_size=2000, width=64, hidden=64, lr=1e-4, steps=160, checkpoint_every=16,
    seeds=(1, 2), batch=64, precision="fp32", num_samples=640, num_shuffles=5,
)  # fmt: skip


def compute(config: Figure5Config, store: Store) -> Measured:
    """Co-occurrences, flows and trained networks."""
    settings = {"what": "figure5", "deep": config.deep.tree_depth, "checkpoint_every": config.checkpoint_every}
    settings |= {"num_samples": config.num_samples, "num_shuffles": config.num_shuffles}
    grids = [_runs(config, name) for name in TREE_NAMES]
    found = gathered(store, pack_tasks(grids, store.device, partial(_run_rows, config), settings))
    tables = theory(config)
    if found and len(found.rows):
        runs = found.rows
        tables |= {"curves": averaged(runs), "levels": learned_levels(runs), "leads": attention_leads(runs)}
    return Measured(**tables)


def theory(config: Figure5Config) -> dict[str, pd.DataFrame]:
    """Return what needs no training: co-occurrences, their limit (Eqn 8), the flows and their half times."""
    L, H = config.limit_depth, np.arange(1, config.limit_depth)
    limits = [{"epsilon": e, "height": H, "exact": cooccurrence(H, L, 1 - e, 1 - e)} for e in config.epsilons]
    limit = pd.concat([pd.DataFrame(each).assign(limit=1 - H / L) for each in limits], ignore_index=True)
    both = [cooccurrences(config, name) for name in TREE_NAMES]
    flow, times = flows(config)
    return {"cooccurrence": pd.concat(both, ignore_index=True), "limit": limit, "flow": flow, "flow_times": times}


def cooccurrences(config: Figure5Config, name: str) -> pd.DataFrame:
    """Co-occurrence by height of the common ancestor: exact, sampled, by Theorem 5 corrected and as printed.

    Errors are standard errors, from independent blocks of samples.
    """
    tree, blind = (tree_of(config.data(name, rho)) for rho in (config.rho, NO_ORDER))
    heights = tree.ancestor_heights()
    L, rho0 = int(heights.max()), float(tree.root_parameters[0])
    H = np.arange(1, L + 1)
    exact, control = ([each.cooccurrence_matrix()[heights == h].mean() for h in H] for each in (tree, blind))
    keys = run_keys(range(1, config.num_blocks + 1))
    on = TreeSampler.of(tree).sample(keys, 0, config.block_size).present.double()
    together, often = (on.mT @ on).numpy(), on.sum(dim=1).numpy()[:, None, :]
    sampled = [together[:, heights == h].sum(axis=1) / (often * (heights == h)).sum(axis=(1, 2)) for h in H]
    table = pd.DataFrame({"tree": name, "height": H, "exact": exact, "sampled": np.mean(sampled, axis=1)})
    table["error"] = np.std(sampled, axis=1, ddof=1) / np.sqrt(config.num_blocks)
    for column, root in (("formula", rho0), ("printed", (1 + rho0) / 2)):
        table[column] = [*cooccurrence(H[:-1], L, config.rho, root), np.nan]  # not for the root itself, H = L
    return table.assign(limit=1 - H / L, control=control)


def flows(config: Figure5Config) -> tuple[pd.DataFrame, pd.DataFrame]:
    r"""How the other tokens share the first leaf's attention over time, and when each has come half way, by height.

    Targets are $\mu_l \propto P[l \mid m]$. In the control, $\rho = 0$, co-occurrence is the same at all heights.
    """
    curves, times = [], []
    for name, rho, (flow_name, make) in product(TREE_NAMES, (config.rho, NO_ORDER), FLOWS.items()):
        tree = tree_of(config.data(name, rho))
        frequency, heights = tree.cooccurrence_matrix()[1:, 0], tree.ancestor_heights()[0, 1:]
        flow = make(mu=SALIENCY * frequency)
        v = flow.solution(FLOW_TIMES)
        weight = frequency * np.exp(flow.log_attention(v))
        share = weight / weight.sum(axis=1, keepdims=True) * len(heights)
        learned = v / flow.critical_point()
        for H in np.unique(heights):
            own, about = heights == H, {"flow": flow_name, "height": int(H)}
            half = crossing(FLOW_TIMES, learned[:, own].mean(axis=1), HALF)
            times.append({"tree": name, "rho": rho, **about, "half": half})
            if rho == config.rho:
                attention = share[:, own].mean(axis=1)
                curves.append(pd.DataFrame({"tree": name, **about, "t": FLOW_TIMES, "attention": attention}))
    return pd.concat(curves, ignore_index=True), pd.DataFrame(times)


def crossing(x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"], level: float) -> float:
    """Return where a curve first reaches a level, on a straight line between points; NaN where it never does.

    >>> crossing(np.arange(3.0), np.array([0.0, 1.0, 4.0]), 2.5)
    1.5
    """
    above = np.flatnonzero(y >= level)
    if not above.size:
        return float("nan")
    i = int(above[0])
    return float(x[0]) if i == 0 else float(np.interp(level, [y[i - 1], y[i]], [x[i - 1], x[i]]))


def _runs(config: Figure5Config, name: str) -> tuple[Run, ...]:
    fields = ("rho", "width", "hidden", "lr", "steps", "checkpoint_every", "batch", "precision")
    shared = {field: getattr(config, field) for field in fields} | {"measure_every": config.steps}
    base = recipes.recipe("trees").base.update(shared | asdict(getattr(config, name)))
    return grid(base, {"seed": config.seeds}, ("tree_depth", "rho", "lr"))


def _run_rows(config: Figure5Config, run: RunConfig, folder: Path, end: Parameters, device: str) -> list[Row]:
    """Measure attention by height, and NCorr of every level of latents, in every block and checkpoint of a run.

    Attention is the mean of tokens that are present to others that are, in units of uniform attention. Its control
    deals the leaves to other places in the tree.
    """
    samples = latent_samples(run, config.num_samples, device)
    tokens = samples.batch.tokens[0]
    heights = torch.as_tensor(tree_of(run.data).ancestor_heights(), device=tokens.device)
    order = torch.randperm(len(heights), generator=torch.Generator().manual_seed(run.seed)).to(tokens.device)
    by_name = {"value": heights, "control": heights[order][:, order]}
    present = tokens < len(heights)
    both = present[:, :, None] & present[:, None, :]
    found: list[Row] = []

    def take(reading: LayerReading) -> None:
        assert reading.q is not None and reading.k is not None
        weights = torch.softmax(reading.q @ reading.k.mT * reading.scale, dim=-1).mean(dim=1) * reading.q.shape[-2]
        for H in range(1, int(heights.max()) + 1):
            means = {name: float(weights[both & (each == H)].mean()) for name, each in by_name.items()}
            found.append({"what": ATTENTION, "layer": reading.layer, "height": H} | means)

    rows: list[Row] = []
    name = DEEP if run.data.tree_depth == config.deep.tree_depth else SHALLOW
    steps = range(0, config.steps + 1, config.checkpoint_every)
    with ThreadPoolExecutor(4) as readers:
        for snapshot in readers.map(load_snapshot, [folder / CHECKPOINTS / name_of(step) for step in steps]):
            found.clear()
            loss, blocks = samples.read(Decoder(run.model), of_one_run(snapshot.tensors, device), take)
            for layer, peaks in enumerate(blocks):
                for height, latents in enumerate(samples.latents, 1):
                    score = ncorr(latents, peaks, seed=run.seed, num_shuffles=config.num_shuffles)
                    about = {"what": NCORR, "layer": layer, "height": height}
                    found.append(about | {"value": score["ncorr"], "control": score["shuffled"]})
            about = {"tree": name, "seed": run.seed, "step": snapshot.step, "loss": loss}
            rows += [about | row for row in found]
    return rows


def averaged(runs: pd.DataFrame) -> pd.DataFrame:
    """Return means and standard errors between seeds, and what was added to the means since the first step."""
    groups = runs.groupby([*CURVE, "step"])
    means = groups[["value", "control"]].mean().assign(error=groups["value"].sem().fillna(0.0)).reset_index()
    first = means.groupby(CURVE)[["value", "control"]].transform("first")
    return means.assign(added=means["value"] - first["value"], added_control=means["control"] - first["control"])


def learned_levels(runs: pd.DataFrame) -> pd.DataFrame:
    """For each block, height and seed: NCorr at the start, what training added, and the step at which half of it was.

    The control is what was added on shuffled latents.
    """
    keys = ["tree", "layer", "height", "seed"]
    curves = select(runs, what=NCORR).pivot(index="step", columns=keys, values=["value", "control"])
    added = curves - curves.iloc[0]
    gains = added.iloc[-NUM_LAST:].mean().unstack(level=0)
    steps = curves.index.to_numpy(float)
    halves = [
        crossing(steps, added["value"][key].to_numpy(), HALF * gain) if gain > 0 else np.nan
        for key, gain in gains["value"].items()
    ]
    table = pd.DataFrame({"start": curves["value"].iloc[0], "gain": gains["value"], "control_gain": gains["control"]})
    return table.assign(half_step=pd.Series(halves, gains.index)).sort_index().reset_index()


def attention_leads(runs: pd.DataFrame) -> pd.DataFrame:
    r"""How much more attention nearest tokens get than farthest, $\ln(a_{H=1}/a_{H=L})$ less that of the start.

    Its largest value over training, when that was, and its end; the controls are the same for relabelled leaves.
    """
    keys = ["tree", "layer", "seed"]
    by_height = select(runs, what=ATTENTION).sort_values("height").groupby([*keys, "step"])[["value", "control"]]
    leads = np.log(by_height.first()) - np.log(by_height.last())
    leads = (leads - leads.groupby(keys).transform("first")).reset_index("step")
    by_run = leads.groupby(keys)
    largest, end = by_run.max(), by_run.tail(NUM_LAST).groupby(keys).mean()
    step = leads.set_index("step", append=True)["value"].groupby(keys).idxmax().str[-1]
    table = pd.DataFrame({"largest": largest["value"], "largest_step": step, "end": end["value"]})
    return table.assign(control_largest=largest["control"], control_end=end["control"]).reset_index()


def _of_tree(t: Measured, table: str, tree: str, **chosen: Any) -> pd.DataFrame:
    """Return the rows of one tree; none where it was not measured."""
    return select(t[table], tree=tree, **chosen) if table in t else pd.DataFrame()


def _trained(t: Measured, name: str, values: pd.Series, least: float | None = None, **fields: Any) -> Number:
    """Return a mean over seeds, paired with its control; small networks are reported and not judged."""
    return Number.mean(name, values, paired=True, at_least=None if t.config.is_small else least, **fields)


def _far_over_near(table: pd.DataFrame, column: str) -> float:
    by_height = table.set_index("height")[column]
    return float(by_height[by_height.index.max()] / by_height[by_height.index.min()])


def _delay(t: Measured, tree: str, flow: str, rho: float) -> float:
    """Return the half time of the farthest tokens over that of the nearest."""
    return _far_over_near(_of_tree(t, "flow_times", tree, flow=flow, rho=rho), "half")


@claim("figure5-theorem5", "Theorem 5, co-occurrence", source="Section 5, Theorem 5, figure 5")
def theorem_numbers(t: Measured) -> Iterator[Number]:
    """P[y_l=1 | y_m=1] = ½ (1 + ρ^2H − 2ρ^(L−1)ρ₀) / (1 − ρ^(L−1)ρ₀) with ρ₀ = P[y₁=0]"""
    for column, name, sanity in (
        ("printed", "Theorem 5 with ρ₀ = P[y₁=0] as printed", False),
        ("formula", "Theorem 5 with ρ₀ = 2P[y₁=0] − 1", True),
        ("exact", "exact co-occurrence, also below the root alone", True),
    ):
        own = t.cooccurrence.dropna(subset=column)
        if column != "exact":
            off = (own[column] - own["exact"]).abs().max()
            exact = {"unit": "max abs error", "against": "the exact sum over the tree", "key": column}
            yield Number.exact(name, off, at_most=1e-12, sanity=sanity, **exact)
        z = ((own[column] - own["sampled"]) / own["error"]).abs().max()
        yield Number.exact(name, z, at_most=4.5, sanity=sanity, unit="standard errors", against="samples")


@claim("figure5-limit", "Eqn 8, 1 − H/L", source="Section 5, Eqn 8")
def limit_numbers(t: Measured) -> list[Number]:
    """P[y_l=1 | y_m=1] → 1 − H/L for ρ = ρ₀ = 1 − ε"""
    gap = (t.limit["exact"] - t.limit["limit"]).abs().groupby(t.limit["epsilon"]).max()
    about = {"at_most": 0.01, "unit": "max abs error", "against": "Theorem 5"}
    return [
        Number.exact("distance from 1 − H/L", gap[epsilon], setting=f"ε = {epsilon:g}", key=key, **about)
        for epsilon, key in ((gap.index.min(), "near"), (gap.index.max(), "far"))
    ]


@claim("figure5-order", "Figure 5b, the order in theory", source="Section 5, figure 5b, Eqn 6")
def order_numbers(t: Measured) -> Iterator[Number]:
    """The query m associates first with the token l that co-occurs most, and eventually with l'"""
    deep, blind = _of_tree(t, "cooccurrence", DEEP).sort_values("height"), {"control_name": "ρ = 0 on all edges"}
    fall, flat = (float(-deep[column].diff().max()) for column in ("exact", "control"))
    name = "fall of co-occurrence from each height to the next, deep tree"
    yield Number.exact(name, fall, at_least=0.01, control=flat, unit="least difference of P[l|m]", **blind)
    for flow, key in zip(FLOWS, ("printed", "model"), strict=True):
        name = f"{flow}: half time of the farthest tokens over that of the nearest"
        delay, control = (_delay(t, DEEP, flow, rho) for rho in (t.config.rho, NO_ORDER))
        yield Number.exact(name, delay, at_least=LEAST_DELAY, control=control, unit="ratio", key=key, **blind)


def part_gone(largest: pd.Series, end: pd.Series) -> tuple[float, float | None]:
    """Return 1 − mean end / mean largest over seeds, with its jackknife error; NaN where there is no lead to lose."""
    rows = np.stack([largest, end])

    def gone(top: float, last: float) -> float:
        return 1 - last / top if top > 0 else np.nan

    num = rows.shape[1]
    left_out = [gone(*np.delete(rows, seed, axis=1).mean(axis=1)) for seed in range(num)] if num > 1 else [np.nan]
    error = float(np.sqrt(num - 1) * np.std(left_out))
    return float(gone(*rows.mean(axis=1))), None if np.isnan(error) else error


@claim("figure5-attention", "Figure 5b, attention in training", source="Section 5, figure 5")
def attention_numbers(t: Measured) -> Iterator[Number]:
    """Attention first goes to tokens of the same lowest hierarchy as the query, then reaches out to others"""
    own = _of_tree(t, "leads", DEEP, layer=0)
    if own.empty:
        return
    lead, control, unit = own["largest"], own["control_largest"], "ln(a_near / a_far)"
    name = "largest lead of the nearest tokens in block 0"
    yield _trained(t, f"{name} beyond that of relabelled leaves", lead - control, LEAST_LEAD, unit=unit, key="beyond")
    yield _trained(t, name, lead, LEAST_LEAD, control=control, control_name=RELABELLED, unit=unit, key="lead")
    gone, error = part_gone(lead, own["end"])
    name, num, least = "part of the largest lead that is gone at the end", len(own), None if t.config.is_small else 0.2
    about: dict[str, Any] = {"n": num, "df": num - 1.0, "unit": "1 − mean end / mean largest", "key": "gone"}
    yield Number(name=name, value=gone, error=error, at_least=least, **about)
    yield Number(name="the same for relabelled leaves", value=part_gone(control, own["control_end"])[0], key="idle")


def delays(levels: pd.DataFrame) -> pd.Series:
    """Return for each seed ln(half time of the highest level / of the lowest), over blocks that learned both."""
    learned = levels[levels["gain"] >= LEAST_GAIN]
    wide = np.log(learned.pivot(index=["seed", "layer"], columns="height", values="half_step"))
    low, high = levels["height"].min(), levels["height"].max()
    if low not in wide or high not in wide:
        return pd.Series(dtype=np.float64)
    return (wide[high] - wide[low]).dropna().groupby(level="seed").mean()


@claim("figure5-levels", "Figure 5c, which level is learned first", source="Section 5, figure 5")
def level_numbers(t: Measured) -> Iterator[Number]:
    """The lowest latents are learned first; once they are, the next level is picked up, and so on"""
    own = _of_tree(t, "levels", DEEP)
    if own.empty:
        return
    by_seed, later = own.groupby("seed")[["gain", "control_gain"]].mean(), delays(own)
    name, idle = "NCorr added by training, over blocks and levels", by_seed["control_gain"]
    gain = _trained(t, name, by_seed["gain"], LEAST_GAIN, control=idle, control_name=SHUFFLED, key="gain")
    if outcome_of(gain) is Outcome.REFUTED:  # where nothing is learned there is no order to judge
        gain, later = gain.model_copy(update={"at_least": None}), later[:0]
    name = "half time of the highest level over that of the lowest in the same block"
    delay = _trained(t, name, later, float(np.log(LEAST_DELAY)), unit="ln(ratio)", key="delay")
    yield from (gain, delay)
    yield Number(name="the same as a ratio", value=float(np.exp(delay.value)), key="ratio")


@claim("figure5-blocks", "Figure 5c, blocks and levels", source="Section 5, figure 5")
def block_numbers(t: Measured) -> Iterator[Number]:
    """Hidden nodes of each layer come to represent the latents of the level of the same number"""
    own = _of_tree(t, "levels", DEEP)
    if own.empty:
        return
    shares = []
    for column in ("gain", "start"):
        best = own.pivot(index=["seed", "layer"], columns="height", values=column).idxmax(axis=1)
        is_own = best == best.index.get_level_values("layer") + 1
        shares.append(is_own.astype(float).groupby(level="seed").mean())
    name, untrained = "blocks whose own level gains most", "highest NCorr of the untrained network"
    yield _trained(t, name, shares[0], 2 / 3, control=shares[1], control_name=untrained, key="share")


@claim("figure5-depth", "Figure 5b against 5c, deep and shallow trees", source="Section 5, figure 5", primary=False)
def depth_numbers(t: Measured) -> Iterator[Number]:
    """On deep trees the association of tokens that are not directly correlated is slower than on shallow ones"""
    leads = [_of_tree(t, "leads", tree) for tree in (DEEP, SHALLOW)]
    if any(own.empty for own in leads):
        return
    deep, shallow = (select(own, layer=0) for own in leads)
    other: dict[str, Any] = {"control_name": "the shallow tree"}
    name = "lead of the nearest tokens at the end, deep tree"
    yield Number.mean(name, deep["end"], control=shallow["end"], key="lead", **other)
    yield Number.mean(f"{name}, {RELABELLED}", deep["control_end"], control=shallow["control_end"], **other)
    for flow, key in zip(FLOWS, ("printed", "model"), strict=True):
        name = f"{flow}: half time of the farthest tokens over that of the nearest, deep tree"
        on_deep, on_shallow = (_delay(t, tree, flow, t.config.rho) for tree in (DEEP, SHALLOW))
        yield Number.exact(name, on_deep, control=on_shallow, key=key, **other)
    name = "co-occurrence of the nearest tokens over that of the farthest, deep tree"
    on_deep, on_shallow = (1 / _far_over_near(_of_tree(t, "cooccurrence", tree), "exact") for tree in (DEEP, SHALLOW))
    yield Number.exact(name, on_deep, control=on_shallow, key="contrast", **other)


CLAIMS = (theorem_numbers, limit_numbers, order_numbers, attention_numbers, depth_numbers, level_numbers, block_numbers)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw co-occurrence and its limit, the flows, and attention and neurons over training."""
    names = {"exact": "exact", "limit": "1 − H/L", "control": "ρ = 0"}
    table = t.cooccurrence.assign(panel=t.cooccurrence["tree"] + " tree")
    low, high = (table["sampled"] + factor * table["error"] for factor in (-2, 2))
    limit = t.limit.assign(panel="Theorem 5 with ρ near 1", by="ε = " + t.limit["epsilon"].map("{:g}".format))
    ends = limit.drop_duplicates("height").assign(by=names["limit"], chance=lambda each: each["limit"])
    curves = table.melt(["panel", "height"], list(names), "by", "chance").replace({"by": names})
    curves = pd.concat([curves, ends, limit.assign(chance=limit["exact"])])
    by: dict[str, Any] = {"color": "by", "order": [*names.values(), *limit["by"].unique()], "facet": "panel"}
    by |= {"marks": table.assign(chance=table["sampled"], by=names["exact"], low=low, high=high), "share_x": False}
    yield lines(curves, "height", "chance", **by, **caption("figure5-cooccurrence"))
    flow = t.flow.assign(panel=t.flow["tree"] + " tree, " + t.flow["flow"])
    by, uniform = {"color": "height", "facet": "panel"}, [Rule(1.0)]
    yield lines(flow, "t", "attention", rules=uniform, **by, **caption("figure5-flow"))
    shown = (
        (ATTENTION, {"value": "measured", "control": "relabelled leaves"}, uniform, "figure5-attention"),
        (NCORR, {"added": "measured", "added_control": SHUFFLED}, (), "figure5-levels"),
    )
    for what, kinds, rules, id in shown if "curves" in t else ():
        curves = select(t.curves, what=what)
        curves = curves.assign(panel=curves["tree"] + " tree, block " + curves["layer"].astype(str))
        parts = [curves.assign(y=curves[column], kind=kind) for column, kind in kinds.items()]
        parts[0] = parts[0].assign(low=parts[0]["y"] - curves["error"], high=parts[0]["y"] + curves["error"])
        yield lines(pd.concat(parts), "step", "y", dash="kind", rules=rules, **by, **caption(id))


EXPERIMENTS = (
    Experiment(
        **catalogue("figure5"),
        presets={"quick": QUICK, "full": Figure5Config()},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        in_tasks=True,
    ),
)
