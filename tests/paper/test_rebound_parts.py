"""Parts of the logits: exact in float64, known in limits, judged by their shares, and a tiny training."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from paper.cases import answers, outcomes, with_config

from joma.claims import Outcome
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig
from joma.paper.experiment import Measured, select
from joma.paper.rebound_parts import (
    DIP,
    END,
    EXPERIMENTS,
    FULL,
    LATER_STATES,
    LATER_WEIGHTS,
    QUICK,
    TERMS,
    at,
    compute,
    entropy_and_spread,
    split,
    taken_apart,
)
from joma.store import Store

CLAIMS = EXPERIMENTS[0].claims
QKV = "blocks.0.attention.qkv"
TOKENS = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))
UNIFORM = np.mean([math.log(n) for n in range(1, 7)])
TIGHT = {"rel": 1e-12, "abs": 1e-13}
"""Sums of some hundred products in float64."""


def config(**changes):
    settings = {"heads": 3, "positions": "sinusoidal", "attention_scale": 0.7, "embedding_scale": 2.5} | changes
    return DecoderConfig(vocabulary=11, width=12, hidden=8, norm_place="after", max_length=9, **settings)


def drawn(config, seed, **changes):
    """Return parameters of one run that are all random, biases too."""
    rng = torch.Generator().manual_seed(seed)
    shapes = Decoder(config).shapes
    own = {name: torch.randn(1, *of, generator=rng, dtype=torch.float64) for name, of in shapes.items()}
    return own | changes


def rows(config, own, end=None):
    return taken_apart(config, own, end or own, TOKENS).set_index("logits")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "centred", "constant"])
def test_the_terms_add_up_to_the_logits_of_the_model(positions):
    own = config(positions=positions)
    assert rows(own, drawn(own, 1))["error"].max() < 1e-13


def test_a_term_that_is_left_out_shows_as_an_error(monkeypatch):
    own = config()
    monkeypatch.setattr("joma.paper.rebound_parts.COMMON", ("mean token", "mean position"))  # keys without their bias
    assert rows(own, drawn(own, 1))["error"].max() > 1e-3


def test_each_term_is_what_its_name_says():
    own = config(heads=1)
    parameters = drawn(own, 2)
    angles = torch.arange(6.0, dtype=torch.float64)[:, None] / 10_000 ** (torch.arange(0, 12, 2).double() / 12)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).expand(4, 6, 12)
    x = {"token": 2.5 * parameters["embedding.weight"][0][TOKENS], "position": waves}
    rest = {name: each - each.mean(dim=(0, 1)) for name, each in x.items()}
    query, key, _ = parameters[f"{QKV}.weight"][0].chunk(3)
    kept, _ = split(own, parameters, parameters, TOKENS)
    for of, to in product(rest, rest):
        logits = 0.7 / math.sqrt(12) * torch.einsum("nid,njd->nij", rest[of] @ query.T, rest[to] @ key.T)
        torch.testing.assert_close(kept[of, to][:, 0].expand_as(logits), logits, rtol=1e-11, atol=1e-11)


def test_without_an_embedding_there_are_only_positions():
    own = config(positions="centred")
    parameters = drawn(own, 3)
    zeros = {name: torch.zeros_like(parameters[name]) for name in ("embedding.weight", f"{QKV}.bias")}
    found = rows(own, parameters | zeros)
    alone = "position × position"
    assert found.loc[alone, ["alone", "spread"]].tolist() == pytest.approx(
        found.loc[FULL, ["alone", "spread"]].tolist(), **TIGHT
    )
    assert found.loc[alone, "without"] == pytest.approx(UNIFORM, **TIGHT)
    others = found.drop(index=[FULL, LATER_WEIGHTS, LATER_STATES, alone, "uncentred position × position"])
    assert others["spread"].max() < 1e-13
    assert others["alone"].tolist() == pytest.approx([UNIFORM] * len(others), **TIGHT)


def test_what_all_keys_share_does_not_count():
    own = config()
    parameters = drawn(own, 4)
    moved = parameters[f"{QKV}.bias"].clone()
    moved[:, 12:24] += 5.0
    before, after = rows(own, parameters), rows(own, parameters | {f"{QKV}.bias": moved})
    columns = ["alone", "without", "spread"]
    np.testing.assert_allclose(after[columns], before[columns], rtol=1e-11, atol=1e-12)


def test_entropy_and_spread_are_those_of_each_row():
    logits = torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    entropies, spreads = [], []
    for row in logits.flatten(0, 1).unbind():
        for i in range(5):
            p = torch.softmax(row[i, : i + 1], dim=0)
            entropies.append(float(-(p * p.log()).sum()))
            spreads.append(float(row[i, : i + 1].std(correction=0)))
    assert entropy_and_spread(logits) == pytest.approx((np.mean(entropies), np.mean(spreads)), **TIGHT)


def test_a_checkpoint_transplanted_into_itself_stays_what_it_is():
    found = rows(config(), drawn(config(), 6))["alone"]
    assert found[LATER_WEIGHTS] == found[LATER_STATES] == found[FULL]


def test_a_transplant_moves_queries_and_keys_alone():
    own, end = drawn(config(), 7), drawn(config(), 8)
    found, other = rows(config(), own, end)["alone"], rows(config(), end, own)["alone"]
    assert found[LATER_WEIGHTS] == other[LATER_STATES] and found[LATER_STATES] == other[LATER_WEIGHTS]
    weights = {name: end[name] for name in (f"{QKV}.weight", f"{QKV}.bias")}
    assert rows(config(), own | weights)["alone"][FULL] == pytest.approx(found[LATER_WEIGHTS], **TIGHT)
    values = {name: own[name].clone() for name in weights}
    for value in values.values():
        value[:, 24:] += 1.0
    assert rows(config(), own, own | values)["alone"][LATER_WEIGHTS] == found[FULL]


def made(term, control, weights, *, error=1e-15, rise=0.5):
    """Return four runs of which a term, its control and the weights carry these shares of the rise, in both orders."""
    rng, logits = np.random.default_rng(0), []
    effects = [{"seed": seed, "metric": "entropy", "layer": 0, "dip_step": 480.0} for seed in range(4)]
    for seed in range(4):
        noise = 0.01 * rng.standard_normal(3)
        shares = dict.fromkeys(TERMS, 0.0) | {FULL: 1.0}
        shares |= {f"{kind}token × token": term + noise[0] for kind in ("", "uncentred ")}
        shares |= {f"{kind}position × token": control + noise[1] for kind in ("", "uncentred ")}
        for step, height in ((0, 1.0), (500, 0.0), (1000, 1.0)):
            own = {name: 1.5 + rise * share * height for name, share in shares.items()}
            own[LATER_WEIGHTS] = 1.5 + rise * (weights + noise[2] + height * (1 - weights - noise[2]))
            own[LATER_STATES] = 1.5 + rise * (1 - weights - noise[2] + height * (weights + noise[2]))
            about = {"seed": seed, "step": step, "spread": 1.0, "without": 1.5, "error": error}
            logits += [about | {"logits": name, "alone": value} for name, value in own.items()]
    return with_config(
        Measured(logits=pd.DataFrame(logits), effects=pd.DataFrame(effects)), EXPERIMENTS[0].presets["full"]
    )


@pytest.mark.parametrize(
    ("term", "control", "part", "weights", "by_weights", "by_states"),
    [
        (0.9, 0.1, Outcome.HOLDS, 0.9, Outcome.HOLDS, Outcome.REFUTED),
        (0.9, 0.9, Outcome.MATCHES_CONTROL, 0.1, Outcome.REFUTED, Outcome.HOLDS),
        (0.3, 0.1, Outcome.REFUTED, 0.5, Outcome.REFUTED, Outcome.REFUTED),
    ],
)
def test_claims_follow_the_shares(term, control, part, weights, by_weights, by_states):
    found = outcomes(CLAIMS, made(term, control, weights))
    assert found["rebound-token-token"] is part
    assert (found["rebound-weights"], found["rebound-states"]) == (by_weights, by_states)
    assert found["rebound-terms"] is Outcome.REPORTED


def test_the_smaller_share_of_the_two_orders_counts():
    t = made(0.9, 0.1, 0.9)
    late = (t.logits["logits"] == LATER_STATES) & (t.logits["step"] == 500)
    logits = t.logits.assign(alone=t.logits["alone"].mask(late, 1.75))  # with states first these carry half
    found = answers(CLAIMS, t.copy_with(logits=logits))
    assert found["rebound-weights"].main.value == pytest.approx(0.5)
    assert found["rebound-weights"].outcome is Outcome.REFUTED


def test_a_sum_that_is_off_decides_nothing():
    assert outcomes(CLAIMS, made(0.9, 0.1, 0.9, error=1e-6))["rebound-token-token"] is Outcome.FAULTY


def test_runs_that_hardly_rise_have_no_shares():
    found = answers(CLAIMS, made(0.9, 0.1, 0.9, rise=0.05))
    assert {found[each].outcome for each in ("rebound-token-token", "rebound-weights")} == {Outcome.UNDECIDED}


def test_charts_show_the_terms_and_the_transplants():
    found = {chart.id: chart for chart in EXPERIMENTS[0].draw(made(0.9, 0.1, 0.7))}
    assert found.keys() == {"rebound-terms", "rebound-transplants"}
    assert all(name in str(found["rebound-terms"].spec) for name in (FULL, "token × token", "mean position × token"))


def test_a_tiny_training_is_taken_apart_and_leaves_no_checkpoints(tmp_path):
    sizes = {"steps": 60, "width": 16, "vocabulary_cap": 200, "checkpoint_every": 10, "measure_every": 10}
    settings = replace(QUICK, settings={**QUICK.settings, **sizes}, least=-9.0)
    t = with_config(compute(settings, Store(tmp_path)), settings)
    assert not [*tmp_path.rglob("*.safetensors")]
    assert set(answers(CLAIMS, t)) == {claim.id for claim in CLAIMS}
    assert t.logits["error"].max() < 1e-13
    recorded = select(t.curves, metric="entropy").set_index(["seed", "step"])["value"]
    ours = select(t.logits, logits=FULL).set_index(["seed", "step"])["alone"]
    np.testing.assert_allclose(ours, recorded[ours.index], atol=1e-5)  # recorded in single precision
    dip, end = at(t, DIP)["alone"], at(t, END)["alone"]
    assert len(dip) == len(end) == 2
    assert (end[FULL] == end[LATER_WEIGHTS]).all() and (dip[FULL] != dip[LATER_WEIGHTS]).all()
