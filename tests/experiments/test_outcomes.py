"""Whatever an experiment may measure, its verdicts keep the rule of `joma.verdicts`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd
import pytest

from experiments import (
    test_figure4,
    test_figure5,
    test_figure7,
    test_figure9,
    test_figure10,
    test_figures2_3,
    test_language_models,
    test_table1,
)
from joma.experiments import figure1, figure4, figure5, figure7, figure9, figure10, figures2_3, language_models, table1
from joma.experiments.experiment import Experiment, Result, Workplace
from joma.experiments.figure5_measure import attention_leads, cooccurrences, flows, learned_levels, limits
from joma.verdicts import CONTROL_PASSES, Outcome, Verdict

TRIED = (1e-15, 0.6, 0.95, 200.0)
"""Numbers that are put in the place of what was measured; of facts NaN is one too."""
KEYS = {"lr", "share", "temperature", "epsilon", "rho", "k", "t"}
"""Numbers that tell settings apart."""
DRAWN = {"curves", "early", "shares", "drift_means", "settings"}
"""Tables that verdicts do not read, or whose numbers others have as well."""
Case = tuple[Experiment, Result, object]


def computed(experiment: Experiment, config, folder) -> Case:
    place = Workplace(folder=folder, device="cpu", progress=lambda share, text: None)
    return experiment, experiment.compute(config, place), config


def of_figure5(folder) -> Case:
    config = figure5.full()
    small = replace(figure5.quick(), is_small=False)
    curves = test_figure5.made_up_curves(test_figure5.bottom_up)
    tables = {"cooccurrence": cooccurrences(small), "limit": limits(small), "flow_times": flows(small)[1]}
    tables |= {"levels": learned_levels(curves), "leads": attention_leads(curves)}
    return figure5.EXPERIMENT, Result(tables=tables, facts={}), replace(config, rho=small.rho)


def of_figure7(folder) -> Case:
    result = test_figure7.made("rebounding", "falling", series="org/here")
    ours = test_figure7.made("rebounding", "falling").tables["regimes"]
    regimes = pd.concat([ours, result.tables["regimes"]]).drop_duplicates()
    return figure7.EXPERIMENT, replace(result, tables={**result.tables, "regimes": regimes}), figure7.quick()


def of_figure10(folder) -> Case:
    public = [("main", "a", 5), ("main", "b", 3), ("step0", "a", 1), ("step0", "b", 0)]
    result = test_figure10.made(public=public, public_missing="")
    pairs = result.tables["pairs"].astype({"num_shared": float})
    return figure10.EXPERIMENT, replace(result, tables={**result.tables, "pairs": pairs}), figure10.quick()


def of_figures6_8(folder) -> Case:
    config = language_models.full()
    return language_models.EXPERIMENT, test_language_models.made(config), config


CASES: dict[str, Callable[..., Case]] = {
    "figure1": lambda folder: computed(figure1.EXPERIMENT, figure1.quick(), folder),
    "figures2-3": lambda folder: (figures2_3.EXPERIMENT, test_figures2_3.made(), test_figures2_3.PAPER),
    "figure4": lambda folder: computed(figure4.EXPERIMENT, test_figure4.TINY, folder),
    "figure5": of_figure5,
    "figures6-8": of_figures6_8,
    "figure7": of_figure7,
    "figure9": lambda folder: computed(figure9.EXPERIMENT, test_figure9.SMALL, folder),
    "figure10": of_figure10,
    "table1": lambda folder: (table1.EXPERIMENT, test_table1.made_up(test_table1.learned), table1.full()),
}


def changed(result: Result) -> Iterator[Result]:
    """Yield the result, and what it would be with one measured number, or one column of them, replaced."""
    yield result
    for name, table in result.tables.items():
        for column in table.columns if name not in DRAWN else ():
            if table[column].dtype == float and column not in KEYS and not column.endswith("error"):
                for value in TRIED:
                    yield replace(result, tables={**result.tables, name: table.assign(**{column: value})})
    for name, fact in result.facts.items():
        if isinstance(fact, float):
            for value in (*TRIED, math.nan):
                yield replace(result, facts={**result.facts, name: value})


def assert_rule_is_kept(verdict: Verdict) -> None:
    deciding = [row for row in verdict.evidence if row.decides]
    matched = [row for row in deciding if row.holds and row.control_holds]
    assert bool(verdict.correction) == (verdict.outcome in (Outcome.CONDITIONAL, Outcome.REFUTED))
    assert verdict.control_passes >= bool(matched)
    assert verdict.sound or verdict.outcome is Outcome.INCONCLUSIVE
    assert not verdict.control_passes or CONTROL_PASSES in verdict.explanation.lower()
    if verdict.outcome is Outcome.HOLDS:
        assert deciding and all(row.holds and not row.lacks_control for row in deciding)
        assert verdict.sound and not verdict.control_passes
    if verdict.outcome is Outcome.CONDITIONAL:
        assert any(row.holds for row in verdict.evidence)
    if verdict.outcome is Outcome.REFUTED:  # no harsher than the evidence
        assert any(not row.holds for row in deciding) or verdict.control_passes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outcomes_follow_from_the_numbers(case, tmp_path):
    experiment, result, config = case(tmp_path)
    outcomes = set()
    for other in changed(result):
        for verdict in experiment.verdicts(other, config):
            assert_rule_is_kept(verdict)
            outcomes.add(verdict.outcome)
    assert len(outcomes) > 2  # the numbers do decide
