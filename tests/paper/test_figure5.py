"""Figure 5: claims on made curves, orders that can be reversed, and a tiny training through the store."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from paper import cases

from joma.claims import Outcome
from joma.paper import figure5
from joma.paper.experiment import Measured
from joma.paper.figure5 import ATTENTION, CLAIMS, DEEP, EXPERIMENTS, NCORR, SHALLOW, charts, compute, part_gone
from joma.store import Store

QUICK, FULL = (EXPERIMENTS[0].presets[name] for name in ("quick", "full"))
THEORY = figure5.theory(QUICK)
ON_TRAINING = ("figure5-attention", "figure5-levels", "figure5-blocks")


def bottom_up(what, layer, height, step):
    """Level h is learned at step 2h, most of all in block h − 1; attention leads, then reaches out."""
    if what == NCORR:
        return 0.5 + (0.2 + 0.1 * (layer == height - 1)) * (step >= 2 * height)
    return np.exp(0.5 * np.sin(np.pi * step / 12)) if height == 1 else 1.0


def top_down(what, layer, height, step):
    if what == NCORR:
        return 0.5 + (0.2 + 0.1 * (layer == 3 - height)) * (step >= 8 - 2 * height)
    return 1.0 if height == 1 else 1 + 0.05 * step


def still(what, layer, height, step):
    return 0.6


def made(value, control=still, trees=(DEEP, SHALLOW), config=FULL, **changed):
    """Return tables of four seeds over steps 0 to 10."""
    rows = []
    for tree in trees:
        top = 4 if tree == DEEP else 2
        for what, heights in ((NCORR, range(1, top)), (ATTENTION, range(1, top + 1))):
            for seed, step, layer, height in np.ndindex(4, 11, 3, len(heights)):
                own = what, layer, heights[height], step
                row = {"tree": tree, "seed": seed, "step": step, "what": what, "layer": layer}
                noise = 0.002 * seed * step / 10
                rows.append(row | {"height": own[2], "value": value(*own) + noise, "control": control(*own)})
    runs = pd.DataFrame(rows)
    found = {"levels": figure5.learned_levels(runs), "leads": figure5.attention_leads(runs)}
    return cases.with_config(Measured(**THEORY | {"curves": figure5.averaged(runs)} | found | changed), config)


def outcomes(tables):
    return cases.outcomes(CLAIMS, tables)


def test_claims_on_training_hold_bottom_up_and_fail_top_down():
    assert {outcomes(made(bottom_up))[claim] for claim in ON_TRAINING} == {Outcome.HOLDS}
    assert {outcomes(made(top_down))[claim] for claim in ON_TRAINING} == {Outcome.REFUTED}
    assert {outcomes(made(top_down, config=QUICK))[claim] for claim in ON_TRAINING} == {Outcome.REPORTED}


def test_what_the_controls_do_too_does_not_count():
    found = outcomes(made(bottom_up, control=bottom_up))
    assert found["figure5-attention"] is Outcome.REFUTED and found["figure5-levels"] is Outcome.MATCHES_CONTROL
    levels = made(bottom_up).levels
    untrained = outcomes(made(bottom_up, levels=levels.assign(start=levels["gain"])))
    assert untrained["figure5-blocks"] is Outcome.MATCHES_CONTROL


def test_where_nothing_is_learned_there_is_no_order():
    assert outcomes(made(still))["figure5-levels"] is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("claim", "table", "change", "outcome"),
    [
        ("theorem5", "cooccurrence", {}, Outcome.REFUTED),
        ("theorem5", "cooccurrence", {"printed": lambda own: own["formula"]}, Outcome.HOLDS),
        ("theorem5", "cooccurrence", {"formula": lambda own: own["formula"] * 1.01}, Outcome.FAULTY),
        ("limit", "limit", {}, Outcome.MIXED),
        ("limit", "limit", {"limit": lambda own: own["limit"] - 0.2}, Outcome.REFUTED),
        ("order", "flow_times", {}, Outcome.HOLDS),
        ("order", "flow_times", {"height": lambda own: -own["height"]}, Outcome.REFUTED),
        ("order", "flow_times", {"rho": lambda own: own["rho"].replace({0.8: 0.0, 0.0: 0.8})}, Outcome.REFUTED),
    ],
)
def test_claims_on_the_theory_can_hold_and_fail(claim, table, change, outcome):
    assert outcomes(made(still, **{table: THEORY[table].assign(**change)}))[f"figure5-{claim}"] is outcome


def test_the_part_of_a_lead_that_is_gone_is_one_of_means():
    largest, end = pd.Series([0.3, 0.3, 0.3, 0.01]), pd.Series([0.2, 0.2, 0.2, -0.04])
    gone, error = part_gone(largest, end)
    assert gone == pytest.approx(1 - 0.56 / 0.91) and 0 < error < 0.1
    assert part_gone(largest, largest / 2) == pytest.approx((0.5, 0.0))
    assert np.isnan(part_gone(0 * largest, end)[0]) and part_gone(largest[:1], end[:1])[1] is None


def test_one_tree_alone_is_judged_and_drawn():
    assert outcomes(made(bottom_up))["figure5-depth"] is Outcome.REPORTED  # from both
    found = outcomes(made(bottom_up, trees=(DEEP,)))
    assert found["figure5-blocks"] is Outcome.HOLDS and found["figure5-depth"] is Outcome.NOT_RUN
    assert outcomes(made(bottom_up, trees=(SHALLOW,)))["figure5-blocks"] is Outcome.NOT_RUN
    assert len(list(charts(made(bottom_up, trees=(SHALLOW,))))) == 4


def test_a_tiny_training_measures_every_checkpoint(tmp_path):
    small = {"width": 8, "hidden": 8, "batch": 8, "num_samples": 64, "num_shuffles": 2}
    config = replace(QUICK, steps=4, checkpoint_every=2, **small)
    nothing = compute(config, Store(tmp_path / "other", minutes=1e-9))
    assert "curves" not in nothing and len(list(charts(nothing))) == 2
    tables = compute(config, Store(tmp_path))
    assert set(tables.curves["step"]) == {0, 2, 4} and set(tables.curves["height"]) == {1, 2, 3, 4}
    assert tables.curves.loc[tables.curves["what"] == ATTENTION, "value"].between(0.2, 5).all()  # near uniform
    assert len(tables.leads) == 2 * 3 * len(config.seeds) and len(list(charts(tables))) == 4
