r"""Samples of the hierarchical binary latent trees HBLT(ρ) of section 5, for many runs at once.

The root is a class label with D values, every other node is binary. A child of the root is drawn from
$P[y_1 \mid y_0]$, every further node copies its parent and is flipped with probability $\frac12(1-\rho)$, so that
$P[y_\beta=1 \mid y_\alpha=1] = P[y_\beta=0 \mid y_\alpha=0] = \frac12(1+\rho)$ (Definition 2). A leaf $y_l = 1$ says
that token $l$ is in the sequence (figure 5).

The tree itself is `joma.theory.latent_tree.LatentTree`, of any shape and with any ρ on each edge (`regular_tree` builds
one from a depth and a branching): what is sampled here has the exact law that is computed there.

Every node takes 31 random bits from `joma.randomness`, a function of (run seed, step, site), and compares them with a
whole number: probabilities are exact to $2^{-32}$, and ρ of −1, 0 and 1 exactly.
"""

from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.errors import whole
from joma.randomness import NUM_BITS, Step, random_bits

SITE = "latent-tree"
"""Where the numbers of the samples come from; another site gives other samples at the same step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSamples:
    """Sequences with the class and all latents that made them."""

    label: Int[Tensor, "R B"]
    """Class of each sequence, the value of the root."""
    latents: tuple[Bool[Tensor, "R B _"], ...]
    """Values of the nodes at depth 1, 2, ... in the order of their index; the last level holds leaves alone."""
    present: Bool[Tensor, "R B n"]
    """Values of the leaves in the order of their index: whether token l is in the sequence."""

    @property
    def tokens(self) -> Int[Tensor, "R B n"]:
        r"""One token a leaf, in the order of the leaves: $l$ where $y_l = 1$ and $n + l$ where $y_l = 0$.

        Of fixed length, so that every position sees one leaf; a vocabulary of $2n$. No two leaves share a token, so a
        decoder needs no positions to distinguish them.
        """
        n = self.present.shape[-1]
        absent = torch.arange(n, 2 * n, device=self.label.device)
        return torch.add(absent, self.present, alpha=-n)


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSampler:
    """A tree laid out for sampling: rows of nodes, level by level, next to rows of samples.

    >>> from joma.randomness import run_keys
    >>> from joma.theory.latent_tree import regular_tree
    >>> tree = regular_tree(3, 2, 0.8, class_probabilities=[0.5, 0.5], zero_given_class=class_patterns(2, 2))
    >>> samples = TreeSampler.of(tree).sample(run_keys([1, 2]), 0, 128)
    >>> samples.tokens.shape, [tuple(level.shape) for level in samples.latents]
    (torch.Size([2, 128, 8]), [(2, 128, 2), (2, 128, 4), (2, 128, 8)])
    """

    class_bounds: Int[Tensor, " D_1"]
    """Highest random number of every class but the last."""
    top_bounds: Int[Tensor, "tops D"]
    """Highest random number at which a child of the root is one, for every class."""
    flip_bounds: Int[Tensor, "lower 1"]
    """Highest random number at which a node further down differs from its parent."""
    parents: tuple[Int[Tensor, " _"], ...]
    """For each level from depth 2 on, the place of every node's parent in the level above."""
    leaves: Int[Tensor, " n"]
    """Places of the leaves among all binary nodes, level by level."""

    @classmethod
    def of(cls, tree: Any, device: torch.device | str = "cpu") -> "TreeSampler":
        """Lay out a `joma.theory.latent_tree.LatentTree`, or what has the same law and names, on a device."""
        order = np.argsort(tree.depths, kind="stable")  # level by level, within a level by index
        rank = np.argsort(order)
        levels = np.split(order, np.flatnonzero(np.diff(tree.depths[order])) + 1)
        starts = [rank[level[0]] for level in levels]
        num_tops = len(levels[1])
        return cls(
            class_bounds=_bounds(np.cumsum(tree.class_probabilities)[:-1], device),
            top_bounds=_bounds(1 - tree.zero_given_class.T, device),
            flip_bounds=_bounds((1 - tree.rho[order[1 + num_tops :], None]) / 2, device),
            parents=tuple(
                torch.as_tensor(rank[tree.parents[level]] - start, device=device)
                for level, start in zip(levels[2:], starts[1:], strict=False)
            ),
            leaves=torch.as_tensor(rank[tree.leaves] - 1, device=device),
        )

    @property
    def num_leaves(self) -> int:
        """Length n of a sequence."""
        return self.leaves.numel()

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return 1 + self.top_bounds.shape[0] + self.flip_bounds.shape[0]

    def sample(self, keys: Int[Tensor, "R 2"], step: Step, batch_size: int, *, site: str = SITE) -> TreeSamples:
        """`batch_size` sequences for each run, from its seed, the step and the site alone."""
        bits = random_bits(keys, step, site, self.num_nodes * batch_size).unflatten(1, (self.num_nodes, batch_size))
        num_tops = self.top_bounds.shape[0]
        label = torch.bucketize(bits[:, 0].contiguous(), self.class_bounds)
        flips = (bits[:, 1 + num_tops :] <= self.flip_bounds).split([len(level) for level in self.parents], dim=1)
        levels = [bits[:, 1 : 1 + num_tops] <= self.top_bounds[:, label].movedim(0, 1)]
        for parents, flip in zip(self.parents, flips, strict=True):
            levels.append(levels[-1].index_select(1, parents) ^ flip)
        last_has_all = self.num_leaves == levels[-1].shape[1]
        leaves = levels[-1] if last_has_all else torch.cat(levels, dim=1).index_select(1, self.leaves)
        return TreeSamples(
            label=label,
            latents=tuple(level.transpose(1, 2) for level in levels),
            present=leaves.transpose(1, 2).contiguous(),
        )


def class_patterns(num_classes: int, num_children: int) -> Float[np.ndarray, "D tops"]:
    r"""$P[y_1=0 \mid y_0=k]$ when every class switches on a set of children of the root of its own, small sets first.

    Up to as many classes as children, each switches on one child alone, as in the remark to Theorem 5; after these come
    the pairs.

    >>> class_patterns(4, 3)
    array([[0., 1., 1.],
           [1., 0., 1.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    whole("num_classes", num_classes, low=1)
    whole("num_children", num_children, low=1)
    if num_classes >= 2**num_children:
        raise ValueError(
            f"{num_children} children of the root distinguish {2**num_children - 1} classes, got {num_classes}. "
            "Pass fewer classes or a larger branching."
        )
    sets = (chosen for size in range(1, num_children + 1) for chosen in combinations(range(num_children), size))
    zero = np.ones((num_classes, num_children))
    for row, chosen in zip(zero, islice(sets, num_classes), strict=True):
        row[list(chosen)] = 0
    return zero


def _bounds(probability: np.ndarray, device: torch.device | str) -> Int[Tensor, "..."]:
    """Highest random number of an event of this probability: −1 when it never happens."""
    return torch.as_tensor((np.rint(probability * 2**NUM_BITS) - 1).astype(np.int32), device=device)
