"""Recipes: the settings behind the paper's figures and tables."""

import math

import pytest

from joma.engine.extent import extent
from joma.engine.grid import grid
from joma.engine.recipes import DEFAULT, RECIPES, recipe

NUM_RUNS = {"figure6": 12, "figure8": 21, "table1": 60, "small": 3, "trees": 6}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_grid_under_its_name(name):
    chosen = recipe(name)
    runs = grid(chosen.base, chosen.axes, tuple(chosen.axes))
    assert chosen.name == name and chosen.about
    assert len(runs) == len({run.name for run in runs}) == NUM_RUNS[name]


def test_the_unknown_one_has_a_neighbour():
    with pytest.raises(ValueError, match=r"no recipe named 'figur6'. Did you mean 'figure6'"):
        recipe("figur6")
    assert DEFAULT in RECIPES


def test_figures_6_and_8_share_the_run_they_have_in_common():
    six, eight = (
        {run.name: run.config for run in grid(chosen.base, chosen.axes, tuple(chosen.axes))}
        for chosen in (recipe("figure6"), recipe("figure8"))
    )
    shared = six.keys() & eight.keys()
    assert shared == {f"depth5-lr1e-4-seed{seed}" for seed in (1, 2, 3)}
    assert all(six[name] == eight[name] for name in shared)


def test_the_text_setting_of_the_paper():
    config = recipe("figure6").base
    assert (config.model.width, config.model.hidden, config.model.heads) == (200, 200, 1)
    assert config.model.embedding_scale == math.sqrt(200) and config.model.dropout == 0.2
    assert config.model.identical_blocks and config.optimiser.restart_every_epoch  # the quirks
    assert (config.optimiser.optimiser, config.optimiser.clip) == ("adam", 0.5)
    assert (config.data.batch, config.data.window, config.data.valid_batch) == (20, 35, 10)
    assert (config.training.epochs, config.training.measure_every) == (20, 1000)


def test_the_setting_of_table_1():
    config = recipe("table1").base
    assert (config.model.depth, config.model.width, config.model.hidden) == (3, 1024, 400)
    assert config.model.causal and config.model.positions == "none" and not config.model.attention_output
    assert (config.optimiser.weight_decay, config.optimiser.clip) == (1e-4, math.inf)
    assert (config.data.batch, config.data.window, config.data.num_tokens) == (128, 30, 100)
    assert config.training.steps == 10_000


@pytest.mark.parametrize("name", ["trees", "table1"])
def test_samples_say_how_far_they_go(name):
    config = recipe(name).base
    reach = extent(config)
    assert reach.num_steps == config.training.steps
    assert reach.vocabulary == {"trees": 16, "table1": 100}[name]
