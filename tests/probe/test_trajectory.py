"""Weights under a wrong step are found on every kind of path, and none is found on a path that is as it should be."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from joma.probe.trajectory import off_path

DIMENSION = 400


def straight(n, rng):
    return np.sort(rng.uniform(size=n))[:, None] * rng.normal(size=DIMENSION) + 1e-3 * rng.normal(size=(n, DIMENSION))


def random_walk(n, rng):
    return np.cumsum(rng.normal(size=(n, DIMENSION)) * rng.uniform(0.3, 3, size=(n, 1)), axis=0)


def settling(n, rng):
    decay = np.exp(-np.arange(n) / (n / 5))[:, None]
    return 5 * decay * rng.normal(size=DIMENSION) + 0.1 * rng.normal(size=(n, DIMENSION))


def stationary(n, rng):
    x = np.zeros((n, DIMENSION))
    rate = rng.uniform(0.1, 1)
    for i in range(1, n):
        x[i] = (1 - rate) * x[i - 1] + rng.normal(size=DIMENSION)
    return x


def annealed(n, rng):
    return np.cumsum(rng.normal(size=(n, DIMENSION)) * np.linspace(1, 0.01, n)[:, None], axis=0)


def logarithmic(n, rng):
    steps = np.concatenate([[0], 2 ** np.arange(10), 1000 * np.arange(1, n)])[:n]
    return np.cumsum(rng.normal(size=(n, DIMENSION)) * np.sqrt(np.diff(steps, prepend=0))[:, None], axis=0)


MOVING = [straight, random_walk, settling, annealed, logarithmic]
cases = given(path=st.sampled_from(MOVING), n=st.integers(12, 60), early=st.floats(0, 0.3), seed=st.integers(0, 10**6))


def found(x):
    return off_path(cdist(x, x))


@given(path=st.sampled_from([*MOVING, stationary]), n=st.integers(1, 80), seed=st.integers(0, 10**6))
def test_no_false_finding_on_any_path(path, n, seed):
    assert found(path(n, np.random.default_rng(seed))) == []


@cases
@example(path=random_walk, n=12, early=0.0, seed=223)
def test_final_weights_under_an_early_step(path, n, early, seed):
    x = path(n, np.random.default_rng(seed))
    i = int(early * n)
    x[i] = x[-1]
    hits = found(x)
    if path is random_walk and len(hits) > 1:  # one of few steps, whose end fits the beginning as well as its own place
        assert [(off.index, off.rival) for off in hits] == [(i, n - 1), (n - 1, i)]
        return
    (off,) = hits
    assert (off.index, off.nearest, off.rival) == (i, n - 1, None)


@cases
def test_weights_from_near_the_end_that_the_series_does_not_have(path, n, early, seed):
    rng = np.random.default_rng(seed)
    x = path(n + 1, rng)
    i = int(early * n)
    x = np.concatenate([x[:i], x[-2:-1], x[i + 1 : -2], x[-1:]])  # the last but one, under an early step
    hits = found(x)
    assert i in [off.index for off in hits] or path in (random_walk, annealed)  # a walk's end is not that far
    assert {off.index for off in hits} <= {i}


def test_two_checkpoints_swapped():
    rng = np.random.default_rng(0)
    counts = {path: [0, 0] for path in MOVING}
    for path in MOVING:
        for _ in range(40):
            n = int(rng.integers(12, 60))
            x = path(n, rng)
            i = int(rng.integers(0, n // 4))
            x[[i, n - 1]] = x[[n - 1, i]]
            indices = {off.index for off in found(x)}
            counts[path][0] += indices == {i, n - 1}
            counts[path][1] += bool(indices - {i, n - 1})
    for path, (right, wrong) in counts.items():
        assert right >= 33, path  # a random walk of few steps does not get far
        assert wrong <= 3, path


@cases
def test_a_block_of_copies(path, n, early, seed):
    x = path(n, np.random.default_rng(seed))
    i = 1 + int(early * n)
    x[[i, i + 1]] = x[-1]
    offs = {off.index: off.rival for off in found(x)}
    if path in (straight, settling, logarithmic):
        assert offs == {i: None, i + 1: None}
    else:  # a walk of few steps does not get far: then the original is named as well
        assert offs in ({i: None, i + 1: None}, {i: n - 1, i + 1: n - 1, n - 1: i})


def test_weights_of_another_run():
    rng = np.random.default_rng(0)
    x = random_walk(20, rng)
    x[7] = 40 * rng.normal(size=DIMENSION)
    (off,) = found(x)
    assert (off.index, off.before, off.after, off.nearest) == (7, 6, 8, None)


def test_when_distances_do_not_tell_which_of_two_is_wrong_both_are_named():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, DIMENSION))  # settled, without memory: every place is as good
    x[4] = x[15]
    offs = {off.index: off.rival for off in found(x)}
    assert offs == {4: 15, 15: 4}


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_to_tell(n):
    assert off_path(np.ones((n, n)) - np.eye(n)) == []


def test_three_with_one_away():
    x = np.array([[0.0], [9.0], [1.0]])
    (off,) = found(x)
    assert (off.index, off.nearest) == (1, None)


def test_equal_neighbours_are_on_the_path():
    x = random_walk(20, np.random.default_rng(0))
    x[8] = x[7]
    assert found(x) == []
    assert found(np.zeros((5, DIMENSION))) == []
