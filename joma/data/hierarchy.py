r"""The deterministic hierarchy of Table 1: classes made of latents made of latents made of tokens.

Level $s$ has $N_s$ latents, each a distinct random set of $N_{ch}$ things of the level below, and a class is such a set
of latents of the highest level. Level 0 lies directly above the tokens and is compared with the first block of the
network ($s = 0$ of Table 1), level 1 above it with the second ($s = 1$). The other way round is impossible: 50 classes
are more than the 45 pairs that 10 latents have.

A sample is a class, expanded down to its set of tokens, written ascending at the end of the sequence, with the last
token of the vocabulary as padding in front. So there are at most C different sequences, and a batch is how often each
class was drawn: `class_counts` are the weights with which C sequences stand for a batch of any size, exactly.

To a model without positions and without dropout all padding of a sequence is in one state, so a few positions can stand
for all of it if attention counts them as often: `merged_padding`, exactly again.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joma.errors import whole
from joma.randomness import Step, random_bits

SITE = "hierarchy"
"""Where the classes of a batch come from; another site gives other batches at the same step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hierarchy:
    """Classes, their sequences and their latents.

    >>> hierarchy = Hierarchy.draw(0, num_latents=(4, 4), num_classes=2, num_tokens=12, length=8)
    >>> hierarchy.sequences
    tensor([[11, 11,  0,  5,  6,  7,  8, 10],
            [11, 11,  0,  2,  3,  5,  6, 10]])
    >>> hierarchy.latents[1].int()
    tensor([[1, 0, 1, 0],
            [1, 1, 0, 0]], dtype=torch.int32)
    """

    sequences: Int[Tensor, "C length"]
    """The one sequence of each class. Different classes may expand to the same tokens."""
    latents: tuple[Bool[Tensor, "C _"], ...]
    """Which latents of level 0 (above the tokens), 1, ... are on for each class."""
    members: tuple[Int[Tensor, "_ N_ch"], ...]
    """Tokens of each latent of level 0, latents of level 0 of each one of level 1, ..., and last the classes' latents,
    ascending."""
    num_tokens: int
    """Size M of the vocabulary; token M − 1 is the padding."""

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        num_latents: tuple[int, ...] = (10, 20),
        num_children: int = 2,
        num_classes: int = 20,
        num_tokens: int = 100,
        length: int = 30,
        device: torch.device | str = "cpu",
    ) -> "Hierarchy":
        """Draw the sets of every level, from the seed alone; the defaults are the first row of Table 1."""
        sizes = _sizes(num_latents, num_children, num_classes, num_tokens, length)
        generator = np.random.default_rng(int(whole("seed", seed, low=0)))
        members = [_distinct_sets(generator, above, below, num_children) for below, above in pairwise(sizes)]
        on = [np.eye(num_classes, dtype=bool)]
        for sets, size in zip(reversed(members), reversed(sizes[:-1]), strict=True):
            is_member = np.zeros((len(sets), size), dtype=bool)
            np.put_along_axis(is_member, sets, True, axis=1)
            on.insert(0, on[0] @ is_member)  # members of whatever is on above
        sequences = np.full((num_classes, length), num_tokens - 1)
        for row, tokens in zip(sequences, map(np.flatnonzero, on[0]), strict=True):
            row[length - len(tokens) :] = tokens
        return cls(
            sequences=torch.as_tensor(sequences, device=device),
            latents=tuple(torch.as_tensor(level, device=device) for level in on[1:-1]),
            members=tuple(torch.as_tensor(sets, device=device) for sets in members),
            num_tokens=num_tokens,
        )

    @property
    def num_classes(self) -> int:
        """Number C of classes."""
        return self.sequences.shape[0]

    def merged_padding(self, length: int) -> tuple[Int[Tensor, "C short"], Float[Tensor, "C short"]]:
        """Return the last `length` positions of each sequence, and the logarithm of how many each stands for.

        The paddings that are left share out those that were cut off.

        >>> hierarchy = Hierarchy.draw(0, num_latents=(4, 4), num_classes=2, num_tokens=12, length=8)
        >>> short, log_counts = hierarchy.merged_padding(7)
        >>> short[0].tolist(), log_counts[0].exp().tolist()
        ([11, 0, 5, 6, 7, 8, 10], [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        """
        short = self.sequences[:, -length:]
        is_padding = short == self.num_tokens - 1
        num_kept = is_padding.sum(dim=1, keepdim=True)
        num_all = num_kept + self.sequences.shape[1] - short.shape[1]
        if bool((num_all > 0).logical_and(num_kept == 0).any()):
            raise ValueError(f"Sequences of {length} leave no position to stand for the padding. Take a longer one.")
        return short, torch.where(is_padding, (num_all.double() / num_kept.clamp_min(1)).log(), 0.0)

    def classes(self, keys: Int[Tensor, "R 2"], step: Step, batch_size: int, *, site: str = SITE) -> Int[Tensor, "R B"]:
        """Classes of the rows of a batch: equally likely, up to 2⁻³¹, and independent."""
        return (random_bits(keys, step, site, batch_size) % self.num_classes).long()

    def class_counts(
        self, keys: Int[Tensor, "R 2"], step: Step, batch_size: int, *, site: str = SITE
    ) -> Int[Tensor, "R C"]:
        """How often each class occurs among the rows of a batch; divided by its size, the weights of the loss.

        The classes are those of the runs' keys, whatever sets their hierarchies have: runs with the same number of
        classes can be counted together.
        """
        drawn = self.classes(keys, step, batch_size, site=site)
        return drawn.new_zeros(drawn.shape[0], self.num_classes).scatter_add_(1, drawn, torch.ones_like(drawn))


def most_tokens(num_latents: tuple[int, ...], num_children: int, num_tokens: int) -> int:
    """Return how many tokens a class expands to at most, whatever sets are drawn.

    >>> most_tokens((10, 20), 2, 100), most_tokens((10, 20), 3, 100)
    (8, 27)
    """
    return min(num_children ** (len(num_latents) + 1), num_children * num_latents[0], num_tokens - 1)


def _sizes(
    num_latents: tuple[int, ...], num_children: int, num_classes: int, num_tokens: int, length: int
) -> tuple[int, ...]:
    """Number of things on every level from the tokens up to the classes, refusing what no draw can satisfy."""
    if not num_latents:
        raise ValueError("`num_latents` needs a number for each level, got none. Pass some, such as (10, 20).")
    whole("num_classes", num_classes, low=1)
    sizes = (num_tokens - 1, *num_latents, num_classes)
    for level, (below, wanted) in enumerate(pairwise(sizes)):
        num_sets = math.comb(below, num_children)
        if num_sets < wanted:
            things = f"{below} usable tokens" if level == 0 else f"{below} latents of level {level - 1}"
            makers = f"{wanted} classes" if level == len(num_latents) else f"{wanted} latents of level {level}"
            raise ValueError(
                f"{makers} need as many distinct sets of {num_children}, but {things} have {num_sets}. "
                f"Pass fewer of the upper or more of the lower, or another `num_children`."
            )
    longest = most_tokens(num_latents, num_children, num_tokens)
    if longest > length:
        raise ValueError(
            f"A class expands to as many as {longest} tokens, which do not fit into a sequence of {length}. "
            f"Pass a `length` of at least {longest}, or fewer children."
        )
    return sizes


def _distinct_sets(
    generator: np.random.Generator, num_sets: int, num_things: int, num_children: int
) -> Int[np.ndarray, "sets N_ch"]:
    """Different sets of things, each ascending: sets are drawn at random, and a repeated one is drawn again."""
    sets: dict[tuple[int, ...], None] = {}
    while len(sets) < num_sets:
        drawn = generator.choice(num_things, num_children, replace=False)
        sets[tuple(sorted(drawn.tolist()))] = None
    return np.array(list(sets))
