r"""Which hidden neuron follows which latent, and how much of that any network would show (Table 1).

The normalised correlation of latent s is $\max_j \mathrm{corr}(y_s, h_j)$ over all J neurons. By itself it says little,
for among many neurons some always fit. So it comes with what it must be held against: the same statistic for shuffled
latents, for an untrained network's activations, and with no neuron used twice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Real
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from joma.measure.tensors import finite_tensor, required_tensor, tensor_with_axes, varying

TIE = 1e-6
"""Averages this close are equal: resamples are multiplied in single precision."""
LEAST_RESAMPLES = 2
"""A spread needs two."""
CHUNK_BYTES = 2**25
"""Largest block of upcast activations, and of correlations of resamples, held at once."""
LEAST_UNITS = 3
"""Two points always correlate perfectly."""
ROUNDINGS = 32
"""Of the largest activation: a neuron that moves by less is constant. The same sum comes out a few roundings apart in
different rows of one product, and such noise correlates with whatever orders the rows."""


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
    correlation: Float[Tensor, " P"]
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
    """Its correlation."""
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
    untrained: Float[Tensor, "N K"] | None = None,
    groups: Int[Tensor, " N"] | None = None,
    num_shuffles: int = 200,
    num_bootstraps: int = 100,
) -> Alignment:
    r"""Correlate every latent with every neuron, take the best neuron of each, and compute the controls.

    The correlation is Pearson's with its sign, as in Table 1: a neuron that falls silent where the latent is on does
    not count.

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
    for name, count in (("num_shuffles", num_shuffles), ("num_bootstraps", num_bootstraps)):
        if count < LEAST_RESAMPLES:
            raise ValueError(
                f"`{name}` must be at least {LEAST_RESAMPLES}, got {count}. A hundred give an error bar to 7 %."
            )
    units = Units.of(latents, groups, tensor_with_axes("activations", activations, "N J").device)
    shuffles, bootstraps = units.shuffles(num_shuffles, generator), units.bootstraps(num_bootstraps, generator)
    network = Correlations.of("activations", activations, units)
    table = network.table()
    correlation, column = table.max(dim=1)
    average = float(correlation.mean())
    bootstrapped = network.best(*bootstraps).mean(dim=1)
    row, matched = map(torch.from_numpy, linear_sum_assignment(table.cpu(), maximize=True))

    null = network.best(*shuffles)
    by_shuffle = null.mean(dim=1)
    shuffled = Control(
        correlation=null.mean(dim=0),
        average=float(null.mean()),
        excess=average - float(null.mean()),
        error=math.sqrt(float(bootstrapped.var()) + float(by_shuffle.var()) / num_shuffles),
        num_dead_neurons=network.num_dead,
        p_value=(1 + int((by_shuffle >= average - TIE).sum())) / (1 + num_shuffles),
    )
    over_untrained = None
    if untrained is not None:
        control = Correlations.of("untrained", untrained, units)
        best = control.table().amax(dim=1)
        over_untrained = Control(
            correlation=best,
            average=float(best.mean()),
            excess=float((correlation - best).mean()),
            error=float((bootstrapped - control.best(*bootstraps).mean(dim=1)).std()),
            num_dead_neurons=control.num_dead,
        )
    return Alignment(
        latent=units.kept,
        neuron=network.alive[column],
        correlation=correlation,
        average=average,
        matched=Matching(
            latent=units.kept[row],
            neuron=network.alive[matched],
            correlation=table[row, matched],
            average=float(table[row, matched].mean()),
        ),
        shuffled=shuffled,
        untrained=over_untrained,
        num_constant_latents=latents.shape[1] - len(units.kept),
        num_dead_neurons=network.num_dead,
    )


Resamples = tuple[Int[Tensor, "B G"], Float[Tensor, "B G"]]
"""Ways to deal and to weigh the units anew: whose latents each unit gets, and what it counts (rows sum to 1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """What is dealt as a whole: samples, or groups of samples that share an input."""

    latents: Float[Tensor, "G S"]
    """Those that vary."""
    weights: Float[Tensor, " G"]
    """Share of the samples."""
    member: Int[Tensor, " N"] | None
    """Unit of every sample; None where each is one."""
    kept: Int[Tensor, " S"]
    """Indices of the latents that vary, among those given."""

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

    def shuffles(self, count: int, generator: torch.Generator) -> Resamples:
        """Deal the latents to other units, all latents by one permutation."""
        order = torch.stack([torch.randperm(len(self.weights), generator=generator) for _ in range(count)])
        return order.to(self.weights.device), self.weights.expand(count, -1)

    def bootstraps(self, count: int, generator: torch.Generator) -> Resamples:
        """Weigh the units anew by exponential weights: the Bayesian bootstrap (Rubin 1981)."""
        draw = torch.empty(count, len(self.weights), dtype=torch.float64).exponential_(generator=generator)
        weights = draw.to(self.weights.device) * self.weights
        order = torch.arange(len(self.weights), device=self.weights.device)
        return order.expand(count, -1), weights / weights.sum(dim=1, keepdim=True)

    def means(self, values: Float[Tensor, "N c"]) -> Float[Tensor, "G c"]:
        """Average over the samples of each unit."""
        if self.member is None:
            return values
        total = values.new_zeros(len(self.weights), values.shape[1]).index_add_(0, self.member, values)
        return total / (self.weights[:, None] * len(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Correlations:
    """A network's live neurons against the latents of the units, a block of neurons at a time."""

    units: Units
    activations: Float[Tensor, "N J"]
    alive: Int[Tensor, " A"]
    """Indices of the neurons that vary."""

    @classmethod
    def of(cls, name: str, activations: Tensor, units: Units) -> "Correlations":
        """Check the activations called `name` and find the neurons that vary."""
        num_samples = len(units.weights if units.member is None else units.member)
        if len(tensor_with_axes(name, activations, "N J")) != num_samples:
            raise ValueError(
                f"`{name}` must have a row for each of {num_samples} samples, got {len(activations)}. "
                "Measure latents and networks on the same samples."
            )
        activations = finite_tensor(name, activations).to(units.weights.device)
        noise = 0.0
        if activations.is_floating_point() and activations.numel():
            # Half precision is rounded from sums in single.
            eps = min(torch.finfo(kind).eps for kind in (activations.dtype, torch.float32))
            noise = ROUNDINGS * eps * float(activations.abs().max())
        alive = varying(activations, noise)
        if len(alive) == 0:
            raise ValueError(
                f"`{name}` must have a neuron that varies over the samples, got {activations.shape[1]} dead ones. "
                "Check which layer was tapped, and that the samples differ."
            )
        return cls(units=units, activations=activations, alive=alive)

    @property
    def num_dead(self) -> int:
        """Neurons left out because all samples give them one value."""
        return self.activations.shape[1] - len(self.alive)

    def table(self) -> Float[Tensor, "S A"]:
        """Every latent with every live neuron."""
        weights = self.units.weights
        order = torch.arange(len(weights), device=weights.device)
        found = [self._correlate(order[None], weights[None], *block)[0] for block in self._blocks()]
        return torch.cat(found, dim=1)

    def best(self, order: Int[Tensor, "B G"], weights: Float[Tensor, "B G"]) -> Float[Tensor, "B S"]:
        """Best correlation of every latent in every resample."""
        num_latents = self.units.latents.shape[1]
        # Single precision halves the time on a CPU; a GPU's may be the coarser TF32, so there it stays double.
        dtype = torch.float32 if self.activations.device.type == "cpu" else torch.float64
        found = self.units.latents.new_full((len(order), num_latents), -torch.inf)
        for means, squares in self._blocks():
            size = max(1, CHUNK_BYTES // (means.element_size() * num_latents * max(means.shape)))
            parts = [
                self._correlate(*part, means, squares, dtype).amax(dim=-1).double()
                for part in zip(order.split(size), weights.split(size), strict=True)
            ]
            found = torch.maximum(found, torch.cat(parts))
        return found

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the units' means and mean squares (G, c) of standardised activations."""
        size = max(1, CHUNK_BYTES // (torch.float64.itemsize * len(self.activations)))
        for columns in self.alive.split(size):
            values = self.activations[:, columns].to(torch.float64)
            values = values - values.mean(dim=0)
            values = values / values.abs().amax(dim=0)  # squares of tiny activations would underflow
            values = values / values.square().mean(dim=0).sqrt()
            yield self.units.means(values), self.units.means(values.square())

    def _correlate(
        self,
        order: Int[Tensor, "B G"],
        w: Float[Tensor, "B G"],
        means: Float[Tensor, "G c"],
        squares: Float[Tensor, "G c"],
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "B S c"]:
        r"""$\mathrm{corr}_w(y, h) = \sum_g w_g (y_g - \bar y)h_g / (\sigma_y\sigma_h)$, moments under the weights w."""
        y = self.units.latents[order]
        y = y - torch.einsum("bg,bgs->bs", w, y)[:, None]
        y = y / torch.einsum("bg,bgs->bs", w, y.square()).sqrt()[:, None]
        rows = torch.einsum("bg,bgs->bsg", w, y).to(dtype)
        sigma_h = (w @ squares - (w @ means).square()).sqrt()
        product = (rows.flatten(0, 1) @ means.to(dtype)).unflatten(0, rows.shape[:2])
        return product / sigma_h[:, None].to(dtype)
