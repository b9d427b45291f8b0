r"""Figures 2 and 3: Theorem 1's estimate against real training of one layer, and which weights go on growing.

A layer with softmax attention and linear nodes is trained by plain gradient descent on one sample for each class. The
estimate of its logits from its weights is $\hat z = \hat z_1 + \hat z_2 + c$ with $\hat z_1 = \frac1{2T}\sum_kv_k^2$
and $\hat z_2 = -\frac1{2T}\sum_k\|v_k\|^2\,\bar x$, c fixed at the start, the mean token frequencies $\bar x$ standing
for the mean attention. A correlation over tokens is blind to scale, so the relative error stands beside it.

Controls: the estimate against the logits of *another* run (what the data alone decide), against logits with shuffled
tokens, the constant c alone (no estimate at all), the untrained layer, and, for the growth of weights, a layer whose
attention does not learn.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from joma.data.frequencies import tokens_hash
from joma.experiments.drawn import for_drawing
from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.experiments.figures2_3_measure import (
    LEARNED,
    NOT_LEARNED,
    OTHER,
    SHOWN,
    SHUFFLED,
    agreement_with_logits,
    at_the_end,
    attention_moved,
    growing_weights,
    growth_of_node,
    mean_curves,
    mean_facts,
    start_and_end,
    untrained_correlation,
)
from joma.experiments.figures2_3_training import CONSTANT, ESTIMATE, FIRST, NO_LEARNING, SECOND, Config, train
from joma.experiments.figures2_3_verdicts import verdicts
from joma.figures.chart import Chart, HeatMap, Line, Panel, Style

CURVES = (ESTIMATE, FIRST, SECOND, CONSTANT, OTHER, SHUFFLED)


def quick() -> Config:
    """Return the paper's setting, which is small."""
    return Config()


def full() -> Config:
    """Return the same, and again at a tenth of the learning rate: what is left is not the size of the step."""
    return Config(slower=10)


def compute(config: Config, workplace: Workplace) -> Result:
    """Train on every law of tokens, with and without learned attention, and compare weights with logits."""
    names = ("agreement", "curves", "growth", "matrices", "winners")
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
    facts: dict[str, float | int | str | bool] = {"logit_sum_drift": 0.0}
    for index, law in enumerate(config.laws):
        told = partial(_told, config, workplace, law, index)
        run = train(config, law, temperature=config.temperature, progress=told(0, 1))
        frozen = train(config, law, temperature=NO_LEARNING, progress=told(1, 1))
        agreement = agreement_with_logits(config, law, run)
        winners = pd.concat(
            [growing_weights(config, law, run, LEARNED), growing_weights(config, law, frozen, NOT_LEARNED)]
        )
        tables["agreement"].append(agreement[agreement["step"].isin(config.judged_steps)])
        tables["curves"].append(for_drawing(mean_curves(agreement)))
        tables["growth"].append(for_drawing(growth_of_node(config, law, run)))
        tables["matrices"].append(for_drawing(start_and_end(law, run)))
        tables["winners"].append(winners)
        drift = np.abs(run.z.sum(axis=-1) - run.z[:, :1].sum(axis=-1)).max()
        facts["logit_sum_drift"] = float(np.maximum(facts["logit_sum_drift"], drift))  # NaN stays
        facts |= mean_facts(config, law, agreement, winners)
        facts[f"{law}: hash of the tokens"] = tokens_hash(config.seeds, law=law)
        facts[f"{law}: untrained"] = untrained_correlation(config, run)
        facts[f"{law}: attention moved"] = attention_moved(config, run)
        if config.slower > 1:
            slow = train(
                config, law, temperature=config.temperature, slower=config.slower, progress=told(2, config.slower)
            )
            ends = at_the_end(agreement_with_logits(config, law, slow), law)
            facts |= {f"slower, {name}": value for name, value in ends.items()}
    return Result(tables={name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}, facts=facts)


def _told(
    config: Config, workplace: Workplace, law: str, index: int, before: int, size: int
) -> Callable[[float], None]:
    """What tells how far all is, from the share done of a training; times are counted in trainings at full rate."""
    for_each = 2 + (config.slower if config.slower > 1 else 0)
    total = len(config.laws) * for_each
    doing = f"training on {law} tokens"
    return lambda share: workplace.progress((index * for_each + before + share * size) / total, doing)


def draw(result: Result) -> tuple[Chart, ...]:
    """Figure 2: correlations and errors over training. Figure 3: weights of node 0, and V at start and end."""
    curves, growth, matrices = (result.tables[name] for name in ("curves", "growth", "matrices"))
    laws = list(dict.fromkeys(curves["law"]))
    agreement = [
        panel
        for law in laws
        for panel in (
            _curve_panel(curves[curves["law"] == law], f"{law} tokens", "correlation", CURVES),
            _curve_panel(
                curves[curves["law"] == law], f"{law} tokens", "relative_error", (ESTIMATE, FIRST, SECOND, CONSTANT)
            ),
        )
    ]
    weights = [
        panel
        for law in laws
        for panel in (
            _growth_panel(growth[growth["law"] == law], law),
            *(_matrix_panel(matrices, law, when) for when in ("start", "end")),
        )
    ]
    return (
        Chart(
            "figure2",
            "Logits estimated from weights, against the logits of real training",
            "Mean over seeds, bands from the lowest to the highest. The estimate correlates with the logits, but its "
            "relative error ends far above that of the constant alone, which is no estimate. On smooth tokens it "
            "correlates just as well with the logits of another run; shuffled tokens give what chance does.",
            agreement,
        ),
        Chart(
            "figure3",
            "Growth of the weights of node 0, and all weights at the start and at the end",
            "First run. Solid: the first four components of v₀(t); dashed: Theorem 2 with the saliencies of the start, "
            "until its single winner blows up.",
            weights,
        ),
    )


def _curve_panel(curves: pd.DataFrame, title: str, quantity: str, names: tuple[str, ...]) -> Panel:
    lines = []
    for color, name in enumerate(names):
        rows = curves[(curves["estimate"] == name) & (curves["step"] > 0)]
        mean, low, high = (rows[f"{quantity}_{edge}"] for edge in ("mean", "min", "max"))
        style: Style = "line" if name in (ESTIMATE, FIRST, SECOND) else "dashed"
        lines.append(Line(name, rows["step"], mean, low=low, high=high, style=style, color=color))
    label = quantity.replace("_", " ")
    return Panel(f"{title}: {label}", "step", label, lines, log_y=quantity == "relative_error")


def _growth_panel(growth: pd.DataFrame, law: str) -> Panel:
    lines = []
    for token in range(SHOWN):
        rows = growth[growth["token"] == token]
        lines.append(Line(f"token {token}", rows["step"], rows["v"], color=token))
        lines.append(Line(f"token {token}, Theorem 2", rows["step"], rows["theorem2"], style="dashed", color=token))
    return Panel(f"{law} tokens: v₀(t)", "step", "v", lines)


def _matrix_panel(matrices: pd.DataFrame, law: str, when: str) -> Panel:
    rows = matrices[(matrices["law"] == law) & (matrices["when"] == when)]
    grid = rows.pivot(index="node", columns="token", values="v")
    item = HeatMap("v", grid.columns.to_numpy(), grid.index.to_numpy(), grid.to_numpy())
    return Panel(f"{law} tokens: V at the {when}", "token", "node", [item])


EXPERIMENT = Experiment(
    id="figures2-3",
    title="Theorem 1's estimate under real training, and winner-take-all",
    place="Section 3, figures 2 and 3",
    question=(
        "Do the weights of a trained layer tell its attention logits, as Theorem 1 estimates for softmax attention, in "
        "correlation and in size? And does one component of the weights win, as Theorem 2 has it?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=nothing_missing,
    schema=3,
)
