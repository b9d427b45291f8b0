"""Dips before the lowest point: where a curve turns, and which of its swings are told."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from joma.experiments.rebound_earlier_dips import earlier_dips, turning_points
from joma.measure.regime import KEPT, MIN_REBOUND


def curve(values, *, depth=1, layer=0):
    return pd.DataFrame({"depth": depth, "layer": layer, "step": 10 * np.arange(len(values)), "mean": values})


CURVES = {
    "falls": ([5.0, 4.0, 3.0, 2.0], [0, 3]),
    "rises": ([2.0, 3.0, 5.0], [0, 2]),
    "dips": ([5.0, 2.0, 4.0], [0, 1, 2]),
    "peaks": ([1.0, 4.0, 2.0], [0, 1, 2]),
    "dips twice": ([5.0, 3.0, 4.5, 1.0, 2.5], [0, 1, 2, 3, 4]),
    "rises a little first": ([5.0, 5.3, 2.0], [1, 2]),
    "ends in a little swing": ([5.0, 2.0, 2.4, 1.9, 2.3], [0, 3]),
    "moves too little": ([5.0, 5.2, 4.9], []),
}


@pytest.mark.parametrize(("values", "points"), CURVES.values(), ids=list(CURVES))
def test_a_curve_turns_where_it_goes_on_for_long_enough(values, points):
    assert turning_points(np.array(values), 0.5) == points


@pytest.mark.parametrize("seed", range(5))
def test_turning_points_alternate_and_none_is_passed_in_between(seed):
    values = np.random.default_rng(seed).normal(size=60).cumsum()
    least = 0.2 * np.ptp(values)
    points = turning_points(values, least)
    swings = np.diff(values[points])
    assert (np.abs(swings) >= least).all() and (np.sign(swings[1:]) == -np.sign(swings[:-1])).all()
    for first, last in pairwise(points):
        within = values[first : last + 1]
        assert {within.min(), within.max()} == {values[first], values[last]}
    assert {values.argmin(), values.argmax()} <= set(points)


def test_a_dip_before_the_lowest_point_is_told_with_its_steps_and_no_other_is():
    [dip] = earlier_dips(pd.concat([curve([2.5, 2.0, 2.4, 1.6, 2.2], layer=1), curve([2.5, 1.6, 2.2])]))
    assert (dip.layer, dip.before, dip.level, dip.step) == (1, 2.5, 2.0, 10)
    assert (dip.after, dip.after_step, dip.lowest, dip.lowest_step) == (2.4, 20, 1.6, 30)


@pytest.mark.parametrize(("part", "num"), [(0.9, 0), (1.1, 1)])
def test_a_bounce_must_reach_a_part_of_the_height(part, num):
    height, level = 10.0, 9.8  # a fall of little more than the rise: the other rule is kept
    bounce = part * MIN_REBOUND * height
    assert len(earlier_dips(curve([level + 1.1, level, level + bounce, 10.9 - height]))) == num


@pytest.mark.parametrize(("part", "num"), [(0.9, 0), (1.1, 1)])
def test_a_bounce_must_reach_a_part_of_its_fall(part, num):
    fall = 8.0
    assert len(earlier_dips(curve([10.0, 10.0 - fall, 10.0 - fall + part * KEPT * fall, 0.0]))) == num


def test_steps_may_come_in_any_order():
    ordered = curve([2.5, 2.0, 2.4, 1.6, 2.2])
    assert earlier_dips(ordered.sample(frac=1, random_state=0)) == earlier_dips(ordered)


def test_of_no_curve_and_of_one_that_stands_still_there_is_none():
    assert earlier_dips(curve([])) == [] == earlier_dips(curve([2.0, 2.0, 2.0]))
