"""Larger models: their sizes, the control that the config names, and the claim on made tables."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from paper.cases import outcomes, with_config

from joma.claims import Outcome
from joma.engine.training import runs_of
from joma.models.decoder import Decoder
from joma.paper.experiment import Measured
from joma.paper.language_models import SETTING
from joma.paper.scale import EXPERIMENTS, GPT, POSITIONS, QUICK, SIZES, ScaleConfig, layers, named, size_task
from joma.store import Store

FULL = ScaleConfig()
[CLAIM] = (claim.id for claim in EXPERIMENTS[0].claims)


@pytest.mark.parametrize(("size", "positions"), list(product(SIZES, POSITIONS)))
def test_sizes_have_their_parameters(size, positions):
    [run] = runs_of(GPT | SIZES[size] | POSITIONS[positions] | {"lr": 6e-4, "seed": 1, "steps": 10}, "figure6")
    model = replace(run.config.model, vocabulary=10_000)
    number = sum(int(np.prod(shape)) for shape in Decoder(model).shapes.values())
    assert number == pytest.approx(float(size.removesuffix("M")) * 1e6, rel=0.05)


def test_the_control_is_the_same_run_without_what_the_config_names():
    for removed in ({"activation": "linear"}, {"positions": "centred"}):
        config = replace(QUICK, removed=removed)
        own, other = (size_task(config, "cpu", "tiny", "learned", is_control=each).key for each in (False, True))
        assert {name for name in own["settings"] if own["settings"][name] != other["settings"][name]} == set(removed)
        assert not set(own["runs"]) & set(other["runs"])


def made(rising: float, control: float) -> Measured:
    """Runs of two sizes in which this share of the layers rises, a layer more or less by chance."""
    rng, rows = np.random.default_rng(0), []
    for size, positions, is_control in product(SIZES, POSITIONS, (False, True)):
        depth = SIZES[size]["depth"]
        for seed in FULL.seeds:
            number = round((control if is_control else rising) * depth)
            rise = np.where(np.arange(depth) < number, 0.3, 0.0) + 0.01 * rng.standard_normal(depth)
            about = ("text", named(size, positions, is_control=is_control), depth, 6e-4, seed)
            own = dict(zip(SETTING, about, strict=True)) | {"metric": "entropy"}
            rows += [own | {"layer": layer, "rise": value} for layer, value in enumerate(rise)]
    table = pd.DataFrame(rows)
    ends = table.drop_duplicates(SETTING)[SETTING].assign(text_hash="0", parameters=1)
    return with_config(Measured(effects=table, ends=ends), FULL)


@pytest.mark.parametrize(
    ("rising", "control", "expected"),
    [
        (1.0, 0.0, Outcome.HOLDS),
        (0.0, 0.0, Outcome.REFUTED),
        (1 / 3, 0.0, Outcome.REFUTED),
        (1.0, 1.0, Outcome.MATCHES_CONTROL),
    ],
)
def test_the_claim_follows_the_share_of_layers(rising, control, expected):
    assert outcomes(EXPERIMENTS[0].claims, made(rising, control))[CLAIM] is expected


def test_runs_that_did_not_reach_their_end_are_left_out():
    t = made(1.0, 0.0)
    t["ends"] = t.ends.iloc[1:]
    assert len(layers(t)) == len(t.effects) - SIZES["10M"]["depth"]


def test_the_quick_preset_gives_the_claim_and_records_text_and_size(tmp_path):
    t = with_config(EXPERIMENTS[0].compute(QUICK, Store(tmp_path)), QUICK)
    assert t.ends["text_hash"].nunique() == 1 and t.ends["text_hash"].str.len().gt(0).all()
    assert set(t.ends["condition"]) == {
        named("tiny", positions, is_control=each) for positions in POSITIONS for each in (False, True)
    }
    assert layers(t).groupby(["condition", "seed"])["layer"].nunique().eq(2).all()
    assert set(outcomes(EXPERIMENTS[0].claims, t)) == {CLAIM}
    assert len(EXPERIMENTS[0].draw(t)) == 2
