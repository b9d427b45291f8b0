"""Section 3.1: linear activation, exp attention, winner take all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from joma.checks.check import Mutation, Reference, as_printed, check, over, rejects
from joma.theory.integrate import integrate
from joma.theory.winner_take_all import LinearFlow
from joma.types import Trajectory

ALMOST = 1e-11
"""Fraction of the blow-up time that is left when losers are compared with their limits."""
FAR = 20.0
"""Size of a weight or a logit from which on less than 1e-10 of the time to the blow-up remains."""
LATE = 0.99
"""Fraction of the blow-up time at which solutions are compared."""


def _flows(rng: np.random.Generator, *, num_nodes: Sequence[int] = (1, 3, 1), moved: bool = True) -> list[LinearFlow]:
    """Draw flows with A, T and rates other than 1; the last has weights and logits that do not start at zero."""
    flows = []
    for index, num in enumerate(num_nodes):
        delta = rng.uniform(0.2, 1.0, size=(num, 4)) * rng.choice([-1.0, 1.0], size=(num, 4))
        start: dict[str, Any] = {"v0": rng.normal(0, 0.3, size=(num, 4)), "z0": rng.normal(0, 0.3, size=4)}
        is_moved = moved and index == len(num_nodes) - 1
        A, T, ratio = rng.uniform([1.4, 0.7, 1.2], [2.4, 0.9, 1.6])
        scales = {"normalisation": A, "temperature": T, "rate_ratio": ratio}
        flows.append(LinearFlow(delta=delta, **scales, **(start if is_moved else {})))
    return flows


def _one_node_from_zero(rng: np.random.Generator) -> list[LinearFlow]:
    return _flows(rng, num_nodes=(1, 1), moved=False)


def _run(flow: LinearFlow, t: np.ndarray, **options: Any) -> Trajectory:
    """Integrate the weights and the logits together: neither Theorem 1 nor 2 is used."""

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        attention = np.exp(state["z"] / flow.temperature) / flow.normalisation
        z_dot = flow.rate_ratio / flow.temperature * (flow.delta * state["v"]).sum(axis=0) * attention
        return {"v": flow.delta * attention, "z": z_dot}

    return integrate(field, {"v": flow.start, "z": flow.start_logits}, t, **options)


def _integrated(flow: LinearFlow) -> np.ndarray:
    """v at the late time."""
    return _run(flow, np.array([0.0, LATE * flow.blow_up_time()]))["v"][-1]


def _spread(values: np.ndarray) -> float:
    return float(np.ptp(values) / np.abs(values).mean())


def _printed_invariant(flow: LinearFlow, v: np.ndarray) -> np.ndarray:
    return special.erf(v[0] / 2) / flow.delta[0]


ERF_OFF = Mutation(
    "argument of erf 1 % off", lambda flow, v: special.erf(1.01 * v[0] * np.sqrt(flow.gain / 2)) / flow.delta[0]
)


@check("thm2", Reference.ODE, LinearFlow.invariant, unit="relative spread", over=_one_node_from_zero)
@as_printed(_printed_invariant)
@rejects(*ERF_OFF)
def spread_of_invariant(invariant, flow):
    """Relative spread of the invariant over tokens at 0.99 of the blow-up time."""
    return _spread(invariant(flow, _integrated(flow)))


@check("thm2", Reference.ODE, LinearFlow.solution, over=_flows)
@rejects("time 0.1 % off", lambda flow, t: LinearFlow.solution(flow, 0.999 * t))
def exact_solution(solution, flow):
    """Exact solution, logits and field: one node, three nodes, and a start other than zero, with A, T and rates."""
    t = np.array([0.0, LATE * flow.blow_up_time()])
    run, v = _run(flow, t), solution(flow, t)
    speed = flow.delta * np.exp(run["z"] / flow.temperature)[:, None] / flow.normalisation
    gaps = (v - run["v"], flow.logits(v) - run["z"], flow.field(run["v"]) / speed - 1)
    return max(np.abs(gap).max() for gap in gaps)


@check("thm2-limit", Reference.ODE, LinearFlow.blow_up_time, unit="time", over=_flows)
def blow_up(blow_up_time, flow):
    """Blow-up time against the time at which the integrated flow is so far out that less than 1e-10 remains."""
    end = np.array([0.0, 2 * flow.blow_up_time()])
    run = _run(flow, end, blow_up=FAR)
    assert run.blow_up is not None
    return abs(run.blow_up.time - float(blow_up_time(flow)))


# Tolerance: weights and logits are integrated together up to the edge of the blow-up
@check("thm2-limit", Reference.ODE, LinearFlow.limits, 1e-7, over=_one_node_from_zero)
@as_printed(lambda flow: 2 * special.erfinv(flow.delta / np.abs(flow.delta).max()))
def limits_of_losers(limits, flow):
    """Where the losers end, integrated until the winner is about to diverge."""
    near = np.array([0.0, (1 - ALMOST) * flow.blow_up_time()])
    losers = np.arange(flow.delta.shape[1]) != flow.winner()
    return np.abs(_run(flow, near)["v"][-1, 0] - np.asarray(limits(flow))[0])[losers].max()


# Tolerance: a count
@check("thm2-limit", Reference.ODE, LinearFlow.winner, 0.0, unit="wrong winners")
@over(lambda rng: _flows(rng, num_nodes=(3,) * 12, moved=False))
@rejects("the largest |Δ_l| of one node", lambda flow: int(np.abs(flow.delta).max(axis=0).argmax()))
def winner_of_several_nodes(winner, flow):
    """Winner among tokens of three nodes against the token that grows fastest when the flow is about to diverge."""
    v = _integrated(flow)
    return winner(flow) != np.linalg.norm(v, axis=0).argmax()


# Tolerance: rounding of an entropy of order one
@check("thm2-scan-snap", Reference.ODE, LinearFlow.logits, 1e-12, unit="nats")
@over(lambda rng: _flows(rng, num_nodes=(1,) * 10, moved=False))
@rejects("logits that saturate, as with a nonlinear activation", lambda flow, v: -np.square(np.abs(v[:, 0]) - 1))
def largest_rise_of_entropy(logits_of, flow):
    """Largest rise of attention entropy between consecutive times along random flows from zero."""
    path = _run(flow, np.linspace(0, 0.999 * flow.blow_up_time(), 200))["v"]
    p = special.softmax(logits_of(flow, path) / flow.temperature, axis=-1)
    return np.diff(special.entr(p).sum(axis=-1)).max()


@check("thm2-softmax", Reference.ODE, LinearFlow.invariant, unit="relative spread", over=_one_node_from_zero)
@as_printed(_printed_invariant)
@rejects(*ERF_OFF)
def spread_under_common_factor(invariant, flow):
    """Relative spread of the invariant when softmax only adds the common factor exp(−κ‖v‖²/2M)."""

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        v = state["v"]
        return {"v": flow.delta * np.exp(flow.gain * (v**2 - (v**2).mean()) / 2) / flow.normalisation}

    return _spread(invariant(flow, integrate(field, {"v": flow.start}, np.array([0.0, 2.0]))["v"][-1]))


# Tolerance: the bound is reached as the softmax concentrates on one token
@check("thm2-softmax", Reference.ODE, 1.0, 0.02, unit="distance from the bound, as a share")
@rejects("1.05 times the bound", 1.05)
def speed_under_softmax(share):
    """Speed of the fastest component over the bound E|g|: below it along the way, and near it at the end."""
    rng = np.random.default_rng(1)
    x = rng.dirichlet(np.ones(6), size=40)
    g = np.abs(rng.normal(size=40)) + 0.1

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        weighted = x * np.exp(state["z"] - state["z"].max())
        b = weighted / weighted.sum(axis=1, keepdims=True)
        v_dot = (g[:, None] * b).mean(axis=0)
        z_dot = v_dot * state["v"] - (g[:, None] * b * (b @ state["v"])[:, None]).mean(axis=0)
        return {"v": v_dot, "z": z_dot}

    t = np.linspace(0, 50, 101)
    run = integrate(field, {"v": np.zeros(6), "z": np.zeros(6)}, t, rtol=1e-9, atol=1e-9)
    speed = np.abs(np.diff(run["v"], axis=0) / np.diff(t)[:, None]).max() / np.abs(g).mean()
    return abs(speed - share) if speed <= 1 + 1e-9 else np.inf
