"""Figures 6 and 8: which language models are trained, at the paper's size and at a small one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joma.data.corpora import local_folder
from joma.engine.grid import FIGURE_6_DEPTHS, TEXT_RATES, TEXT_SEEDS

PAPER = "as in the paper"
UNTRAINED = "untrained"
OTHER_PRECISION = "tf32"
LINEAR = "linear activation"
CONTROLS: dict[str, dict[str, Any]] = {
    LINEAR: {"activation": "linear"},
    "no optimiser restart": {"restart_every_epoch": False},
    "no dropout": {"dropout": 0.0},
    "frozen attention": {"frozen": "attention"},
}
"""Ingredients that the rebound of the entropy may need, each taken away on its own."""
WIKITEXT2, WIKITEXT103, EMBEDDED = "wikitext2", "wikitext103", "python-docs"
TEXT_NAMES = {WIKITEXT2: "WikiText-2", WIKITEXT103: "WikiText-103", EMBEDDED: "Python's documentation"}
"""What texts are called in a sentence; one that is not here is called as it was given."""
TEXT_SETTINGS: dict[str, dict[str, Any]] = {
    WIKITEXT2: {"measure_every": 1000, "measure_spacing": "early"},
    WIKITEXT103: {"epochs": 5, "measure_every": 2500, "measure_spacing": "early"},
}
"""What a text changes in the recipe. It is measured as often as in the paper, and more often early on: a dip within the
first few thousand steps would be two or three points wide, and at high learning rates it comes within the first
hundred."""
PUBLISHED = {
    WIKITEXT2: {1: 5.357, 2: 5.255, 5: 5.169, 10: 5.110},
    WIKITEXT103: {1: 5.047, 2: 4.912, 5: 4.762, 10: 4.679},
}
"""Lowest validation losses by depth at learning rate 1e-4, means over three seeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftConfig:
    """Where Assumption 1 is put to the test: E[g x] of every layer while a model is trained."""

    depth: int
    """Blocks of the model."""
    steps: tuple[int, ...]
    """When it is measured, from 0; the last one ends the training."""
    num_windows: int
    """Windows of the training text that the expectation is taken over; each half of them stands for itself as well."""
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Runs of figures 6 and 8 and their controls."""

    texts: tuple[str, ...]
    """Texts to train on; controls are trained on the first."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings, by flat name, in which every run differs from the paper's recipe."""
    depths: tuple[int, ...]
    """Figure 6, at the learning rate `rate`."""
    rate: float
    """The learning rate that the paper calls best."""
    rates: tuple[float, ...]
    """Figure 8, at the depth `rate_depth`."""
    rate_depth: int
    seeds: tuple[int, ...]
    controls: tuple[str, ...]
    """Names of `CONTROLS`."""
    control_depths: tuple[int, ...]
    checked_depths: tuple[int, ...] = ()
    """Depths at which one seed is trained in TF32 as well, to hold bf16 against it."""
    drift: DriftConfig
    needs_gpu: bool
    small: bool
    """Whether the models are too small to decide what larger ones do."""

    def __post_init__(self) -> None:
        """Refuse runs that do not go together."""
        if self.rate not in self.rates or self.rate_depth not in self.depths:
            raise ValueError(
                f"Figures 6 and 8 must meet: `rate` {self.rate} must be one of `rates`, and `rate_depth` "
                f"{self.rate_depth} one of `depths`. Add them."
            )
        if not set(self.control_depths) <= set(self.depths):
            raise ValueError(f"Controls need a run to stand beside: `control_depths` must be among {self.depths}.")


def quick() -> Config:
    """Width 64, 2,000 words of Python's documentation, 400 steps, two seeds: what fits on two cores.

    An epoch is longer than that, so the optimiser never restarts and has no control.
    """
    return Config(
        texts=(EMBEDDED,),
        settings={
            "vocabulary_cap": 2000,
            "width": 64,
            "hidden": 64,
            "embedding_scale": 8.0,
            "batch": 10,
            "steps": 400,
            "measure_every": 5,
            "valid_windows": 3,
            "precision": "fp32",
        },
        depths=(1, 2, 3),
        rate=3e-3,
        rates=(1e-3, 3e-3, 1e-2),
        rate_depth=2,
        seeds=(1, 2),
        controls=(LINEAR, "no dropout", "frozen attention"),
        control_depths=(1,),
        drift=DriftConfig(depth=2, steps=(0, 5, 15, 50, 150), num_windows=20, seeds=(1,)),
        needs_gpu=False,
        small=True,
    )


def full() -> Config:
    """The paper's settings on WikiText-2, and on WikiText-103 where it lies below `$JOMA_DATA`."""
    return Config(
        texts=(WIKITEXT2, *([WIKITEXT103] if local_folder(WIKITEXT103) else [])),
        settings={"precision": "bf16"},
        depths=FIGURE_6_DEPTHS,
        rate=1e-4,
        rates=TEXT_RATES,
        rate_depth=5,
        seeds=TEXT_SEEDS,
        controls=tuple(CONTROLS),
        control_depths=(1, 5),
        checked_depths=(1, 5),
        drift=DriftConfig(depth=5, steps=(0, 100, 300, 1000, 3000, 10_000), num_windows=40, seeds=TEXT_SEEDS),
        needs_gpu=True,
        small=False,
    )
