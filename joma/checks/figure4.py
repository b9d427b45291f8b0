"""Figure 4: the attention entropy drops and rebounds, and what Section 4 says of the rank of the lower layer."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special
from scipy.stats import entropy

from joma import theory
from joma.checks.check import as_printed, check, rejects
from joma.checks.quadrature import solved
from joma.checks.reference import ODE, TRAINING
from joma.checks.theorem4 import efolds_by_ode, random_tied, raw_run
from joma.theory import AttentionFlow, ConvergenceFlow

FIGURE_4 = np.array(theory.FIGURE_4_TARGETS)
STEP, NUM_STEPS, TEMPERATURE = 0.02, 5000, 3.0  # step size, number of steps and T of figure 4's simulation
VISIBLE_RISE = 0.5  # nats by which figure 4's entropy visibly comes back


def _entropy(s: np.ndarray) -> np.ndarray:
    """Entropy of softmax(s), by scipy.stats."""
    return np.asarray(entropy(np.exp(s - s.max(axis=-1, keepdims=True)), axis=-1))


def _raw(flow: Any, t: np.ndarray) -> tuple[np.ndarray, ...]:
    """v and z of the raw flow: Eqn 6 takes v for what the node sees, the model v∘a."""
    return raw_run(flow, lambda v, a: flow.mu - (v if isinstance(flow, ConvergenceFlow) else v * a), t)


def dips(rng):
    """Flows of Eqn 6 and of the model, at figure 4's targets and off all defaults, densely in time.

    A flow, the T of softmax(v²/T) or None for its own attention, and times, v and entropy of the raw run.
    """
    given = random_tied(rng) | {"mu": np.array([1.1, -1.7, 2.1]), "v0": np.array([0.1, 0.2, -0.1])}
    for flow, temperature, t1 in (
        (ConvergenceFlow(mu=FIGURE_4), 1.0, 2.0),
        (ConvergenceFlow(mu=FIGURE_4), 2.0, 2.0),
        (ConvergenceFlow(**given), None, 8.0),
        (AttentionFlow(**given), None, 8.0),
        (AttentionFlow(**given), 0.4, 8.0),
    ):
        t = np.linspace(0, t1, 2001)
        v, z = _raw(flow, t)
        yield flow, temperature, t, v, _entropy(v**2 / temperature if temperature else z / flow.temperature)


# Tolerance: the integrated flow is sampled 2,000 times
@check("fig4", ODE, theory.entropy_rebound, 5e-5, unit="nats", over=dips)
@rejects("temperature 1 % off", lambda flow, T: theory.entropy_rebound(flow, 1.01 * (T or 2 / flow.gain)))
def size_of_the_dip(dip, flow, temperature, t, v, found):
    """Start, lowest entropy and rise at figure 4's targets, and of the flow's own attention off all defaults."""
    at_figure_4 = temperature is not None and isinstance(flow, ConvergenceFlow)  # not settled when the run ends
    end = _entropy(flow.mu**2 / temperature) if at_figure_4 else found[-1]
    claimed = dip(flow, temperature)
    gaps = claimed.start - found[0], claimed.lowest - found.min(), claimed.rise - (end - found.min())
    if temperature is None:
        return gaps
    return *gaps, theory.rebound(t, theory.attention_entropy(v, temperature)).drop - (found[0] - found.min())


@check("fig4", TRAINING, lambda v, mu: theory.normalised_field(v, mu, TEMPERATURE), 0.0, unit="share")
@as_printed(lambda v, mu: (mu - v) * np.exp(v**2 / 2))
@rejects("no attention", lambda v, mu: mu - v)
def missing_of_the_run(velocity):
    """What a run with the figure's start and step lacks of its 5000 steps, or of a rise of 0.5 nats."""
    v = np.full(10, theory.FIGURE_4_START)
    entropies = []
    for step in range(NUM_STEPS):
        entropies.append(special.entr(special.softmax(v**2 / TEMPERATURE)).sum())
        with np.errstate(over="ignore"):
            v = v + STEP * velocity(v, FIGURE_4)
        if not np.isfinite(v).all():
            return 1 - step / NUM_STEPS
    return max(0.0, 1 - float(entropies[-1] - min(entropies)) / VISIBLE_RISE)


def model_runs(rng):
    """Parameters, times, and v and z of the raw run with Φ(u) = μ − u: figure 4's targets, and random parameters."""
    every = (({"mu": FIGURE_4}, np.linspace(0, 5, 101)), (random_tied(rng), np.linspace(0, 20, 101)))
    return [(given, t, *_raw(AttentionFlow(**given), t)) for given, t in every]


@check("fig4", ODE, AttentionFlow, printed=ConvergenceFlow, over=model_runs)
@rejects("targets 1 % off", lambda *, mu, **rest: AttentionFlow(mu=1.01 * mu, **rest))
def attention_of_the_model(flow_of, given, t, v, z):
    """Weights, logits and entropy of the attention that the raw (v, z) flow learns, also off all defaults."""
    flow = flow_of(**given)
    found, logits = flow.solution(t), flow.logits(flow.solution(t))
    return found - v, logits - z, _entropy(logits) - _entropy(z)


def late_trends(rng):
    """Random targets, half of them with zeros, T, and whether the entropy of softmax(v²/T) still rises at the end.

    At the end v² = μ² − h·w with h → 0 and w ∝ μ²δ: whether that is a rise is seen from the entropies themselves.
    """
    for index in range(40):
        mu = rng.uniform(0.5, 2.5, size=8) * rng.choice([-1.0, 1.0], size=8)
        mu[: index % 2 * rng.integers(4, 8)] = 0.0
        late = 60 * np.exp(-np.square(mu[mu != 0]).min() / 2)
        y = efolds_by_ode(tuple(mu), (late,))[0]
        way = mu**2 * np.exp(y[mu != 0].min() - y)
        for temperature in (0.7, 1.4, 3.0):
            before, after = (float(_entropy((mu**2 - h * way) / temperature)) for h in (1e-4, 0.0))
            yield mu, temperature, after > before


@check("fig4-condition", ODE, theory.entropy_finally_rises, 0.0, unit="wrong answers", over=late_trends)
@as_printed(lambda mu, T: True)
@rejects("p < 1/M in place of p < exp(−H)", lambda mu, T: special.softmax(mu**2 / T)[mu != 0].min() < 1 / mu.size)
def final_trend(rises, mu, temperature, found):
    """Whether the entropy rises at the end, 40 random targets, half of them with zeros, at three temperatures."""
    return bool(rises(mu, temperature)) != found


def _shared_path(targets: np.ndarray, t: np.ndarray) -> np.ndarray:
    """V of several nodes that share one attention, exp(½Σ_k v_k²), integrated from zero."""
    [path] = solved(lambda v: ((targets - v) * np.exp((v**2).sum(axis=0) / 2),), (0 * targets,), [0.0, *t])
    return path[1:]


def _stable_rank(v: np.ndarray) -> float:
    return float(np.square(np.linalg.norm(v) / np.linalg.norm(v, 2)))


def _one_node_many_tokens(num_weak: int) -> np.ndarray:
    """Targets in which one node wants a strong token and the other several weak ones."""
    return np.array([[1.0] * num_weak + [0.0], [0.0] * num_weak + [2.5]])


ORTHOGONAL = np.array([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]]) * [2.5, 1.5, 0.7]


@check("rank-rebound", ODE, ORTHOGONAL, printed=_one_node_many_tokens(10), unit="stable rank")
@rejects("columns not orthogonal", _one_node_many_tokens(7))
def rank_above_its_end(targets):
    """Stable rank beyond its final value, which from zero is also its first, for orthogonal columns."""
    return max(map(_stable_rank, _shared_path(targets, np.geomspace(1e-2, 5.0, 60)))) - _stable_rank(targets)


@check("rank-rebound", ODE, theory.shared_solution, over=lambda rng: [rng.normal(size=(3, 4)), rng.normal(size=(2, 5))])
@rejects("time 1 % off", lambda t, mu: theory.shared_solution(1.01 * t, mu))
def several_nodes(solution, targets):
    """V = M·diag(F⁻¹(t, ‖M_l‖)) for three and two nodes, its field and its stable rank."""
    t = np.array([0.1, 0.5, 2.0])
    path = _shared_path(targets, t)
    speed = (targets - path) * np.exp((path**2).sum(axis=1) / 2)[:, None, :]
    ranks = theory.stable_rank(path) - [_stable_rank(v) for v in path]
    return solution(t, targets) - path, theory.shared_field(path, targets) - speed, ranks


# Tolerance: the integrated flow is sampled 2,000 times
@check("rank-rebound", ODE, theory.rank_rebound, 1e-3, unit="stable rank", over=dips)
@rejects("targets 1 % off", lambda flow: theory.rank_rebound(replace(flow, mu=1.01 * flow.mu)))
def lowest_rank(dip, flow, _temperature, _t, v, _entropy):
    """Lowest and first stable rank with one node for each token, at figure 4's targets and off all defaults."""
    ranks = [_stable_rank(np.diag(row)) for row in (v if v[0].any() else v[1:])]
    return dip(flow).lowest - min(ranks), dip(flow).end - _stable_rank(np.diag(flow.critical_point()))
