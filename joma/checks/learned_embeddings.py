"""Theorem 1 with embeddings that are learned too: statements of our own, on layers whose embeddings overlap."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.differentiate import jacobian

from joma.checks.check import Reference, check, over, rejects
from joma.checks.joint_runs import FREQUENCY, TIMES, drift
from joma.checks.layers import FIRST_STEP
from joma.theory.activations import gelu, silu, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.invariants import logit_sums
from joma.theory.layer import Embeddings, Layer, Samples
from joma.theory.learned_embeddings import (
    LearningRates,
    balance,
    embedding_gradient,
    learned_flow,
    softmax_leak,
    token_invariant,
)

NUM_TOKENS, NUM_NODES, NUM_SAMPLES, DIM = 5, 4, 7, 4
"""Fewer dimensions than tokens, so the embeddings overlap."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedRun:
    """A layer, what it is trained on, and all its parameters over time."""

    layer: Layer
    samples: Samples
    rates: LearningRates
    g: np.ndarray
    w: np.ndarray
    z: np.ndarray
    contextual: np.ndarray
    queries: np.ndarray


def _drawn(rng: np.random.Generator, kind: AttentionKind, num_queries: int, *, fixed: bool = False) -> LearnedRun:
    """Draw a layer with unequal rates and norms, a temperature and a normalisation, and train it."""
    phi = {AttentionKind.LINEAR: gelu, AttentionKind.EXP: tanh, AttentionKind.SOFTMAX: silu}[kind]
    constant = {} if kind is AttentionKind.SOFTMAX else {"normalisation": rng.uniform(1.3, 2.5)}
    sizes = rng.uniform(0.6, 1.6, NUM_TOKENS)
    layer = Layer(
        embeddings=Embeddings(
            contextual=sizes * rng.normal(0, 0.6, (DIM, NUM_TOKENS)), queries=rng.normal(0, 0.6, (DIM, num_queries))
        ),
        attention=Attention(kind=kind, temperature=rng.uniform(0.6, 0.9), **constant),
        activation=phi,
    )
    samples = Samples(
        x=rng.dirichlet(np.ones(NUM_TOKENS), size=NUM_SAMPLES),
        q=np.arange(NUM_SAMPLES) % num_queries,
        weights=rng.dirichlet(np.full(NUM_SAMPLES, 3.0)),
    )
    w, z, contextual, queries = rng.uniform(0.5, 2.0, 4)
    rates = LearningRates(w=w, z=z, contextual=contextual, queries=0.0 if fixed else queries)
    g = rng.uniform(-1, 1, (NUM_SAMPLES, NUM_NODES))
    w0, z0 = rng.normal(0, 0.6, (NUM_NODES, DIM)), rng.normal(0, 0.6, (num_queries, NUM_TOKENS))

    def backprop(time: float, hidden: np.ndarray) -> np.ndarray:
        return g * np.cos(FREQUENCY * time) - hidden / 2

    run = learned_flow(layer, w0, z0, samples, backprop, TIMES, rates=rates)
    return LearnedRun(layer=layer, samples=samples, rates=rates, g=g, **run.states)


def _runs(kind: AttentionKind) -> Callable[[np.random.Generator], Sequence[LearnedRun]]:
    def draw(rng: np.random.Generator) -> Sequence[LearnedRun]:
        return [_drawn(rng, kind, num) for num in (1, 1, 2)]

    draw.__qualname__ = f"learned {kind.value}"
    return draw


def every_attention(rng: np.random.Generator) -> Sequence[LearnedRun]:
    """Draw runs of each attention, with one query and with two."""
    return [_drawn(rng, kind, num) for kind in AttentionKind for num in (1, 2)]


def fixed_queries(rng: np.random.Generator) -> Sequence[LearnedRun]:
    """Draw runs of each attention whose queries keep their embeddings."""
    return [_drawn(rng, kind, num, fixed=True) for kind in AttentionKind for num in (1, 2)]


@check("thm1-learned-exp", Reference.ODE, token_invariant, over=_runs(AttentionKind.EXP), unit="max abs drift")
@check("thm1-learned-linear", Reference.ODE, token_invariant, over=_runs(AttentionKind.LINEAR), unit="max abs drift")
@rejects("norm of u_l 1 % off", lambda z, u, *rest: token_invariant(z, 1.01 * u, *rest))
def drift_of_a_token(law, run):
    """Drift for each token, one query and two, embeddings that overlap, unequal rates and a temperature."""
    return drift(law(run.z, run.contextual, run.layer.attention, run.rates))


@check("thm1-learned-exp", Reference.ODE, lambda run: run.contextual, over=_runs(AttentionKind.EXP))
@rejects("Σ_k v_k² for ‖u_l‖², as with fixed embeddings", lambda run: run.w @ run.contextual)
def what_the_logit_follows(norms_of, run):
    """Drift of the logits against the norms of embeddings, where Theorem 1 has those of v."""
    return drift(token_invariant(run.z, norms_of(run), run.layer.attention, run.rates))


@check("thm1-learned-balance", Reference.ODE, balance, over=every_attention, unit="max abs drift")
@rejects("without the queries", lambda w, u, q, rates: balance(w, u, np.zeros_like(q), rates))
def drift_of_the_balance(law, run):
    """Drift of all d × d numbers for linear, exp and softmax attention, queries learned too."""
    return drift(law(run.w, run.contextual, run.queries, run.rates))


@check("thm1-learned-balance", Reference.ODE, balance, over=fixed_queries, unit="max abs drift")
@rejects(
    "on all of the space",
    lambda w, u, q, rates: balance(w, u, np.zeros_like(q), replace(rates, queries=1.0)),
)
def drift_of_the_balance_with_fixed_queries(law, run):
    """Drift on the complement of the queries, whose embeddings are fixed."""
    return drift(law(run.w, run.contextual, run.queries, run.rates))


@check("thm1-learned-softmax", Reference.ODE, lambda run: logit_sums(run.z), unit="max abs drift")
@over(_runs(AttentionKind.SOFTMAX))
@rejects(
    "exp attention's law for each token",
    lambda run: token_invariant(run.z, run.contextual, replace(run.layer.attention, kind=AttentionKind.EXP), run.rates),
)
def drift_under_softmax(law, run):
    """Drift of each query's sum of logits."""
    return drift(law(run))


@check("thm1-learned-softmax", Reference.LINEAR_ALGEBRA, softmax_leak, over=_runs(AttentionKind.SOFTMAX))
def leak_of_a_token(leak, run):
    """Rate of exp attention's law for each token, from the slopes of logits and embeddings."""
    at = run.w[0], run.z[0], run.samples, run.g
    logits = run.layer.attention.temperature * run.layer.gradient(*at).z.sum(axis=0)
    u = run.layer.embeddings.contextual
    norms = (u * embedding_gradient(run.layer, *at).contextual).sum(axis=0)
    return np.abs(leak(run.layer, *at) - (logits - norms)).max()


@check("thm1-learned-balance", Reference.DIFFERENTIATION, embedding_gradient, over=every_attention)
@rejects("weights 1 % off", lambda layer, w, *rest: embedding_gradient(layer, 1.01 * w, *rest))
def slope_in_the_embeddings(gradient, run):
    """Gradient of Eqn 9 in all embeddings."""
    u, at = run.layer.embeddings, (run.w[0], run.z[0], run.samples, run.g)

    def objective(flat: np.ndarray) -> float:
        contextual, queries = np.split(flat.reshape(DIM, -1), [NUM_TOKENS], axis=1)
        return replace(run.layer, embeddings=Embeddings(contextual=contextual, queries=queries)).objective(*at)

    flat = np.hstack([u.contextual, u.queries]).ravel()
    found = jacobian(lambda points: np.apply_along_axis(objective, 0, points), flat, initial_step=FIRST_STEP).df
    slope = gradient(run.layer, *at)
    return np.abs(np.hstack([slope.contextual, slope.queries]).ravel() - found).max()
