r"""Figures 2 and 3: Theorem 1's estimate against real training of one layer, and which weights go on growing.

A layer with softmax attention and linear nodes is trained by plain gradient descent on one sample for each class. The
estimate of its logits from its weights is $\hat z = \hat z_1 + \hat z_2 + c$ with $\hat z_1 = \frac1{2T}\sum_kv_k^2$
and $\hat z_2 = -\frac1{2T}\sum_k\|v_k\|^2\,\bar x$, c fixed at the start, the mean token frequencies $\bar x$ standing
for the mean attention. A correlation over tokens is blind to scale, so the relative error stands beside it.

Controls: the estimate against the logits of *another* run (what the data alone decide), against logits with shuffled
tokens, the constant c alone (no estimate at all), the untrained layer, and, for the growth of weights, a layer whose
attention does not learn.

Axes: R runs, T reported times, N samples, K nodes, M tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from joma.data.class_tokens import LAWS, class_tokens
from joma.engine.config import OptimiserConfig
from joma.engine.step import Stepper
from joma.errors import UnknownNameError, positive, whole
from joma.experiments.drawn import for_drawing
from joma.experiments.experiment import Experiment, Result, Workplace, nothing_missing
from joma.experiments.threads import one_thread
from joma.figures.chart import Chart, HeatMap, Line, Panel, Style
from joma.models.batch import Batch
from joma.models.layer import CONTEXTUAL, AnalysedLayer, LayerConfig, W, X, Z
from joma.theory.softmax_estimate import anchored, estimate, normalised_correlation
from joma.theory.winner_take_all import LinearFlow
from joma.verdicts import Evidence, Outcome, Verdict

HIGH = 0.9
"""Correlation from which on a reader of figure 2 would call it high."""
CLOSE = 0.3
"""Relative error up to which the estimate predicts 'fairly well'."""
UNCORRELATED = 0.5
"""Correlation up to which a component alone 'does not' correlate."""
SATURATED = 0.1
"""A component has saturated if over the second half it grows by less than this part of the fastest."""
FEW = 0.5
"""Share of the components up to which 'only some' of them grow."""
ROUNDING = 1e-12
"""Largest change of the sum of the logits, which every step conserves exactly."""
PAPER_TIME, PAPER_SEEDS = 200.0, 3
"""Learning rate times steps of the paper's run, and the fewest seeds, below which nothing is decided."""

NO_LEARNING = 1e9
"""Temperature at which attention stays at the token frequencies."""
SHUFFLES, SHUFFLED_QUANTILE = 200, 0.95
"""Shuffles of the tokens, and the quantile of their correlations that counts as chance."""
QUARTERS = 4
SHOWN = 4
"""Components of v_0 that figure 3 shows."""

ESTIMATE, FIRST, SECOND, CONSTANT = "estimate", "first term alone", "second term alone", "constant alone"
OTHER, SHUFFLED = "logits of another run", "shuffled tokens"
LEARNED, NOT_LEARNED = "learned", "not learned"
CURVES = (ESTIMATE, FIRST, SECOND, CONSTANT, OTHER, SHUFFLED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The paper's setting: 20 classes, 10 distinct and 10 common tokens, full batches, 2000 steps."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    num_steps: int = 2000
    lr: float = 0.1
    temperature: float = 0.5
    """T of the attention."""
    laws: tuple[str, ...] = LAWS
    """How the frequencies of distinct tokens depend on the class."""
    num_reported: int = 100
    """Times after the start at which curves are taken."""
    slower: int = 1
    """Above 1 everything is trained again with a learning rate this many times smaller, for as many more steps."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        whole("seeds", self.seeds, low=0)
        whole("slower", self.slower, low=1)
        positive("lr", self.lr)
        positive("temperature", self.temperature)
        for law in self.laws:
            if law not in LAWS:
                raise UnknownNameError("law of tokens", law, LAWS)
        whole("num_reported", self.num_reported, low=QUARTERS)
        if self.num_reported % QUARTERS or self.num_steps % self.num_reported:
            raise ValueError(
                f"`num_steps` must be a multiple of `num_reported`, and that of {QUARTERS}, got {self.num_steps} and "
                f"{self.num_reported}. Round them."
            )

    @property
    def judged_steps(self) -> tuple[int, int]:
        """A quarter of the training, which is early, and its end."""
        return self.num_steps // QUARTERS, self.num_steps

    @property
    def is_small(self) -> bool:
        """Whether it is too short, or has too few seeds, to decide anything."""
        return self.lr * self.num_steps < PAPER_TIME or len(self.seeds) < PAPER_SEEDS


def quick() -> Config:
    """Return the paper's setting, which is small."""
    return Config()


def full() -> Config:
    """Return the same, and again at a tenth of the learning rate: what is left is not the size of the step."""
    return Config(slower=10)


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """All runs of one law of tokens."""

    x: Float[np.ndarray, "R N M"]
    v: Float[np.ndarray, "R T K M"]
    z: Float[np.ndarray, "R T M"]

    def parts(self, run: int, temperature: float) -> dict[str, Float[np.ndarray, "T M"]]:
        """Estimates of one run's logits by name, each with its constant fixed at the start."""
        found = estimate(self.v[run], self.x[run].mean(axis=0), temperature=temperature)
        of = {ESTIMATE: found.total, FIRST: found.own, SECOND: found.mean, CONSTANT: np.zeros_like(found.own)}
        return {name: anchored(part, self.z[run, 0]) for name, part in of.items()}

    def terms(self, run: int, temperature: float) -> dict[str, Float[np.ndarray, "T M"]]:
        """The two components of the estimate as the caption of figure 2 has them, without a constant."""
        found = estimate(self.v[run], self.x[run].mean(axis=0), temperature=temperature)
        return {FIRST: found.own, SECOND: found.mean}

    def saliency(self, run: int) -> Float[np.ndarray, "K M"]:
        r"""$\Delta_{kl} = E[g_kx_l]$ at the start, where every class has the same probability."""
        num_classes = self.x.shape[1]
        return (np.eye(num_classes) - 1 / num_classes) @ self.x[run] / num_classes


def train(
    config: Config, law: str, *, temperature: float, slower: int = 1, tick: Callable[[], None] = lambda: None
) -> Training:
    """Train every seed in one pack, in float64 on the CPU: a step takes less than a millisecond.

    `tick` is called at every reported time.
    """
    layer_config = LayerConfig(temperature=temperature)
    layer = AnalysedLayer(layer_config, x=lambda seed: class_tokens(seed, law=law).T.contiguous())
    num_runs, classes = len(config.seeds), torch.arange(layer_config.num_samples)
    tokens = torch.stack([classes, torch.zeros_like(classes)], dim=-1).expand(num_runs, -1, -1)
    batch = Batch(tokens=tokens, targets=classes.expand(num_runs, -1))
    sgd = OptimiserConfig(optimiser="sgd", lr=config.lr / slower)
    num_steps = config.num_steps * slower
    stepper = Stepper(
        layer, config.seeds, [sgd] * num_runs, num_steps=num_steps, steps_per_epoch=num_steps, precision="float64"
    )
    own = stepper.parameters
    v, z = [own[W] @ own[CONTEXTUAL].mT], [own[Z][:, 0].clone()]
    with one_thread("cpu"):
        for _ in range(config.num_reported):
            for _ in range(num_steps // config.num_reported):
                stepper.advance(batch)
            v.append(own[W] @ own[CONTEXTUAL].mT)
            z.append(own[Z][:, 0].clone())
            tick()
    return Training(x=own[X].numpy().copy(), v=torch.stack(v, dim=1).numpy(), z=torch.stack(z, dim=1).numpy())


def compute(config: Config, workplace: Workplace) -> Result:
    """Train on every law of tokens, with and without learned attention, and compare weights with logits."""
    names = ("agreement", "curves", "growth", "matrices", "winners")
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
    facts: dict[str, float | int | str | bool] = {"logit_sum_drift": 0.0}
    for index, law in enumerate(config.laws):
        tick = partial(workplace.progress, index / len(config.laws), f"training on {law} tokens")
        run = train(config, law, temperature=config.temperature, tick=tick)
        frozen = train(config, law, temperature=NO_LEARNING, tick=tick)
        agreement = _agreement(config, law, run)
        winners = pd.concat([_winners(config, law, run, LEARNED), _winners(config, law, frozen, NOT_LEARNED)])
        tables["agreement"].append(agreement[agreement["step"].isin(config.judged_steps)])
        tables["curves"].append(for_drawing(_curves(agreement)))
        tables["growth"].append(for_drawing(_growth(config, law, run)))
        tables["matrices"].append(for_drawing(_matrices(law, run)))
        tables["winners"].append(winners)
        drift = np.abs(run.z.sum(axis=-1) - run.z[:, :1].sum(axis=-1)).max()
        facts["logit_sum_drift"] = float(np.maximum(facts["logit_sum_drift"], drift))  # NaN stays
        facts |= _facts(config, law, agreement, winners)
        facts[f"{law}: untrained"] = _untrained(config, run)
        facts[f"{law}: attention moved"] = _attention_moved(config, run)
        if config.slower > 1:
            slow = train(config, law, temperature=config.temperature, slower=config.slower, tick=tick)
            ends = _at_the_end(_agreement(config, law, slow), law)
            facts |= {f"slower, {name}": value for name, value in ends.items()}
    return Result(tables={name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}, facts=facts)


def _agreement(config: Config, law: str, run: Training) -> pd.DataFrame:
    """Correlation and relative error of every estimate with the logits, for each seed and time."""
    steps = np.linspace(0, config.num_steps, config.num_reported + 1).astype(int)
    rows = []
    for index, seed in enumerate(config.seeds):
        z, parts = run.z[index], run.parts(index, config.temperature)
        correlations = {name: normalised_correlation(part, z) for name, part in parts.items()}
        terms = run.terms(index, config.temperature)
        correlations |= {name: normalised_correlation(term, z) for name, term in terms.items()}
        correlations[OTHER] = normalised_correlation(parts[ESTIMATE], run.z[(index + 1) % len(config.seeds)])
        correlations[SHUFFLED] = _by_chance(parts[ESTIMATE], z, np.random.default_rng(seed))
        size = np.linalg.norm(z, axis=-1)
        for name, values in correlations.items():
            error = np.linalg.norm(parts[name] - z, axis=-1) / size if name in parts else np.full(size.shape, np.nan)
            columns = {"step": steps, "correlation": values, "relative_error": error}
            rows.append(pd.DataFrame({"law": law, "seed": seed, "estimate": name, **columns}))
    return pd.concat(rows, ignore_index=True)


def _by_chance(
    estimated: Float[np.ndarray, "T M"], z: Float[np.ndarray, "T M"], rng: np.random.Generator
) -> Float[np.ndarray, " T"]:
    """Correlation that shuffled tokens reach in 5 % of the shuffles, in absolute value."""
    shuffles = rng.permuted(np.tile(np.arange(z.shape[1]), (SHUFFLES, 1)), axis=1)
    by_shuffle = normalised_correlation(np.repeat(estimated[:, None], SHUFFLES, axis=1), z[:, shuffles])
    return np.quantile(np.abs(by_shuffle), SHUFFLED_QUANTILE, axis=1)


def _curves(agreement: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds, with the lowest and the highest."""
    by = agreement.groupby(["law", "estimate", "step"], sort=False)[["correlation", "relative_error"]]
    table = by.agg(["mean", "min", "max"])
    table.columns = ["_".join(names) for names in table.columns]
    return table.reset_index()


def _growth(config: Config, law: str, run: Training) -> pd.DataFrame:
    """The first weights of node 0 over time in the first run, beside Theorem 2's until that blows up."""
    steps = np.linspace(0, config.num_steps, config.num_reported + 1)
    flow = _theorem2(config, run, 0)
    before = steps * config.lr < flow.blow_up_time()
    predicted = np.full((steps.size, SHOWN), np.nan)
    predicted[before] = flow.solution(steps[before] * config.lr)[:, 0, :SHOWN]
    return pd.DataFrame(
        {
            "law": law,
            "step": np.repeat(steps.astype(int), SHOWN),
            "token": np.tile(np.arange(SHOWN), steps.size),
            "v": run.v[0, :, 0, :SHOWN].ravel(),
            "theorem2": predicted.ravel(),
        }
    )


def _theorem2(config: Config, run: Training, index: int) -> LinearFlow:
    """Constant saliencies, those of the start, and exp attention."""
    return LinearFlow(delta=run.saliency(index), v0=run.v[index, 0], z0=run.z[index, 0], temperature=config.temperature)


def _matrices(law: str, run: Training) -> pd.DataFrame:
    """V of the first run at the start and at the end."""
    node, token = np.indices(run.v.shape[2:])
    return pd.concat(
        pd.DataFrame({"law": law, "when": when, "node": node.ravel(), "token": token.ravel(), "v": v.ravel()})
        for when, v in (("start", run.v[0, 0]), ("end", run.v[0, -1]))
    )


def _winners(config: Config, law: str, run: Training, attention: str) -> pd.DataFrame:
    """How many weights of node 0 still grow over the second half, and whether Theorem 2's winner does so alone."""
    sizes = np.abs(run.v[:, :, 0])
    growth = sizes[:, -1] - sizes[:, config.num_reported // 2]
    growing = growth >= SATURATED * growth.max(axis=1, keepdims=True)
    salient = np.array([_theorem2(config, run, index).winner() for index in range(len(config.seeds))])
    among = growing[np.arange(len(salient)), salient]
    return pd.DataFrame(
        {
            "law": law,
            "attention": attention,
            "seed": config.seeds,
            "growing": growing.sum(axis=1),
            "growing_share": growing.mean(axis=1),
            "theorem2_winner": salient,
            "fastest": growth.argmax(axis=1),
            "winner_grows": among,
            "winner_alone": among & (growing.sum(axis=1) == 1),
        }
    )


def _facts(config: Config, law: str, agreement: pd.DataFrame, winners: pd.DataFrame) -> dict[str, float]:
    """Means over seeds that the verdicts use."""
    early = agreement[agreement["step"] == config.judged_steps[0]]
    by_name = early[early["estimate"].isin([ESTIMATE, CONSTANT])].groupby("estimate")["relative_error"].mean()
    facts = _at_the_end(agreement, law)
    facts |= {f"{law}: error of {name}, early": float(value) for name, value in by_name.items()}
    by_attention = winners.groupby("attention")
    facts |= {f"{law}: growing, attention {name}": float(v) for name, v in by_attention["growing_share"].mean().items()}
    learned = winners[winners["attention"] == LEARNED]
    return facts | {f"{law}: winner alone": float(learned["winner_alone"].mean())}


def _at_the_end(agreement: pd.DataFrame, law: str) -> dict[str, float]:
    last = agreement[agreement["step"] == agreement["step"].max()].groupby("estimate", sort=False)
    facts = {f"{law}: correlation of {name}": float(value) for name, value in last["correlation"].mean().items()}
    errors = last["relative_error"].mean().dropna()
    return facts | {f"{law}: error of {name}": float(value) for name, value in errors.items()}


def _untrained(config: Config, run: Training) -> float:
    """Correlation of the two sides at the start, before a constant makes them equal."""
    terms = [run.terms(index, config.temperature) for index in range(len(config.seeds))]
    at_start = np.stack([own[FIRST][0] + own[SECOND][0] for own in terms])
    return float(normalised_correlation(at_start, run.z[:, 0]).mean())


def _attention_moved(config: Config, run: Training) -> float:
    """L1 distance of the mean attention at the end from the mean token frequencies, mean over seeds."""
    weighted = run.x * np.exp((run.z[:, -1] - run.z[:, -1].max(axis=-1, keepdims=True)) / config.temperature)[:, None]
    attention = (weighted / weighted.sum(axis=-1, keepdims=True)).mean(axis=1)
    return float(np.abs(attention - run.x.mean(axis=1)).sum(axis=-1).mean())


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


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge what figures 2 and 3 claim."""
    return (
        _correlates(result, config),
        _is_close(result, config),
        _components(result, config),
        _winner_takes_all(result, config),
    )


def _judged(result: Result, config: Config, outcome: Outcome) -> tuple[Outcome, bool, Evidence]:
    """Outcome as it may be said at this size, whether our own check holds, and that check."""
    check = Evidence(
        name="sum of the logits, which every step of gradient descent conserves",
        against="training",
        unit="largest change",
        value=float(result.facts["logit_sum_drift"]),
        threshold=ROUNDING,
    )
    decided = outcome if check.holds and not config.is_small else Outcome.INCONCLUSIVE
    return decided, check.holds, check


def _fact(result: Result, law: str, name: str) -> float:
    return float(result.facts[f"{law}: {name}"])


def _correlates(result: Result, config: Config) -> Verdict:
    controls = {
        OTHER: f"correlation of {OTHER}",
        SHUFFLED: f"correlation of {SHUFFLED}",
        "untrained layer": "untrained",
    }
    evidence = tuple(
        Evidence(
            name=f"correlation of ẑ with z at the end, {law} tokens",
            against="training",
            unit="correlation, mean over seeds",
            value=_fact(result, law, f"correlation of {ESTIMATE}"),
            threshold=HIGH,
            at_least=True,
            control=_fact(result, law, fact),
            control_name=name,
        )
        for law in config.laws
        for name, fact in controls.items()
    )
    matched = [e for e in evidence if e.control_holds]
    if not all(e.holds for e in evidence):
        found = Outcome.REFUTED
    else:
        found = Outcome.CONDITIONAL if matched else Outcome.HOLDS
    outcome, sound, check = _judged(result, config, found)
    lows = ", ".join(f"{_fact(result, law, f'correlation of {ESTIMATE}'):.3f} ({law})" for law in config.laws)
    others = ", ".join(f"{_fact(result, law, f'correlation of {OTHER}'):.3f} ({law})" for law in config.laws)
    return Verdict(
        id="fig2-correlation",
        title="The estimate correlates with the logits",
        source="Section 3, figure 2",
        claim="ẑ_m(t) of Theorem 1 shows high correlation with the true logits z_m(t), despite the assumption on b̄_m",
        outcome=outcome,
        explanation=(
            f"The correlation at the end is {lows}; with the logits of another run, trained on other draws of the same "
            f"law, it is {others}. Where the two are alike the data decide both sides, and the correlation says "
            "nothing of the run's own law; where only the first is high, it does."
        ),
        evidence=(*evidence, check),
        sound=sound,
    )


def _is_close(result: Result, config: Config) -> Verdict:
    def evidence(law: str, when: str) -> Evidence:
        suffix, at = (", early", "at a quarter of the training") if when == "early" else ("", "at the end")
        return Evidence(
            name=f"relative L2 error of ẑ {at}, {law} tokens",
            against="training",
            unit="relative error, mean over seeds",
            value=_fact(result, law, f"error of {ESTIMATE}{suffix}"),
            threshold=CLOSE,
            control=_fact(result, law, f"error of {CONSTANT}{suffix}"),
            control_name="no estimate: the constant c alone",
        )

    early, late = ([evidence(law, when) for law in config.laws] for when in ("early", "late"))
    if not all(e.holds for e in early):
        found = Outcome.REFUTED
    elif any(e.control_holds for e in (*early, *late)) or not all(e.holds for e in late):
        found = Outcome.CONDITIONAL
    else:
        found = Outcome.HOLDS
    outcome, sound, check = _judged(result, config, found)
    moved = ", ".join(f"{_fact(result, law, 'attention moved'):.2f} ({law})" for law in config.laws)
    errors = ", ".join(f"{e.value:.2f} ({law})" for law, e in zip(config.laws, late, strict=True))
    slow = [result.facts.get(f"slower, {law}: error of {ESTIMATE}") for law in config.laws]
    same = (
        ""
        if None in slow
        else f" (at 1/{config.slower} of the learning rate {', '.join(f'{float(v or 0):.2f}' for v in slow)})"
    )
    return Verdict(
        id="fig2-close",
        title="The estimate predicts the logits",
        source="Section 3, text below Theorem 1",
        claim="for softmax attention the invariance of Theorem 1 still predicts z_m(t) fairly well",
        outcome=outcome,
        explanation=(
            f"Its relative error at the end is {errors}{same}, where the constant alone, no estimate at all, has 1. "
            f"The estimate takes b̄ as constant, and the mean attention moves by {moved} in L1 (2 is the most)."
        ),
        correction="ẑ is close to z early in training; later it keeps the order of the tokens and not the scale",
        evidence=(*late, *early, check),
        sound=sound,
    )


def _components(result: Result, config: Config) -> Verdict:
    evidence = [
        Evidence(
            name=f"correlation of z with ẑ's {name} at the end, {law} tokens",
            against="training",
            unit="correlation, mean over seeds",
            value=_fact(result, law, f"correlation of {name}"),
            threshold=UNCORRELATED,
            control=_fact(result, law, f"correlation of {ESTIMATE}"),
            control_name="both terms together",
        )
        for name in (FIRST, SECOND)
        for law in config.laws
    ]
    together_correlates = not any(e.control_holds for e in evidence)
    if all(e.holds for e in evidence) and together_correlates:
        found = Outcome.HOLDS
    elif any(e.holds for e in evidence) and together_correlates:
        found = Outcome.CONDITIONAL
    else:
        found = Outcome.REFUTED
    outcome, sound, check = _judged(result, config, found)
    first = ", ".join(f"{_fact(result, law, f'correlation of {FIRST}'):.3f} ({law})" for law in config.laws)
    second = ", ".join(f"{_fact(result, law, f'correlation of {SECOND}'):.3f} ({law})" for law in config.laws)
    return Verdict(
        id="fig2-components",
        title="Neither term of the estimate correlates alone",
        source="Caption of figure 2",
        claim="its two components ẑ_m1 = ½Σ_k v_k² and ẑ_m2 = −½Σ_k ‖v_k‖² b̄_m do not correlate highly with z_m",
        outcome=outcome,
        explanation=f"At the end the first term alone has {first}, the second {second}.",
        evidence=(*evidence, check),
        sound=sound,
    )


def _winner_takes_all(result: Result, config: Config) -> Verdict:
    some = [
        Evidence(
            name=f"components of v₀ that still grow over the second half, {law} tokens",
            against="training",
            unit="share of the tokens, mean over seeds",
            value=_fact(result, law, f"growing, attention {LEARNED}"),
            threshold=FEW,
            control=_fact(result, law, f"growing, attention {NOT_LEARNED}"),
            control_name="attention does not learn",
        )
        for law in config.laws
    ]
    alone = [
        Evidence(
            name=f"runs in which Theorem 2's winner is the only component that grows, {law} tokens",
            against="training",
            unit="share of the seeds",
            value=_fact(result, law, "winner alone"),
            threshold=1.0,
            at_least=True,
        )
        for law in config.laws
    ]
    told_apart = [e.holds and not e.control_holds for e in some]
    if all(told_apart) and all(e.holds for e in alone):
        found = Outcome.HOLDS
    else:
        found = Outcome.CONDITIONAL if any(told_apart) else Outcome.REFUTED
    outcome, sound, check = _judged(result, config, found)
    shares = ", ".join(f"{e.value:.0%} ({law})" for law, e in zip(config.laws, some, strict=True))
    frozen = ", ".join(f"{e.control:.0%} ({law})" for law, e in zip(config.laws, some, strict=True))
    return Verdict(
        id="fig3-winners",
        title="Only some components keep growing",
        source="Section 3.1, figure 3",
        claim="only some components of v_0 grow while the remaining ones saturate after initial growing, consistent "
        "with Theorem 2",
        outcome=outcome,
        explanation=(
            f"At the end {shares} of the components still grow, against {frozen} where attention does not learn. "
            "Theorem 2 has one winner, the most salient token; under softmax a single winner would make all samples "
            "alike, and two or more tokens share the growth."
        ),
        correction="learned attention lets components saturate, on smooth tokens most of them; several win, not one",
        evidence=(*some, *alone, check),
        sound=sound,
    )


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
    schema=2,
)
