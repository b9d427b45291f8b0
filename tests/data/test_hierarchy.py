"""The deterministic hierarchy of Table 1: its sets, its sequences, and batches as counts of classes."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from joma.data.hierarchy import SITE, Hierarchy
from joma.randomness import random_bits, run_keys

FAMILY_WISE = 1e-3
"""Chance that any one number of a family lies outside its bound; seeds are fixed."""


def expanded(hierarchy: Hierarchy, level: int, thing: int) -> dict[int, set[int]]:
    """What is on below one latent or class, level by level (−1 the tokens), by walking down its members."""
    found: dict[int, set[int]] = {below: set() for below in range(-1, level)}
    for member in hierarchy.members[level][thing].tolist():
        found[level - 1].add(member)
        if level > 0:
            for below, things in expanded(hierarchy, level - 1, member).items():
                found[below] |= things
    return found


@st.composite
def settings(draw) -> dict:
    num_children = draw(st.integers(1, 3))
    num_latents = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    num_classes, num_tokens = draw(st.integers(1, 9)), draw(st.integers(2, 30))
    sizes = (num_tokens - 1, *num_latents, num_classes)
    assume(all(math.comb(below, num_children) >= above for below, above in pairwise(sizes)))
    return {
        "num_latents": num_latents,
        "num_children": num_children,
        "num_classes": num_classes,
        "num_tokens": num_tokens,
        "length": draw(st.integers(27, 33)),
    }


# The hierarchy


@given(settings(), st.integers(0, 2**40))
def test_classes_expand_to_the_members_of_their_members(setting, seed):
    hierarchy = Hierarchy.draw(seed, **setting)
    padding = setting["num_tokens"] - 1
    sizes = (padding, *setting["num_latents"], setting["num_classes"])
    for sets, num_things, num_sets in zip(hierarchy.members, sizes[:-1], sizes[1:], strict=True):
        assert sets.shape == (num_sets, setting["num_children"])
        assert (sets.diff(dim=1) > 0).all() and len(sets.unique(dim=0)) == num_sets
        assert 0 <= int(sets.min()) <= int(sets.max()) < num_things
    for label in range(setting["num_classes"]):
        below = expanded(hierarchy, len(setting["num_latents"]), label)
        tokens = sorted(below[-1])
        front = [padding] * (setting["length"] - len(tokens))
        assert hierarchy.sequences[label].tolist() == front + tokens
        assert padding not in tokens
        for level, on in enumerate(hierarchy.latents):
            assert set(on[label].nonzero()[:, 0].tolist()) == below[level]


def test_every_set_is_equally_likely():
    counts: dict[tuple[int, ...], int] = {}
    num_seeds, sizes = 1500, {"num_latents": (3,), "num_children": 2, "num_classes": 2, "num_tokens": 6}
    for seed in range(num_seeds):
        hierarchy = Hierarchy.draw(seed, **sizes)
        for pair in hierarchy.members[0].tolist():
            counts[tuple(pair)] = counts.get(tuple(pair), 0) + 1
    # Three distinct sets of ten a seed; drawing without repeats only narrows the spread of a count.
    bound = stats.norm.isf(FAMILY_WISE / 20) * math.sqrt(num_seeds * 0.3 * 0.7)
    assert len(counts) == 10
    assert torch.equal(hierarchy.sequences, Hierarchy.draw(seed, **sizes).sequences)  # of the same seed
    assert max(abs(count - 0.3 * num_seeds) for count in counts.values()) < bound


# Batches


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.integers(0, 10**5), st.integers(1, 300))
def test_classes_are_random_bits_and_counts_those_of_the_rows_of_the_batch(seeds, step, batch_size):
    """The bits themselves are tested with the latent trees."""
    hierarchy, keys = Hierarchy.draw(1), run_keys(seeds)
    counts, drawn = hierarchy.class_counts(keys, step, batch_size), hierarchy.classes(keys, step, batch_size)
    assert counts.shape == (len(seeds), 20)
    assert torch.equal(hierarchy.classes(keys, step, 2 * batch_size)[:, :batch_size], drawn)
    for run, seed in enumerate(seeds):
        assert torch.equal(drawn[run], random_bits(run_keys([seed]), torch.tensor(step), SITE, batch_size)[0] % 20)
        assert torch.equal(counts[run], drawn[run].bincount(minlength=20))


def test_no_number_is_used_on_another_device():
    """A device without memory refuses tensors of the CPU, as any other would."""
    hierarchy, keys = Hierarchy.draw(0, device="meta"), run_keys([1, 2], "meta")
    assert hierarchy.class_counts(keys, 0, 5).device.type == "meta"


# Refusals


@pytest.mark.parametrize(
    ("setting", "needed"),
    [
        ({"num_latents": (20, 10), "num_classes": 50}, "45"),
        ({"num_latents": (4, 20)}, "6"),
        ({"num_tokens": 5}, "6"),
        ({"num_children": 3, "num_tokens": 3}, "0"),
        ({"num_children": 3, "length": 26}, "27"),
        ({"num_children": 4}, "40"),
        ({"num_children": 0}, "`num_children`"),
        ({"num_classes": 0}, "`num_classes`"),
        ({"num_latents": (0, 3)}, "0 latents of level 0 have 0"),
        ({"num_latents": ()}, "`num_latents`"),
        ({"num_tokens": 1}, "0 usable tokens"),
        ({"length": 0}, "`length`"),
        ({"seed": -1}, "`seed`"),
    ],
)
def test_impossible_hierarchies_are_refused(setting, needed):
    with pytest.raises(ValueError, match=needed):
        Hierarchy.draw(**{"seed": 0, **setting})
