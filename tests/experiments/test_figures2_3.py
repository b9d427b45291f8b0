"""Figures 2 and 3: training follows what it must, and the verdicts fail where they should."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from joma.experiments import figures2_3
from joma.experiments.experiment import Result, Workplace
from joma.experiments.figures2_3_measure import OTHER, SHUFFLED
from joma.experiments.figures2_3_training import CONSTANT, ESTIMATE, FIRST, NO_LEARNING, SECOND, Config, train
from joma.experiments.figures2_3_verdicts import predicts_in_words
from joma.figures.chart import to_matplotlib
from joma.verdicts import Evidence, Outcome

SHORT = Config(seeds=(0, 1), num_steps=80, num_reported=8)
PAPER = Config()


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    return compute(SHORT, tmp_path_factory.mktemp("figures2_3"))


def compute(config: Config, folder) -> Result:
    return figures2_3.compute(config, Workplace(folder=folder, device="cpu", progress=lambda share, text: None))


def made(**changed: float) -> Result:
    """A result for which every claim holds, on both laws alike; `changed` by the name of the fact, spaces as _."""
    facts = {
        f"correlation of {ESTIMATE}": 0.99,
        f"correlation of {OTHER}": 0.0,
        f"correlation of {SHUFFLED}": 0.4,
        f"correlation of {FIRST}": 0.2,
        f"correlation of {SECOND}": 0.1,
        "untrained": 0.1,
        f"error of {ESTIMATE}": 0.1,
        f"error of {CONSTANT}": 1.0,
        f"error of {ESTIMATE}, early": 0.1,
        f"error of {CONSTANT}, early": 0.9,
        "attention moved": 0.1,
        "growing, attention learned": 0.05,
        "growing, attention not learned": 0.9,
        "winner alone": 1.0,
    }
    names = {name.replace(" ", "_").replace(",", ""): name for name in facts}
    facts |= {names[name]: value for name, value in changed.items() if name in names}
    drift = changed.get("drift", 0.0)
    return Result(
        tables={}, facts={"logit_sum_drift": drift} | {f"{law}: {k}": v for law in PAPER.laws for k, v in facts.items()}
    )


def outcomes(result: Result, config: Config = PAPER) -> dict[str, Outcome]:
    return {verdict.id: verdict.outcome for verdict in figures2_3.verdicts(result, config)}


def test_the_same_config_gives_the_same_numbers_bit_for_bit(result, tmp_path):
    again = compute(SHORT, tmp_path)
    assert again.facts == result.facts
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_exact=True)


def test_a_run_does_not_depend_on_its_pack(result, tmp_path):
    alone = compute(replace(SHORT, seeds=(0,)), tmp_path).tables["agreement"]
    packed = result.tables["agreement"].query("seed == 0").reset_index(drop=True)
    own = packed["estimate"] != OTHER  # alone there is no other run
    pd.testing.assert_frame_equal(alone[own], packed[own], check_exact=False, rtol=1e-9)


@pytest.mark.parametrize("slower", [1, 3])
def test_progress_is_told_evenly_from_start_to_end(slower, tmp_path):
    shares = []
    config = replace(SHORT, num_steps=40, slower=slower)
    place = Workplace(folder=tmp_path, device="cpu", progress=lambda share, text: shares.append(share))
    figures2_3.compute(config, place)
    jumps = np.diff([*shares, 1.0])
    assert shares[0] == 0 and jumps.min() > 0 and jumps.max() < 0.05


def test_without_learning_logits_stay(tmp_path):
    run = train(SHORT, "random", temperature=NO_LEARNING)
    np.testing.assert_allclose(run.z, np.broadcast_to(run.z[:, :1], run.z.shape), atol=1e-8)
    assert np.abs(run.v[:, -1] - run.v[:, 0]).max() > 1e-2


def test_theorem_2_is_right_at_first(result):
    """Constant saliencies and A = 1 hold at the start, so its error is small beside the change of the weights."""
    growth = result.tables["growth"].query("step == 80")
    change = growth["v"].to_numpy() - result.tables["growth"].query("step == 0")["v"].to_numpy()
    assert np.abs(growth["v"] - growth["theorem2"]).max() < 0.05 * np.abs(change).max()


def test_a_smaller_step_gives_the_same_curves(tmp_path):
    """What is measured belongs to the flow and not to the step: a tenth of the step moves the logits by little."""
    coarse = train(SHORT, "smooth", temperature=0.5)
    fine = train(SHORT, "smooth", temperature=0.5, slower=10)
    assert np.abs(coarse.z[:, -1] - fine.z[:, -1]).max() < 0.01 * np.abs(fine.z[:, -1] - fine.z[:, 0]).max()


def test_a_short_training_decides_nothing(result):
    assert set(outcomes(result, SHORT).values()) == {Outcome.INCONCLUSIVE}
    assert all(verdict.sound for verdict in figures2_3.verdicts(result, SHORT))
    assert set(outcomes(made(), replace(PAPER, seeds=(0, 1))).values()) == {Outcome.INCONCLUSIVE}


def test_every_claim_can_hold():
    assert set(outcomes(made()).values()) == {Outcome.HOLDS}


FAILING = [
    ("fig2-correlation", {"correlation_of_estimate": 0.8}, Outcome.REFUTED),
    ("fig2-correlation", {"correlation_of_estimate": np.nan}, Outcome.INCONCLUSIVE),
    ("fig2-correlation", {"correlation_of_logits_of_another_run": 0.95}, Outcome.CONDITIONAL),
    ("fig2-correlation", {"untrained": 0.95}, Outcome.CONDITIONAL),
    ("fig2-close", {"error_of_estimate": 5.0}, Outcome.CONDITIONAL),
    ("fig2-close", {"error_of_estimate_early": 5.0}, Outcome.REFUTED),
    ("fig2-close", {"error_of_constant_alone": 0.05}, Outcome.CONDITIONAL),
    ("fig2-components", {"correlation_of_first_term_alone": 0.95}, Outcome.REFUTED),
    ("fig2-components", {"correlation_of_second_term_alone": 0.9}, Outcome.REFUTED),
    ("fig2-components", {"correlation_of_estimate": 0.1}, Outcome.CONDITIONAL),
    ("fig3-winners", {"winner_alone": 0.2}, Outcome.CONDITIONAL),
    ("fig3-winners", {"growing_attention_learned": 0.8}, Outcome.REFUTED),
    ("fig3-winners", {"growing_attention_not_learned": 0.1}, Outcome.CONDITIONAL),
]


@pytest.mark.parametrize(("verdict", "changed", "outcome"), FAILING)
def test_a_claim_that_fails_is_seen_to_fail(verdict, changed, outcome):
    assert outcomes(made(**changed))[verdict] is outcome


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((0.1, 0.1), "predicts the logits"),
        ((0.1, 0.5), "predicts some of the logits"),
        ((0.5, 0.5), "does not predict the logits"),
        ((np.nan, np.nan), "was not measured"),
    ],
)
@pytest.mark.parametrize("control", [1.0, 0.2], ids=["shown", "matched"])
def test_what_is_predicted_is_told_as_it_is(errors, said, control):
    rows = [Evidence(name="", against="", unit="", value=error, threshold=0.3, control=control) for error in errors]
    assert predicts_in_words(rows) == said


@pytest.mark.parametrize("drift", [1e-3, np.nan])
def test_a_drifting_sum_of_logits_is_not_sound(drift):
    verdicts = figures2_3.verdicts(made(drift=drift), PAPER)
    assert not any(verdict.sound for verdict in verdicts)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.INCONCLUSIVE}


def test_charts_can_be_drawn(result):
    for chart in figures2_3.draw(result):
        assert len(to_matplotlib(chart).axes) >= len(chart.panels)


def test_times_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="must be a multiple of `num_reported`"):
        Config(num_steps=150, num_reported=100)
    with pytest.raises(ValueError, match="no law of tokens named 'smoth'"):
        Config(laws=("smoth",))
