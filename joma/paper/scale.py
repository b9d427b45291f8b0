"""Does the attention entropy of GPTs with 10 and 30 million parameters fall and rise again?

Two sizes, rotary and learned positions, AdamW with a warm-up, windows of 256 words, 10,000 steps of 64 windows. Judged
is the share of layers whose entropy rises by at least 0.1 nats after its dip, one number a run. The control is the same
run with one ingredient removed, named in the config: the nonlinearity of the MLP, which the paper holds responsible, as
long as no other one is found for deep models. The text is a folder of train, valid and test files, by its name below
`$JOMA_DATA`; the hash of its tokens is recorded. At full size it is enwik8, Wikipedia with its XML. The small form has
10 million parameters and the text of figure 6, of which it makes 80 passes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pandas as pd

from joma.charts import Chart, Rule, lines, points
from joma.claims import Number, claim
from joma.engine.config import RunConfig
from joma.engine.sources import data_hash
from joma.models.batch import Parameters
from joma.paper import figures6_8 as models
from joma.paper.architectures import CPU
from joma.paper.experiment import Experiment, Measured, over_seeds, select
from joma.store import Store, Task

ENWIK8, CONTROL = "enwik8", "one ingredient removed"
POSITIONS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned", "max_length": 256},
}
SIZES: dict[str, dict[str, Any]] = {
    "10M": {"width": 256, "hidden": 1024, "heads": 4, "depth": 6},
    "30M": {"width": 384, "hidden": 1536, "heads": 6, "depth": 12},
}
"""Millions of parameters with 10,000 words, input and output embeddings counted."""
HALF = 0.5
"""Least share of layers that rise."""
FLOPS = {"cuda": 2e14, "cpu": 2e10}
"""Operations a second, for expected times; measured rates replace them."""
GPT: dict[str, Any] = {
    "activation": "gelu",
    "norm_place": "before",
    "embedding_scale": 1.0,
    "initialisation": "default",
    "identical_blocks": False,
    "dropout": 0.0,
    "optimiser": "adamw",
    "weight_decay": 0.1,
    "beta2": 0.95,
    "clip": 1.0,
    "warmup": 200,
    "schedule": "cosine",
    "restart_every_epoch": False,
}
"""Model and optimiser of all runs, next to figure 6's recipe."""
TRAINING: dict[str, Any] = {
    "vocabulary_cap": 10_000,
    "window": 256,
    "batch": 64,
    "valid_windows": 8,
    "precision": "bf16",
    "steps": 10_000,
    "epochs": None,
    "measure_every": 200,
    "measure_spacing": "early",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleConfig:
    """Text, sizes, positions and seeds; no earlier result used these seeds."""

    text: str = ENWIK8
    settings: Mapping[str, Any] = field(default_factory=lambda: GPT | TRAINING)
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: SIZES)
    positions: tuple[str, ...] = tuple(POSITIONS)
    removed: Mapping[str, Any] = field(default_factory=lambda: {"activation": "linear"})
    """Settings of the control, such as `{"positions": "centred"}`."""
    rate: float = 6e-4
    seeds: tuple[int, ...] = (261, 262, 263)
    needs_gpu: bool = True


SMALL = ScaleConfig(
    text=models.WIKITEXT2,
    settings=GPT | TRAINING | {"dropout": 0.1},
    sizes={"10M": SIZES["10M"]},
    seeds=(271, 272, 273),
)
QUICK = ScaleConfig(
    text=models.EMBEDDED,
    settings=GPT | TRAINING | CPU | {"vocabulary_cap": 500, "window": 32, "steps": 100, "warmup": 5},
    sizes={"tiny": {"width": 32, "hidden": 64, "heads": 2, "depth": 2, "embedding_scale": 1.0}},
    rate=1e-2,
    seeds=(1, 2),
    needs_gpu=False,
)


def named(size: str, positions: str, *, is_control: bool = False) -> str:
    """Return the name of the runs of one size with these positions."""
    return f"{size}, {positions}" + (f", {CONTROL}" if is_control else "")


def size_task(config: ScaleConfig, device: str, size: str, positions: str, *, is_control: bool) -> Task:
    """Return the task that trains one size with these positions, all seeds."""
    own = {**config.sizes[size], **POSITIONS[positions], **(config.removed if is_control else {})}
    depth, width, settings = own.pop("depth"), own["width"], config.settings
    task = models.one_task(config, device, named(size, positions, is_control=is_control), depth, **own)
    num = depth * width * (4 * width + 2 * own["hidden"]) + 2 * width * settings["vocabulary_cap"]
    operations = 6 * num * settings["steps"] * settings["batch"] * settings["window"] * len(config.seeds)
    seconds = operations / FLOPS[device.partition(":")[0]]
    return replace(models.with_ends(task, "ends", recorded), seconds=task.seconds + seconds, kind="GPTs")


def recorded(config: RunConfig, parameters: Parameters, device: str) -> dict[str, Any]:
    """Return the hash of a run's text, and how many parameters it has."""
    return {"text_hash": data_hash(config.data), "parameters": sum(each.numel() for each in parameters.values())}


def compute(config: ScaleConfig, store: Store) -> Measured:
    """Train all sizes with all positions, and each without the one ingredient."""
    plan = product(config.sizes, config.positions, (False, True))
    tasks = [size_task(config, store.device, *each, is_control=control) for *each, control in plan]
    return models.measured(store, tasks)


def layers(t: Measured) -> pd.DataFrame:
    """Return one row for each layer of each run that reached its end, and whether its entropy rises after the dip."""
    table = select(t.effects, metric=models.ENTROPY).merge(t.ends, on=models.SETTING)
    return table.assign(rises=(table["rise"] >= models.VISIBLE).astype(float))


@claim("scale-layers", "The rebound in larger models", source="Next checks", ours=True)
def layer_numbers(t: Measured) -> Iterator[Number]:
    """In GPTs of 10 and 30 million parameters the entropy of at least half of the layers rises again after its dip."""
    table = layers(t)
    for size, positions in product(t.config.sizes, t.config.positions):
        names = [named(size, positions, is_control=is_control) for is_control in (False, True)]
        own = table[table["condition"].isin(names)]
        if not len(own):
            continue
        about: dict[str, Any] = {"setting": names[0], "control_name": CONTROL, "paired": True}
        for label, column, fields in (
            ("share of layers that rise", "rises", {"at_least": HALF, "unit": "share"}),
            ("rise, mean over layers", "rise", {"unit": "nats"}),
        ):
            values = own.pivot_table(column, "seed", "condition").reindex(columns=names).dropna()
            yield Number.mean(label, values[names[0]], control=values[names[1]], **fields, **about)
        yield Number.exact("parameters", own["parameters"].max(), setting=names[0])


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the rise of every layer, and the entropies over training."""
    labels = {"mean": "rise after the dip (nats)", "step": "training step", "condition": "model"}
    common: dict[str, Any] = {"labels": labels, "facet": "condition"}
    means, title = over_seeds(layers(t), ["condition", "layer"], "rise"), "Rise of the entropy by layer"
    caption = "Mean over seeds; bars are two standard errors. Dotted: a rise that counts."
    about: dict[str, Any] = {"id": "scale-rise", "title": title, "caption": caption, "rules": [Rule(models.VISIBLE)]}
    yield points(means, "layer", "mean", error=("low", "high"), **about, **common)
    about = {"id": "scale-entropy", "title": "Attention entropy by layer", "caption": models.BANDS, "x_log": True}
    curves = models.mean_curves(t, models.ENTROPY)
    yield lines(curves, "step", models.ENTROPY, color="layer", band=("low", "high"), **about, **common)


EXPERIMENTS = (
    Experiment(
        id="scale",
        title="Attention entropy of GPTs with 10 and 30 million parameters",
        source="Next checks",
        question="Does the entropy of at least half of the layers rise again, with rotary and with learned positions, "
        "and without the ingredient that the paper holds responsible?",
        presets={"quick": QUICK, "small": SMALL, "full": ScaleConfig()},
        compute=compute,
        claims=(layer_numbers,),
        charts=charts,
        seconds={"quick": 15.0, "small": 600.0, "full": 3000.0},
        needs=models.needs,
        in_tasks=True,
    ),
)
