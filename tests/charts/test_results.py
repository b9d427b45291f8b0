"""Charts of simulations and of every result that has columns."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import joma
from joma.charts import simulation_charts
from joma.theory.simulation import figure4, simulate

from .test_charts import encoding, rows, views


@pytest.fixture(scope="module")
def relaxing():
    return simulate(figure4("model"), num_points=40)


@pytest.fixture(scope="module")
def diverging():
    return simulate(targets=[1.0, 0.5, -0.2], num_points=30)


def rule_values(view, axis):
    data = [row for layer in view["layer"] for row in layer.get("data", {}).get("values", ()) if "label" in row]
    return [row[axis] for row in data if axis in row and ("x" not in row or "y" not in row)]


def test_charts_hold_weights_entropy_and_drift(relaxing):
    weights, entropy, drift = (chart.to_dict() for chart in simulation_charts(relaxing))
    found = rows(weights)
    assert found["color"].nunique() == relaxing.v.shape[1]
    for component, (_, own) in enumerate(found.groupby("color", sort=False)):
        np.testing.assert_allclose(own["y"], relaxing.v[1:, component], rtol=1e-6)  # a logarithmic axis has no zero
        np.testing.assert_allclose(own["x"], relaxing.t[1:], rtol=1e-6)
    np.testing.assert_allclose(rows(entropy)["y"], relaxing.entropy[1:], rtol=1e-6)
    known = rows(drift)["y"].notna()
    np.testing.assert_allclose(rows(drift)["y"][known], relaxing.drift[1:][known], rtol=1e-6)
    assert all(encoding(view, "x", "x")["scale"]["type"] == "log" for view in (weights, entropy, drift))


def test_limits_dip_and_uniform_entropy_are_marked(relaxing):
    weights, entropy, _ = (chart.to_dict() for chart in simulation_charts(relaxing))
    np.testing.assert_allclose(rule_values(weights, "y"), relaxing.flow.limits())
    np.testing.assert_allclose(rule_values(entropy, "y"), np.log(relaxing.v.shape[1]))
    [dip] = [row for layer in entropy["layer"] for row in layer.get("data", {}).get("values", ()) if "x" in row][:1]
    np.testing.assert_allclose([dip["x"], dip["y"]], [relaxing.rebound.time, relaxing.rebound.lowest], rtol=1e-6)


def test_the_blow_up_is_marked_in_every_panel(diverging):
    whole = joma.plot(diverging).to_dict()
    assert len(views(whole)) == 3
    for view in views(whole):
        assert diverging.blow_up.time in rule_values(view, "x")
        assert encoding(view, "x", "x")["scale"]["domain"][0] == 0


def test_shades_follow_the_size_of_the_targets(diverging):
    scale = encoding(simulation_charts(diverging)[0].to_dict(), "color", "color")["scale"]
    assert scale["range"] == "ramp" and [name[0] for name in scale["domain"]] == ["2", "1", "0"]


def test_many_components_get_a_colour_bar_and_no_limits():
    view = simulation_charts(simulate(flow="model", num_components=45, num_points=10))[0].to_dict()
    assert encoding(view, "color", "color")["type"] == "quantitative" and not rule_values(view, "y")


def test_a_drift_that_is_zero_or_unknown_has_no_panel(monkeypatch):
    assert len(simulation_charts(simulate(targets=[1.0], attention="softmax", num_points=5))) == 2
    monkeypatch.setattr("joma.theory.simulation.MAX_WITH_CLOSED_FORM", 10)
    assert len(simulation_charts(simulate(figure4(), num_points=10))) == 2


@dataclass
class Result:
    """As theory returns them."""

    size: int

    def columns(self):
        t = np.linspace(0.0, 1.0, self.size)
        return {"t": t, "v_0": t, "v_1": t**2, "loss": 1 - t}


def test_every_result_with_columns_is_a_table_and_a_chart(relaxing):
    assert list(joma.frame(Result(9))) == ["t", "v_0", "v_1", "loss"]
    pd.testing.assert_frame_equal(joma.frame(relaxing), pd.DataFrame(relaxing.columns()))
    spec = joma.plot(Result(9)).to_dict()
    assert [view["title"] for view in views(spec)] == ["v", "loss"]
    assert len(rows(views(spec)[0])) == 18
    assert len(rows(joma.plot(Result(1)).to_dict())) == 4
    with pytest.raises(TypeError, match="columns"):
        joma.plot(object())
