"""Theorem 1 with embeddings that are learned too: statements of our own, on layers whose embeddings overlap."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from joma import theory
from joma.checks.check import check, over, rejects
from joma.checks.layers import NUM_TOKENS, TIMES, changing, drift, problem
from joma.checks.quadrature import jacobian
from joma.checks.reference import DIFFERENTIATION, LINEAR_ALGEBRA, ODE
from joma.theory import AttentionKind, LearningRates, balance, embedding_gradient, token_invariant

DIM = 3  # fewer dimensions than tokens, so the embeddings overlap


def _drawn(rng, kind, num_queries, *, fixed=False):
    """Draw a layer with unequal rates and norms, T and A, and train it: all parameters over time, and the start."""
    phi = {AttentionKind.LINEAR: theory.gelu, AttentionKind.EXP: theory.tanh, AttentionKind.SOFTMAX: theory.silu}[kind]
    layer, samples, backprop, w0, z0 = problem(changing(rng, kind, phi, num_queries))
    contextual = rng.uniform(0.6, 1.6, NUM_TOKENS) * rng.normal(0, 0.6, (DIM, NUM_TOKENS))
    embeddings = theory.Embeddings(contextual=contextual, queries=rng.normal(0, 0.6, (DIM, num_queries)))
    layer, w0 = replace(layer, embeddings=embeddings), w0[:, :DIM]
    rates = LearningRates(**dict(zip(("w", "z", "contextual", "queries"), rng.uniform(0.5, 2.0, 4), strict=True)))
    rates = replace(rates, queries=0.0) if fixed else rates
    run = theory.learned_flow(layer, w0, z0, samples, backprop, TIMES, rates=rates)
    start = w0, z0, samples, backprop(0.0, layer.hidden(w0, z0, samples))
    return SimpleNamespace(layer=layer, start=start, rates=rates, **run.states)


def _runs(rng, kind):
    return [_drawn(rng, kind, num) for num in (1, 1, 2)]


def softmax_runs(rng):
    """Draw three runs of softmax attention, the last with two queries."""
    return _runs(rng, AttentionKind.SOFTMAX)


def every_attention(rng):
    """Draw runs of each attention, with one query and with two."""
    return [_drawn(rng, kind, num) for kind in AttentionKind for num in (1, 2)]


def _law(run, norms_of=None):
    norms = run.contextual if norms_of is None else norms_of(run)
    return token_invariant(run.z, norms, run.layer.attention, run.rates)


@check("thm1-learned-exp", ODE, _law, over=lambda rng: _runs(rng, AttentionKind.EXP), unit="max abs drift")
@check("thm1-learned-linear", ODE, _law, unit="max abs drift")
@over(lambda rng: _runs(rng, AttentionKind.LINEAR))
@rejects("norm of u_l 1 % off", lambda run: _law(run, lambda run: 1.01 * run.contextual))
@rejects("Σ_k v_k² for ‖u_l‖², as with fixed embeddings", lambda run: _law(run, lambda run: run.w @ run.contextual))
def drift_of_a_token(law, run):
    """Drift for each token, one query and two, embeddings that overlap, unequal rates and a temperature."""
    return drift(law(run))


def fixed_queries(rng):
    """Draw runs of each attention whose queries keep their embeddings."""
    return [_drawn(rng, kind, num, fixed=True) for kind in AttentionKind for num in (1, 2)]


ON_THE_COMPLEMENT = "Drift on the complement of the queries, whose embeddings are fixed"


@check("thm1-learned-balance", ODE, balance, over=every_attention, unit="max abs drift")
@check("thm1-learned-balance", ODE, balance, over=fixed_queries, unit="max abs drift", name=ON_THE_COMPLEMENT)
@rejects(
    "on all of the space, without the queries",
    lambda w, u, q, rates: balance(w, u, np.zeros_like(q), replace(rates, queries=1.0)),
)
def drift_of_the_balance(law, run):
    """Drift of all d × d numbers for linear, exp and softmax attention, queries learned too."""
    return drift(law(run.w, run.contextual, run.queries, run.rates))


@check("thm1-learned-softmax", ODE, lambda run: theory.logit_sums(run.z), unit="max abs drift", over=softmax_runs)
@rejects(
    "exp attention's law for each token",
    lambda run: token_invariant(run.z, run.contextual, replace(run.layer.attention, kind=AttentionKind.EXP), run.rates),
)
def drift_under_softmax(law, run):
    """Drift of each query's sum of logits."""
    return drift(law(run))


@check("thm1-learned-softmax", LINEAR_ALGEBRA, theory.softmax_leak, over=softmax_runs)
def leak_of_a_token(leak, run):
    """Rate of exp attention's law for each token, from the slopes of logits and embeddings."""
    logits = run.layer.attention.temperature * run.layer.gradient(*run.start).z.sum(axis=0)
    norms = (run.layer.embeddings.contextual * embedding_gradient(run.layer, *run.start).contextual).sum(axis=0)
    return leak(run.layer, *run.start) - (logits - norms)


@check("thm1-learned-balance", DIFFERENTIATION, embedding_gradient)
@over(every_attention)
@rejects("weights 1 % off", lambda layer, w, *rest: embedding_gradient(layer, 1.01 * w, *rest))
def slope_in_the_embeddings(gradient, run):
    """Gradient of Eqn 9 in all embeddings."""

    def objective(both: np.ndarray) -> float:
        embeddings = theory.Embeddings(contextual=both[:, :NUM_TOKENS], queries=both[:, NUM_TOKENS:])
        return replace(run.layer, embeddings=embeddings).objective(*run.start)

    slope, u = gradient(run.layer, *run.start), run.layer.embeddings
    found = jacobian(objective, np.hstack([u.contextual, u.queries]))
    return np.hstack([slope.contextual, slope.queries]) - found
