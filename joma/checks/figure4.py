"""Figure 4: the attention entropy drops and rebounds, and what Section 4 says of the rank of the lower layer."""

from typing import Any

import numpy as np
from scipy import special
from scipy.stats import entropy

from joma.checks.check import Reference, as_printed, check, rejects
from joma.checks.theorem4 import efolds_by_ode, random_tied, raw_run
from joma.theory.attention_flow import AttentionFlow
from joma.theory.convergence import ConvergenceFlow, TiedFlow, normalised_field, shared_field, shared_solution
from joma.theory.integrate import integrate
from joma.theory.rebound import (
    attention_entropy,
    entropy_finally_rises,
    entropy_rebound,
    rank_rebound,
    rebound,
    stable_rank,
)
from joma.theory.simulation import FIGURE_4_START, FIGURE_4_TARGETS

FIGURE_4 = np.array(FIGURE_4_TARGETS)
STEP, NUM_STEPS, TEMPERATURE = 0.02, 5000, 3.0
"""Step size, number of steps and T of the simulation behind figure 4."""
VISIBLE_RISE = 0.5
"""Nats by which figure 4's entropy visibly comes back."""


def _entropy(s: np.ndarray) -> np.ndarray:
    """Entropy of softmax(s), by scipy.stats."""
    return np.asarray(entropy(np.exp(s - s.max(axis=-1, keepdims=True)), axis=-1))


def _push(flow: TiedFlow) -> Any:
    """What drives v in the raw flow: Eqn 6 takes v for what the node sees, the model v∘a."""
    return lambda v, a: flow.mu - (v if isinstance(flow, ConvergenceFlow) else v * a)


def dips(rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Flows of Eqn 6 and of the model, at figure 4's targets and off all defaults, densely in time.

    A flow, the T of softmax(v²/T) or None for its own attention, and times, v and entropy of the raw run.
    """
    given = random_tied(rng) | {"mu": np.array([1.1, -1.7, 2.1]), "v0": np.array([0.1, 0.2, -0.1])}
    cases: list[tuple[Any, ...]] = []
    for flow, temperature, t1 in (
        (ConvergenceFlow(mu=FIGURE_4), 1.0, 2.0),
        (ConvergenceFlow(mu=FIGURE_4), 2.0, 2.0),
        (ConvergenceFlow(**given), None, 8.0),
        (AttentionFlow(**given), None, 8.0),
        (AttentionFlow(**given), 0.4, 8.0),
    ):
        t = np.linspace(0, t1, 2001)
        run = raw_run(flow, _push(flow), t)
        s = run["z"] / flow.temperature if temperature is None else run["v"] ** 2 / temperature
        cases.append((flow, temperature, t, run["v"], _entropy(s)))
    return cases


# Tolerance: the integrated flow is sampled 2,000 times
@check("fig4", Reference.ODE, entropy_rebound, 5e-5, unit="nats", over=dips)
@rejects("temperature 1 % off", lambda flow, temperature: entropy_rebound(flow, 1.01 * (temperature or 2 / flow.gain)))
def size_of_the_dip(dip, flow, temperature, t, v, found):
    """Start, lowest entropy and rise at figure 4's targets, and of the flow's own attention off all defaults."""
    at_figure_4 = temperature is not None and isinstance(flow, ConvergenceFlow)  # not settled when the run ends
    end = _entropy(flow.mu**2 / temperature) if at_figure_4 else found[-1]
    claimed = dip(flow, temperature)
    pairs = [(claimed.start, found[0]), (claimed.lowest, found.min()), (claimed.rise, end - found.min())]
    if temperature is not None:
        pairs.append((rebound(t, attention_entropy(v, temperature)).drop, found[0] - found.min()))
    return np.abs(np.subtract(*np.transpose(pairs))).max()


@check("fig4", Reference.TRAINING, lambda v, mu: normalised_field(v, mu, TEMPERATURE), 0.0, unit="share")
@as_printed(lambda v, mu: (mu - v) * np.exp(v**2 / 2))
@rejects("no attention", lambda v, mu: mu - v)
def missing_of_the_run(velocity):
    """What a run with the figure's start and step lacks of its 5000 steps, or of a rise of 0.5 nats."""
    v = np.full(10, FIGURE_4_START)
    entropies = []
    for step in range(NUM_STEPS):
        p = special.softmax(v**2 / TEMPERATURE)
        entropies.append(special.entr(p).sum())
        with np.errstate(over="ignore"):
            v = v + STEP * velocity(v, FIGURE_4)
        if not np.isfinite(v).all():
            return 1 - step / NUM_STEPS
    return max(0.0, 1 - float(entropies[-1] - min(entropies)) / VISIBLE_RISE)


def model_runs(rng: np.random.Generator) -> list[tuple[dict[str, Any], np.ndarray, Any]]:
    """Parameters, times, and the raw (v, z) run with Φ(u) = μ − u: figure 4's targets, and random parameters."""
    cases = []
    for given, t in (({"mu": FIGURE_4}, np.linspace(0, 5, 101)), (random_tied(rng), np.linspace(0, 20, 101))):
        flow = AttentionFlow(**given)
        cases.append((given, t, raw_run(flow, _push(flow), t)))
    return cases


@check("fig4", Reference.ODE, AttentionFlow, printed=ConvergenceFlow, over=model_runs)
@rejects("targets 1 % off", lambda *, mu, **rest: AttentionFlow(mu=1.01 * mu, **rest))
def attention_of_the_model(flow_of, given, t, run):
    """Weights, logits and entropy of the attention that the raw (v, z) flow learns, also off all defaults."""
    flow = flow_of(**given)
    v = flow.solution(t)
    gaps = (v - run["v"], flow.logits(v) - run["z"], _entropy(flow.logits(v)) - _entropy(run["z"]))
    return max(np.abs(gap).max() for gap in gaps)


def late_trends(rng: np.random.Generator) -> list[tuple[np.ndarray, float, bool]]:
    """Random targets, half of them with zeros, T, and whether the entropy of softmax(v²/T) still rises at the end.

    At the end v² = μ² − h·w with h → 0 and w ∝ μ²δ: whether that is a rise is seen from the entropies themselves.
    """
    cases = []
    for index in range(40):
        mu = rng.uniform(0.5, 2.5, size=8) * rng.choice([-1.0, 1.0], size=8)
        mu[: index % 2 * rng.integers(4, 8)] = 0.0
        late = 60 * np.exp(-np.square(mu[mu != 0]).min() / 2)
        y = efolds_by_ode(tuple(mu), (late,))[0]
        way = mu**2 * np.exp(y[mu != 0].min() - y)
        for temperature in (0.7, 1.4, 3.0):
            before, after = (float(_entropy((mu**2 - h * way) / temperature)) for h in (1e-4, 0.0))
            cases.append((mu, temperature, after > before))
    return cases


@check("fig4-condition", Reference.ODE, entropy_finally_rises, 0.0, unit="wrong answers", over=late_trends)
@as_printed(lambda mu, temperature: True)
@rejects(
    "criterion p < 1/M in place of p < exp(−H)",
    lambda mu, temperature: bool(special.softmax(mu**2 / temperature)[np.abs(mu) > 0].min() < 1 / mu.size),
)
def final_trend(rises, mu, temperature, found):
    """Whether the entropy rises at the end, 40 random targets, half of them with zeros, at three temperatures."""
    return rises(mu, temperature) != found


# The rank of the lower layer


def _shared_path(targets: np.ndarray, t: np.ndarray) -> np.ndarray:
    """V of several nodes that share one attention, exp(½Σ_k v_k²), integrated from zero."""

    def flow(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        v = state["v"]
        return {"v": (targets - v) * np.exp((v**2).sum(axis=0) / 2)}

    return integrate(flow, {"v": np.zeros_like(targets)}, np.array([0.0, *t]))["v"][1:]


def _stable_rank(v: np.ndarray) -> float:
    return float(np.square(np.linalg.norm(v) / np.linalg.norm(v, 2)))


def _one_node_many_tokens(num_weak: int) -> np.ndarray:
    """Targets in which one node wants a strong token and the other several weak ones."""
    return np.array([[1.0] * num_weak + [0.0], [0.0] * num_weak + [2.5]])


@check(
    "rank-rebound",
    Reference.ODE,
    np.array([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]]) * [2.5, 1.5, 0.7],
    unit="stable rank",
)
@as_printed(_one_node_many_tokens(10))
@rejects("columns not orthogonal", _one_node_many_tokens(7))
def rank_above_its_end(targets):
    """Stable rank beyond its final value, which from zero is also its first, for orthogonal columns."""
    path = _shared_path(targets, np.geomspace(1e-2, 5.0, 60))
    return max(_stable_rank(v) for v in path) - _stable_rank(targets)


@check(
    "rank-rebound", Reference.ODE, shared_solution, over=lambda rng: [rng.normal(size=(3, 4)), rng.normal(size=(2, 5))]
)
@rejects("time 1 % off", lambda t, mu: shared_solution(1.01 * t, mu))
def several_nodes(solution, targets):
    """V = M·diag(F⁻¹(t, ‖M_l‖)) for three and two nodes, its field and its stable rank."""
    t = np.array([0.1, 0.5, 2.0])
    path = _shared_path(targets, t)
    speed = (targets - path) * np.exp((path**2).sum(axis=1) / 2)[:, None, :]
    ranks = stable_rank(path) - [_stable_rank(v) for v in path]
    gaps = (solution(t, targets) - path, shared_field(path, targets) - speed, ranks)
    return max(np.abs(gap).max() for gap in gaps)


# Tolerance: the integrated flow is sampled 2,000 times
@check("rank-rebound", Reference.ODE, rank_rebound, 1e-3, unit="stable rank", over=dips)
@rejects("targets 1 % off", lambda flow: rank_rebound(type(flow)(**_targets_off(flow))))
def lowest_rank(dip, flow, _temperature, _t, v, _entropy):
    """Lowest and first stable rank with one node for each token, at figure 4's targets and off all defaults."""
    moving = v[1:] if not v[0].any() else v
    ranks = [_stable_rank(np.diag(row)) for row in moving]
    claimed = dip(flow)
    end = _stable_rank(np.diag(flow.critical_point()))
    return max(abs(claimed.lowest - min(ranks)), abs(claimed.end - end))


def _targets_off(flow: TiedFlow) -> dict[str, Any]:
    names = ("mu", "v0", "z0", "normalisation", "temperature", "rate_ratio")
    return {name: getattr(flow, name) for name in names} | {"mu": 1.01 * flow.mu}
