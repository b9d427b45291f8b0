"""Simulated flows: closed form against the joint ODE, what is conserved, blow-ups, limits, and bad input."""

import json
import time
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.errors import AssumptionError
from joma.theory import simulation
from joma.theory.activations import ACTIVATIONS, activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.flows import FLOWS, SoftmaxSaliencyFlow, flow_class
from joma.theory.layer import Embeddings, Layer, Samples
from joma.theory.rebound import entropy_rebound
from joma.theory.saliency import saliency
from joma.theory.simulation import SimulationConfig, figure4

CLOSED_FORM = 1e-9
"""Largest distance of a closed form from the ODE."""
DRIFT = 1e-10
"""Largest drift of an invariant: the integrator's 1e-12, on logits that reach a hundred."""
NUM_POINTS = 40

few_examples = settings(max_examples=6, phases=(Phase.generate,))
"""For whole simulations, which are too slow to shrink."""


def simulate(*args, **options):
    """Simulate as a user does, without the shape checker, which would take most of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        return simulation.simulate(*args, **options)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


signs = st.sampled_from([-1.0, 1.0])
logits = arrays(np.float64, 3, elements=st.floats(-0.5, 0.5))
sizes = st.floats(0.2, 2.5)
scales = st.floats(0.7, 1.5)


@st.composite
def targets(draw, size=3):
    return [draw(signs) * draw(sizes) for _ in range(size)]


@st.composite
def options(draw, flow, attention):
    """A random setting; under linear attention v starts on the target's side, as its closed form needs."""
    mu = draw(targets())
    start = [draw(st.floats(0.05, 0.6)) * (np.sign(m) if attention == "linear" else draw(signs)) for m in mu]
    return {
        "flow": flow,
        "attention": attention,
        "targets": mu,
        "v0": start,
        "z0": draw(st.none() | logits) if attention == "exp" else None,
        "temperature": draw(scales),
        "rate_ratio": draw(scales),
        "normalisation": draw(scales),
        "num_points": NUM_POINTS,
    }


EXACT = [("saliency", "exp"), ("saliency", "linear"), ("printed", "exp"), ("printed", "linear"), ("model", "exp")]


@pytest.mark.parametrize(("flow", "attention"), EXACT, ids=["-".join(case) for case in EXACT])
@few_examples
@given(data=st.data())
def test_closed_form_agrees_with_the_joint_ode_which_conserves_its_invariant(flow, attention, data):
    run = simulate(**data.draw(options(flow, attention)))
    assert run.closed_form_distance <= CLOSED_FORM
    assert run.drift.max() <= DRIFT * max(1.0, np.square(run.z).max())
    assert run.t[0] == 0 and run.t.size == NUM_POINTS


@st.composite
def saliency_flows(draw):
    kind = draw(st.sampled_from(list(AttentionKind)))
    cls = flow_class("saliency", kind)
    vectors = arrays(np.float64, 4, elements=st.floats(0.1, 2.0))
    return cls(
        targets=draw(vectors) * np.array([1, -1, 1, 1]),
        attention=Attention(kind=kind, temperature=draw(scales)),
        activation=activation(draw(st.sampled_from(sorted(ACTIVATIONS)))),
        v0=draw(vectors),
        z0=draw(vectors),
    )


@given(saliency_flows())
def test_saliency_field_is_the_gradient_of_the_layer(flow):
    """Against Eqn 2 of the layer, itself checked against autograd, at a point where the query's bias is zero."""
    num = flow.targets.size
    one_query = np.zeros(num, dtype=np.int64)
    softmax = isinstance(flow, SoftmaxSaliencyFlow)
    samples = Samples(x=flow.samples if softmax else np.eye(num), q=one_query)
    g = (num * (flow.gradients if softmax else flow.targets))[:, None]
    tokens = np.eye(num + 1)
    layer = Layer(
        embeddings=Embeddings(contextual=tokens[:, :num], queries=tokens[:, num:]),
        attention=flow.attention,
        activation=flow.activation,
    )
    expected = layer.gradient(np.append(flow.v0, 0.0)[None], flow.z0[None], samples, g)
    found = flow.field(0.0, flow.start_state)
    np.testing.assert_allclose(found["v"], expected.w[0, :num], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["z"], expected.z[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(saliency(samples, g)[0, 0], flow.targets, rtol=1e-12)


def test_blow_up_names_the_winner_of_a_close_race():
    run = simulate(targets=[1.0, 1.0001, 0.9999], num_points=NUM_POINTS)
    assert run.blow_up.component == (1,)
    assert run.blow_up.time == pytest.approx(1.253188818, rel=1e-9)


def test_an_end_before_the_blow_up_is_kept_and_the_blow_up_still_known():
    run = simulate(targets=[1.0, 0.5], t1=1.0)
    assert run.blow_up is None and run.t[-1] == 1.0
    effects = run.effects()
    assert effects["end time"] == 1.0 and "blow-up: time" not in effects
    assert effects["blow-up by Theorem 2: time"] == pytest.approx(1.253314137, rel=1e-9)


@pytest.mark.parametrize("flow", ["printed", "normalised", "model"])
def test_figure_4_drops_and_rebounds(flow):
    run = simulate(figure4(flow))
    assert run.flow.targets.size == 10 and run.v[0] == pytest.approx(0.05)
    assert run.rebound.start == pytest.approx(np.log(10)) and run.rebound.occurs
    golden = {"printed": (0.1522, 0.954), "normalised": (0.9407, 0.608), "model": (2.2702, 0.0163)}
    lowest, rise = golden[flow]
    assert run.rebound.lowest == pytest.approx(lowest, abs=1e-4) and run.rebound.rise == pytest.approx(rise, abs=1e-3)


def test_the_dip_is_found_between_the_reported_times():
    run = simulate(figure4(), num_points=60)
    exact = entropy_rebound(run.flow.tied)
    assert run.rebound.lowest == pytest.approx(exact.lowest, abs=1e-4) and run.rebound.lowest < run.entropy.min()
    assert run.rebound.time == pytest.approx(exact.time, rel=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        figure4("model"),
        SimulationConfig(flow="normalised", targets=[1.0, 2.0]),
        SimulationConfig(flow="printed", attention="linear", targets=[1.0, -2.0]),
        SimulationConfig(flow="clusters", targets=[0.8, 0.5]),
    ],
    ids=["model", "normalised", "linear", "clusters"],
)
def test_the_default_end_is_where_all_components_have_settled(config):
    run = simulate(config)
    left = np.abs(run.v[-1] - run.flow.limits()) / np.abs(run.flow.limits() - run.v[0])
    assert left.max() <= 1.1e-3
    assert left.max() > 1e-5  # not far beyond


def test_clusters_without_a_critical_point_blow_up():
    run = simulate(flow="clusters", targets=[3.0, 2.0], num_points=NUM_POINTS)
    assert run.flow.limits() is None and run.blow_up is not None
    assert np.isnan([row["limit"] for row in run.summary_rows()]).all()


def test_laws_are_seeded_and_streams_are_apart():
    config = SimulationConfig(targets="uniform:1:4", v0="normal:0:0.1", num_components=50)
    first, again, other = config.build(), config.build(), replace(config, seed=1).build()
    np.testing.assert_array_equal(first.targets, again.targets)
    np.testing.assert_array_equal(first.v0, again.v0)
    assert (first.targets != other.targets).all() and first.targets.size == 50
    assert first.targets.min() >= 1 and first.targets.max() <= 4
    assert abs(np.corrcoef(first.targets, first.v0)[0, 1]) < 0.5


def test_text_numbers_and_arrays_mean_the_same():
    configs = [SimulationConfig(targets=given) for given in ("1, 0.5", [1, 0.5], np.array([1.0, 0.5]), (1.0, 0.5))]
    assert all(config == configs[0] for config in configs)


def test_options_replace_fields_of_a_config():
    run = simulate(figure4("model"), num_points=5, spacing="linear", t1=2.0)
    np.testing.assert_array_equal(run.t, np.linspace(0.0, 2.0, 5))
    assert run.config.targets == figure4().targets and not run.log_time


def test_a_simulation_is_plain_columns_rows_and_json():
    run = simulate(targets=[1.0, 0.5], num_points=NUM_POINTS)
    columns = run.columns()
    assert list(columns)[:5] == ["t", "entropy", "drift", "v_0", "v_1"] and "v_integrated_1" in columns
    assert all(column.shape == (NUM_POINTS,) for column in columns.values())
    assert "v_integrated_0" not in simulate(attention="softmax", targets=[1.0, 0.5]).columns()
    np.testing.assert_allclose(run.attention.sum(axis=1), 1.0)
    assert run.summary_rows()[0] == pytest.approx(
        {"component": 0, "target": 1, "start": 0, "end": run.v[-1, 0], "limit": np.inf, "attention": 0.9944}, abs=1e-3
    )
    record = json.loads(json.dumps(run.as_dict(), allow_nan=False))
    assert record["blow_up"]["component"] == [0] and record["components"][0]["limit"] is None


@pytest.mark.parametrize(("flow", "attention"), [*EXACT, ("saliency", "softmax"), ("normalised", None)])
def test_shapes_are_as_declared(flow, attention):
    """With the shape checker on."""
    run = simulation.simulate(flow=flow, attention=attention, targets=[1.0, 0.6], t1=0.5, num_points=5)
    assert run.v.shape == run.z.shape == run.attention.shape == (5, 2)
    assert run.entropy.shape == run.drift.shape == (5,)


def test_every_flow_runs_with_nothing_but_its_name():
    for name in FLOWS:
        run = simulate(flow=name, num_points=NUM_POINTS)
        assert run.title and np.isfinite(run.v).all() and np.isfinite(run.entropy).all()


BAD = [
    {"flow": "printd"},
    {"flow": "figure4"},
    {"flwo": "saliency"},
    {"attention": "soft"},
    {"activation": "relo"},
    {"spacing": "logg"},
    *({"targets": law} for law in ("unifrm:1:4", "uniform:1", "normal:nan:1", "uniform:4:1", "normal:0:0", "one,two")),
    *({"targets": values} for values in ([1.0, np.nan], [[1.0], [2.0]], [1e200], [], [0.0, 0.0])),
    *({"targets": [1, 2, 3], name: [0.1, 0.2]} for name in ("v0", "z0")),
    {"targets": [1, 2], "num_components": 3},
    *({"num_components": number} for number in (0, 2.5)),
    {"seed": -1},
    {"t1": -1.0},
    {"num_points": 1},
    {"flow": "printed", "attention": "softmax"},
    {"flow": "model", "attention": "linear"},
    *({"flow": flow, "activation": "tanh"} for flow in ("printed", "clusters")),
    *({"flow": "model", name: 1.0} for name in ("bias", "negative_weight", "common")),
    {"flow": "clusters", "bias": np.nan},
    {"attention": "softmax", "normalisation": 2.0},
    *({name: value, "v0": 0.0} for name, value in (("attention", "linear"), ("activation", "relu"))),
]


@pytest.mark.parametrize("options", BAD, ids=str)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_bad_input_is_refused_in_one_line(options):
    with pytest.raises(ValueError, match=r"`|\. [A-Z]") as refused:
        simulate(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("targets", [[9.0, 1.0], [10.0]], ids=["9 and 1", "10"])
def test_eqn_6_is_integrated_as_far_as_float64_can_tell_its_times_apart(targets):
    run = simulate(flow="printed", targets=targets)
    assert run.closed_form_distance <= CLOSED_FORM and run.drift.max() <= DRIFT and not run.obstacle


TOO_STIFF = {
    "20 and 1": {"flow": "printed", "targets": [20.0, 1.0]},
    "30, -10 and 2": {"flow": "printed", "targets": [30.0, -10.0, 2.0]},
    "beyond all floats": {"flow": "printed", "targets": [50.0, 2.0]},
    "cold": {"flow": "printed", "targets": [3.0, 1.0], "temperature": 0.1},
    "far start": {"flow": "model", "targets": [3.0, 1.0], "v0": -30.0},
    "model": {"flow": "model", "targets": [1e12, 1.0]},
}


@pytest.mark.parametrize("options", TOO_STIFF.values(), ids=TOO_STIFF)
def test_a_flow_too_stiff_to_integrate_is_solved_by_its_closed_form_and_says_so(options, monkeypatch):
    monkeypatch.setattr("joma.theory.simulation.MAX_WITH_CLOSED_FORM", 2000)
    run = simulate(**options, num_points=NUM_POINTS)
    assert run.closed_form_distance is None and run.drift is None and run.v_integrated is None and run.exact
    assert run.blow_up is None and run.num_evaluations == 0
    np.testing.assert_array_equal(run.v, run.flow.solution(run.t))
    np.testing.assert_allclose(run.flow.invariant.value(run.v[:, None], run.z[:, None]), 0, atol=1e-12 * run.z.max())
    left = np.abs(run.v[-1] - run.flow.limits()) / np.abs(run.flow.limits() - run.v[0])
    assert left.max() <= 1.1e-3  # the default end is where all have settled, if need be within one rounding of t
    assert run.obstacle and not any("drift" in name or "distance" in name for name in run.effects())
    record = json.loads(json.dumps(run.as_dict(), allow_nan=False))
    assert record["closed_form_distance"] is record["largest_drift"] is None and record["not_integrated"]
    assert np.isnan(run.columns()["drift"]).all() and "v_integrated_0" not in run.columns()


def test_the_closed_form_alone_goes_on_from_where_the_integrator_still_follows(monkeypatch):
    """The same run with and without an integrator."""
    options = {"targets": [1.0, -0.5], "v0": [0.3, 0.2], "z0": [0.1, 0.4], "rate_ratio": 2.0, "num_points": NUM_POINTS}
    integrated = simulate(attention="linear", **options)
    monkeypatch.setattr("joma.theory.simulation.MAX_WITH_CLOSED_FORM", 10)
    alone = simulate(attention="linear", **options)
    assert alone.obstacle and not integrated.obstacle
    np.testing.assert_array_equal(alone.t, integrated.t)
    np.testing.assert_array_equal(alone.v, integrated.v)
    np.testing.assert_allclose(alone.z, integrated.z, rtol=1e-9, atol=1e-9)
    assert alone.rebound.time == pytest.approx(integrated.rebound.time)
    assert alone.rebound.lowest == pytest.approx(integrated.rebound.lowest, abs=1e-9)


@pytest.mark.parametrize("start", [-30.0, -40.0], ids=["beyond steps", "beyond floats"])
def test_theorem_2_from_a_start_that_no_integrator_leaves_stands_by_itself(start):
    run = simulate(targets=[1.0, 0.5], v0=[start, -9.0], num_points=NUM_POINTS)
    assert "too fast" in run.obstacle and run.blow_up == run.predicted_blow_up
    assert run.blow_up.time == pytest.approx(np.sqrt(2 * np.pi))  # twice the time from zero: erfc goes from 2 to 0
    np.testing.assert_allclose(run.z, np.square(run.v) / 2, atol=1e-15 * start**2)  # rounding of z(0)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"attention": "softmax", "activation": "relu", "targets": [1.0, -0.7, 0.4]}, r"Pass a `t1` below 0.0285"),
        ({"attention": "softmax", "targets": [1.0, 0.5], "t1": 1e6}, r"Pass a `t1` below \S+e\+0[34]"),
        (
            {"flow": "clusters", "targets": [1.0, 0.0], "bias": 0.0},
            r"reach zero at t = 0.9365.*smaller `t1`, or another",
        ),
        ({"attention": "linear", "targets": [1.0, 0.5], "t1": 1000.0}, r"at t = 348.*Pass a smaller `t1`"),
    ],
    ids=["kink", "stiff", "zero weights", "growth"],
)
def test_what_cannot_be_followed_is_given_up_soon_with_advice(options, advice):
    began = time.process_time()
    with pytest.raises((ArithmeticError, AssumptionError), match=advice):
        simulate(**options)
    assert time.process_time() - began < 2
