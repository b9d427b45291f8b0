"""The contexts that fire a neuron, and the patterns they fall into by what their queries attend to."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import entr

from joma.measure.attended import Profiles

LEAST_FIRING = 4
"""Fewer contexts cannot be told from chance; also the rank of the activation that is called the peak."""
MOST_FIRING = 64
"""More contexts are thinned out, evenly over their ranks."""
FIRING_LEVEL = 1 / 3
"""Where firing begins on the way from median to peak."""
BULK_DEVIATIONS = 4.0
"""How far above the median it begins at least, in standard deviations of the bulk."""
UPPER_QUARTILE = 0.6744897501960817
"""Of the standard normal: turns the distance from median to upper quartile into a standard deviation."""
PATTERN_QUANTILE = 0.99
"""A pattern has more contexts than the largest bundle in this share of random sets."""
SET_SIZES = (4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, MOST_FIRING)
"""Sizes of the random sets; a neuron is held against the next size up, which is the stricter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    """Contexts that fire one neuron, strongest first, at most `MOST_FIRING` of them."""

    context: Int[np.ndarray, " n"]
    activation: Float[np.ndarray, " n"]
    mass: Float[np.ndarray, " n"]
    """Activation above the median."""
    num_firing: int
    """How many there were before thinning out."""

    @classmethod
    def of(cls, activation: Float[np.ndarray, " C"]) -> "Firing":
        """Find the contexts where a neuron stands out of its own distribution."""
        order = np.argsort(-activation, kind="stable")
        falling = activation[order]
        num_contexts = len(falling)
        peak, upper, median = falling[LEAST_FIRING - 1], falling[num_contexts // 4], falling[num_contexts // 2]
        level = median + FIRING_LEVEL * (peak - median)
        threshold = max(level, median + BULK_DEVIATIONS * (upper - median) / UPPER_QUARTILE)
        num_firing = int(np.sum((falling >= threshold) & (falling > median)))
        kept = np.unique(np.linspace(0, num_firing - 1, min(num_firing, MOST_FIRING)).round().astype(int))
        return cls(context=order[kept], activation=falling[kept], mass=falling[kept] - median, num_firing=num_firing)

    @property
    def silent(self) -> bool:
        """Whether too few contexts fire it to speak of patterns."""
        return len(self.context) < LEAST_FIRING

    def dealt(self, num_contexts: int, generator: torch.Generator) -> "Firing":
        """Return the same activations at random contexts."""
        context = torch.randperm(num_contexts, generator=generator)[: len(self.context)].numpy()
        return Firing(context=context, activation=self.activation, mass=self.mass, num_firing=self.num_firing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Patterns:
    """How the contexts of one neuron fall into patterns."""

    label: Int[np.ndarray, " n"]
    """Pattern of each context, the heaviest being 0; -1 for none."""
    mass: Float[np.ndarray, " P"]
    """Firing mass of each pattern, falling."""

    @property
    def score(self) -> float:
        r"""Entropy of the firing mass over the patterns, $-\sum_p m_p\log_2 m_p$, at most 1."""
        share = self.mass / self.mass.sum()
        return float(min(1.0, entr(share).sum() / np.log(2)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundler:
    """Bundles contexts by what they attend to, and tells bundles that chance would make from patterns."""

    profiles: Profiles
    related: float
    """Mean overlap from which two bundles are one."""
    chance: dict[int, int]
    """For each size of a set, how many contexts a bundle has by chance at most."""

    @classmethod
    def of(
        cls, profiles: Profiles, sizes: set[int], *, related: float, num_null: int, generator: torch.Generator
    ) -> "Bundler":
        """Draw `num_null` random sets as large as each of `sizes` and note their largest bundles."""
        num_contexts = profiles.roots.shape[0]
        chance = {}
        for size in sorted({_set_size(size) for size in sizes}):
            draws = [torch.randperm(num_contexts, generator=generator)[:size].numpy() for _ in range(num_null)]
            largest = [np.bincount(bundles(profiles, draw, related)).max() for draw in draws]
            chance[size] = int(np.quantile(largest, PATTERN_QUANTILE, method="higher"))
        return cls(profiles=profiles, related=related, chance=chance)

    def patterns(self, firing: Firing) -> Patterns:
        """Return the bundles of a neuron's contexts that are larger than chance makes them."""
        if firing.silent:
            return Patterns(label=np.full(len(firing.context), -1), mass=np.zeros(0))
        bundle = bundles(self.profiles, firing.context, self.related)
        by_chance = self.chance[_set_size(len(bundle))]
        mass = np.where(np.bincount(bundle) > by_chance, np.bincount(bundle, firing.mass), 0.0)
        order = np.argsort(-mass, kind="stable")[: np.count_nonzero(mass)]
        number = np.full(len(mass), -1)
        number[order] = np.arange(len(order))
        return Patterns(label=number[bundle], mass=mass[order])


def bundles(profiles: Profiles, contexts: Int[np.ndarray, " n"], related: float) -> Int[np.ndarray, " n"]:
    """Number the contexts by bundle: average linkage, until no two bundles overlap by more than `related`."""
    distance = 1.0 - profiles.overlaps(contexts)
    np.fill_diagonal(distance, 0.0)
    return fcluster(linkage(squareform(distance, checks=False), method="average"), 1.0 - related, criterion="distance")


def _set_size(num_contexts: int) -> int:
    return min(size for size in SET_SIZES if size >= num_contexts)
