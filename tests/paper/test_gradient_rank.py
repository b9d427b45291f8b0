"""The rank of gradients and of changes: statistics of made curves, claims that hold and fail, and the quick preset."""

import numpy as np
import pandas as pd
import pytest
from paper.cases import outcomes, with_config

from joma.claims import Outcome
from joma.paper.experiment import Measured
from joma.paper.gradient_rank import (
    ADAM,
    ARMS,
    CHANGE,
    EXPERIMENTS,
    FIRST,
    QUICK,
    SHUFFLED,
    SMALL,
    SOURCES,
    compute,
    described,
    dip,
    of_runs,
    ratio_of_tenths,
)
from joma.store import Store

STEPS = np.unique(np.concatenate([[0], np.geomspace(1, 4000, 40).round(), np.arange(0, 4001, 200)]))
CLAIMS = EXPERIMENTS[0].claims


@pytest.mark.parametrize("steps", [STEPS, np.linspace(0, 4000, 400)], ids=["early", "linear"])
def test_a_fall_to_one_half_is_found_on_every_schedule(steps):
    halved = np.where(steps <= 0.3 * steps[-1], 6.0, 3.0)
    assert ratio_of_tenths(steps, halved) == pytest.approx(0.5)
    power = 0.5 ** (steps / steps[-1])  # the middles of the tenths are 0.9 of the training apart
    assert ratio_of_tenths(steps, power) == pytest.approx(0.5**0.9, rel=1e-3)


def valley(steps, drop, rise, low=2.0):
    """A curve that falls to its minimum at step 200 and rises after it, both as parts of the minimum."""
    u = np.log1p(steps)
    at, end = np.log1p(200), u[-1]
    fall = drop * np.clip((at - u) / (at - np.log1p(20)), 0, None) ** 2
    return low * (1 + fall + rise * np.clip((u - at) / (end - at), 0, None) ** 2)


def test_the_dip_of_a_change_is_measured_from_the_first_step_that_counts():
    found = dip(STEPS, valley(STEPS, drop=0.5, rise=0.4), first=20)
    assert found["dip_step"] == pytest.approx(200, rel=0.3)
    assert found["drop"] == pytest.approx(0.5, abs=0.06)
    assert found["rise"] == pytest.approx(0.39, abs=0.03)  # of the mean over the last tenth
    rising = dip(STEPS, 1 + STEPS / 4000, first=20)
    assert rising["drop"] == pytest.approx(0.0, abs=0.01)


def made(ratio, *, rest=1.0, drop=0.3, rise=0.4, shuffled=0.0):
    """Curves of five seeds: the gradient's rank goes from 6 to `ratio` of it, and the change has a valley."""
    rng, curves, runs = np.random.default_rng(0), [], []
    late = STEPS > STEPS[-1] / 2
    for arm in ARMS:
        for seed in SMALL.seeds:
            about = {"text": "t", "condition": arm, "depth": 1, "lr": SMALL.rate, "seed": seed}
            runs.append(about | {"status": "finished"})
            noise = np.exp(0.01 * rng.standard_normal())
            values = {
                (f"{source}_{end}", site): np.where(late, last * noise * start, start)
                for source in SOURCES
                for end, last in (("stable_rank", ratio), ("rest_rank", rest), ("energy", 1.0))
                for site, start in (("output", 6.0), ("blocks.0.mlp.lower", 3.0))
            }
            own = shuffled if arm == SHUFFLED else rise
            values[CHANGE, "blocks.0.mlp.lower"] = valley(STEPS, drop, own + 0.01 * rng.standard_normal())
            curves += [
                pd.DataFrame({**about, "metric": metric, "layer": 0, "site": site, "step": STEPS, "value": value})
                for (metric, site), value in values.items()
            ]
    t = Measured(curves=pd.concat(curves, ignore_index=True), runs=pd.DataFrame(runs))
    return with_config(described(t, FIRST / SMALL.rate), SMALL)


def test_one_number_a_run_is_the_geometric_mean_over_matrices():
    ratios = pd.DataFrame({"seed": [1, 1, 2, 2], "stable_rank": [0.25, 1.0, 2.0, 8.0]})
    assert of_runs(ratios, "stable_rank").to_dict() == pytest.approx({1: 0.5, 2: 4.0})
    found = made(0.5).ratios
    assert found["stable_rank"].between(0.48, 0.52).all() and len(found) == 3 * 5 * 2 * 2


@pytest.mark.parametrize(
    ("changes", "falls", "change"),
    [
        ({"ratio": 0.5}, Outcome.HOLDS, Outcome.HOLDS),
        ({"ratio": 0.5, "rest": 0.5, "shuffled": 0.4}, Outcome.MATCHES_CONTROL, Outcome.MATCHES_CONTROL),
        ({"ratio": 1.1, "drop": 0.0}, Outcome.REFUTED, Outcome.REFUTED),
        ({"ratio": 0.9, "rise": 0.03, "shuffled": -0.1}, Outcome.REFUTED, Outcome.REFUTED),
    ],
)
def test_claims_follow_the_curves_and_their_controls(changes, falls, change):
    assert outcomes(CLAIMS, made(**changes)) == {"gradient-rank-falls": falls, "gradient-rank-change": change}


def test_runs_that_diverged_are_left_out():
    t = made(0.5)
    t["runs"].loc[t.runs["seed"] == SMALL.seeds[0], "status"] = "failed"
    found = described(t, 20)
    assert set(found.ratios["seed"]) == set(found.dips["seed"]) == set(SMALL.seeds[1:])


@pytest.mark.slow  # it trains six models and measures their gradients
def test_the_quick_preset_gives_both_claims_and_charts(tmp_path):
    t = with_config(compute(QUICK, Store(tmp_path, device="cpu")), QUICK)
    sites = set(t.ratios["site"])
    assert {"embedding", "output", "blocks.0.attention.qkv:key", "blocks.0.mlp.lower"} <= sites
    assert (t.curves.loc[t.curves["metric"] == "gradient_stable_rank", "value"] >= 0.999).all()
    losses = t.runs[t.runs["condition"] == ADAM]
    assert (losses["end_loss"] < losses["first_loss"] - 1).all()
    assert set(outcomes(CLAIMS, t)) == {"gradient-rank-falls", "gradient-rank-change"}
    assert len(EXPERIMENTS[0].draw(t)) == 3
