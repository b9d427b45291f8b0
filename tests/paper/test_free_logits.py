"""Free and projected logits: numbers on pairs of tokens against naive ones, and claims on made tables."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from paper.cases import outcomes, with_config

from joma.claims import Outcome
from joma.engine.grid import runs_of
from joma.models.decoder import Decoder
from joma.paper.experiment import Measured
from joma.paper.free_logits import EXPERIMENTS, PROJECTED, QUICK, REPORTED, FreeLogitsConfig, arm, speeds, steps_to
from joma.paper.latent_neurons import of_one_run
from joma.paper.token_pairs import advantage, agreement, pair_counts, permuted, projected_logits, unseen_share
from joma.store import Store

FULL = FreeLogitsConfig()
AGREE, SPEED, UNSEEN = (claim.id for claim in EXPERIMENTS[0].claims)


def test_pairs_are_counted_as_naive_loops_count_them():
    windows = torch.randint(5, (7, 6), generator=torch.Generator().manual_seed(1))
    counts, share = torch.zeros(5, 5, dtype=torch.long), torch.zeros(7, 6, dtype=torch.float64)
    seen = torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) < 0.5
    for at, query in product(range(7), range(6)):
        for key in range(query + 1):
            pair = windows[at, query], windows[at, key]
            counts[pair] += 1
            share[at, query] += (not seen[pair]) / (query + 1)
    assert torch.equal(pair_counts(windows, 5), counts)
    torch.testing.assert_close(unseen_share(windows, seen), share)


def test_projected_logits_are_those_of_the_decoder_and_their_part_is_what_neither_token_says_alone():
    grid = {"steps": 1, "seed": 1, "depth": 1, "width": 8, "hidden": 8, "positions": "none", "precision": "float64"}
    config = runs_of(grid, "figure6")[0].config.update({"attention_scale": 0.7})
    config = replace(config, model=replace(config.model, vocabulary=30))
    model = Decoder(config.model)
    start = model.initial(3)
    drawn = torch.Generator().manual_seed(4)
    own = {name: torch.randn(each.shape, generator=drawn, dtype=torch.float64) for name, each in start.items()}
    parameters, tokens = of_one_run(own, "cpu"), torch.arange(12)[None, None]
    readings = []
    model.hidden(parameters, model.embed(parameters, tokens), tokens, tap=readings.append)
    q, k = readings[0].q[0, 0], readings[0].k[0, 0]
    frequency = torch.rand(30, dtype=torch.float64, generator=drawn)
    frequency /= frequency.sum()
    part, whole = projected_logits(config, parameters, frequency)
    torch.testing.assert_close(whole[:12, :12], q @ k.T * readings[0].scale)
    rest = (whole - part)[:12, :12]  # what a query says alone, and a key alone
    torch.testing.assert_close(rest, rest[:, :1] + rest[:1] - rest[0, 0])
    for each in (frequency @ part, part @ frequency):
        torch.testing.assert_close(each, torch.zeros_like(each), atol=1e-8, rtol=0)


def test_agreement_ignores_the_mean_of_a_query_and_pairs_that_are_not_seen():
    rng = torch.Generator().manual_seed(5)
    one, noise, offset = (torch.randn(shape, generator=rng).double() for shape in ((60, 60), (60, 60), (60, 1)))
    seen = torch.rand(60, 60, generator=rng) < 0.6
    assert agreement(one, torch.where(seen, 3 * one, noise) + offset, seen) == pytest.approx(1)
    assert agreement(one, -one + offset, seen) == pytest.approx(-1)
    assert abs(agreement(one, noise, seen)) < 4 / seen.sum() ** 0.5


def test_orders_stay_in_their_decile_and_leave_nothing_out():
    rng = np.random.default_rng(6)
    decile = rng.integers(4, size=200)
    order = permuted(decile, rng)
    assert (decile[order] == decile).all()
    assert sorted(order) == list(range(200)) != list(order)


def test_the_advantage_is_the_slope_of_the_gain_and_vanishes_under_permutation():
    rng = np.random.default_rng(7)
    unseen = rng.integers(2, size=20_000).astype(float)
    gain = 0.3 * unseen + 5 + rng.standard_normal(20_000)
    assert advantage(gain, unseen) == pytest.approx(0.3, abs=0.06)  # four standard errors
    assert abs(advantage(gain, unseen[permuted(np.zeros(20_000, dtype=int), rng)])) < 0.06


def curve(rate: float, lowest: float, seed: int) -> pd.Series:
    """A loss that falls exponentially, a little other for every seed."""
    steps = np.arange(0, 20_001, 100)
    return pd.Series(lowest + 3 * np.exp(-rate * (1 + 0.01 * (seed % 10)) * steps), steps)


def made(*, agree: float = 0.9, speed: float = 3.0, lowest: float = 4.0, gain: float = 0.1) -> Measured:
    """Runs whose projected logits are so many times as fast, and gain so much where pairs were never seen."""
    rng, rows, curves = np.random.default_rng(8), [], []
    for seed in FULL.seeds:
        for factor in (0, *FULL.factors):
            own = curve(1e-3 * (1 if factor else speed), 4.0 if factor else lowest, seed)
            about = {"condition": arm(factor), "seed": seed, "metric": "loss"}
            curves.append(pd.DataFrame({"step": own.index, "value": own}).assign(**about))
        numbers = {"agreement": agree, "permuted": 0.1, "advantage": gain, "advantage_permuted": 0.0, "gain": 0.2}
        numbers |= dict.fromkeys(REPORTED, 0.5)
        noisy = {name: value + 0.01 * rng.standard_normal() for name, value in numbers.items()}
        rows += [{"factor": float(factor), "seed": seed} | noisy for factor in FULL.factors]
    return with_config(Measured(seeds=pd.DataFrame(rows), curves=pd.concat(curves)), FULL)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, [Outcome.HOLDS, Outcome.HOLDS, Outcome.HOLDS]),
        ({"agree": 0.3}, [Outcome.REFUTED, Outcome.HOLDS, Outcome.HOLDS]),
        ({"speed": 1.0}, [Outcome.HOLDS, Outcome.REFUTED, Outcome.HOLDS]),
        ({"lowest": 4.1}, [Outcome.HOLDS, Outcome.REFUTED, Outcome.HOLDS]),  # fast, but never as low
        ({"gain": -0.1}, [Outcome.HOLDS, Outcome.HOLDS, Outcome.REFUTED]),
    ],
)
def test_claims_follow_the_numbers(case, expected):
    found = outcomes(EXPERIMENTS[0].claims, made(**case))
    assert [found[id] for id in (AGREE, SPEED, UNSEEN)] == expected


def test_steps_are_counted_to_the_lowest_loss_of_free_logits():
    assert steps_to(curve(1e-3, 4.0, 0), 4.0 + 3 * np.exp(-1)) == 1000
    assert steps_to(curve(1e-3, 4.0, 0), 3.9) == 20_000
    found = speeds(made(speed=2.0), FULL.factors[0])
    assert found["projected"].to_numpy() == pytest.approx(0.5, rel=0.05)
    assert found["other"].to_numpy() == pytest.approx(1, rel=0.1)


def test_the_quick_preset_gives_the_claims_and_losses_by_position_are_those_of_the_runs(tmp_path):
    t = with_config(EXPERIMENTS[0].compute(QUICK, Store(tmp_path)), QUICK)
    losses = t.runs.pivot(index="seed", columns="condition", values="end_loss")
    for factor, own in t.seeds.groupby("factor"):
        gain = losses[arm(factor)] - losses[PROJECTED]
        np.testing.assert_allclose(own.set_index("seed")["gain"], gain.loc[own["seed"]], atol=1e-5)
    assert 0 < t.shares.loc[0, "often"] < 1 and 0 < t.shares.loc[0, "unseen"] < 1
    assert set(outcomes(EXPERIMENTS[0].claims, t)) == {AGREE, SPEED, UNSEEN}
    assert len(EXPERIMENTS[0].draw(t)) == 2
