"""Section 3, Theorem 1 for linear and exp attention: what training conserves, and with which constants."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from joma import theory
from joma.checks.check import Mutation, as_printed, check, over, rejects
from joma.checks.layers import BOTH, ROUNDING_TOLERANCE, JointRun, Setup, drift, problem, run_of
from joma.checks.quadrature import solved
from joma.checks.reference import MONTE_CARLO, ODE, TRAINING
from joma.theory import AttentionKind, Invariant, StepRecipe

LINEAR = (
    Setup(kind=AttentionKind.LINEAR, phi=theory.linear, num_nodes=1, seed=1),
    Setup(kind=AttentionKind.LINEAR, phi=theory.relu),
    Setup(kind=AttentionKind.LINEAR, phi=theory.tanh, num_nodes=17, backprop="cross-entropy", seed=2),
    Setup(kind=AttentionKind.LINEAR, phi=theory.gelu, num_nodes=5, backprop="time-varying", seed=3),
    Setup(kind=AttentionKind.LINEAR, phi=theory.sigmoid, num_nodes=2, backprop="cross-entropy", seed=4),
)
"""One and many nodes, five activations, gradients that are fixed, change over time or come from a loss.

Most flows of ReLU nodes under a fixed gradient end up sliding along a kink, where solvers stall; these do not.
"""
EXP = tuple(replace(each, kind=AttentionKind.EXP, seed=3 if each.phi is theory.relu else each.seed) for each in LINEAR)


def corrected(run: JointRun) -> np.ndarray:
    """Theorem 1's quantity with its constants put right."""
    return run.law.value(run.v, run.z)


def printed(run: JointRun) -> np.ndarray:
    """Theorem 1 as printed, for each query by itself: z² − Σv² or z − ½Σv²."""
    squares = np.square(run.v).sum(axis=1)[:, None]
    return run.z**2 - squares if run.setup.kind is AttentionKind.LINEAR else run.z - squares / 2


def _total(run: JointRun, factor: float = 1.0) -> np.ndarray:
    u = run.layer.embeddings.contextual
    return replace(run.law, gram=u.T @ u).total(np.sqrt(factor) * run.v, run.z)


def _weighted_by_probability(run: JointRun) -> np.ndarray:
    share = run.samples.by_query(run.setup.num_queries).sum(axis=1)
    return replace(run.law, query_weights=share).value(run.v, run.z)


def _own_tokens(run: JointRun, step: int = 1) -> np.ndarray:
    """Each query's own law on the tokens that it alone sees; a step of -1 gives it the logits of the other query."""
    owner = np.arange(run.v.shape[-1]) % run.setup.num_queries
    return np.take_along_axis(printed(replace(run, z=run.z[:, ::step])), owner[None, None], axis=1)[:, 0]


def _own_nodes(run: JointRun, step: int = 1) -> np.ndarray:
    """Each query's own law with the nodes that it alone trains in the sum over k; the step as above."""
    owner, queries = np.arange(run.v.shape[1]) % run.setup.num_queries, range(run.setup.num_queries)
    parts = [printed(replace(run, v=run.v[:, owner == m], z=run.z[:, ::step][:, m : m + 1])) for m in queries]
    return np.concatenate(parts, axis=1)


def conserved(claim: str, name: str, over: Any, formula: Any = corrected, off: Any = None, **options: Any) -> Any:
    """Register a check of how far a quantity drifts along a flow; `off` says what it must catch."""
    off = off or ("factor of Σ_k v_k² 1 % off", lambda run: run.law.value(np.sqrt(1.01) * run.v, run.z))
    return check(claim, ODE, formula, mutation=Mutation(*off), name=name, over=over, unit="max abs drift", **options)


def _warm(rng):
    return [Setup(temperature=each, seed=6) for each in (rng.uniform(0.4, 0.7), rng.uniform(1.5, 3.0))]


def _warm_linear(rng):
    return [replace(each, kind=AttentionKind.LINEAR) for each in _warm(rng)]


def _unequal(rng):
    setup = Setup(rate_ratio=rng.uniform(1.6, 2.6), temperature=rng.uniform(0.6, 0.9), norm=rng.uniform(1.2, 1.5))
    rates = Setup(rate_ratio=setup.rate_ratio)
    return [*setup.with_both(), *replace(setup, num_queries=2, num_nodes=4).with_both(), *rates.with_both()]


def _mixed(rng):
    return Setup(overlap=0.5, rate_ratio=rng.uniform(1.5, 3.0), temperature=rng.uniform(1.2, 2.0)).with_both()


THREE, TWO = Setup(num_queries=3, num_nodes=4), Setup(num_queries=2, num_nodes=4)
NORM = ("orthogonal embeddings of a norm other than 1", lambda rng: Setup(norm=rng.uniform(1.4, 1.9)).with_both())
MIXED = "sum over tokens with embeddings mixed by ε = 0.5, at unequal rates and a temperature"
IN_CONTEXT = ("Query = contextual token 0: the tokens on which it holds", Setup(query_in_context=True).with_both())
CONDITIONAL = ("three queries, Eqn 2 for each: weighted by P(q = m)", replace(THREE, conditional=True).with_both())
OWN_TOKEN = ("the query's own token", lambda run: corrected(run)[:, :1])
DISJOINT = ("contexts of their own: the printed form for each", replace(TWO, disjoint=True).with_both())
OWN_NODES = ("nodes of their own: the printed form for each", replace(TWO, own_nodes=True).with_both())
DIVIDED_BY_T = ("Σ_k v_k² divided by T", lambda run: run.z[:, 0] ** 2 - (run.v**2).sum(axis=1) / run.setup.temperature)


@conserved("thm1-linear", "", LINEAR)
@conserved("thm1-exp", "", EXP)
@conserved("thm1-temperature", "exp attention at two temperatures", _warm, printed=printed)
@conserved("thm1-temperature", "linear attention at two temperatures: as printed", _warm_linear, printed, DIVIDED_BY_T)
@conserved("thm1-rates", "rates alone, and with T and norms, one query and two", _unequal, printed=printed)
@conserved("thm1-embeddings", *NORM, printed=printed)
@conserved(
    "thm1-embeddings", MIXED, _mixed, _total, ("v_kᵀG⁺v_k 1 % off", lambda run: _total(run, 1.01)), printed=printed
)
@conserved("thm1-embeddings", *IN_CONTEXT, lambda run: corrected(run)[:, 1:], OWN_TOKEN, printed=corrected)
@conserved("thm1-queries", "three queries: their sum against each query alone", THREE.with_both(), printed=printed)
@conserved("thm1-queries", *CONDITIONAL, _weighted_by_probability, ("unweighted sum", corrected), printed=printed)
@conserved("thm1-queries", *DISJOINT, _own_tokens, ("other tokens", lambda run: _own_tokens(run, -1)), printed=printed)
@conserved("thm1-queries", *OWN_NODES, _own_nodes, ("other nodes", lambda run: _own_nodes(run, -1)), printed=printed)
def drift_along_flow(quantity, setup):
    """Drift along flows of 1 to 17 nodes, five activations, fixed, time-varying and cross-entropy g."""
    return drift(quantity(run_of(setup)))


@check("thm1-exp", ODE, Invariant.logits, over=lambda rng: _unequal(rng)[1:2])
@rejects("weights 1 % off", lambda law, v, v0, z0: law.logits(1.01 * v, v0, z0))
def logits_from_weights(logits, setup):
    """Logits that the weights imply, and the drift of the layer's invariant, at unequal rates, T and norm."""
    run = run_of(setup)
    law = theory.layer_invariant(run.layer, rate_ratio=setup.rate_ratio)
    return logits(law, run.v, run.v[0], run.z[0, 0]) - run.z[:, 0], theory.invariant_drift(run.v, run.z, law)


DECAY = 0.3
FINE = StepRecipe(num_steps=400, rate=5e-3)


def _halved(recipe: StepRecipe) -> StepRecipe:
    return replace(recipe, num_steps=2 * recipe.num_steps, rate=recipe.rate / 2)


def _size(setup: Setup, recipe: StepRecipe | None = None) -> float:
    return float(np.abs(drift(corrected(run_of(setup, recipe)))).max())


OF_OVERLAP = "Order in ε of the drift per token, ε = 0.004 and 0.002"
OVERLAPS = [[(Setup(kind=kind, overlap=overlap),) for overlap in (4e-3, 2e-3)] for kind in BOTH]


# Tolerance: terms of second order in ε, and at steps of 5e-3 and 2.5e-3
@check("thm1-embeddings", ODE, 1.0, 0.02, unit="distance from the order", over=OVERLAPS, name=OF_OVERLAP)
@check("thm1-sgd", TRAINING, 1.0, 0.02, unit="distance from the order")
@over([[(Setup(kind=kind), FINE), (Setup(kind=kind), _halved(FINE))] for kind in BOTH])
@rejects("second order", 2.0)
def order_of_the_drift(order, runs):
    """Order of the drift over a run in the size of the step."""
    coarse, fine = (_size(*run) for run in runs)
    return abs(float(np.log2(coarse / fine)) - order)


def _query_paths(rng):
    """What each query's own samples did along a flow of exp attention.

    v_k(0), (K, M); v_k,m, the part of v_k that query m's samples moved, (Q, K, M); the cross terms
    Σ_k Σ_m'≠m ∫ v_k,m' ∘ dv_k,m, (Q, M); and the change of the logits, integrated by itself, (Q, M).
    """
    layer, samples, backprop, w0, z0 = problem(replace(THREE, backprop="cross-entropy"))
    v0 = layer.embeddings.contextual_part(w0)

    def field(w, z, moved, cross):
        g = backprop(0.0, layer.hidden(w, z, samples))
        slopes = [layer.gradient(w, z, samples, g * (samples.q == m)[:, None]) for m in range(len(z0))]
        v_dot = np.stack([layer.embeddings.contextual_part(slope.w) for slope in slopes])
        others = moved.sum(axis=0) - moved
        return sum(s.w for s in slopes), sum(s.z for s in slopes), v_dot, (others * v_dot).sum(axis=1)

    start = (w0, z0, np.zeros((len(z0), *v0.shape)), np.zeros_like(z0))
    _, z, moved, cross = solved(field, start, np.linspace(0.0, 3.0, 5))
    return [(v0, moved[-1], cross[-1], z[-1] - z0)]


def _by_query(v0, moved, cross, *, factor=1.0):
    """Σ_k [½v_k,m² + v_k(0) ∘ v_k,m], what query m would gain if its samples alone had moved the weights, and more."""
    return (np.square(moved) / 2 + v0 * moved).sum(axis=1) + factor * cross


@check("thm1-queries", ODE, _by_query, unit="relative error", over=_query_paths)
@as_printed(lambda *path: _by_query(*path, factor=0.0))
@rejects("cross terms 1 % off", lambda *path: _by_query(*path, factor=1.01))
def logits_along_the_path(law, v0, moved, cross, gained):
    """Logits of each of three queries along the path, with and without the cross terms between queries."""
    return np.linalg.norm(law(v0, moved, cross) - gained, axis=-1) / np.linalg.norm(gained, axis=-1)


SHORT = StepRecipe(num_steps=60, rate=2e-3)
"""For minibatches: steps so small and few that all runs see the same gradients."""
BATCH_SIZE, NUM_BATCHED_RUNS = 4, 24
NOISY = (
    Setup(num_samples=64, backprop="cross-entropy", start=0.1),
    Setup(num_samples=256, backprop="cross-entropy", phi=theory.linear, start=0.1),
    Setup(backprop="fixed"),
)
"""Labels that the data say little of, near the start; and six samples whose gradients mostly agree."""


def _steps(rng: np.random.Generator) -> Sequence[tuple[Setup, StepRecipe]]:
    """Draw full batches at equal rates, and minibatches of two at unequal ones."""
    return [
        (setup, StepRecipe(num_steps=20, rate=0.1, rate_ratio=ratio, batch_size=batch_size))
        for ratio, batch_size in ((1.0, None), (rng.uniform(1.5, 2.5), 2))
        for setup in Setup(rate_ratio=ratio, temperature=rng.uniform(0.6, 0.9), seed=5).with_both()
    ]


@check("thm1-sgd", TRAINING, Invariant.step_change, ROUNDING_TOLERANCE, over=_steps)
@as_printed(lambda law, delta_v, delta_z: np.zeros_like(delta_z[:, 0]))
@rejects("Δv 1 % off", lambda law, delta_v, delta_z: law.step_change(1.01 * delta_v, delta_z))
def change_in_a_step(law, *case):
    """Change of the invariant in each of 20 steps, full batch and minibatches of two at unequal rates."""
    run = run_of(*case)
    return law(run.law, np.diff(run.v, axis=0), np.diff(run.z, axis=0)) - np.diff(corrected(run), axis=0)


@cache
def _batched(setup: Setup) -> tuple[float, float, np.ndarray]:
    """Return signal and noise of the gradient along a run, and drifts on minibatches over that on full batches.

    The signal is Σ_k‖dv_k/dt‖² summed over steps, the noise the variance of a single sample's part in dv/dt.
    """
    layer, samples, backprop, w0, z0 = problem(setup)

    def trained(recipe, seed=0):
        run = theory.train(layer, w0, z0, samples, backprop, recipe, rng=np.random.default_rng(seed))
        ends = layer.embeddings.contextual_part(run["w"][[0, -1]]), run["z"][[0, -1]]
        return run, float(np.diff(Invariant(attention=layer.attention).value(*ends), axis=0).sum())

    full, drifted = trained(SHORT)
    signal = noise = 0.0
    for w, z in zip(full["w"][:-1], full["z"][:-1], strict=True):
        slope = backprop(0.0, layer.hidden(w, z, samples))
        slope = slope * layer.activation.derivative(layer.preactivation(w, z, samples))
        each = slope[:, :, None] * layer.scores(z, samples)[:, None, :]  # g_k h'_k b_l of every sample
        mean = np.tensordot(samples.weights, each, axes=1)
        signal += float(np.square(mean).sum())
        noise += float(samples.weights @ np.square(each - mean).sum(axis=(1, 2)))
    batched = replace(SHORT, batch_size=BATCH_SIZE)
    return signal, noise, np.array([trained(batched, seed)[1] for seed in range(NUM_BATCHED_RUNS)]) / drifted


@check("thm1-sgd", MONTE_CARLO, theory.minibatch_drift_factor, over=NOISY)
@as_printed(lambda signal, noise, size: 1.0)
@rejects("noise over the root of the batch size", lambda signal, noise, size: 1 + noise / signal / np.sqrt(size))
def drift_on_minibatches(factor, setup):
    """Drift on minibatches of four over that on full batches, 24 runs of each of three sets of data."""
    signal, noise, factors = _batched(setup)
    return abs(factor(signal, noise, BATCH_SIZE) - factors.mean()) / stats.sem(factors)


# Tolerance: terms of first order in the step are extrapolated away
@check("thm1-optimisers", TRAINING, theory.momentum_drift_factor, 0.02, unit="relative error")
@over([(kind, momentum) for kind in BOTH for momentum in (0.6, 0.8)])
@rejects("1/(1 − β)", lambda momentum: 1 / (1 - momentum))
def drift_with_momentum(factor, kind, momentum):
    """Drift with momentum over that of SGD at the same effective rate, extrapolated to steps of size zero."""

    def ratio(plain: StepRecipe) -> float:
        heavy = replace(plain, rate=plain.rate * (1 - momentum), optimiser=theory.GradientSteps(momentum=momentum))
        return _size(Setup(kind=kind), heavy) / _size(Setup(kind=kind), plain)

    return abs(factor(momentum) / (2 * ratio(_halved(FINE)) - ratio(FINE)) - 1)


# Tolerance: what is left of the drift is of second order in steps of 5e-3
@check("thm1-optimisers", TRAINING, theory.SGD, 1e-3, printed=theory.Adam(), unit="relative drift", over=BOTH)
@rejects("weight decay 0.3", theory.GradientSteps(weight_decay=DECAY))
def drift_in_the_limit(optimiser, kind):
    """Drift over movement of z, extrapolated to steps of size zero: SGD against Adam."""

    def relative(recipe: StepRecipe) -> float:
        return _size(Setup(kind=kind), recipe) / float(np.abs(drift(run_of(Setup(kind=kind), recipe).z)).max())

    coarse = replace(FINE, optimiser=optimiser)
    return abs(2 * relative(_halved(coarse)) - relative(coarse))


@check("thm1-optimisers", ODE, theory.weight_decay_factor, printed=lambda t, weight_decay: np.ones_like(t))
@rejects("rate λ for 2λ", lambda t, weight_decay: np.exp(-weight_decay * t))
def decay_of_invariant(shrink):
    """Linear attention with weight decay 0.3."""
    run = run_of(Setup(kind=AttentionKind.LINEAR, weight_decay=DECAY))
    values = corrected(run)
    return shrink(run.t, DECAY)[:, None] * values[0] - values
