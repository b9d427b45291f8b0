r"""Which hidden neuron follows which latent, and how much of that any network would show (Table 1).

The normalised correlation of latent s is $\max_j \mathrm{corr}(y_s, h_j)$ over all J neurons. By itself it says little,
for among many neurons some always fit. So it comes with what it must be held against: the same statistic for shuffled
latents, and with no neuron used twice. An untrained network on the same samples is the third control.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Real
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from joma.measure.tensors import finite_tensor, required_tensor, tensor_with_axes, varying

TIE = 1e-6  # averages this close are equal: shuffles are multiplied in single precision
CHUNK_BYTES = 2**25  # largest block of upcast activations, and of correlations of shuffles, held at once
LEAST_UNITS = 3  # two points always correlate perfectly
ROUNDINGS = 32
"""Of the largest activation: a neuron that moves by less is constant. The same sum comes out a few roundings apart in
different rows of one product, and such noise correlates with whatever orders the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """What the same statistic gives for latents dealt to other samples."""

    correlation: Float[Tensor, " S"]  # best correlation of each latent, the mean over shuffles
    average: float  # mean over latents
    p_value: float  # of the network's average: (1 + number of shuffles at least as high) / (1 + number of shuffles)


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """Neurons assigned to latents one to one, with the largest total correlation."""

    latent: Int[Tensor, " P"]  # indices into the latents as given: all that vary, or as many as there are live neurons
    neuron: Int[Tensor, " P"]
    correlation: Float[Tensor, " P"]
    average: float  # mean over the latents matched


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Best correlation of every latent that varies, with its controls."""

    latent: Int[Tensor, " S"]  # indices into the latents as given of those that vary; the fields below keep this order
    neuron: Int[Tensor, " S"]  # best neuron of each
    correlation: Float[Tensor, " S"]  # its correlation
    average: float  # mean over latents: NCorr of Table 1
    matched: Matching  # the same with no neuron used twice
    shuffled: Control  # the same for latents dealt to other samples
    num_constant_latents: int  # latents left out because all samples give them one value
    num_dead_neurons: int  # neurons left out for the same reason


def peak_activation(hidden: Float[Tensor, "N L J"], mask: Bool[Tensor, "N L"] | None = None) -> Float[Tensor, "N J"]:
    r"""Return the maximum of every neuron over the positions that `mask` keeps, $\max_l h_{nlj}$ (Table 1).

    >>> peak_activation(torch.tensor([[[1.0], [5.0], [2.0]]]), torch.tensor([[True, False, True]]))
    tensor([[2.]])
    """
    tensor_with_axes("hidden", hidden, "N L J")
    if mask is None:
        return hidden.amax(dim=1)
    if required_tensor("mask", mask).dtype != torch.bool:
        raise TypeError(f"`mask` must be boolean, got {mask.dtype}. Pass `mask.bool()`.")
    if mask.shape != hidden.shape[:2]:
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
    groups: Int[Tensor, " N"] | None = None,
    num_shuffles: int = 200,
) -> Alignment:
    r"""Correlate every latent with every neuron, take the best neuron of each, and compute the controls.

    The correlation is Pearson's with its sign, as in Table 1: a neuron that falls silent where the latent is on does
    not count.

    `groups` says which samples share an input (or a class, where the class fixes the latents). They are shuffled
    together, so latents must not vary within a group. Without it 1280 samples of 20 inputs pass for 1280 independent
    ones, and shuffled latents score far too low (docs/alignment.md).

    A shuffle moves all latents by one permutation, so that what ties them to each other stays. `generator` is one of
    the CPU; equal seeds give equal results.

    >>> latents = torch.eye(4).repeat(10, 1)
    >>> found = align(latents, 3 * latents.flip(1) + 1, generator=torch.Generator().manual_seed(0))
    >>> found.neuron.tolist(), round(found.average, 6), found.shuffled.average < 0.5
    ([3, 2, 1, 0], 1.0, True)
    """
    if num_shuffles < 1:
        raise ValueError(f"`num_shuffles` must be at least 1, got {num_shuffles}. The default is 200.")
    units = Units.of(latents, groups, tensor_with_axes("activations", activations, "N J").device)
    activations, alive = _live(activations, units)
    identity = torch.arange(len(units.weights), device=activations.device)
    shuffles = torch.stack([torch.randperm(len(identity), generator=generator) for _ in range(num_shuffles)])
    shuffles = shuffles.to(activations.device)
    num_latents = units.latents.shape[1]
    columns, null = [], units.latents.new_full((num_shuffles, num_latents), -torch.inf)
    # Single precision halves the time on a CPU; a GPU's may be the coarser TF32, so there it stays double.
    dtype = torch.float32 if activations.device.type == "cpu" else torch.float64
    for means, squares in _blocks(activations, alive, units):
        columns.append(_correlate(units, identity[None], means, squares)[0])
        size = max(1, CHUNK_BYTES // (means.element_size() * num_latents * max(means.shape)))
        parts = [_correlate(units, part, means, squares, dtype).amax(dim=-1).double() for part in shuffles.split(size)]
        null = torch.maximum(null, torch.cat(parts))
    table = torch.cat(columns, dim=1)
    correlation, column = table.max(dim=1)
    average = float(correlation.mean())
    row, matched = map(torch.from_numpy, linear_sum_assignment(table.cpu(), maximize=True))
    return Alignment(
        latent=units.kept,
        neuron=alive[column],
        correlation=correlation,
        average=average,
        matched=Matching(
            latent=units.kept[row],
            neuron=alive[matched],
            correlation=table[row, matched],
            average=float(table[row, matched].mean()),
        ),
        shuffled=Control(
            correlation=null.mean(dim=0),
            average=float(null.mean()),
            p_value=(1 + int((null.mean(dim=1) >= average - TIE).sum())) / (1 + num_shuffles),
        ),
        num_constant_latents=latents.shape[1] - len(units.kept),
        num_dead_neurons=activations.shape[1] - len(alive),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """What is dealt as a whole: samples, or groups of samples that share an input."""

    latents: Float[Tensor, "G S"]  # those that vary
    weights: Float[Tensor, " G"]  # share of the samples
    member: Int[Tensor, " N"] | None  # unit of every sample; None where each is one
    kept: Int[Tensor, " S"]  # indices of the latents that vary, among those given

    @classmethod
    def of(cls, latents: Tensor, groups: Tensor | None, device: torch.device) -> "Units":
        """Check the latents, drop constant ones, keep one row for each group."""
        values = finite_tensor("latents", tensor_with_axes("latents", latents, "N S")).to(device, torch.float64)
        num_samples = len(values)
        member = None
        weights = torch.full((num_samples,), 1 / max(1, num_samples), dtype=torch.float64, device=device)
        if groups is not None:
            groups = required_tensor("groups", groups).to(device)
            if groups.shape != (num_samples,):
                raise ValueError(
                    f"`groups` must name a group for each of {num_samples} samples, got shape {tuple(groups.shape)}. "
                    "Pass one integer a sample."
                )
            _, member, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
            samples = torch.arange(num_samples, device=device)
            first = torch.full_like(sizes, num_samples).scatter_reduce_(0, member, samples, reduce="amin")
            varies = (values[first][member] != values).any(dim=1)
            if bool(varies.any()):
                sample = int(varies.nonzero()[0])
                raise ValueError(
                    f"`latents` must be constant within a group, got another value at sample {sample} of group "
                    f"{int(groups[sample])}. Give samples with other latents other groups, or leave `groups` out."
                )
            values, weights = values[first], sizes.double() / num_samples
        if len(values) < LEAST_UNITS:
            raise ValueError(
                f"A correlation needs at least {LEAST_UNITS} samples or groups, got {len(values)}. Draw more."
            )
        kept = varying(values)
        if len(kept) == 0:
            raise ValueError(
                f"`latents` must vary over the samples, got {values.shape[1]} of {values.shape[1]} constant. "
                "Draw more samples, or other latents."
            )
        return cls(latents=values[:, kept], weights=weights, member=member, kept=kept)

    def means(self, values: Float[Tensor, "N c"]) -> Float[Tensor, "G c"]:
        """Average over the samples of each unit."""
        if self.member is None:
            return values
        total = values.new_zeros(len(self.weights), values.shape[1]).index_add_(0, self.member, values)
        return total / (self.weights[:, None] * len(values))


def _live(activations: Tensor, units: Units) -> tuple[Float[Tensor, "N J"], Int[Tensor, " A"]]:
    """Check the activations, and find the neurons that vary."""
    num_samples = len(units.weights if units.member is None else units.member)
    if len(activations) != num_samples:
        raise ValueError(
            f"`activations` must have a row for each of {num_samples} samples, got {len(activations)}. "
            "Measure latents and network on the same samples."
        )
    activations = finite_tensor("activations", activations)
    noise = 0.0
    if activations.is_floating_point() and activations.numel():
        # Half precision is rounded from sums in single.
        eps = min(torch.finfo(kind).eps for kind in (activations.dtype, torch.float32))
        noise = ROUNDINGS * eps * float(activations.abs().max())
    alive = varying(activations, noise)
    if len(alive) == 0:
        raise ValueError(
            f"`activations` must have a neuron that varies over the samples, got {activations.shape[1]} dead ones. "
            "Check which layer was tapped, and that the samples differ."
        )
    return activations, alive


def _blocks(activations: Tensor, alive: Tensor, units: Units) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the units' means and mean squares (G, c) of standardised activations, a block of neurons at a time."""
    for columns in alive.split(max(1, CHUNK_BYTES // (torch.float64.itemsize * len(activations)))):
        values = activations[:, columns].to(torch.float64)
        values = values - values.mean(dim=0)
        values = values / values.abs().amax(dim=0)  # squares of tiny activations would underflow
        values = values / values.square().mean(dim=0).sqrt()
        yield units.means(values), units.means(values.square())


def _correlate(
    units: Units,
    order: Int[Tensor, "B G"],
    means: Float[Tensor, "G c"],
    squares: Float[Tensor, "G c"],
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "B S c"]:
    r"""$\mathrm{corr}_w(y, h) = \sum_g w_g (y_g - \bar y)h_g / (\sigma_y\sigma_h)$, moments under the weights w."""
    w, y = units.weights.expand(order.shape), units.latents[order]
    y = y - torch.einsum("bg,bgs->bs", w, y)[:, None]
    y = y / torch.einsum("bg,bgs->bs", w, y.square()).sqrt()[:, None]
    rows = torch.einsum("bg,bgs->bsg", w, y).to(dtype)
    sigma_h = (w @ squares - (w @ means).square()).sqrt()
    product = (rows.flatten(0, 1) @ means.to(dtype)).unflatten(0, rows.shape[:2])
    return product / sigma_h[:, None].to(dtype)
