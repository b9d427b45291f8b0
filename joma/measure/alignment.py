r"""Which hidden neuron follows which latent, and how much of that any network would show (Table 1).

The normalised correlation of latent s is $\max_j \mathrm{corr}(y_s, h_j)$ over all J neurons. By itself it says little,
for among many neurons some always fit. So it comes with what it must be held against: the same statistic for shuffled
latents, for an untrained network's activations, and with no neuron used twice.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Real
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from joma.measure.correlation import Correlations, Resamples, Units
from joma.measure.tensors import tensor_with_axes, truth_values

TIE = 1e-6
"""Averages this close are equal: resamples are multiplied in single precision."""
LEAST_RESAMPLES = 2
"""A spread needs two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """What the same statistic gives where nothing was learned, and what the network has above it."""

    correlation: Float[Tensor, " S"]
    """Best correlation of each latent; for shuffled latents the mean over shuffles."""
    average: float
    """Mean over latents."""
    excess: float
    """The network's average less this one."""
    error: float
    """Standard error of the excess, as `align` says."""
    num_dead_neurons: int
    """Neurons left out because all samples give them one value."""
    p_value: float | None = None
    """Of the network's average under shuffles: (1 + number of shuffles at least as high) / (1 + number of shuffles)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """Neurons assigned to latents one to one, with the largest total correlation."""

    latent: Int[Tensor, " P"]
    """Indices into the latents as given: all that vary, or as many as there are live neurons."""
    neuron: Int[Tensor, " P"]
    """The neuron of each."""
    correlation: Float[Tensor, " P"]
    """Their correlation."""
    average: float
    """Mean over the latents matched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Best correlation of every latent that varies, with its controls."""

    latent: Int[Tensor, " S"]
    """Indices into the latents as given of those that vary; the fields below keep this order."""
    neuron: Int[Tensor, " S"]
    """Best neuron of each."""
    correlation: Float[Tensor, " S"]
    """Its correlation, without sign where `absolute` was asked for."""
    average: float
    """Mean over latents: NCorr of Table 1."""
    matched: Matching
    """The same with no neuron used twice."""
    shuffled: Control
    """The same for latents dealt to other samples."""
    untrained: Control | None
    """The same for another network's activations, where given."""
    num_constant_latents: int
    """Latents left out because all samples give them one value."""
    num_dead_neurons: int
    """Neurons left out for the same reason."""


def peak_activation(hidden: Float[Tensor, "N L J"], mask: Bool[Tensor, "N L"] | None = None) -> Float[Tensor, "N J"]:
    r"""Return the maximum of every neuron over the positions that `mask` keeps, $\max_l h_{nlj}$ (Table 1).

    >>> peak_activation(torch.tensor([[[1.0], [5.0], [2.0]]]), torch.tensor([[True, False, True]]))
    tensor([[2.]])
    """
    tensor_with_axes("hidden", hidden, "N L J")
    if mask is None:
        return hidden.amax(dim=1)
    if truth_values("mask", mask).shape != hidden.shape[:2]:
        raise ValueError(
            f"`mask` must have the samples and positions of `hidden`, {tuple(hidden.shape[:2])}, "
            f"got {tuple(mask.shape)}. Pass one truth value for each position."
        )
    empty = ~mask.any(dim=1)
    if bool(empty.any()):
        raise ValueError(
            f"`mask` must keep a position of every sample, got none for sample {int(empty.nonzero()[0])}. Drop it."
        )
    return hidden.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)


def align(
    latents: Real[Tensor, "N S"] | Bool[Tensor, "N S"],
    activations: Float[Tensor, "N J"],
    *,
    generator: torch.Generator,
    untrained: Float[Tensor, "N K"] | None = None,
    groups: Int[Tensor, " N"] | None = None,
    absolute: bool = False,
    num_shuffles: int = 200,
    num_bootstraps: int = 100,
) -> Alignment:
    r"""Correlate every latent with every neuron, take the best neuron of each, and compute the controls.

    The correlation is Pearson's with its sign, as in Table 1: a neuron that falls silent where the latent is on does
    not count. `absolute=True` lets it count.

    `groups` says which samples share an input (or a class, where the class fixes the latents). They are shuffled and
    weighed together, so latents must not vary within a group. Without it 1280 samples of 20 inputs pass for 1280
    independent ones, and shuffled latents score far too low (docs/alignment.md).

    A shuffle moves all latents by one permutation, so that what ties them to each other stays. Standard errors are
    the spread over Bayesian bootstraps of samples or groups (exponential weights: no latent turns constant), the best
    neuron chosen anew in each, the same weights for both networks; the error of the mean over shuffles is added.
    They are errors of this network on other samples, not of another seed. `generator` is one of the CPU; equal seeds
    give equal results.

    >>> latents = torch.eye(4).repeat(10, 1)
    >>> found = align(latents, 3 * latents.flip(1) + 1, generator=torch.Generator().manual_seed(0))
    >>> found.neuron.tolist(), round(found.average, 6), found.shuffled.average < 0.5
    ([3, 2, 1, 0], 1.0, True)
    """
    _check_counts(num_shuffles=num_shuffles, num_bootstraps=num_bootstraps)
    units = Units.of(latents, groups, tensor_with_axes("activations", activations, "N J").device)
    shuffles, bootstraps = units.shuffles(num_shuffles, generator), units.bootstraps(num_bootstraps, generator)
    network = Correlations.of("activations", activations, units, absolute=absolute)
    control = None if untrained is None else Correlations.of("untrained", untrained, units, absolute=absolute)
    table = network.table()
    correlation, column = table.max(dim=1)
    bootstrapped = network.best(bootstraps).mean(dim=1)
    return Alignment(
        latent=units.kept,
        neuron=network.alive[column],
        correlation=correlation,
        average=float(correlation.mean()),
        matched=_matching(table, network),
        shuffled=_against_shuffles(network, shuffles, correlation, bootstrapped),
        untrained=None if control is None else _against_network(control, bootstraps, correlation, bootstrapped),
        num_constant_latents=latents.shape[1] - len(units.kept),
        num_dead_neurons=network.num_dead,
    )


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < LEAST_RESAMPLES:
            raise ValueError(
                f"`{name}` must be at least {LEAST_RESAMPLES}, got {count}. A hundred give an error bar to 7 %."
            )


def _matching(table: Float[Tensor, "S A"], network: Correlations) -> Matching:
    row, column = map(torch.from_numpy, linear_sum_assignment(table.cpu(), maximize=True))
    correlation = table[row, column]
    return Matching(
        latent=network.units.kept[row],
        neuron=network.alive[column],
        correlation=correlation,
        average=float(correlation.mean()),
    )


def _against_shuffles(
    network: Correlations, shuffles: Resamples, correlation: Float[Tensor, " S"], bootstrapped: Float[Tensor, " B"]
) -> Control:
    null = network.best(shuffles)
    averages, average = null.mean(dim=1), float(correlation.mean())
    num_as_high = int((averages >= average - TIE).sum())
    return Control(
        correlation=null.mean(dim=0),
        average=float(null.mean()),
        excess=average - float(null.mean()),
        error=math.sqrt(float(bootstrapped.var()) + float(averages.var()) / len(averages)),
        num_dead_neurons=network.num_dead,
        p_value=(1 + num_as_high) / (1 + len(averages)),
    )


def _against_network(
    control: Correlations, bootstraps: Resamples, correlation: Float[Tensor, " S"], bootstrapped: Float[Tensor, " B"]
) -> Control:
    own = control.table().amax(dim=1)
    difference = bootstrapped - control.best(bootstraps).mean(dim=1)
    return Control(
        correlation=own,
        average=float(own.mean()),
        excess=float((correlation - own).mean()),
        error=float(difference.std()),
        num_dead_neurons=control.num_dead,
    )
