"""Architectures: arms that the engine knows, rates that are chosen, and claims that hold and fail on made tables."""

import numpy as np
import pandas as pd
import pytest
from paper.cases import outcomes, with_config

from joma.claims import Outcome
from joma.engine.training import runs_of
from joma.paper.architectures import (
    AFTER,
    ARMS,
    CONTROLS,
    EXPERIMENTS,
    JUDGED,
    QUICK,
    SPREAD,
    SPREAD_START,
    UNIGRAM,
    WITH,
    WITHOUT,
    ArchitecturesConfig,
    best_rates,
    rank_correlations,
    trained,
)
from joma.paper.experiment import Measured
from joma.paper.language_models import SETTING
from joma.store import Store

FULL = ArchitecturesConfig()
RISE, RESIDUAL, UNIFORMITY = (claim.id for claim in EXPERIMENTS[0].claims)


def test_arms_are_different_runs_and_ten_of_them_are_judged():
    runs = {arm: runs_of({"steps": 10, "seed": 1, **own}, "figure6")[0].config for arm, own in ARMS.items()}
    assert len({run.hash for run in runs.values()}) == len(ARMS) == 25
    assert len(set(JUDGED)) == 10 and set(JUDGED) <= set(ARMS)
    assert {arm for arm in JUDGED if not runs[arm].model.residual_attention} == set(WITHOUT)
    for arm, base in WITH.items():
        assert runs[arm].model.norm_place == runs[base].model.norm_place


def made(rise: dict[str, float], *, slope: float = 1.0, loss: float = 5.0, noise: float = 0.01) -> Measured:
    """Runs of fresh seeds: 0.3 nats of rise where none is given, uniformity in proportion to an arm's own number."""
    rng = np.random.default_rng(0)
    rows = []
    for depth in FULL.depths:
        for at, arm in enumerate((*ARMS, *CONTROLS)):
            usual = 0.0 if arm in CONTROLS or arm in WITHOUT else 0.3 + 0.01 * at
            for seed in FULL.seeds:
                own = rise.get(arm, usual) + noise * rng.standard_normal()
                spread = {SPREAD: slope * own + noise * rng.standard_normal(), SPREAD_START: rng.random()}
                about = dict(zip(SETTING, ("text", arm, depth, 1e-4, seed), strict=True))
                rows.append(about | spread | {"rise": own, "end_loss": loss, UNIGRAM: 6.9})
    table = pd.DataFrame(rows)
    layers = [table.assign(metric="entropy", layer=layer, rise=table["rise"] - layer) for layer in (0, 1)]
    ends, runs = table[[*SETTING, SPREAD, SPREAD_START, UNIGRAM]], table[[*SETTING, "end_loss"]]
    return with_config(Measured(effects=pd.concat(layers), ends=ends, runs=runs), FULL)


@pytest.mark.parametrize(
    ("rise", "expected"),
    [
        ({}, [Outcome.HOLDS, Outcome.HOLDS]),
        ({AFTER: 0.0}, [Outcome.REFUTED, Outcome.MATCHES_CONTROL]),  # the control of an arm without the residual
        ({next(iter(WITHOUT)): 0.3}, [Outcome.HOLDS, Outcome.REFUTED]),
        (dict.fromkeys(CONTROLS, 0.5), [Outcome.MATCHES_CONTROL, Outcome.HOLDS]),
    ],
)
def test_one_arm_is_enough_to_refute(rise, expected):
    found = outcomes(EXPERIMENTS[0].claims, made(rise))
    assert [found[RISE], found[RESIDUAL]] == expected


@pytest.mark.parametrize(("slope", "expected"), [(1.0, Outcome.HOLDS), (-1.0, Outcome.REFUTED)])
def test_the_correlation_over_arms_follows_the_uniformity(slope, expected):
    assert outcomes(EXPERIMENTS[0].claims, made({}, slope=slope))[UNIFORMITY] is expected


def test_arms_whose_loss_ends_too_high_do_not_count():
    t = made({}, loss=6.0)
    assert not trained(t)["counts"].any()
    assert set(outcomes(EXPERIMENTS[0].claims, t).values()) == {Outcome.REPORTED, Outcome.NOT_RUN}


def test_rank_correlations_are_those_of_pandas_and_near_zero_on_noise():
    values = np.random.default_rng(1).standard_normal((400, 3))
    expected = pd.DataFrame(values).corr(method="spearman").to_numpy()[0, 1:]
    np.testing.assert_allclose(rank_correlations(values), expected, rtol=1e-12)
    assert np.abs(expected).max() < 4 / np.sqrt(len(values))
    monotonic = np.stack([values[:, 0], np.exp(values[:, 0]), -values[:, 0]], axis=1)
    np.testing.assert_allclose(rank_correlations(monotonic), [1, -1], rtol=1e-12)


def test_the_best_rate_has_the_lowest_mean_loss_and_no_failed_run():
    rows = [("a", 1, lr, loss, "finished") for lr, loss in ((1e-4, 5.0), (1e-4, 6.0), (1e-3, 5.4))]
    rows += [("a", 1, 1e-2, 4.0, "finished"), ("a", 1, 1e-2, 4.0, "failed")]
    runs = pd.DataFrame(rows, columns=["condition", "depth", "lr", "end_loss", "status"])
    assert best_rates(runs) == {("a", 1): 1e-3}


@pytest.mark.slow  # rates are chosen by training every arm at each of them
def test_the_quick_preset_chooses_rates_and_gives_the_claims(tmp_path):
    t = with_config(EXPERIMENTS[0].compute(QUICK, Store(tmp_path)), QUICK)
    rates = best_rates(t.runs[t.runs["seed"].isin(QUICK.choosing_seeds)])
    table = trained(t)
    assert all(rates.get((arm, 1), lr) == lr for arm, lr in zip(table["condition"], table["lr"], strict=True))
    assert set(table["condition"]) == {*QUICK.arms, *CONTROLS}
    assert table[[SPREAD, SPREAD_START]].gt(0).all(axis=None) and table[[SPREAD, SPREAD_START]].le(1).all(axis=None)
    assert set(outcomes(EXPERIMENTS[0].claims, t)) == {RISE, RESIDUAL, UNIFORMITY}
    assert len(EXPERIMENTS[0].draw(t)) == 2
