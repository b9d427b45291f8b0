r"""Figure 4: components learned one after another, and the attention entropy that drops and rebounds.

Three flows towards the same targets $\mu$, side by side:

- `printed`: $\dot v = (\mu - v)\circ e^{v^2/2}$, Eqn 6, which the caption names;
- `normalised`: $\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/3)$, which the paper's scripts step through;
- `model`: $\dot v = a\circ(\mu - v\circ a)$, $a = e^{v^2/2}$, the flow that the layer of Eqn 1 really has.

Controls: $\dot v = \mu - v$, the same without attention; targets for which the rebound's condition says that there is
none; and the scripts' step size on Eqn 6.
"""

import numpy as np
import pandas as pd

from joma.experiments.drawn import for_drawing
from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.experiments.figure4_condition import condition_facts, refused_targets, tried_condition
from joma.experiments.figure4_flows import (
    FLOWS,
    LABELS,
    WITHOUT,
    Config,
    begin_of,
    begins_to_move,
    beside_control,
    dips_of,
    entropies_of,
    half_times_of,
    path_of,
    path_table,
    scripted_run,
    solved,
    without_attention,
)
from joma.experiments.figure4_verdicts import verdicts
from joma.figures.chart import Bars, Chart, Line, Panel
from joma.figures.numbers import short


def quick() -> Config:
    """Return the scripts' setting, which is small."""
    return Config()


def full() -> Config:
    """Return the same with more random targets."""
    return Config(num_draws=400)


def compute(config: Config, workplace: Workplace) -> Result:
    """Solve the three flows, step through the scripts' run, and try the condition on random targets."""
    workplace.progress(0.0, "solving the three flows")
    runs = {name: solved(config, name) for name in FLOWS}
    paths = {name: path_of(run) for name, run in runs.items()} | {WITHOUT: without_attention(config)}
    workplace.progress(0.3, "stepping as the scripts do")
    script, script_facts = scripted_run(config)
    conditions = tried_condition(config, lambda share: workplace.progress(0.4 + 0.6 * share, "random targets"))
    closed = [run.closed_form_distance for run in runs.values() if run.closed_form_distance is not None]
    entropies = entropies_of(paths)
    refused, refused_facts = refused_targets(config)
    tables = {
        "paths": for_drawing(pd.concat([path_table(name, paths[name]) for name in FLOWS], ignore_index=True)),
        "entropies": for_drawing(entropies),
        "dips": dips_of(paths),
        "learning": half_times_of(config, paths),
        "script": for_drawing(script),
        "conditions": conditions,
        "no_rebound": for_drawing(refused),
    }
    facts = {
        "closed form distance": max(closed),
        "largest entropy": float(np.log(len(config.targets))),
        **{begin_of(name): begins_to_move(beside_control(entropies, name)) for name in FLOWS},
    }
    return Result(tables=tables, facts=facts | script_facts | refused_facts | condition_facts(conditions))


def draw(result: Result) -> tuple[Chart, ...]:
    """Components, entropies, and the scripts' run."""
    paths, entropies, script = (result.tables[name] for name in ("paths", "entropies", "script"))
    components = [_component_panel(paths[paths["flow"] == name], LABELS[name]) for name in FLOWS]
    dips = [
        _entropy_panel(beside_control(entropies, name), float(result.facts[begin_of(name)]), name) for name in FLOWS
    ]
    refused = result.tables["no_rebound"]
    lines = [Line(str(name), rows["t"], rows["entropy"]) for name, rows in refused.groupby("targets")]
    none = Panel("control: targets that the condition refuses", "time", "entropy, nats", lines)
    steps = Panel(
        "the scripts' run",
        "step",
        "entropy, nats",
        [
            Line("explicit steps", script["step"], script["entropy"]),
            Line("its flow", script["step"], script["flow"], style="dashed"),
        ],
    )
    dip_table = result.tables["dips"]
    categories = [f"{row.flow}, T = {row.temperature:g}" for row in dip_table.itertuples()]
    rises = Panel(
        "rise after the dip",
        "",
        "nats",
        [
            Bars(name, categories, dip_table[column], labels=[short(value) for value in dip_table[column]])
            for name, column in (("flow", "rise"), ("without attention", "control_rise"))
        ],
    )
    return (
        Chart(
            "figure4",
            "Components and attention entropy under three flows towards the same targets",
            "Top: the components, dark to light with growing target. Below: the entropy of softmax(v²/T), dashed for "
            "the same targets without attention. Eqn 6 and the scripts' variant dip and come back; in the flow that "
            "the model really has the dip is hardly there.",
            [*components, *dips],
        ),
        Chart(
            "figure4-controls",
            "When the entropy does not rebound, and the scripts' run",
            "For targets that the condition refuses the entropy falls and stays, or does not move at all. The scripts' "
            "explicit steps follow their own flow; the same steps on Eqn 6 overflow.",
            [none, steps, rises],
        ),
    )


def _component_panel(rows: pd.DataFrame, title: str) -> Panel:
    lines = [
        Line("", part["t"], part["v"], shade=float(component))
        for component, part in rows[rows["t"] > 0].groupby("component")
    ]
    return Panel(title, "time", "v", lines, log_x=True)


def _entropy_panel(entropies: pd.DataFrame, begin: float, flow: str) -> Panel:
    lines = []
    for color, (temperature, parts) in enumerate(entropies[entropies["t"] >= begin].groupby("temperature")):
        own, control = (parts[parts["flow"] == name] for name in (flow, WITHOUT))
        label = f"softmax(v²/{temperature:g})"
        lines.append(Line(label, own["t"], own["entropy"], color=color))
        lines.append(Line(f"{label}, without attention", control["t"], control["entropy"], style="dashed", color=color))
    return Panel(f"{LABELS[flow]}: attention entropy", "time", "entropy, nats", lines, log_x=True)


EXPERIMENT = Experiment(
    id="figure4",
    title="Components learned one after another; the attention entropy drops and rebounds",
    place="Section 4, figure 4",
    question=(
        "Do salient components come first, and does the attention entropy drop and rebound, under Eqn 6 as printed, "
        "under the variant in the paper's scripts and under the flow that the model really has? When does it not?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    schema=2,
)
