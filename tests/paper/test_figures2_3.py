"""Figures 2 and 3: a short training, and claims that hold and fail with its tables."""

from dataclasses import replace

import pytest
from paper.cases import answers, computed

from joma.claims import Outcome
from joma.paper.figures2_3 import CLAIMS, CONSTANT, ESTIMATE, OTHER, Figures23Config, charts, compute

SMALL = Figures23Config(seeds=(0, 1, 2), num_steps=200, num_reported=20)


@pytest.fixture(scope="module")
def tables():
    return computed(compute, SMALL)


def with_estimate(tables, name, column, value):
    agreement = tables.agreement.copy()
    rows = agreement["estimate"] == name
    agreement.loc[rows, column] = value + 1e-3 * agreement.loc[rows, "seed"]
    return tables.copy_with(agreement=agreement)


def test_every_seed_counts_once(tables):
    numbers = answers(CLAIMS, tables)["fig2-correlation"].numbers
    assert {number.n for number in numbers if number.is_judged and not number.sanity} == {len(SMALL.seeds)}


def test_a_run_that_another_run_predicts_as_well_matches_its_control(tables):
    alike = with_estimate(with_estimate(tables, ESTIMATE, "correlation", 0.95), OTHER, "correlation", 0.95)
    assert Outcome.HOLDS not in answers(CLAIMS, alike)["fig2-correlation"].settings.values()
    apart = with_estimate(with_estimate(tables, ESTIMATE, "correlation", 0.95), OTHER, "correlation", 0.1)
    assert answers(CLAIMS, apart)["fig2-correlation"].settings["smooth tokens"] is not Outcome.MATCHES_CONTROL


def test_an_estimate_that_is_far_off_is_refuted(tables):
    far = with_estimate(with_estimate(tables, ESTIMATE, "relative_error", 3.0), CONSTANT, "relative_error", 1.0)
    assert answers(CLAIMS, far)["fig2-close"].outcome is Outcome.REFUTED


def test_components_are_reported_without_an_outcome(tables):
    assert answers(CLAIMS, tables)["fig2-components"].outcome is Outcome.REPORTED


def test_a_sum_of_logits_that_drifts_decides_nothing(tables):
    off = tables.copy_with(facts=tables.facts | {"logit_sum_drift": 1e-3})
    assert {answer.outcome for answer in answers(CLAIMS, off).values()} == {Outcome.FAULTY}


def test_a_slower_training_gives_the_error_that_is_not_due_to_finite_steps(tables):
    config = replace(SMALL, laws=SMALL.laws[:1], seeds=(0, 1), slower=2)
    slow = computed(compute, config)
    number = next(each for each in answers(CLAIMS, slow)["fig2-close"].numbers if each.key.endswith("_slower"))
    fast = answers(CLAIMS, tables)["fig2-close"].numbers
    close = next(each for each in fast if each.key == f"{config.laws[0]}_late")
    assert number.value == pytest.approx(close.value, rel=0.5)
    assert number.value == slow.facts[f"slower, {config.laws[0]}: error of estimate"]


def test_charts_draw(tables):
    assert len({chart.id for chart in charts(tables)}) == 4
