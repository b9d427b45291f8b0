"""Random layers: one point of their training with finite differences of its loss, and runs by the flow or in steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import special

from joma import theory
from joma.checks.quadrature import jacobian
from joma.theory import Activation, AttentionKind, Invariant, Layer, LayerGradient, Samples
from joma.types import Trajectory

NUM_TOKENS, DIM = 4, 8
TIMES = np.linspace(0.0, 0.8, 5)
FREQUENCY = 4.0  # of a backpropagated gradient that changes over time
BOTH = (AttentionKind.LINEAR, AttentionKind.EXP)
ROUNDING_TOLERANCE = 1e-13  # sums of a few products of numbers of order one


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run is made of; hashable, so that a run is made once."""

    kind: AttentionKind = AttentionKind.EXP
    phi: Activation = theory.gelu
    num_nodes: int = 3
    backprop: str = "fixed"
    temperature: float = 1.0
    normalisation: float = 1.0
    rate_ratio: float = 1.0
    num_queries: int = 1
    disjoint: bool = False  # whether each query has contextual tokens of its own
    own_nodes: bool = False  # whether each node receives gradient under one query only, node k under query k mod Q
    conditional: bool = False  # whether each query's logits follow the expectation over its own samples, as in Eqn 2
    norm: float = 1.0  # of the contextual embeddings
    overlap: float = 0.0  # ε: contextual embeddings are U (I + ε R) with U orthonormal and R fixed, entries in [-1, 1]
    query_in_context: bool = False  # whether the query is contextual token 0
    weight_decay: float = 0.0
    num_samples: int = 6
    start: float = 0.5  # standard deviation of the weights and logits at the start
    seed: int = 0

    def with_both(self) -> tuple["Setup", ...]:
        """Return the setup with linear and with exp attention."""
        return tuple(replace(self, kind=kind) for kind in BOTH)

    @property
    def labels(self) -> np.ndarray:
        """The node that each sample should raise."""
        return np.arange(self.num_samples) % self.num_nodes


def changing(rng: np.random.Generator, kind: AttentionKind, phi: Activation, num_queries: int) -> Setup:
    """Draw a setup with T and A other than 1 and a gradient that changes over time."""
    return Setup(
        kind=kind,
        phi=phi,
        num_nodes=4,
        backprop="time-varying",
        temperature=rng.uniform(0.6, 0.9),
        normalisation=1.0 if kind is AttentionKind.SOFTMAX else rng.uniform(1.3, 2.5),
        num_queries=num_queries,
        num_samples=7,
        seed=int(rng.integers(1000)),
    )


def problem(setup: Setup) -> tuple[Layer, Samples, Any, np.ndarray, np.ndarray]:
    """Return the layer, its data, the gradient sent back, and the start of weights and logits."""
    rng = np.random.default_rng(setup.seed)
    u = theory.orthonormal_embeddings(NUM_TOKENS, setup.num_queries, dim=DIM, rng=rng)
    mixing = np.eye(NUM_TOKENS) + setup.overlap * rng.uniform(-1, 1, (NUM_TOKENS, NUM_TOKENS))
    queries = u.contextual[:, :1] if setup.query_in_context else u.queries
    layer = Layer(
        embeddings=theory.Embeddings(contextual=setup.norm * u.contextual @ mixing, queries=queries),
        attention=theory.Attention(kind=setup.kind, temperature=setup.temperature, normalisation=setup.normalisation),
        activation=setup.phi,
    )
    q = np.arange(setup.num_samples) % setup.num_queries
    x = rng.dirichlet(np.ones(NUM_TOKENS), size=setup.num_samples)
    if setup.disjoint:
        x = x * (np.arange(NUM_TOKENS) % setup.num_queries == q[:, None])
    samples = Samples(x=x, q=q, weights=rng.dirichlet(np.full(setup.num_samples, 3.0)))
    w0 = rng.normal(0, setup.start, (setup.num_nodes, DIM))
    z0 = rng.normal(0, setup.start, (setup.num_queries, NUM_TOKENS))
    g = rng.uniform(-1, 1, (setup.num_samples, setup.num_nodes))
    if setup.own_nodes:
        g = g * np.equal.outer(q, np.arange(setup.num_nodes) % setup.num_queries)
    backprops = {
        "fixed": theory.fixed_gradient(g),
        "time-varying": lambda time, hidden: g * np.cos(FREQUENCY * time) - hidden / 2,
        "cross-entropy": theory.cross_entropy_gradient(setup.labels),
    }
    return layer, samples, backprops[setup.backprop], w0, z0


@dataclass(frozen=True, kw_only=True, eq=False)
class JointRun:
    """A run over time."""

    setup: Setup
    layer: Layer
    samples: Samples
    t: np.ndarray
    v: np.ndarray  # (T, K, M)
    z: np.ndarray  # (T, Q, M)

    @property
    def law(self) -> Invariant:
        """The invariant with the run's temperature, rates and norms of embeddings."""
        gram = self.setup.norm**2 * np.eye(self.v.shape[-1])
        return Invariant(attention=self.layer.attention, rate_ratio=self.setup.rate_ratio, gram=gram)


@cache
def run_of(setup: Setup, recipe: theory.StepRecipe | None = None) -> JointRun:
    """Integrate the gradient flow, or train in the steps of a recipe, on minibatches drawn with the setup's seed."""
    layer, samples, backprop, w0, z0 = problem(setup)
    share = samples.by_query(setup.num_queries).sum(axis=1)[:, None] if setup.conditional else 1.0

    def field(time: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        w, z = state["w"], state["z"]
        slope = layer.gradient(w, z, samples, backprop(time, layer.hidden(w, z, samples)))
        decay = setup.weight_decay
        return {"w": slope.w - decay * w, "z": setup.rate_ratio * slope.z / share - decay * z}

    if recipe is None:
        run = theory.integrate(field, {"w": w0, "z": z0}, TIMES)
    else:
        run = theory.train(layer, w0, z0, samples, backprop, recipe, rng=np.random.default_rng(setup.seed))
    v = layer.embeddings.contextual_part(run["w"])
    return JointRun(setup=setup, layer=layer, samples=samples, t=run.t, v=v, z=run["z"])


def drift(values: np.ndarray) -> np.ndarray:
    """Return the change of a quantity since the first time."""
    return values - values[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A layer at one point of its training, with the gradient that is sent back to it there."""

    layer: Layer
    w: np.ndarray
    z: np.ndarray
    samples: Samples
    g: np.ndarray
    labels: np.ndarray

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
        return self.layer.flow(self.w, self.z, self.samples, theory.fixed_gradient(self.g), t, **options)

    def with_gradient_sent_back(self, **changes: Any) -> "Case":
        """Return a changed case with the g of cross-entropy on h."""
        case = replace(self, **changes)
        g = theory.cross_entropy_gradient(case.labels)(0.0, case.layer.hidden(case.w, case.z, case.samples))
        return replace(case, g=g)


def make_case(kind: AttentionKind, phi: Activation, **options: Any) -> Case:
    """Draw a layer and its data; g is that of cross-entropy on h unless asked for otherwise."""
    defaults: dict[str, Any] = {"num_samples": 9, "start": 1.0, "backprop": "cross-entropy"}
    setup = Setup(kind=kind, phi=phi, **defaults | options)
    layer, samples, backprop, w, z = problem(setup)
    g = backprop(0.0, layer.hidden(w, z, samples))
    return Case(layer=layer, w=w, z=z, samples=samples, g=g, labels=setup.labels)


def drawn(rng: np.random.Generator, kind: AttentionKind, phi: Activation, **options: Any) -> Case:
    """Draw a case with a temperature and, where there is one, a normalisation other than 1."""
    if kind is not AttentionKind.SOFTMAX:
        options["normalisation"] = rng.uniform(1.3, 2.5)
    temperature = rng.choice([rng.uniform(0.5, 0.8), rng.uniform(1.3, 2.0)])
    return make_case(kind, phi, temperature=temperature, seed=int(rng.integers(1000)), **options)


def one_query(rng: np.random.Generator) -> Sequence[Case]:
    """Draw a layer of each attention, at a random temperature and normalisation."""
    phis = theory.relu, theory.gelu, theory.tanh
    return [drawn(rng, kind, phi) for kind, phi in zip(AttentionKind, phis, strict=True)]


def any_queries(rng: np.random.Generator) -> Sequence[Case]:
    """Draw layers with one query and with three that share w."""
    shared = zip(AttentionKind, (theory.silu, theory.homogeneous(0.1, 1.0), theory.gelu), strict=True)
    return [*one_query(rng), *(drawn(rng, kind, phi, num_queries=3) for kind, phi in shared)]


def softmax_only(rng: np.random.Generator) -> Sequence[Case]:
    """Draw two softmax layers."""
    return [drawn(rng, AttentionKind.SOFTMAX, phi) for phi in (theory.tanh, theory.gelu)]


def unnormalised(rng: np.random.Generator) -> Sequence[Case]:
    """Draw layers of linear and exp attention; of one linear layer two logits are zero, as zero initialisation has."""
    linear, exp, _ = one_query(rng)
    return [linear, linear.with_gradient_sent_back(z=linear.z * np.array([1.0, 0.0, 1.0, 0.0])), exp]


def differentiated(f: Any, w: np.ndarray, z: np.ndarray) -> LayerGradient:
    """Return the gradient of f(w, z) by finite differences."""
    return LayerGradient(w=jacobian(lambda w: f(w, z), w), z=jacobian(lambda z: f(w, z), z))


def log_likelihood(case: Case, w: np.ndarray, z: np.ndarray) -> float:
    """Return the negative cross-entropy of the labels, with h as logits."""
    log_p = special.log_softmax(case.layer.hidden(w, z, case.samples), axis=1)
    return float(case.samples.weights @ np.take_along_axis(log_p, case.labels[:, None], axis=1)[:, 0])


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


def stream(layer: Layer, z: np.ndarray, samples: Samples) -> np.ndarray:
    """f = U_C b + u_q."""
    return layer.scores(z, samples) @ layer.embeddings.contextual.T + layer.embeddings.queries.T[samples.q]


def eqn11(case: Case) -> np.ndarray:
    """E[g_k h'_k b]."""
    return case.mean(case.slope, case.b, sum_over="ik,il->kl")
