"""Entropy and stable rank along flows: gradients, the rebound condition, and the numbers of figure 4."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.differentiate import derivative

from joma.theory.attention_flow import AttentionFlow
from joma.theory.convergence import ConvergenceFlow, normalised_field, shared_solution
from joma.theory.integrate import integrate
from joma.theory.rebound import (
    attention_entropy,
    entropy,
    entropy_finally_rises,
    entropy_gradient,
    entropy_rebound,
    rank_rebound,
    rebound,
    stable_rank,
)
from joma.theory.simulation import FIGURE_4_TARGETS, simulate

FIGURE_4 = np.array(FIGURE_4_TARGETS)

logits = arrays(np.float64, 5, elements=st.floats(-5, 5))
targets = arrays(np.float64, 5, elements=st.floats(0.5, 3))


@given(logits)
def test_entropy_is_bounded_and_blind_to_a_shift(s):
    assert -1e-15 <= entropy(s) <= np.log(5) + 1e-14
    assert entropy(s + 3.0) == pytest.approx(float(entropy(s)), abs=1e-13)


@given(logits, st.integers(0, 4))
def test_entropy_gradient_is_its_derivative(s, i):
    def along(x):
        moved = np.repeat(s[:, None], x.size, axis=1)
        moved[i] += x.ravel()
        return entropy(moved.T).reshape(x.shape)

    assert entropy_gradient(s)[i] == pytest.approx(float(derivative(along, 0.0).df), abs=1e-9)


@given(targets)
def test_without_zeros_the_entropy_always_rises_at_the_end(mu):
    assume(np.ptp(mu) > 1e-3)
    assert entropy_finally_rises(mu)


def test_zeros_or_equal_targets_end_the_rebound():
    assert not entropy_finally_rises(np.array([0.0, 2.0]))
    assert not entropy_finally_rises(np.zeros(3))
    flat = entropy_rebound(ConvergenceFlow(mu=np.full(3, 2.0)))
    assert flat.drop == pytest.approx(0, abs=1e-15) and not flat.occurs
    still = entropy_rebound(ConvergenceFlow(mu=np.zeros(3)))
    assert still.drop == 0 and not still.occurs
    monotone = entropy_rebound(ConvergenceFlow(mu=np.array([0.0, 2.0])), 1.0)
    assert monotone.end == pytest.approx(0.0901, abs=5e-5) and monotone.rise == pytest.approx(0, abs=1e-14)


@given(arrays(np.float64, 4, elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])), st.floats(0.2, 8))
def test_the_entropy_finally_rises_where_it_grows_with_the_slowest_token(mu, temperature):
    moving = np.flatnonzero(mu)
    assume(moving.size > 0)
    step = np.zeros(4)
    step[moving[mu[moving].argmin()]] = 1e-6
    change = entropy(mu**2 / temperature + step) - entropy(mu**2 / temperature - step)
    assume(abs(change) > 1e-12)
    assert entropy_finally_rises(mu, temperature) == (change > 0)


def test_whether_the_entropy_finally_rises_depends_on_the_temperature():
    mu = np.array([0.0] * 8 + [1.0, 2.0])
    assert [entropy_finally_rises(mu, temperature) for temperature in (0.5, 2.0, 8.0)] == [True, True, False]


@pytest.mark.parametrize(("kind", "name"), [(ConvergenceFlow, "printed"), (AttentionFlow, "model")])
@pytest.mark.parametrize("given", ["temperature", "rate_ratio", "v0", "z0", "normalisation"])
def test_the_dip_is_that_of_the_simulation_with_its_own_scales_and_start(kind, name, given):
    """A run ends a thousandth of the way before its limit, and looks for the dip on a grid of times."""
    options = {
        "temperature": 0.7,
        "rate_ratio": 0.5,
        "v0": [0.5, 0.2, -0.3],
        "z0": [0.1, -0.4, 0.3],
        "normalisation": 2.0,
    }
    run = simulate(flow=name, targets=[1.0, -2.0, 2.5], **{given: options[given]}).rebound
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in options.items()}
    dip = entropy_rebound(kind(mu=np.array([1.0, -2.0, 2.5]), **{given: arrays[given]}))
    assert (dip.start, dip.lowest) == (pytest.approx(run.start, rel=1e-12), pytest.approx(run.lowest, abs=1e-6))
    assert (dip.time, dip.end) == (pytest.approx(run.time, rel=1e-4), pytest.approx(run.end, rel=2e-3))


@pytest.mark.parametrize("kind", [ConvergenceFlow, AttentionFlow])
@pytest.mark.parametrize("dip", [entropy_rebound, rank_rebound])
def test_many_dips_are_found_as_each_by_itself(kind, dip):
    mu = np.concatenate(
        [np.random.default_rng(0).uniform(0.5, 4, (3, 4)), [[2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 1.0]]]
    )
    many = dip(kind(mu=mu, temperature=np.array([[1.0], [2.0]])))
    assert many.lowest.shape == many.occurs.shape == (2, 5)
    for place in np.ndindex(2, 5):
        one = dip(kind(mu=mu[place[1]], temperature=[1.0, 2.0][place[0]]))
        for name in ("start", "lowest", "end", "drop", "rise"):
            assert getattr(many, name)[place] == pytest.approx(getattr(one, name), abs=1e-11)
        assert many.occurs[place] == one.occurs and (not one.occurs or many.time[place] == pytest.approx(one.time))


@given(targets, st.sampled_from([ConvergenceFlow, AttentionFlow]), st.sampled_from([1.0, 2.0, 3.0]))
def test_the_dip_is_the_lowest_point_of_the_integrated_flow(mu, kind, temperature):
    flow = kind(mu=mu)
    dip = entropy_rebound(flow, temperature)
    t = np.linspace(0, 3 * dip.time, 400)
    v = integrate(lambda _, s: {"v": flow.field(s["v"])}, {"v": flow.start}, t, rtol=1e-9, atol=1e-10)["v"]
    sampled = rebound(t, attention_entropy(v, temperature))
    # Sampling misses the bottom by the square of a step, here at most some 1e-3 of the drop; it never undercuts it.
    assert dip.lowest <= sampled.lowest + 1e-7
    assert dip.drop == pytest.approx(sampled.drop, rel=1e-2, abs=1e-9)


@pytest.mark.parametrize(
    ("temperature", "lowest", "end"),
    [(1.0, 0.00091, 0.31026), (2.0, 0.1497, 1.1062), (3.0, 0.6946, 1.6216)],
)
def test_figure_4_under_eqn_6(temperature, lowest, end):
    dip = entropy_rebound(ConvergenceFlow(mu=FIGURE_4), temperature)
    assert dip.occurs and dip.start == pytest.approx(np.log(10))
    assert (dip.lowest, dip.end) == (pytest.approx(lowest, abs=5e-5), pytest.approx(end, abs=5e-5))
    assert dip.time == pytest.approx(0.47, abs=0.005)


def test_figure_4_under_the_flow_that_attention_has():
    dip = entropy_rebound(AttentionFlow(mu=FIGURE_4))
    assert (dip.drop, dip.rise) == (pytest.approx(0.033, abs=5e-4), pytest.approx(0.017, abs=5e-4))


def test_figure_4_under_the_steps_that_drew_it():
    v, path = np.full(10, 0.05), []
    for _ in range(5000):
        path.append(v)
        v = v + 0.02 * normalised_field(v, FIGURE_4, 3.0)
    dip = rebound(np.arange(5000.0), attention_entropy(np.array(path), 3.0))
    assert dip.time == 669
    assert (dip.lowest, dip.end) == (pytest.approx(0.94157, abs=5e-6), pytest.approx(1.54931, abs=5e-6))


@given(targets)
def test_rank_dips_when_every_token_has_its_node(mu):
    assume(np.ptp(mu) > 0.1)
    dip = rank_rebound(ConvergenceFlow(mu=mu))
    assert dip.start == pytest.approx(dip.end)  # both are that of the target
    assert dip.occurs
    V = shared_solution(np.array([dip.time]), np.diag(mu))
    assert stable_rank(V)[0] == pytest.approx(dip.lowest)


def test_rank_rises_first_when_a_node_wants_many_weak_tokens():
    mu = np.array([[1.0] * 10 + [0.0], [0.0] * 10 + [2.5]])
    ranks = stable_rank(shared_solution(np.geomspace(1e-3, 20, 200), mu))
    assert ranks[0] == pytest.approx(1.625, abs=1e-4) and ranks[-1] == pytest.approx(1.625)
    assert ranks.max() > 1.98


def test_rank_under_the_flow_that_attention_has_ends_above_its_start():
    dip = rank_rebound(AttentionFlow(mu=FIGURE_4))
    assert dip.lowest < dip.start < dip.end


@given(arrays(np.float64, (3, 4), elements=st.floats(-2, 2)))
def test_stable_rank_is_a_ratio_of_norms(V):
    assume(np.abs(V).max() > 0.1)
    naive = np.linalg.norm(V) ** 2 / np.linalg.norm(V, 2) ** 2
    assert stable_rank(V) == pytest.approx(naive)
    assert 1 - 1e-12 <= naive <= 3 + 1e-12


def test_the_dip_of_strong_tokens_is_found_between_their_jumps():
    """Targets of 4 to 8 jump one after the other: between the first two, attention is on one token alone."""
    mu = np.random.default_rng(0).uniform(4, 8, size=10)
    dip = entropy_rebound(ConvergenceFlow(mu=mu), 1.0)
    assert dip.lowest < 1e-15
    assert dip.rise == pytest.approx(attention_entropy(mu, 1.0))
