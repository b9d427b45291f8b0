"""Curves in words: what is said of a regime agrees with the numbers beside it."""

import re

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from joma.probe.measurement import ALL_HEADS
from joma.probe.summary import curves_in_words


def line_of(ranks: list[float]) -> str:
    """What is said of a layer with these stable ranks."""
    rows = {"metric": "stable_rank", "head": ALL_HEADS, "layer": 0, "site": "h.0", "step": range(len(ranks))}
    [line] = curves_in_words(pd.DataFrame(rows | {"value": ranks}))
    return line


def test_a_last_point_that_stands_alone_is_told():
    assert line_of([30.3] * 8 + [25.16]) == (
        "Stable rank of layer 0 (h.0): 30.3 → 25.2, flat. flat up to step 7; the last point, 25.2, stands alone and "
        "may be the beginning of a fall; noise 0"
    )


@given(st.lists(st.sampled_from([0.0, 0.01, 0.3]), min_size=8, max_size=20), st.floats(-20, 20), st.floats(-20, 20))
def test_no_change_is_not_said_beside_numbers_that_differ(wobbles, first, last):
    ranks = [30 + wobble for wobble in wobbles]
    ranks[0], ranks[-1] = 30 + first, 30 + last
    line = line_of(ranks)
    shown = [float(number) for number in re.search(r": (\S+) → (\S+),", line).groups()]
    for threshold in re.findall(r"\bno change of (\S+) or more", line):
        assert abs(shown[1] - shown[0]) < float(threshold) + 0.1  # both ends are shown to 0.05
