"""Packs so small that hundreds of trainings fit into a test; imported by children that are started on their own too."""

from pathlib import Path

from joma.engine.config import DataConfig, OptimiserConfig, RunConfig, TrainingConfig
from joma.engine.grid import Run
from joma.engine.plan import Pack
from joma.models.decoder_config import DecoderConfig

DIVERGING_RATE = 1e200
"""A learning rate whose second step finds no finite loss."""


def config(seed=1, *, lr=1e-2, precision="float64", steps=12, schedule="constant", **training):
    """A network of two blocks with dropout on a hierarchy of six classes."""
    sizes = {"vocabulary": 12, "width": 8, "hidden": 8, "depth": 2, "heads": 2, "num_classes": 4}
    data = {"num_latents": (4, 5), "num_children": 2, "num_tokens": 12, "window": 8, "num_classes": 4, "batch": 16}
    return RunConfig(
        model=DecoderConfig(**sizes, dropout=0.1, positions="none", causal=False, readout="class"),
        optimiser=OptimiserConfig(lr=lr, clip=1.0, schedule=schedule),
        data=DataConfig(data="hierarchy", **data),
        training=TrainingConfig(**{"steps": steps, "precision": precision, "measure_every": 4} | training),
        seed=seed,
    )


def pack(seeds=(1, 2), *, diverging=(), **changes):
    """Runs of several seeds, of which those in `diverging` fail at once."""
    runs = []
    for seed in seeds:
        own = config(seed, **({"lr": DIVERGING_RATE} if seed in diverging else {}) | changes)
        runs.append(Run(name=f"seed{seed}", config=own))
    return Pack(runs=tuple(runs))


def folders(root, pack):
    """Folders of a pack's runs."""
    return [Path(root) / name for name in pack.names]
