"""The curves behind the sliders: those of `simulate`, laws that differ as the paper's errata say, and refusals."""

import json

import numpy as np
import pytest

from joma.explore.sliders import FEW, NUM_POINTS, SLIDERS, answer, few_controls
from joma.theory.simulation import simulate


def spread(curves):
    """Largest distance between the curves of tokens, relative to the largest value."""
    values = np.array(curves)
    return np.ptp(values, axis=0).max() / np.abs(values).max()


def test_the_curves_are_those_of_the_call_that_is_shown():
    found = answer({"flow": "model", "tokens": "4", "seed": "3", "noise": "0.2", "rate_ratio": "2"})
    run = eval(found["call"], {"joma": __import__("joma")})
    order = np.argsort(run.flow.targets)[::-1]
    again = simulate(run.config, num_points=NUM_POINTS)
    assert found["targets"] == pytest.approx(run.flow.targets[order], rel=1e-3)
    for name in ("v", "z", "attention"):
        np.testing.assert_allclose(np.array(found[name]).T, getattr(again, name)[1:, order], rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(found["entropy"], again.entropy[1:], rtol=1e-5)


@pytest.fixture(scope="module")
def theorem2():
    """Theorem 2 away from the defaults."""
    return answer({"flow": "saliency", "temperature": "2", "rate_ratio": "3", "tokens": "4"})


def test_theorem_2_is_shared_by_all_tokens_in_the_corrected_form_alone(theorem2):
    assert spread(theorem2["law"]["corrected"]) < 1e-3
    assert spread(theorem2["law"]["printed"]) > 0.1


def test_theorem_1_as_printed_drifts_unless_temperature_and_rates_are_one(theorem2):
    assert max(theorem2["drift"]["corrected"]) < 1e-9
    assert max(theorem2["drift"]["printed"]) > 0.1
    equal, unequal = (
        answer({"flow": "saliency", "attention": "linear", "rate_ratio": ratio})["drift"] for ratio in ("1", "2")
    )
    assert equal["printed"] == equal["corrected"]
    assert max(unequal["printed"]) > 0.1


def test_eqn_6_dips_deeper_as_printed_than_the_model_does():
    found = answer({"flow": "printed", "tokens": "4"})
    assert found["law"]["printed"][0] == found["entropy"]
    assert min(found["law"]["printed"][0]) < min(found["law"]["corrected"][0]) - 1
    assert found["dip"]["rise"] > 0.1
    end = answer({"flow": "model", "tokens": "4"})["law"]["printed"][0][-1]
    assert end == pytest.approx(found["entropy"][-1], abs=0.01)


def test_the_arrows_of_the_phase_portrait_point_along_the_flow(theorem2):
    """Under exp attention dz/dv is v·η_z/(η_w T), whatever the push."""
    v, z, v2, z2 = np.array(theorem2["arrows"]).T
    moving = np.abs(v2 - v) > 1e-3
    slope = (z2 - z)[moving] / (v2 - v)[moving]
    np.testing.assert_allclose(slope, 1.5 * (v + v2)[moving] / 2, rtol=0.03, atol=0.03)
    assert (v2 > v)[moving].all()


@pytest.mark.parametrize(
    "asked",
    [
        {"flow": "../../etc/passwd"},
        {"attention": "EXP"},
        {"tokens": "1000000"},
        {"tokens": "2.5"},
        {"seed": "-1"},
        {"temperature": "nan"},
        {"temperature": "inf"},
        {"temperature": "0"},
        {"noise": "1e308"},
        {"high": ""},
        {"num_points": "10000000"},
        {"low": "4", "high": "1"},
        {"flow": "model", "attention": "softmax"},
        {"flow": "printed", "activation": "relu"},
    ],
)
def test_bad_values_and_combinations_are_one_line(asked):
    found = answer(asked)
    assert set(found) == {"error"}
    assert "\n" not in found["error"]


@pytest.mark.parametrize("control", SLIDERS[3:], ids=lambda each: each.name)
def test_both_ends_of_every_slider_answer_in_json(control):
    for value in (control.values[0], control.values[-1]):
        asked = {"flow": "saliency", "attention": "linear", "activation": "tanh", "low": "-4", "high": "5"}
        found = answer(asked | {control.name: str(value)})
        assert len(json.dumps(found["v"], allow_nan=False)) < 1e5


def test_the_page_without_a_server_keeps_every_start_among_its_few_values():
    assert [each.name for each in few_controls()] == [each.name for each in SLIDERS if each.name in FEW]
    assert all(each.start in each.values for each in few_controls())
    assert set(FEW["temperature"]) <= set(next(each for each in SLIDERS if each.name == "temperature").values)
