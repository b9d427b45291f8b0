"""Networks trained on data with latents, and how well their hidden neurons follow these: for figure 5 and Table 1.

A neuron's activation on a sample is its maximum over positions, after the ReLU. The weights of a run are measured and
thrown away; what is kept are its rows, so that an interrupted call trains no run twice.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.data.latent_trees import TreeSampler
from joma.engine.config import HIERARCHY, RunConfig, digest
from joma.engine.grid import Run
from joma.engine.loop import PackProgress, train_pack
from joma.engine.plan import Pack, PackPlan, make_plan
from joma.engine.snapshots import steps_of
from joma.engine.sources import HierarchySource, tree_of
from joma.experiments.experiment import Workplace
from joma.experiments.pack_pieces import pack_pieces, part_of
from joma.experiments.timetable import Tell
from joma.measure.alignment import align
from joma.models.batch import Batch, LayerReading, Parameters, Tap
from joma.models.decoder import Decoder
from joma.randomness import run_keys
from joma.store.files import write_bytes

SITE = "alignment"
"""Where the samples come from that neurons are measured on: other ones than those of training and validation."""
NUM_BOOTSTRAPS = 2
"""As few as can be: errors here are those between seeds."""
TRAINING = "training"
"""Folder of the runs that are being trained."""
MEASURING_SHARE = 0.1
"""Of the time of a pack, for the progress."""

Row = dict[str, Any]
Measure = Callable[[Run, Path, Parameters], list[Row]]
"""Finds the rows of a run from its folder, with the checkpoints in it, and from its parameters at the end."""


class AllDivergedError(RuntimeError):
    """No run is left to measure."""

    def __init__(self, num_runs: int, where: str = "") -> None:
        """Say how many runs there were, and `where`, such as `on deep trees`."""
        of_them = " ".join(filter(None, (f"all {num_runs} runs", where)))
        super().__init__(f"A run must stay finite to be measured, but {of_them} diverged. Lower their learning rate.")


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentSamples:
    """Fresh samples of one run's data, with their latents."""

    batch: Batch
    """The sequences, of one run."""
    drawn: Int[Tensor, " N"] | None
    """Which sequence each sample is, where there are few different ones; None where each is its own."""
    latents: tuple[Bool[Tensor, "N _"], ...]
    """Level by level, from the one above the tokens up."""

    def of_samples(self, values: Tensor) -> Tensor:
        """Return the rows of the samples, of values with a row for each sequence."""
        return values if self.drawn is None else values[self.drawn]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a network does with samples."""

    loss: float
    peaks: tuple[Float[Tensor, "N F"], ...]
    """Largest activation of every hidden neuron over the positions, block by block."""


def latent_samples(config: RunConfig, num_samples: int, device: torch.device | str = "cpu") -> LatentSamples:
    """Draw samples of a run's hierarchy or tree, other ones than it is trained on."""
    keys = run_keys([config.seed], torch.device(device))
    if config.data.data == HIERARCHY:
        [hierarchy] = HierarchySource([config], device).hierarchies
        label = hierarchy.classes(keys, 0, num_samples, site=SITE)[0]
        classes = torch.arange(hierarchy.num_classes, device=label.device)
        return LatentSamples(
            batch=Batch(tokens=hierarchy.sequences[None], targets=classes[None]),
            drawn=label,
            latents=tuple(level[label] for level in hierarchy.latents),
        )
    samples = TreeSampler.of(tree_of(config.data), device).sample(keys, 0, num_samples, site=SITE)
    return LatentSamples(
        batch=Batch(tokens=samples.tokens, targets=samples.label),
        drawn=None,
        latents=tuple(level[0] for level in reversed(samples.latents[:-1])),
    )


def read_neurons(
    decoder: Decoder, parameters: Parameters, samples: LatentSamples, also: Tap = lambda reading: None
) -> Reading:
    """Run one network over the samples; `also` sees what each block computed."""
    peaks: list[Tensor] = []

    def take(reading: LayerReading) -> None:
        peaks.append(samples.of_samples(reading.hidden[0].amax(dim=1)))
        also(reading)

    [loss] = decoder.losses(parameters, samples.batch, take).tolist()
    return Reading(loss=loss, peaks=tuple(peaks))


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
    found = align(
        latents,
        activations,
        generator=torch.Generator().manual_seed(seed),
        groups=groups,
        num_shuffles=num_shuffles,
        num_bootstraps=NUM_BOOTSTRAPS,
    )
    return {"ncorr": found.average, "shuffled": found.shuffled.average, "matched": found.matched.average}


def planned(grids: Iterable[Sequence[Run]], device: str) -> list[PackPlan]:
    """Return the packs of several grids, those of a grid together."""
    return [pack for runs in grids for pack in make_plan(runs, device=torch.device(device)).packs]


def rows_path(config: RunConfig, workplace: Workplace, *, settings: Any) -> Path:
    """Return where the rows of a run are kept once it is finished; its config must be completed from its data."""
    return workplace.folder / f"run-{digest([config.hash, settings])}.parquet"


def measured_packs(
    packs: Sequence[PackPlan],
    workplace: Workplace,
    measure: Measure,
    *,
    settings: Any,
    measuring: Callable[[RunConfig], float] = lambda config: 0.0,
) -> pd.DataFrame:
    """Train packs one after the other, and return the rows that `measure` finds of each run.

    `measuring` foretells how many seconds that takes for a run, on top of its training.

    Runs that diverged have no rows, and where all did that is an `AllDivergedError`. Rows are kept run by run
    under the hash of the run and of `settings`, which is all that they depend on, so that they are found again however
    runs are packed; weights are not kept.
    """
    training = workplace.folder / TRAINING

    def path_of(run: Run) -> Path:
        return rows_path(run.config, workplace, settings=settings)

    pieces = pack_pieces(
        [left for plan in packs if (left := _unmeasured(plan, path_of)) is not None],
        training,
        device=workplace.device,
        timetable=workplace.timetable,
        name="networks on data with latents",
        work=lambda pack, tell: _keep_rows(pack, training, workplace.device, measure, path_of, tell),
        afterwards=measuring,
    )
    workplace.work_off(pieces)
    shutil.rmtree(training, ignore_errors=True)
    tables = [pd.read_parquet(path_of(run)) for plan in packs for run in plan.pack.runs]
    measured = [table for table in tables if len(table)]
    if not measured:
        raise AllDivergedError(len(tables))
    return pd.concat(measured, ignore_index=True)


def _unmeasured(plan: PackPlan, path_of: Callable[[Run], Path]) -> PackPlan | None:
    """Return a pack without the runs whose rows are kept, each named by its hash, under which any packing finds it."""
    runs = tuple(Run(name=run.config.hash, config=run.config) for run in plan.pack.runs if not path_of(run).exists())
    if not runs:
        return None
    return part_of(plan, Pack(runs=runs))


def _keep_rows(
    pack: Pack,
    folder: Path,
    device: str,
    measure: Measure,
    path_of: Callable[[Run], Path],
    tell: Tell,
) -> None:
    """Train a pack, keep the rows of each run, and throw the weights away."""
    runs = {run.name: run for run in pack.runs}

    def told(progress: PackProgress) -> None:
        doing = f"training {pack.num_runs} runs: step {progress.step} of {progress.num_steps}"
        tell((1 - MEASURING_SHARE) * progress.step / progress.num_steps, doing)

    def take(name: str, parameters: Parameters) -> None:
        keep(runs[name], measure(runs[name], folder / name, parameters))

    def keep(run: Run, rows: list[Row]) -> None:
        content = BytesIO()
        pd.DataFrame(rows).to_parquet(content, index=False)
        write_bytes(path_of(run), content.getvalue())
        at = sum(path_of(each).exists() for each in pack.runs)
        tell(1 - MEASURING_SHARE * (1 - at / pack.num_runs), f"measured {at} of {pack.num_runs} runs")

    for name in runs:
        if not steps_of(folder / name):  # a record without weights, which were lost: there is nothing to measure
            shutil.rmtree(folder / name, ignore_errors=True)
    ended = train_pack(pack, folder, device=device, progress=told, take=take).runs
    for result in ended:
        if result.status != "finished":
            keep(runs[result.name], [])
        shutil.rmtree(result.folder, ignore_errors=True)
