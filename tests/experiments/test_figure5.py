"""Figure 5: exact against sampled, orders that can be reversed, and verdicts that can fail."""

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from joma.engine.sources import with_vocabulary
from joma.experiments import figure5
from joma.experiments import figure5_measure as measure
from joma.experiments import figure5_verdicts as judge
from joma.experiments.experiment import Result, Workplace
from joma.experiments.figure5_measure import (
    ATTENTION,
    DEEP,
    NCORR,
    SHALLOW,
    _crossing,
    attention_leads,
    cooccurrences,
    flows,
    learned_levels,
    limits,
    training_curves,
)
from joma.experiments.latent_neurons import AllDivergedError
from joma.experiments.seed_errors import exceeds, mean_and_error
from joma.experiments.timetable import Timetable
from joma.verdicts import Outcome

TINY = replace(
    figure5.quick(),
    width=8,
    hidden=8,
    steps=4,
    checkpoint_every=2,
    batch=8,
    num_samples=64,
    num_shuffles=2,
    seeds=(1, 2),
)
FULL = figure5.full()


def computed(folder):
    return figure5.compute(TINY, Workplace(folder=folder, device="cpu", progress=lambda share, doing: None))


@pytest.fixture(scope="module")
def theory():
    config = replace(figure5.quick(), is_small=False)
    flow, times = flows(config)
    return {"cooccurrence": cooccurrences(config), "limit": limits(config), "flow": flow, "flow_times": times}


def with_tables(**tables):
    return Result(tables=tables, facts={})


def test_the_same_config_gives_the_same_numbers(tmp_path_factory):
    first, again = (computed(tmp_path_factory.mktemp("figure5")) for _ in range(2))
    for name, table in first.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    charts = figure5.draw(first)
    assert [len(chart.panels) for chart in charts] == [3, 2, 6, 6]
    assert all(len(panel.items) % 2 == 0 for chart in charts[2:] for panel in chart.panels)  # each with its control
    assert all(line.y[0] == 0 for panel in charts[3].panels for line in panel.items)  # since step 0
    found = figure5.verdicts(first, TINY)
    assert all(verdict.sound for verdict in found)
    assert {verdict.id: verdict.outcome for verdict in found}["figure5-theorem5"] == Outcome.REFUTED
    curves = first.tables["curves"]
    assert set(curves["height"]) == {1, 2, 3, 4} and set(curves["step"]) == {0, 2, 4}
    assert curves.loc[curves["what"] == ATTENTION, "value"].between(0.2, 5).all()  # near uniform at the start


@pytest.mark.parametrize("lost", [DEEP, SHALLOW])
def test_a_tree_on_which_all_runs_diverge_is_named(tmp_path, monkeypatch, lost):
    other = pd.DataFrame({"tree": [DEEP if lost == SHALLOW else SHALLOW]})
    monkeypatch.setattr(measure, "measured_packs", lambda *arguments, **options: other)
    with pytest.raises(AllDivergedError, match=f"all 2 runs on {lost} trees diverged"):
        computed(tmp_path)


class PlannedError(Exception):
    """Carries the pieces that would be worked off."""


@pytest.fixture
def planned_seconds(tmp_path, monkeypatch):
    """A function that returns the seconds counted for each pack, without training any."""

    def stop(timetable, pieces, tell):
        raise PlannedError(pieces)

    def seconds():
        with pytest.raises(PlannedError) as planned:
            training_curves(TINY, Workplace(folder=tmp_path, device="cpu", progress=lambda share, doing: None))
        [pieces] = planned.value.args
        return [piece.seconds for piece in pieces]

    monkeypatch.setattr(Timetable, "work_off", stop)
    return seconds


def test_the_time_that_is_foretold_contains_the_measuring(planned_seconds, monkeypatch):
    monkeypatch.setattr(measure, "_measuring_seconds", lambda run, config, device: 0.0)
    training = planned_seconds()
    monkeypatch.setattr(measure, "_measuring_seconds", lambda run, config, device: 100.0)
    assert planned_seconds() == pytest.approx([each + 100.0 * len(TINY.seeds) for each in training])
    assert len(training) == 2 and all(each > 0 for each in training)


def test_the_time_of_measuring_is_that_of_one_network_for_every_checkpoint(monkeypatch):
    pause, num_checkpoints = 0.05, 3
    seen = []
    monkeypatch.setattr(measure, "_network_rows", lambda run, *rest: seen.append(run) or time.sleep(pause))
    [run, _] = measure._runs(TINY, DEEP)
    found = measure._measuring_seconds(with_vocabulary(run.config), TINY, "cpu")
    assert len(seen) == 1
    assert num_checkpoints * pause <= found < 20 * num_checkpoints * pause  # others may keep the machine busy


def test_settings_that_miss_the_end_or_swap_the_trees_are_refused():
    with pytest.raises(ValueError, match="must divide `steps`"):
        replace(TINY, checkpoint_every=3)
    with pytest.raises(ValueError, match="must be deeper"):
        replace(TINY, deep=TINY.shallow)


def test_theorem5_is_refuted_as_printed_and_right_with_another_root_parameter(theory):
    verdict = judge.theorem_verdict(with_tables(**theory), FULL)
    assert verdict.sound and verdict.outcome == Outcome.REFUTED and "2P[y₁=0] − 1" in verdict.correction
    wrong = theory["cooccurrence"].assign(formula=lambda table: table["formula"] * 1.01)
    assert not judge.theorem_verdict(with_tables(cooccurrence=wrong), FULL).sound
    right = theory["cooccurrence"].assign(printed=theory["cooccurrence"]["formula"])
    assert judge.theorem_verdict(with_tables(cooccurrence=right), FULL).outcome == Outcome.HOLDS


def test_the_limit_is_one_of_small_epsilon(theory):
    assert judge.limit_verdict(with_tables(**theory), FULL).outcome == Outcome.CONDITIONAL
    wrong = theory["limit"].assign(limit=lambda table: table["limit"] - 0.1)
    assert judge.limit_verdict(with_tables(limit=wrong), FULL).outcome == Outcome.REFUTED
    close = theory["limit"].assign(exact=theory["limit"]["limit"])
    assert judge.limit_verdict(with_tables(limit=close), FULL).outcome == Outcome.HOLDS


def test_the_order_of_the_theory_holds_and_a_reversed_one_fails(theory):
    config = replace(FULL, rho=figure5.quick().rho)
    verdict = judge.order_verdict(with_tables(**theory), config)
    assert verdict.outcome == Outcome.HOLDS
    assert [each.control_holds for each in verdict.evidence] == [False, False, False]
    reversed_times = theory["flow_times"].assign(height=lambda table: -table["height"])
    assert (
        judge.order_verdict(with_tables(**theory | {"flow_times": reversed_times}), config).outcome == Outcome.REFUTED
    )


def test_a_flow_attends_to_near_tokens_first_and_to_all_in_the_end(theory):
    flow = theory["flow"]
    own = flow[(flow["tree"] == DEEP) & (flow["flow"] == "Eqn 6")].pivot(
        index="t", columns="height", values="attention"
    )
    assert (own[1] >= own[4] - 1e-12).all()


def made_up_curves(value, *, control=lambda what, height, step: 1.0, noise=0.002, trees=(DEEP, SHALLOW)):
    """Curves of four seeds over steps 0 to 10 with `value(tree, what, layer, height, step)`."""
    rows = []
    for tree in trees:
        num_heights = 4 if tree == DEEP else 2
        for seed in range(4):
            for step in range(11):
                for layer in range(3):
                    for what, heights in ((NCORR, range(1, num_heights)), (ATTENTION, range(1, num_heights + 1))):
                        rows += [
                            {
                                "tree": tree,
                                "seed": seed,
                                "step": step,
                                "what": what,
                                "layer": layer,
                                "height": height,
                                "value": value(tree, what, layer, height, step) + noise * seed * step / 10,
                                "control": control(what, height, step),
                            }
                            for height in heights
                        ]
    return pd.DataFrame(rows)


LATER_ON_DEEP = pd.DataFrame(
    [
        {"tree": tree, "rho": FULL.rho, "flow": flow, "height": height, "half": half}
        for tree, halves in ((DEEP, {1: 1.0, 4: 1.5}), (SHALLOW, {1: 1.0, 2: 1.2}))
        for flow in measure.FLOWS
        for height, half in halves.items()
    ]
)
"""Half times as the claim on depth has them."""


def judged_in_full(verdict, curves, config=FULL, flow_times=LATER_ON_DEEP, leads=None):
    leads = attention_leads(curves) if leads is None else leads
    tables = {"levels": learned_levels(curves), "leads": leads, "flow_times": flow_times}
    return verdict(with_tables(**tables, cooccurrence=cooccurrences(figure5.quick())), config)


def judged(verdict, curves, config=FULL):
    return judged_in_full(verdict, curves, config).outcome


def flat(tree, what, layer, height, step):
    return 0.6 if what == NCORR else 1.0


def bottom_up(tree, what, layer, height, step):
    """Level h is learned at step 2h, most of all in block h − 1; attention leads, then reaches out."""
    if what == NCORR:
        return 0.5 + (0.2 + 0.1 * (layer == height - 1)) * (step >= 2 * height)
    lead = 0.5 * np.sin(np.pi * step / 12) if tree == DEEP else 0.02 * step / 10
    return np.exp(lead) if height == 1 else 1.0


def top_down(tree, what, layer, height, step):
    if what == NCORR:
        return 0.5 + (0.2 + 0.1 * (layer == 3 - height)) * (step >= 8 - 2 * height)
    return 1.0 if height == 1 else 1 + 0.05 * step


ALL = [judge.attention_verdict, judge.depth_verdict, judge.levels_verdict, judge.blocks_verdict]


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.__name__)
def test_claims_on_training_hold_for_a_network_that_learns_bottom_up(verdict):
    assert judged(verdict, made_up_curves(bottom_up)) == Outcome.HOLDS
    assert judged(verdict, made_up_curves(bottom_up), figure5.quick()) == Outcome.HOLDS


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.__name__)
def test_claims_on_training_fail_for_one_that_learns_top_down(verdict):
    assert judged(verdict, made_up_curves(top_down)) == Outcome.REFUTED
    assert judged(verdict, made_up_curves(top_down), figure5.quick()) == Outcome.INCONCLUSIVE


def test_of_the_shallow_trees_one_level_it_is_told_what_training_adds():
    words = judged_in_full(judge.levels_verdict, made_up_curves(bottom_up)).explanation
    assert "The shallow tree has one level of latents, so that none comes before another; training adds" in words
    assert "block 0 +0.30" in words and "half of it by step 2" in words
    assert "half of it by step" not in judged_in_full(judge.levels_verdict, made_up_curves(flat)).explanation


def test_what_is_added_counts_from_the_first_step_of_each_curve():
    means = measure.over_seeds(made_up_curves(bottom_up, control=lambda what, height, step: 0.1 * height + 0.01 * step))
    for _, own in means.groupby(["tree", "what", "layer", "height"]):
        start = own[own["step"] == 0].iloc[0]
        np.testing.assert_allclose(own["added"], own["value"] - start["value"], atol=1e-12)
        np.testing.assert_allclose(own["added_control"], 0.01 * own["step"], atol=1e-12)


def test_a_network_that_learns_nothing_has_no_first_level():
    curves = made_up_curves(flat)
    assert judged(judge.levels_verdict, curves) == Outcome.INCONCLUSIVE
    assert judged(judge.attention_verdict, curves) == Outcome.REFUTED
    assert judge.first_levels(learned_levels(curves)) == {}


def test_a_lead_that_relabelled_leaves_have_too_is_none():
    def as_large(what, height, step):
        return bottom_up(DEEP, what, 0, height, step)

    assert judged(judge.attention_verdict, made_up_curves(bottom_up, control=as_large)) == Outcome.REFUTED


def test_a_lead_that_stays_holds_under_conditions():
    def staying(tree, what, layer, height, step):
        return np.exp(0.05 * step) if what == ATTENTION and height == 1 else 1.0

    assert judged(judge.attention_verdict, made_up_curves(staying)) == Outcome.CONDITIONAL


@pytest.mark.parametrize("shape", [bottom_up, top_down], ids=["as claimed", "against the claim"])
def test_trees_on_which_the_theory_itself_denies_the_claim_cannot_decide_it(theory, shape):
    found = judged_in_full(judge.depth_verdict, made_up_curves(shape), flow_times=theory["flow_times"])
    assert found.outcome == Outcome.INCONCLUSIVE and "Depth alone is not separated" in found.explanation
    assert [row.holds for row in found.evidence if not row.decides] == [False, False, False]
    one_denies = LATER_ON_DEEP.copy()
    is_far = one_denies["tree"].eq(SHALLOW) & one_denies["flow"].eq("Eqn 6") & one_denies["height"].eq(2)
    one_denies.loc[is_far, "half"] = 1.6
    found = judged_in_full(judge.depth_verdict, made_up_curves(shape), flow_times=one_denies)
    assert found.outcome == Outcome.INCONCLUSIVE and "foretold by Eqn 6 from" in found.explanation


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.2, 0.5), ", as foretold by"),
        ((0.5, 0.2), ", other than foretold by"),
        ((0.49, 0.5), ", which does not tell whether it is as foretold by"),
    ],
    ids=["as foretold", "the other way", "within the error"],
)
def test_what_is_measured_is_as_foretold_only_where_it_stands_out_from_its_error(theory, ends, said):
    curves = made_up_curves(bottom_up)
    leads = attention_leads(curves)
    for tree, end in zip((DEEP, SHALLOW), ends, strict=True):
        own = (leads["tree"] == tree) & (leads["layer"] == 0)
        leads.loc[own, "end"] = end + 0.01 * np.linspace(-1, 1, own.sum())
    found = judged_in_full(judge.depth_verdict, curves, flow_times=theory["flow_times"], leads=leads)
    assert found.outcome == Outcome.INCONCLUSIVE and said in found.explanation


def test_the_part_of_a_lead_that_is_gone_is_one_of_means_and_no_small_lead_drives_it():
    leads = pd.DataFrame({"largest": [0.3, 0.3, 0.3, 0.01], "end": [0.2, 0.2, 0.2, -0.04]})
    gone, error = judge.part_gone(leads)
    assert gone == pytest.approx(1 - 0.56 / 0.91) and 0 < error < 0.1
    assert (1 - leads["end"] / leads["largest"]).mean() > 1.4  # what the mean of parts would say
    assert judge.part_gone(leads.assign(end=leads["largest"] / 2)) == pytest.approx((0.5, 0.0))
    assert all(np.isnan(judge.part_gone(leads.assign(largest=0.0))))
    assert np.isnan(judge.part_gone(leads[:1])[1])


def test_half_steps_lie_between_measurements():
    levels = learned_levels(made_up_curves(bottom_up, noise=0.0))
    deep = levels[levels["tree"] == DEEP].groupby("height")["half_step"].mean()
    assert deep.tolist() == [1.5, 3.5, 5.5]
    assert judge.first_levels(levels[levels["tree"] == DEEP]) == {0: 1, 1: 1, 2: 1}


def test_a_crossing_that_never_comes_is_nan():
    assert np.isnan(_crossing(np.arange(3.0), np.zeros(3), 1.0))
    assert _crossing(np.arange(3.0), np.arange(3.0), 0.5) == 0.5


def test_errors_between_seeds():
    assert mean_and_error([1.0, 2.0, 3.0]) == pytest.approx((2.0, 1 / np.sqrt(3)))
    assert np.isnan(mean_and_error([1.0])[1])
    assert exceeds(float("nan"), float("nan"), 0.1) is None
    assert exceeds(1.0, float("nan"), 0.1) is None
