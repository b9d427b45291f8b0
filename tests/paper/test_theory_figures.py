"""Figures 1 to 4 and 9, which need no long training: claims hold on a small size, and fail with changed tables."""

from dataclasses import replace
from functools import cache
from math import nan

import numpy as np
import pytest
from paper.cases import answers, computed

from joma.claims import Outcome
from joma.paper import figure1, figure4, figure9, figures2_3
from joma.paper.experiment import experiment

SHORT = figures2_3.Figures23Config(seeds=(0, 1, 2), num_steps=200, num_reported=20)
SMALL = {
    "figure1": figure1.Figure1Config(num_layers=2),
    "figures2-3": SHORT,
    "figure4": figure4.Figure4Config(num_draws=6, num_steps=400, num_points=120),
    "figure9": figure9.Figure9Config(
        num_places=201, num_levels=40, laws=("gaussian", "student", "ring"), distances=(1.0,)
    ),
}
"""A config of each experiment that takes seconds."""


@cache
def tables_of(name):
    return computed(experiment(name).compute, SMALL[name])


def answered(name, tables):
    return answers(experiment(name).claims, tables)


def column(table, **values):
    """Return a change of tables: columns of one table."""
    return lambda t: {table: t[table].assign(**values)}


def fact(name, value):
    """Return a change of tables: one fact."""
    return lambda t: {"facts": t.facts | {name: value}}


def estimates(column, **means):
    """Return a change of tables: correlations or errors of two estimates, nearly the same for all seeds."""
    values = {getattr(figures2_3, name): value for name, value in means.items()}

    def change(t):
        value = t.agreement["estimate"].map(values) + 1e-3 * t.agreement["seed"]
        return {"agreement": t.agreement.assign(**{column: value.fillna(t.agreement[column])})}

    return change


def wrong_order(t):
    own, times = t.learning["flow"] == "model", np.linspace(1, 2, len(t.learning))
    return {"learning": t.learning.assign(half_time=t.learning["half_time"].where(~own, times))}


def as_it_is(t):
    return {}


def no_ring(t):
    return {name: frame[frame["law"] != "ring"] for name, frame in t.items()}


BOTH_RISE = column("dips", control_rise=lambda dips: dips["rise"])
WRONG_COUNT = column("lines", count_raw=lambda lines: lines["count"] + 1)
FIRST, SECOND, MODEL = "Eqn 6 as printed, T = 1", "Eqn 6 as printed, T = 2", "the model's own flow"
CASES = [
    ("figure1", "eqn1-layer", "", as_it_is, "holds"),
    ("figure1", "fig1-softmax", "", as_it_is, "holds"),
    ("figure1", "eqn1-layer", "", column("checks", forward=1e-3), "refuted"),
    ("figure1", "eqn1-layer", "", column("checks", backward=nan), "undecided"),
    ("figure1", "eqn1-layer", "", column("checks", forward_without_residual=0.0), "matches its control"),
    ("figure4", "fig4-rebound", "", as_it_is, "depends on the setting"),
    ("figure4", "fig4-rebound", FIRST, as_it_is, "holds"),
    ("figure4", "fig4-rebound", SECOND, as_it_is, "holds"),
    ("figure4", "fig4-rebound", f"{MODEL}, T = 2", as_it_is, "refuted"),
    ("figure4", "fig4-rebound", FIRST, BOTH_RISE, "matches its control"),
    ("figure4", "fig4-rebound", SECOND, BOTH_RISE, "matches its control"),
    ("figure4", "fig4-order", MODEL, wrong_order, "refuted"),
    ("figure4", "fig4-rebound", "", fact("closed form distance", 1.0), "our check failed"),
    ("figure9", "fig9-convex", "density falls away from zero", as_it_is, "holds"),
    ("figure9", "fig9-convex", "density rises", as_it_is, "refuted"),
    ("figure9", "fig9-convex", "", no_ring, "holds"),
    ("figure9", "fig9-lines", "", as_it_is, "refuted"),
    ("figure9", "fig9-lines", "", no_ring, "holds"),
    ("figure9", "fig9-lines", "", WRONG_COUNT, "our check failed"),
    ("figure9", "fig9-critical", "at the line's own distance", as_it_is, "holds"),
    ("figure9", "fig9-critical", "clusters 1.5 times as far apart", as_it_is, "refuted"),
    ("figures2-3", "fig2-correlation", "smooth tokens", estimates("correlation", ESTIMATE=0.95, OTHER=0.1), "holds"),
    (
        *("figures2-3", "fig2-correlation", "smooth tokens"),
        *(estimates("correlation", ESTIMATE=0.95, OTHER=0.95), "matches its control"),
    ),
    ("figures2-3", "fig2-close", "", estimates("relative_error", ESTIMATE=3.0, CONSTANT=1.0), "refuted"),
    ("figures2-3", "fig2-components", "", as_it_is, "reported"),
    *[
        ("figures2-3", f"fig{name}", "", fact("logit_sum_drift", 1e-3), "our check failed")
        for name in ("2-correlation", "2-close", "2-components", "3-winners")
    ],
]
"""Experiment, claim, setting or all of them, change of the tables, outcome."""


@pytest.mark.parametrize(("name", "claim", "setting", "change", "outcome"), CASES)
def test_claims_hold_and_fail(name, claim, setting, change, outcome):
    tables = tables_of(name)
    found = answered(name, tables.copy_with(**change(tables)))[claim]
    assert (found.settings[setting] if setting else found.outcome) is Outcome(outcome)


@pytest.mark.parametrize("name", SMALL)
def test_charts_draw_what_the_tables_hold(name):
    drawn = experiment(name).draw(tables_of(name))
    assert len({chart.id for chart in drawn}) == len(drawn) > 1
    assert all(chart.to_dict()["$schema"] for chart in drawn)


def test_every_seed_counts_once():
    numbers = answered("figures2-3", tables_of("figures2-3"))["fig2-correlation"].numbers
    assert {number.n for number in numbers if number.is_judged and not number.sanity} == {len(SHORT.seeds)}


def test_a_slower_training_gives_the_error_that_is_not_due_to_finite_steps():
    slow = computed(figures2_3.compute, replace(SHORT, laws=SHORT.laws[:1], seeds=(0, 1), slower=2))
    values = {
        number.key: number.value
        for tables in (slow, tables_of("figures2-3"))
        for number in answered("figures2-3", tables)["fig2-close"].numbers
    }
    law = SHORT.laws[0]
    assert values[f"{law}_slower"] == slow.facts[f"slower, {law}: error of estimate"]
    assert values[f"{law}_slower"] == pytest.approx(values[f"{law}_late"], rel=0.5)
