"""`simulate`: solve one of the paper's flows, exactly where that is possible, and measure what it conserves.

Weights and attention logits are always integrated together, without Theorem 1 and without any closed form. The
invariant is then measured along the result, and the closed form, where there is one, is compared with it.
"""

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError
from joma.theory.flows import PAST_BLOW_UP, TITLES
from joma.theory.integrate import State, integrate
from joma.theory.invariant_drift import invariant_drift
from joma.theory.joint_flow import JointFlow, RelaxingFlow
from joma.theory.rebound import Rebound, entropy, rebound
from joma.theory.simulation_config import SimulationConfig, figure4, preset_config
from joma.types import BlowUp, Trajectory

__all__ = ["Simulation", "SimulationConfig", "figure4", "preset_config", "simulate"]

SETTLED = 1e-3
"""Part of the way to its limit that every component may have left at the default end of a flow."""
NUM_SCOUT_POINTS = 33
MAX_DOUBLINGS = 60
"""How often the end is doubled in search of that time."""
NO_BOUND = float(np.finfo(np.float64).max)
"""Threshold of the integrator: a blow-up shows in steps that shrink to nothing, mere growth is none."""
RELAXING: dict[str, Any] = {"method": "LSODA", "rtol": 3e-14, "atol": 3e-15}
"""How flows with limits are integrated: stiff once salient components have settled, and implicit from then on."""
SCOUTING: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
"""Tolerances of the search for the time at which a flow has settled, which needs two digits."""
FIRST_TIME = 1e-3
"""First time after zero on a logarithmic grid, as a fraction of the time to settle, or of an earlier end."""
LARGEST = 1e150
"""Size beyond which a state cannot be squared; exponential growth gets there, a blow-up does not."""
BEFORE_BLOW_UP = 0.999
"""Last reported time as a fraction of the blow-up: later, one rounding of t already moves v by more than 1e-11."""
AT_BLOW_UP = 1 - 1e-7
"""Fraction of the blow-up time at which the fastest component is named."""
MAX_EVALUATIONS = 200_000
"""Evaluations of the field after which a run gives up; stiff flows with targets of 8 need 40,000."""
NUM_DIP_POINTS = 401
"""Times between the two neighbours of the lowest reported entropy at which the dip is searched for."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A flow from its start to its end or blow-up, with what it conserves and how far the closed form is from it."""

    config: SimulationConfig
    flow: JointFlow
    """The flow, with laws drawn and defaults filled in."""
    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T M"]
    """Weights: the closed form where there is one, else integrated."""
    v_integrated: Float[np.ndarray, "T M"]
    """Weights integrated together with the logits."""
    z: Float[np.ndarray, "T M"]
    """Attention logits, integrated together with the weights."""
    drift: Float[np.ndarray, " T"]
    """Largest distance of the conserved quantity from its start, over the components of the integrated flow."""
    rebound: Rebound
    """Dip of the attention entropy, found between the reported times: when, how deep, and how far it came back."""
    closed_form_distance: float | None
    """Largest |closed form − integrated| / max(1, |v|) over times and components; None without a closed form."""
    blow_up: BlowUp | None
    """When and where the integrated flow diverged; None if it did not by the end."""
    num_evaluations: int
    """How often the field was evaluated."""

    @property
    def attention(self) -> Float[np.ndarray, "T M"]:
        """Attention over tokens, normalised to sum to one."""
        return special.softmax(self.flow.log_attention(self.z), axis=-1)

    @property
    def entropy(self) -> Float[np.ndarray, " T"]:
        """Entropy of the attention over tokens, in nats."""
        return np.asarray(entropy(self.flow.log_attention(self.z)))

    @property
    def predicted_blow_up(self) -> BlowUp | None:
        """The blow-up that the theory predicts, met or not."""
        return self.flow.predicted_blow_up()

    @property
    def title(self) -> str:
        """The flow in words, with its attention and activation."""
        activation = getattr(self.flow, "activation", None)
        beside = f", {activation.name} activation" if activation else ""
        return f"{TITLES[self.config.flow]}: {self.flow.attention.kind} attention{beside}"

    @property
    def log_time(self) -> bool:
        """Whether the reported times are evenly spaced in their logarithm."""
        return (self.config.spacing or _spacing(self.flow)) == "log"

    def columns(self) -> dict[str, np.ndarray]:
        """Every reported quantity over time by name, in the order of the CSV file."""
        columns = {"t": self.t, "entropy": self.entropy, "drift": self.drift}
        tables = {"v": self.v, "z": self.z, "attention": self.attention}
        if self.closed_form_distance is not None:
            tables["v_integrated"] = self.v_integrated
        for name, table in tables.items():
            columns |= {f"{name}_{component}": table[:, component] for component in range(table.shape[1])}
        return columns

    def summary_rows(self) -> list[dict[str, int | float]]:
        """One row for each component: target, start, end, limit (NaN where unknown) and final share of attention."""
        limits = self.flow.limits()
        table = {
            "target": self.flow.targets,
            "start": self.v[0],
            "end": self.v[-1],
            "limit": np.full_like(self.v[0], np.nan) if limits is None else limits,
            "attention": self.attention[-1],
        }
        return [
            {"component": component} | {name: float(column[component]) for name, column in table.items()}
            for component in range(self.v.shape[1])
        ]

    def remarks(self) -> list[str]:
        """Say in one line each how the flow ended, and what the measurements are."""
        dip = self.rebound
        lines = [self._ending()]
        if self.closed_form_distance is not None:
            lines.append(f"closed form within {self.closed_form_distance:.1e} of the ODE")
        lines.append(f"invariant {self.flow.conserved} drifts by {self.drift.max():.1e} at most")
        lines.append(
            f"attention entropy {dip.start:.4g} → {dip.lowest:.4g} (t = {dip.time:.4g}) → {dip.end:.4g} nats"
            + (f": rebounds by {dip.rise:.4g}" if dip.occurs else ": no rebound")
        )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON: what was asked, what came out; infinity and NaN as null."""
        blow_ups = {"blow_up": self.blow_up, "predicted_blow_up": self.predicted_blow_up}
        return {
            "config": asdict(self.config),
            "t1": float(self.t[-1]),
            "num_points": self.t.size,
            "attention": str(self.flow.attention.kind),
            "temperature": float(self.flow.attention.temperature),
            "closed_form_distance": self.closed_form_distance,
            "conserved": self.flow.conserved,
            "largest_drift": float(self.drift.max()),
            "entropy": asdict(self.rebound),
            **{name: None if value is None else asdict(value) for name, value in blow_ups.items()},
            "num_evaluations": self.num_evaluations,
            "remarks": self.remarks(),
            "components": [
                {name: value if np.isfinite(value) else None for name, value in row.items()}
                for row in self.summary_rows()
            ],
        }

    def _ending(self) -> str:
        predicted = self.predicted_blow_up
        theory = (
            "" if predicted is None else f"Theorem 2: t = {predicted.time:.10g}, component {predicted.component[0]}"
        )
        if self.blow_up is not None:
            beside = f" ({theory})" if theory else ""
            return f"blow-up at t = {self.blow_up.time:.10g}, component {self.blow_up.component[0]}{beside}"
        ahead = f", before the blow-up ({theory})" if theory else ""
        return f"ends at t = {self.t[-1]:.6g}{ahead}"


def simulate(config: SimulationConfig | None = None, /, **options: Any) -> Simulation:
    """Solve a flow from its start to `t1` or to its blow-up; `options` are fields of the config to set or replace.

    >>> run = simulate(flow="saliency", targets=[1.0, 0.5])
    >>> run.remarks()[0]
    'blow-up at t = 1.253314137, component 0 (Theorem 2: t = 1.253314137, component 0)'
    >>> run.closed_form_distance < 1e-9
    True
    """
    config = replace(config or SimulationConfig(), **options)
    flow = config.build()
    natural = _natural_end(flow)
    t1 = natural if config.t1 is None else float(config.t1)
    if not np.isfinite(t1):
        raise AssumptionError("The flow does not settle at its limits from this start. Pass `t1`, the time to end at.")
    first = FIRST_TIME * min(t1, natural) if (config.spacing or _spacing(flow)) == "log" else None
    run, blow_up = _solved(flow, t1, config.num_points, first)
    exact = flow.solution(run.t)
    law = invariant_drift(run["v"][:, None], run["z"][:, None], flow.invariant)
    return Simulation(
        config=config,
        flow=flow,
        t=run.t,
        v=run["v"] if exact is None else exact,
        v_integrated=run["v"],
        z=run["z"],
        drift=np.abs(law.drift).max(axis=1),
        rebound=_dip(flow, run),
        closed_form_distance=None if exact is None else _distance(exact, run["v"]),
        blow_up=blow_up,
        num_evaluations=run.num_evaluations,
    )


def _integrated(
    flow: JointFlow, t: Float[np.ndarray, " T"], *, start: State | None = None, **options: Any
) -> Trajectory:
    """Integrate v and z from a state at `t[0]`, token by token side by side: a banded system where tokens decouple."""
    start = flow.start_state if start is None else start
    options = (RELAXING | flow.coupling if _settles(flow) else {}) | options
    count = itertools.count()

    def field(time: float, state: State) -> State:
        if next(count) >= MAX_EVALUATIONS:
            raise ArithmeticError(
                f"The integrator has got to t = {time:.6g} after {MAX_EVALUATIONS} evaluations and no further: the "
                "flow is long, too stiff, or slides along a kink of ReLU. Pass a smaller `t1` or targets, or use gelu."
            )
        rates = flow.field(time, _apart(state))
        return {"v_z": np.column_stack((rates["v"], rates["z"]))}

    run = integrate(field, {"v_z": np.column_stack((start["v"], start["z"]))}, t, blow_up=NO_BOUND, **options)
    if run.blow_up is not None and isinstance(flow, RelaxingFlow):
        raise ArithmeticError(
            f"The integrator stops at t = {run.blow_up.time:.6g}, though this flow does not diverge: it is too stiff. "
            "Pass targets that are smaller, or nearer to each other."
        )
    return replace(run, states=_apart(run.states))


def _apart(state: State) -> State:
    return {"v": state["v_z"][..., 0], "z": state["v_z"][..., 1]}


def _spacing(flow: JointFlow) -> str:
    return "log" if _settles(flow) else "linear"


def _settles(flow: JointFlow) -> bool:
    return flow.limits() is not None and flow.predicted_blow_up() is None


def _solved(flow: JointFlow, t1: float, num_points: int, first: float | None) -> tuple[Trajectory, BlowUp | None]:
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
    return run, blow_up


def _dip(flow: JointFlow, run: Trajectory) -> Rebound:
    """Find the lowest entropy on the reported times, then once more with fine steps between its two neighbours."""
    values = np.asarray(entropy(flow.log_attention(run["z"])))
    coarse = rebound(run.t, values)
    lowest = int(values.argmin())
    if lowest in (0, run.t.size - 1):
        return coarse
    before, after = run.t[lowest - 1], run.t[lowest + 1]
    state = {name: states[lowest - 1] for name, states in run.states.items()}
    fine = _integrated(flow, np.linspace(before, after, NUM_DIP_POINTS), start=state)
    within = rebound(fine.t, np.asarray(entropy(flow.log_attention(fine["z"]))))
    return replace(coarse, lowest=within.lowest, time=within.time)


def _grid(t1: float, num_points: int, first: float | None) -> Float[np.ndarray, " T"]:
    """Times from zero to t1, evenly spaced, or from `first` on evenly spaced in their logarithm."""
    if first is None:
        return np.linspace(0.0, t1, num_points)
    return np.append(0.0, np.geomspace(first, t1, num_points - 1))


def _natural_end(flow: JointFlow) -> float:
    """The flow's own span, or where it has limits the time at which all components have settled; infinite if never."""
    limits = flow.limits()
    if limits is None or not _settles(flow):
        return flow.span()
    enough = SETTLED * np.maximum(np.abs(limits - flow.v0), SETTLED)
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


def _distance(exact: np.ndarray, integrated: np.ndarray) -> float:
    return float((np.abs(exact - integrated) / np.maximum(1.0, np.abs(exact))).max())
