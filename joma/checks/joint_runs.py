"""Small runs of weights and attention together, by the flow or in steps, along which Theorem 1 is measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from joma.theory.activations import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.descent import StepRecipe, train
from joma.theory.integrate import State, integrate
from joma.theory.invariants import Invariant
from joma.theory.layer import (
    Backprop,
    Embeddings,
    Layer,
    Samples,
    cross_entropy_gradient,
    fixed_gradient,
    orthonormal_embeddings,
)

NUM_TOKENS, DIM = 4, 8
TIMES = np.linspace(0.0, 0.8, 5)
FREQUENCY = 4.0
"""Of a backpropagated gradient that changes over time."""
BOTH = (AttentionKind.LINEAR, AttentionKind.EXP)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run is made of; hashable, so that a run is made once."""

    kind: AttentionKind = AttentionKind.EXP
    phi: str = "gelu"
    num_nodes: int = 3
    backprop: str = "fixed"
    temperature: float = 1.0
    rate_ratio: float = 1.0
    num_queries: int = 1
    disjoint: bool = False
    """Whether each query has contextual tokens of its own."""
    own_nodes: bool = False
    """Whether each node receives gradient under one query only, node k under query k mod Q."""
    conditional: bool = False
    """Whether each query's logits follow the expectation over its own samples, as in Eqn 2, rather than the joint."""
    norm: float = 1.0
    """Of the contextual embeddings."""
    overlap: float = 0.0
    """ε: contextual embeddings are U (I + ε R) with U orthonormal and R fixed, entries in [-1, 1]."""
    query_in_context: bool = False
    """Whether the query is contextual token 0."""
    weight_decay: float = 0.0
    num_samples: int = 6
    start: float = 0.5
    """Standard deviation of the weights and logits at the start."""
    seed: int = 0

    def with_both(self) -> tuple["Setup", ...]:
        """Return the setup with linear and with exp attention."""
        return tuple(replace(self, kind=kind) for kind in BOTH)


@dataclass(frozen=True, kw_only=True, eq=False)
class JointRun:
    """A run over time."""

    setup: Setup
    layer: Layer
    samples: Samples
    t: np.ndarray
    v: np.ndarray
    """(T, K, M)"""
    z: np.ndarray
    """(T, Q, M)"""

    @property
    def law(self) -> Invariant:
        """The invariant with the run's temperature, rates and norms of embeddings."""
        gram = self.setup.norm**2 * np.eye(self.v.shape[-1])
        return Invariant(attention=self.layer.attention, rate_ratio=self.setup.rate_ratio, gram=gram)


Quantity = Callable[[JointRun], np.ndarray]
"""A run in, the quantity that is said to be conserved out, time first."""


@cache
def flowed(setup: Setup) -> JointRun:
    """Integrate the layer's gradient flow."""
    layer, samples, backprop, w0, z0 = problem(setup)
    share = samples.by_query(setup.num_queries).sum(axis=1)[:, None] if setup.conditional else 1.0

    def field(time: float, state: State) -> State:
        w, z = state["w"], state["z"]
        slope = layer.gradient(w, z, samples, backprop(time, layer.hidden(w, z, samples)))
        decay = setup.weight_decay
        return {"w": slope.w - decay * w, "z": setup.rate_ratio * slope.z / share - decay * z}

    run = integrate(field, {"w": w0, "z": z0}, TIMES)
    v = layer.embeddings.contextual_part(run["w"])
    return JointRun(setup=setup, layer=layer, samples=samples, t=run.t, v=v, z=run["z"])


@cache
def trained(setup: Setup, recipe: StepRecipe) -> JointRun:
    """Train the layer in steps; minibatches, if any, are drawn with the setup's seed."""
    layer, samples, backprop, w0, z0 = problem(setup)
    run = train(layer, w0, z0, samples, backprop, recipe, rng=np.random.default_rng(setup.seed))
    v = layer.embeddings.contextual_part(run["w"])
    return JointRun(setup=setup, layer=layer, samples=samples, t=run.t, v=v, z=run["z"])


def drift(values: np.ndarray) -> float:
    """Return the largest change of a quantity since the first time."""
    return float(np.abs(values - values[0]).max())


def problem(setup: Setup) -> tuple[Layer, Samples, Backprop, np.ndarray, np.ndarray]:
    """Return the layer, its data, the gradient sent back, and the start of weights and logits."""
    rng = np.random.default_rng(setup.seed)
    u = orthonormal_embeddings(NUM_TOKENS, setup.num_queries, dim=DIM, rng=rng)
    mixing = np.eye(NUM_TOKENS) + setup.overlap * rng.uniform(-1, 1, (NUM_TOKENS, NUM_TOKENS))
    queries = u.contextual[:, :1] if setup.query_in_context else u.queries
    layer = Layer(
        embeddings=Embeddings(contextual=setup.norm * u.contextual @ mixing, queries=queries),
        attention=Attention(kind=setup.kind, temperature=setup.temperature),
        activation=activation(setup.phi),
    )
    q = np.arange(setup.num_samples) % setup.num_queries
    x = rng.dirichlet(np.ones(NUM_TOKENS), size=setup.num_samples)
    if setup.disjoint:
        x = x * (np.arange(NUM_TOKENS) % setup.num_queries == q[:, None])
    samples = Samples(x=x, q=q, weights=rng.dirichlet(np.full(setup.num_samples, 3.0)))
    w0 = rng.normal(0, setup.start, (setup.num_nodes, DIM))
    z0 = rng.normal(0, setup.start, (setup.num_queries, NUM_TOKENS))
    return layer, samples, _backprop(setup, rng), w0, z0


def _backprop(setup: Setup, rng: np.random.Generator) -> Backprop:
    g = rng.uniform(-1, 1, (setup.num_samples, setup.num_nodes))
    if setup.own_nodes:
        of_sample, of_node = (np.arange(count) % setup.num_queries for count in g.shape)
        g = g * np.equal.outer(of_sample, of_node)
    match setup.backprop:
        case "fixed":
            return fixed_gradient(g)
        case "time-varying":
            return lambda time, hidden: g * np.cos(FREQUENCY * time) - hidden / 2
        case _:
            return cross_entropy_gradient(np.arange(setup.num_samples) % setup.num_nodes)
