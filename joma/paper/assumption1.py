r"""Assumption 1 put to the test: does E[g_h x] stay as it is while a language model is trained?

For a layer, $\Delta = \mathbb{E}[x\,g_h^\top]$ has V rows and F columns. $g_h = \partial\mathcal{L}/\partial h$ is the
gradient that is sent back to the hidden neurons after their activation, and x holds the frequencies of the tokens that
a position sees, itself included: data, which training does not move. The mean is over all positions of windows of the
training text that are the same at every step, without dropout. The assumption says that $\Delta$ is constant; the
paper adds that this is true when one layer is trained and the others are fixed. So models are trained whole and, from
the same start, with one block moving alone, and $\Delta$ of a step is compared with that of the end: the cosine of the
angle between them, and the ratio of their lengths.

What sampling alone does to the cosine shows between the two halves of the windows, at one step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.charts import Chart, lines
from joma.claims import Number, claim
from joma.engine.config import RunConfig
from joma.engine.grid import TEXT_SEEDS, recipe
from joma.engine.precision import working_in
from joma.engine.sources import Source, data_size, source_of, with_vocabulary
from joma.engine.step import Stepper
from joma.models import vocabulary_loss
from joma.models.batch import Batch, Parameters
from joma.models.decoder import Decoder
from joma.paper.experiment import Experiment, Measured, gathered
from joma.paper.figures6_8 import EMBEDDED, QUICK, WIKITEXT2, needs
from joma.store import Store, Task, Workspace

TOGETHER = "all layers together"
ALONE = "one layer at a time"
Deltas = list[Float[Tensor, "R V F"]]
"""Of every layer."""
STEPS_BETWEEN_REPORTS = 20
SAME_DIRECTION = 0.9
"""Cosine from which on two matrices count as the same direction."""
SAME_LENGTH = 1.5
"""Factor up to which two lengths count as the same."""
BEGUN = 1000
"""Step from which on the paper's stationarity is asked; the nearest measured one counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftConfig:
    """Where Assumption 1 is tested: E[g x] of every layer while a model is trained."""

    text: str = WIKITEXT2
    settings: Mapping[str, Any] = field(default_factory=lambda: {"precision": "bf16"})
    """Settings in which the models differ from the paper's recipe."""
    rate: float = 1e-4
    depth: int = 5
    steps: tuple[int, ...] = (0, 100, 300, 1000, 3000, 10_000)
    """When it is measured, from 0; the last one ends the training."""
    num_windows: int = 40
    """Windows of the training text that the expectation is taken over; each half of them is measured alone too."""
    seeds: tuple[int, ...] = TEXT_SEEDS
    needs_gpu: bool = True


SMALL = DriftConfig(
    text=EMBEDDED,
    settings=QUICK.settings,
    rate=QUICK.rate,
    depth=2,
    steps=(0, 5, 15, 50, 150),
    num_windows=20,
    seeds=(1,),
    needs_gpu=False,
)


def compute(config: DriftConfig, store: Store) -> Measured:
    """Follow E[g x] while the model is trained whole, and while each block is trained alone."""
    blocks = (None, *range(config.depth))
    seconds = (config.steps[-1] + len(config.steps) * config.num_windows) * 1e-3 * len(config.seeds)
    tasks = [
        Task(
            "all blocks" if block is None else f"block {block} alone",
            {"config": config, "block": block},
            partial(_follow, config, block),
            seconds,
            kind="assumption1",
            precision=str(config.settings.get("precision", "fp32")),
        )
        for block in blocks
    ]
    return gathered(store, tasks)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """The matrices at one step: of each half of the windows, and of the whole."""

    step: int
    halves: tuple[Deltas, Deltas]
    losses: Float[Tensor, " R"]

    def whole(self, layer: int) -> Float[Tensor, "R V F"]:
        return (self.halves[0][layer] + self.halves[1][layer]) / 2


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


def _follow(config: DriftConfig, block: int | None, space: Workspace) -> dict[str, pd.DataFrame]:
    """Train one run for each seed, with one block moving alone or all of them, and compare each step with the end."""
    own: dict[str, Any] = {"data": config.text, **config.settings, "depth": config.depth, "lr": config.rate}
    own |= {"steps": config.steps[-1], "only_block": block}
    base = with_vocabulary(recipe("figure6").base.update(own))
    runs = [base.update({"seed": seed}) for seed in config.seeds]
    readings = list(_readings(runs, config, space))
    mode, layers = (TOGETHER, range(config.depth)) if block is None else (ALONE, [block])
    rows = [
        {"mode": mode, "layer": layer, "seed": run.seed, **numbers}
        for layer in layers
        for reading in readings
        for run, numbers in zip(runs, _numbers(reading, readings[-1], layer), strict=True)
    ]
    return {"drift": pd.DataFrame(rows)}


def _readings(runs: Sequence[RunConfig], drift: DriftConfig, space: Workspace) -> Iterator[_Reading]:
    """Train, stopping at the steps that are measured."""
    first, place = runs[0], torch.device(space.device)
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
            space.progress(step / drift.steps[-1], f"step {step:,} of {drift.steps[-1]:,}")
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
    by_run = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [{"step": reading.step} | dict(zip(columns, numbers, strict=True)) for numbers in by_run]


@claim("assumption1", "E[g x] stays as it is", source="Section 2, Assumption 1")
def stationarity(t: Measured) -> Iterator[Number]:
    """E[g x] remains constant during training: true when one layer is trained and the others are fixed, and
    approximately for joint training.
    """
    *steps, end = sorted(t.drift["step"].unique())
    begun = min(steps, key=lambda step: abs(step - BEGUN))
    for mode, key in ((ALONE, "alone"), (TOGETHER, "together")):
        own = t.drift[t.drift["mode"] == mode].groupby(["step", "seed"]).mean(numeric_only=True)
        start, at = own.loc[0], own.loc[begun]
        name = f"cosine of E[g x] at step {begun:,} with that of step {end:,}"
        yield Number.mean(name, at["cosine"], at_least=SAME_DIRECTION, setting=mode, key=key)
        name = f"length of E[g x] at step {begun:,} over that of step {end:,}, or its inverse"
        length = at["length_ratio"].where(at["length_ratio"] > 1, 1 / at["length_ratio"])
        yield Number.mean(name, length, at_most=SAME_LENGTH, setting=mode, key=f"{key}_length")
        name = f"cosine at the start with that of the end, {mode}"
        yield Number.mean(name, start["cosine"], key=f"{key}_start")
        name = f"cosine between two halves of the text at step {begun:,}, {mode}: what sampling does"
        yield Number.mean(name, at["between_halves"], key=f"{key}_halves")


def charts(t: Measured) -> list[Chart]:
    """Draw the cosine with the end over training, layer by layer."""
    return [
        lines(
            t.drift.groupby(["mode", "layer", "step"], as_index=False)["cosine"].mean(),
            "step",
            "cosine",
            color="layer",
            facet="mode",
            x_log=True,
            id="assumption1",
            labels={"cosine": "cosine with E[g x] of the end", "step": "training step"},
            title="E[g x] turns while the model learns",
            caption="Mean over seeds. A constant E[g x] would stay at one.",
        )
    ]


EXPERIMENTS = (
    Experiment(
        id="assumption1",
        title="Does E[g x] stay constant while a model is trained?",
        source="Section 2, Assumption 1",
        question="Is the backpropagated gradient term constant, as Assumption 1 says, when one layer is trained and "
        "when all are?",
        presets={"quick": SMALL, "full": DriftConfig()},
        compute=compute,
        claims=(stationarity,),
        charts=charts,
        needs=needs,
        in_tasks=True,
    ),
)
