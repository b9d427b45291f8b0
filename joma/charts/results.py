"""Charts and tables of results: a simulation has its own, every other result is drawn from its columns."""

import re
from typing import Any

import numpy as np
import pandas as pd

from joma.charts.builders import MAX_NAMED, Rule, bars, lines, stack
from joma.charts.chart import Chart
from joma.theory.simulation import Simulation

MAX_LIMITS = 40
"""Components whose limits are drawn; of more they cannot be told apart."""
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
        caption = ". ".join(result.remarks())
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
    t = run.t[1:] if run.log_time else run.t  # a logarithmic axis has no zero
    rows = slice(run.t.size - t.size, None)
    size = np.abs(run.flow.targets)
    rank = np.argsort(np.argsort(size, kind="stable"), kind="stable")
    names = [f"{index}: {run.flow.target_symbol} = {target:.3g}" for index, target in enumerate(run.flow.targets)]
    entries: list[Any] = names if len(names) <= MAX_NAMED else rank.tolist()
    label = "component" if len(names) <= MAX_NAMED else "rank of |target|"
    weights = pd.DataFrame(
        {
            "t": np.tile(t, len(names)),
            "v": run.v[rows].T.ravel(),
            "component": np.repeat(np.array(entries, dtype=object), t.size),
        }
    ).infer_objects()
    limits = run.flow.limits()
    ends = [] if limits is None or limits.size > MAX_LIMITS else zip(limits, entries, strict=True)
    blow_up = [] if run.blow_up is None else [Rule(run.blow_up.time, axis="x", alert=True)]
    told = [Rule(rule.value, _blow_up_label(run), axis="x", alert=True) for rule in blow_up]
    options: dict[str, Any] = {"x_log": run.log_time, "labels": {"t": TIME, "v": "weights v", "component": label}}
    over_time = pd.DataFrame({"t": t, "entropy": run.entropy[rows]})
    dip = run.rebound
    mark = pd.DataFrame({"t": [dip.time], "entropy": [dip.lowest], "label": [f"dip at t = {dip.time:.4g}"]})
    charts = [
        lines(
            weights,
            "t",
            "v",
            color="component",
            shades=True,
            order=[entries[index] for index in np.argsort(size, kind="stable")] if entries is names else (),
            rules=[*(Rule(float(end), color=entry) for end, entry in ends if np.isfinite(end)), *told],
            title="Weights",
            id="simulation-weights",
            **options,
        ),
        lines(
            over_time,
            "t",
            "entropy",
            rules=[Rule(float(np.log(len(names))), "uniform attention"), *blow_up],
            marks=mark if dip.occurs else None,
            title="Attention entropy",
            id="simulation-entropy",
            **options | {"labels": {"t": TIME, "entropy": "attention entropy (nats)"}, "height": 170},
        ),
    ]
    if run.drift is not None and (run.drift[rows] > 0).any():
        drift = pd.DataFrame({"t": t, "drift": run.drift[rows]})
        charts.append(
            lines(
                drift,
                "t",
                "drift",
                rules=blow_up,
                y_log=True,
                title=f"Drift of {run.flow.conserved}",
                id="simulation-drift",
                **options | {"height": 170},
            )
        )
    return charts


def _blow_up_label(run: Simulation) -> str:
    assert run.blow_up is not None
    return f"blow-up at t = {run.blow_up.time:.5g}, component {run.blow_up.component[0]}"
