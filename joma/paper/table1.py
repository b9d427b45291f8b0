r"""Table 1: do hidden neurons learn the latents of a hierarchy, and how much of that is there without training?

NCorr(s) is the mean over the latents of level s of the correlation with the best hidden neuron of block s. Controls:
the same network untrained, latents dealt to other inputs, and neurons assigned to latents one to one. The sources leave
the learning rate and the hidden width open; all four combinations are trained.

The hierarchy is deterministic, with at most C different inputs, so a wide random layer separates them anyhow. The
question is asked again on latent trees HBLT(ρ) with ρ < 1, where inputs vary within a class, for all three levels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joma.charts import Chart, Rule, points
from joma.claims import Number, claim
from joma.engine import grid as recipes
from joma.engine.config import HIERARCHY, TREES, RunConfig
from joma.engine.grid import Run, grid
from joma.models.batch import Parameters
from joma.models.decoder import Decoder
from joma.models.decoder_config import TABLE1_BLOCKS, DecoderConfig
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered, gpu_missing, over_seeds, select
from joma.paper.latent_neurons import Row, latent_samples, ncorr, of_one_run, pack_tasks
from joma.store import Store

TRAINED, UNTRAINED = "trained", "untrained"
TREE_DEPTH = TABLE1_BLOCKS + 1
"""Edges from the root to a leaf: a level of latents between them for each block."""
NUM_STARTS = 8
"""Untrained networks that are held at a time: a start depends on sizes and seed alone, not on the data."""
KEYS = ["data", "num_classes", "num_children", "num_latents", "rho", "hidden", "lr", "level"]
"""What one number of the table depends on; over seeds it is averaged."""
CLOSE = 3.0
"""Errors, ours and the published ± together, within which a cell counts as the published one."""
PRINTED = 0.005
"""Half of the last printed digit."""
NOTHING = 0.0
"""What training must add beyond the control."""

_PUBLISHED = {
    (0, "10x20"): ((0.99, 0.01), (1.00, 0.00), (0.99, 0.01), (0.99, 0.01), (0.99, 0.01), (0.99, 0.01)),
    (0, "20x30"): ((0.97, 0.02), (0.96, 0.02), (0.94, 0.04), (0.95, 0.03), (0.95, 0.03), (0.95, 0.03)),
    (1, "10x20"): ((0.81, 0.05), (0.69, 0.05), (0.73, 0.08), (0.72, 0.04), (0.58, 0.02), (0.64, 0.02)),
    (1, "20x30"): ((0.80, 0.05), (0.68, 0.04), (0.74, 0.03), (0.66, 0.02), (0.55, 0.01), (0.61, 0.04)),
}
PUBLISHED = {
    (level, latents, num_classes, num_children): value
    for (level, latents), row in _PUBLISHED.items()
    for (num_classes, num_children), value in zip(product((20, 30, 50), (2, 3)), row, strict=True)
}
"""Table 1 as printed, number and ±, by the columns of `CELL`."""
CELL = ["level", "num_latents", "num_classes", "num_children"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1Config:
    """Table 1 and the same question on latent trees."""

    is_paper_size: bool = True
    """Whether these are the paper's settings, so that its numbers can be compared with ours."""
    num_latents: tuple[tuple[int, int], ...] = recipes.TABLE_1_LATENTS
    num_children: tuple[int, ...] = recipes.TABLE_1_CHILDREN
    num_classes: tuple[int, ...] = recipes.TABLE_1_CLASSES
    lrs: tuple[float, ...] = (1e-5, 1e-4)
    """Learning rates: the paper's text and its scripts."""
    hiddens: tuple[int, ...] = (400, 4096)
    """Hidden neurons of each MLP: four for each token, or for each number of the embedding."""
    width: int = 1024
    seeds: tuple[int, ...] = recipes.TABLE_1_SEEDS
    steps: int = 10_000
    rhos: tuple[float, ...] = (0.7, 0.8, 0.9)
    """Polarities of the trees."""
    tree_hiddens: tuple[int, ...] = (400,)
    """Hidden neurons of the networks on trees, which the paper does not have."""
    tree_classes: int = 3
    tree_steps: int = 10_000
    batch: int = 128
    precision: str = "bf16"
    num_samples: int = 1280
    """Fresh samples that neurons are measured on."""
    num_shuffles: int = 50


QUICK = Table1Config(
    is_paper_size=False, num_children=(2,), num_classes=(20,), lrs=(1e-3,), hiddens=(64,), width=128, seeds=(1, 2),
    steps=200, rhos=(0.8,), tree_hiddens=(64,), tree_steps=120, batch=64, precision="fp32", num_samples=640,
    num_shuffles=10,
)  # fmt: skip


def compute(config: Table1Config, store: Store) -> Measured:
    """Train and score all runs."""
    settings = {"what": "table1", "num_samples": config.num_samples, "num_shuffles": config.num_shuffles}
    found = gathered(store, pack_tasks(_grids(config), store.device, partial(_scores, config), settings))
    _start.cache_clear()
    return Measured(runs=found.rows) if found and len(found.rows) else Measured()


def _grids(config: Table1Config) -> Iterator[tuple[Run, ...]]:
    """Yield a grid for each hidden width; runs of one number of classes and of children, or of one ρ, make a pack."""
    fields = {name: getattr(config, name) for name in ("width", "batch", "precision")}
    common: dict[str, tuple[Any, ...]] = {"hidden": (), "lr": config.lrs, "seed": config.seeds}
    hierarchy = {name: getattr(config, name) for name in ("num_classes", "num_latents", "num_children")}
    tree = {"data": TREES, "tree_depth": TREE_DEPTH, "num_classes": config.tree_classes}
    for axes, hiddens, steps, own in (
        (hierarchy | common, config.hiddens, config.steps, {}),
        ({"rho": config.rhos} | common, config.tree_hiddens, config.tree_steps, tree),
    ):
        # losses and entropies on the way are not asked for
        base = recipes.recipe("table1").base.update(fields | own | {"steps": steps, "measure_every": steps})
        for hidden in hiddens:
            yield grid(base, axes | {"hidden": (hidden,)}, tuple(axes))


def _scores(config: Table1Config, run: RunConfig, folder: Path, trained: Parameters, device: str) -> list[Row]:
    """Compare every level of latents with the block of the same number, in the trained and the untrained network."""
    samples, rows, data = latent_samples(run, config.num_samples, device), [], run.data
    is_tree = data.data == TREES
    own = {
        "data": data.data,
        "num_classes": data.num_classes,
        "num_children": data.branching if is_tree else data.num_children,
        "num_latents": "" if is_tree else "x".join(map(str, data.num_latents)),
        "rho": data.rho if is_tree else 1.0,
        "hidden": run.model.hidden,
        "lr": run.optimiser.lr,
        "seed": run.seed,
    }
    for network, parameters in ((TRAINED, trained), (UNTRAINED, _start(run.model, run.seed, device))):
        loss, peaks = samples.read(Decoder(run.model), parameters)
        compared = zip(samples.latents, peaks, strict=False)  # the hierarchy's third level are its classes
        for level, (latents, activations) in enumerate(compared):
            score = ncorr(latents, activations, seed=run.seed, num_shuffles=config.num_shuffles, groups=samples.drawn)
            rows.append(own | {"network": network, "level": level} | score | {"loss": loss})
    return rows


@lru_cache(maxsize=NUM_STARTS)
def _start(model: DecoderConfig, seed: int, device: str) -> Parameters:
    return of_one_run(Decoder(model).initial(seed), device)


def side_by_side(t: Measured, data: str) -> pd.DataFrame:
    """Return one row for each run and level: the network as it ended, as it started, and what training added.

    `added` is what training added to NCorr beyond what it added on shuffled latents.
    """
    runs = select(t.runs, data=data).set_index([*KEYS, "seed"])
    trained, untrained = (select(runs, network=network) for network in (TRAINED, UNTRAINED))
    wide = trained[["shuffled", "matched"]].assign(trained=trained["ncorr"], untrained=untrained["ncorr"])
    wide["shuffled_untrained"] = untrained["shuffled"]
    wide["added"] = wide["trained"] - wide["untrained"] - (wide["shuffled"] - wide["shuffled_untrained"])
    wide = wide.reset_index()
    known = [PUBLISHED.get(cell, (np.nan, np.nan)) for cell in wide[CELL].itertuples(index=False, name=None)]
    wide[["published", "published_error"]] = np.reshape(known, (-1, 2))
    return wide


@claim("table1-numbers", "Table 1, the numbers", source="Section 6, Table 1")
def cell_numbers(t: Measured) -> list[Number]:
    """The 24 numbers of the table: NCorr between latents and their best hidden node is from .94 to 1.00 at s = 0 and
    from .55 to .81 at s = 1
    """
    if not t.config.is_paper_size:
        return []
    numbers: list[Number] = []
    counts: dict[float, tuple[int, int]] = {}
    for (hidden, lr), own in side_by_side(t, HIERARCHY).groupby(["hidden", "lr"]):
        cells = own.groupby(KEYS)
        mean = cells[["trained", "untrained", "published", "published_error"]].mean()
        error = np.sqrt(cells["trained"].sem() ** 2 + mean["published_error"] ** 2 + PRINTED**2)
        off, idle = ((mean[name] - mean["published"]).abs() for name in ("trained", "untrained"))
        name, control = f"mean distance from the published numbers, hidden {hidden}, rate {lr:g}", float(idle.mean())
        distance = float(off.mean())
        numbers.append(Number(name=name, value=distance, control=control, control_name="the same network untrained"))
        counts.setdefault(distance, (int((~(off / error > CLOSE)).sum()), len(off)))
    agree, num = counts[min(counts)]
    share, name = agree / num, "cells within three errors of the published number, nearest open choice"
    about: dict[str, Any] = {
        "error": float(np.sqrt(share * (1 - share) / num)),
        "unit": f"share of {num}",
        "key": "share",
    }
    counted = Number.exact("such cells", agree, key="cells"), Number.exact("cells in all", num, key="all")
    return [Number(name=name, value=share, at_least=0.9, **about), *counted, *numbers]


def _excess(t: Measured, data: str) -> Iterator[Number]:
    """Return what training adds beyond what it adds to shuffled latents, for each open choice and level.

    The unit is the seed, averaged over settings: networks of a seed start alike.
    """
    for (hidden, lr, level), of in side_by_side(t, data).groupby(["hidden", "lr", "level"]):
        own = of.groupby("seed")[["trained", "untrained", "added"]].mean()
        setting, key = f"level {level}, hidden {hidden}, rate {lr:g}", f"level{level}_hidden{hidden}_rate{lr:g}"
        name = "NCorr that training adds, beyond what shuffled latents gain"
        yield Number.mean(name, own["added"], at_least=NOTHING, setting=setting, key=key)
        yield Number.mean(f"NCorr trained, {setting}", own["trained"], control=own["untrained"], control_name=UNTRAINED)


@claim("table1-training", "Table 1, what training adds", source="Section 6, Table 1")
def training_numbers(t: Measured) -> Iterator[Number]:
    """Hidden nodes of the MLP learn the latent variables: the learned models have high NCorr"""
    return _excess(t, HIERARCHY)


@claim("table1-trees", "Table 1 asked on latent trees", source="Section 5 and Table 1")
def tree_numbers(t: Measured) -> Iterator[Number]:
    """Hidden nodes of block s learn the latents of level s of a hierarchical binary latent tree"""
    return _excess(t, TREES)


@claim("table1-chance", "Table 1, against chance", source="Section 6, Table 1", primary=False)
def chance_numbers(t: Measured) -> Iterator[Number]:
    """For each latent there is a hidden node with a high normalised correlation with it"""
    for level, own in side_by_side(t, HIERARCHY).groupby("level"):
        by_seed = own.groupby("seed")[["trained", "untrained", "shuffled", "shuffled_untrained", "matched"]].mean()
        above, idle = by_seed["trained"] - by_seed["shuffled"], by_seed["untrained"] - by_seed["shuffled_untrained"]
        about: dict[str, Any] = {"control_name": UNTRAINED, "paired": True, "key": f"above{level}"}
        yield Number.mean(f"NCorr above shuffled latents, level {level}", above, control=idle, **about)
        yield Number.mean(f"lost by one-to-one matching, level {level}", by_seed["trained"] - by_seed["matched"])


@claim("table1-complexity", "Table 1, complexity", source="Section 6, Table 1", primary=False)
def complexity_numbers(t: Measured) -> Iterator[Number]:
    """When the generative model is more complicated (N_ch and N_l larger), the correlation goes down a bit"""
    wide = side_by_side(t, HIERARCHY)
    for level, axis in product(sorted(wide["level"].unique()), ("num_latents", "num_children")):
        own = wide[wide["level"] == level]
        if own[axis].nunique() == 1:
            continue
        others = [name for name in [*KEYS, "seed"] if name != axis]
        low, high = (
            own[own[axis] == value].set_index(others)[["trained", "untrained", "published"]]
            for value in (own[axis].min(), own[axis].max())
        )
        falls = (low - high).groupby(level="seed").mean().dropna(subset="trained")
        published = float(falls["published"].mean())
        about: dict[str, Any] = {"published": None if np.isnan(published) else published, "paired": True}
        about |= {"control": falls["untrained"], "control_name": UNTRAINED}
        yield Number.mean(f"fall of NCorr with larger {axis}, level {level}", falls["trained"], **about)


CLAIMS = (cell_numbers, training_numbers, tree_numbers, chance_numbers, complexity_numbers)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw trained against untrained networks, and what training adds."""
    wide = pd.concat([side_by_side(t, data) for data in (HIERARCHY, TREES)])
    wide["choice"] = wide["data"] + ", hidden " + wide["hidden"].astype(str) + ", rate " + wide["lr"].map("{:g}".format)
    wide["level"] = "level " + wide["level"].astype(str)
    trained, untrained = (over_seeds(wide, [*KEYS, "choice"], name) for name in ("trained", "untrained"))
    both = trained.assign(trained=trained["mean"], untrained=untrained["mean"])
    yield points(both, "untrained", "trained", color="choice", facet="level", diagonal=True, **caption("table1"))
    added = over_seeds(wide, ["data", "hidden", "lr", "level", "choice"], "added")
    zero = [Rule(0.0)]
    yield points(added, "level", "mean", color="choice", n="size", rules=zero, **caption("table1-training"))


EXPERIMENTS = (
    Experiment(
        **catalogue("table1"),
        presets={"quick": QUICK, "full": Table1Config()},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        needs=lambda config, device: gpu_missing(device) if config.is_paper_size else "",
        in_tasks=True,
    ),
)
