r"""Why over-parametrise: when attention becomes sparse, over the number K of hidden nodes (slides, future work).

One layer with exp attention and ReLU nodes learns which class a context of a few tokens comes from. The class is read
through fixed random upper weights, $\mathrm{logits}_c = \sum_ka_{kc}h_k$, and all contexts count with their
probabilities, each with the true posterior of its class: the loss has a finite minimum, and attention a limit. Weights
and logits of attention follow the gradient flow, which SGD with small steps follows too, until the loss is close to its
minimum.

The guess. With upper weights of size s the outputs begin at about $s\sqrt K$ and move at the rate $s^2K$; the logits
of attention move at the rate $s\sqrt K$, as long as the outputs are wrong. So both need the time $K^{-1/2}$ for $s = 1$
and $K^0$ for $s = K^{-1/2}$.

The time is that at which half of the fall of the attention entropy is done. (The lowest point itself is no use: in
trials with other seeds, K = 25 and 50, some runs had no dip, and attention became sparser to the end.) Each size of the
upper weights is the control of the other: if size made no difference, both claims would fail. Two other controls, all
but 25 nodes frozen and K copies of 25 nodes, did not finish at K = 3200 with the integrator that was tried first.
The parts of this question that train decoders need a GPU and are left for later.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from joma.charts import Chart, lines
from joma.claims import Number, claim
from joma.paper.experiment import Experiment, Measured, caption, catalogue, exponents, over_seeds, select
from joma.store.work import Workspace
from joma.theory import Samples, integrate
from joma.theory.rebound import entropy

TITLE = "Time at which attention becomes sparse, upper weights"
ONE, ROOT = "size 1", "size K^−½"
POWERS = {ONE: 0.0, ROOT: -0.5}
"""Size of the upper weights in each arm, as a power of K."""
TOLERANCE = 0.1
"""Of the exponents −½ and 0."""
LEARNED = 0.02
"""Nats above its minimum at which the loss counts as learned, and a run ends."""
FIRST_TIME, MAX_DOUBLINGS, NUM_POINTS = 0.01, 60, 8
"""First reported time in units of 1/(K s²), how often it may double, and the points within each doubling."""
ACCURACY = 1e-3
"""Relative tolerance of the integrator, of low order: flows that slide along a kink of ReLU stall one of high order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WidthConfig:
    """One layer on classes of contexts, with more and more hidden nodes."""

    nodes: tuple[int, ...] = (25, 50, 100, 200, 400, 800, 1600, 3200)
    """K."""
    num_tokens: int = 8
    num_classes: int = 4
    length: int = 2
    """Tokens in a context."""
    seeds: tuple[int, ...] = tuple(range(21, 29))


def contexts(
    num_tokens: int, num_classes: int, length: int, rng: np.random.Generator
) -> tuple[Samples, Float[np.ndarray, "N C"]]:
    """Return all contexts with their probabilities, and the posterior of the classes, which are equally frequent.

    A class is a distribution of tokens, drawn uniformly; a context has so many tokens of one class.
    """
    log_p = np.log(rng.dirichlet(np.ones(num_tokens), num_classes))
    chosen = itertools.combinations_with_replacement(range(num_tokens), length)
    counts = np.array([np.bincount(each, minlength=num_tokens) for each in chosen])
    joint = counts @ log_p.T - special.gammaln(counts + 1).sum(axis=1, keepdims=True)
    weights = special.softmax(special.logsumexp(joint, axis=1))
    samples = Samples(x=counts / length, q=np.zeros(len(counts), int), weights=weights)
    return samples, special.softmax(joint, axis=1)


def gradient(
    w: Float[np.ndarray, "K M"],
    z: Float[np.ndarray, " M"],
    samples: Samples,
    posterior: Float[np.ndarray, "N C"],
    upper: Float[np.ndarray, "K C"],
) -> dict[str, Float[np.ndarray, "..."]]:
    r"""Return $\dot w$ and $\dot z$ of Eqn 2, unchecked: one query without an embedding, hence no bias.

    $b = e^z\circ x$, $h = \mathrm{relu}(Wb)$, and $g_h$ is that of the cross-entropy, through the upper weights.
    """
    b = np.exp(z) * samples.x
    before = b @ w.T
    wrong = posterior - special.softmax(np.maximum(before, 0) @ upper, axis=1)
    slope = samples.weights[:, None] * (wrong @ upper.T) * (before > 0)
    return {"w": slope.T @ b, "z": (b * (slope @ w)).sum(axis=0)}


def one_run(config: WidthConfig, arm: str, num_nodes: int, seed: int) -> pd.DataFrame:
    """Return the attention entropy and the loss above its minimum over time, until the loss is learned."""
    data, rng = np.random.default_rng([seed, 5]), np.random.default_rng([seed, num_nodes])
    samples, posterior = contexts(config.num_tokens, config.num_classes, config.length, data)
    size = float(num_nodes) ** POWERS[arm]
    upper = size * rng.standard_normal((num_nodes, config.num_classes))
    w = rng.standard_normal((num_nodes, config.num_tokens))
    state = {"w": w, "z": np.zeros(config.num_tokens)}

    def field(time: float, at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return gradient(**at, samples=samples, posterior=posterior, upper=upper)

    def row(time: float, w: np.ndarray, z: np.ndarray) -> dict[str, float]:
        output = np.maximum(np.exp(z) * samples.x @ w.T, 0) @ upper
        missing = np.log(posterior) - special.log_softmax(output, axis=1)
        excess = samples.weights @ (posterior * missing).sum(axis=1)
        return {"t": time, "entropy": float(entropy(z)), "excess": float(excess)}

    first = FIRST_TIME / (num_nodes * size**2)
    rows = [row(0.0, **state)]
    for doubling in range(MAX_DOUBLINGS):
        t = np.geomspace(first, 2 * first, NUM_POINTS + 1) * 2.0 ** (doubling - 1)
        t[0] *= doubling > 0  # the first stretch begins at zero
        path = integrate(field, state, t, method="RK23", rtol=ACCURACY, atol=ACCURACY / 10)
        rows += [row(*each) for each in zip(t[1:], path["w"][1:], path["z"][1:], strict=True)]
        state = {name: path[name][-1] for name in state}
        if rows[-1]["excess"] <= LEARNED:
            return pd.DataFrame(rows)
    raise ArithmeticError(f"{num_nodes} nodes, {arm}, seed {seed}: the loss is {rows[-1]['excess']:.3g} too high.")


def half_time(t: Float[np.ndarray, " T"], values: Float[np.ndarray, " T"]) -> float:
    """Return when half of the way from the first to the lowest value is done for the first time.

    >>> half_time(np.array([0.0, 1.0, 3.0, 4.0]), np.array([2.0, 2.0, 1.0, 1.5]))
    2.0
    """
    way = np.maximum.accumulate(values[0] - values)
    after = int((way >= way[-1] / 2).argmax())
    return float(np.interp(way[-1] / 2, way[after - 1 : after + 1], t[after - 1 : after + 1]))


def compute(config: WidthConfig, space: Workspace) -> Measured:
    """Train all layers."""
    plan = list(itertools.product(POWERS, config.nodes, config.seeds))
    rows, curves = [], []
    for done, (arm, num_nodes, seed) in enumerate(plan):
        space.progress(done / len(plan), f"{num_nodes} nodes, {arm}")
        run = one_run(config, arm, num_nodes, seed)
        t, values = run["t"].to_numpy(), run["entropy"].to_numpy()
        keys = {"arm": arm, "nodes": num_nodes, "seed": seed}
        numbers = {"half_time": half_time(t, values), "loss_time": half_time(t, run["excess"].to_numpy())}
        rows.append(keys | numbers | {"fall": values[0] - values.min(), "rise": values[-1] - values.min()})
        if seed == config.seeds[0]:
            curves.append(run.assign(**keys))
    return Measured(runs=pd.DataFrame(rows), curves=pd.concat(curves, ignore_index=True))


def numbers_of(t: Measured, arm: str, control: str, guess: float) -> Iterator[Number]:
    """Return the exponent of the time, judged by a guess, that of the loss, and the fall of the entropy."""
    runs, others = (select(t.runs, arm=each) for each in (arm, control))
    own, other = (exponents(each, "nodes", "half_time") for each in (runs, others))
    limits = {"at_least": guess - TOLERANCE, "at_most": guess + TOLERANCE, "key": "exponent"}
    yield Number.mean("exponent of the time over K", own, control=other, control_name=control, paired=True, **limits)
    yield Number.mean("exponent of the time to half of the loss", exponents(runs, "nodes", "loss_time"), key="loss")
    for key, nodes in (("few", t.runs["nodes"].min()), ("many", t.runs["nodes"].max())):
        falls, idle = (select(each, nodes=nodes)["fall"] for each in (runs, others))
        about = {"unit": "nats", "control": idle, "control_name": control, "key": key}
        yield Number.mean(f"fall of the entropy with {nodes} nodes", falls, paired=True, **about)


@claim("width-one", f"{TITLE} of size 1", source="Slides, future work", ours=True)
def one_numbers(t: Measured) -> Iterator[Number]:
    """Why do we need over-parametrisation? Our guess: attention becomes sparse after a time ∝ K^−½."""
    yield from numbers_of(t, ONE, ROOT, -0.5)


@claim("width-root", f"{TITLE} of size K^−½", source="Slides, future work", ours=True)
def root_numbers(t: Measured) -> Iterator[Number]:
    """Why do we need over-parametrisation? Our guess: with such upper weights the time does not depend on K."""
    yield from numbers_of(t, ROOT, ONE, 0.0)


def charts(t: Measured) -> Iterator[Chart]:
    """Draw time and fall over the number of nodes, and the entropy over time of one seed."""
    by: dict[str, Any] = {"x_log": True, "color": "arm", "order": tuple(POWERS)}
    for column, id in (("half_time", "width-half-time"), ("fall", "width-fall")):
        means = over_seeds(t.runs, ["arm", "nodes"], column)
        yield lines(means, "nodes", "mean", y_log=column != "fall", **by, **caption(id))
    curves = t.curves[t.curves["t"] > 0]
    yield lines(curves, "t", "entropy", color="nodes", facet="arm", x_log=True, **caption("width-curves"))


EXPERIMENTS = (
    Experiment(
        **catalogue("width"),
        presets={"quick": WidthConfig(nodes=(25, 50, 100, 200), seeds=(1, 2, 3)), "full": WidthConfig()},
        compute=compute,
        claims=(one_numbers, root_numbers),
        charts=charts,
    ),
)
