"""Samples of latent trees: a naive walk, the law of pairs of leaves, exact limits, independence of the pack."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from joma.data.latent_trees import TreeSampler, TreeSamples, class_patterns
from joma.randomness import NUM_BITS, random_bits, run_keys
from joma.theory.latent_tree import LatentTree, nested_tree, one_latent_per_class, regular_tree

FAMILY_WISE = 1e-3
"""Chance that any one number of a family lies outside its bound. Seeds are fixed: a test that passes does so always."""


def bound(num_tests: int) -> float:
    """Bonferroni: the two-sided normal quantile at `FAMILY_WISE` over all tests, 5.0 for 64 leaves (2080 pairs)."""
    return float(stats.norm.isf(FAMILY_WISE / num_tests / 2))


def fair_tree(depth: int = 3, branching: int = 2, rho: float = 0.8) -> LatentTree:
    return regular_tree(depth, branching, rho, class_probabilities=[1.0], zero_given_class=[0.5])


IRREGULAR = nested_tree(
    [[(), [(), ()]], (), [[[(), ()], ()], ()]], 0.5, class_probabilities=[0.2, 0.8], zero_given_class=[0.3, 0.9]
)
IRREGULAR = replace(
    IRREGULAR, rho=np.where(IRREGULAR.parents > 0, np.random.default_rng(2).uniform(-1, 1, IRREGULAR.num_nodes), 1.0)
)
"""Leaves at several depths, and a ρ of either sign on each edge."""


def test_pairs_of_leaves_are_one_together_as_often_as_the_theory_says():
    sampler, keys, count = TreeSampler.of(IRREGULAR), run_keys(range(8)), 0
    for step in range(25):
        present = sampler.sample(keys, step, 1_250).present.flatten(0, 1).double().numpy()
        count = count + present.T @ present
    law, num_samples, pairs = IRREGULAR.joint_ones(), 250_000, np.triu_indices(sampler.num_leaves)
    errors = (count - law * num_samples) / np.sqrt(law * (1 - law) * num_samples)
    assert np.abs(errors[pairs]).max() < bound(len(pairs[0]))


def values_of_nodes(tree: LatentTree, samples: TreeSamples) -> np.ndarray:
    """Values of all nodes, samples of all runs by row and nodes by their index; False for the root."""
    values = np.zeros((samples.label.numel(), tree.num_nodes), dtype=bool)
    for depth, level in enumerate(samples.latents, start=1):
        values[:, tree.depths == depth] = level.flatten(0, 1).numpy()
    return values


def test_rho_one_copies_and_minus_one_alternates():
    for rho in (1.0, -1.0):
        tree = fair_tree(4, 2, rho)
        values = values_of_nodes(tree, TreeSampler.of(tree).sample(run_keys([0, 1]), 0, 2_000))
        for node in range(3, tree.num_nodes):
            assert (values[:, node] == (values[:, tree.parents[node]] ^ (rho < 0))).all()


def test_runs_steps_and_sites_are_independent():
    tree = fair_tree(2, 4, 0.0)
    sampler = TreeSampler.of(tree)
    streams = [
        sampler.sample(run_keys([seed]), step, 50_000, site=site)
        for seed in (0, 1)
        for step in (0, 1, 2)
        for site in ("train", "valid")
    ]
    signs = torch.cat([2.0 * stream.present[0] - 1 for stream in streams], dim=1)
    later = signs.roll(1, dims=0)  # neighbours within a batch
    for left, right in ((signs, signs), (signs, later)):
        product = (left.T @ right / len(signs) ** 0.5).numpy()
        apart = ~np.eye(len(product), dtype=bool) if left is right else np.ones_like(product, dtype=bool)
        assert np.abs(product[apart]).max() < bound(int(apart.sum()))


def test_no_number_is_used_on_another_device():
    """A device without memory refuses tensors of the CPU, as any other would."""
    samples = TreeSampler.of(IRREGULAR, device="meta").sample(run_keys([1, 2], "meta"), 0, 5)
    for tensor in (samples.label, samples.present, samples.tokens, *samples.latents):
        assert tensor.device.type == "meta"


# Against a twin that walks node by node


@st.composite
def any_tree(draw) -> LatentTree:
    num_nodes = draw(st.integers(2, 14))
    parents = np.array([-1, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))])
    num_classes, num_tops = draw(st.integers(1, 4)), int((parents == 0).sum())
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    return LatentTree(
        parents=parents,
        rho=np.where(parents > 0, numbers.uniform(-1, 1, num_nodes), 1.0),
        class_probabilities=numbers.dirichlet(np.ones(num_classes)),
        zero_given_class=numbers.uniform(0, 1, (num_classes, num_tops)),
    )


def walked(tree: LatentTree, seed: int, step: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Class and all nodes of each sample, node by node from the same random numbers."""
    bits = random_bits(run_keys([seed]), step, "latent-tree", tree.num_nodes * batch_size)
    rows = bits.view(-1, batch_size).numpy() / 2**NUM_BITS
    u = dict(zip(np.argsort(tree.depths, kind="stable"), rows, strict=True))
    values = np.zeros((batch_size, tree.num_nodes), dtype=bool)
    labels = np.zeros(batch_size, dtype=int)
    for sample in range(batch_size):
        labels[sample] = int((u[0][sample] >= tree.class_probabilities.cumsum()[:-1]).sum())
        for node in sorted(range(1, tree.num_nodes), key=lambda node: tree.depths[node]):
            if tree.parents[node] == 0:
                one = 1 - tree.zero_given_class[labels[sample], list(tree.tops).index(node)]
                values[sample, node] = u[node][sample] < one
            else:
                flip = u[node][sample] < (1 - tree.rho[node]) / 2
                values[sample, node] = values[sample, tree.parents[node]] ^ flip
    return labels, values


@given(any_tree(), st.lists(st.integers(0, 10**6), min_size=1, max_size=3), st.integers(0, 10**5))
def test_samples_are_those_of_a_walk_from_the_root_down_in_any_pack(tree, seeds, step):
    samples = TreeSampler.of(tree).sample(run_keys(seeds), torch.tensor(step), 6)
    nodes = values_of_nodes(tree, samples).reshape(len(seeds), 6, -1)
    for run, seed in enumerate(seeds):
        labels, values = walked(tree, seed, step, 6)
        np.testing.assert_array_equal(samples.label[run], labels)
        np.testing.assert_array_equal(nodes[run], values)
        np.testing.assert_array_equal(samples.present[run], values[:, tree.leaves])


# Tokens


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_tokens_name_the_leaf_and_its_value(num_leaves, batch_size, seed):
    present = np.random.default_rng(seed).random((2, batch_size, num_leaves)) < 0.5
    label = torch.zeros(2, batch_size, dtype=torch.int64)
    samples = TreeSamples(label=label, latents=(), present=torch.as_tensor(present))
    assert samples.tokens.dtype == torch.int64
    leaf = np.arange(num_leaves)
    np.testing.assert_array_equal(samples.tokens, np.where(present, leaf, num_leaves + leaf))


# Classes at the root, and refusals


@given(st.integers(1, 6), st.data())
def test_class_patterns_differ_and_begin_with_one_latent_per_class(num_children, data):
    num_classes = data.draw(st.integers(1, 2**num_children - 1))
    zero = class_patterns(num_classes, num_children)
    assert len(np.unique(zero, axis=0)) == num_classes
    alone = min(num_classes, num_children)
    np.testing.assert_array_equal(zero[:alone], one_latent_per_class(num_children)[:alone])
    assert (np.diff((1 - zero).sum(axis=1)) >= 0).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: class_patterns(4, 2), "2 children of the root distinguish 3 classes, got 4"),
        (lambda: class_patterns(0, 2), "`num_classes` must be a whole number of at least 1, got 0"),
        (lambda: class_patterns(1, 0), "`num_children` must be a whole number of at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
