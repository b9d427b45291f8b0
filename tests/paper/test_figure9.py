"""Figure 9: its tables on a small search, and claims that hold and fail with them."""

import pytest
from paper.cases import answers, computed

from joma.claims import Outcome
from joma.paper.figure9 import CLAIMS, Figure9Config, charts, compute


@pytest.fixture(scope="module")
def tables():
    config = Figure9Config(num_places=201, num_levels=40, laws=("gaussian", "student", "ring"), distances=(1.0,))
    return computed(compute, config)


def test_the_ring_breaks_convexity_and_the_bound_on_intersections(tables):
    found = answers(CLAIMS, tables)
    assert found["fig9-convex"].settings["density rises"] is Outcome.REFUTED
    assert found["fig9-convex"].settings["density falls away from zero"] is Outcome.HOLDS
    assert found["fig9-lines"].outcome is Outcome.REFUTED


def test_without_the_ring_both_hold(tables):
    kept = {name: frame[frame["law"] != "ring"] for name, frame in tables.items()}
    found = answers(CLAIMS, tables.copy_with(**kept))
    assert found["fig9-convex"].outcome is Outcome.HOLDS
    assert found["fig9-lines"].outcome is Outcome.HOLDS


def test_a_wrong_count_of_intersections_decides_nothing(tables):
    off = tables.copy_with(lines=tables.lines.assign(count_raw=tables.lines["count"] + 1))
    assert answers(CLAIMS, off)["fig9-lines"].outcome is Outcome.FAULTY


def test_a_critical_point_needs_its_own_distance(tables):
    found = answers(CLAIMS, tables)["fig9-critical"]
    assert list(found.settings.values()) == [Outcome.HOLDS, Outcome.REFUTED]


def test_charts_draw(tables):
    assert [chart.id for chart in charts(tables)] == ["figure9", "figure9-ratio"]
