r"""Does the gradient lose rank while a language model learns, and does the change of the lower matrix win it back?

Section 4 says that the rank of the MLP's lower matrix W first drops, while the components of high target value grow,
and bounces back when the others follow. Here figure 6's models are asked two sharper questions.

- **The gradient.** Its stable rank in every matrix (queries, keys and values each are one), of one batch and of the
  mean over eight, since the whole text is too much. One number a run: the geometric mean over matrices of the rank in
  the last tenth of training over that in the first. Control: the same number for the gradient without its top
  direction. If one direction takes over, that rank does not fall.
- **The change W − W(0).** After step 100 at the rate 1e-4, or as many steps times rate, its stable rank must fall to a
  minimum and rise again by a tenth of it. Control: the same text with its words in random order. Optimiser, noise and
  word frequencies are as before, and nothing can be learned from context: a rise that is there as well is that of
  accumulated noise. Frozen attention is a weaker control, as such a model still learns from the last word.

Adam is the recipe's optimiser, and the change is judged with it alone. SGD's rate had the lowest loss of 0.3, 1, 3, 5
and 10 after 600 steps of the small model, with a seed that is not used here. The overlap of a gradient's top directions
with those of some steps before is not measured: a training that is resumed would have to keep them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.charts import Chart, Rule, lines, points
from joma.claims import Number, claim
from joma.measure.effects import describe
from joma.metrics import METRICS
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, select
from joma.paper.language_models import LONG, SETTING, Settings, needs, one_task, per_run, small
from joma.store import Store

ADAM, SGD, SHUFFLED = "Adam", "SGD", "shuffled words"
ARMS: dict[str, Settings] = {ADAM: {}, SGD: {"optimiser": "sgd"}, SHUFFLED: {"shuffle_seed": 1}}
NUM_BATCHES = 8
SOURCES = {"gradient": "one batch", "mean_gradient": f"mean of {NUM_BATCHES} batches"}
RANK, REST, ENERGY, CHANGE = "stable_rank", "rest_rank", "energy", "update_stable_rank"
FALLEN = 0.8
"""The gradient's rank falls if its ratio is below this."""
RISEN, DROPPED = 0.1, 0.02
"""Least rise of the change's rank after its minimum, and least fall to it, as parts of the minimum."""
FIRST = 0.01
"""Adam's learning rate times step after which the minimum lies: step 100 at 1e-4."""
TENTH = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientRankConfig:
    """Runs of figure 6's recipe with two optimisers and with shuffled words; no earlier result used these seeds."""

    text: str = "wikitext2"
    settings: Mapping[str, Any] = field(default_factory=lambda: LONG | {"measure_every": 400})
    rate: float = 1e-4
    sgd_rate: float = 3.0
    depths: tuple[int, ...] = (1, 2)
    seeds: tuple[int, ...] = (201, 202, 203, 204, 205)
    needs_gpu: bool = True


SMALL = GradientRankConfig(
    rate=5e-4, depths=(1,), seeds=(211, 212, 213, 214, 215), needs_gpu=False,
    settings=small(1000, 64, steps=4000, measure_every=200, measure_spacing="early", valid_windows=10),
)  # fmt: skip
"""Depth 1 with 1,000 words and width 64; as many steps times rate as at full size."""
QUICK = GradientRankConfig(
    text="python-docs", rate=3e-3, depths=(1,), seeds=(1, 2), needs_gpu=False,
    settings=small(1000, 32, steps=120, measure_every=20, measure_spacing="early", valid_windows=2),
)  # fmt: skip


def compute(config: GradientRankConfig, store: Store) -> Measured:
    """Train every arm at every depth, a task each, and describe the curves."""
    metrics = [CHANGE, *(f"{source}_{end}" for source in SOURCES for end in (RANK, REST, ENERGY))]
    measure: Settings = {"measure_extra": True, "gradient_batches": NUM_BATCHES}
    measure |= {"metrics": metrics, "by": ("layer", "site")}
    arms = ARMS | {SGD: ARMS[SGD] | {"lr": (config.sgd_rate,)}}
    plan = product(config.depths, arms)
    tasks = [one_task(config, store.device, arm, depth, **measure, **arms[arm]) for depth, arm in plan]
    return described(gathered(store, tasks), FIRST / config.rate)


def described(t: Measured, first: float) -> Measured:
    """Add ratios of the gradient's rank, a row for each run, matrix and source, and dips of the change's rank."""
    if not t:
        return t
    finished = t.runs.loc[t.runs["status"] == "finished", SETTING]
    ratios: dict[tuple[Any, ...], dict[str, Any]] = {}
    dips = []
    keys = [*SETTING, "layer", "site"]
    for (metric, *key), curve in t.curves.merge(finished).groupby(["metric", *keys], sort=False):
        own, steps = dict(zip(keys, key, strict=True)), curve["step"].to_numpy(dtype=float)
        values = curve["value"].to_numpy(dtype=float)
        if metric == CHANGE:
            dips.append(own | dip(steps, values, first))
            continue
        source = next(each for each in SOURCES if metric.startswith(f"{each}_"))
        row = ratios.setdefault((source, *key), own | {"source": SOURCES[source]})
        row[metric.removeprefix(f"{source}_")] = ratio_of_tenths(steps, values)
    return t.copy_with(ratios=pd.DataFrame(list(ratios.values())), dips=pd.DataFrame(dips))


def ratio_of_tenths(steps: Float[np.ndarray, " T"], values: Float[np.ndarray, " T"]) -> float:
    """Return the geometric mean of a curve over the last tenth of training, over that of the first tenth.

    The curve is read at even steps, so that the schedule of the measurements does not matter.

    >>> round(ratio_of_tenths(np.array([0.0, 10.0, 90.0, 100.0]), np.array([4.0, 4.0, 2.0, 2.0])), 6)
    0.5
    """
    part = np.linspace(0, TENTH * steps[-1], 201)
    first, last = (np.interp(at, steps, np.log(values)).mean() for at in (part, steps[-1] - part))
    return float(np.exp(last - first))


def dip(steps: Float[np.ndarray, " T"], values: Float[np.ndarray, " T"], first: float) -> dict[str, float]:
    """Return minimum, its step, and fall to it and rise after it as parts of it, of the curve from step `first` on."""
    own = steps >= first
    found = describe(steps[own], values[own], bounds=METRICS[CHANGE].bounds)
    low = found.lowest.value
    changes = {"drop": found.fall.value / low, "rise": found.rise.value / low}
    return {"lowest": low, "dip_step": found.dip_time.value} | changes


def of_runs(ratios: pd.DataFrame, column: str) -> pd.Series:
    """Return the geometric mean over matrices, one number for each run, by seed."""
    return np.exp(np.log(ratios[column]).groupby(ratios["seed"]).mean())


def settings_of(t: Measured) -> Iterator[tuple[int, str]]:
    """Yield each depth with its name."""
    words = t.config.settings.get("vocabulary_cap")
    for depth in t.config.depths:
        yield depth, f"depth {depth}" + (f", {words:,} words" if words else "")


@claim("gradient-rank-falls", "The gradient loses rank", source="Section 4, asked further", ours=True)
def fall_numbers(t: Measured) -> Iterator[Number]:
    """From the first to the last tenth of training the stable rank of the gradient falls to less than 0.8 of it."""
    for (depth, named), arm, source in product(settings_of(t), ARMS, SOURCES.values()):
        own = select(t.ratios, depth=depth, condition=arm, source=source)
        about: Settings = {"setting": f"{named}, {arm}, {source}", "unit": "share"}
        rest = {"control": of_runs(own, REST), "control_name": "without its top direction", "paired": True}
        name, limit = "stable rank of the gradient, last over first tenth", None if arm == SHUFFLED else FALLEN
        yield Number.mean(name, of_runs(own, RANK), at_most=limit, key=f"{arm} {source} {depth}", **rest, **about)
        name = "energy in its four top directions, last over first tenth"
        yield Number.mean(name, of_runs(own, ENERGY), **about)


@claim("gradient-rank-change", "The change of the lower matrix wins rank back", source="Section 4", ours=True)
def change_numbers(t: Measured) -> Iterator[Number]:
    """The stable rank of W − W(0) has a minimum after step 100 (at 1e-4) and then rises by at least 10 % of it."""
    names = {"rise": "rise after the minimum, over the minimum", "drop": "fall to the minimum, over the minimum"}
    for depth, setting in settings_of(t):
        for column, name in names.items():
            adam, sgd, shuffled = (per_run(t.dips, column, depth=depth, condition=arm) for arm in ARMS)
            about: Settings = {"setting": setting, "unit": "share"}
            control = {"at_least": RISEN, "control": shuffled, "control_name": SHUFFLED}
            limits = control if column == "rise" else {"at_least": DROPPED}
            yield Number.mean(name, adam, key=f"{column}{depth}", **about, **limits)
            yield Number.mean(f"{name}, {SGD}", sgd, **about)
            yield Number.mean(f"{name}, {SHUFFLED}", shuffled, **about)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the rank of gradients over training and by matrix, and that of the change."""
    sources = {f"{source}_{RANK}": f", {each}" for source, each in SOURCES.items()} | {CHANGE: ""}
    own = t.curves[t.curves["metric"].isin(sources)]
    own = own.assign(panel="depth " + own["depth"].astype(str) + own["metric"].map(sources))
    keys = ["metric", "panel", "condition", "step"]
    by_seed = np.exp(np.log(own["value"].astype(float)).groupby([own[key] for key in (*keys, "seed")]).mean())
    means = by_seed.groupby(keys).agg(["mean", "min", "max"]).reset_index()
    is_change = means["metric"] == CHANGE
    by: Settings = {"color": "condition", "order": tuple(ARMS), "facet": "panel", "band": ("min", "max"), "x_log": True}
    for some, id in ((means[~is_change], "gradient-rank"), (means[is_change], "gradient-rank-change")):
        yield lines(some, "step", "mean", **by, **caption(id))
    short = t.ratios["site"].str.replace(r"blocks\.(\d+)\.(attention\.qkv:)?", r"\1 ", regex=True)
    matrices = select(t.ratios.assign(site=short), condition=ADAM)
    matrices = matrices.groupby(["depth", "source", "site"], as_index=False, sort=False)
    matrices = matrices[RANK].agg(lambda of: np.exp(np.log(of).mean()))
    by = {"color": "source", "facet": "depth", "y_log": True, "rules": [Rule(1.0), Rule(FALLEN)]}
    yield points(matrices, "site", RANK, **by, **caption("gradient-rank-matrices"))


EXPERIMENTS = (
    Experiment(
        **catalogue("gradient-rank"),
        presets={"quick": QUICK, "small": SMALL, "full": GradientRankConfig()},
        compute=compute,
        claims=(fall_numbers, change_numbers),
        charts=charts,
        needs=needs,
        in_tasks=True,
    ),
)
