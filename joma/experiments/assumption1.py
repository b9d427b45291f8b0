r"""Assumption 1 put to the test: does E[g_h x] stay as it is while a language model is trained?

For a layer, $\Delta = \mathbb{E}[x\,g_h^\top]$ has V rows and F columns. $g_h = \partial\mathcal{L}/\partial h$ is the
gradient that is sent back to the hidden neurons after their activation, and x holds the frequencies of the tokens that
a position sees, itself included: data, which training does not move. The mean is over all positions of windows of the
training text that are the same at every step, without dropout. The assumption says that $\Delta$ is constant; the
paper adds that this is true when one layer is trained and the others are fixed. So models are trained whole and, from
the same start, with one block moving alone, and $\Delta$ of a step is held against that of the end: the cosine of the
angle between them, and the ratio of their lengths.

What sampling alone does to the cosine shows between the two halves of the windows, at one step.
"""

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.engine.config import RunConfig
from joma.engine.grid import recipe
from joma.engine.plan import counted_seconds, tried_seconds
from joma.engine.precision import working_in
from joma.engine.sources import Source, data_size, source_of, with_vocabulary
from joma.engine.step import Stepper
from joma.experiments.experiment import Workplace
from joma.experiments.language_model_config import TEXT_SETTINGS, Config, DriftConfig
from joma.experiments.timetable import SETUP_SECONDS, Piece, Tell
from joma.models import vocabulary_loss
from joma.models.batch import Batch, Parameters
from joma.models.decoder import Decoder
from joma.store.files import write_bytes

TOGETHER = "all layers together"
ALONE = "one layer at a time"
Deltas = list[Float[Tensor, "R V F"]]
"""Of every layer."""
STEPS_BETWEEN_REPORTS = 20
MEASURED = ["cosine", "length_ratio", "between_halves", "loss"]
COLUMNS = ["mode", "layer", "seed", "step", *MEASURED]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """The matrices at one step: of each half of the windows, and of the whole."""

    step: int
    halves: tuple[Deltas, Deltas]
    losses: Float[Tensor, " R"]

    def whole(self, layer: int) -> Float[Tensor, "R V F"]:
        return (self.halves[0][layer] + self.halves[1][layer]) / 2


def drift_pieces(config: Config, workplace: Workplace) -> list[Piece]:
    """Return the trainings that are left, of the model whole and block by block; each ends in a file that is kept."""
    device, timetable = workplace.device, workplace.timetable
    left = {block: path for block, path in _paths(config, workplace).items() if not path.exists()}
    with timetable.log.aside():  # what is tried to foretell the work
        seconds = {block: _seconds(config, block, device, is_limited=math.isfinite(timetable.limit)) for block in left}
    return [
        Piece(
            kind="drift trainings",
            name=f"drift of E[g x], {path.stem}",
            seconds=seconds[block],
            setup=SETUP_SECONDS[torch.device(device).type],
            work=partial(_follow, config, block, path, device),
        )
        for block, path in left.items()
    ]


def drift_table(config: Config, workplace: Workplace) -> pd.DataFrame:
    """Return how far each layer's matrix is from that of the end, once all trainings are done."""
    return _joined(_paths(config, workplace).values())


def drift_so_far(config: Config, workplace: Workplace) -> pd.DataFrame:
    """Return the same of the trainings that are done."""
    return _joined(path for path in _paths(config, workplace).values() if path.exists())


def not_followed(config: Config, workplace: Workplace) -> list[str]:
    """Return the names of the trainings that are not done."""
    return [path.stem for path in _paths(config, workplace).values() if not path.exists()]


def num_trainings(config: Config) -> int:
    """Return how many trainings there are: of the model as a whole, and of each block alone."""
    return 1 + config.drift.depth


def over_seeds(drift: pd.DataFrame) -> pd.DataFrame:
    """Return the means over the seeds, for drawing, and between halves of the text that over the layers too."""
    means = drift.groupby(["mode", "layer", "step"], as_index=False)[MEASURED].mean()
    return means.assign(halves_of_layers=means.groupby(["mode", "step"])["between_halves"].transform("mean"))


def context_gradients(model: Decoder, parameters: Parameters, batch: Batch) -> tuple[Deltas, Float[Tensor, " R"]]:
    """Return E[x g_h] of every layer on a batch, without dropout, and the losses."""
    hidden: list[Tensor] = []
    rows = model.embed(parameters, batch.tokens).detach().requires_grad_()
    with torch.enable_grad():
        out = model.read(
            model.hidden(parameters, rows, batch.tokens, tap=lambda reading: hidden.append(reading.hidden))
        )
    losses, gradient = vocabulary_loss.loss_and_gradients(
        out.detach(), *model.readout(parameters), batch.targets, scale=model.config.logit_scale
    )
    gradients = torch.autograd.grad(out, hidden, gradient)
    return [context_sums(batch.tokens, each, model.config.vocabulary) for each in gradients], losses


def context_sums(
    tokens: Int[Tensor, "R B L"], gradients: Float[Tensor, "R B L F"], vocabulary: int
) -> Float[Tensor, "R V F"]:
    r"""Return $\sum_i x_i g_i^\top$ over positions i, with x_i the frequencies of the tokens up to i.

    A token at j is seen by every i from j on and is one of i + 1 there, so its row gets $\sum_{i\ge j} g_i/(i+1)$.

    >>> context_sums(torch.tensor([[[0, 1]]]), torch.tensor([[[[1.0], [2.0]]]]), 3).flatten().tolist()
    [2.0, 1.0, 0.0]
    """
    num_runs, _, length, num_neurons = gradients.shape
    num_seen = torch.arange(1, length + 1, device=gradients.device, dtype=gradients.dtype)
    received = (gradients / num_seen[:, None]).flip(2).cumsum(2).flip(2)
    sums = gradients.new_zeros(num_runs, vocabulary, num_neurons)
    where = tokens.flatten(1)[..., None].expand(-1, -1, num_neurons)
    return sums.scatter_add_(1, where, received.flatten(1, 2))


def _paths(config: Config, workplace: Workplace) -> dict[int | None, Path]:
    """Return where each training is kept, by the block that moves alone; None is the model as a whole."""
    folder = workplace.folder / "drift"
    blocks = (None, *range(config.drift.depth))
    return {block: folder / f"{'together' if block is None else f'block-{block}'}.parquet" for block in blocks}


def _seconds(config: Config, block: int | None, device: str, *, is_limited: bool) -> float:
    """Count the steps of a training, and its measurements as a step for each window; where it matters, try a few."""
    runs, drift, there = _runs(config, block), config.drift, torch.device(device)
    num_steps = drift.steps[-1] + len(drift.steps) * drift.num_windows
    clock = tried_seconds if is_limited and there.type == "cpu" else counted_seconds(there)
    return num_steps * clock(runs[0], len(runs))


def _follow(config: Config, block: int | None, path: Path, device: str, tell: Tell) -> None:
    write_bytes(path, _bytes(_followed(_runs(config, block), config.drift, block, device, tell)))


def _runs(config: Config, block: int | None) -> list[RunConfig]:
    """Return the runs of a training, one for each seed."""
    text, drift = config.texts[0], config.drift
    own: dict[str, Any] = {"data": text, **TEXT_SETTINGS.get(text, {}), **config.settings}
    own |= {"depth": drift.depth, "lr": config.rate, "steps": drift.steps[-1], "only_block": block}
    base = with_vocabulary(recipe("figure6").base.update(own))
    return [base.update({"seed": seed}) for seed in drift.seeds]


def _followed(
    runs: Sequence[RunConfig], drift: DriftConfig, block: int | None, device: str, tell: Tell
) -> pd.DataFrame:
    readings = list(_readings(runs, drift, device, tell))
    layers = range(drift.depth) if block is None else [block]
    mode = TOGETHER if block is None else ALONE
    rows = [
        {"mode": mode, "layer": layer, "seed": own.seed, **numbers}
        for layer in layers
        for reading in readings
        for own, numbers in zip(runs, _numbers(reading, readings[-1], layer), strict=True)
    ]
    return pd.DataFrame(rows)


def _readings(runs: Sequence[RunConfig], drift: DriftConfig, device: str, tell: Tell) -> Iterator[_Reading]:
    """Train, stopping at the steps that are measured."""
    first, place = runs[0], torch.device(device)
    source, model = source_of(runs, place), Decoder(first.model)
    stepper = Stepper(
        model,
        [own.seed for own in runs],
        [own.optimiser for own in runs],
        num_steps=drift.steps[-1],
        steps_per_epoch=data_size(first).steps_per_epoch,
        precision=first.training.precision,
        device=place,
    )
    for step in range(drift.steps[-1] + 1):
        if step in drift.steps:
            yield _read(model, stepper.parameters, source, drift.num_windows, step)
        if step % STEPS_BETWEEN_REPORTS == 0:
            tell(step / drift.steps[-1], f"drift of E[g x]: step {step:,} of {drift.steps[-1]:,}")
        if step < drift.steps[-1]:
            stepper.advance(source.batch(step))


def _read(model: Decoder, parameters: Parameters, source: Source, num_windows: int, step: int) -> _Reading:
    """Measure on the first windows of the training text: those with even numbers are one half, the others the other."""
    halves: list[Deltas] = []
    losses = torch.zeros(source.num_runs, device=source.device)
    with working_in("fp32", source.device):
        for half in range(2):
            chosen = range(half, num_windows, 2)
            sums: Deltas = []
            for window in chosen:
                found, lost = context_gradients(model, parameters, source.batch(window))
                sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
                losses += lost / num_windows
            halves.append([total / len(chosen) for total in sums])
    return _Reading(step=step, halves=(halves[0], halves[1]), losses=losses)


def _numbers(reading: _Reading, end: _Reading, layer: int) -> list[dict[str, Any]]:
    """Hold a layer's matrix against that of the end, run by run."""
    own, last = (each.whole(layer).flatten(1).double() for each in (reading, end))
    one, other = (half[layer].flatten(1).double() for half in reading.halves)
    columns = {
        "cosine": torch.cosine_similarity(own, last),
        "length_ratio": own.norm(dim=1) / last.norm(dim=1),
        "between_halves": torch.cosine_similarity(one, other),
        "loss": reading.losses,
    }
    numbers = {name: column.tolist() for name, column in columns.items()}
    return [
        {"step": reading.step, **{name: column[run] for name, column in numbers.items()}} for run in range(len(own))
    ]


def _joined(paths: Iterable[Path]) -> pd.DataFrame:
    tables = [pd.read_parquet(path) for path in paths]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)


def _bytes(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()
