"""Figures 2 and 3: a short training, and claims that hold and fail with its tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from joma.claims import Outcome, judge
from joma.paper.figures2_3 import CLAIMS, CONSTANT, ESTIMATE, OTHER, Figures23Config, charts, compute
from joma.paper.reproduce import plain, settings
from joma.store.work import Workspace

SMALL = Figures23Config(seeds=(0, 1, 2), num_steps=200, num_reported=20)


@pytest.fixture(scope="module")
def tables():
    found = compute(SMALL, Workspace(Path(), "cpu", lambda share, doing: None))
    found.config = settings(plain(SMALL))
    return found


def outcomes(tables):
    return {answer.claim: answer for answer in judge(CLAIMS, tables, tested_by="figures2-3")}


def with_estimate(tables, name, column, value):
    agreement = tables.agreement.copy()
    rows = agreement["estimate"] == name
    agreement.loc[rows, column] = value + 1e-3 * agreement.loc[rows, "seed"]
    return tables.copy_with(agreement=agreement)


def test_every_seed_counts_once(tables):
    numbers = outcomes(tables)["fig2-correlation"].numbers
    assert {number.n for number in numbers if number.is_judged and not number.sanity} == {len(SMALL.seeds)}


def test_a_run_that_another_run_predicts_as_well_matches_its_control(tables):
    alike = with_estimate(with_estimate(tables, ESTIMATE, "correlation", 0.95), OTHER, "correlation", 0.95)
    assert Outcome.HOLDS not in outcomes(alike)["fig2-correlation"].settings.values()
    apart = with_estimate(with_estimate(tables, ESTIMATE, "correlation", 0.95), OTHER, "correlation", 0.1)
    assert outcomes(apart)["fig2-correlation"].settings["smooth tokens"] is not Outcome.MATCHES_CONTROL


def test_an_estimate_that_is_far_off_is_refuted(tables):
    far = with_estimate(with_estimate(tables, ESTIMATE, "relative_error", 3.0), CONSTANT, "relative_error", 1.0)
    assert outcomes(far)["fig2-close"].outcome is Outcome.REFUTED


def test_components_are_reported_without_an_outcome(tables):
    assert outcomes(tables)["fig2-components"].outcome is Outcome.REPORTED


def test_a_sum_of_logits_that_drifts_decides_nothing(tables):
    off = tables.copy_with(facts=tables.facts | {"logit_sum_drift": 1e-3})
    assert {answer.outcome for answer in outcomes(off).values()} == {Outcome.FAULTY}


def test_a_slower_training_gives_the_error_that_is_not_due_to_finite_steps(tables):
    config = replace(SMALL, laws=SMALL.laws[:1], seeds=(0, 1), slower=2)
    slow = compute(config, Workspace(Path(), "cpu", lambda share, doing: None))
    slow.config = settings(plain(config))
    number = next(each for each in outcomes(slow)["fig2-close"].numbers if each.key.endswith("_slower"))
    fast = outcomes(tables)["fig2-close"].numbers
    close = next(each for each in fast if each.key == f"{config.laws[0]}_late")
    assert number.value == pytest.approx(close.value, rel=0.5)
    assert number.value == slow.facts[f"slower, {config.laws[0]}: error of estimate"]


def test_charts_draw(tables):
    assert len({chart.id for chart in charts(tables)}) == 4
