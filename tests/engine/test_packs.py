"""Packs: runs of one shape together, as many as fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.engine.grid import axes_of, grid
from joma.engine.packs import Pack, packs_of
from joma.engine.recipes import recipe

BASE = recipe("small").base


def runs(**axes):
    return grid(BASE, axes_of(axes))


def test_what_differs_per_run_is_packed_together():
    [pack] = packs_of(runs(lr=[1e-4, 1e-3], weight_decay=[0.0, 0.1], clip=[1.0, "inf"], seed=[1, 2]), lambda _: 100)
    assert pack.num_runs == 16 and pack.config == pack.configs[0]


@given(
    num_seeds=st.integers(1, 12),
    depths=st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),
    most=st.integers(1, 7),
)
def test_packs_split_a_grid_evenly_and_lose_nothing(num_seeds, depths, most):
    all_runs = runs(seed=list(range(num_seeds)), depth=depths)
    packs = packs_of(all_runs, lambda _: most)
    assert sorted(name for pack in packs for name in pack.names) == sorted(run.name for run in all_runs)
    for depth in depths:
        sizes = [pack.num_runs for pack in packs if pack.config.model.depth == depth]
        assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-num_seeds // most)
        seeds = [config.seed for pack in packs if pack.config.model.depth == depth for config in pack.configs]
        assert seeds == sorted(seeds)  # in the order of the grid


@pytest.mark.parametrize(
    ("chosen", "message"),
    [((), "at least, got none"), (runs(depth=[1, 2]), "must have one shape"), (runs() * 2, "got one twice")],
    ids=["empty", "two shapes", "a run twice"],
)
def test_what_is_no_pack_is_refused(chosen, message):
    with pytest.raises(ValueError, match=message):
        Pack(runs=tuple(chosen))


def test_a_run_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fit on its own"):
        packs_of(runs(), lambda _: 0)
