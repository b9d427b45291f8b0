"""`simulate`: solve one of the paper's flows, exactly where that is possible, and measure what it conserves.

Weights and attention logits are integrated together, without Theorem 1 and without any closed form. The invariant is
then measured along the result, and the closed form, where there is one, is compared with it. Where the integrator
cannot follow, the closed form stands alone, and the simulation says that nothing was measured.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, UnknownNameError
from joma.theory.flow_solver import Solution, dip, natural_end, settles, solve
from joma.theory.flows import TITLES
from joma.theory.invariant_drift import invariant_drift
from joma.theory.joint_flow import JointFlow
from joma.theory.rebound import Rebound, entropy
from joma.theory.simulation_config import SimulationConfig, figure4, preset_config
from joma.types import BlowUp

__all__ = ["Simulation", "SimulationConfig", "figure4", "preset_config", "simulate"]

FIRST_TIME = 1e-3
"""First time after zero on a logarithmic grid, as a fraction of the time to settle, or of an earlier end."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A flow from its start to its end or blow-up, with what it conserves and how far the closed form is from it."""

    config: SimulationConfig
    flow: JointFlow
    """The flow, with laws drawn and defaults filled in."""
    t: Float[np.ndarray, " T"]
    v: Float[np.ndarray, "T M"]
    """Weights: the closed form where there is one, else integrated."""
    v_integrated: Float[np.ndarray, "T M"] | None
    """Weights integrated together with the logits; None where no integrator could follow."""
    z: Float[np.ndarray, "T M"]
    """Attention logits, integrated together with the weights; where that failed, tied to v by Theorem 1."""
    drift: Float[np.ndarray, " T"] | None
    """Largest distance of the conserved quantity from its start, over the components of the integrated flow."""
    rebound: Rebound
    """Dip of the attention entropy, found between the reported times: when, how deep, and how far it came back."""
    closed_form_distance: float | None
    """Largest |closed form − integrated| / max(1, |v|) over times and components; None without one of the two."""
    obstacle: str
    """Why the flow could not be integrated, so that neither distance nor drift is measured; empty where it could."""
    blow_up: BlowUp | None
    """When and where the integrated flow diverged, by theory where it was not integrated; None if not by the end."""
    num_evaluations: int
    """How often the field was evaluated."""

    @property
    def exact(self) -> bool:
        """Whether v is the closed form."""
        return bool(self.obstacle) or self.closed_form_distance is not None

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
        return _log_time(self.config, self.flow)

    def columns(self) -> dict[str, np.ndarray]:
        """Every reported quantity over time by name, in the order of the CSV file; NaN for what was not measured."""
        drift = np.full_like(self.t, np.nan) if self.drift is None else self.drift
        columns = {"t": self.t, "entropy": self.entropy, "drift": drift}
        tables = {"v": self.v, "z": self.z, "attention": self.attention}
        if self.v_integrated is not None and self.exact:
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
        low = self.rebound
        return [
            self._ending(),
            *self._measurements(),
            f"attention entropy {low.start:.4g} → {low.lowest:.4g} (t = {low.time:.4g}) → {low.end:.4g} nats"
            + (f": rebounds by {low.rise:.4g}" if low.occurs else ": no rebound"),
        ]

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
            "largest_drift": None if self.drift is None else float(self.drift.max()),
            "not_integrated": self.obstacle or None,
            "entropy": asdict(self.rebound),
            **{name: None if value is None else asdict(value) for name, value in blow_ups.items()},
            "num_evaluations": self.num_evaluations,
            "remarks": self.remarks(),
            "components": [
                {name: value if np.isfinite(value) else None for name, value in row.items()}
                for row in self.summary_rows()
            ],
        }

    def _measurements(self) -> list[str]:
        """Distance of the closed form and drift of the invariant; or, in their place, why there are none."""
        if self.drift is None:
            return [
                f"closed form alone, its distance from the ODE is not measured: {self.obstacle}",
                f"invariant {self.flow.conserved}: drift not measured, since it is what the logits are computed from",
            ]
        drift = f"invariant {self.flow.conserved} drifts by {self.drift.max():.1e} at most"
        if self.closed_form_distance is None:
            return [drift]
        return [f"closed form within {self.closed_form_distance:.1e} of the ODE", drift]

    def _ending(self) -> str:
        predicted = self.predicted_blow_up
        theory = (
            "" if predicted is None else f"Theorem 2: t = {predicted.time:.10g}, component {predicted.component[0]}"
        )
        if self.blow_up is not None:
            beside = "" if not theory else " by Theorem 2" if self.obstacle else f" ({theory})"
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
    known = [field.name for field in fields(SimulationConfig)]
    for name in options:
        if name not in known:
            raise UnknownNameError("option of a simulation", name, known, listing="`joma simulate --help`")
    config = replace(config or SimulationConfig(), **options)
    flow = config.build()
    natural = natural_end(flow)
    t1 = natural if config.t1 is None else float(config.t1)
    if not np.isfinite(t1):
        raise AssumptionError("The flow does not settle at its limits from this start. Pass `t1`, the time to end at.")
    first = FIRST_TIME * min(t1, natural) if _log_time(config, flow) else None
    solution = solve(flow, t1, config.num_points, first)
    exact = flow.solution(solution.t)
    return Simulation(
        config=config,
        flow=flow,
        t=solution.t,
        v=solution.v if exact is None else exact,
        v_integrated=solution.v if solution.integrated else None,
        z=solution.z,
        drift=_drift(flow, solution) if solution.integrated else None,
        rebound=dip(flow, solution),
        closed_form_distance=_distance(exact, solution.v) if exact is not None and solution.integrated else None,
        obstacle=solution.obstacle,
        blow_up=solution.blow_up,
        num_evaluations=solution.num_evaluations,
    )


def _log_time(config: SimulationConfig, flow: JointFlow) -> bool:
    return (config.spacing or ("log" if settles(flow) else "linear")) == "log"


def _drift(flow: JointFlow, solution: Solution) -> Float[np.ndarray, " T"]:
    law = invariant_drift(solution.v[:, None], solution.z[:, None], flow.invariant)
    return np.abs(law.drift).max(axis=1)


def _distance(exact: np.ndarray, integrated: np.ndarray) -> float:
    return float((np.abs(exact - integrated) / np.maximum(1.0, np.abs(exact))).max())
