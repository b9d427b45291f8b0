"""Configs: flat names, plain types and back, hashes, and what is refused."""

import json
import math
import pkgutil
import re
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.engine.config import (
    BESIDE,
    PER_RUN,
    DataConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
    field_homes,
    parse,
)
from joma.engine.extent import completed
from joma.engine.recipes import RECIPES, recipe
from joma.models.decoder_config import DecoderConfig
from joma.models.layer import AnalysedLayer

OTHER_VALUES = {
    "lr": 0.5,
    "weight_decay": 0.25,
    "clip": 2.0,
    "seed": 9,
    "depth": 7,
    "dropout": 0.1,
    "batch": 3,
    "steps": 77,
    "precision": "float64",
    "snapshot_seconds": 5.0,
    "checkpoint_every": 10,
}


def small() -> RunConfig:
    return recipe("small").base


@pytest.mark.parametrize("name", RECIPES)
def test_plain_types_and_back(name):
    config = recipe(name).base
    there = json.loads(json.dumps(config.as_dict(), allow_nan=False))
    assert RunConfig.from_dict(there) == config
    assert RunConfig.from_dict(there).hash == config.hash


def test_a_hash_is_the_same_in_every_process():
    # What is written in snapshots must be found again by the next process: this changes only with the fields.
    assert RunConfig(model=DecoderConfig(vocabulary=10, width=8, hidden=8)).as_dict()["optimiser"]["clip"] == "inf"
    assert len({recipe(name).base.hash for name in RECIPES}) == len(set(RECIPES) - {"figure8"})  # figures share theirs


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_field_but_those_beside_changes_the_hash(name):
    changed = small().update({name: OTHER_VALUES[name]})
    assert changed.get(name) == OTHER_VALUES[name]
    assert (changed.hash == small().hash) is (name in BESIDE)
    assert (changed.shape == small().shape) is (name in PER_RUN)


def test_flat_names_are_unique_over_the_parts():
    names = [
        each.name for part in (DecoderConfig, OptimiserConfig, DataConfig, TrainingConfig) for each in fields(part)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == ["num_classes"]
    assert set(small().flat()) == set(field_homes()) == {*names, "seed"}


def test_classes_of_the_model_follow_the_data():
    config = recipe("table1").base.update({"num_classes": 30})
    assert config.model.num_classes == config.data.num_classes == 30
    assert small().update({"num_classes": 30}).model.num_classes == 0


def test_steps_and_epochs_replace_each_other():
    assert (small().update({"epochs": 2}).training.epochs, small().update({"epochs": 2}).training.steps) == (2, None)
    assert small().update({"epochs": 2}).update({"steps": 5}).training.epochs is None


@given(st.floats(min_value=0, max_value=1e300), st.integers(min_value=0, max_value=2**62))
def test_numbers_survive_as_text(lr, seed):
    assert parse("lr", repr(lr)) == lr
    assert parse("seed", str(seed)) == seed
    config = small().update({"lr": lr, "seed": seed})
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("clip", "inf", math.inf),
        ("gated", "yes", True),
        ("gated", "off", False),
        ("num_latents", "20x30", (20, 30)),
        ("num_latents", 7, (7,)),
        ("vocabulary_cap", "none", None),
        ("vocabulary_cap", "2000", 2000),
        ("batch", "1e2", 100),
    ],
)
def test_text_becomes_the_type_of_the_field(name, text, value):
    assert parse(name, text) == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dept": 2}, "no setting named 'dept'. Did you mean 'depth'"),
        ({"depth": "two"}, "`depth` must be a whole number, got 'two'"),
        ({"depth": 1.5}, "`depth` must be a whole number, got 1.5"),
        ({"depth": True}, "`depth` must be a whole number, got True"),
        ({"lr": "nan"}, "`lr` must be a number, got 'nan'"),
        ({"lr": -1.0}, "`lr` must be 0 or above"),
        ({"lr": math.inf}, "`lr` must be 0 or above and finite"),
        ({"clip": 0.0}, "`clip` must be positive"),
        ({"beta1": 1.0}, "`beta1` must be at least 0 and below 1"),
        ({"gated": "maybe"}, "`gated` must be true or false"),
        ({"optimiser": "adm"}, "no optimiser named 'adm'. Did you mean 'adam'"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"precision": "bf61"}, "Did you mean 'bf16'"),
        ({"steps": 0}, "`steps` must be a whole number of at least 1"),
        ({"epochs": 1, "steps": 1}, "one of the two"),
        ({"num_latents": ()}, "`num_latents` must have a number for each level"),
        ({"num_latents": "10by20"}, "whole numbers such as 10x20"),
        ({"rho": 1.5}, r"`rho` must lie in \[-1, 1\]"),
        ({"data": ""}, "no data named ''"),
        ({"heads": 3}, "`width` must be a multiple of `heads`, got 64 and 3"),
        ({"positions": "learned", "window": 2000}, "`max_length` is 1024, and a sequence has 2000"),
        ({"data": "trees"}, "sequences with a class"),
        ({"data": "trees", "readout": "class", "epochs": 2}, "have no end, so no `epochs`"),
        ({"readout": "class"}, "A class read-out needs data with classes.* Take trees or hierarchy, or `readout`"),
        ({"data": "class-tokens"}, "are frequencies for the analysed layer.* Take trees or hierarchy, or build"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_impossible_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        small().update(values)


def test_data_that_are_offered_are_taken():
    with pytest.raises(ValueError) as refused:
        small().update({"readout": "class"})
    [offered] = re.findall(r"Take (.*?), or", str(refused.value))
    for data in offered.split(" or "):
        assert (
            completed(small().update({"readout": "class", "data": data, "steps": 1, "num_classes": 3})).model.vocabulary
            > 1
        )


def test_the_layer_that_reads_class_tokens_is_where_it_is_said_to_be():
    with pytest.raises(ValueError) as refused:
        small().update({"data": "class-tokens"})
    assert pkgutil.resolve_name(re.search(r"joma\.[\w.]*\w", str(refused.value))[0]) is AnalysedLayer
