"""Figure 1: two layers agree, and claims fail when they do not."""

import pytest
from paper.cases import computed, outcomes

from joma.claims import Outcome
from joma.paper.figure1 import CLAIMS, Figure1Config, charts, compute


@pytest.fixture(scope="module")
def tables():
    return computed(compute, Figure1Config(num_layers=2))


def test_both_claims_hold(tables):
    assert set(outcomes(CLAIMS, tables).values()) == {Outcome.HOLDS}


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
    assert outcomes(CLAIMS, off)["eqn1-layer"] is outcome


def test_charts_draw(tables):
    assert [chart.id for chart in charts(tables)] == ["figure1", "figure1-logits", "figure1-nodes"]
