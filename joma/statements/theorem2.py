"""Section 3.1: linear activation, exp attention, winner take all."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from scipy import special

from joma.statements.registry import Check, Mutation, Reference, Statement
from joma.theory.integrate import integrate
from joma.theory.winner_take_all import LinearFlow
from joma.verdicts import Outcome

Invariant = Callable[[LinearFlow, np.ndarray], np.ndarray]

FLOW = LinearFlow(delta=np.array([[1.0, -0.8, 0.5, 0.1]]), normalisation=2.0)
SEVERAL_NODES = LinearFlow(delta=np.array([[1.0, -0.8, 0.5], [0.2, 0.9, -0.4], [-0.3, 0.1, 0.6]]))
MOVED_START = replace(FLOW, v0=np.array([[0.3, -0.4, 0.2, 0.1]]), z0=np.array([0.2, -0.1, 0.3, 0.0]))
ALMOST = 1e-11
"""Fraction of the blow-up time that is left when losers are compared with their limits."""
LATE = 0.99
"""Fraction of the blow-up time at which solutions are compared."""

# DOP853 at rtol 1e-12 with a field that grows a hundredfold before the last time: errors stay below 1e-10.
ODE_TOLERANCE = 1e-9


@cache
def _integrated(flow_id: int) -> np.ndarray:
    """v at the late time, by the ODE of the weights and the logits together (neither Theorem 1 nor 2 is used)."""
    flow = (FLOW, SEVERAL_NODES, MOVED_START)[flow_id]

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        attention = np.exp(state["z"]) / flow.normalisation
        return {"v": flow.delta * attention, "z": (flow.delta * state["v"]).sum(axis=0) * attention}

    end = np.array([0.0, LATE * flow.blow_up_time()])
    return integrate(field, {"v": flow.start, "z": flow.start_logits}, end)["v"][-1]


def _spread_of_invariant(invariant: Invariant) -> float:
    values = invariant(FLOW, _integrated(0))
    return float(np.ptp(values) / np.abs(values).mean())


def _distance_from_ode(solution: Callable[[LinearFlow, np.ndarray], np.ndarray]) -> float:
    def error(flow_id: int, flow: LinearFlow) -> float:
        exact = _integrated(flow_id)
        return float(np.abs(solution(flow, np.array([LATE * flow.blow_up_time()]))[0] - exact).max())

    return max(error(0, FLOW), error(1, SEVERAL_NODES), error(2, MOVED_START))


def _printed_invariant(flow: LinearFlow, v: np.ndarray) -> np.ndarray:
    return special.erf(v[0] / 2) / flow.delta[0]


def _blow_up_gap(blow_up_time: Callable[[LinearFlow], float]) -> float:
    """Distance to the time at which the integrated flow passes |v| = 7, where what remains is below 1e-11."""
    end = np.array([0.0, 2 * FLOW.blow_up_time()])
    run = integrate(lambda _, s: {"v": FLOW.field(s["v"])}, {"v": FLOW.start}, end, blow_up=7.0)
    assert run.blow_up is not None
    return abs(run.blow_up.time - blow_up_time(FLOW))


def _distance_of_losers(limits: Callable[[LinearFlow], np.ndarray]) -> float:
    """Largest distance of a loser, integrated until the winner is about to diverge, from its claimed limit."""
    near = np.array([0.0, (1 - ALMOST) * FLOW.blow_up_time()])
    losers = np.arange(FLOW.delta.shape[1]) != FLOW.winner()
    return float(np.abs(_path(FLOW, near)[-1, 0] - limits(FLOW)[0])[losers].max())


def _printed_limits(flow: LinearFlow) -> np.ndarray:
    """What Eqn 4 as printed leaves to the losers when the winner's erf reaches one."""
    return 2 * special.erfinv(flow.delta / np.abs(flow.delta).max())


def _entropy(logits: np.ndarray) -> np.ndarray:
    return special.entr(special.softmax(logits, axis=-1)).sum(axis=-1)


def _path(flow: LinearFlow, t: np.ndarray) -> np.ndarray:
    return integrate(lambda _, s: {"v": flow.field(s["v"])}, {"v": flow.start}, t)["v"]


def _largest_rise_of_entropy(logits_of: Callable[[LinearFlow, np.ndarray], np.ndarray]) -> float:
    """Largest increase of attention entropy between consecutive times, along integrated flows from zero."""
    rng = np.random.default_rng(0)
    worst = -np.inf
    for _ in range(20):
        flow = LinearFlow(delta=rng.normal(size=(1, 8)))
        t = np.linspace(0, 0.999 * flow.blow_up_time(), 200)
        worst = max(worst, float(np.diff(_entropy(logits_of(flow, _path(flow, t)))).max()))
    return worst


def _spread_under_common_factor(invariant: Invariant) -> float:
    """Spread under attention exp(v²/2 − ‖v‖²/2M): softmax with uniform b̄ and one A for all samples."""

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        v = state["v"]
        return {"v": FLOW.delta * np.exp(v**2 / 2 - (v**2).mean() / 2) / FLOW.normalisation}

    v = integrate(field, {"v": FLOW.start}, np.array([0.0, 2.0]))["v"][-1]
    values = invariant(FLOW, v)
    return float(np.ptp(values) / np.abs(values).mean())


def _growth_under_softmax(rate: Callable[[np.ndarray], float]) -> float:
    """How far the speed of any component under real softmax attention ever exceeds the claimed bound."""
    rng = np.random.default_rng(1)
    x = rng.dirichlet(np.ones(6), size=40)
    g = rng.choice([-1.0, 1.0], size=40)

    def field(_: float, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        weighted = x * np.exp(state["z"] - state["z"].max())
        b = weighted / weighted.sum(axis=1, keepdims=True)
        v_dot = (g[:, None] * b).mean(axis=0)
        z_dot = v_dot * state["v"] - (g[:, None] * b * (b @ state["v"])[:, None]).mean(axis=0)
        return {"v": v_dot, "z": z_dot}

    t = np.linspace(0, 50, 101)
    run = integrate(field, {"v": np.zeros(6), "z": np.zeros(6)}, t, rtol=1e-9, atol=1e-9)
    speed = np.abs(np.diff(run["v"], axis=0) / np.diff(t)[:, None]).max()
    return max(0.0, float(speed) - rate(g))


ERF_OFF = Mutation(
    description="argument of erf 1 % off",
    formula=lambda flow, v: special.erf(1.01 * v[0] / np.sqrt(2)) / flow.delta[0],
)

STATEMENTS = (
    Statement(
        id="thm2",
        title="Linear dynamics with self-attention",
        place="Section 3.1, Theorem 2, Eqns 4 and 22",
        printed="erf(v_l/2)/Δ_l is the same for all tokens l",
        corrected="erf(v_l/√2)/Δ_l is the same for all tokens l, and equals √(2/π)·t/A",
        outcome=Outcome.REFUTED,
        explanation=(
            "dv/dt = Δ exp(v²/2)/A separates as exp(−v²/2) dv = Δ dt/A, whose primitive is √(π/2)·erf(v/√2). "
            "erf(v/2) would need exp(v²/4). The exact solution is v = √2·erfinv(√(2/π) Δt/A); with several hidden "
            "nodes v_l moves along Δ_l, and the winner is the token with the largest ‖Δ_l‖₂ over the nodes. A start "
            "other than zero brings in the factor exp(c_l)."
        ),
        checks=(
            Check(
                name="relative spread of the invariant over tokens at 0.99 of the blow-up time",
                against=Reference.ODE,
                measure=_spread_of_invariant,
                formula=LinearFlow.invariant,
                printed=_printed_invariant,
                tolerance=ODE_TOLERANCE,
                unit="relative spread",
                mutation=ERF_OFF,
            ),
            Check(
                name="exact solution: one node, three nodes, and a start other than zero",
                against=Reference.ODE,
                measure=_distance_from_ode,
                formula=LinearFlow.solution,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(
                    description="time 0.1 % off", formula=lambda flow, t: LinearFlow.solution(flow, 0.999 * t)
                ),
            ),
        ),
    ),
    Statement(
        id="thm2-limit",
        title="One token diverges, the others stay finite",
        place="Section 3.1, remarks to Theorem 2",
        printed="v_l* → ±∞ for the most salient token over training, the other components converge",
        corrected="the divergence comes at the finite time t* = A√(π/2)/max|Δ|; losers end at √2·erfinv(Δ_l/|Δ|max)",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "The winner does diverge and the losers do stay finite, but in finite time: gradient flow under exp "
            "attention does not exist beyond t*, so 'over training' has to be read as 'as t → t*'."
        ),
        checks=(
            Check(
                name="blow-up time against the time at which the integrated flow passes |v| = 7",
                against=Reference.ODE,
                measure=_blow_up_gap,
                formula=LinearFlow.blow_up_time,
                tolerance=ODE_TOLERANCE,
                unit="time",
                mutation=Mutation(
                    description="blow-up time 1 % off", formula=lambda flow: 1.01 * LinearFlow.blow_up_time(flow)
                ),
            ),
            Check(
                name="where the losers end, beside what Eqn 4 as printed would leave them",
                against=Reference.ODE,
                measure=_distance_of_losers,
                formula=LinearFlow.limits,
                printed=_printed_limits,
                tolerance=ODE_TOLERANCE,
                mutation=Mutation(description="limits 1 % off", formula=lambda flow: 1.01 * flow.limits()),
            ),
        ),
    ),
    Statement(
        id="thm2-scan-snap",
        title="With a linear activation attention only grows sparser",
        place="Sections 1 and 3.1 (agreement with Scan&Snap)",
        printed="for linear activation JoMA coincides with Scan&Snap: the attention becomes sparse during training",
        outcome=Outcome.HOLDS,
        explanation=(
            "From a uniform start dH/dt = −Cov_p(ln p, ds/dt) with s = v²/2. Both ln p and ds/dt = |v Δ| exp(v²/2)/A "
            "grow with |Δ|, so the covariance is not negative and the entropy never rises."
        ),
        checks=(
            Check(
                name="largest rise of attention entropy along 20 random flows",
                against=Reference.ODE,
                measure=_largest_rise_of_entropy,
                formula=LinearFlow.logits,
                tolerance=1e-12,  # rounding of an entropy of order one
                unit="nats",
                mutation=Mutation(
                    description="logits that saturate, as with a nonlinear activation",
                    formula=lambda flow, v: -np.square(np.abs(v[:, 0]) - 1),
                ),
            ),
        ),
    ),
    Statement(
        id="thm2-softmax",
        title="Theorem 2 under softmax attention",
        place="Section 3.1, remarks to Theorem 2",
        printed="for softmax attention Theorem 2 also applies if A[i] is constant across samples and b̄ is uniform",
        corrected="the erf ratio survives as a change of clock, the blow-up does not: |dv/dt| ≤ E|g|, v grows at most "
        "linearly",
        outcome=Outcome.CONDITIONAL,
        explanation=(
            "A common factor exp(−‖v‖²/2M) only changes the clock, so the invariant survives under those conditions. "
            "But real softmax weights are at most one, hence |dv_l/dt| ≤ E|g| and nothing diverges in finite time."
        ),
        checks=(
            Check(
                name="relative spread of the invariant when softmax only adds a common factor",
                against=Reference.ODE,
                measure=_spread_under_common_factor,
                formula=LinearFlow.invariant,
                printed=_printed_invariant,
                tolerance=ODE_TOLERANCE,
                unit="relative spread",
                mutation=ERF_OFF,
            ),
            Check(
                name="speed of the fastest component beyond E|g|, under real softmax attention",
                against=Reference.ODE,
                measure=_growth_under_softmax,
                formula=lambda g: float(np.abs(g).mean()),
                tolerance=1e-9,  # the bound is exact; the differences of a solution at rtol 1e-9 are not
                unit="excess speed",
                mutation=Mutation(description="bound a tenth of E|g|", formula=lambda g: 0.1 * float(np.abs(g).mean())),
            ),
        ),
    ),
)
