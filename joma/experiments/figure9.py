r"""Figure 9: the curve $G(y) = F(\theta_1^{-1}(y))$ of a distribution, and the lines through zero that meet it.

Two clusters have a critical point of weights and bias together where $F/\theta_1$ takes one value at two distances
$s_\pm$ from the hyperplane: where a line through zero meets G at two levels $y_\pm = \theta_1(s_\pm)$. Curves and
intersections come from `joma.theory`; they are compared with the raw field of the two clusters, integrated over the
marginal densities of `scipy.stats` (for the ring, over its radii), and searched for its zeros.

Controls: for each distribution a line outside the slopes at which there are pairs, and a pair's ratio of weights at
another distance of the clusters.
"""

import numpy as np
import pandas as pd
from scipy import special

from joma.experiments.drawn import for_drawing
from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.experiments.figure9_cases import Cases
from joma.experiments.figure9_measure import Config, counts_of, curve_of, law_of, lines_met, pairs_of
from joma.experiments.figure9_verdicts import verdicts
from joma.figures.chart import Chart, Line, Panel
from joma.theory.hyperplane import line_intersections, theta1_inverse

FARTHEST_LOGIT = 22.0
"""Levels are searched from 1 / (1 + e^22) = 3e-10 to one minus that."""


def quick() -> Config:
    """Return a search in 401 places."""
    return Config()


def full() -> Config:
    """Return a finer search, at more distances."""
    return Config(num_places=2001, distances=(0.25, 0.5, 1.0, 2.0, 4.0))


def compute(config: Config, workplace: Workplace) -> Result:
    """Tabulate the curves and count what the lines meet, by theory and by the raw field."""
    cases = Cases()
    tables: dict[str, list[pd.DataFrame]] = {"curves": [], "lines": [], "pairs": [], "counts": [], "laws": []}
    for index, name in enumerate(config.laws):
        case = getattr(cases, name)
        workplace.progress(index / len(config.laws), case.title)
        s = theta1_inverse(case.noise, special.expit(np.linspace(-FARTHEST_LOGIT, FARTHEST_LOGIT, config.num_places)))
        met = {k: line_intersections(case.noise, k) for k in case.lines}
        pairs = pairs_of(name, case, s, met)
        curve = curve_of(config, name, case)
        tables["curves"].append(for_drawing(curve[["law", "title", "y", "G", "ratio"]]))
        tables["lines"].append(lines_met(name, case, s, met))
        tables["pairs"].append(pairs)
        tables["counts"].append(counts_of(name, case, s, (*config.distances, *pairs["distance"].tail(1))))
        tables["laws"].append(law_of(name, case, curve))
    kept = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Result(tables=kept, facts={})


def draw(result: Result) -> tuple[Chart, ...]:
    """G with its lines, and the slope of the line to each point of G."""
    curves, lines = result.tables["curves"], result.tables["lines"]
    laws = list(dict.fromkeys(curves["law"]))
    return (
        Chart(
            "figure9",
            "G(y) and lines through zero, for six distributions",
            "Solid: G. Dashed: lines; points: where they meet G. A line that meets G twice gives a critical point of "
            "weights and bias together, if the clusters are as far apart as the two points say; the normal and the "
            "ball have no such line.",
            [_curve_panel(curves[curves["law"] == law], lines[lines["law"] == law]) for law in laws],
        ),
        Chart(
            "figure9-ratio",
            "Slope of the line from zero to each point of G",
            "G(y)/y = F/θ₁. Where it rises throughout no line meets G twice; every turn allows one more intersection.",
            [_ratio_panel(curves[curves["law"] == law]) for law in laws],
        ),
    )


def _curve_panel(curve: pd.DataFrame, lines: pd.DataFrame) -> Panel:
    items = [Line("G", curve["y"], curve["G"], color=0)]
    top = curve["y"].iloc[-1], curve["G"].iloc[-1]
    for color, (k, rows) in enumerate(lines.groupby("k"), start=1):
        met = rows.dropna(subset="y")
        end = min(top[0], top[1] / float(k))
        label = f"slope {k:g} meets {rows['count'].iloc[0]}×" + (" (control)" if rows["is_control"].iloc[0] else "")
        items.append(Line(label, [0.0, end], [0.0, end * float(k)], style="dashed", color=color))
        shown = met[met["y"] <= top[0]]
        if len(shown):
            items.append(Line("", shown["y"], shown["y"] * float(k), style="points", color=color))
    return Panel(str(curve["title"].iloc[0]), "y", "G", items)


def _ratio_panel(curve: pd.DataFrame) -> Panel:
    return Panel(str(curve["title"].iloc[0]), "y", "G(y)/y", [Line("G(y)/y", curve["y"], curve["ratio"])])


EXPERIMENT = Experiment(
    id="figure9",
    title="The curve G(y) and the lines that give critical points",
    place="Appendix A.3.1, figure 9",
    question=(
        "For which distributions does a line through zero meet G twice, and is every such line a critical point of "
        "weights and bias?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    schema=2,
)
