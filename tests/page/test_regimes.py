"""The table of layers: a regime whose first or last point stands alone is marked, with the point and what it may be."""

import numpy as np
import pytest

from joma.page import regimes
from joma.page.records import grouped, load
from joma.store import open_run


def recorded(folder, ranks, seed=0):
    """Write a run with these stable ranks of one layer."""
    with open_run(folder, kind="watch", config={"seed": seed}) as run:
        for step, rank in enumerate(ranks):
            run.add(step, "stable_rank", float(rank), site="h.0.mlp", kind="mlp", layer=0)


def regime_cell(folder):
    [group] = grouped(load(sorted(folder.iterdir()), folder)[0])
    [row] = regimes.rows(regimes.classified(group))
    return dict(zip(regimes.COLUMNS, row, strict=True))["regime"]


LEVEL = np.full(20, 30.0)
LAST = np.append(LEVEL[1:], 25.16)
BOTH = np.append(36.0, LAST[1:])


@pytest.mark.parametrize(
    ("ranks", "mark", "told"),
    [
        (LEVEL, "", ""),
        (LAST, "last point 25.2 stands alone", "the last point, 25.2, stands alone and may be the beginning of a fall"),
        (
            BOTH,
            "first point 36 stands alone, last point 25.2 stands alone",
            "the first point, 36, stands alone and may be the end of an earlier fall; "
            "the last point, 25.2, stands alone and may be the beginning of a fall",
        ),
    ],
    ids=["none", "last", "both"],
)
def test_points_that_stand_alone_are_marked(tmp_path, ranks, mark, told):
    recorded(tmp_path / "run", ranks)
    cell = regime_cell(tmp_path)
    assert (cell.text, cell.mark, cell.title) == ("flat", mark, told)


def test_of_several_runs_those_with_such_points_are_counted(tmp_path):
    for seed, ranks in enumerate((LEVEL, LAST, LAST)):
        recorded(tmp_path / f"run-{seed}", ranks, seed)
    cell = regime_cell(tmp_path)
    assert (cell.text, cell.mark) == ("flat", "points stand alone in 2 of 3 runs")
    assert cell.title == "the last point, 25.2, stands alone and may be the beginning of a fall"
