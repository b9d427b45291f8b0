"""The pictures of a simulation show its numbers: lines, limits, dip and blow-up."""

import numpy as np
import pytest

from joma.figures.simulation import draw, interactive
from joma.theory.simulation import figure4, simulate


@pytest.fixture(scope="module")
def relaxing():
    return simulate(figure4("model"), num_points=40)


@pytest.fixture(scope="module")
def diverging():
    return simulate(targets=[1.0, 0.5, -0.2], num_points=30)


def test_still_picture_has_v_entropy_and_drift_over_a_common_time(relaxing):
    figure = draw(relaxing)
    weights, entropy, drift = figure.axes
    solid = [line for line in weights.get_lines() if line.get_linestyle() == "-"]
    assert len(solid) == relaxing.v.shape[1]
    for component, line in enumerate(solid):
        np.testing.assert_array_equal(line.get_ydata(), relaxing.v[:, component])
    np.testing.assert_array_equal(entropy.get_lines()[0].get_ydata(), relaxing.entropy)
    shown = drift.get_lines()[0].get_ydata()
    np.testing.assert_array_equal(shown[relaxing.drift > 0], relaxing.drift[relaxing.drift > 0])
    assert weights.get_shared_x_axes().joined(weights, drift) and weights.get_xscale() == "log"
    assert drift.get_yscale() == "log" and "1/η_w" in drift.get_xlabel() and "nats" in entropy.get_ylabel()


def test_dashed_lines_are_the_limits(relaxing):
    weights = draw(relaxing).axes[0]
    dashed = [line.get_ydata()[0] for line in weights.get_lines() if line.get_linestyle() == "--"]
    np.testing.assert_array_equal(dashed, relaxing.flow.limits())
    levels = [shape.y0 for shape in interactive(relaxing).layout.shapes if shape.line.dash == "dash"]
    np.testing.assert_array_equal(levels, relaxing.flow.limits())


def test_interactive_picture_has_the_same_numbers_without_the_zero_that_a_log_axis_lacks(relaxing):
    figure = interactive(relaxing)
    num = relaxing.v.shape[1]
    for component, trace in enumerate(figure.data[:num]):
        np.testing.assert_array_equal(trace.y, relaxing.v[1:, component])
        np.testing.assert_array_equal(trace.x, relaxing.t[1:])
    np.testing.assert_array_equal(figure.data[num].y, relaxing.entropy[1:])
    assert figure.layout.xaxis.type == "log" and [b.label for b in figure.layout.updatemenus[0].buttons] == [
        "linear time",
        "log time",
    ]
    dip = figure.data[-1]
    assert dip.x == (relaxing.rebound.time,) and dip.y == (relaxing.rebound.lowest,)


def test_both_pictures_mark_the_blow_up_and_name_its_component(diverging):
    text = "blow-up at t = 1.2533, component 0"
    still, moving = draw(diverging), interactive(diverging)
    assert text in [annotation.get_text() for annotation in still.axes[0].texts]
    for axis in still.axes:
        assert any(line.get_linestyle() == ":" and line.get_xdata()[0] == diverging.blow_up.time for line in axis.lines)
    assert text in [annotation.text for annotation in moving.layout.annotations]
    assert sum(shape.x0 == diverging.blow_up.time for shape in moving.layout.shapes) == 3
    assert moving.layout.xaxis.type == "linear" and moving.data[0].x[0] == 0


def test_colours_follow_the_size_of_the_targets_and_are_all_different(diverging):
    colours = [line.get_color() for line in draw(diverging).axes[0].get_lines()[:3]]
    other = [trace.line.color for trace in interactive(diverging).data[:3]]
    assert colours == other and len(set(colours)) == 3
    assert colours[0] > colours[2]  # viridis: the most salient component is the brightest


def test_many_components_get_a_colour_bar_and_no_legend():
    run = simulate(flow="model", num_components=45, num_points=10)
    still, moving = draw(run), interactive(run)
    assert len(still.axes) == 4 and still.axes[0].get_legend() is None
    assert not moving.layout.showlegend and not [s for s in moving.layout.shapes if s.line.dash == "dash"]


def test_a_drift_that_was_not_measured_is_said_to_be_so(monkeypatch):
    monkeypatch.setattr("joma.theory.simulation.MAX_BESIDE_CLOSED_FORM", 10)
    run = simulate(figure4(), num_points=10)
    still, moving = draw(run), interactive(run)
    still.canvas.draw()
    [words] = [text.get_text() for text in still.axes[2].texts]
    assert words.startswith("drift not measured") and words in [note.text for note in moving.layout.annotations]
    assert np.isnan(still.axes[2].get_lines()[0].get_ydata()).all()


def test_a_drift_of_zero_is_drawn():
    """Every component obeys the invariant to the last bit: nothing to show on a logarithmic axis, and no complaint."""
    run = simulate(targets=[1.0], attention="softmax", num_points=5)
    assert run.drift.max() == 0
    draw(run).canvas.draw()
    assert len(interactive(run).data) == 3
