"""Latent trees: the fast formulas against full enumeration, their limits and invariances, Monte Carlo, speed."""

import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joma.errors import AssumptionError
from joma.theory.latent_tree import (
    LatentTree,
    chain_parameter,
    cooccurrence,
    cooccurrence_limit,
    cooccurrence_slope,
    edge_matrix,
    nested_tree,
    node_distribution,
    one_latent_per_class,
    pair_distribution,
    regular_tree,
    root_cooccurrence,
    root_parameter,
)

MOST_NODES = 11
"""Binary nodes of an enumerated tree: the naive twin walks 2^11 configurations for every class."""

rhos = st.floats(-1, 1)
inner_rhos = st.floats(-0.99, 0.99)
probabilities = st.floats(0.01, 0.99)


def enumerated(tree: LatentTree) -> np.ndarray:
    """Probability of every configuration (class, y_1, ..., y_N) of a tree, by the definition of the model."""
    table = np.asarray(tree.class_probabilities)
    tops = list(tree.tops)
    for node in range(1, tree.num_nodes):
        parent = int(tree.parents[node])
        if parent == 0:
            zero = tree.zero_given_class[:, tops.index(node)]
            law = np.stack([zero, 1 - zero], axis=1)
        else:
            same, other = (1 + tree.rho[node]) / 2, (1 - tree.rho[node]) / 2
            law = np.array([[same, other], [other, same]])
        shape = [1] * (node + 1)
        shape[parent], shape[node] = law.shape
        table = table[..., None] * law.reshape(shape)
    return table


def enumerated_joint(table: np.ndarray, first: int, second: int) -> np.ndarray:
    kept = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in (first, second)))
    if first == second:
        return np.diag(kept)
    return kept if first < second else kept.T


@st.composite
def trees(draw, edges=inner_rhos) -> LatentTree:
    num_nodes = draw(st.integers(2, MOST_NODES + 1))
    parents = np.array([-1, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))])
    rho = np.array([1.0 if parent <= 0 else draw(edges) for parent in parents])
    num_classes = draw(st.integers(1, 3))
    weights = np.array(draw(st.lists(probabilities, min_size=num_classes, max_size=num_classes)))
    num_tops = int((parents == 0).sum())
    zero = np.array(draw(st.lists(probabilities, min_size=num_classes * num_tops, max_size=num_classes * num_tops)))
    return LatentTree(
        parents=parents,
        rho=rho,
        class_probabilities=weights / weights.sum(),
        zero_given_class=zero.reshape(num_classes, num_tops),
    )


# Definition 1, Lemmas 8 and 9


@given(rhos, rhos)
def test_edge_matrices_multiply_as_their_parameters_do(rho_1, rho_2):
    np.testing.assert_allclose(edge_matrix(rho_1) @ edge_matrix(rho_2), edge_matrix(rho_1 * rho_2), atol=1e-15)
    np.testing.assert_allclose(
        edge_matrix(rho_1) @ node_distribution(rho_2), node_distribution(rho_1 * rho_2), atol=1e-15
    )


@given(rhos)
def test_an_edge_matrix_is_symmetric_and_stochastic(rho):
    M = edge_matrix(rho)
    np.testing.assert_array_equal(M, M.T)
    np.testing.assert_allclose(M.sum(axis=0), 1, atol=1e-15)
    assert (M >= 0).all()


@given(st.lists(rhos, min_size=1, max_size=6))
def test_a_chain_is_one_edge_with_the_product_of_parameters(chain):
    walked = np.linalg.multi_dot([np.eye(2), np.eye(2), *edge_matrix(np.array(chain))])
    np.testing.assert_allclose(edge_matrix(chain_parameter(np.array(chain))), walked, atol=1e-14)


@given(rhos, rhos, rhos)
def test_eqn_98_expands_the_product_of_eqn_94(rho_l, rho_m, rho_c):
    one, e = np.ones(2), np.array([1.0, -1.0])
    terms = [(1.0, one, one), (rho_l * rho_m, e, e), (rho_l * rho_c, e, one), (rho_m * rho_c, one, e)]
    expanded = sum(weight * np.outer(left, right) for weight, left, right in terms) / 4
    np.testing.assert_allclose(pair_distribution(rho_l, rho_m, rho_c), expanded, atol=1e-15)


# Any tree against full enumeration; 1e-13 is the rounding of sums over a few thousand probabilities.


@given(trees(edges=rhos))
def test_joint_laws_of_all_pairs_are_those_of_the_enumeration(tree):
    table = enumerated(tree)
    for first in range(1, tree.num_nodes):
        for second in range(1, tree.num_nodes):
            np.testing.assert_allclose(tree.joint(first, second), enumerated_joint(table, first, second), atol=1e-13)


@given(trees())
def test_the_cooccurrence_matrix_is_that_of_the_enumeration(tree):
    table = enumerated(tree)
    for nodes in (tree.leaves, np.arange(tree.num_nodes - 1, 0, -1)):
        joints = np.array([[enumerated_joint(table, i, j)[1, 1] for j in nodes] for i in nodes])
        np.testing.assert_allclose(tree.joint_ones(nodes), joints, atol=1e-13)
        np.testing.assert_allclose(tree.cooccurrence_matrix(nodes), joints / np.diag(joints), atol=1e-12)
        pairs = [[tree.cooccurrence(i, j) for j in nodes] for i in nodes]
        np.testing.assert_allclose(pairs, joints / np.diag(joints), atol=1e-12)


@given(trees())
def test_marginals_are_those_of_the_enumeration(tree):
    table = enumerated(tree)
    expected = [enumerated_joint(table, leaf, leaf).sum(axis=0) for leaf in tree.leaves]
    np.testing.assert_allclose(tree.marginals(), expected, atol=1e-13)
    np.testing.assert_allclose(tree.marginals(tree.tops)[:, 0], (1 + tree.root_parameters) / 2, atol=1e-14)


@given(st.integers(2, 3), inner_rhos, st.lists(st.tuples(probabilities, probabilities), min_size=1, max_size=3))
def test_theorem_5_on_a_regular_tree(depth, rho, classes):
    weights, zero = np.array(classes).T
    tree = regular_tree(depth, 2, rho, class_probabilities=weights / weights.sum(), zero_given_class=zero)
    table = enumerated(tree)
    rho0 = tree.root_parameters[0]
    heights = tree.ancestor_heights()
    for row, first in enumerate(tree.leaves):
        for column, second in enumerate(tree.leaves):
            joint = enumerated_joint(table, first, second)
            exact, H = joint[1, 1] / joint[:, 1].sum(), heights[row, column]
            if 1 <= H < depth:
                assert cooccurrence(H, depth, rho, rho0) == pytest.approx(exact, abs=1e-12)
            if H == depth:
                at_root = root_cooccurrence(depth, rho, tree.class_probabilities, zero, zero)
                assert at_root == pytest.approx(exact, abs=1e-12)


# Invariances


@given(trees(), st.randoms(use_true_random=False))
def test_classes_may_be_renamed(tree, random):
    order = list(range(tree.class_probabilities.size))
    random.shuffle(order)
    renamed = LatentTree(
        parents=tree.parents,
        rho=tree.rho,
        class_probabilities=tree.class_probabilities[order],
        zero_given_class=tree.zero_given_class[order],
    )
    np.testing.assert_allclose(renamed.cooccurrence_matrix(), tree.cooccurrence_matrix(), atol=1e-14)


@given(trees())
def test_a_class_may_be_split(tree):
    split = LatentTree(
        parents=tree.parents,
        rho=tree.rho,
        class_probabilities=np.concatenate([tree.class_probabilities[:1] / 2] * 2 + [tree.class_probabilities[1:]]),
        zero_given_class=np.concatenate([tree.zero_given_class[:1], tree.zero_given_class]),
    )
    np.testing.assert_allclose(split.joint_ones(), tree.joint_ones(), atol=1e-14)


@given(trees())
def test_renaming_zero_and_one_everywhere_swaps_the_joint_law(tree):
    swapped = LatentTree(
        parents=tree.parents,
        rho=tree.rho,
        class_probabilities=tree.class_probabilities,
        zero_given_class=1 - tree.zero_given_class,
    )
    last = tree.num_nodes - 1
    np.testing.assert_allclose(swapped.joint(1, last), tree.joint(1, last)[::-1, ::-1], atol=1e-14)


@given(trees())
def test_an_edge_with_rho_one_may_be_contracted(tree):
    parents = np.append(tree.parents, tree.num_nodes - 1)
    longer = LatentTree(
        parents=parents,
        rho=np.append(tree.rho, 1.0),
        class_probabilities=tree.class_probabilities,
        zero_given_class=tree.zero_given_class,
    )
    for node in range(1, tree.num_nodes):
        np.testing.assert_allclose(longer.joint(node, tree.num_nodes), tree.joint(node, tree.num_nodes - 1), atol=1e-14)


@given(trees())
def test_bayes_rule(tree):
    P = tree.cooccurrence_matrix()
    ones = tree.marginals()[:, 1]
    np.testing.assert_allclose(P * ones, (P * ones).T, atol=1e-14)
    np.testing.assert_allclose(np.diag(P), 1, atol=1e-14)


# Theorem 5: monotone in H, limits, Eqn 8


@given(st.integers(3, 8), st.floats(0.05, 0.99), st.sampled_from([-1, 1]), st.floats(-0.99, 0.99))
def test_a_higher_common_ancestor_means_less_cooccurrence_for_either_sign_of_rho(L, size, sign, rho0):
    assert (np.diff(cooccurrence(np.arange(1, L), L, sign * size, rho0)) < 0).all()


@given(st.integers(2, 9), st.floats(0.0, 3.0), st.data())
def test_the_limit_of_eqn_8_and_its_first_order_error(L, c, data):
    H = data.draw(st.integers(1, L - 1))
    limit, slope = cooccurrence_limit(H, L, c), cooccurrence_slope(H, L, c)

    def beyond_first_order(epsilon):
        return cooccurrence(H, L, 1 - epsilon, 1 - c * epsilon) - limit - slope * epsilon

    # What remains is of second order: a tenth of ε leaves a hundredth; 1e-13 is the rounding of the subtraction.
    assert abs(beyond_first_order(1e-4)) <= 0.011 * abs(beyond_first_order(1e-3)) + 1e-9 * L**2
    assert abs(beyond_first_order(1e-3)) < 1e-5 * L**2


@pytest.mark.parametrize(("H", "L"), [(1, 5), (2, 5), (3, 4), (1, 3)])
def test_halving_epsilon_halves_the_error_of_eqn_8(H, L):
    error = [float(cooccurrence(H, L, 1 - e, 1 - e) - (1 - H / L)) for e in (1e-3, 5e-4)]
    assert error[0] / error[1] == pytest.approx(2, rel=0.02)


@given(st.integers(1, 6), st.floats(0.01, 0.99))
def test_theorem_5_gives_one_half_when_the_ancestor_is_half_way_up(H, rho):
    assert cooccurrence(H, 2 * H, rho, rho) == pytest.approx(0.5, abs=1e-15)


def test_no_digits_are_lost_near_the_limit():
    # 1 − ρ is a power of two, so the floats are the exact inputs.
    epsilon = 2.0**-40
    expected = cooccurrence_limit(2, 7) + cooccurrence_slope(2, 7) * epsilon
    assert cooccurrence(2, 7, 1 - epsilon, 1 - epsilon) == pytest.approx(expected, abs=1e-15)
    tree = regular_tree(
        7, [1, 1, 1, 1, 1, 2, 1], 1 - epsilon, class_probabilities=[1.0], zero_given_class=[1 - epsilon / 2]
    )
    np.testing.assert_allclose(tree.cooccurrence_matrix()[0, 1], expected, atol=1e-14)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (cooccurrence(1, 3, 0.8, -0.08), 121 / 146),
        (cooccurrence(1, 3, 0.8, 0.46), 0.74490),
        ((cooccurrence(1, 5, 1 - 1e-3, 1 - 1e-3) - 0.8) * 1e4, -3.002),
        (cooccurrence_limit(1, 5, 2.0), 0.83333),
    ],
    ids=["Theorem 5", "the probability in place of rho0", "error of Eqn 8", "rho0 = 1 - 2 eps"],
)
def test_known_numbers(value, expected):
    assert float(value) == pytest.approx(expected, abs=5e-4 if expected < 0 else 5e-6)


@given(st.integers(2, 60))
def test_one_latent_per_class_gives_a_root_parameter_near_one(num_classes):
    rho0 = root_parameter(np.full(num_classes, 1 / num_classes), one_latent_per_class(num_classes))
    np.testing.assert_allclose(rho0, 1 - 2 / num_classes, atol=1e-14)


def test_tokens_of_different_classes_exclude_each_other():
    zero = one_latent_per_class(3)
    tree = regular_tree(2, (3, 2), 1.0, class_probabilities=np.full(3, 1 / 3), zero_given_class=zero)
    np.testing.assert_array_equal(tree.cooccurrence_matrix(), np.kron(np.eye(3), np.ones((2, 2))))


# Monte Carlo


def test_samples_have_the_cooccurrence_of_the_formula():
    rng = np.random.default_rng(5)
    zero = np.array([[0.9, 0.2], [0.3, 0.8], [0.6, 0.5]])
    tree = regular_tree(4, 2, (0.9, -0.7, 0.8), class_probabilities=[0.2, 0.5, 0.3], zero_given_class=zero)
    size = 100_000
    ones = tree.sample(rng, size)[:, tree.leaves].astype(float)
    exact = tree.joint_ones()
    error = (ones.T @ ones / size - exact) / np.sqrt(exact * (1 - exact) / size)
    assert np.abs(error).max() < 4.5  # standard errors, 136 different pairs


# Shapes and numbering


def test_a_nested_tree_is_numbered_depth_first():
    tree = nested_tree([[[(), ()], ()], [()]], 0.7, class_probabilities=[1.0], zero_given_class=[0.4])
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2, 1, 0, 6]
    assert tree.leaves.tolist() == [3, 4, 5, 7]
    assert tree.tops.tolist() == [1, 6]
    assert tree.depths.tolist() == [0, 1, 2, 3, 3, 2, 1, 2]
    assert tree.heights.tolist() == [3, 2, 1, 0, 0, 0, 1, 0]
    assert tree.rho.tolist() == [1, 1, 0.7, 0.7, 0.7, 0.7, 1, 0.7]
    assert tree.common_ancestor(3, 5) == 1 and tree.common_ancestor(3, 7) == 0 and tree.common_ancestor(3, 2) == 2


def test_heights_of_common_ancestors_follow_the_order_asked_for():
    tree = regular_tree(2, 2, 0.5, class_probabilities=[1.0], zero_given_class=[0.5])
    expected = [[0, 2, 1], [2, 0, 2], [1, 2, 0]]
    assert tree.ancestor_heights(np.array([3, 5, 4])).tolist() == expected
    assert tree.ancestor_heights(np.array([1, 3])).tolist() == [[1, 1], [1, 0]]


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


# Errors


def test_conditioning_on_a_null_event_is_refused():
    with pytest.raises(AssumptionError, match="which has probability ½"):
        cooccurrence(1, 3, 1.0, 1.0)
    with pytest.raises(AssumptionError, match="probability 0 here"):
        root_cooccurrence(2, -1.0, np.array([1.0]), np.array([0.5]), np.array([0.0]))
    # A third of three is not exactly one in floats; the null event is found all the same.
    thirds = np.array([0.1, 0.2, 0.7])
    tree = regular_tree(3, 2, -1.0, class_probabilities=thirds, zero_given_class=np.ones(3))
    with pytest.raises(AssumptionError, match="node 7 is never 1"):
        tree.cooccurrence_matrix()
    with pytest.raises(AssumptionError, match="node 9 is never 1"):
        tree.cooccurrence(8, 9)
    assert tree.cooccurrence(8, 3) == 0


GOOD = {
    "parents": np.array([-1, 0, 1, 1]),
    "rho": np.array([1.0, 1.0, 0.5, 0.5]),
    "class_probabilities": np.array([0.5, 0.5]),
    "zero_given_class": np.array([[0.1], [0.9]]),
}


@given(st.recursive(st.just(()), lambda children: st.lists(children, min_size=1, max_size=3).map(tuple), max_leaves=8))
def test_heights_are_those_of_the_deepest_leaf_below(children):
    assume(children)
    tree = nested_tree(children, 0.5, class_probabilities=np.ones(1), zero_given_class=np.full(1, 0.5))
    for node in range(tree.num_nodes):
        below, height = [node], -1
        while below:
            below, height = [k for k in range(tree.num_nodes) if tree.parents[k] in below], height + 1
        assert tree.heights[node] == height
