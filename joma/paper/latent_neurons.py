"""Networks trained on data with latents, and how well their hidden neurons follow these: for figure 5 and Table 1.

A neuron's activation on a sample is its maximum over positions, after the ReLU. A task trains one pack, measures every
run when it ends, and keeps the rows; weights are not kept.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.data.latent_trees import TreeSampler
from joma.engine.config import HIERARCHY, RunConfig
from joma.engine.grid import Run
from joma.engine.loop import PackProgress, train_pack
from joma.engine.plan import Pack, make_plan
from joma.engine.snapshots import steps_of
from joma.engine.sources import HierarchySource, tree_of
from joma.measure.alignment import align
from joma.models.batch import Batch, LayerReading, Parameters, Tap
from joma.models.decoder import Decoder
from joma.randomness import run_keys
from joma.store import Task, Workspace
from joma.store.files import write_bytes

SITE = "alignment"
"""Where the samples come from that neurons are measured on: other ones than those of training and validation."""

Row = dict[str, Any]
Measure = Callable[[RunConfig, Path, Parameters, str], list[Row]]
"""Finds the rows of a run from its folder, with the checkpoints in it, and from its parameters at the end, on a device.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentSamples:
    """Fresh samples of one run's data, with their latents."""

    batch: Batch
    """The sequences, of one run."""
    drawn: Int[Tensor, " N"] | None
    """Which sequence each sample is, where there are few different ones; None where each is its own."""
    latents: tuple[Bool[Tensor, "N _"], ...]
    """Level by level, from the one above the tokens up."""

    def read(
        self, decoder: Decoder, parameters: Parameters, also: Tap = lambda reading: None
    ) -> tuple[float, list[Float[Tensor, "N F"]]]:
        """Return a network's loss, and block by block the largest activation of every neuron over the positions.

        `also` sees what each block computed.
        """
        peaks: list[Tensor] = []

        def take(reading: LayerReading) -> None:
            largest = reading.hidden[0].amax(dim=1)
            peaks.append(largest if self.drawn is None else largest[self.drawn])
            also(reading)

        [loss] = decoder.losses(parameters, self.batch, take).tolist()
        return loss, peaks


def latent_samples(config: RunConfig, num_samples: int, device: torch.device | str = "cpu") -> LatentSamples:
    """Draw samples of a run's hierarchy or tree, other ones than it is trained on."""
    keys = run_keys([config.seed], torch.device(device))
    if config.data.data == HIERARCHY:
        [hierarchy] = HierarchySource([config], device).hierarchies
        drawn = hierarchy.classes(keys, 0, num_samples, site=SITE)[0]
        classes = torch.arange(hierarchy.num_classes, device=drawn.device)
        batch = Batch(tokens=hierarchy.sequences[None], targets=classes[None])
        return LatentSamples(batch=batch, drawn=drawn, latents=tuple(level[drawn] for level in hierarchy.latents))
    samples = TreeSampler.of(tree_of(config.data), device).sample(keys, 0, num_samples, site=SITE)
    batch = Batch(tokens=samples.tokens, targets=samples.label)
    return LatentSamples(batch=batch, drawn=None, latents=tuple(level[0] for level in reversed(samples.latents[:-1])))


def of_one_run(tensors: dict[str, Tensor], device: torch.device | str) -> Parameters:
    """Return the parameters of one run with the axis of runs in front."""
    return {name: tensor.to(device)[None] for name, tensor in tensors.items()}


def ncorr(
    latents: Bool[Tensor, "N S"],
    activations: Float[Tensor, "N F"],
    *,
    seed: int,
    num_shuffles: int,
    groups: Int[Tensor, " N"] | None = None,
) -> dict[str, float]:
    r"""Return NCorr of Table 1, the mean over latents of $\max_j \mathrm{corr}(y, h_j)$, with two of its controls.

    `shuffled` is the same for latents dealt to other inputs, `matched` with no neuron used twice.
    """
    generator = torch.Generator().manual_seed(seed)
    found = align(latents, activations, generator=generator, groups=groups, num_shuffles=num_shuffles)
    return {"ncorr": found.average, "shuffled": found.shuffled.average, "matched": found.matched.average}


def pack_tasks(
    grids: Iterable[Sequence[Run]], device: str, measure: Measure, settings: Mapping[str, Any]
) -> list[Task]:
    """Return one task for each pack of runs.

    Args:
        grids: Runs, those of a grid together.
        device: Where they are trained, for the packs and the expected time.
        measure: What measures a run.
        settings: What the rows of a run depend on, apart from the run.
    """
    return [
        Task(
            name=f"{len(plan.pack.runs)} runs, {plan.pack.runs[0].name} and like it",
            key={"runs": [run.config.hash for run in plan.pack.runs], **settings},
            work=partial(_measured, plan.pack.runs, measure),
            seconds=plan.seconds,
            kind="latents",
            precision=plan.pack.runs[0].config.training.precision,
        )
        for runs in grids
        for plan in make_plan(runs, device=torch.device(device)).packs
    ]


def _measured(runs: Sequence[Run], measure: Measure, space: Workspace) -> dict[str, pd.DataFrame]:
    """Train a pack and return the rows of its runs; runs that diverged have none, those measured before are kept."""
    training = space.folder / "training"
    paths = {run.name: space.folder / "rows" / f"{run.config.hash}.parquet" for run in runs}

    def keep(name: str, found: list[Row]) -> None:
        write_bytes(paths[name], pd.DataFrame(found).to_parquet(index=False))

    def report(at: PackProgress) -> None:
        space.progress(0.9 * at.step / at.num_steps, f"step {at.step} of {at.num_steps}")

    def take(name: str, parameters: Parameters) -> None:
        keep(name, measure(left[name].config, training / name, parameters, space.device))
        space.progress(1 - 0.1 * sum(not path.exists() for path in paths.values()) / len(runs), "measuring")

    left = {run.name: run for run in runs if not paths[run.name].exists()}
    for name in left:
        if not steps_of(training / name):  # a record without weights, which were lost: nothing to measure
            shutil.rmtree(training / name, ignore_errors=True)
    if left:
        pack = Pack(runs=tuple(left.values()))
        for result in train_pack(pack, training, device=space.device, progress=report, take=take):
            if result.status != "finished":
                keep(result.name, [])
    tables = [pd.read_parquet(path) for path in paths.values()]
    return {"rows": pd.concat([table for table in tables if len(table)] or [pd.DataFrame()], ignore_index=True)}
