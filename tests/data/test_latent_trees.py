"""Samples of latent trees: Theorem 5's exact law over a million samples, exact limits, independence of the pack."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from joma.data.latent_trees import TreeSampler, TreeSamples, class_patterns
from joma.randomness import NUM_BITS, random_bits, run_keys
from joma.theory.latent_tree import LatentTree, cooccurrence, nested_tree, one_latent_per_class, regular_tree

NUM_RUNS, NUM_STEPS, BATCH = 8, 100, 1_250
NUM_SAMPLES = NUM_RUNS * NUM_STEPS * BATCH
"""A million."""
FAMILY_WISE = 1e-3
"""Chance that any one number of a family lies outside its bound. Seeds are fixed: a test that passes does so always."""


def bound(num_tests: int) -> float:
    """Bonferroni: the two-sided normal quantile at `FAMILY_WISE` over all tests, 5.0 for 64 leaves (2080 pairs)."""
    return float(stats.norm.isf(FAMILY_WISE / num_tests / 2))


def fair_tree(depth: int = 3, branching: int = 2, rho: float = 0.8) -> LatentTree:
    return regular_tree(depth, branching, rho, class_probabilities=[1.0], zero_given_class=[0.5])


def random_edges(tree: LatentTree, seed: int) -> LatentTree:
    """The same tree with a ρ of either sign of its own on each edge."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, tree.num_nodes)
    return replace(tree, rho=np.where(tree.parents > 0, drawn, 1.0))


RANDOM_TOPS = np.random.default_rng(5).uniform(0.05, 0.95, (5, 3))
TREES = {
    "deep": regular_tree(6, 2, 0.85, class_probabilities=[0.5, 0.5], zero_given_class=one_latent_per_class(2)),
    "wide": regular_tree(2, [4, 12], 0.7, class_probabilities=[0.25] * 4, zero_given_class=one_latent_per_class(4)),
    "chain": regular_tree(12, [2, *[1] * 11], 0.95, class_probabilities=[0.3, 0.7], zero_given_class=[0.1, 0.6]),
    "levels": regular_tree(4, [3, 2, 2, 3], [-0.9, 0.5, 0.97], class_probabilities=[1.0], zero_given_class=[0.46]),
    "edges": random_edges(fair_tree(4, 3), seed=1),
    "classes": regular_tree(
        3, [3, 3, 2], 0.9, class_probabilities=[0.4, 0.3, 0.15, 0.1, 0.05], zero_given_class=RANDOM_TOPS
    ),
    "irregular": random_edges(
        nested_tree(
            [[(), [(), ()]], (), [[[(), ()], ()], ()]], 0.5, class_probabilities=[0.2, 0.8], zero_given_class=[0.3, 0.9]
        ),
        seed=2,
    ),
}


def counts_of_ones(tree: LatentTree) -> np.ndarray:
    """How often every two leaves are one together in a million samples; the diagonal counts each leaf alone."""
    sampler, keys = TreeSampler.of(tree), run_keys(range(NUM_RUNS))
    total = torch.zeros(sampler.num_leaves, sampler.num_leaves, dtype=torch.float64)
    for step in range(NUM_STEPS):
        present = sampler.sample(keys, step, BATCH).present.flatten(0, 1).float()
        total += present.T @ present  # whole numbers below 2^24: exact in float32
    return total.numpy()


def deviation(count: np.ndarray, probability: np.ndarray, trials: np.ndarray | int) -> np.ndarray:
    """Distance of counts from their law in standard errors; infinite where a sure thing did not happen."""
    error = count - probability * trials
    spread = np.sqrt(np.clip(probability * (1 - probability), 0, None) * trials)
    sure = spread < 1e-6 * np.sqrt(trials)  # probabilities of 0 and 1, up to their rounding
    return np.where(sure, np.where(np.abs(error) < 0.5, 0, np.inf), error / np.where(sure, 1, spread))


def worst_pair(count: np.ndarray, law: LatentTree) -> float:
    """Largest deviation of P[y_l=1, y_m=1] over all pairs and of P[y_l=1] over all leaves, over the bound for all."""
    pairs = np.triu_indices(len(count))
    return float(np.abs(deviation(count, law.joint_ones(), NUM_SAMPLES))[pairs].max()) / bound(len(pairs[0]))


def worst_cooccurrence(count: np.ndarray, law: np.ndarray) -> float:
    """The same for P[y_l=1 | y_m=1] over all ordered pairs, l by row."""
    apart = ~np.eye(len(count), dtype=bool)
    return float(np.abs(deviation(count, law, np.diag(count)))[apart].max()) / bound(int(apart.sum()))


# The law


@pytest.mark.parametrize("name", TREES)
def test_a_million_samples_have_the_exact_cooccurrence_of_all_pairs_of_leaves(name):
    count = counts_of_ones(TREES[name])
    assert worst_pair(count, TREES[name]) < 1
    assert worst_cooccurrence(count, TREES[name].cooccurrence_matrix()) < 1


def test_a_million_samples_follow_theorem_5():
    depth, rho, zero = 5, 0.8, 0.7
    tree = regular_tree(depth, [1, 2, 2, 2, 2], rho, class_probabilities=[1.0], zero_given_class=[zero])
    height = tree.ancestor_heights() + np.eye(16, dtype=int)  # the diagonal, which is not compared, has no height
    assert worst_cooccurrence(counts_of_ones(tree), cooccurrence(height, depth, rho, 2 * zero - 1)) < 1


@pytest.mark.parametrize("wrong", ["all edges", "one edge", "classes", "tops"])
def test_the_same_test_rejects_a_law_that_is_slightly_off(wrong):
    tree = TREES["classes"]
    below = tree.parents > 0
    last = np.arange(tree.num_nodes) == tree.num_nodes - 1
    other = {
        "all edges": replace(tree, rho=np.where(below, tree.rho - 0.01, 1.0)),
        "one edge": replace(tree, rho=np.where(last, tree.rho - 0.02, tree.rho)),
        "classes": replace(tree, class_probabilities=np.array([0.42, 0.28, 0.15, 0.1, 0.05])),
        "tops": replace(tree, zero_given_class=tree.zero_given_class + 0.005),
    }
    assert worst_pair(counts_of_ones(tree), other[wrong]) > 1


def values_of_nodes(tree: LatentTree, samples: TreeSamples) -> np.ndarray:
    """Values of all nodes, samples of all runs by row and nodes by their index; False for the root."""
    values = np.zeros((samples.label.numel(), tree.num_nodes), dtype=bool)
    for depth, level in enumerate(samples.latents, start=1):
        values[:, tree.depths == depth] = level.flatten(0, 1).numpy()
    return values


# Exact limits


def test_rho_one_copies_and_minus_one_alternates():
    for rho in (1.0, -1.0):
        tree = fair_tree(4, 2, rho)
        values = values_of_nodes(tree, TreeSampler.of(tree).sample(run_keys([0, 1]), 0, 2_000))
        for node in range(3, tree.num_nodes):
            assert (values[:, node] == (values[:, tree.parents[node]] ^ (rho < 0))).all()


# One run alone, and in a pack


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5, unique=True), st.integers(0, 10**5), st.data())
def test_a_run_has_the_same_samples_in_any_pack(seeds, step, data):
    sampler = TreeSampler.of(TREES["irregular"])
    packed = sampler.sample(run_keys(seeds), step, 9)
    place = data.draw(st.integers(0, len(seeds) - 1))
    alone = sampler.sample(run_keys([seeds[place]]), torch.tensor(step), 9)
    assert torch.equal(packed.label[place], alone.label[0])
    assert torch.equal(packed.present[place], alone.present[0])
    for level, alone_level in zip(packed.latents, alone.latents, strict=True):
        assert torch.equal(level[place], alone_level[0])


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
    samples = TreeSampler.of(TREES["irregular"], device="meta").sample(run_keys([1, 2], "meta"), 0, 5)
    for tensor in (samples.label, samples.present, samples.tokens, samples.sequences, *samples.latents):
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


@given(any_tree(), st.integers(0, 99), st.integers(0, 99))
def test_samples_are_those_of_a_walk_from_the_root_down(tree, seed, step):
    samples = TreeSampler.of(tree).sample(run_keys([seed]), step, 6)
    labels, values = walked(tree, seed, step, 6)
    np.testing.assert_array_equal(samples.label[0], labels)
    np.testing.assert_array_equal(values_of_nodes(tree, samples), values)
    np.testing.assert_array_equal(samples.present[0], values[:, tree.leaves])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 5))
def test_shapes_follow_depth_and_branching(branching, num_runs, batch_size):
    tree = regular_tree(len(branching), branching, 0.5, class_probabilities=[1.0], zero_given_class=[0.5])
    sampler = TreeSampler.of(tree)
    samples = sampler.sample(run_keys(range(num_runs)), 0, batch_size)
    widths = [prod(branching[: depth + 1]) for depth in range(len(branching))]
    assert [tuple(level.shape) for level in samples.latents] == [(num_runs, batch_size, width) for width in widths]
    assert samples.tokens.shape == samples.sequences.shape == (num_runs, batch_size, sampler.num_leaves)
    assert (sampler.num_leaves, sampler.num_nodes) == (widths[-1], tree.num_nodes)
    assert torch.equal(samples.present, samples.latents[-1])


# Tokens


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_tokens_name_the_leaf_and_its_value_and_sequences_the_set_of_ones(num_leaves, batch_size, seed):
    present = np.random.default_rng(seed).random((2, batch_size, num_leaves)) < 0.5
    label = torch.zeros(2, batch_size, dtype=torch.int64)
    samples = TreeSamples(label=label, latents=(), present=torch.as_tensor(present))
    assert samples.tokens.dtype == samples.sequences.dtype == torch.int64
    for run, row in np.ndindex(2, batch_size):
        ones = np.flatnonzero(present[run, row]).tolist()
        tokens = [leaf if leaf in ones else num_leaves + leaf for leaf in range(num_leaves)]
        assert samples.tokens[run, row].tolist() == tokens
        assert samples.sequences[run, row].tolist() == [num_leaves] * (num_leaves - len(ones)) + ones


# Classes at the root, and refusals


@given(st.integers(1, 6), st.data())
def test_class_patterns_differ_and_begin_with_one_latent_per_class(num_children, data):
    num_classes = data.draw(st.integers(1, 2**num_children - 1))
    zero = class_patterns(num_classes, num_children)
    assert len(np.unique(zero, axis=0)) == num_classes
    alone = min(num_classes, num_children)
    np.testing.assert_array_equal(zero[:alone], one_latent_per_class(num_children)[:alone])
    assert (np.diff((1 - zero).sum(axis=1)) >= 0).all()


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"2 children of the root tell 3 classes apart, got 4"):
        class_patterns(4, 2)
    with pytest.raises(ValueError, match=r"`num_classes` must be a whole number of at least 1, got 0"):
        class_patterns(0, 2)
    with pytest.raises(ValueError, match=r"`num_children` must be a whole number of at least 1, got 0"):
        class_patterns(1, 0)
    with pytest.raises(ValueError, match=r"`batch_size` must be a whole number of at least 1, got 0"):
        TreeSampler.of(fair_tree()).sample(run_keys([0]), 0, 0)
