"""Figure 1: two layers agree, and claims fail when they do not."""

from pathlib import Path

import pytest

from joma.claims import Outcome, judge
from joma.paper.figure1 import CLAIMS, Figure1Config, charts, compute
from joma.store.work import Workspace


@pytest.fixture(scope="module")
def tables():
    return compute(Figure1Config(num_layers=2), Workspace(Path(), "cpu", lambda share, doing: None))


def outcomes(tables):
    return {answer.claim: answer.outcome for answer in judge(CLAIMS, tables, tested_by="figure1")}


def test_both_claims_hold(tables):
    assert set(outcomes(tables).values()) == {Outcome.HOLDS}


@pytest.mark.parametrize(
    ("column", "value", "outcome"),
    [
        ("forward", 1e-3, Outcome.REFUTED),
        ("backward", float("nan"), Outcome.UNDECIDED),
        ("forward_without_residual", 0.0, Outcome.MATCHES_CONTROL),
    ],
)
def test_a_layer_that_differs_or_a_control_that_agrees_is_seen(tables, column, value, outcome):
    off = tables.copy_with(checks=tables.checks.assign(**{column: value}))
    assert outcomes(off)["eqn1-layer"] is outcome


def test_charts_draw(tables):
    assert [chart.id for chart in charts(tables)] == ["figure1", "figure1-logits", "figure1-nodes"]
