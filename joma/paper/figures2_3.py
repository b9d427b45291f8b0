r"""Figures 2 and 3: Theorem 1's estimate against real training of one layer, and which weights go on growing.

A layer with softmax attention and linear nodes is trained by plain gradient descent on one sample for each class. The
estimate of its logits from its weights is $\hat z = \hat z_1 + \hat z_2 + c$ with $\hat z_1 = \frac1{2T}\sum_kv_k^2$
and $\hat z_2 = -\frac1{2T}\sum_k\|v_k\|^2\,\bar x$, c fixed at the start, the mean token frequencies $\bar x$ standing
for the mean attention. A correlation over tokens is blind to scale, so the relative error is reported too.

Controls: the estimate against the logits of *another* run (what the data alone decide), against logits with shuffled
tokens, the constant c alone (no estimate at all), the untrained layer, and, for the growth of weights, a layer whose
attention does not learn. Axes: R runs, T reported times, N samples, K nodes, M tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from joma.charts import Chart, heatmap, lines
from joma.claims import Number, claim
from joma.data.frequencies import LAWS, class_tokens, tokens_hash
from joma.engine.config import OptimiserConfig
from joma.engine.step import Stepper
from joma.models.batch import Batch
from joma.models.layer import CONTEXTUAL, AnalysedLayer, LayerConfig, W, X, Z
from joma.paper.experiment import (
    Experiment,
    Measured,
    as_float32,
    caption,
    catalogue,
    crossed,
    joined,
    one_thread,
    select,
)
from joma.store.work import Workspace
from joma.theory.softmax_estimate import anchored, estimate, normalised_correlation
from joma.theory.winner_take_all import LinearFlow

HIGH = 0.9
"""Correlation from which on a reader of figure 2 would call it high."""
CLOSE = 0.3
"""Relative error up to which the estimate predicts 'fairly well'."""
UNCORRELATED = 0.5
"""Correlation up to which a component alone 'does not' correlate."""
FEW = 0.5
"""Share of the components up to which 'only some' of them grow."""
ROUNDING = 1e-12
"""Largest change of the sum of the logits, which every step conserves exactly."""
NO_LEARNING = 1e9
"""Temperature at which attention stays at the token frequencies."""
QUARTERS = 4
SATURATED = 0.1
"""A component has saturated if over the second half it grows by less than this part of the fastest."""
SHUFFLES, SHUFFLED_QUANTILE = 200, 0.95
"""Shuffles of the tokens, and the quantile of their absolute correlations that counts as chance."""
SHOWN = 4
"""Components of v_0 that figure 3 shows."""

ESTIMATE, FIRST, SECOND, CONSTANT = "estimate", "first term alone", "second term alone", "constant alone"
OTHER, SHUFFLED = "logits of another run", "shuffled tokens"
CURVES = (ESTIMATE, FIRST, SECOND, CONSTANT, OTHER, SHUFFLED)
LEARNED, NOT_LEARNED = "learned", "not learned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures23Config:
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

    @property
    def reported(self) -> Float[np.ndarray, " T"]:
        """Steps at which curves are taken."""
        return np.linspace(0, self.num_steps, self.num_reported + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trainings:
    """All runs of one law of tokens."""

    x: Float[np.ndarray, "R N M"]
    v: Float[np.ndarray, "R T K M"]
    z: Float[np.ndarray, "R T M"]

    def estimates(self, run: int, temperature: float) -> dict[str, Float[np.ndarray, "T M"]]:
        """One run's logits by the estimate, by each of its terms and by nothing, without the constant."""
        found = estimate(self.v[run], self.x[run].mean(axis=0), temperature=temperature)
        return {ESTIMATE: found.total, FIRST: found.own, SECOND: found.mean, CONSTANT: np.zeros_like(found.own)}

    def theorem2(self, run: int, temperature: float) -> LinearFlow:
        r"""Exp attention with constant saliencies, $\Delta_{kl} = E[g_kx_l]$ of the start (classes are alike)."""
        num_classes = self.x.shape[1]
        delta = (np.eye(num_classes) - 1 / num_classes) @ self.x[run] / num_classes
        return LinearFlow(delta=delta, v0=self.v[run, 0], z0=self.z[run, 0], temperature=temperature)


def train(
    config: Figures23Config, law: str, *, temperature: float, slower: int = 1, progress: Callable[[float], None]
) -> Trainings:
    """Train every seed in one pack, in float64 on the CPU: a step takes less than a millisecond.

    `progress` is called with the share done at every reported time.
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
    with one_thread():
        for reported in range(config.num_reported):
            progress(reported / config.num_reported)
            for _ in range(num_steps // config.num_reported):
                stepper.advance(batch)
            v.append(own[W] @ own[CONTEXTUAL].mT)
            z.append(own[Z][:, 0].clone())
    return Trainings(x=own[X].numpy().copy(), v=torch.stack(v, dim=1).numpy(), z=torch.stack(z, dim=1).numpy())


def agreement_with_logits(config: Figures23Config, law: str, run: Trainings) -> pd.DataFrame:
    """Correlation and relative error of every estimate with the logits, for each seed and time."""
    rows = []
    for index, seed in enumerate(config.seeds):
        z, raw = run.z[index], run.estimates(index, config.temperature)
        parts = {name: anchored(part, z[0]) for name, part in raw.items()}
        # the caption of figure 2 has the two terms without a constant
        compared = parts | {name: raw[name] for name in (FIRST, SECOND)}
        correlations = {name: normalised_correlation(part, z) for name, part in compared.items()}
        correlations[OTHER] = normalised_correlation(parts[ESTIMATE], run.z[(index + 1) % len(config.seeds)])
        orders = np.tile(np.arange(z.shape[1]), (SHUFFLES, 1))
        shuffled = z[:, np.random.default_rng(seed).permuted(orders, axis=1)]
        by_shuffle = normalised_correlation(np.repeat(parts[ESTIMATE][:, None], SHUFFLES, axis=1), shuffled)
        correlations[SHUFFLED] = np.quantile(np.abs(by_shuffle), SHUFFLED_QUANTILE, axis=1)
        size = np.linalg.norm(z, axis=-1)
        errors = {name: np.linalg.norm(part - z, axis=-1) / size for name, part in parts.items()}
        for name, values in correlations.items():
            about = {"law": law, "seed": seed, "estimate": name, "step": config.reported.astype(int)}
            rows.append(pd.DataFrame(about | {"correlation": values, "relative_error": errors.get(name, np.nan)}))
    return pd.concat(rows, ignore_index=True)


def mean_curves(agreement: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds, with the lowest and the highest."""
    by = agreement.groupby(["law", "estimate", "step"], sort=False)[["correlation", "relative_error"]]
    table = by.agg(["mean", "min", "max"])
    table.columns = ["_".join(names) for names in table.columns]
    return table.reset_index()


def growth_of_node(config: Figures23Config, law: str, run: Trainings) -> pd.DataFrame:
    """The first weights of node 0 over time in the first run, with Theorem 2's until that blows up."""
    steps, flow = config.reported, run.theorem2(0, config.temperature)
    before = steps * config.lr < flow.blow_up_time()
    predicted = np.full((steps.size, SHOWN), np.nan)
    predicted[before] = flow.solution(steps[before] * config.lr)[:, 0, :SHOWN]
    table = crossed(law=[law], step=steps.astype(int), token=range(SHOWN))
    return table.assign(v=run.v[0, :, 0, :SHOWN].ravel(), theorem2=predicted.ravel())


def growing_weights(config: Figures23Config, law: str, run: Trainings, attention: str) -> pd.DataFrame:
    """How many weights of node 0 still grow over the second half, and whether Theorem 2's winner does so alone."""
    sizes = np.abs(run.v[:, :, 0])
    growth = sizes[:, -1] - sizes[:, config.num_reported // 2]
    growing = growth >= SATURATED * growth.max(axis=1, keepdims=True)
    salient = np.array([run.theorem2(index, config.temperature).winner() for index in range(len(config.seeds))])
    table = pd.DataFrame({"law": law, "attention": attention, "seed": config.seeds, "growing": growing.sum(axis=1)})
    table = table.assign(growing_share=growing.mean(axis=1), theorem2_winner=salient, fastest=growth.argmax(axis=1))
    table["winner_grows"] = growing[np.arange(len(salient)), salient]
    return table.assign(winner_alone=table["winner_grows"] & (table["growing"] == 1))


def attention_moved(config: Figures23Config, run: Trainings) -> float:
    """L1 distance of the mean attention at the end from the mean token frequencies, mean over seeds."""
    weighted = run.x * np.exp((run.z[:, -1] - run.z[:, -1].max(axis=-1, keepdims=True)) / config.temperature)[:, None]
    attention = (weighted / weighted.sum(axis=-1, keepdims=True)).mean(axis=1)
    return float(np.abs(attention - run.x.mean(axis=1)).sum(axis=-1).mean())


def of_law(
    config: Figures23Config, law: str, progress: Callable[[float], None]
) -> tuple[dict[str, pd.DataFrame], dict[str, float | str]]:
    """Train on one law of tokens, with and without learned attention; `progress` is called with trainings done."""
    T = config.temperature
    run = train(config, law, temperature=T, progress=progress)
    frozen = train(config, law, temperature=NO_LEARNING, progress=lambda share: progress(1 + share))
    agreement = agreement_with_logits(config, law, run)
    ends = [
        crossed(law=[law], when=[when], node=range(v.shape[0]), token=range(v.shape[1])).assign(v=v.ravel())
        for when, v in (("start", run.v[0, 0]), ("end", run.v[0, -1]))
    ]
    winners = [growing_weights(config, law, *each) for each in ((run, LEARNED), (frozen, NOT_LEARNED))]
    tables = {
        "agreement": agreement[agreement["step"].isin((config.num_steps // QUARTERS, config.num_steps))],
        "curves": as_float32(mean_curves(agreement)),
        "growth": as_float32(growth_of_node(config, law, run)),
        "matrices": as_float32(pd.concat(ends)),
        "winners": pd.concat(winners),
    }
    untrained = np.stack([run.estimates(index, T)[ESTIMATE][0] for index in range(len(config.seeds))])
    facts: dict[str, float | str] = {
        "logit_sum_drift": float(np.abs(run.z.sum(axis=-1) - run.z[:, :1].sum(axis=-1)).max()),
        f"{law}: hash of the tokens": tokens_hash(config.seeds, law=law),
        f"{law}: untrained": float(normalised_correlation(untrained, run.z[:, 0]).mean()),
        f"{law}: attention moved": attention_moved(config, run),
    }
    if config.slower > 1:

        def later(share: float) -> None:
            progress(2 + config.slower * share)

        slow = train(config, law, temperature=T, slower=config.slower, progress=later)
        last = select(agreement_with_logits(config, law, slow), estimate=ESTIMATE, step=config.num_steps)
        facts[f"slower, {law}: error of estimate"] = float(last["relative_error"].mean())
    return tables, facts


def compute(config: Figures23Config, space: Workspace) -> Measured:
    """Train on every law of tokens, and compare weights with logits."""
    for_each = 2 + (config.slower if config.slower > 1 else 0)  # trainings at full rate

    def progress(index: int, done: float) -> None:
        share = (index * for_each + done) / (len(config.laws) * for_each)
        space.progress(share, f"training on {config.laws[index]} tokens")

    found = [of_law(config, law, partial(progress, index)) for index, law in enumerate(config.laws)]
    drift = np.max([facts["logit_sum_drift"] for _, facts in found])  # NaN stays
    facts = {name: value for _, facts in found for name, value in facts.items()} | {"logit_sum_drift": float(drift)}
    return Measured(facts=facts, **joined(tables for tables, _ in found))


def _values(t: Measured, law: str, name: str, column: str, *, early: bool = False) -> pd.Series:
    """Return one value for each seed, at the end or at a quarter of the training."""
    own = select(t.agreement, law=law, estimate=name)
    step = own["step"].min() if early else own["step"].max()
    return own[own["step"] == step].sort_values("seed")[column]


def _logit_sum(t: Measured) -> Number:
    name = "sum of the logits, which every step conserves, largest change"
    return Number.exact(name, t.facts["logit_sum_drift"], at_most=ROUNDING, sanity=True)


@claim("fig2-correlation", "The estimate correlates with the logits", source="Section 3, figure 2")
def correlation_numbers(t: Measured) -> Iterator[Number]:
    """ẑ_m(t) of Theorem 1 shows high correlation with the true logits z_m(t), despite the assumption on b̄_m"""
    yield _logit_sum(t)
    for law in t.config.laws:
        own = _values(t, law, ESTIMATE, "correlation")
        for name, key in ((OTHER, "other"), (SHUFFLED, "shuffled")):
            about: dict[str, Any] = {"setting": f"{law} tokens", "key": f"{law}_{key}", "at_least": HIGH}
            about |= {"control": _values(t, law, name, "correlation"), "control_name": name, "paired": True}
            yield Number.mean("correlation of ẑ with z at the end", own, **about)
        yield Number(name=f"the same, untrained layer, {law} tokens", value=t.facts[f"{law}: untrained"])


@claim("fig2-close", "The estimate predicts the logits", source="Section 3, text below Theorem 1")
def error_numbers(t: Measured) -> Iterator[Number]:
    """for softmax attention the invariance of Theorem 1 still predicts z_m(t) fairly well"""
    yield _logit_sum(t)
    for when, key in (("a quarter of the training", "early"), ("the end", "late")):
        for law in t.config.laws:
            own, constant = (
                _values(t, law, name, "relative_error", early=key == "early") for name in (ESTIMATE, CONSTANT)
            )
            about: dict[str, Any] = {"setting": f"{law} tokens, {when}", "key": f"{law}_{key}", "at_most": CLOSE}
            about |= {"control": constant, "control_name": "no estimate: the constant c alone", "paired": True}
            yield Number.mean("relative L2 error of ẑ", own, **about)
    for law in t.config.laws:
        name = f"mean attention moves from the token frequencies, L1, {law} tokens"
        yield Number(name=name, value=t.facts[f"{law}: attention moved"], key=f"{law}_moved")
        if t.config.slower > 1:
            name = f"relative L2 error at the end, learning rate {t.config.slower} times smaller, {law} tokens"
            yield Number(name=name, value=t.facts[f"slower, {law}: error of estimate"], key=f"{law}_slower")


@claim("fig2-components", "Neither term of the estimate correlates alone", source="Caption of figure 2", primary=False)
def component_numbers(t: Measured) -> Iterator[Number]:
    """its two components ẑ_m1 = ½Σ_k v_k² and ẑ_m2 = −½Σ_k ‖v_k‖² b̄_m do not correlate highly with z_m"""
    yield _logit_sum(t)
    for term, law in product((FIRST, SECOND), t.config.laws):
        own, both = (_values(t, law, name, "correlation") for name in (term, ESTIMATE))
        about: dict[str, Any] = {"setting": f"{law} tokens, {term}", "key": f"{law}_{term.split()[0]}"}
        about |= {"control": both, "control_name": "both terms together", "paired": True}
        yield Number.mean(f"correlation of z with ẑ's {term} at the end", own, at_most=UNCORRELATED, **about)


@claim("fig3-winners", "Only some components keep growing", source="Section 3.1, figure 3")
def winner_numbers(t: Measured) -> Iterator[Number]:
    """only some components of v_0 grow while the remaining ones saturate after initial growing, consistent with
    Theorem 2
    """
    by = t.winners.set_index(["law", "attention"]).sort_values("seed")
    yield _logit_sum(t)
    for law in t.config.laws:
        own, frozen = (by.loc[(law, attention), "growing_share"] for attention in (LEARNED, NOT_LEARNED))
        about: dict[str, Any] = {"unit": "share of the tokens", "setting": f"{law} tokens", "key": law, "at_most": FEW}
        about |= {"control": frozen, "control_name": "attention does not learn", "paired": True}
        yield Number.mean("components of v₀ that still grow over the second half", own, **about)
        alone = by.loc[(law, LEARNED), "winner_alone"].astype(float)
        name = f"runs in which Theorem 2's winner is the only component that grows, {law} tokens"
        yield Number.mean(name, alone, unit="share of the seeds", key=f"{law}_alone")


CLAIMS = (correlation_numbers, error_numbers, component_numbers, winner_numbers)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw correlations and errors over training, the weights of node 0, and all weights at start and end."""
    curves = t.curves[t.curves["step"] > 0].assign(law=t.curves["law"] + " tokens")
    by: dict[str, Any] = {"facet": "law", "color": "estimate", "order": CURVES}
    for column, id in (("correlation", "figure2"), ("relative_error", "figure2-error")):
        shown, band = curves.dropna(subset=f"{column}_mean"), (f"{column}_min", f"{column}_max")
        yield lines(shown, "step", f"{column}_mean", band=band, y_log=id == "figure2-error", **by, **caption(id))
    growth = t.growth.melt(["law", "step", "token"], ["v", "theorem2"], "by", "weight").dropna()
    growth = growth.replace({"by": {"v": "trained", "theorem2": "Theorem 2"}})
    growth = growth.assign(law=growth["law"] + " tokens", token="token " + growth["token"].astype(str))
    by = {"facet": "law", "color": "token", "dash": "by", "share_y": False}
    yield lines(growth, "step", "weight", **by, **caption("figure3"))
    matrices = t.matrices.assign(panel=t.matrices["law"] + " tokens, " + t.matrices["when"])
    yield heatmap(matrices, "token", "node", "v", facet="panel", diverging=True, **caption("figure3-matrices"))


EXPERIMENTS = (
    Experiment(
        **catalogue("figures2-3"),
        presets={"quick": Figures23Config(), "full": Figures23Config(slower=10)},
        compute=compute,
        claims=CLAIMS,
        charts=charts,
        version=2,
    ),
)
