"""Random layers at one point of their training, and the finite differences that they are checked against."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import special
from scipy.differentiate import jacobian

from joma.theory.activations import Activation, gelu, homogeneous, relu, silu, tanh
from joma.theory.attention import Attention, AttentionKind
from joma.theory.layer import (
    Layer,
    LayerGradient,
    Samples,
    cross_entropy_gradient,
    fixed_gradient,
    orthonormal_embeddings,
)
from joma.types import Trajectory

NUM_TOKENS, NUM_NODES, NUM_SAMPLES = 4, 3, 9
LABELS = np.arange(NUM_SAMPLES) % NUM_NODES
FIRST_STEP = 1e-2
ROUNDING_TOLERANCE = 1e-13
"""Sums of a few products of numbers of order one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A layer at one point of its training, with the gradient that is sent back to it there."""

    layer: Layer
    w: np.ndarray
    z: np.ndarray
    samples: Samples
    g: np.ndarray

    @property
    def slope(self) -> np.ndarray:
        """g_{h_k} h'_k of every sample."""
        return self.g * self.layer.activation.derivative(self.layer.preactivation(self.w, self.z, self.samples))

    @property
    def v(self) -> np.ndarray:
        """U_C^T w_k."""
        return self.layer.embeddings.contextual_part(self.w)

    @property
    def b(self) -> np.ndarray:
        """Attention scores of every sample."""
        return self.layer.scores(self.z, self.samples)

    def mean(self, *factors: np.ndarray, sum_over: str) -> np.ndarray:
        """Return the expectation over samples (axis i) of a product, in the letters of `einsum`."""
        return np.einsum(f"i,{sum_over}", self.samples.weights, *factors)

    def flow(self, t: np.ndarray, **options: float) -> Trajectory:
        """Train on from here with g held fixed."""
        return self.layer.flow(self.w, self.z, self.samples, fixed_gradient(self.g), t, **options)


def make_case(
    attention: Attention, phi: Activation, *, num_queries: int = 1, num_nodes: int = NUM_NODES, seed: int = 0
) -> Case:
    """Draw a layer and its data; g is that of cross-entropy on h, or for fewer nodes a random one."""
    rng = np.random.default_rng(seed)
    dim = NUM_TOKENS + num_queries + 1
    embeddings = orthonormal_embeddings(NUM_TOKENS, num_queries, dim=dim, rng=rng)
    layer = Layer(embeddings=embeddings, attention=attention, activation=phi)
    w, z = rng.normal(size=(num_nodes, dim)), rng.normal(size=(num_queries, NUM_TOKENS))
    samples = Samples(
        x=rng.dirichlet(np.ones(NUM_TOKENS), size=NUM_SAMPLES),
        q=np.arange(NUM_SAMPLES) % num_queries,
        weights=rng.dirichlet(np.ones(NUM_SAMPLES)),
    )
    case = Case(layer=layer, w=w, z=z, samples=samples, g=rng.normal(size=(NUM_SAMPLES, num_nodes)))
    return case if num_nodes < NUM_NODES else with_gradient_sent_back(case)


def with_gradient_sent_back(case: Case) -> Case:
    """Return the case with the g of cross-entropy on h."""
    return replace(case, g=cross_entropy_gradient(LABELS)(0.0, case.layer.hidden(case.w, case.z, case.samples)))


def attention_of(rng: np.random.Generator, kind: AttentionKind) -> Attention:
    """Draw an attention with a temperature and, where there is one, a normalisation other than 1."""
    normalisation = {} if kind is AttentionKind.SOFTMAX else {"normalisation": rng.uniform(1.3, 2.5)}
    return Attention(kind=kind, temperature=rng.choice([rng.uniform(0.5, 0.8), rng.uniform(1.3, 2.0)]), **normalisation)


def one_query(rng: np.random.Generator) -> Sequence[Case]:
    """Draw a layer of each attention, at a random temperature and normalisation."""
    return [
        make_case(attention_of(rng, kind), phi, seed=int(rng.integers(1000)))
        for kind, phi in zip(AttentionKind, (relu, gelu, tanh), strict=True)
    ]


def any_queries(rng: np.random.Generator) -> Sequence[Case]:
    """Draw layers with one query and with three that share w."""
    shared = zip(AttentionKind, (silu, homogeneous(0.1, 1.0), gelu), strict=True)
    return [
        *one_query(rng),
        *(make_case(attention_of(rng, k), phi, num_queries=3, seed=int(rng.integers(1000))) for k, phi in shared),
    ]


def softmax_only(rng: np.random.Generator) -> Sequence[Case]:
    """Draw two softmax layers."""
    return [make_case(attention_of(rng, AttentionKind.SOFTMAX), phi) for phi in (tanh, gelu)]


def unnormalised(rng: np.random.Generator) -> Sequence[Case]:
    """Draw layers of linear and exp attention; of one linear layer two logits are zero, as zero initialisation has."""
    linear, exp, _ = one_query(rng)
    resting = with_gradient_sent_back(replace(linear, z=linear.z * np.array([1.0, 0.0, 1.0, 0.0])))
    return [linear, resting, exp]


def differentiated(f: Callable[[np.ndarray, np.ndarray], float], w: np.ndarray, z: np.ndarray) -> LayerGradient:
    """Return the gradient of f(w, z) by finite differences."""

    def flat(points: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(lambda p: f(p[: w.size].reshape(w.shape), p[w.size :].reshape(z.shape)), 0, points)

    slopes = jacobian(flat, np.concatenate([w.ravel(), z.ravel()]), initial_step=FIRST_STEP).df
    return LayerGradient(w=slopes[: w.size].reshape(w.shape), z=slopes[w.size :].reshape(z.shape))


def log_likelihood(case: Case, w: np.ndarray, z: np.ndarray) -> float:
    """Return the negative cross-entropy of the labels, with h as logits."""
    log_p = special.log_softmax(case.layer.hidden(w, z, case.samples), axis=1)
    return float(case.samples.weights @ np.take_along_axis(log_p, LABELS[:, None], axis=1)[:, 0])


@cache
def ascent(case: Case) -> LayerGradient:
    """Return the gradient of the log likelihood, by finite differences."""
    return differentiated(lambda w, z: log_likelihood(case, w, z), case.w, case.z)


@cache
def slope_of_objective(case: Case) -> LayerGradient:
    """Return the gradient of Eqn 9 at the case's g, by finite differences."""
    return differentiated(lambda w, z: case.layer.objective(w, z, case.samples, case.g), case.w, case.z)


def v_dot_of(case: Case) -> np.ndarray:
    """Return dv/dt of gradient ascent on the log likelihood."""
    return case.layer.embeddings.contextual_part(ascent(case).w)


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, infinite where `found` is not a number."""
    gap = np.abs(found - expected).max()
    return float(gap) if np.isfinite(gap) else np.inf


def stream(layer: Layer, z: np.ndarray, samples: Samples) -> np.ndarray:
    """f = U_C b + u_q."""
    return layer.scores(z, samples) @ layer.embeddings.contextual.T + layer.embeddings.queries.T[samples.q]


def eqn11(case: Case) -> np.ndarray:
    """E[g_k h'_k b]."""
    return case.mean(case.slope, case.b, sum_over="ik,il->kl")
