"""Section 3.1: linear activation, exp attention, winner take all."""

from typing import Any

import numpy as np
from scipy import special

from joma.checks.check import as_printed, check, over, rejects
from joma.checks.quadrature import solved
from joma.checks.reference import ODE
from joma.theory import LinearFlow, integrate

ALMOST = 1e-11  # fraction of the blow-up time that is left when losers are compared with their limits
FAR = 20.0  # size of a weight or a logit from which on less than 1e-10 of the time to the blow-up remains
LATE = 0.99  # fraction of the blow-up time at which solutions are compared


def _flows(rng: np.random.Generator, *, num_nodes: tuple[int, ...] = (1, 3, 1), moved: bool = True) -> Any:
    """Draw flows with A, T and rates other than 1; the last has weights and logits that do not start at zero."""
    for index, num in enumerate(num_nodes):
        delta = rng.uniform(0.2, 1.0, size=(num, 4)) * rng.choice([-1.0, 1.0], size=(num, 4))
        start: dict[str, Any] = {"v0": rng.normal(0, 0.3, size=(num, 4)), "z0": rng.normal(0, 0.3, size=4)}
        is_moved = moved and index == len(num_nodes) - 1
        A, T, ratio = rng.uniform([1.4, 0.7, 1.2], [2.4, 0.9, 1.6])
        scales = {"normalisation": A, "temperature": T, "rate_ratio": ratio}
        yield LinearFlow(delta=delta, **scales, **(start if is_moved else {}))


def _one_node_from_zero(rng):
    return _flows(rng, num_nodes=(1, 1), moved=False)


def _field(flow: LinearFlow, v: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rates of weights and logits: neither Theorem 1 nor 2 is used."""
    attention = np.exp(z / flow.temperature) / flow.normalisation
    return flow.delta * attention, flow.rate_ratio / flow.temperature * (flow.delta * v).sum(axis=0) * attention


def _run(flow: LinearFlow, t: Any) -> tuple[np.ndarray, ...]:
    """v and z, integrated together up to shares of the blow-up time."""
    times = np.multiply(t, flow.blow_up_time())
    return solved(lambda v, z: _field(flow, v, z), (flow.v0, flow.z0), times)


def _ends_under_softmax(rng):
    """Flows and v at t = 2 when softmax only adds the common factor exp(−κ‖v‖²/2M)."""

    def end(flow):
        scale = flow.delta / flow.normalisation
        return solved(lambda v: (scale * np.exp(flow.gain * (v**2 - (v**2).mean()) / 2),), (flow.v0,), [0, 2])[0][-1]

    return [(flow, end(flow)) for flow in _one_node_from_zero(rng)]


COMMON_FACTOR = "Relative spread of the invariant when softmax only adds the common factor exp(−κ‖v‖²/2M)"


@check("thm2-softmax", ODE, LinearFlow.invariant, unit="relative spread", over=_ends_under_softmax, name=COMMON_FACTOR)
@check("thm2", ODE, LinearFlow.invariant, unit="relative spread")
@over(lambda rng: [(flow, _run(flow, [0.0, LATE])[0][-1]) for flow in _one_node_from_zero(rng)])
@as_printed(lambda flow, v: special.erf(v[0] / 2) / flow.delta[0])
@rejects("argument of erf 1 % off", lambda flow, v: special.erf(1.01 * v[0] * np.sqrt(flow.gain / 2)) / flow.delta[0])
def spread_of_invariant(invariant, flow, v):
    """Relative spread of the invariant over tokens at 0.99 of the blow-up time."""
    values = invariant(flow, v)
    return np.ptp(values) / np.abs(values).mean()


@check("thm2", ODE, LinearFlow.solution, over=_flows)
@rejects("time 0.1 % off", lambda flow, t: LinearFlow.solution(flow, 0.999 * t))
def exact_solution(solution, flow):
    """Exact solution, logits and field: one node, three nodes, and a start other than zero, with A, T and rates."""
    (v, z), found = _run(flow, [0.0, LATE]), solution(flow, np.array([0.0, LATE * flow.blow_up_time()]))
    speed = np.stack([_field(flow, *state)[0] for state in zip(v, z, strict=True)])
    return found - v, flow.logits(found) - z, flow.field(v) / speed - 1


@check("thm2-limit", ODE, LinearFlow.blow_up_time, unit="time", over=_flows)
def blow_up(blow_up_time, flow):
    """Blow-up time against the time at which the integrated flow is so far out that less than 1e-10 remains."""
    start, end = {"v": flow.v0, "z": flow.z0}, np.array([0.0, 2 * flow.blow_up_time()])
    run = integrate(lambda _, s: dict(zip("vz", _field(flow, s["v"], s["z"]), strict=True)), start, end, blow_up=FAR)
    assert run.blow_up is not None
    return abs(run.blow_up.time - float(blow_up_time(flow)))


# Tolerance: weights and logits are integrated together up to the edge of the blow-up
@check("thm2-limit", ODE, LinearFlow.limits, 1e-7, over=_one_node_from_zero)
@as_printed(lambda flow: 2 * special.erfinv(flow.delta / np.abs(flow.delta).max()))
def limits_of_losers(limits, flow):
    """Where the losers end, integrated until the winner is about to diverge."""
    losers = np.arange(flow.delta.shape[1]) != flow.winner()
    return (_run(flow, [0.0, 1 - ALMOST])[0][-1, 0] - np.asarray(limits(flow))[0])[losers]


# Tolerance: a count
@check("thm2-limit", ODE, LinearFlow.winner, 0.0, unit="wrong winners")
@over(lambda rng: _flows(rng, num_nodes=(3,) * 12, moved=False))
@rejects("the largest |Δ_l| of one node", lambda flow: int(np.abs(flow.delta).max(axis=0).argmax()))
def winner_of_several_nodes(winner, flow):
    """Winner among tokens of three nodes against the token that grows fastest when the flow is about to diverge."""
    return winner(flow) != np.linalg.norm(_run(flow, [0.0, LATE])[0][-1], axis=0).argmax()


# Tolerance: rounding of an entropy of order one
@check("thm2-scan-snap", ODE, LinearFlow.logits, 1e-12, unit="nats")
@over(lambda rng: _flows(rng, num_nodes=(1,) * 10, moved=False))
@rejects("logits that saturate, as with a nonlinear activation", lambda flow, v: -np.square(np.abs(v[:, 0]) - 1))
def largest_rise_of_entropy(logits_of, flow):
    """Largest rise of attention entropy between consecutive times along random flows from zero."""
    path = _run(flow, np.linspace(0, 0.999, 200))[0]
    p = special.softmax(logits_of(flow, path) / flow.temperature, axis=-1)
    return np.diff(special.entr(p).sum(axis=-1)).max()


# Tolerance: the bound is reached as the softmax concentrates on one token
@check("thm2-softmax", ODE, 1.0, 0.02, unit="distance from the bound, as a share")
@rejects("1.05 times the bound", 1.05)
def speed_under_softmax(share):
    """Speed of the fastest component over the bound E|g|: below it along the way, and near it at the end."""
    rng = np.random.default_rng(1)
    x = rng.dirichlet(np.ones(6), size=40)
    g = np.abs(rng.normal(size=40)) + 0.1

    def field(v, z):
        weighted = x * np.exp(z - z.max())
        b = weighted / weighted.sum(axis=1, keepdims=True)
        v_dot = (g[:, None] * b).mean(axis=0)
        return v_dot, v_dot * v - (g[:, None] * b * (b @ v)[:, None]).mean(axis=0)

    t = np.linspace(0, 50, 101)
    v, _ = solved(field, (np.zeros(6), np.zeros(6)), t, rtol=1e-9, atol=1e-9)
    speed = np.abs(np.diff(v, axis=0) / np.diff(t)[:, None]).max() / np.abs(g).mean()
    return abs(speed - share) if speed <= 1 + 1e-9 else np.inf
