r"""Open question 1: what becomes of Theorem 1 when embeddings are only almost orthogonal.

Section 7 expects additional terms of order $\epsilon$, the largest overlap $|u_l^\top u_{l'}|$ of two unit embeddings,
and says that $d = 8\epsilon^{-2}\log M$ dimensions are enough for M tokens. Here M random unit vectors in more and more
dimensions are the embeddings of one layer with exp attention and linear activation, trained by gradient flow up to 60 %
of the time at which it diverges. The error of Theorem 1 is

$$\|z - \tfrac12\textstyle\sum_k v_k^2 - c\| \,/\, \|z - z(0)\|,$$

with $c$ its value at the start. The gradients have mean zero, so that the query's embedding takes no part. Controls:
orthonormal embeddings, for which the error is zero, and pairs of tokens whose overlap does not shrink with d. What
learned embeddings conserve is `joma verify thm1-learned`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from joma.charts import Chart, lines
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, caption, catalogue, exponents, over_seeds, select
from joma.store.work import Workspace
from joma.theory import Attention, AttentionKind, Embeddings, Invariant, Layer, Samples, fixed_gradient
from joma.theory.activations import linear

RANDOM, PAIRED, ORTHONORMAL = "random", "random, in pairs with overlap 0.3", "orthonormal"
OVERLAP = 0.3
"""Of the two embeddings of a pair, whatever the dimension."""
WHEN = 0.6
"""Part of the time to divergence at which the error is read."""
DIVERGED = 1e6
SOURCE = "Section 7, almost orthogonal embeddings"
EXPONENT, TOLERANCE = -0.5, 0.1
"""The largest of M² random overlaps is proportional to d^−½, so an error of order ε is too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingsConfig:
    """One layer on random data, with embeddings in more and more dimensions."""

    dims: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200)
    num_tokens: int = 100
    """M."""
    num_nodes: int = 4
    num_samples: int = 50
    seeds: tuple[int, ...] = tuple(range(11, 21))


def draw(kind: str, num_tokens: int, dim: int, rng: np.random.Generator) -> Float[np.ndarray, "d M"]:
    """Return unit embeddings as columns, the query's last, in coordinates of their span: only inner products matter."""
    if kind == ORTHONORMAL:
        return np.eye(num_tokens)
    u = rng.standard_normal((dim, num_tokens))
    u /= np.linalg.norm(u, axis=0)
    if kind == PAIRED:
        across = u[:, 1::2] - (u[:, 1::2] * u[:, :-1:2]).sum(axis=0) * u[:, :-1:2]
        u[:, 1::2] = OVERLAP * u[:, :-1:2] + np.sqrt(1 - OVERLAP**2) * across / np.linalg.norm(across, axis=0)
    return np.linalg.qr(u)[1]


def one_run(config: EmbeddingsConfig, kind: str, dim: int, seed: int) -> dict[str, float]:
    """Return overlap and error of Theorem 1 of one layer."""
    rng, M, num_samples = np.random.default_rng([seed, 2310]), config.num_tokens, config.num_samples
    samples = Samples(x=rng.dirichlet(np.ones(M), num_samples), q=np.zeros(num_samples, int))  # the same data for all
    g = rng.standard_normal((num_samples, config.num_nodes))
    g -= g.mean(axis=0)
    v0, z0 = 0.3 * rng.standard_normal((config.num_nodes, M)), 0.2 * rng.standard_normal(M)
    u = draw(kind, M + 1, dim, np.random.default_rng([seed, dim]))
    tokens = Embeddings(contextual=u[:, :-1], queries=u[:, -1:])
    layer = Layer(embeddings=tokens, attention=Attention(kind=AttentionKind.EXP), activation=linear)
    w0 = v0 @ u[:, :-1].T
    flow = (w0, z0[None], samples, fixed_gradient(g))
    end = layer.flow(*flow, np.array([0.0, 1e9]), blow_up=DIVERGED).blow_up
    assert end is not None, "exp attention with a linear activation diverges"
    run = layer.flow(*flow, np.array([0.0, WHEN * end.time]))
    charge = Invariant(attention=layer.attention).value(tokens.contextual_part(run["w"]), run["z"])
    overlap = u[:, :-1].T @ u[:, :-1] - np.eye(M)
    return {
        "overlap": float(np.abs(overlap).max()),
        "error": float(np.linalg.norm(charge[-1] - charge[0]) / np.linalg.norm(run["z"][-1] - run["z"][0])),
        "diverges_at": end.time,
    }


def compute(config: EmbeddingsConfig, space: Workspace) -> Measured:
    """Train all layers."""
    plan = [(kind, dim, seed) for kind in (RANDOM, PAIRED) for dim in config.dims for seed in config.seeds]
    plan += [(ORTHONORMAL, config.dims[-1], seed) for seed in config.seeds]
    rows = []
    for done, (kind, dim, seed) in enumerate(plan):
        space.progress(done / len(plan), f"{kind}, {dim} dimensions")
        rows.append({"kind": kind, "dim": dim, "seed": seed} | one_run(config, kind, dim, seed))
    return Measured(runs=pd.DataFrame(rows))


@claim("embeddings-order", "Theorem 1 with almost orthogonal embeddings", source=SOURCE)
def order_numbers(t: Measured) -> Iterator[Number]:
    """With almost orthogonal embeddings Theorem 1 will have additional terms of order ε."""
    own, paired = (exponents(select(t.runs, kind=kind), "dim", "error") for kind in (RANDOM, PAIRED))
    limits = {"at_least": EXPONENT - TOLERANCE, "at_most": EXPONENT + TOLERANCE, "key": "exponent"}
    yield Number.mean("exponent of the error over d", own, control=paired, control_name=PAIRED, paired=True, **limits)
    for key, dim in (("few", t.runs["dim"].min()), ("many", t.runs["dim"].max())):
        errors = select(t.runs, kind=RANDOM, dim=dim)["error"]
        exact = select(t.runs, kind=ORTHONORMAL)["error"]
        yield Number.mean(f"error at {dim} dimensions", errors, control=exact, control_name=ORTHONORMAL, key=key)


@claim("embeddings-dimensions", "Dimensions that almost orthogonal embeddings need", source=SOURCE)
def dimension_numbers(t: Measured) -> Iterator[Number]:
    """For M embedding vectors to achieve |u_lᵀu_l'| ≤ ε only d ≤ 8 ε⁻² log M is needed."""
    factor = t.runs["overlap"] ** 2 * t.runs["dim"] / (8 * np.log(t.config.num_tokens))
    worst = t.runs.assign(factor=factor).groupby(["kind", "seed"])["factor"].max()
    own, paired = worst[RANDOM], worst[PAIRED]
    about = {"at_most": 1.0, "control": paired, "control_name": PAIRED, "paired": True, "key": "factor"}
    yield Number.mean("largest ε² d / (8 log M) over the dimensions", own, **about)


def charts(t: Measured) -> list[Chart]:
    """Draw the error over dimensions."""
    errors = over_seeds(t.runs[t.runs["kind"] != ORTHONORMAL], ["kind", "dim"], "error")
    return [lines(errors, "dim", "mean", color="kind", x_log=True, y_log=True, **caption("embeddings"))]


EXPERIMENTS = (
    Experiment(
        **catalogue("embeddings"),
        presets={
            "quick": EmbeddingsConfig(dims=(50, 100, 200, 400), num_tokens=40, seeds=(1, 2, 3)),
            "full": EmbeddingsConfig(),
        },
        compute=compute,
        claims=(order_numbers, dimension_numbers),
        charts=charts,
    ),
)
