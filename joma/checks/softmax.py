"""Theorem 1 for softmax attention: what Eqns 17 and 18 need, what softmax conserves, and figures 2 and 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from scipy.differentiate import jacobian
from scipy.linalg import null_space

from joma.checks.check import Mutation, Reference, check, scaled
from joma.checks.joint_runs import JointRun, Quantity, Setup, drift, flowed, trained
from joma.checks.layers import DIFFERENTIATION_TOLERANCE, FIRST_STEP, differentiated
from joma.theory.activations import linear, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.descent import GradientSteps, StepRecipe, train
from joma.theory.invariants import logit_sums
from joma.theory.layer import (
    Embeddings,
    Layer,
    LayerGradient,
    Samples,
    cross_entropy_gradient,
    fixed_gradient,
    orthonormal_embeddings,
)
from joma.theory.softmax_estimate import (
    LogitEstimate,
    anchored,
    estimate,
    logit_velocity,
    moving_mean_term,
    normalised_correlation,
)

NUM_TOKENS, DIM, NUM_NODES = 3, 5, 3
MANY = 40
"""Samples: enough that a gradient can satisfy Eqn 17's condition without being zero."""
TIMES = np.linspace(0.0, 2.0, 80)
RATE_RATIO = 1.4
"""Learning rate of the logits over that of the weights, in Eqn 18."""
ODE_TOLERANCE = 1e-9
"""Splines of degree 7 through 80 times, and DOP853 at rtol 1e-12."""
ROUNDING_TOLERANCE = 1e-12
"""Rounding over a hundred steps of quantities of order one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A softmax layer at one point of its training."""

    layer: Layer
    samples: Samples
    w: np.ndarray
    z: np.ndarray
    g: np.ndarray

    @property
    def v(self) -> np.ndarray:
        """U_C^T w_k."""
        return self.layer.embeddings.contextual_part(self.w)

    @property
    def b_mean(self) -> np.ndarray:
        """Mean attention."""
        return self.samples.weights @ self.layer.scores(self.z, self.samples)

    @property
    def temperature(self) -> float:
        """T."""
        return self.layer.attention.temperature


def _point(rng: np.random.Generator, num_samples: int, *, is_linear: bool = False) -> Point:
    layer = Layer(
        embeddings=orthonormal_embeddings(NUM_TOKENS, 1, dim=DIM, rng=rng),
        attention=Attention(kind=AttentionKind.SOFTMAX, temperature=rng.uniform(0.5, 0.8)),
        activation=linear if is_linear else tanh,
    )
    return Point(
        layer=layer,
        samples=Samples(x=rng.dirichlet(np.ones(NUM_TOKENS), size=num_samples), q=np.zeros(num_samples, dtype=int)),
        w=rng.normal(size=(NUM_NODES, DIM)),
        z=rng.normal(size=(1, NUM_TOKENS)),
        g=rng.normal(size=(num_samples, NUM_NODES)),
    )


def _one_sample(rng: np.random.Generator) -> Sequence[Point]:
    """Draw layers with one sample, where Eqn 17 is exact."""
    return [_point(rng, 1) for _ in range(2)]


@cache
def _ascent(point: Point) -> LayerGradient:
    """Gradient of Eqn 9 by finite differences."""
    return differentiated(lambda w, z: point.layer.objective(w, z, point.samples, point.g), point.w, point.z)


def _v_dot(point: Point) -> np.ndarray:
    return point.layer.embeddings.contextual_part(_ascent(point).w)


# --- Eqn 17 --------------------------------------------------------------------------------------------------------


def _velocity_off(v: np.ndarray, v_dot: np.ndarray, b_mean: np.ndarray, temperature: float) -> np.ndarray:
    return logit_velocity(v, v_dot, 1.01 * b_mean, temperature=temperature)


@check(
    "eqn17",
    against=Reference.DIFFERENTIATION,
    formula=logit_velocity,
    tolerance=DIFFERENTIATION_TOLERANCE,
    mutation=Mutation("b̄ 1 % off", _velocity_off),
    over=_one_sample,
)
def speed_of_logits(velocity: Callable[..., np.ndarray], point: Point) -> float:
    """Eqn 17 for a single sample, tanh nodes, at a temperature."""
    claimed = velocity(point.v, _v_dot(point), point.b_mean, temperature=point.temperature)
    return float(np.abs(claimed - _ascent(point).z[0]).max())


def _met_by_each_node(equations: np.ndarray) -> np.ndarray:
    return null_space(equations)[:, :NUM_NODES]


def _met_by_the_sum_over_nodes(equations: np.ndarray) -> np.ndarray:
    """Gradients whose sum over nodes meets the equations, as does every cross-entropy with linear nodes (sum zero)."""
    g = np.random.default_rng(1).normal(size=(MANY, NUM_NODES))
    return g - g.mean(axis=1, keepdims=True)


def _met_by_all_but_one_node(equations: np.ndarray) -> np.ndarray:
    g = _met_by_each_node(equations)
    return np.hstack([g[:, 1:], np.random.default_rng(1).normal(size=(MANY, 1)) / np.sqrt(MANY)])


@check(
    "eqn17",
    against=Reference.DIFFERENTIATION,
    formula=_met_by_each_node,
    printed=_met_by_the_sum_over_nodes,
    tolerance=1e-8,  # finite differences, over a gradient of order 0.01
    unit="relative error",
    mutation=Mutation("one node without the condition", _met_by_all_but_one_node),
    over=lambda rng: [_point(rng, MANY, is_linear=True)],
)
def speed_under_condition(condition: Callable[[np.ndarray], np.ndarray], point: Point) -> float:
    """Eqn 17 on 40 samples whose gradient meets the condition for each node, or for their sum."""
    b = point.layer.scores(point.z, point.samples)
    equations = ((b - b.mean(axis=0))[:, :, None] * b[:, None, :]).reshape(MANY, -1).T
    point = replace(point, g=condition(equations))
    return speed_of_logits(logit_velocity, point) / float(np.abs(_ascent(point).z).max())


LinearNodes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights v (nodes, tokens), attention b (samples, tokens) and gradients g (samples, nodes) of linear nodes."""
COUNTEREXAMPLE: LinearNodes = (
    np.array([[0.275, 1.025, -1.225], [-0.275, -1.025, 1.225]]),
    np.array([[0.4, 0.3, 0.3], [0.1, 0.3, 0.6]]),
    np.array([[1.0, -1.0], [-1.0, 1.0]]),
)
"""Two nodes, two samples, Σ_k g_k = 0: the printed condition reads 0 = 0."""


def _velocity_of_the_layer(nodes: LinearNodes) -> np.ndarray:
    """The logits' gradient by `Layer`: at z = 0 the attention is the token frequencies."""
    v, b, g = nodes
    tokens = np.eye(b.shape[1] + 1)
    layer = Layer(
        embeddings=Embeddings(contextual=tokens[:, :-1], queries=tokens[:, -1:]),
        attention=Attention(kind=AttentionKind.SOFTMAX),
        activation=linear,
    )
    samples = Samples(x=b, q=np.zeros(len(b), dtype=int))
    return layer.gradient(np.pad(v, ((0, 0), (0, 1))), np.zeros((1, b.shape[1])), samples, g).z[0]


def _eqn17_of(nodes: LinearNodes) -> np.ndarray:
    v, b, g = nodes
    return logit_velocity(v, g.T @ b / len(b), b.mean(axis=0))


@check(
    "eqn17",
    against=Reference.EXACT_RATIONALS,
    formula=_velocity_of_the_layer,
    printed=_eqn17_of,
    tolerance=1e-15,  # a few roundings of numbers of order 0.1
    mutation=scaled(_velocity_of_the_layer),
)
def speed_at_the_counterexample(velocity: Callable[[LinearNodes], np.ndarray]) -> float:
    """Two nodes, two samples with Σ_k g_k = 0: dz/dt = (0.0225, −0.135, 0.1125)."""
    v, b, g = (np.vectorize(lambda entry: Fraction(str(entry)), otypes=[object])(part) for part in COUNTEREXAMPLE)
    pulls = [sum(g[i, k] * v[k] for k in range(len(v))) for i in range(len(b))]
    exact = sum(b[i] * pulls[i] - b[i] * (b[i] * pulls[i]).sum() for i in range(len(b))) / len(b)
    return float(np.abs(velocity(COUNTEREXAMPLE) - exact.astype(np.float64)).max())


# --- Eqn 18 --------------------------------------------------------------------------------------------------------


def _bracket(v: np.ndarray, b_mean: np.ndarray, temperature: float, rate_ratio: float = 1.0) -> np.ndarray:
    return estimate(v, b_mean, temperature=temperature, rate_ratio=rate_ratio).total


def _printed_bracket(v: np.ndarray, b_mean: np.ndarray, temperature: float) -> np.ndarray:
    """½ Σ_k v_k² − Σ_k ‖v_k‖² b̄: the ½ on the first term alone, and no temperature."""
    return np.square(v).sum(axis=0) / 2 - np.square(v).sum() * b_mean


@check(
    "thm1-softmax",
    against=Reference.DIFFERENTIATION,
    formula=_bracket,
    printed=_printed_bracket,
    tolerance=DIFFERENTIATION_TOLERANCE,
    mutation=scaled(_bracket),
    over=_one_sample,
)
def tangent_of_relation(relation: Callable[..., np.ndarray], point: Point) -> float:
    """Derivative of the relation along the flow at b̄ held, one sample, at a temperature."""

    def along(times: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(
            lambda time: relation(point.v + time * _v_dot(point), point.b_mean, point.temperature), 0, times
        )

    tangent = jacobian(along, np.zeros(1), initial_step=FIRST_STEP).df[:, 0]
    return float(np.abs(tangent - _ascent(point).z[0]).max())


def _with_moving_mean(
    t: np.ndarray, v: np.ndarray, b: np.ndarray, temperature: float, factor: float = 1.0
) -> np.ndarray:
    moving = moving_mean_term(t, v, b, temperature=temperature, rate_ratio=RATE_RATIO)
    return _bracket(v, b, temperature, RATE_RATIO) + factor * moving


EQN18: dict[str, Any] = {
    "against": Reference.ODE,
    "formula": _with_moving_mean,
    "tolerance": ODE_TOLERANCE,
    "over": _one_sample,
}


@check(
    "eqn18",
    **EQN18,
    printed=lambda t, v, b, temperature: _bracket(v, b, temperature, RATE_RATIO),
    mutation=Mutation("temperature 1 % off", lambda t, v, b, T: _with_moving_mean(t, v, b, 1.01 * T)),
    name="the same, against the printed form with the b̄ of each moment",
)
@check(
    "eqn18",
    **EQN18,
    printed=lambda t, v, b, temperature: _bracket(v, b[0], temperature, RATE_RATIO),
    mutation=Mutation("integral 1 % off", lambda t, v, b, T: _with_moving_mean(t, v, b, T, 1.01)),
)
def logits_over_time(solution: Callable[..., np.ndarray], point: Point) -> float:
    """Logits over time 0 to 2 for one sample, against the printed form with the b̄ of the start."""
    gradient = fixed_gradient(point.g)
    run = point.layer.flow(point.w / 2, point.z / 2, point.samples, gradient, TIMES, rate_ratio=RATE_RATIO)
    v, z = point.layer.embeddings.contextual_part(run["w"]), run["z"][:, 0]
    b = point.layer.attention.scores(z, point.samples.x)
    return float(np.abs(anchored(solution(TIMES, v, b, point.temperature), z[0]) - z).max())


# --- the sum of logits ---------------------------------------------------------------------------------------------

SHARED = Setup(kind=AttentionKind.SOFTMAX, num_queries=3, temperature=0.7, rate_ratio=2.0)
WITHOUT_HYPOTHESES = (
    SHARED,
    replace(SHARED, overlap=0.5, norm=1.7, phi="tanh"),
    Setup(kind=AttentionKind.SOFTMAX, query_in_context=True, backprop="time-varying"),
)
"""Queries that share w, unequal rates, embeddings that overlap, and a query that is a contextual token."""
COARSE = StepRecipe(num_steps=100, rate=0.5, rate_ratio=2.0, optimiser=GradientSteps(momentum=0.5), batch_size=3)


def _runs(rng: np.random.Generator) -> Sequence[JointRun]:
    return [*map(flowed, WITHOUT_HYPOTHESES), trained(SHARED, COARSE)]


@check(
    "thm1-sum",
    against=Reference.ODE,
    formula=lambda run: logit_sums(run.z),
    tolerance=ROUNDING_TOLERANCE,
    unit="max abs drift",
    mutation=Mutation(
        "last token weighted 1 % more than the first", lambda run: run.z @ np.linspace(1, 1.01, run.z.shape[-1])
    ),
    over=_runs,
)
def drift_of_sums(quantity: Quantity, run: JointRun) -> float:
    """Drift along flows without any hypothesis, and over 100 steps of size 0.5 with momentum on minibatches."""
    return drift(quantity(run))


# --- figures 2 and 3 -----------------------------------------------------------------------------------------------

NUM_CLASSES = 20
NUM_DISTINCT = NUM_COMMON = 10
WIDTH = 30.0
"""Of the bell by which distinct tokens pass smoothly from class to class."""
LARGEST_FREQUENCY = 0.5
START = 0.01
ATTENTION = Attention(kind=AttentionKind.SOFTMAX, temperature=0.5)
RECIPE = StepRecipe(num_steps=2000, rate=0.1)
SEEDS = (0, 1)
REPORTED = (100, 500, 1000, 2000)
"""Steps at which correlations are taken."""
EARLY, HALFWAY, LATE = 500, 1000, 2000
HIGH, FAIRLY_WELL = 0.1, 0.3
"""1 − correlation that a reader of the figure would call high, and a relative error that is still 'fairly well'."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedLayer:
    """One run of the figures."""

    x: np.ndarray
    """(classes, tokens)"""
    v: np.ndarray
    """(T, K, M)"""
    z: np.ndarray
    """(T, M)"""

    @property
    def parts(self) -> LogitEstimate:
        """Eqn 18 with the mean token frequencies for b̄, as the figure takes it."""
        return estimate(self.v, self.x.mean(axis=0), temperature=ATTENTION.temperature)

    def error(self, part: "Part", step: int) -> float:
        """Relative L2 error of an estimate at a step."""
        return float(np.linalg.norm(part(self)[step] - self.z[step]) / np.linalg.norm(self.z[step]))


Part = Callable[[TrainedLayer], np.ndarray]
"""A run in, its estimate of the logits over time or a component of that out."""


@cache
def _trained(smooth: bool, seed: int) -> TrainedLayer:
    """Train the layer of the figures; `smooth` has distinct tokens that pass smoothly from class to class."""
    rng = np.random.default_rng(seed)
    place = NUM_DISTINCT * np.arange(NUM_CLASSES) / NUM_CLASSES
    bell = np.exp(-np.square(np.subtract.outer(place, np.arange(NUM_DISTINCT))) / WIDTH)
    common = rng.uniform(0, LARGEST_FREQUENCY, (NUM_CLASSES, NUM_COMMON))
    distinct = bell if smooth else rng.uniform(0, LARGEST_FREQUENCY, (NUM_CLASSES, NUM_DISTINCT))
    x = np.hstack([distinct, common])
    x /= x.sum(axis=1, keepdims=True)
    num_tokens, dim = x.shape[1], 30
    layer = Layer(
        embeddings=orthonormal_embeddings(num_tokens, 1, dim=dim, rng=rng), attention=ATTENTION, activation=linear
    )
    w0, z0 = START * rng.normal(size=(NUM_CLASSES, dim)), START * rng.normal(size=(1, num_tokens))
    samples = Samples(x=x, q=np.zeros(NUM_CLASSES, dtype=int))
    run = train(layer, w0, z0, samples, cross_entropy_gradient(np.arange(NUM_CLASSES)), RECIPE)
    return TrainedLayer(x=x, v=layer.embeddings.contextual_part(run["w"]), z=run["z"][:, 0])


def _both(rng: np.random.Generator) -> Sequence[tuple[TrainedLayer, ...]]:
    """Return the runs of smooth and of random data, over seeds."""
    return [tuple(_trained(smooth, seed) for seed in SEEDS) for smooth in (True, False)]


def _estimated(run: TrainedLayer) -> np.ndarray:
    """Eqn 18 with its constant fixed at the start."""
    return anchored(run.parts.total, run.z[0])


def _half_of_the_first_term(run: TrainedLayer) -> np.ndarray:
    """Theorem 1 as the text prints it, ½Σ_k v_k² − Σ_k ‖v_k‖² b̄: the ½ on the first term alone."""
    return anchored(run.parts.own + 2 * run.parts.mean, run.z[0])


def _with_attention_of_the_moment(run: TrainedLayer) -> np.ndarray:
    """Eqn 18 with the mean attention b̄(t) that the layer has at each step."""
    mean_attention = ATTENTION.scores(run.z[:, None], run.x[None]).mean(axis=1)
    return anchored(estimate(run.v, mean_attention, temperature=ATTENTION.temperature).total, run.z[0])


def _shifted(run: TrainedLayer) -> np.ndarray:
    return np.roll(_estimated(run), 1, axis=-1)


def _correlations(part: Part, runs: Sequence[TrainedLayer]) -> np.ndarray:
    """Correlation with the logits at the reported steps, mean over seeds."""
    steps = list(REPORTED)
    return np.mean([normalised_correlation(part(run)[steps], run.z[steps]) for run in runs], axis=0)


TRAINED: dict[str, Any] = {"against": Reference.TRAINING, "over": _both}


@check(
    "fig2",
    **TRAINED,
    formula=_estimated,
    tolerance=HIGH,
    unit="1 − correlation",
    mutation=Mutation("tokens shifted by one", _shifted),
)
def lack_of_correlation(part: Part, runs: Sequence[TrainedLayer]) -> float:
    """1 − correlation of z with ẑ, worst of steps 100 to 2000 and both kinds of data."""
    return float(1 - _correlations(part, runs).min())


@check(
    "fig2",
    **TRAINED,
    formula=lambda run: run.parts.mean,
    printed=lambda run: run.parts.own,
    tolerance=0.5,  # below a half of perfect: 'does not correlate'
    unit="correlation",
    mutation=Mutation("both components", _estimated),
)
def correlation_of_a_component(part: Part, runs: Sequence[TrainedLayer]) -> float:
    """Correlation of z with a component alone: ẑ₂ against ẑ₁."""
    return float(_correlations(part, runs).max())


@check(
    "fig2",
    **TRAINED,
    formula=EARLY,
    printed=LATE,
    tolerance=FAIRLY_WELL,
    unit="relative error",
    mutation=Mutation("at step 1000", HALFWAY),
)
def error_at_a_step(step: int, runs: Sequence[TrainedLayer]) -> float:
    """Relative L2 error of ẑ at step 500 against the end, step 2000."""
    return max(run.error(_estimated, step) for run in runs)


@check(
    "fig2",
    **TRAINED,
    formula=_estimated,
    printed=_half_of_the_first_term,
    tolerance=FAIRLY_WELL,
    unit="relative error",
    mutation=Mutation("no temperature", lambda run: anchored(run.parts.total / 2, run.z[0])),
)
def error_of_an_estimate(part: Part, runs: Sequence[TrainedLayer]) -> float:
    """Relative L2 error at step 500: the bracket of Eqn 18 against the ½ on the first term alone."""
    return max(run.error(part, EARLY) for run in runs)


@check(
    "fig2",
    **TRAINED,
    formula=_estimated,
    printed=_with_attention_of_the_moment,
    tolerance=HIGH,
    unit="1 − correlation",
    mutation=Mutation("tokens shifted by one", _shifted),
)
def lack_of_late_correlation(part: Part, runs: Sequence[TrainedLayer]) -> float:
    """1 − correlation at step 2000: mean token frequencies for b̄ against the mean attention b̄(t)."""
    return float(1 - _correlations(part, runs)[REPORTED.index(LATE)])


def _most_salient_token(x: np.ndarray) -> tuple[int, ...]:
    """Theorem 2's winner, the largest ‖Δ_l‖ over nodes, with Δ_kl = E[g_k x_l] at the start."""
    g = np.eye(NUM_CLASSES) - 1 / NUM_CLASSES
    return (int(np.linalg.norm(g.T @ x, axis=0).argmax()),)


@check(
    "fig3",
    against=Reference.TRAINING,
    formula=lambda x: (0, NUM_DISTINCT - 1),
    printed=_most_salient_token,
    tolerance=0.1,  # saturated: less than a tenth of the growth of the others
    unit="ratio of growths",
    mutation=Mutation("the first two tokens", lambda x: (0, 1)),
    over=lambda rng: SEEDS,
)
def growth_of_losers(winners: Callable[[np.ndarray], tuple[int, ...]], seed: int) -> float:
    """Growth of |v_0l| over steps 1000 to 2000, largest loser over smallest winner, smooth data."""
    run = _trained(True, seed)
    growth = np.abs(run.v[LATE, 0]) - np.abs(run.v[HALFWAY, 0])
    growing = np.isin(np.arange(growth.size), winners(run.x))
    return float(growth[~growing].max() / growth[growing].min())
