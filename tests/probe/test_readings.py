"""Readings are reduced over rows, heads and calls, and read from the device at once."""

import math

import pytest
import torch

from joma.probe.measurement import Readings
from joma.probe.measures import Reduction


def test_readings_are_reduced_over_rows_and_calls_without_nan():
    readings = Readings()
    first = torch.tensor([[[1.0, 2.0, torch.nan], [3.0, torch.nan, torch.nan]]])
    second = torch.tensor([[[6.0], [5.0]]])
    for rows in (first, second):
        readings.add("a", "attention", 0, {"mean": rows, "most": rows, "one": 2.0}, {"most": Reduction.MAX})
    values = {(row.metric, row.head): row.value for row in readings.rows(heads=True)}
    assert values == {
        ("mean", -1): 17 / 5, ("mean", 0): 3.0, ("mean", 1): 4.0, ("most", -1): 6.0, ("most", 0): 6.0, ("most", 1): 5.0,
        ("one", -1): 2.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"\(B, H, rows\), \(H\) or \(\), got shape \(2, 2\)"):
        readings.add("a", "attention", 0, {"flat": torch.zeros(2, 2)}, {})


@pytest.mark.parametrize("reduction", Reduction)
def test_readings_of_every_type_come_through_one_transfer(reduction):
    """Means, largest and smallest agree here, as all rows of a head are alike."""
    numbers = torch.tensor([3.0, 1.0, 2.0])
    rows = numbers[None, :, None].expand(2, 3, 5)
    forms = {
        "rows": rows, "half": rows.bfloat16(), "double": rows.double(), "whole": rows.long(), "heads": numbers,
        "whole heads": numbers.int(),
    }  # fmt: skip
    readings = Readings()
    for _ in range(2):
        readings.add("a", "attention", 0, forms | {"yes": torch.tensor(True)}, dict.fromkeys(forms, reduction))
    found = {(row.metric, row.head): row.value for row in readings.rows(heads=True)}
    for form in forms:
        assert [found[form, head] for head in range(3)] == [3.0, 1.0, 2.0], form
        assert found[form, -1] == {"mean": 2.0, "max": 3.0, "min": 1.0}[reduction]
    assert found["yes", -1] == 1.0


def test_heads_that_change_are_refused_and_the_rest_is_kept():
    readings = Readings()
    readings.add("a", "attention", 0, {"entropy": torch.ones(1, 2, 3)}, {})
    with pytest.raises(ValueError, match=r"shape \(2,\) and then \(4,\)"):
        readings.add("a", "attention", 0, {"entropy": torch.ones(1, 4, 3)}, {})
    with pytest.raises(IndexError):  # nothing to take the largest of
        readings.add("b", "attention", 0, {"entropy": torch.ones(1, 4, 0)}, {"entropy": Reduction.MAX})
    assert [(row.site, row.value) for row in readings.rows(heads=False)] == [("a", 1.0)]


def test_a_value_of_nothing_is_flagged():
    readings = Readings()
    readings.add("a", "attention", 0, {"entropy": torch.full((1, 2, 3), torch.nan)}, {})
    rows = list(readings.rows(heads=True))
    assert all(math.isnan(row.value) and row.flag == "nothing but NaN" for row in rows)
    assert [row.head for row in rows] == [-1, 0, 1]
