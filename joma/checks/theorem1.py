"""Section 3, Theorem 1 for linear and exp attention: what training conserves, and with which constants."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from joma.checks.check import Mutation, Reference, as_printed, check, over, rejects
from joma.checks.joint_runs import BOTH, JointRun, Quantity, Setup, drift, flowed, problem, trained
from joma.theory.attention import AttentionKind
from joma.theory.descent import SGD, Adam, GradientSteps, StepRecipe, train
from joma.theory.integrate import State, integrate
from joma.theory.invariants import (
    Invariant,
    invariant_drift,
    layer_invariant,
    minibatch_drift_factor,
    momentum_drift_factor,
    weight_decay_factor,
)

ROUNDING_TOLERANCE = 1e-13
"""Rounding of quantities of order one, over one step."""
LINEAR = tuple(
    Setup(kind=AttentionKind.LINEAR, phi=phi, num_nodes=num, backprop=backprop, seed=seed)
    for phi, num, backprop, seed in (
        ("linear", 1, "fixed", 1),
        ("relu", 3, "fixed", 0),
        ("tanh", 17, "cross-entropy", 2),
        ("gelu", 5, "time-varying", 3),
        ("sigmoid", 2, "cross-entropy", 4),
    )
)
"""One and many nodes, five activations, gradients that stand still, change over time or come from a loss.

Most flows of ReLU nodes under a fixed gradient end up sliding along a kink, where solvers stall; these do not.
"""
EXP = tuple(replace(each, kind=AttentionKind.EXP, seed=3 if each.phi == "relu" else each.seed) for each in LINEAR)


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


def _own_tokens(run: JointRun) -> np.ndarray:
    """Each query's own law on the tokens that it alone sees."""
    owner = np.arange(run.v.shape[-1]) % run.setup.num_queries
    return np.take_along_axis(printed(run), owner[None, None], axis=1)[:, 0]


def _own_nodes(run: JointRun) -> np.ndarray:
    """Each query's own law with the nodes that it alone trains in the sum over k."""
    owner, queries = np.arange(run.v.shape[1]) % run.setup.num_queries, range(run.setup.num_queries)
    parts = [printed(replace(run, v=run.v[:, owner == m], z=run.z[:, m : m + 1])) for m in queries]
    return np.concatenate(parts, axis=1)


def _of_the_other(quantity: Quantity) -> Quantity:
    return lambda run: quantity(replace(run, z=run.z[:, ::-1]))


LAW_OFF = Mutation("factor of Σ_k v_k² 1 % off", lambda run: run.law.value(np.sqrt(1.01) * run.v, run.z))


def conserved(claim: str, name: str = "", formula: Any = corrected, mutation: Any = LAW_OFF, **options: Any) -> Any:
    """Register a check of how far a quantity drifts along a flow."""
    return check(claim, Reference.ODE, formula, unit="max abs drift", mutation=mutation, name=name, **options)


def _warm(rng: np.random.Generator) -> Sequence[Setup]:
    return [Setup(temperature=each, seed=6) for each in (rng.uniform(0.4, 0.7), rng.uniform(1.5, 3.0))]


def _warm_linear(rng: np.random.Generator) -> Sequence[Setup]:
    return [replace(each, kind=AttentionKind.LINEAR) for each in _warm(rng)]


def _unequal_rates(rng: np.random.Generator) -> Sequence[Setup]:
    return Setup(rate_ratio=rng.uniform(2.0, 5.0)).with_both()


def _unequal_everything(rng: np.random.Generator) -> Sequence[Setup]:
    setup = Setup(rate_ratio=rng.uniform(2.0, 4.0), temperature=rng.uniform(0.6, 0.9), norm=rng.uniform(1.3, 1.8))
    return [*setup.with_both(), *replace(setup, num_queries=2, num_nodes=4).with_both()]


@conserved("thm1-linear", over=LINEAR)
@conserved("thm1-exp", over=EXP)
@conserved("thm1-temperature", "exp attention at two temperatures", printed=printed, over=_warm)
@conserved(
    "thm1-temperature",
    "linear attention at two temperatures: the printed form",
    printed,
    Mutation("Σ_k v_k² divided by T", lambda run: run.z[:, 0] ** 2 - (run.v**2).sum(axis=1) / run.setup.temperature),
    over=_warm_linear,
)
@conserved("thm1-rates", "linear and exp attention with logits that learn faster", printed=printed, over=_unequal_rates)
@conserved(
    "thm1-rates",
    "unequal rates, temperature and norm of embeddings at once, one query and two",
    over=_unequal_everything,
)
@conserved(
    "thm1-embeddings",
    "orthogonal embeddings of a norm other than 1",
    printed=printed,
    over=lambda rng: Setup(norm=rng.uniform(1.4, 1.9)).with_both(),
)
@conserved(
    "thm1-embeddings",
    "sum over tokens with embeddings mixed by ε = 0.5, at unequal rates and a temperature",
    _total,
    Mutation("factor of v_kᵀG⁺v_k 1 % off", lambda run: _total(run, 1.01)),
    printed=printed,
    over=lambda rng: Setup(
        overlap=0.5, rate_ratio=rng.uniform(1.5, 3.0), temperature=rng.uniform(1.2, 2.0)
    ).with_both(),
)
@conserved(
    "thm1-queries",
    "three queries, linear and exp attention: the sum over queries against each query alone",
    printed=printed,
    over=Setup(num_queries=3, num_nodes=4).with_both(),
)
@conserved(
    "thm1-queries",
    "three queries with conditional expectations (Eqn 2 for each): the sum weighted by P(q = m)",
    _weighted_by_probability,
    Mutation("unweighted sum", corrected),
    printed=printed,
    over=Setup(num_queries=3, num_nodes=4, conditional=True).with_both(),
)
@conserved(
    "thm1-queries",
    "two queries with contexts of their own: the printed form on each query's own tokens",
    _own_tokens,
    Mutation("tokens of the other query", _of_the_other(_own_tokens)),
    printed=printed,
    over=Setup(num_queries=2, disjoint=True).with_both(),
)
@conserved(
    "thm1-queries",
    "two queries that train nodes of their own: the printed form with each query's own nodes",
    _own_nodes,
    Mutation("nodes of the other query", _of_the_other(_own_nodes)),
    printed=printed,
    over=Setup(num_queries=2, num_nodes=4, own_nodes=True).with_both(),
)
def drift_along_flow(quantity, setup):
    """Drift along flows of 1 to 17 nodes, five activations, fixed, time-varying and cross-entropy g."""
    return drift(quantity(flowed(setup)))


@check("thm1-exp", Reference.ODE, Invariant.logits, over=lambda rng: _unequal_everything(rng)[1:2])
@rejects("weights 1 % off", lambda law, v, v0, z0: law.logits(1.01 * v, v0, z0))
def logits_from_weights(logits, setup):
    """Logits that the weights imply, and the drift of the layer's invariant, at unequal rates, T and norm."""
    run = flowed(setup)
    law = layer_invariant(run.layer, rate_ratio=setup.rate_ratio)
    away = np.abs(logits(law, run.v, run.v[0], run.z[0, 0]) - run.z[:, 0]).max()
    return max(away, np.abs(invariant_drift(run.v, run.z, law)).max())


@conserved(
    "thm1-embeddings",
    formula=slice(1, None),
    mutation=Mutation("the query's own token", slice(0, 1)),
    printed=slice(None),
)
@over(Setup(query_in_context=True).with_both())
def drift_off_the_query(tokens, setup):
    """Query = contextual token 0: the tokens on which the law holds."""
    return drift(corrected(flowed(setup))[:, tokens])


# Tolerance: terms of second order in ε
@check("thm1-embeddings", Reference.ODE, 1.0, 0.02, unit="distance from the order", over=BOTH)
@rejects("second order", 2.0)
def order_in_overlap(order, kind):
    """Order in ε of the drift per token, ε = 0.004 and 0.002."""
    coarse, fine = (drift(corrected(flowed(Setup(kind=kind, overlap=overlap)))) for overlap in (4e-3, 2e-3))
    return abs(float(np.log2(coarse / fine)) - order)


# --- queries along the path ----------------------------------------------------------------------------------------

THREE_QUERIES = Setup(num_queries=3, num_nodes=4, backprop="cross-entropy")


def _query_paths(rng: np.random.Generator) -> list[tuple[np.ndarray, ...]]:
    """What each query's own samples did along a flow of exp attention.

    v_k(0), (K, M); v_k,m, the part of v_k that query m's samples moved, (Q, K, M); the cross terms
    Σ_k Σ_m'≠m ∫ v_k,m' ∘ dv_k,m, (Q, M); and the change of the logits, integrated by itself, (Q, M).
    """
    layer, samples, backprop, w0, z0 = problem(THREE_QUERIES)
    queries = range(THREE_QUERIES.num_queries)

    def field(time: float, state: State) -> State:
        w, z, moved = state["w"], state["z"], state["moved"]
        g = backprop(time, layer.hidden(w, z, samples))
        slopes = [layer.gradient(w, z, samples, g * (samples.q == m)[:, None]) for m in queries]
        v_dot = np.stack([layer.embeddings.contextual_part(slope.w) for slope in slopes])
        others = moved.sum(axis=0) - moved
        return {
            "w": sum(slope.w for slope in slopes),
            "z": sum(slope.z for slope in slopes),
            "moved": v_dot,
            "cross": (others * v_dot).sum(axis=1),
        }

    v0 = layer.embeddings.contextual_part(w0)
    start = {"w": w0, "z": z0, "moved": np.zeros((len(queries), *v0.shape)), "cross": np.zeros_like(z0)}
    end = integrate(field, start, np.linspace(0.0, 3.0, 5)).at_end()
    return [(v0, end["moved"], end["cross"], end["z"] - z0)]


def _without_cross_terms(v0: np.ndarray, moved: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Σ_k [½v_k,m² + v_k(0) ∘ v_k,m]: what query m would gain if its samples alone had moved the weights."""
    return (np.square(moved) / 2 + v0 * moved).sum(axis=1)


@check(
    "thm1-queries",
    Reference.ODE,
    lambda v0, moved, cross: _without_cross_terms(v0, moved, cross) + cross,
    printed=_without_cross_terms,
    unit="relative error",
)
@over(_query_paths)
@rejects("cross terms 1 % off", lambda v0, moved, cross: _without_cross_terms(v0, moved, cross) + 1.01 * cross)
def logits_along_the_path(law, v0, moved, cross, gained):
    """Logits of each of three queries along the path, with and without the cross terms between queries."""
    error = np.linalg.norm(law(v0, moved, cross) - gained, axis=-1)
    return (error / np.linalg.norm(gained, axis=-1)).max()


# --- discrete steps ------------------------------------------------------------------------------------------------

DECAY, MOMENTUM = 0.3, 0.9
FINE = StepRecipe(num_steps=400, rate=5e-3)
SHORT = StepRecipe(num_steps=60, rate=2e-3)
"""For minibatches: steps so small and few that all runs see the same gradients."""
BATCH_SIZE, NUM_BATCHED_RUNS = 4, 24
NOISY = (
    Setup(num_samples=64, backprop="cross-entropy", start=0.1),
    Setup(num_samples=256, backprop="cross-entropy", phi="linear", start=0.1),
    Setup(backprop="fixed"),
)
"""Labels that the data say little of, near the start; and six samples whose gradients mostly agree."""


def _halved(recipe: StepRecipe) -> StepRecipe:
    return replace(recipe, num_steps=2 * recipe.num_steps, rate=recipe.rate / 2)


def _steps(rng: np.random.Generator) -> Sequence[tuple[Setup, StepRecipe]]:
    """Draw full batches at equal rates, and minibatches of two at unequal ones."""
    return [
        (setup, StepRecipe(num_steps=20, rate=0.1, rate_ratio=ratio, batch_size=batch_size))
        for ratio, batch_size in ((1.0, None), (rng.uniform(1.5, 2.5), 2))
        for setup in Setup(rate_ratio=ratio, temperature=rng.uniform(0.6, 0.9), seed=5).with_both()
    ]


@check("thm1-sgd", Reference.TRAINING, Invariant.step_change, ROUNDING_TOLERANCE, over=_steps)
@as_printed(lambda law, delta_v, delta_z: np.zeros_like(delta_z[:, 0]))
@rejects("Δv 1 % off", lambda law, delta_v, delta_z: law.step_change(1.01 * delta_v, delta_z))
def change_in_a_step(law, *case):
    """Change of the invariant in each of 20 steps, full batch and minibatches of two at unequal rates."""
    run = trained(*case)
    true = np.diff(corrected(run), axis=0)
    return np.abs(law(run.law, np.diff(run.v, axis=0), np.diff(run.z, axis=0)) - true).max()


def _drift_of_training(kind: AttentionKind, recipe: StepRecipe) -> float:
    return drift(corrected(trained(Setup(kind=kind), recipe)))


# Tolerance: terms of second order at steps of 5e-3 and 2.5e-3
@check("thm1-sgd", Reference.TRAINING, 1.0, 0.02, unit="distance from the order", over=BOTH)
@rejects("second order", 2.0)
def order_in_the_step(order, kind):
    """Order of the drift over a run in the size of the step."""
    ratio = _drift_of_training(kind, FINE) / _drift_of_training(kind, _halved(FINE))
    return abs(float(np.log2(ratio)) - order)


@cache
def _batched(setup: Setup) -> tuple[float, float, np.ndarray]:
    """Return signal and noise of the gradient along a run, and drifts on minibatches over that on full batches.

    The signal is Σ_k‖dv_k/dt‖² summed over steps, the noise the variance of a single sample's part in dv/dt.
    """
    layer, samples, backprop, w0, z0 = problem(setup)
    law = Invariant(attention=layer.attention)

    def drift_of(recipe: StepRecipe, seed: int = 0) -> float:
        run = train(layer, w0, z0, samples, backprop, recipe, rng=np.random.default_rng(seed))
        ends = law.value(layer.embeddings.contextual_part(run["w"][[0, -1]]), run["z"][[0, -1]])
        return float((ends[1] - ends[0]).sum())

    full = train(layer, w0, z0, samples, backprop, SHORT)
    signal = noise = 0.0
    for w, z in zip(full["w"][:-1], full["z"][:-1], strict=True):
        slope = backprop(0.0, layer.hidden(w, z, samples))
        slope = slope * layer.activation.derivative(layer.preactivation(w, z, samples))
        each = slope[:, :, None] * layer.scores(z, samples)[:, None, :]  # g_k h'_k b_l of every sample
        mean = np.tensordot(samples.weights, each, axes=1)
        signal += float(np.square(mean).sum())
        noise += float(samples.weights @ np.square(each - mean).sum(axis=(1, 2)))
    on_minibatches = [drift_of(replace(SHORT, batch_size=BATCH_SIZE), seed) for seed in range(NUM_BATCHED_RUNS)]
    return signal, noise, np.array(on_minibatches) / drift_of(SHORT)


@check("thm1-sgd", Reference.MONTE_CARLO, minibatch_drift_factor, over=NOISY)
@as_printed(lambda signal, noise, batch_size: 1.0)
@rejects(
    "noise over the root of the batch size", lambda signal, noise, batch_size: 1 + noise / signal / np.sqrt(batch_size)
)
def drift_on_minibatches(factor, setup):
    """Drift on minibatches of four over that on full batches, 24 runs of each of three sets of data."""
    signal, noise, factors = _batched(setup)
    spread = factors.std(ddof=1) / np.sqrt(factors.size)
    return abs(factor(signal, noise, BATCH_SIZE) - factors.mean()) / spread


# Tolerance: terms of first order in the step are extrapolated away
@check("thm1-optimisers", Reference.TRAINING, momentum_drift_factor, 0.02, unit="relative error")
@over([(kind, momentum) for kind in BOTH for momentum in (0.6, 0.8)])
@rejects("1/(1 − β)", lambda momentum: 1 / (1 - momentum))
def drift_with_momentum(factor, kind, momentum):
    """Drift with momentum over that of SGD at the same effective rate, extrapolated to steps of size zero."""

    def ratio(plain: StepRecipe) -> float:
        heavy = replace(plain, rate=plain.rate * (1 - momentum), optimiser=GradientSteps(momentum=momentum))
        return _drift_of_training(kind, heavy) / _drift_of_training(kind, plain)

    return abs(factor(momentum) / (2 * ratio(_halved(FINE)) - ratio(FINE)) - 1)


# Tolerance: what is left of the drift is of second order in steps of 5e-3
@check("thm1-optimisers", Reference.TRAINING, SGD, 1e-3, printed=Adam(), unit="relative drift", over=BOTH)
@rejects("weight decay 0.3", GradientSteps(weight_decay=DECAY))
def drift_in_the_limit(optimiser, kind):
    """Drift over movement of z, extrapolated to steps of size zero: SGD against Adam."""

    def relative(recipe: StepRecipe) -> float:
        run = trained(Setup(kind=kind), recipe)
        return drift(corrected(run)) / drift(run.z)

    coarse = replace(FINE, optimiser=optimiser)
    return abs(2 * relative(_halved(coarse)) - relative(coarse))


@check("thm1-optimisers", Reference.ODE, weight_decay_factor, printed=lambda t, weight_decay: np.ones_like(t))
@rejects("rate λ for 2λ", lambda t, weight_decay: np.exp(-weight_decay * t))
def decay_of_invariant(shrink):
    """Linear attention with weight decay 0.3."""
    run = flowed(Setup(kind=AttentionKind.LINEAR, weight_decay=DECAY))
    values = corrected(run)
    return np.abs(shrink(run.t, DECAY)[:, None] * values[0] - values).max()
