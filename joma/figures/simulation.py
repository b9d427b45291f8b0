"""A simulated flow as a still picture and as an interactive one: v, attention entropy and drift over time."""

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.theory.simulation import Simulation
from joma.types import BlowUp

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOR_MAP = "viridis"
"""Perceptually even, and told apart with any kind of colour vision; the most salient component is the brightest."""
COLOR_RANGE = (0.0, 0.88)
"""Part of the map that is visible on white."""
INK, SOFT, ALARM = "#1d2433", "#5b6478", "#b3261e"
MAX_LEGEND = 12
"""Components that a legend can name; more get a colour bar."""
MAX_HOVER = 40
"""Components that the interactive picture can list at once; of more it names the one under the pointer."""
SIZE, DPI = (9.0, 8.5), 150
ROW_HEIGHTS = (3.0, 1.3, 1.3)
PLOT_HEIGHT = 820
"""Pixels of the interactive picture: three panels that stay readable on a phone."""
NUM_TICKS = 4
"""Ticks of the interactive time axis: on three decades of a logarithmic axis these are the decades."""
TIME, WEIGHTS, ENTROPY, DRIFT = "time t, in units of 1/η_w", "weights v", "entropy, nats", "drift"
NOT_MEASURED = "drift not measured: no integrator can follow this flow"
REMARK_WIDTH = 130
"""Characters of a remark above the still picture before it goes on in the next line."""


def draw(simulation: Simulation) -> "Figure":
    """Return three panels over a common time axis as a matplotlib figure; dashed lines are the limits of the theory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, height_ratios=ROW_HEIGHTS)
    figure.suptitle(simulation.title, color=INK, fontsize=13)
    _draw_weights(axes[0], simulation)
    _draw_entropy(axes[1], simulation)
    _draw_drift(axes[2], simulation)
    axes[2].set_xlabel(TIME)
    if simulation.log_time:
        axes[2].set_xscale("log")
        axes[2].set_xlim(simulation.t[1], simulation.t[-1])
    for axis in axes:
        axis.grid(color="#e4e7ee", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        if simulation.blow_up is not None:
            axis.axvline(simulation.blow_up.time, color=ALARM, linewidth=1.2, linestyle=":")
    return figure


def interactive(simulation: Simulation) -> "go.Figure":
    """Return the same panels as a plotly figure: lines to hover over and to switch off, and a choice of time axis."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=list(ROW_HEIGHTS))
    positive = slice(1, None) if simulation.log_time else slice(None)  # a logarithmic axis has no zero
    common = {"type": "scatter", "mode": "lines", "x": simulation.t[positive], "hovertemplate": "%{y:.5g}"}
    weights = [
        common
        | {"y": simulation.v[positive, component], "name": _name(simulation, component)}
        | {"line": {"color": color, "width": 2, "simplify": False}}
        for component, color in enumerate(_colors(simulation))
    ]
    single = common | {"showlegend": False, "line": {"color": INK, "width": 2}}
    entropy = single | {"y": simulation.entropy[positive], "name": "entropy", "yaxis": "y2", "xaxis": "x2"}
    drift = single | {"y": _visible_drift(simulation)[positive], "name": "drift", "yaxis": "y3", "xaxis": "x3"}
    figure.add_traces([*weights, entropy, drift])
    if simulation.drift is None:
        figure.add_annotation(text=NOT_MEASURED, xref="x3 domain", yref="y3 domain", x=0.5, y=0.5, showarrow=False)
    figure.update_layout(shapes=_level_lines(simulation))
    _mark_events(figure, simulation)
    _lay_out(figure, simulation)
    return figure


def _draw_weights(axis: "Axes", simulation: Simulation) -> None:
    colors = _colors(simulation)
    for component, color in enumerate(colors):
        name = _name(simulation, component)
        axis.plot(simulation.t, simulation.v[:, component], color=color, label=name, linewidth=1.8)
    for limit, color in _limits(simulation):
        axis.axhline(limit, color=color, linestyle="--", linewidth=0.9, alpha=0.7)
    if simulation.blow_up is not None:
        axis.annotate(
            _blow_up_label(simulation.blow_up),
            (simulation.blow_up.time, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            color=ALARM,
            ha="right",
            va="top",
        )
    axis.set_ylabel(WEIGHTS)
    remarks = [textwrap.fill(remark, REMARK_WIDTH) for remark in simulation.remarks()]
    axis.set_title("\n".join(remarks), fontsize=8.5, color=SOFT, loc="left")
    if len(colors) <= MAX_LEGEND:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    else:
        _add_color_bar(axis, simulation)


def _draw_entropy(axis: "Axes", simulation: Simulation) -> None:
    axis.plot(simulation.t, simulation.entropy, color=INK, linewidth=1.8)
    axis.axhline(_largest_entropy(simulation), color=SOFT, linestyle=":", linewidth=0.9, label="uniform attention")
    axis.legend(loc="lower left", frameon=False, fontsize=8, labelcolor=SOFT)
    axis.set_ylabel(f"attention\n{ENTROPY}")
    dip = simulation.rebound
    if dip.occurs:
        axis.plot([dip.time], [dip.lowest], marker="o", color=ALARM, markersize=5)


def _draw_drift(axis: "Axes", simulation: Simulation) -> None:
    drift = _visible_drift(simulation)
    axis.plot(simulation.t, drift, color=INK, linewidth=1.2)
    axis.set_ylabel(f"{DRIFT} of\n{simulation.flow.conserved}")
    if np.isfinite(drift).any():
        axis.set_yscale("log")
    if simulation.drift is None:
        axis.text(0.5, 0.5, NOT_MEASURED, transform=axis.transAxes, ha="center", va="center", color=SOFT)
        axis.set_yticks([])


def _add_color_bar(axis: "Axes", simulation: Simulation) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    order = np.argsort(np.abs(simulation.flow.targets))
    shades = ListedColormap(np.array(_colors(simulation))[order])
    bar = axis.figure.colorbar(ScalarMappable(Normalize(0, order.size), shades), ax=axis, pad=0.01)
    bar.set_label("rank of |target|")


def _level_lines(simulation: Simulation) -> list[dict[str, Any]]:
    """Dashed lines at the limits of v, and a dotted one at the entropy of uniform attention."""
    across = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "layer": "below"}
    limits = [
        across | {"yref": "y", "y0": limit, "y1": limit, "line": {"color": color, "width": 1, "dash": "dash"}}
        for limit, color in _limits(simulation)
    ]
    uniform = dict.fromkeys(("y0", "y1"), _largest_entropy(simulation))
    return [*limits, across | uniform | {"yref": "y2", "line": {"color": SOFT, "width": 1, "dash": "dot"}}]


def _mark_events(figure: "go.Figure", simulation: Simulation) -> None:
    """Mark the dip of the entropy and the blow-up."""
    dip, blow_up = simulation.rebound, simulation.blow_up
    if dip.occurs:
        figure.add_scatter(
            x=[dip.time],
            y=[dip.lowest],
            name=f"dip at t = {dip.time:.4g}",
            mode="markers",
            marker={"color": ALARM, "size": 9},
            showlegend=False,
            row=2,
            col=1,
        )
    if blow_up is not None:
        figure.add_vline(blow_up.time, line={"color": ALARM, "dash": "dot"}, row="all", col=1)
        figure.add_annotation(
            text=_blow_up_label(blow_up),
            x=blow_up.time,
            y=1,
            xref="x",
            yref="y domain",
            xanchor="right",
            showarrow=False,
            font={"color": ALARM},
        )


def _lay_out(figure: "go.Figure", simulation: Simulation) -> None:
    axis_types = [{"xaxis.type": kind, "xaxis2.type": kind, "xaxis3.type": kind} for kind in ("linear", "log")]
    buttons = [{"label": f"{kinds['xaxis.type']} time", "method": "relayout", "args": [kinds]} for kinds in axis_types]
    figure.update_layout(
        template="plotly_white",
        height=PLOT_HEIGHT,
        autosize=True,
        hovermode="x unified" if simulation.v.shape[1] <= MAX_HOVER else "closest",
        showlegend=simulation.v.shape[1] <= MAX_HOVER,
        font={"color": INK, "family": "system-ui, sans-serif", "size": 13},
        dragmode=False,  # a finger on the picture scrolls the page; the bar above has zoom
        margin={"l": 65, "r": 10, "t": 80, "b": 60},
        legend={"orientation": "h", "yanchor": "top", "y": -0.1, "x": 0},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "buttons": buttons,
                "active": int(simulation.log_time),
                "x": 0,
                "xanchor": "left",
                "y": 1.01,
                "yanchor": "bottom",
            }
        ],
    )
    kind = "log" if simulation.log_time else "linear"
    figure.update_xaxes(type=kind, hoverformat=".5g", nticks=NUM_TICKS, exponentformat="power")
    figure.update_xaxes(title_text=TIME, row=3, col=1)
    for row, label in enumerate((WEIGHTS, ENTROPY, DRIFT), start=1):
        figure.update_yaxes(title_text=label, row=row, col=1)
    figure.update_yaxes(type="log", exponentformat="e", row=3, col=1)


def _colors(simulation: Simulation) -> list[str]:
    """One colour for each component, by the rank of its target's size."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    targets = np.abs(simulation.flow.targets)
    rank = np.argsort(np.argsort(targets, kind="stable"), kind="stable")
    low, high = COLOR_RANGE
    return [to_hex(colormaps[COLOR_MAP](low + (high - low) * r / max(1, targets.size - 1))) for r in rank]


def _limits(simulation: Simulation) -> list[tuple[float, str]]:
    """Where the theory says that components end, with their colours; none if there are too many to tell apart."""
    limits = simulation.flow.limits()
    if limits is None or limits.size > MAX_HOVER:
        return []
    return [(float(end), color) for end, color in zip(limits, _colors(simulation), strict=True) if np.isfinite(end)]


def _name(simulation: Simulation, component: int) -> str:
    return f"{component}: {simulation.flow.target_symbol} = {simulation.flow.targets[component]:.3g}"


def _blow_up_label(blow_up: BlowUp) -> str:
    return f"blow-up at t = {blow_up.time:.5g}, component {blow_up.component[0]}"


def _largest_entropy(simulation: Simulation) -> float:
    return float(np.log(simulation.v.shape[1]))


def _visible_drift(simulation: Simulation) -> np.ndarray:
    """The drift, with NaN for zeros, which a logarithmic axis cannot show, and for what was not measured."""
    drift = np.zeros_like(simulation.t) if simulation.drift is None else simulation.drift
    return np.where(drift > 0, drift, np.nan)
