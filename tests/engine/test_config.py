"""Settings: flat names, plain types and back, hashes that stay, what is refused, and when to measure."""

import json
import math
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.engine.config import (
    PER_RUN,
    SAVING,
    DataConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
    all_settings,
    check_device,
    parse,
)
from joma.engine.grid import RECIPES, recipe
from joma.models.decoder_config import DecoderConfig

OTHER_VALUES = {
    "lr": 0.5, "weight_decay": 0.25, "clip": 2.0, "seed": 9, "depth": 7, "dropout": 0.1, "qk_norm": True,
    "softcap": 20.0, "negative_slope": 0.2, "attention_scale": 0.5, "positions": "centred", "frozen": ("qk", "norm"),
    "lr_attention": 0.1, "lr_logits": 0.0, "qk_clip": 50.0, "batch": 3, "steps": 77, "precision": "float64",
    "snapshot_seconds": 5.0, "checkpoint_every": 10, "measure_extra": True, "measure_states": True,
    "gradient_batches": 4, "mask_share": 0.3, "shuffle_seed": 0,
}  # fmt: skip
HASHES = {
    "figure6": "0459fa0a9a6e",
    "figure8": "0459fa0a9a6e",
    "small": "4b7045a05378",
    "table1": "2a27a6372f66",
    "trees": "30ce3f42108a",
}
"""Of version 0.1: snapshots are found again by what these digits are made of."""


def small() -> RunConfig:
    return recipe("small").base


@pytest.mark.parametrize("name", RECIPES)
def test_plain_types_and_back(name):
    config = recipe(name).base
    there = json.loads(json.dumps(config.as_dict(), allow_nan=False))
    assert RunConfig.from_dict(there) == config
    assert RunConfig.from_dict(there).hash == config.hash == HASHES[name]


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_field_but_those_of_saving_changes_the_hash(name):
    changed = small().update({name: OTHER_VALUES[name]})
    assert changed.get(name) == OTHER_VALUES[name]
    assert (changed.hash == small().hash) is (name in SAVING)
    assert (changed.shape == small().shape) is (name in PER_RUN)


def test_flat_names_are_unique_over_the_parts_and_described():
    names = [
        each.name for part in (DecoderConfig, OptimiserConfig, DataConfig, TrainingConfig) for each in fields(part)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == ["num_classes"]
    assert set(small().flat()) == set(all_settings()) == {*names, "seed"}
    assert all(each.description and each.kind for each in all_settings().values())


def test_classes_of_the_model_follow_the_data():
    config = recipe("table1").base.update({"num_classes": 30})
    assert config.model.num_classes == config.data.num_classes == 30
    assert small().update({"num_classes": 30}).model.num_classes == 0


def test_steps_and_epochs_replace_each_other():
    assert (small().update({"epochs": 2}).training.epochs, small().update({"epochs": 2}).training.steps) == (2, None)
    assert small().update({"epochs": 2}).update({"steps": 5}).training.epochs is None


@given(st.floats(min_value=0, max_value=1e300), st.integers(min_value=0, max_value=2**63 - 1))
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
        ("batch", 1e2, 100),
        ("seed", "9007199254740993", 2**53 + 1),
        ("frozen", "none", ()),
        ("frozen", "", ()),
        ("frozen", "norm+qk+norm", ("qk", "norm")),
    ],
)
def test_text_becomes_the_type_of_the_field(name, text, value):
    found = parse(name, text)
    assert found == value and type(found) is type(value)


IMPOSSIBLE = [
    {"dept": 2}, {"depth": "two"}, {"depth": 1.5}, {"depth": True}, {"depth": "1e400"}, {"depth": 1e400},
    {"steps": "inf"}, {"steps": 0}, {"epochs": 1, "steps": 1}, {"lr": "nan"}, {"lr": -1.0}, {"lr": math.inf},
    {"lr": True}, {"clip": 0.0}, {"softcap": 0.0}, {"qk_clip": 50.0, "qk_norm": True}, {"beta1": 1.0},
    {"gated": "maybe"}, {"optimiser": "adm"}, {"schedule": "cosin"}, {"precision": "bf61"}, {"num_latents": ()},
    {"num_latents": "10by20"}, {"rho": 1.5}, {"data": ""}, {"frozen": "qk+mpl"}, {"lr_mlp": -1.0}, {"heads": 3},
    {"positions": "learned", "window": 2000}, {"data": "trees"}, {"data": "trees", "readout": "class", "epochs": 2},
    {"readout": "class"}, {"seed": -1}, {"readout": "masked_word"}, {"mask_share": 0.0},
    {"data": "trees", "readout": "class", "shuffle_seed": 1}, {"mask_share": 1.0}, {"depth": 2**31}, {"width": 2**31},
    {"hidden": 2**63 - 1}, {"steps": 2**31}, {"steps": 2**63 - 1}, {"measure_every": 2**31, "measure_spacing": "log"},
    {"batch": 2**31}, {"window": 2**31}, {"max_length": 2**31}, {"num_tokens": 2**31}, {"num_latents": (10, 2**31)},
    {"data": "trees", "readout": "class", "branching": 2**31},
    {"data": "trees", "readout": "class", "tree_depth": 2**31},
]  # fmt: skip


@pytest.mark.parametrize("values", IMPOSSIBLE, ids=str)
def test_impossible_settings_are_refused_in_one_line_that_names_one(values):
    with pytest.raises(ValueError) as refused:
        small().update(values)
    message = str(refused.value)
    assert "\n" not in message and "pydantic" not in message
    assert any(name.replace("_", " ") in message or str(value) in message for name, value in values.items())


@pytest.mark.parametrize("name", ["gpu", "cuda:first", "cuda:", ""])
def test_what_is_no_device_is_refused(name):
    for good in (None, "cpu", "cuda", "cuda:12"):
        check_device(good)
    with pytest.raises(ValueError, match="cuda:0"):
        check_device(name)


spacings = st.sampled_from(["linear", "log", "early"])


@given(st.integers(1, 3000), st.integers(1, 300), spacings)
def test_measurements_ascend_from_the_start_to_the_end(steps, every, spacing):
    due = TrainingConfig(steps=steps, measure_every=every, measure_spacing=spacing).due_steps(steps)
    assert due[0] == 0 and due[-1] == steps and all(one < other for one, other in pairwise(due))


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 300), spacings)
def test_a_longer_run_has_measured_where_the_shorter_one_did(steps, more, every, spacing):
    config = TrainingConfig(steps=steps, measure_every=every, measure_spacing=spacing)
    shorter, longer = config.due_steps(steps), config.due_steps(steps + more)
    assert [step for step in longer if step < steps] == list(shorter[:-1])


@pytest.mark.parametrize(("epochs_of", "spacing"), [(2**31, "linear"), (2**31, "early"), (10**300, "early")])
def test_epochs_that_ask_for_too_many_measurements_are_refused_unlisted(epochs_of, spacing):
    config = TrainingConfig(epochs=10**6, measure_spacing=spacing)
    with pytest.raises(ValueError, match=r"at most 1000000 times.*Change `measure_every`"):
        config.due_steps(epochs_of)
    assert len(TrainingConfig(steps=10**6, measure_every=1).due_steps(10**6)) == 10**6 + 1


def test_spacings_are_even_on_their_scale():
    log = TrainingConfig(steps=10**6, measure_every=10, measure_spacing="log").due_steps(10**6)
    ratios = [later / earlier for earlier, later in pairwise(log) if earlier >= 100]
    assert ratios == pytest.approx([10**0.1] * len(ratios), rel=0.01)
    early = TrainingConfig(steps=58_560, measure_every=1000, measure_spacing="early").due_steps(58_560)
    gaps = [later - earlier for earlier, later in pairwise(early)]
    assert max(gaps) <= 1000 and set(gaps[-20:-1]) == {1000} and gaps[:3] == [1, 1, 1]
