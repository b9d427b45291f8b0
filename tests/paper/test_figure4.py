"""Figure 4: its tables, and claims that hold and fail with them."""

import numpy as np
import pytest
from paper.cases import answers, computed

from joma.claims import Outcome
from joma.paper.figure4 import CLAIMS, Figure4Config, charts, compute

SMALL = Figure4Config(num_draws=6, num_steps=400, num_points=120)


@pytest.fixture(scope="module")
def tables():
    return computed(compute, SMALL)


def test_rebound_is_seen_under_the_printed_flow_and_not_under_the_models_own(tables):
    found = answers(CLAIMS, tables)["fig4-rebound"]
    assert found.outcome is Outcome.MIXED
    holds = {setting for setting, outcome in found.settings.items() if outcome is Outcome.HOLDS}
    assert {"Eqn 6 as printed, T = 1", "Eqn 6 as printed, T = 2"} <= holds
    assert found.settings["the model's own flow, T = 2"] is Outcome.REFUTED


def test_a_control_that_rises_as_well_takes_the_rebound_away(tables):
    tables = tables.copy_with(dips=tables.dips.assign(control_rise=tables.dips["rise"]))
    assert Outcome.HOLDS not in answers(CLAIMS, tables)["fig4-rebound"].settings.values()


def test_a_wrong_order_refutes(tables):
    learning = tables.learning.copy()
    learning.loc[learning["flow"] == "model", "half_time"] = np.linspace(1, 2, (learning["flow"] == "model").sum())
    found = answers(CLAIMS, tables.copy_with(learning=learning))["fig4-order"]
    assert found.settings["the model's own flow"] is Outcome.REFUTED


def test_a_solver_that_is_off_decides_nothing(tables):
    off = tables.copy_with(facts=tables.facts | {"closed form distance": 1.0})
    assert answers(CLAIMS, off)["fig4-rebound"].outcome is Outcome.FAULTY


def test_charts_draw_what_the_tables_hold(tables):
    drawn = list(charts(tables))
    assert len({chart.id for chart in drawn}) == len(drawn)
    assert all(chart.to_dict()["$schema"] for chart in drawn)
