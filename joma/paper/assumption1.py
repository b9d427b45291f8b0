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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.charts import Chart, lines
from joma.claims import Number, claim
from joma.engine.grid import TEXT_SEEDS, recipe
from joma.engine.precision import working_in
from joma.engine.sources import Source, data_size, source_of, with_vocabulary
from joma.engine.step import Stepper
from joma.models import vocabulary_loss
from joma.models.batch import Batch, Parameters
from joma.models.decoder import Decoder
from joma.paper.experiment import Experiment, Measured, caption, catalogue, gathered
from joma.paper.figures6_8 import QUICK
from joma.paper.language_models import needs
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

    text: str = "wikitext2"
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
    text="python-docs", settings=QUICK.settings, rate=QUICK.rate, depth=2, steps=(0, 5, 15, 50, 150), num_windows=20,
    seeds=(1,), needs_gpu=False,
)  # fmt: skip


def compute(config: DriftConfig, store: Store) -> Measured:
    """Follow E[g x] while the model is trained whole, and while each block is trained alone."""
    tasks = [
        Task(
            "all blocks" if block is None else f"block {block} alone",
            {"config": config, "block": block},
            partial(_follow, config, block),
            (config.steps[-1] + len(config.steps) * config.num_windows) * 1e-3 * len(config.seeds),
            kind="assumption1",
            precision=str(config.settings.get("precision", "fp32")),
        )
        for block in (None, *range(config.depth))
    ]
    return gathered(store, tasks)


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
    end, place = config.steps[-1], torch.device(space.device)
    own: dict[str, Any] = {"data": config.text, **config.settings, "depth": config.depth, "lr": config.rate}
    base = with_vocabulary(recipe("figure6").base.update(own | {"steps": end, "only_block": block}))
    runs = [base.update({"seed": seed}) for seed in config.seeds]
    source, model = source_of(runs, place), Decoder(base.model)
    stepper = Stepper(
        model,
        config.seeds,
        [run.optimiser for run in runs],
        num_steps=end,
        steps_per_epoch=data_size(runs[0]).steps_per_epoch,
        precision=base.training.precision,
        device=place,
    )
    readings = {}
    for step in range(end + 1):
        if step in config.steps:
            readings[step] = _read(model, stepper.parameters, source, config.num_windows)
        if step % STEPS_BETWEEN_REPORTS == 0:
            space.progress(step / end, f"step {step:,} of {end:,}")
        if step < end:
            stepper.advance(source.batch(step))
    mode, layers = (TOGETHER, range(config.depth)) if block is None else (ALONE, [block])
    tables = []
    for layer, (step, (halves, losses)) in product(layers, readings.items()):
        now, last = (((one[layer] + other[layer]) / 2).flatten(1).double() for one, other in (halves, readings[end][0]))
        even, odd = (half[layer].flatten(1).double() for half in halves)
        columns = {
            "cosine": torch.cosine_similarity(now, last),
            "length_ratio": now.norm(dim=1) / last.norm(dim=1),
            "between_halves": torch.cosine_similarity(even, odd),
            "loss": losses,
        }
        about = {"mode": mode, "layer": layer, "seed": config.seeds, "step": step}
        tables.append(pd.DataFrame(about | {name: column.tolist() for name, column in columns.items()}))
    return {"drift": pd.concat(tables, ignore_index=True)}


def _read(
    model: Decoder, parameters: Parameters, source: Source, num_windows: int
) -> tuple[list[Deltas], Float[Tensor, " R"]]:
    """Return the matrices of each half of the first windows of the training text, even and odd ones, and the losses."""
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
    return halves, losses


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


def charts(t: Measured) -> Iterator[Chart]:
    """Draw the cosine with the end over training, layer by layer."""
    means = t.drift.groupby(["mode", "layer", "step"], as_index=False)["cosine"].mean()
    yield lines(means, "step", "cosine", color="layer", facet="mode", x_log=True, **caption("assumption1"))


EXPERIMENTS = (
    Experiment(
        **catalogue("assumption1"),
        presets={"quick": SMALL, "full": DriftConfig()},
        compute=compute,
        claims=(stationarity,),
        charts=charts,
        needs=needs,
        in_tasks=True,
    ),
)
