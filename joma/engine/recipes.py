"""Settings by name: those behind the paper's figures and tables, and small ones that train on any machine.

A recipe is a base and the axes of its grid. Axes that a call gives replace or join those of the recipe. Every quirk of
the paper's scripts is a field of the config, on here and off in `small`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from joma.engine.config import HIERARCHY, TREES, DataConfig, OptimiserConfig, RunConfig, TrainingConfig
from joma.errors import UnknownNameError
from joma.models.decoder_config import DecoderConfig
from joma.models.presets import paper_language_model, paper_table1

DEFAULT = "small"
"""The recipe of a call that names none."""

WIKITEXT2_WORDS = 28_782
"""Vocabulary of WikiText-2 by the paper's tokenisation; the text itself decides when it is read."""
TEXT_RATES = (1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)
FIGURE_6_DEPTHS = (1, 2, 5, 10)
TEXT_SEEDS = (1, 2, 3)

TABLE_1_LATENTS = ((10, 20), (20, 30))
TABLE_1_CHILDREN = (2, 3)
TABLE_1_CLASSES = (20, 30, 50)
TABLE_1_SEEDS = (1, 2, 3, 4, 5)

SMALL_WORDS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Where a grid starts from."""

    name: str
    base: RunConfig
    axes: Mapping[str, tuple[Any, ...]]
    """Values of the fields that vary; they are in the name of every run, whatever varies in a call."""
    about: str
    """What it is, in one line."""


def figure6() -> Recipe:
    """Language models of four depths at one learning rate (JoMA figure 6)."""
    return Recipe(
        name="figure6",
        base=_text_base(),
        axes={"depth": FIGURE_6_DEPTHS, "lr": (1e-4,), "seed": TEXT_SEEDS},
        about="WikiText-2, depth 1, 2, 5, 10 at learning rate 1e-4, 3 seeds",
    )


def figure8() -> Recipe:
    """Language models of one depth at seven learning rates (JoMA figure 8)."""
    return Recipe(
        name="figure8",
        base=_text_base(),
        axes={"depth": (5,), "lr": TEXT_RATES, "seed": TEXT_SEEDS},
        about="WikiText-2, depth 5, learning rates 1e-6 to 1e-2, 3 seeds",
    )


def table1() -> Recipe:
    """Networks that tell the classes of a three-level hierarchy (JoMA Table 1).

    The sources leave two things open: learning rate (1e-5 here; also 1e-4) and hidden width (400 here; also 4096).
    """
    model = paper_table1(TABLE_1_CLASSES[0])
    data = DataConfig(data=HIERARCHY, batch=128, window=30, num_tokens=model.vocabulary, num_classes=TABLE_1_CLASSES[0])
    return Recipe(
        name="table1",
        base=RunConfig(
            model=model,
            optimiser=OptimiserConfig(lr=1e-5, weight_decay=1e-4),
            data=data,
            training=TrainingConfig(steps=10_000, precision="tf32", measure_every=1000),
        ),
        axes={
            "num_latents": TABLE_1_LATENTS,
            "num_children": TABLE_1_CHILDREN,
            "num_classes": TABLE_1_CLASSES,
            "hidden": (model.hidden,),
            "lr": (1e-5,),
            "seed": TABLE_1_SEEDS,
        },
        about="deterministic hierarchy, 12 settings of latents, children and classes, 5 seeds",
    )


def small() -> Recipe:
    """A language model that learns on a laptop within minutes, on text that every Python carries."""
    model = DecoderConfig(vocabulary=SMALL_WORDS, width=64, hidden=256, heads=2, depth=2)
    return Recipe(
        name="small",
        base=RunConfig(
            model=model,
            optimiser=OptimiserConfig(optimiser="adamw", weight_decay=0.01, clip=1.0, warmup=50),
            data=DataConfig(data="python-docs", vocabulary_cap=SMALL_WORDS, valid_windows=20),
            training=TrainingConfig(steps=1000, measure_every=50),
        ),
        axes={"depth": (2,), "lr": (1e-3,), "seed": (1, 2, 3)},
        about="documentation of Python, 2,000 words, width 64, 3 seeds: minutes on a CPU",
    )


def trees() -> Recipe:
    """Networks that tell the root of a random latent tree from its leaves (HBLT of JoMA Section 5)."""
    model = DecoderConfig(
        vocabulary=2, width=64, hidden=128, depth=3, positions="none", causal=False, readout="class", num_classes=2
    )
    return Recipe(
        name="trees",
        base=RunConfig(
            model=model,
            data=DataConfig(data=TREES, batch=128, num_classes=2, tree_depth=3),
            training=TrainingConfig(steps=1000, measure_every=100),
        ),
        axes={"rho": (0.6, 0.8), "lr": (1e-3,), "seed": (1, 2, 3)},
        about="random latent trees of 8 leaves, two polarities, 3 seeds: minutes on a CPU",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "figure6": figure6,
    "figure8": figure8,
    "small": small,
    "table1": table1,
    "trees": trees,
}


def recipe(name: str) -> Recipe:
    """Return the recipe with this name.

    >>> recipe("figure6").axes["depth"]
    (1, 2, 5, 10)
    """
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return RECIPES[name]()


def _text_base() -> RunConfig:
    """Return the paper's language model on WikiText-2, depth 5 at learning rate 1e-4, quirks included."""
    return RunConfig(
        model=paper_language_model(WIKITEXT2_WORDS, depth=5),
        optimiser=OptimiserConfig(lr=1e-4, clip=0.5, restart_every_epoch=True),
        data=DataConfig(data="wikitext2", batch=20, window=35, valid_batch=10),
        training=TrainingConfig(epochs=20, precision="tf32", measure_every=1000),
    )
