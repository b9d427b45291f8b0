"""Correlations of all latents with all neurons, for samples as they came, shuffled, and weighted anew."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.measure.tensors import finite_tensor, required_tensor, tensor_with_axes, varying

CHUNK_BYTES = 2**25
"""Largest block of upcast activations, and of correlations of resamples, held at once."""
LEAST_UNITS = 3
"""Two points always correlate perfectly."""
ROUNDINGS = 32
"""Of the largest activation: a neuron that moves by less is constant. The same sum comes out a few roundings apart in
different rows of one product, and such noise correlates with whatever orders the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resamples:
    """Ways to deal and to weigh the units anew."""

    order: Int[Tensor, "B G"]
    """Whose latents each unit gets."""
    weights: Float[Tensor, "B G"]
    """What it counts; each row sums to 1."""

    def blocks(self, size: int) -> "Iterator[Resamples]":
        """Yield them `size` at a time."""
        for order, weights in zip(self.order.split(size), self.weights.split(size), strict=True):
            yield Resamples(order=order, weights=weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """What is dealt as a whole: samples, or groups of samples that share an input."""

    latents: Float[Tensor, "G S"]
    """Those that vary."""
    weights: Float[Tensor, " G"]
    """Share of the samples."""
    member: Int[Tensor, " N"] | None
    """Unit of every sample; None where each stands for itself."""
    kept: Int[Tensor, " S"]
    """Indices of the latents that vary, among those given."""

    @classmethod
    def of(cls, latents: Tensor, groups: Tensor | None, device: torch.device) -> "Units":
        """Check the latents, drop constant ones, keep one row for each group."""
        values = finite_tensor("latents", tensor_with_axes("latents", latents, "N S")).to(
            device=device, dtype=torch.float64
        )
        weights = torch.full((len(values),), 1 / max(1, len(values)), dtype=torch.float64, device=device)
        member = None
        if groups is not None:
            values, weights, member = _grouped(values, required_tensor("groups", groups).to(device))
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

    @property
    def num_samples(self) -> int:
        """Samples, whatever units they form."""
        return len(self.weights if self.member is None else self.member)

    @property
    def original(self) -> Resamples:
        """The units as they came."""
        order = torch.arange(len(self.weights), device=self.weights.device)
        return Resamples(order=order[None], weights=self.weights[None])

    def shuffles(self, count: int, generator: torch.Generator) -> Resamples:
        """Deal the latents to other units, all latents by one permutation."""
        order = torch.stack([torch.randperm(len(self.weights), generator=generator) for _ in range(count)])
        return Resamples(order=order.to(self.weights.device), weights=self.weights.expand(count, -1))

    def bootstraps(self, count: int, generator: torch.Generator) -> Resamples:
        """Weigh the units anew by exponential weights: the Bayesian bootstrap (Rubin 1981)."""
        draw = torch.empty(count, len(self.weights), dtype=torch.float64).exponential_(generator=generator)
        weights = draw.to(self.weights.device) * self.weights
        order = self.original.order.expand(count, -1)
        return Resamples(order=order, weights=weights / weights.sum(dim=1, keepdim=True))

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
    absolute: bool
    """Whether correlations lose their sign."""

    @classmethod
    def of(cls, name: str, activations: Tensor, units: Units, *, absolute: bool) -> "Correlations":
        """Check the activations called `name` and find the neurons that vary."""
        if len(tensor_with_axes(name, activations, "N J")) != units.num_samples:
            raise ValueError(
                f"`{name}` must have a row for each of {units.num_samples} samples, got {len(activations)}. "
                "Measure latents and networks on the same samples."
            )
        activations = finite_tensor(name, activations).to(units.weights.device)
        alive = varying(activations, _noise(activations))
        if len(alive) == 0:
            raise ValueError(
                f"`{name}` must have a neuron that varies over the samples, got {activations.shape[1]} dead ones. "
                "Check which layer was tapped, and that the samples differ."
            )
        return cls(units=units, activations=activations, alive=alive, absolute=absolute)

    @property
    def num_dead(self) -> int:
        """Neurons left out because all samples give them one value."""
        return self.activations.shape[1] - len(self.alive)

    def table(self) -> Float[Tensor, "S A"]:
        """Every latent with every live neuron."""
        original = self.units.original
        return torch.cat([self._correlate(original, *block)[0] for block in self._blocks()], dim=1)

    def best(self, resamples: Resamples) -> Float[Tensor, "B S"]:
        """Best correlation of every latent in every resample."""
        num_latents = self.units.latents.shape[1]
        # Single precision halves the time on a CPU; a GPU's may be the coarser TF32, so there it stays double.
        dtype = torch.float32 if self.activations.device.type == "cpu" else torch.float64
        found = self.units.latents.new_full((len(resamples.order), num_latents), -torch.inf)
        for means, squares in self._blocks():
            size = max(1, CHUNK_BYTES // (means.element_size() * num_latents * max(means.shape)))
            parts = [
                self._correlate(part, means, squares, dtype).amax(dim=-1).double() for part in resamples.blocks(size)
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
        resamples: Resamples,
        means: Float[Tensor, "G c"],
        squares: Float[Tensor, "G c"],
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "B S c"]:
        r"""$\mathrm{corr}_w(y, h) = \sum_g w_g (y_g - \bar y)h_g / (\sigma_y\sigma_h)$, moments under the weights w."""
        w = resamples.weights
        y = self.units.latents[resamples.order]
        y = y - torch.einsum("bg,bgs->bs", w, y)[:, None]
        y = y / torch.einsum("bg,bgs->bs", w, y.square()).sqrt()[:, None]
        rows = torch.einsum("bg,bgs->bsg", w, y).to(dtype)
        sigma_h = (w @ squares - (w @ means).square()).sqrt()
        product = (rows.flatten(0, 1) @ means.to(dtype)).unflatten(0, rows.shape[:2])
        found = product / sigma_h[:, None].to(dtype)
        return found.abs() if self.absolute else found


def _noise(activations: Tensor) -> float:
    """Return by how much rounding alone moves an activation; half precision is taken from sums in single."""
    if not activations.is_floating_point() or not activations.numel():
        return 0.0
    eps = min(torch.finfo(kind).eps for kind in (activations.dtype, torch.float32))
    return ROUNDINGS * eps * float(activations.abs().max())


def _grouped(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the latents and the weight of each group, and the group of each sample."""
    if groups.shape != values.shape[:1]:
        raise ValueError(
            f"`groups` must name a group for each of {len(values)} samples, got shape {tuple(groups.shape)}. "
            "Pass one integer a sample."
        )
    _, member, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    samples = torch.arange(len(values), device=groups.device)
    first = torch.full_like(sizes, len(values)).scatter_reduce_(0, member, samples, reduce="amin")
    rows = values[first]
    varies = (rows[member] != values).any(dim=1)
    if bool(varies.any()):
        sample = int(varies.nonzero()[0])
        raise ValueError(
            f"`latents` must be constant within a group, got another value at sample {sample} of group "
            f"{int(groups[sample])}. Give samples with other latents other groups, or leave `groups` out."
        )
    return rows, sizes.double() / len(values), member
