"""Theorem 1 for softmax attention: what Eqns 17 and 18 need, what softmax conserves, and figures 2 and 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
from scipy.differentiate import jacobian
from scipy.linalg import null_space

from joma.checks.check import Mutation, Reference, as_printed, check, over, rejects
from joma.checks.joint_runs import JointRun, Setup, drift, flowed, trained
from joma.checks.layers import FIRST_STEP, Case, gap, slope_of_objective
from joma.theory.activations import linear, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.descent import GradientSteps, StepRecipe, train
from joma.theory.invariants import logit_sums
from joma.theory.layer import (
    Embeddings,
    Layer,
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
ROUNDING_TOLERANCE = 1e-12
"""Rounding over a hundred steps of quantities of order one."""


def _point(rng: np.random.Generator, num_samples: int, *, is_linear: bool = False) -> Case:
    layer = Layer(
        embeddings=orthonormal_embeddings(NUM_TOKENS, 1, dim=DIM, rng=rng),
        attention=Attention(kind=AttentionKind.SOFTMAX, temperature=rng.uniform(0.5, 0.8)),
        activation=linear if is_linear else tanh,
    )
    return Case(
        layer=layer,
        samples=Samples(x=rng.dirichlet(np.ones(NUM_TOKENS), size=num_samples), q=np.zeros(num_samples, dtype=int)),
        w=rng.normal(size=(NUM_NODES, DIM)),
        z=rng.normal(size=(1, NUM_TOKENS)),
        g=rng.normal(size=(num_samples, NUM_NODES)),
    )


def _one_sample(rng: np.random.Generator) -> Sequence[Case]:
    """Draw layers with one sample, where Eqn 17 is exact."""
    return [_point(rng, 1) for _ in range(2)]


# --- Eqn 17 --------------------------------------------------------------------------------------------------------


@check("eqn17", Reference.DIFFERENTIATION, logit_velocity, over=_one_sample)
@rejects("b̄ 1 % off", lambda v, v_dot, b, temperature: logit_velocity(v, v_dot, 1.01 * b, temperature=temperature))
def speed_of_logits(velocity, point):
    """Eqn 17 for a single sample, tanh nodes, at a temperature."""
    slope, T = slope_of_objective(point), point.layer.attention.temperature
    v_dot = point.layer.embeddings.contextual_part(slope.w)
    return gap(velocity(point.v, v_dot, point.samples.weights @ point.b, temperature=T), slope.z[0])


def _met_by_each_node(equations: np.ndarray) -> np.ndarray:
    return null_space(equations)[:, :NUM_NODES]


def _met_by_the_sum_over_nodes(equations: np.ndarray) -> np.ndarray:
    """Gradients whose sum over nodes meets the equations, as does every cross-entropy with linear nodes (sum zero)."""
    g = np.random.default_rng(1).normal(size=(MANY, NUM_NODES))
    return g - g.mean(axis=1, keepdims=True)


def _met_by_all_but_one_node(equations: np.ndarray) -> np.ndarray:
    g = _met_by_each_node(equations)
    return np.hstack([g[:, 1:], np.random.default_rng(1).normal(size=(MANY, 1)) / np.sqrt(MANY)])


# Tolerance: finite differences, over a gradient of order 0.01
@check("eqn17", Reference.DIFFERENTIATION, _met_by_each_node, 1e-8, unit="relative error")
@over(lambda rng: [_point(rng, MANY, is_linear=True)])
@as_printed(_met_by_the_sum_over_nodes)
@rejects("one node without the condition", _met_by_all_but_one_node)
def speed_under_condition(condition, point):
    """Eqn 17 on 40 samples whose gradient meets the condition for each node, or for their sum."""
    b = point.layer.scores(point.z, point.samples)
    equations = ((b - b.mean(axis=0))[:, :, None] * b[:, None, :]).reshape(MANY, -1).T
    point = replace(point, g=condition(equations))
    return speed_of_logits(logit_velocity, point) / float(np.abs(slope_of_objective(point).z).max())


COUNTEREXAMPLE = (
    np.array([[0.275, 1.025, -1.225], [-0.275, -1.025, 1.225]]),
    np.array([[0.4, 0.3, 0.3], [0.1, 0.3, 0.6]]),
    np.array([[1.0, -1.0], [-1.0, 1.0]]),
)
"""v (nodes, tokens), b (samples, tokens) and g (samples, nodes) with Σ_k g_k = 0: the printed condition reads 0 = 0."""


def _velocity_of_the_layer(v: np.ndarray, b: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The logits' gradient by `Layer`: at z = 0 the attention is the token frequencies."""
    tokens = np.eye(b.shape[1] + 1)
    layer = Layer(
        embeddings=Embeddings(contextual=tokens[:, :-1], queries=tokens[:, -1:]),
        attention=Attention(kind=AttentionKind.SOFTMAX),
        activation=linear,
    )
    samples = Samples(x=b, q=np.zeros(len(b), dtype=int))
    return layer.gradient(np.pad(v, ((0, 0), (0, 1))), np.zeros((1, b.shape[1])), samples, g).z[0]


@check("eqn17", Reference.EXACT_RATIONALS, _velocity_of_the_layer)
@as_printed(lambda v, b, g: logit_velocity(v, g.T @ b / len(b), b.mean(axis=0)))
def speed_at_the_counterexample(velocity):
    """Two nodes, two samples with Σ_k g_k = 0: dz/dt = (0.0225, −0.135, 0.1125)."""
    v, b, g = (np.vectorize(lambda entry: Fraction(str(entry)), otypes=[object])(part) for part in COUNTEREXAMPLE)
    pulls = [sum(g[i, k] * v[k] for k in range(len(v))) for i in range(len(b))]
    exact = sum(b[i] * pulls[i] - b[i] * (b[i] * pulls[i]).sum() for i in range(len(b))) / len(b)
    return gap(velocity(*COUNTEREXAMPLE), exact.astype(np.float64))


# --- Eqn 18 --------------------------------------------------------------------------------------------------------


def _bracket(v: np.ndarray, b_mean: np.ndarray, temperature: float, rate_ratio: float = 1.0) -> np.ndarray:
    return estimate(v, b_mean, temperature=temperature, rate_ratio=rate_ratio).total


def _printed_bracket(v: np.ndarray, b_mean: np.ndarray, temperature: float) -> np.ndarray:
    """½ Σ_k v_k² − Σ_k ‖v_k‖² b̄: the ½ on the first term alone, and no temperature."""
    return np.square(v).sum(axis=0) / 2 - np.square(v).sum() * b_mean


@check("thm1-softmax", Reference.DIFFERENTIATION, _bracket, printed=_printed_bracket, over=_one_sample)
def tangent_of_relation(relation, point):
    """Derivative of the relation along the flow at b̄ held, one sample, at a temperature."""
    slope, b_mean = slope_of_objective(point), point.samples.weights @ point.b
    v_dot = point.layer.embeddings.contextual_part(slope.w)

    def at(time: float) -> np.ndarray:
        return relation(point.v + time * v_dot, b_mean, point.layer.attention.temperature)

    tangent = jacobian(lambda times: np.apply_along_axis(at, 0, times), np.zeros(1), initial_step=FIRST_STEP).df[:, 0]
    return gap(tangent, slope.z[0])


def _with_moving_mean(
    t: np.ndarray, v: np.ndarray, b: np.ndarray, temperature: float, factor: float = 1.0
) -> np.ndarray:
    moving = moving_mean_term(t, v, b, temperature=temperature, rate_ratio=RATE_RATIO)
    return _bracket(v, b, temperature, RATE_RATIO) + factor * moving


@check(
    "eqn18",
    Reference.ODE,
    _with_moving_mean,
    printed=lambda t, v, b, temperature: _bracket(v, b, temperature, RATE_RATIO),
    mutation=Mutation("temperature 1 % off", lambda t, v, b, T: _with_moving_mean(t, v, b, 1.01 * T)),
    over=_one_sample,
    name="the same, against the printed form with the b̄ of each moment",
)
@check("eqn18", Reference.ODE, _with_moving_mean, over=_one_sample)
@as_printed(lambda t, v, b, temperature: _bracket(v, b[0], temperature, RATE_RATIO))
@rejects("integral 1 % off", lambda t, v, b, T: _with_moving_mean(t, v, b, T, 1.01))
def logits_over_time(solution, point):
    """Logits over time 0 to 2 for one sample, against the printed form with the b̄ of the start."""
    gradient = fixed_gradient(point.g)
    run = point.layer.flow(point.w / 2, point.z / 2, point.samples, gradient, TIMES, rate_ratio=RATE_RATIO)
    v, z = point.layer.embeddings.contextual_part(run["w"]), run["z"][:, 0]
    b = point.layer.attention.scores(z, point.samples.x)
    return np.abs(anchored(solution(TIMES, v, b, point.layer.attention.temperature), z[0]) - z).max()


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


@check("thm1-sum", Reference.ODE, lambda run: logit_sums(run.z), ROUNDING_TOLERANCE, unit="max abs drift", over=_runs)
@rejects("last token weighted 1 % more than the first", lambda run: run.z @ np.linspace(1, 1.01, run.z.shape[-1]))
def drift_of_sums(quantity, run):
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


@check("fig2", Reference.TRAINING, _estimated, HIGH, unit="1 − correlation", over=_both)
@rejects("tokens shifted by one", _shifted)
def lack_of_correlation(part, *runs):
    """1 − correlation of z with ẑ, worst of steps 100 to 2000 and both kinds of data."""
    return 1 - _correlations(part, runs).min()


# Tolerance: below a half of perfect: 'does not correlate'
@check("fig2", Reference.TRAINING, lambda run: run.parts.mean, 0.5, unit="correlation", over=_both)
@as_printed(lambda run: run.parts.own)
@rejects("both components", _estimated)
def correlation_of_a_component(part, *runs):
    """Correlation of z with a component alone: ẑ₂ against ẑ₁."""
    return _correlations(part, runs).max()


@check("fig2", Reference.TRAINING, EARLY, FAIRLY_WELL, printed=LATE, unit="relative error", over=_both)
@rejects("at step 1000", HALFWAY)
def error_at_a_step(step, *runs):
    """Relative L2 error of ẑ at step 500 against the end, step 2000."""
    return max(run.error(_estimated, step) for run in runs)


@check("fig2", Reference.TRAINING, _estimated, FAIRLY_WELL, unit="relative error", over=_both)
@as_printed(_half_of_the_first_term)
@rejects("no temperature", lambda run: anchored(run.parts.total / 2, run.z[0]))
def error_of_an_estimate(part, *runs):
    """Relative L2 error at step 500: the bracket of Eqn 18 against the ½ on the first term alone."""
    return max(run.error(part, EARLY) for run in runs)


@check("fig2", Reference.TRAINING, _estimated, HIGH, unit="1 − correlation", over=_both)
@as_printed(_with_attention_of_the_moment)
@rejects("tokens shifted by one", _shifted)
def lack_of_late_correlation(part, *runs):
    """1 − correlation at step 2000: mean token frequencies for b̄ against the mean attention b̄(t)."""
    return 1 - _correlations(part, runs)[REPORTED.index(LATE)]


def _most_salient_token(x: np.ndarray) -> tuple[int, ...]:
    """Theorem 2's winner, the largest ‖Δ_l‖ over nodes, with Δ_kl = E[g_k x_l] at the start."""
    g = np.eye(NUM_CLASSES) - 1 / NUM_CLASSES
    return (int(np.linalg.norm(g.T @ x, axis=0).argmax()),)


# Tolerance: saturated: less than a tenth of the growth of the others
@check("fig3", Reference.TRAINING, lambda x: (0, NUM_DISTINCT - 1), 0.1, unit="ratio of growths", over=SEEDS)
@as_printed(_most_salient_token)
@rejects("the first two tokens", lambda x: (0, 1))
def growth_of_losers(winners, seed):
    """Growth of |v_0l| over steps 1000 to 2000, largest loser over smallest winner, smooth data."""
    run = _trained(True, seed)
    growth = np.abs(run.v[LATE, 0]) - np.abs(run.v[HALFWAY, 0])
    growing = np.isin(np.arange(growth.size), winners(run.x))
    return growth[~growing].max() / growth[growing].min()
