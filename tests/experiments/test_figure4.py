"""Figure 4: the numbers of the scripts' run, and verdicts that fail where they should."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from joma.experiments import figure4
from joma.experiments.experiment import Result, Workplace
from joma.experiments.figure4_flows import FLOWS, MODEL, MOVED, NORMALISED, PRINTED, Config, path_of, solved
from joma.figures.chart import to_matplotlib
from joma.theory.rebound import attention_entropy, entropy_rebound
from joma.verdicts import Outcome

CONFIG = Config(num_draws=8, num_points=200)
TINY = Config(targets=(1.0, 2.0), num_steps=100, num_draws=4, num_points=40)


def compute(config: Config, folder) -> Result:
    return figure4.compute(config, Workplace(folder=folder, device="cpu", progress=lambda share, text: None))


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    return compute(CONFIG, tmp_path_factory.mktemp("figure4"))


def changed(result: Result, table: str = "", facts: dict | None = None, **columns) -> Result:
    tables = result.tables | ({table: result.tables[table].assign(**columns)} if table else {})
    return Result(tables=tables, facts=result.facts | (facts or {}))


def outcome(result: Result, name: str) -> Outcome:
    return next(verdict.outcome for verdict in figure4.verdicts(result, CONFIG) if verdict.id == name)


def test_the_same_config_gives_the_same_numbers_bit_for_bit(tmp_path):
    first, second = (compute(TINY, tmp_path) for _ in range(2))
    assert first.facts == second.facts
    for name, table in first.tables.items():
        pd.testing.assert_frame_equal(second.tables[name], table, check_exact=True)


def test_the_scripts_run_is_the_known_one(result):
    assert result.facts["script lowest entropy"] == pytest.approx(0.94157, abs=5e-6)
    assert result.facts["script lowest at step"] == 669
    assert result.facts["script final entropy"] == pytest.approx(1.5493, abs=1e-4)
    assert result.facts["Eqn 6 steps survived"] == 26


def test_dips_are_the_known_ones(result):
    rises = result.tables["dips"].set_index(["flow", "temperature"])["rise"]
    assert rises["printed", 1.0] == pytest.approx(0.3093, abs=1e-3)
    assert rises["model", 2.0] == pytest.approx(0.0164, abs=1e-3)


OWN = {PRINTED: 2.0, NORMALISED: 3.0, MODEL: 2.0}
"""T of softmax(v²/T) that is the attention of the flow itself."""


@pytest.mark.parametrize("flow", FLOWS)
def test_dips_are_those_that_simulate_tells(flow):
    run = solved(CONFIG, flow)
    dip = path_of(run).dip(OWN[flow])
    for name in ("start", "lowest", "time", "end"):
        assert getattr(dip, name) == pytest.approx(getattr(run.rebound, name), rel=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_dips_do_not_depend_on_the_reported_times(temperature):
    few, many = (path_of(solved(replace(CONFIG, num_points=num), PRINTED)) for num in (60, 400))
    exact = entropy_rebound(few.run.flow.tied, temperature)
    for path in (few, many):
        # Fine steps are a two-hundredth of the reported ones; at the lowest point the error is of second order in them.
        assert path.dip(temperature).lowest == pytest.approx(exact.lowest, abs=1e-4)
    coarse = attention_entropy(few.v, temperature).min()
    assert coarse - exact.lowest > 10 * abs(few.dip(temperature).lowest - exact.lowest)


def test_without_attention_all_components_are_half_learned_at_once(result):
    times = result.tables["learning"].query("flow == 'without attention'")["half_time"]
    assert np.ptp(times) < 1e-12
    assert times.iloc[0] == pytest.approx(np.log(2), rel=1e-2)  # interpolated between reported times


def test_verdicts_on_what_was_computed(result):
    verdicts = figure4.verdicts(result, CONFIG)
    assert [verdict.outcome for verdict in verdicts] == [
        Outcome.CONDITIONAL,
        Outcome.HOLDS,
        Outcome.CONDITIONAL,
        Outcome.REFUTED,
    ]
    assert all(verdict.sound for verdict in verdicts)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"rise": 0.5}, Outcome.HOLDS),
        ({"rise": 0.01}, Outcome.REFUTED),
        ({"rise": np.nan}, Outcome.INCONCLUSIVE),
        ({"rise": 0.5, "control_rise": 0.5}, Outcome.CONDITIONAL),
    ],
)
def test_a_rebound_must_be_seen_and_need_attention(result, columns, expected):
    assert outcome(changed(result, "dips", **columns), "fig4-rebound") is expected


def test_components_learned_at_once_or_in_the_wrong_order_refute_the_order(result):
    learning = result.tables["learning"]
    assert outcome(changed(result, "learning", half_time=1.0), "fig4-order") is Outcome.REFUTED
    assert outcome(changed(result, "learning", half_time=learning["target"]), "fig4-order") is Outcome.REFUTED


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"rising share": 1.0}, Outcome.HOLDS),
        ({"rising share without zeros": 0.9}, Outcome.REFUTED),
        ({"draws judged wrongly": 1}, Outcome.INCONCLUSIVE),
    ],
)
def test_the_condition_can_fail(result, facts, expected):
    assert outcome(changed(result, facts=facts), "fig4-condition") is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"Eqn 6 steps survived": CONFIG.num_steps}, (Outcome.HOLDS, "")),
        ({}, (Outcome.REFUTED, "Eqn 6 with softmax(v²/3)")),
        ({"script steps survived": 100}, (Outcome.REFUTED, "neither")),
        ({"script distance from its flow": 0.2}, (Outcome.REFUTED, "neither")),
    ],
)
def test_the_figure_can_be_eqn_6_its_variant_or_neither(result, facts, expected):
    *_, verdict = figure4.verdicts(changed(result, facts=facts), CONFIG)
    assert verdict.outcome is expected[0] and expected[1] in verdict.correction


def test_a_wrong_closed_form_is_not_sound(result):
    verdicts = figure4.verdicts(changed(result, facts={"closed form distance": 1e-3}), CONFIG)
    assert [verdict.sound for verdict in verdicts[:2]] == [False, False]


def test_charts_can_be_drawn(result):
    for chart in figure4.draw(result):
        assert len(to_matplotlib(chart).axes) >= len(chart.panels)


def test_entropies_are_drawn_from_when_they_begin_to_move(result):
    chart = figure4.draw(result)[0]
    for panel in chart.panels[3:]:
        starts = [np.abs(line.y / result.facts["largest entropy"] - 1) for line in panel.items]
        assert max(start[0] for start in starts) < MOVED
        assert max(start[2] for start in starts) > MOVED


def test_a_step_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="`step_size` must be positive"):
        Config(step_size=0.0)
