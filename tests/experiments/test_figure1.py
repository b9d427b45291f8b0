"""Figure 1b: the worked example is Eqn 1 by hand, and the verdicts fail where they should."""

import numpy as np
import pandas as pd
import pytest

from joma.experiments import figure1
from joma.experiments.experiment import Result, Workplace
from joma.figures.chart import to_matplotlib
from joma.verdicts import Outcome

CONFIG = figure1.Config(num_layers=3)


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    return compute(tmp_path_factory.mktemp("figure1"))


def compute(folder) -> Result:
    return figure1.compute(CONFIG, Workplace(folder=folder, device="cpu", progress=lambda share, text: None))


def with_table(result: Result, name: str, **columns) -> Result:
    return Result(tables=result.tables | {name: result.tables[name].assign(**columns)}, facts=result.facts)


def test_the_same_config_gives_the_same_numbers_bit_for_bit(result, tmp_path):
    again = compute(tmp_path)
    assert again.facts == result.facts
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_exact=True)


def test_scores_are_those_worked_out_by_hand(result):
    scores = result.tables["scores"].set_index(["attention", "sentence", "token"])["b"]
    short = "the dog sat"
    assert scores["linear", short, "the"] == pytest.approx(-1 / 3)
    assert scores["exp", short, "dog"] == pytest.approx(1 / 6)
    total = np.exp([-1.0, 0.0, 0.5]).sum()
    assert scores["softmax", short, "sat"] == pytest.approx(np.exp(0.5) / total)
    assert scores["softmax", short, "cat"] == 0


def test_softmax_scores_alone_sum_to_one(result):
    sums = result.tables["scores"].groupby(["attention", "sentence"])["b"].sum()
    np.testing.assert_allclose(sums["softmax"], 1)
    assert (np.abs(sums["exp"] - 1) > 0.05).all() and (np.abs(sums["linear"] - 1) > 0.05).all()


def test_both_claims_hold(result):
    verdicts = figure1.verdicts(result, CONFIG)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.HOLDS] * 2
    assert all(verdict.sound for verdict in verdicts)


@pytest.mark.parametrize(("table", "column"), [("checks", "forward"), ("checks", "backward"), ("scores", "gap")])
@pytest.mark.parametrize("wrong", [1e-9, np.nan])
def test_layers_that_differ_are_not_sound(result, table, column, wrong):
    verdict = figure1.verdicts(with_table(result, table, **{column: wrong}), CONFIG)[0]
    assert verdict.outcome is Outcome.INCONCLUSIVE and not verdict.sound


def test_a_control_that_cannot_be_told_from_the_layer_is_told(result):
    verdict = figure1.verdicts(with_table(result, "checks", forward_without_residual=0.0), CONFIG)[0]
    assert verdict.outcome is Outcome.CONDITIONAL and verdict.control_passes


def test_a_constant_normalisation_that_does_takes_away_the_need_for_one_each(result):
    facts = Result(tables=result.tables, facts={"own sum for A": 0.0, "constant A": 0.0})
    assert figure1.verdicts(facts, CONFIG)[1].outcome is Outcome.CONDITIONAL
    off = Result(tables=result.tables, facts={"own sum for A": 0.1, "constant A": 0.2})
    assert not figure1.verdicts(off, CONFIG)[1].sound


def test_charts_can_be_drawn(result):
    [chart] = figure1.draw(result)
    assert len(to_matplotlib(chart).axes) >= len(chart.panels)


def test_words_without_a_token_are_refused():
    with pytest.raises(ValueError, match="made of the tokens, got \\['bird'\\]"):
        figure1.Config(sentences=("the bird sat",))
