"""Charts and tables of results: a simulation has its own, every other result is drawn from its columns."""

import re
from typing import Any

import numpy as np
import pandas as pd

from joma.charts.builders import MAX_NAMED, Rule, bars, lines, stack
from joma.charts.chart import Chart
from joma.theory.simulation import Simulation

MAX_LIMITS = 40
"""Components whose limits are drawn; more would look alike."""
INDEX = re.compile(r"((?:_\d+)+)$")
"""Place of an entry in a name such as `v_0`."""
TIME = "time t, in units of 1/η_w"


def frame(result: Any) -> pd.DataFrame:
    """Return a result as a table.

    >>> import joma
    >>> list(frame(joma.simulate(targets=[1.0, 0.5], num_points=5)))[:5]
    ['t', 'entropy', 'drift', 'v_0', 'v_1']
    """
    if isinstance(result, pd.DataFrame):
        return result
    for name in ("to_frame", "columns"):
        if callable(make := getattr(result, name, None)):
            return pd.DataFrame(make())
    raise TypeError(
        f"`result` must have `to_frame()` or `columns()`, as results of joma have; got {type(result).__name__}. "
        "Pass a table of pandas otherwise."
    )


def plot(result: Any) -> Chart:
    """Draw a result: its columns over the first one, entries of one name in one panel.

    >>> import joma
    >>> plot(joma.simulate(targets=[1.0, 0.5], num_points=5)).id
    'simulation'
    """
    if isinstance(result, Simulation):
        caption = "; ".join(f"{name} {value:.4g}" for name, value in result.effects().items())
        return stack(*simulation_charts(result), title=result.title, caption=f"{caption}.", id="simulation")
    table = frame(result).select_dtypes("number")
    title = f"{type(result).__name__} over {table.columns[0]}"
    if len(table) == 1:
        values = table.T.reset_index().set_axis(["name", "value"], axis=1)
        return bars(values, "name", "value", title=type(result).__name__, labels={"name": "", "value": ""})
    x = str(table.columns[0])
    tidy = table.melt(x, var_name="column", value_name="value")
    entry = tidy["column"].str.extract(INDEX, expand=False).str.strip("_").fillna("0")
    if entry.str.isdigit().all():  # one index: shades in its order
        entry = entry.astype(int)
    tidy = tidy.assign(quantity=tidy["column"].str.replace(INDEX, "", regex=True), entry=entry)
    return lines(tidy, x, "value", color="entry", facet="quantity", share_y=False, title=title, labels={"value": ""})


def simulation_charts(run: Simulation) -> list[Chart]:
    """Draw weights, attention entropy and drift of a simulated flow over time.

    Dashed lines are where the theory says that weights end. There is no chart of a drift that is zero throughout or was
    not measured.
    """
    rows = slice(1 if run.log_time else 0, None)  # a logarithmic axis has no zero
    t, targets = run.t[rows], run.flow.targets
    order = np.argsort(np.abs(targets), kind="stable")
    names: list[Any] = [f"{index}: {run.flow.target_symbol} = {target:.3g}" for index, target in enumerate(targets)]
    is_named = len(names) <= MAX_NAMED
    entries = names if is_named else np.argsort(order).tolist()
    labels = {"t": TIME, "v": "weights v"}
    labels["component"] = "component" if is_named else "rank of |target|"
    common: dict[str, Any] = {"x_log": run.log_time, "labels": labels}
    weights = pd.concat(
        pd.DataFrame({"t": t, "v": run.v[rows, index], "component": entry}) for index, entry in enumerate(entries)
    )
    limits = run.flow.limits()
    ends = [] if limits is None or limits.size > MAX_LIMITS else zip(limits, entries, strict=True)
    rules = [Rule(float(end), color=entry) for end, entry in ends if np.isfinite(end)]
    stops, named_stops = [], []
    if run.blow_up is not None:
        label = f"blow-up at t = {run.blow_up.time:.5g}, component {run.blow_up.component[0]}"
        stops, named_stops = ([Rule(run.blow_up.time, each, axis="x", alert=True)] for each in ("", label))
    shades: dict[str, Any] = {"color": "component", "shades": True}
    shades["order"] = [entries[index] for index in order] if is_named else ()
    dip = run.rebound
    mark = pd.DataFrame({"t": [dip.time], "entropy": [dip.lowest], "label": [f"dip at t = {dip.time:.4g}"]})
    marks: dict[str, Any] = {"marks": mark} if dip.occurs else {}
    uniform = Rule(float(np.log(len(names))), "uniform attention")
    entropy = pd.DataFrame({"t": t, "entropy": run.entropy[rows]})
    common |= {"id": "simulation-weights", "title": "Weights"}
    charts = [lines(weights, "t", "v", rules=[*rules, *named_stops], **common, **shades)]
    common |= {"id": "simulation-entropy", "title": "Attention entropy", "height": 170}
    charts.append(lines(entropy, "t", "entropy", rules=[uniform, *stops], **common, **marks))
    if run.drift is not None and (run.drift[rows] > 0).any():
        drift = pd.DataFrame({"t": t, "drift": run.drift[rows]})
        common |= {"id": "simulation-drift", "title": f"Drift of {run.flow.conserved}"}
        charts.append(lines(drift, "t", "drift", y_log=True, rules=stops, **common))
    return charts
