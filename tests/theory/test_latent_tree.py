"""Latent trees: limits of the formulas, how trees are built, and speed; `joma verify` enumerates them."""

import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joma.errors import AssumptionError
from joma.theory import cooccurrence, cooccurrence_limit, cooccurrence_slope, nested_tree, regular_tree


def test_no_digits_are_lost_near_the_limit():
    # 1 − ρ is a power of two, so the floats are the exact inputs.
    epsilon = 2.0**-40
    expected = cooccurrence_limit(2, 7) + cooccurrence_slope(2, 7) * epsilon
    assert cooccurrence(2, 7, 1 - epsilon, 1 - epsilon) == pytest.approx(expected, abs=1e-15)
    classes = {"class_probabilities": [1.0], "zero_given_class": [1 - epsilon / 2]}
    tree = regular_tree(7, [1, 1, 1, 1, 1, 2, 1], 1 - epsilon, **classes)
    np.testing.assert_allclose(tree.cooccurrence_matrix()[0, 1], expected, atol=1e-14)


def test_a_nested_tree_is_numbered_depth_first():
    tree = nested_tree([[[(), ()], ()], [()]], 0.7, class_probabilities=[1.0], zero_given_class=[0.4])
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2, 1, 0, 6]
    assert tree.leaves.tolist() == [3, 4, 5, 7]
    assert tree.tops.tolist() == [1, 6]
    assert tree.depths.tolist() == [0, 1, 2, 3, 3, 2, 1, 2]
    assert tree.heights.tolist() == [3, 2, 1, 0, 0, 0, 1, 0]
    assert tree.rho.tolist() == [1, 1, 0.7, 0.7, 0.7, 0.7, 1, 0.7]
    assert tree.common_ancestor(3, 5) == 1 and tree.common_ancestor(3, 7) == 0 and tree.common_ancestor(3, 2) == 2


def test_levels_of_a_regular_tree_may_differ():
    tree = regular_tree(3, (3, 1, 2), (0.5, -0.5), class_probabilities=[1.0], zero_given_class=[0.5])
    assert tree.parents.tolist() == [-1, 0, 0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6]
    assert tree.rho.tolist() == [1] * 4 + [0.5] * 3 + [-0.5] * 6


def test_a_thousand_tokens_take_a_fraction_of_a_second():
    tree = regular_tree(10, 2, 0.9, class_probabilities=np.full(50, 0.02), zero_given_class=np.linspace(0.1, 0.9, 50))
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        P = tree.cooccurrence_matrix()
        times.append(time.perf_counter() - begun)
    assert P.shape == (1024, 1024)
    assert min(times) < 0.8, f"{min(times):.2f} s; about 0.1 s on an idle core"
    heights = tree.ancestor_heights()
    below_root = (heights >= 1) & (heights < 10)
    expected = cooccurrence(heights[below_root], 10, 0.9, tree.root_parameters[0])
    np.testing.assert_allclose(P[below_root], expected, atol=1e-13)


def test_a_deep_chain_of_a_thousand_nodes_needs_no_recursion():
    chain: tuple = ()
    for _ in range(1000):
        chain = (chain,)
    tree = nested_tree(chain, 0.999, class_probabilities=[1.0], zero_given_class=[0.3])
    assert tree.cooccurrence(1, 1000) == pytest.approx(tree.cooccurrence_matrix(np.array([1, 1000]))[0, 1], abs=1e-13)


def test_conditioning_on_a_null_event_is_refused():
    # A third of three is not exactly one in floats; the null event is found all the same.
    thirds = np.array([0.1, 0.2, 0.7])
    tree = regular_tree(3, 2, -1.0, class_probabilities=thirds, zero_given_class=np.ones(3))
    with pytest.raises(AssumptionError, match="node 7 is never 1"):
        tree.cooccurrence_matrix()
    with pytest.raises(AssumptionError, match="node 9 is never 1"):
        tree.cooccurrence(8, 9)
    assert tree.cooccurrence(8, 3) == 0


@given(st.recursive(st.just(()), lambda children: st.lists(children, min_size=1, max_size=3).map(tuple), max_leaves=8))
def test_heights_are_those_of_the_deepest_leaf_below(children):
    assume(children)
    tree = nested_tree(children, 0.5, class_probabilities=np.ones(1), zero_given_class=np.full(1, 0.5))
    for node in range(tree.num_nodes):
        below, height = [node], -1
        while below:
            below, height = [k for k in range(tree.num_nodes) if tree.parents[k] in below], height + 1
        assert tree.heights[node] == height
