"""Effects of recorded curves: bounds of each quantity, fractions, heads and gaps in the record."""

import numpy as np
import pandas as pd
import pytest

from joma.measure.curve_effects import curve_effects

STEPS = np.arange(0, 600, 10)
DIP = 1.5 + np.abs(STEPS - 200) / 400


def table_of(curves: dict) -> pd.DataFrame:
    """Rows of a record, in no order, from curves by site, head and metric."""
    rows = [
        {"step": step, "metric": metric, "layer": 0, "site": site, "head": head, "value": value}
        for (site, head, metric), values in curves.items()
        for step, value in zip(STEPS, values, strict=True)
    ]
    columns = ["step", "metric", "layer", "site", "head", "value"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0)


def test_names_and_dips_of_a_record():
    curves = {
        ("a", -1, "entropy"): DIP,
        ("a", 0, "entropy"): 3 - DIP / 2,
        ("a", -1, "entropy_fraction"): DIP / 3.5,
        ("a", -1, "entropy_window"): np.where(STEPS == 300, np.nan, DIP),
        ("b", -1, "entropy"): np.linspace(1, 0.5, 60),
        ("b", -1, "entropy_fraction"): np.geomspace(1, 0.01, 60),
        ("c", -1, "stable_rank"): np.linspace(5, 9, 60),
        ("validation", -1, "loss"): np.linspace(5, 1, 60),
    }
    found = {(each.site, each.metric): each for each in curve_effects(table_of(curves))}
    assert {key: each.name.value for key, each in found.items()} == {
        ("a", "entropy"): "rebounding",
        ("a", "entropy_window"): "rebounding",
        ("b", "entropy"): "collapsed",  # by its fraction, not by its value
        ("c", "stable_rank"): "rising",
    }
    assert list(found) == sorted(found)
    assert found["a", "entropy"].effects.dip_time.value == pytest.approx(200, rel=0.1)


def test_a_record_without_such_curves_has_no_effects():
    table = table_of({("validation", -1, "loss"): np.linspace(5, 1, 60)})
    assert curve_effects(table) == curve_effects(table[:0]) == []


@pytest.mark.parametrize(
    ("metric", "ends", "fractions", "name"),
    [
        ("entropy", (3.0, 0.1), (0.6, 0.02), "collapsed"),  # below 5 % of what is possible
        ("entropy", (1.0, 0.1), (0.6, 0.3), "falling"),  # as low, but of a few keys
        ("entropy", (3.0, 4.99), (0.6, 0.999), "uniform"),
        ("entropy", (3.0, 4.99), None, "rising"),  # nobody knows how much is possible
        ("entropy", (3.0, 3.0), (1.00001, 1.00001), "uniform"),  # rounded over the bound
        ("stable_rank", (30.0, 1.1), None, "collapsed"),  # 1 is the smallest: what counts is what lies above
        ("stable_rank", (30.0, 4.0), None, "falling"),
        ("stable_rank", (30.3, 25.2), None, "falling"),
        ("stable_rank", (1.00001, 0.99999), None, "flat"),
    ],
)
def test_names_know_the_bounds_of_their_quantity(metric, ends, fractions, name):
    part = np.minimum(np.arange(60) / 30, 1.0)
    curves = {("a", -1, metric): ends[0] + part * (ends[1] - ends[0])}
    if fractions is not None:
        curves["a", -1, "entropy_fraction"] = fractions[0] + part * (fractions[1] - fractions[0])
    [found] = curve_effects(table_of(curves))
    assert found.name.value == name
