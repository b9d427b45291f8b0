"""What an experiment is, and that every one in the registry is complete."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.fakes import Config, fake
from joma.experiments.cache import key_of
from joma.experiments.experiment import PRESETS, Result
from joma.experiments.registry import MODULES, SECONDS, experiment, find

HERE = Path(__file__).parent
KEYS = """
from joma.experiments.cache import key_of
from joma.experiments.registry import MODULES, experiment
print(*(key_of(found, config()) for found in map(experiment, MODULES) for config in found.configs.values()))
"""


def test_presets_are_found_and_unknown_ones_refused():
    assert fake("a").config("quick") == Config()
    with pytest.raises(ValueError, match=r"There is no preset named 'quik'\. Did you mean 'quick'\?"):
        fake("a").config("quik")


def test_tables_are_named_as_files():
    with pytest.raises(ValueError, match="letters, digits"):
        Result(tables={"../walk": pd.DataFrame()}, facts={})


def test_a_figure_names_the_experiment_that_holds_it():
    assert find(["Figure3", "figure6", "figure8"]) == ["figures2-3", "figures6-8"]
    assert find("figure7") == ["figure7"]


def test_ids_are_found_in_the_order_of_the_paper():
    assert find() == list(MODULES)
    assert find(["table1", "figure9"]) == ["figure9", "table1"]
    with pytest.raises(ValueError, match=r"There is no experiment named 'figur9'\. Did you mean 'figure9'\?"):
        find(["figur9"])


@pytest.mark.parametrize("name", MODULES)
def test_every_experiment_is_complete(name):
    found = experiment(name)
    assert found.id == name and found.title and found.place and found.question
    assert set(found.configs) == set(PRESETS)
    assert all(name in SECONDS[preset] for preset in PRESETS)
    configs = [found.config(preset) for preset in PRESETS]
    assert configs[0] != configs[1]
    assert all(hash(type(config)) and type(config).__dataclass_params__.frozen for config in configs)


def test_settings_hash_alike_in_every_process():
    keys = [key_of(found, config()) for found in map(experiment, MODULES) for config in found.configs.values()]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", KEYS], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == keys


@pytest.mark.parametrize("name", MODULES)
def test_every_experiment_has_tests_of_its_verdicts(name):
    source = (HERE / f"test_{MODULES[name]}.py").read_text("utf8")
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    tests = [ast.get_source_segment(source, node) for node in functions if node.name.startswith("test_")]
    assert any("verdict" in test for test in tests), f"no test feeds {name}'s verdicts"
