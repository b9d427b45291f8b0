"""Tokens for every height of a tree, with types matched in number and frequency, and the same with other labels."""

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from joma.data.text import TreeText

HALVES = 2
"""Parts of a text: the first is to fit on, the second to score on."""


def matched_tokens(
    text: TreeText, *, num_heights: int, num_types: int, num_samples: int, num_permutations: int, seed: int
) -> list[tuple[Int[Tensor, "2 N"], Bool[Tensor, "2 N V K"]]]:
    """Choose tokens from the later half of the nodes of every height, in both halves of a text.

    A node is asked for in the later half of its tokens, where most of it has been read.

    Args:
        text: Tokens with their ancestors.
        num_heights: Heights 1, 2, … to choose for.
        num_types: Most types: those with most tokens at the height and in the half of the text where they are rarest.
        num_samples: Most tokens of each type, at each height and in each half; every type gets the same number.
        num_permutations: Of each of both controls.
        seed: Of all choices.

    Returns:
        For each height the places of N tokens in each half, and whether each is below a node of each of K types, in V
        labellings: the tree's own, then permutations among tokens of the same word, then types dealt to other nodes of
        the same height, which is another tree of the same shape.
    """
    half = len(text.tokens) // HALVES
    kinds, nodes = (
        table[: HALVES * half, :num_heights].reshape(HALVES, half, -1).long() for table in (text.types, text.nodes)
    )
    kinds = torch.where(_is_later(nodes), kinds, -1)
    of_each = [own[own >= 0].bincount(minlength=len(text.type_names)) for part in kinds for own in part.T]
    fewest = torch.stack(of_each).amin(dim=0)
    types = fewest.argsort(descending=True, stable=True)[:num_types]
    types = types[fewest[types] > 0]
    num = min(num_samples, int(fewest[types].min())) if len(types) else 0
    if num == 0:
        raise ValueError(f"No type has tokens at all heights up to {num_heights}. Take fewer heights or a longer text.")
    random = torch.Generator().manual_seed(seed)
    true = torch.arange(len(types)).repeat_interleave(num)
    found = []
    for height in range(kinds.shape[2]):
        places, labels = [], []
        for part in range(HALVES):
            of_types = [(kinds[part, :, height] == kind).nonzero()[:, 0] for kind in types]
            place = torch.cat([own[torch.randperm(len(own), generator=random)[:num]] for own in of_types])
            words = text.tokens[part * half + place]
            above, of_token = nodes[part, place, height].unique(return_inverse=True)
            of_node = torch.zeros_like(above).scatter(0, of_token, true)
            drawn = [_dealt(words, true, random) for _ in range(num_permutations)]
            drawn += [_dealt(0 * above, of_node, random)[of_token] for _ in range(num_permutations)]
            places.append(part * half + place)
            labels.append(torch.nn.functional.one_hot(torch.stack([true, *drawn], dim=1), len(types)).bool())
        found.append((torch.stack(places), torch.stack(labels)))
    return found


def _is_later(nodes: Int[Tensor, "2 M H"]) -> Bool[Tensor, "2 M H"]:
    """Return whether each token is in the later half of those of its node, height by height."""
    found = np.empty(nodes.shape, dtype=bool)
    for part, height in np.ndindex(HALVES, nodes.shape[2]):
        _, node, counts = np.unique(nodes[part, :, height].numpy(), return_inverse=True, return_counts=True)
        order = node.argsort(kind="stable")
        rank = np.arange(len(node)) - np.repeat(counts.cumsum() - counts, counts)
        found[part, order, height] = HALVES * rank >= counts[node[order]]
    return torch.from_numpy(found)


def _dealt(groups: Int[Tensor, " N"], labels: Int[Tensor, " N"], random: torch.Generator) -> Int[Tensor, " N"]:
    """Return labels dealt to members of the same group."""
    mixed = torch.randperm(len(labels), generator=random)
    mixed = mixed[groups[mixed].argsort(stable=True)]
    return torch.empty_like(labels).scatter(0, groups.argsort(stable=True), labels[mixed])
