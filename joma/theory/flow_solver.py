"""Solve a joint flow from its start: integrated as it stands, or by its closed form where no integrator gets through.

Weights and logits are integrated together, without Theorem 1 and without any closed form, so that both can be measured
along the result. Beyond targets of about 9 under Eqn 6 a component jumps to its target within one rounding of t: no
integrator can follow, and the closed form is all there is.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from joma.theory.flows import PAST_BLOW_UP
from joma.theory.integrate import State, integrate
from joma.theory.joint_flow import LARGEST, JointFlow, RelaxingFlow
from joma.theory.rebound import Rebound, entropy, rebound
from joma.types import BlowUp, Trajectory

SETTLED = 1e-3
"""Part of the way to its limit that every component may have left at the default end of a flow."""
NUM_SCOUT_POINTS = 33
MAX_DOUBLINGS = 60
"""How often the end is doubled in search of that time."""
DOUBLINGS_OF_ANY_FLOAT = 1100
"""Doublings from the smallest float to beyond any time: a closed form is searched over all of them at once."""
LATEST = 1e100
"""Time beyond which no closed form is asked."""
NO_BOUND = float(np.finfo(np.float64).max)
"""Threshold of the integrator: a blow-up shows in steps that shrink to nothing, mere growth is none."""
RELAXING: dict[str, Any] = {"method": "LSODA", "rtol": 3e-14, "atol": 3e-15}
"""How flows with limits are integrated: stiff once salient components have settled, and implicit from then on."""
SCOUTING: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
"""Tolerances of the search for the time at which a flow has settled, which needs two digits."""
BEFORE_BLOW_UP = 0.999
"""Last reported time as a fraction of the blow-up: later, one rounding of t already moves v by more than 1e-11."""
AT_BLOW_UP = 1 - 1e-7
"""Fraction of the blow-up time at which the fastest component is named."""
MAX_EVALUATIONS = 200_000
"""Evaluations of the field after which a run gives up."""
MAX_BESIDE_CLOSED_FORM = 50_000
"""The same where a closed form can take over; targets of 8.5 under Eqn 6 need 7,000."""
NUM_DIP_POINTS = 401
"""Times between the two neighbours of the lowest reported entropy at which the dip is searched for."""


class IntegratorGivesUp(ArithmeticError):
    """The integrator did not get through: why, and what a user can do."""

    def __init__(self, reason: str, advice: str) -> None:
        """Keep the reason, which a run by the closed form reports."""
        super().__init__(f"{reason[0].upper()}{reason[1:]}. {advice}")
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Weights and logits over time."""

    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T M"]
    z: Float[np.ndarray, "T M"]
    blow_up: BlowUp | None
    """Where the flow diverged: as integrated, or by theory where it was not."""
    num_evaluations: int
    """How often the field was evaluated; zero where it was not integrated."""
    obstacle: str = ""
    """Why the flow was not integrated; empty where it was."""

    @property
    def integrated(self) -> bool:
        """Whether v and z come from the integrator, not from the closed form."""
        return not self.obstacle


def solve(flow: JointFlow, t1: float, num_points: int, first: float | None) -> Solution:
    """Solve to `t1` or to just before a blow-up; times are even, or from `first` on even in their logarithm.

    Where the integrator gives up and the flow has a closed form, that takes its place, with logits by Theorem 1.
    """
    try:
        return _by_integration(flow, t1, num_points, first)
    except IntegratorGivesUp as error:
        exact = _by_closed_form(flow, t1, num_points, first, error.reason)
        if exact is None:
            raise
        return exact


def natural_end(flow: JointFlow) -> float:
    """The flow's own span, or where it has limits the time at which all components have settled; infinite if never."""
    limits = flow.limits()
    if limits is None or not settles(flow):
        return flow.span()
    enough = SETTLED * np.maximum(np.abs(limits - flow.v0), SETTLED)
    if flow.solution(np.zeros(1)) is not None:
        return _settled_by_closed_form(flow, limits, enough)
    return _settled_by_integration(flow, limits, enough)


def settles(flow: JointFlow) -> bool:
    """Whether the flow ends at limits, and not in a blow-up."""
    return flow.limits() is not None and flow.predicted_blow_up() is None


def dip(flow: JointFlow, solution: Solution) -> Rebound:
    """Find the lowest entropy on the reported times, then once more with fine steps between its two neighbours."""
    values = np.asarray(entropy(flow.log_attention(solution.z)))
    coarse = rebound(solution.t, values)
    lowest = int(values.argmin())
    if lowest in (0, solution.t.size - 1):
        return coarse
    t = np.linspace(solution.t[lowest - 1], solution.t[lowest + 1], NUM_DIP_POINTS)
    if solution.integrated:
        z = _integrated(flow, t, start={"v": solution.v[lowest - 1], "z": solution.z[lowest - 1]})["z"]
    else:
        z = _exact_states(flow, t)["z"]
    within = rebound(t, np.asarray(entropy(flow.log_attention(z))))
    return replace(coarse, lowest=within.lowest, time=within.time)


def _by_integration(flow: JointFlow, t1: float, num_points: int, first: float | None) -> Solution:
    """Integrate to the end; or, where a blow-up comes before it, once more to just before, and name what diverges."""
    run = _integrated(flow, _grid(t1, num_points, first))
    blow_up = None
    if run.blow_up is not None:
        time = run.blow_up.time
        run = _integrated(flow, np.append(_grid(BEFORE_BLOW_UP * time, num_points, first), AT_BLOW_UP * time))
        with np.errstate(over="ignore", invalid="ignore"):
            speed = np.abs(flow.field(float(run.t[-1]), run.at_end())["v"])
        blow_up = BlowUp(time=time, state="v", component=(int(speed.argmax()),))
        run = replace(run, t=run.t[:-1], states={name: values[:-1] for name, values in run.states.items()})
    largest = max(np.abs(values).max() for values in run.states.values())
    if not largest < LARGEST:
        raise ArithmeticError(
            f"The flow grows beyond {LARGEST:.0e}, too far to be squared. Pass a smaller `t1`, the end."
        )
    return Solution(t=run.t, v=run["v"], z=run["z"], blow_up=blow_up, num_evaluations=run.num_evaluations)


def _by_closed_form(flow: JointFlow, t1: float, num_points: int, first: float | None, obstacle: str) -> Solution | None:
    """The closed form with the logits that Theorem 1 ties to it; None where there is none, or none that is finite."""
    predicted = flow.predicted_blow_up()
    met = predicted is not None and t1 >= predicted.time
    end = BEFORE_BLOW_UP * predicted.time if predicted is not None and met else t1
    t = _grid(end, num_points, first)
    states = _exact_states(flow, t)
    if not all(np.isfinite(values).all() for values in states.values()):
        return None
    return Solution(
        t=t,
        v=states["v"],
        z=states["z"],
        blow_up=predicted if met else None,
        num_evaluations=0,
        obstacle=obstacle,
    )


def _exact_states(flow: JointFlow, t: Float[np.ndarray, " T"]) -> State:
    """v and z by the closed form; NaN where there is none."""
    unknown = np.full((t.size, flow.v0.size), np.nan)
    v = flow.solution(t)
    with np.errstate(over="ignore"):  # weights too large to be squared
        z = None if v is None else flow.tied_logits(v)
    return {"v": unknown if v is None else v, "z": unknown if z is None else z}


def _integrated(
    flow: JointFlow, t: Float[np.ndarray, " T"], *, start: State | None = None, **options: Any
) -> Trajectory:
    """Integrate v and z from a state at `t[0]`, token by token side by side: a banded system where tokens decouple."""
    start = flow.start_state if start is None else start
    options = (RELAXING | flow.coupling if settles(flow) else {}) | options
    count = itertools.count()
    closed_form = flow.solution(np.zeros(1)) is not None
    most = MAX_BESIDE_CLOSED_FORM if closed_form else MAX_EVALUATIONS
    why = "it is too stiff" if closed_form else "the flow is long, too stiff, or slides along a kink of ReLU"

    def field(time: float, state: State) -> State:
        if next(count) >= most:
            raise IntegratorGivesUp(
                f"the integrator has got to t = {time:.6g} after {most} evaluations and no further: {why}",
                "Pass a smaller `t1` or targets, or use gelu.",
            )
        rates = flow.field(time, _apart(state))
        return {"v_z": np.column_stack((rates["v"], rates["z"]))}

    run = integrate(field, {"v_z": np.column_stack((start["v"], start["z"]))}, t, blow_up=NO_BOUND, **options)
    if run.blow_up is not None and isinstance(flow, RelaxingFlow):
        raise IntegratorGivesUp(
            f"the integrator stops at t = {run.blow_up.time:.6g}, though this flow does not diverge: it is too stiff",
            "Pass targets that are smaller, or nearer to each other.",
        )
    if _too_early(run.blow_up, flow.predicted_blow_up()) or not np.isfinite(run["v_z"]).all():
        raise IntegratorGivesUp(
            f"the integrator cannot follow the flow beyond t = {run.t[-1] if run.t.size else t[0]:.6g}: it is too fast",
            "Pass a start or targets nearer to zero.",
        )
    return replace(run, states=_apart(run.states))


def _too_early(found: BlowUp | None, predicted: BlowUp | None) -> bool:
    """Whether steps shrank to nothing long before the blow-up that the theory predicts."""
    return found is not None and predicted is not None and found.time < BEFORE_BLOW_UP * predicted.time


def _apart(state: State) -> State:
    return {"v": state["v_z"][..., 0], "z": state["v_z"][..., 1]}


def _grid(t1: float, num_points: int, first: float | None) -> Float[np.ndarray, " T"]:
    """Times from zero to t1, evenly spaced, or from `first` on evenly spaced in their logarithm."""
    if first is None:
        return np.linspace(0.0, t1, num_points)
    return np.append(0.0, np.geomspace(first, t1, num_points - 1))


def _settled_by_closed_form(flow: JointFlow, limits: Float[np.ndarray, " M"], enough: Float[np.ndarray, " M"]) -> float:
    """Double the flow's span until all components have settled, then look closer between the last two times."""

    def first_settled(t: Float[np.ndarray, " T"]) -> int | None:
        v = flow.solution(t)
        settled = np.zeros(t.size, dtype=bool) if v is None else (np.abs(v - limits) <= enough).all(axis=1)
        return int(settled.argmax()) if settled.any() else None

    span = max(flow.span(), float(np.finfo(np.float64).tiny))
    with np.errstate(over="ignore"):
        ends = np.ldexp(span, np.arange(DOUBLINGS_OF_ANY_FLOAT))
    ends = ends[ends < max(LATEST, 2 * span)]
    doublings = first_settled(ends)
    if doublings is None:
        return np.inf
    closer = np.linspace(ends[doublings - 1] if doublings else 0.0, ends[doublings], NUM_SCOUT_POINTS)
    return float(closer[max(1, first_settled(closer) or 0)])


def _settled_by_integration(flow: JointFlow, limits: Float[np.ndarray, " M"], enough: Float[np.ndarray, " M"]) -> float:
    state, passed, span = flow.start_state, 0.0, flow.span()
    for _ in range(MAX_DOUBLINGS):
        run = _integrated(flow, np.linspace(0.0, span, NUM_SCOUT_POINTS), start=state, **SCOUTING)
        if run.blow_up is not None:
            return passed + PAST_BLOW_UP * run.blow_up.time
        settled = (np.abs(run["v"] - limits) <= enough).all(axis=1)
        if settled.any():
            return passed + float(run.t[max(1, int(settled.argmax()))])
        state, passed = run.at_end(), passed + span
        span = passed
    return np.inf
