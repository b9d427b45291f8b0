"""Which height is learned first: correlations on made curves, claims that hold and fail, and a tiny training."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from paper import cases

from joma.claims import Outcome
from joma.paper.experiment import Measured
from joma.paper.real_hierarchies import (
    BLOCK,
    CONTROLS,
    EXPERIMENTS,
    LEAST_GAIN,
    MEASURES,
    NEURON,
    OTHER,
    QUICK,
    SHUFFLED,
    TIME,
    UNTRAINED,
    RealHierarchiesConfig,
    charts,
    compute,
    correlations,
    learned,
    needs,
    spearman,
)
from joma.store import Store

CLAIMS, FULL = EXPERIMENTS[0].claims, RealHierarchiesConfig()
STEPS = np.arange(0.0, 1001.0, 50.0)


def curves(times, blocks, gain=0.3, num_blocks=5):
    """Scores that rise by `gain` in one block for each height, half of it at the given step; chance elsewhere."""
    scores = np.full((len(STEPS), num_blocks, len(times)), 0.5)
    for height, (time, block) in enumerate(zip(times, blocks, strict=True)):
        scores[:, block, height] += gain * np.clip(STEPS / (2 * time), 0, 1)
    return scores


def test_block_and_step_of_half_gain_are_those_of_the_curves():
    times, blocks = [50, 100, 200, 300, 410], [0, 1, 1, 3, 4]
    found = learned(curves(times, blocks), STEPS)
    assert found[BLOCK].tolist() == blocks and found[TIME].to_numpy() == pytest.approx(np.array(times))
    assert found["gain"].to_numpy() == pytest.approx(0.3) and (found[UNTRAINED] == 0).all()
    flat = learned(curves(times, blocks, gain=LEAST_GAIN / 2), STEPS)
    assert flat[TIME].isna().all()


def test_correlation_counts_ranks_and_needs_three_heights():
    assert spearman(np.array([1.0, 5.0, 6.0, 90.0])) == 1 and spearman(np.array([9.0, np.nan, 8.0, 1.0])) == -1
    assert spearman(np.array([2.0, 2.0, 2.0])) == 0 and np.isnan(spearman(np.array([1.0, 2.0, np.nan])))
    assert spearman(np.array([0.0, 0.0, 1.0])) == pytest.approx(np.sqrt(3) / 2)


def test_controls_have_their_own_correlations_and_none_counts_as_0():
    own, reverse = curves([50, 100, 200, 300, 400], range(5)), curves([400, 300, 200, 100, 50], range(4, -1, -1))
    flat = np.full_like(own, 0.5)
    labellings = np.stack([own, flat, reverse, own, own], axis=-1)
    time, block = correlations(labellings, STEPS)
    assert (time["what"], block["what"]) == (TIME, BLOCK)
    assert time["value"] == block["value"] == 1
    assert time[SHUFFLED] == block[SHUFFLED] == -0.5 and time[OTHER] == block[OTHER] == 1
    assert time[UNTRAINED] == block[UNTRAINED] == 0
    start = own + 0.1 * (np.arange(5)[:, None] == np.arange(5))  # each height is best in its block from the start
    assert list(correlations(np.stack([start, flat, flat], axis=-1), STEPS))[1][UNTRAINED] == 1


def test_noise_has_no_order():
    """Scores of labels that nobody learns: correlations of many networks with chance alone are around 0."""
    random = np.random.default_rng(0)
    noise = 0.5 + 0.1 * random.standard_normal((len(STEPS), 5, 5, 401))
    for found in correlations(noise, STEPS):
        assert abs(found[SHUFFLED]) < 0.15 and abs(found[OTHER]) < 0.15
    for found in correlations(0.5 + 0.1 * (noise - 0.5), STEPS):  # nothing is learned
        assert np.isnan(found["value"]) and found[SHUFFLED] == found[OTHER] == 0


def made(time=(0.9, 0.0), block=(0.9, 0.0), config=FULL, **changed):
    """Tables of runs whose correlations are the given ones, that of the tree and that of all controls."""
    random, orders, heights, steps = np.random.default_rng(1), [], [], []
    for data in config.data:
        for seed in config.seeds:
            for measure in MEASURES:
                about = {"data": data, "seed": seed, "measure": measure}
                for what, (value, control) in ((TIME, time), (BLOCK, block)):
                    noise = 0.02 * random.standard_normal(4)
                    row = dict(zip(("value", *CONTROLS), np.array([value, *[control] * 3]) + noise, strict=True))
                    orders.append(about | {"what": what} | row)
                for height in range(1, 6):
                    low = {BLOCK: height - 1.0, UNTRAINED: 0.0, "gain": 0.2, TIME: 100.0 * height}
                    heights.append(about | {"height": height} | low)
                    steps += [about | {"height": height, "layer": 0, "step": step, "value": 0.5} for step in (0, 100)]
    tables = {name: pd.DataFrame(rows) for name, rows in (("orders", orders), ("heights", heights), ("curves", steps))}
    return cases.with_config(Measured(**tables | changed), config)


@pytest.mark.parametrize(
    ("time", "block", "outcomes"),
    [
        ((0.9, 0.0), (0.9, 0.1), (Outcome.HOLDS, Outcome.HOLDS)),
        ((0.9, 0.8), (0.1, 0.0), (Outcome.REFUTED, Outcome.REFUTED)),
        ((-0.9, 0.0), (0.2, -0.5), (Outcome.REFUTED, Outcome.REFUTED)),  # a control below 0 is no help
        ((0.3, 0.0), (0.9, 0.3), (Outcome.UNDECIDED, Outcome.HOLDS)),
    ],
)
def test_claims_follow_the_correlations_beyond_the_strongest_control(time, block, outcomes):
    assert tuple(cases.outcomes(CLAIMS, made(time, block)).values()) == outcomes


def test_the_strongest_control_is_the_one_that_counts():
    orders = made().orders
    for control in CONTROLS:
        [time, _] = cases.outcomes(CLAIMS, made(orders=orders.assign(**{control: orders["value"]}))).values()
        assert time is Outcome.REFUTED


def test_a_run_that_learned_nothing_is_left_out():
    orders = made().orders
    is_first = (orders["seed"] == FULL.seeds[0]) & (orders["what"] == TIME)
    tables = made(orders=orders.assign(value=orders["value"].mask(is_first)))
    answer = cases.answers(CLAIMS, tables)["hierarchies-time"]
    assert answer.outcome is Outcome.HOLDS and answer.numbers[0].n == len(FULL.seeds) - 1
    none = made(orders=orders.assign(value=np.nan))
    assert set(cases.outcomes(CLAIMS, none).values()) == {Outcome.UNDECIDED}


def test_one_experiment_needs_a_gpu_and_one_does_not():
    large, small = (EXPERIMENTS[0].presets[name] for name in ("full", "small"))
    assert needs(large, "cpu") and not needs(large, "cuda") and not needs(small, "cpu") and not needs(QUICK, "cpu")
    assert len(list(charts(made()))) == 2


def test_a_tiny_training_is_asked_at_every_checkpoint(tmp_path):
    settings = {**QUICK.settings, "width": 8, "hidden": 8, "depth": 2, "steps": 40, "lr": 1e-2}
    config = replace(QUICK, data=("json",), settings=settings, checkpoint_every=20, num_windows=60)
    assert not compute(config, Store(tmp_path / "other", minutes=1e-9))
    tables = compute(config, Store(tmp_path))
    assert set(tables.curves["step"]) == {0, 20, 40} and set(tables.curves["height"]) == {1, 2, 3, 4, 5}
    assert set(tables.curves["layer"]) == {0, 1} and set(tables.curves["measure"]) == set(MEASURES)
    assert len(tables.curves) == 2 * 2 * 3 * 2 * 5 and len(tables.orders) == 2 * 2 * 2 and len(tables.heights) == 20
    assert tables.curves[["value", SHUFFLED, OTHER]].stack().between(0.2, 1).all()
    first = tables.curves[(tables.curves["height"] == 1) & (tables.curves["measure"] == NEURON)]
    assert (first[OTHER] - 0.5).abs().mean() < 0.1
    assert set(cases.outcomes(CLAIMS, cases.with_config(tables, config)).values()) == {Outcome.UNDECIDED}
    assert len(list(charts(tables))) == 2
    again = compute(config, Store(tmp_path / "again"))
    pd.testing.assert_frame_equal(again.curves, tables.curves)
