"""Figure 9: curve and lines against quadrature, and verdicts that fail where they should."""

import numpy as np
import pandas as pd
import pytest

from joma.claims import Outcome as Said
from joma.claims import statements
from joma.experiments import figure9
from joma.experiments.experiment import Result, Workplace
from joma.experiments.figure9_cases import NAMES, Cases
from joma.experiments.figure9_measure import Config
from joma.figures.chart import to_matplotlib
from joma.theory.hyperplane import mean_activation, theta1
from joma.verdicts import Outcome

CONFIG = Config(num_levels=40, num_places=201, distances=(2.0,))
SMALL = Config(laws=("gaussian", "student"), num_levels=40, num_places=201, distances=(2.0,))


def compute(config: Config, folder) -> Result:
    return figure9.compute(config, Workplace(folder=folder, device="cpu", progress=lambda share, text: None))


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    return compute(CONFIG, tmp_path_factory.mktemp("figure9"))


def outcome(result: Result, name: str, table: str = "", **columns) -> tuple[Outcome, bool]:
    tables = result.tables | ({table: result.tables[table].assign(**columns)} if table else {})
    verdicts = figure9.verdicts(Result(tables=tables, facts={}), CONFIG)
    return next((verdict.outcome, verdict.sound) for verdict in verdicts if verdict.id == name)


def test_the_same_config_gives_the_same_numbers_bit_for_bit(tmp_path):
    first, second = (compute(SMALL, tmp_path) for _ in range(2))
    for name, table in first.tables.items():
        pd.testing.assert_frame_equal(second.tables[name], table, check_exact=True)


@pytest.mark.parametrize("name", NAMES)
def test_quadrature_agrees_with_the_theory_far_out_too(name):
    case = getattr(Cases(), name)
    s = np.array([-30.0, -3.0, -0.7, -1e-3, 0.0, 0.4, 0.99, 2.0, 40.0])
    np.testing.assert_allclose(case.mass(s), theta1(case.noise, s), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(case.mean(s), mean_activation(case.noise, s), rtol=1e-9, atol=1e-11)


def test_known_values_of_the_normal(result):
    curve = result.tables["curves"].query("law == 'gaussian'")
    assert np.interp(0.495, curve["y"], curve["G"]) == pytest.approx(0.3927, abs=2e-3)


def test_counts_are_the_known_ones(result):
    counts = result.tables["lines"].drop_duplicates(["law", "k"]).groupby("law")["count"].max()
    assert counts.to_dict() == {"gaussian": 1, "ball": 1, "student": 2, "heavy": 2, "ring": 3, "scales": 3}


def test_verdicts_on_what_was_computed(result):
    for name in ("fig9-convex", "fig9-critical"):
        assert outcome(result, name) == (Outcome.CONDITIONAL, True)
    assert outcome(result, "fig9-lines") == (Outcome.REFUTED, True)


def test_a_claim_that_is_a_statement_too_is_judged_alike(result):
    """One claim has one verdict, whether it is asked by `verify` or by `reproduce`."""
    shared = [verdict for verdict in figure9.verdicts(result, CONFIG) if verdict.id in statements()]
    assert [verdict.id for verdict in shared] == ["fig9-lines"]
    for verdict in shared:
        statement = statements()[verdict.id]
        assert (verdict.claim, verdict.outcome) == (statement.says, Outcome.REFUTED)
        assert statement.outcome is Said.WRONG


FAILING = [
    ("fig9-convex", "laws", {"fall_of_slope": 0.0}, (Outcome.HOLDS, True)),
    ("fig9-convex", "laws", {"fall_of_slope": 0.5}, (Outcome.REFUTED, True)),
    ("fig9-convex", "laws", {"gap": 1e-3}, (Outcome.INCONCLUSIVE, False)),
    ("fig9-lines", "lines", {"count": 2, "count_raw": 2}, (Outcome.HOLDS, True)),
    ("fig9-lines", "lines", {"count": 5, "count_raw": 5}, (Outcome.REFUTED, True)),
    ("fig9-lines", "lines", {"count_raw": 7}, (Outcome.INCONCLUSIVE, False)),
    ("fig9-lines", "lines", {"gap": 1e-3}, (Outcome.INCONCLUSIVE, False)),
    ("fig9-critical", "pairs", {"field_farther": 0.0}, (Outcome.HOLDS, True)),
    ("fig9-critical", "pairs", {"field": 0.1}, (Outcome.REFUTED, True)),
    ("fig9-critical", "pairs", {"field": np.nan}, (Outcome.INCONCLUSIVE, True)),
    ("fig9-critical", "counts", {"count_raw": 9}, (Outcome.INCONCLUSIVE, False)),
]


@pytest.mark.parametrize(("verdict", "table", "columns", "expected"), FAILING)
def test_a_claim_can_hold_and_fail(result, verdict, table, columns, expected):
    assert outcome(result, verdict, table, **columns) == expected


def test_distributions_without_pairs_give_a_table_without_rows(tmp_path):
    config = Config(laws=("gaussian",), num_levels=10, num_places=51, distances=(1.0,))
    found = compute(config, tmp_path)
    assert found.tables["pairs"].empty and list(found.tables["counts"]["count_raw"]) == [0]


def test_charts_can_be_drawn(result):
    for chart in figure9.draw(result):
        assert len(to_matplotlib(chart).axes) >= len(chart.panels)


def test_an_unknown_distribution_is_refused():
    with pytest.raises(ValueError, match="no distribution named 'gausian'"):
        Config(laws=("gausian",))
