"""Grids: every combination once, in order, under names that stay; recipes; packs of runs of one shape."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.engine.grid import RECIPES, axes_of, check_data, grid, recipe, run_name
from joma.engine.plan import Pack, packs_of

VALUES = {
    "depth": st.integers(1, 40),
    "lr": st.floats(0, 1e3),
    "seed": st.integers(0, 2**40),
    "dropout": st.floats(0, 0.99),
    "weight_decay": st.floats(0, 10.0),
    "clip": st.floats(1e-300, float("inf")),
    "gated": st.booleans(),
    "activation": st.sampled_from(["relu", "gelu", "silu", "linear", "tanh"]),
    "data": st.text(min_size=1, max_size=60).filter(lambda text: text.strip() and "," not in text),
    "vocabulary_cap": st.none() | st.integers(2, 10**6),
    "num_latents": st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple),
    "rho": st.floats(-1, 1),
}
SAFE = re.compile(r"[A-Za-z0-9._+-]+")


def axes(max_values: int = 3) -> st.SearchStrategy[dict[str, list]]:
    lists = {name: st.lists(values, min_size=1, max_size=max_values) for name, values in VALUES.items()}
    return st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: lists[name] for name in names})
    )


def runs_of(given_axes, name="small"):
    chosen = recipe(name)
    # `data` of a text in these grids is any string: a folder that need not be there until the plan is made.
    return grid(chosen.base, axes_of(given_axes), tuple(chosen.axes))


@given(axes())
def test_names_are_unique_safe_and_short(given_axes):
    runs = runs_of(given_axes)
    names = [run.name for run in runs]
    assert len(set(names)) == len(names) == len({run.config.hash for run in runs})
    assert all(SAFE.fullmatch(name) and len(name) <= 120 and not name.startswith(".") for name in names)


@given(axes())
def test_every_combination_is_there_once_in_order(given_axes):
    values = axes_of(given_axes)
    expected = [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]
    found = [{name: run.config.get(name) for name in values} for run in runs_of(given_axes)]
    assert found == expected


@given(axes())
def test_duplicates_collapse_where_they_first_came(given_axes):
    doubled = {name: [*values, *reversed(values)] for name, values in given_axes.items()}
    assert runs_of(doubled) == runs_of(given_axes)


@given(axes(max_values=2), axes(max_values=2))
def test_a_grid_that_grows_keeps_its_names(first, second):
    shared = {name: [*first.get(name, []), *second.get(name, [])] for name in first}
    grown = {run.config.hash: run.name for run in runs_of(shared)}
    for run in runs_of(first):
        assert grown[run.config.hash] == run.name


@given(st.sampled_from(sorted(VALUES)))
def test_an_empty_axis_is_refused(name):
    with pytest.raises(ValueError, match=f"The axis `{name}` is empty"):
        axes_of({name: []})
    with pytest.raises(ValueError, match=f"The axis `{name}` is empty"):
        axes_of({name: " , "})


def test_new_axes_of_a_base_leave_old_names_alone():
    before = {run.name for run in runs_of({"lr": [1e-3, 1e-4]})}
    after = {run.name for run in runs_of({"lr": [1e-3, 1e-4], "dropout": [0.0, 0.5]})}
    assert before < after  # 0.0 is the base's own dropout


def test_names_read_well():
    names = [run.name for run in runs_of({"lr": "1e-4,0.02", "heads": "2,4", "seed": "1"})]
    assert names == [
        "depth2-lr1e-4-seed1",
        "depth2-lr1e-4-heads4-seed1",
        "depth2-lr2e-2-seed1",
        "depth2-lr2e-2-heads4-seed1",
    ]


def test_how_often_a_run_is_saved_is_not_in_its_name():
    base = recipe("small").base
    assert run_name(base.update({"snapshot_seconds": 1.0, "vocabulary": 5}), base) == run_name(base, base)
    with pytest.raises(ValueError, match="does not change a run"):
        axes_of({"snapshot_seconds": [1.0, 2.0]})
    with pytest.raises(ValueError, match="`vocabulary` follows from the data"):
        axes_of({"vocabulary": 5})


def test_a_longer_run_keeps_its_name_unless_a_schedule_ends_it():
    base = recipe("small").base
    assert run_name(base.update({"steps": 5000}), base) == run_name(base.update({"epochs": 3}), base) == "seed1"
    falling = base.update({"schedule": "cosine"})
    assert run_name(falling.update({"steps": 5000}), base) == "schedulecosine-steps5000-seed1"
    with pytest.raises(ValueError, match="differs in its length alone"):
        runs_of({"steps": [10, 20]})


@pytest.mark.parametrize(
    ("data", "error"), [("wikitxt2", ValueError), ("./nowhere", FileNotFoundError), (__file__, NotADirectoryError)]
)
def test_a_text_that_is_not_there_is_refused(data, error):
    with pytest.raises(error):
        check_data(runs_of({"data": data}))


NUM_RUNS = {"figure6": 12, "figure8": 21, "table1": 60, "small": 3, "trees": 6}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_grid_under_its_name(name):
    chosen = recipe(name)
    runs = grid(chosen.base, chosen.axes, tuple(chosen.axes))
    assert chosen.about
    assert len(runs) == len({run.name for run in runs}) == NUM_RUNS[name]
    with pytest.raises(ValueError, match=f"Did you mean '{name}'"):
        recipe(name + name[-1])


def test_figures_6_and_8_share_the_run_they_have_in_common():
    six, eight = (
        {run.name: run.config for run in grid(chosen.base, chosen.axes, tuple(chosen.axes))}
        for chosen in (recipe("figure6"), recipe("figure8"))
    )
    shared = six.keys() & eight.keys()
    assert shared == {f"depth5-lr1e-4-seed{seed}" for seed in (1, 2, 3)}
    assert all(six[name] == eight[name] for name in shared)


PAPER = {
    "figure6": {
        "width": 200, "hidden": 200, "heads": 1, "embedding_scale": math.sqrt(200), "dropout": 0.2, "optimiser": "adam",
        "identical_blocks": True, "restart_every_epoch": True, "clip": 0.5, "batch": 20, "window": 35,
        "valid_batch": 10, "epochs": 20, "measure_every": 1000,
    },
    "table1": {
        "depth": 3, "width": 1024, "hidden": 400, "causal": True, "positions": "none", "attention_output": False,
        "weight_decay": 1e-4, "clip": math.inf, "batch": 128, "window": 30, "num_tokens": 100, "steps": 10_000,
    },
}  # fmt: skip
"""Settings of the paper's scripts, quirks included."""


@pytest.mark.parametrize("name", PAPER)
def test_the_settings_of_the_paper(name):
    assert PAPER[name].items() <= recipe(name).base.flat().items()


def plain_runs(**axes):
    return grid(recipe("small").base, axes_of(axes))


@given(
    num_seeds=st.integers(1, 12),
    depths=st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),
    most=st.integers(1, 7),
)
def test_packs_split_a_grid_evenly_and_lose_nothing(num_seeds, depths, most):
    all_runs = plain_runs(seed=list(range(num_seeds)), depth=depths)
    packs = packs_of(all_runs, lambda _: most)
    assert sorted(name for pack in packs for name in pack.names) == sorted(run.name for run in all_runs)
    for depth in depths:
        sizes = [pack.num_runs for pack in packs if pack.config.model.depth == depth]
        assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-num_seeds // most)
        seeds = [run.config.seed for pack in packs if pack.config.model.depth == depth for run in pack.runs]
        assert seeds == sorted(seeds)  # in the order of the grid


@pytest.mark.parametrize("chosen", [(), plain_runs(depth=[1, 2]), plain_runs() * 2], ids=["empty", "shapes", "twice"])
def test_what_is_no_pack_is_refused(chosen):
    with pytest.raises(ValueError, match=r"packs_of|grid"):
        Pack(runs=tuple(chosen))
