"""A grid of runs: every combination of the values given, each with a name that stays when the grid grows.

A recipe is a base and the axes of its grid: the settings behind the paper's figures and tables, and small ones that
train on any machine. Axes that a call gives replace or join those of the recipe. Every quirk of the paper's scripts is
a field of the config, on in its recipes and off in `small`.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joma.data.corpora import OWN_TEXT, find_text
from joma.engine.config import (
    HIERARCHY,
    LENGTHS,
    SAVING,
    SEQUENCES,
    TEXTS,
    TREES,
    DataConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
    all_settings,
    digest,
    parse,
)
from joma.errors import UnknownNameError
from joma.formatting import fewest_letters
from joma.models.decoder_config import DecoderConfig, paper_language_model, paper_table1

UNNAMED = ("vocabulary", *SAVING)
"""Fields that leave a run what it is, or follow from others; they are no part of its name."""
DEFAULT = "small"
"""The recipe of a call that names none."""
TEXT_RATES = (1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)
FIGURE_6_DEPTHS = (1, 2, 5, 10)
TEXT_SEEDS = (1, 2, 3)
TABLE_1_LATENTS = ((10, 20), (20, 30))
TABLE_1_CHILDREN = (2, 3)
TABLE_1_CLASSES = (20, 30, 50)
TABLE_1_SEEDS = (1, 2, 3, 4, 5)
_WIKITEXT2_WORDS = 28_782
"""Vocabulary of WikiText-2 by the paper's tokenisation; the text itself decides when it is read."""
_SMALL_WORDS = 2000
_MAX_NAME = 120
"""Longest name of a folder; file systems take 255."""
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of a grid."""

    name: str
    """Name of its folder, unique among runs that differ and the same in every grid that has the run."""
    config: RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Where a grid starts from."""

    base: RunConfig
    axes: Mapping[str, tuple[Any, ...]]
    """Values of the fields that vary; they are in the name of every run, whatever varies in a call."""
    about: str
    """What it is, in one line."""


def axes_of(given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each axis: one or several as Python has them, or text such as `"1,2,5"`; each once.

    >>> axes_of({"lr": "1e-4,0.0001,1e-3", "depth": 2, "num_latents": [(10, 20), "20x30"]})
    {'lr': (0.0001, 0.001), 'depth': (2,), 'num_latents': ((10, 20), (20, 30))}
    """
    return {name: _axis(name, value) for name, value in given.items()}


def grid(base: RunConfig, axes: Mapping[str, Sequence[Any]], named: Collection[str] = ()) -> tuple[Run, ...]:
    """Return a run for every combination of the axes, the last axis running fastest, each config once.

    A name spells the fields in `named`, which a recipe fixes, the seed, and every other field that is not as in `base`;
    the length only where the learning rate follows a schedule to its end, since otherwise a run can be made longer.
    """
    runs: dict[str, Run] = {}
    for values in itertools.product(*axes.values()):
        config = base.update(dict(zip(axes, values, strict=True)))
        run = Run(name=run_name(config, base, named), config=config)
        if runs.setdefault(run.name, run) != run:
            raise ValueError(
                f"The run {run.name} is there twice and differs in its length alone, so that the longer one holds the "
                "shorter. Give one value of `steps` or `epochs`."
            )
    if not runs:
        raise ValueError("The grid is empty, and a training needs a run at least. Give every axis a value.")
    return tuple(runs.values())


def run_name(config: RunConfig, base: RunConfig, named: Collection[str] = ()) -> str:
    """Return the name of a run, a function of its config, the base and `named` alone.

    >>> from joma.engine.grid import recipe
    >>> base = recipe("figure6").base
    >>> run_name(base.update({"lr": 1e-5, "heads": 2, "seed": 3}), base, named=("depth", "lr"))
    'depth5-lr1e-5-heads2-seed3'
    """
    usual = base.flat()
    flat = {name: value for name, value in config.flat().items() if name not in UNNAMED}
    lasting = config.optimiser.schedule == "constant"
    differing = [
        name
        for name, value in flat.items()
        if value != usual[name] and not (name in LENGTHS and (lasting or value is None))
    ]
    wanted = dict.fromkeys([*named, *sorted(differing), "seed"])
    del wanted["seed"]
    spelt = "-".join(name.removeprefix("num_") + _spelt(flat[name]) for name in (*wanted, "seed"))
    if len(spelt) <= _MAX_NAME:
        return spelt
    end = f"-{digest(spelt)}"
    return spelt[: _MAX_NAME - len(end)].rstrip("-") + end


def check_data(runs: Iterable[Run]) -> None:
    """Refuse texts that are not there, before torch is imported."""
    for name in sorted({run.config.data.data for run in runs if run.config.data.is_text} - set(TEXTS)):
        try:
            find_text(name)
        except UnknownNameError:
            raise UnknownNameError("data", name, (*TEXTS, *SEQUENCES), remark=OWN_TEXT) from None


def _axis(name: str, value: Any) -> tuple[Any, ...]:
    values = tuple(dict.fromkeys(parse(name, each) for each in _listed(name, value)))
    if not values:
        raise ValueError(f"The axis `{name}` is empty, so the grid has no run. Give it a value, or leave it out.")
    if name == "vocabulary":
        raise ValueError("`vocabulary` follows from the data. Set `vocabulary_cap`, or `num_tokens` for a hierarchy.")
    if name in UNNAMED and len(values) > 1:
        raise ValueError(f"`{name}` does not change a run, so it is no axis: give one value, got {len(values)}.")
    return values


def _listed(name: str, value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if value is None or not isinstance(value, Iterable):
        return [value]
    values = list(value)
    is_one = name in all_settings() and all_settings()[name].takes_several
    return [tuple(values)] if is_one and values and not any(isinstance(each, Iterable) for each in values) else values


def _spelt(value: Any) -> str:
    """Spell a value so that a file system takes it and different values differ."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return ("+" if isinstance(value[0], str) else "x").join(map(_spelt, value)) if value else "none"
    if isinstance(value, str):
        safe = _UNSAFE.sub("_", value).strip("_.")
        return safe if safe == value else f"{safe[-24:]}_{digest(value)[:6]}"
    return str(value) if isinstance(value, int) else fewest_letters(value)


def recipe(name: str) -> Recipe:
    """Return the recipe with this name.

    >>> recipe("figure6").axes["depth"]
    (1, 2, 5, 10)
    """
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return RECIPES[name]


def runs_of(given: Mapping[str, Any] | None, name: str = DEFAULT) -> tuple[Run, ...]:
    """Return the grid of a recipe with the axes that are given."""
    chosen = recipe(name)
    return grid(chosen.base, {**chosen.axes, **axes_of(given or {})}, tuple(chosen.axes))


_PAPER_TEXT = RunConfig(
    model=paper_language_model(_WIKITEXT2_WORDS, depth=5),
    optimiser=OptimiserConfig(lr=1e-4, clip=0.5, restart_every_epoch=True),
    data=DataConfig(data="wikitext2", batch=20, window=35, valid_batch=10),
    training=TrainingConfig(epochs=20, precision="tf32", measure_every=1000),
)
_PAPER_TABLE1 = paper_table1(TABLE_1_CLASSES[0])
_TREES = DecoderConfig(
    vocabulary=2, width=64, hidden=128, depth=3, positions="none", causal=False, readout="class", num_classes=2
)

RECIPES = {
    "figure6": Recipe(
        about="WikiText-2, depth 1, 2, 5, 10 at learning rate 1e-4, 3 seeds (JoMA figure 6)",
        base=_PAPER_TEXT,
        axes={"depth": FIGURE_6_DEPTHS, "lr": (1e-4,), "seed": TEXT_SEEDS},
    ),
    "figure8": Recipe(
        about="WikiText-2, depth 5, learning rates 1e-6 to 1e-2, 3 seeds (JoMA figure 8)",
        base=_PAPER_TEXT,
        axes={"depth": (5,), "lr": TEXT_RATES, "seed": TEXT_SEEDS},
    ),
    "small": Recipe(
        about="documentation of Python, 2,000 words, width 64, 3 seeds: minutes on a CPU",
        base=RunConfig(
            model=DecoderConfig(vocabulary=_SMALL_WORDS, width=64, hidden=256, heads=2, depth=2),
            optimiser=OptimiserConfig(optimiser="adamw", weight_decay=0.01, clip=1.0, warmup=50),
            data=DataConfig(data="python-docs", vocabulary_cap=_SMALL_WORDS, valid_windows=20),
            training=TrainingConfig(steps=1000, measure_every=50),
        ),
        axes={"depth": (2,), "lr": (1e-3,), "seed": (1, 2, 3)},
    ),
    # The sources leave two things open: learning rate (1e-5 here; also 1e-4) and hidden width (400 here; also 4096).
    "table1": Recipe(
        about="deterministic hierarchy, 12 settings of latents, children and classes, 5 seeds (JoMA Table 1)",
        base=RunConfig(
            model=_PAPER_TABLE1,
            optimiser=OptimiserConfig(lr=1e-5, weight_decay=1e-4),
            data=DataConfig(data=HIERARCHY, batch=128, window=30, num_tokens=100, num_classes=TABLE_1_CLASSES[0]),
            training=TrainingConfig(steps=10_000, precision="tf32", measure_every=1000),
        ),
        axes={
            "num_latents": TABLE_1_LATENTS,
            "num_children": TABLE_1_CHILDREN,
            "num_classes": TABLE_1_CLASSES,
            "hidden": (_PAPER_TABLE1.hidden,),
            "lr": (1e-5,),
            "seed": TABLE_1_SEEDS,
        },
    ),
    "trees": Recipe(
        about="random latent trees of 8 leaves (HBLT, JoMA section 5), two polarities, 3 seeds: minutes on a CPU",
        base=RunConfig(
            model=_TREES,
            data=DataConfig(data=TREES, batch=128, num_classes=2, tree_depth=3),
            training=TrainingConfig(steps=1000, measure_every=100),
        ),
        axes={"rho": (0.6, 0.8), "lr": (1e-3,), "seed": (1, 2, 3)},
    ),
}
"""Recipes by name."""
