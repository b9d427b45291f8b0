"""`simulate`: solve one of the paper's flows, exactly where that is possible, and measure what it conserves.

Weights and attention logits are always integrated together, without Theorem 1 and without any closed form. The
invariant is then measured along the result, and the closed form, where there is one, is compared with it.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, UnknownNameError, finite, positive
from joma.theory.activations import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.flows import PAST_BLOW_UP, TITLES, flow_class
from joma.theory.integrate import Field, State, integrate
from joma.theory.invariant_drift import invariant_drift
from joma.theory.joint_flow import JointFlow
from joma.theory.rebound import Rebound, entropy, rebound
from joma.types import BlowUp, Trajectory

Values = float | int | str | Sequence[float | int] | np.ndarray
"""Numbers as a user gives them: one, several, `"1,0.5,2"`, or a seeded law such as `"uniform:1:4"`."""

LAWS: dict[str, Callable[..., np.ndarray]] = {
    "uniform": np.random.Generator.uniform,
    "normal": np.random.Generator.normal,
}
"""Laws to draw from, each with two parameters: low and high, or mean and standard deviation."""
DEFAULT_NUM_COMPONENTS = 10
SPACINGS = ("linear", "log")
MIN_POINTS = 3
"""Start, end and one time between: fewer have no dip."""

SETTLED = 1e-3
"""Part of the way to its limit that every component may have left at the default end of a flow."""
NUM_SCOUT_POINTS = 33
MAX_DOUBLINGS = 60
"""How often the end is doubled in search of that time."""
unbounded = partial(integrate, blow_up=float(np.finfo(np.float64).max))
"""The integrator without a bound: a blow-up shows in steps that shrink to nothing, mere growth is none."""
relax = partial(unbounded, method="LSODA", rtol=3e-14, atol=3e-15)
"""The one for flows with limits: stiff once salient components have settled, and implicit from then on."""
scout = partial(unbounded, method="LSODA", rtol=1e-6, atol=1e-9)
"""The one for the time at which a flow has settled, which needs two digits."""
FIRST_TIME = 1e-3
"""First time after zero on a logarithmic grid, as a fraction of the end."""
BEFORE_BLOW_UP = 0.999
"""Last reported time as a fraction of the blow-up: later, one rounding of t already moves v by more than 1e-11."""
AT_BLOW_UP = 1 - 1e-7
"""Fraction of the blow-up time at which the fastest component is named."""
MAX_EVALUATIONS = 200_000
"""Evaluations of the field after which a run gives up; stiff flows with targets of 8 need 40,000."""
NUM_DIP_POINTS = 401
"""Times between the two neighbours of the lowest reported entropy at which the dip is searched for."""

FIGURE_4_TARGETS = (
    *(1.2654323578, 1.3960914612, 1.9222683907, 2.3668839931, 2.4702801704),
    *(2.4887697697, 2.8969187737, 2.9022359848, 3.3046653271, 3.6893341541),
)
"""Targets behind the paper's figure 4: ten draws from [1, 4], sorted, by the public scripts with torch's seed 0."""
FIGURE_4_START = 0.05
FIGURE_4_END = 100.0
"""Time that those scripts cover with softmax(v²/3): 5000 steps of 0.02."""


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """What to simulate. Every field but `flow` and `targets` has a default that suits the flow."""

    flow: str = "saliency"
    """`saliency` (Section 3.1, Theorem 2), `printed` (Eqn 6), `normalised` (Eqn 6 with softmax(v²/T)), `model` (the
    flow that exp attention gives, of which Eqn 6 is an ansatz) or `clusters` (Lemma 2 with attention)."""
    targets: Values = "uniform:1:4"
    """Saliencies Δ for `saliency`, the center of the positive cluster for `clusters`, targets μ for the others."""
    num_components: int | None = None
    """How many components to draw from a law of targets; 10 when None."""
    seed: int = 0
    """Seed of every law."""
    attention: str | None = None
    """`linear`, `exp` or `softmax`; when None the one the flow is about."""
    activation: str | None = None
    """`linear`, `relu`, `tanh`, `sigmoid`, `silu` or `gelu`, for `saliency` only; `linear` when None."""
    temperature: float | None = None
    """T of the attention; when None 1, or 3 for `normalised`."""
    normalisation: float = 1.0
    """The constant A of linear and exp attention."""
    rate_ratio: float = 1.0
    """Learning rate of the logits over that of the weights, η_z/η_w."""
    v0: Values | None = None
    """Start of v, one for all or one each; when None zero, or a little towards the target where zero is stationary."""
    z0: Values | None = None
    """Start of z; when None the one that makes Theorem 1's constant zero, such as v0²/2 for exp attention."""
    bias: float | None = None
    """Frozen bias ξ of `clusters`; -1 when None."""
    negative_weight: float | None = None
    """Weight a₋ of the negative cluster of `clusters`, the positive one having 1; 4 when None."""
    t1: float | None = None
    """End time; when None past the blow-up where one is due, or the time for all components to settle."""
    num_points: int = 400
    """Number of reported times."""
    spacing: str | None = None
    """Reported times evenly spaced, `linear`, or in their logarithm, `log`; when None the one that suits the flow."""

    def __post_init__(self) -> None:
        """Refuse unknown names, numbers out of range, and options that the flow does not have."""
        for name in ("targets", "v0", "z0"):
            object.__setattr__(self, name, _plain(name, getattr(self, name)))
        cls = flow_class(self.flow, self.attention_kind)
        self._require_activation(cls)
        self._require_fields(cls)
        positive("temperature", self._temperature(cls))
        positive("normalisation", self.normalisation)
        positive("rate_ratio", self.rate_ratio)
        if self.t1 is not None:
            positive("t1", self.t1)
        if self.num_points < MIN_POINTS:
            raise ValueError(f"`num_points` must be at least {MIN_POINTS}, got {self.num_points}. Ask for more.")
        if self.spacing not in (None, *SPACINGS):
            raise UnknownNameError("spacing", str(self.spacing), SPACINGS)
        self._num_components()

    @property
    def attention_kind(self) -> AttentionKind | None:
        """The attention asked for, if any."""
        if self.attention is None:
            return None
        kinds = [kind.value for kind in AttentionKind]
        if self.attention not in kinds:
            raise UnknownNameError("attention", str(self.attention), kinds)
        return AttentionKind(self.attention)

    def build(self) -> JointFlow:
        """Return the flow, with laws drawn and defaults filled in."""
        cls = flow_class(self.flow, self.attention_kind)
        kind = self.attention_kind or cls.attentions[0]
        attention = Attention(kind=kind, temperature=self._temperature(cls), normalisation=self.normalisation)
        targets = self._drawn("targets", 0, self._num_components())
        name = self.activation or next(iter(cls.activations), "")
        v0 = cls.default_start(targets, kind, name) if self.v0 is None else self._drawn("v0", 1, targets.size)
        z0 = None if self.z0 is None else self._drawn("z0", 2, targets.size)
        options: dict[str, Any] = {option: getattr(self, option) for option in ("bias", "negative_weight")}
        options["activation"] = activation(name) if name else None
        own = {field.name for field in fields(cls)}
        options = {option: value for option, value in options.items() if value is not None and option in own}
        return cls(targets=targets, attention=attention, v0=v0, z0=z0, rate_ratio=self.rate_ratio, **options)

    def _temperature(self, cls: type[JointFlow]) -> float:
        return cls.default_temperature if self.temperature is None else self.temperature

    def _num_components(self) -> int:
        given = np.size(self.targets) if not isinstance(self.targets, str) else None
        if given is None:
            asked = DEFAULT_NUM_COMPONENTS if self.num_components is None else self.num_components
            return int(positive("num_components", asked))
        if self.num_components not in (None, given):
            raise ValueError(
                f"`num_components` must be the number of targets, {given}, got {self.num_components}. "
                "Leave it out, or give a law of targets."
            )
        return given

    def _drawn(self, name: str, stream: int, size: int) -> Float[np.ndarray, " M"]:
        """Numbers of one field: as given, one for all, or drawn with a seed of their own."""
        value = getattr(self, name)
        if isinstance(value, str):
            law, *parameters = value.split(":")
            return LAWS[law](np.random.default_rng([self.seed, stream]), *map(float, parameters), size)
        if np.size(value) not in (1, size):
            raise ValueError(
                f"`{name}` must be one number or {size}, one for each target; got {np.size(value)}. Match `targets`."
            )
        return np.broadcast_to(np.asarray(value, dtype=np.float64), size).copy()

    def _require_activation(self, cls: type[JointFlow]) -> None:
        if self.activation is None:
            return
        activation(self.activation)
        if self.activation not in cls.activations:
            known = f"only {' or '.join(cls.activations)}" if cls.activations else "no choice"
            raise ValueError(
                f"The flow {self.flow!r} has {known} of activation, got {self.activation!r}. "
                "Leave it out, or use the flow 'saliency'."
            )

    def _require_fields(self, cls: type[JointFlow]) -> None:
        own = {field.name for field in fields(cls)}
        for name in ("bias", "negative_weight"):
            value = getattr(self, name)
            if value is not None and name not in own:
                raise ValueError(
                    f"The flow {self.flow!r} has no `{name}`, got {value}. Leave it out, or use 'clusters'."
                )
            if value is not None:
                finite(name, value)


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
    t1 = _default_end(flow) if config.t1 is None else float(config.t1)
    spacing = config.spacing or _spacing(flow)
    run = _integrated(flow, _grid(t1, config.num_points, spacing))
    blow_up = None
    if run.blow_up is not None:
        run, blow_up = _up_to_blow_up(flow, run.blow_up.time, config.num_points, spacing)
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


def figure4(flow: str = "printed") -> SimulationConfig:
    """Return the setting of the paper's figure 4 for one of the flows that have targets μ.

    `printed` is Eqn 6, which the caption names; `normalised` is what the public scripts integrate; `model` is the flow
    that exp attention gives.
    """
    if flow not in ("printed", "normalised", "model"):
        raise ValueError(f"Figure 4 has targets μ: 'printed', 'normalised' or 'model', got {flow!r}. Use one of these.")
    t1 = FIGURE_4_END if flow == "normalised" else None
    return SimulationConfig(flow=flow, targets=FIGURE_4_TARGETS, v0=FIGURE_4_START, t1=t1)


PRESETS = {"figure4": figure4}
"""Settings of the paper by name, each a function of the flow."""


def preset_config(name: str, flow: str | None = None) -> SimulationConfig:
    """Return a setting of the paper by name, for its own flow or another.

    >>> preset_config("figure4", "model").flow
    'model'
    """
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]() if flow is None else PRESETS[name](flow)


def _integrated(flow: JointFlow, t: Float[np.ndarray, " T"]) -> Trajectory:
    return _integrator(flow)(_patient(flow), flow.start_state, t)


def _patient(flow: JointFlow) -> Field:
    """The field of a flow, which gives up where it would be evaluated without end."""
    count = itertools.count()

    def field(time: float, state: State) -> State:
        if next(count) >= MAX_EVALUATIONS:
            raise ArithmeticError(
                f"The integrator has got to t = {time:.6g} after {MAX_EVALUATIONS} evaluations and no further: the "
                "flow is long, or slides along a kink of ReLU. Pass a smaller `t1`, or a smooth activation like gelu."
            )
        return flow.field(time, state)

    return field


def _integrator(flow: JointFlow) -> Callable[..., Trajectory]:
    return relax if _settles(flow) else unbounded


def _spacing(flow: JointFlow) -> str:
    return "log" if _settles(flow) else "linear"


def _settles(flow: JointFlow) -> bool:
    return flow.limits() is not None and flow.predicted_blow_up() is None


def _up_to_blow_up(flow: JointFlow, time: float, num_points: int, spacing: str) -> tuple[Trajectory, BlowUp]:
    """Integrate once more up to just before the blow-up, where the fastest component is the one that diverges."""
    t = np.append(_grid(BEFORE_BLOW_UP * time, num_points, spacing), AT_BLOW_UP * time)
    run = _integrated(flow, t)
    speed = np.abs(flow.field(float(run.t[-1]), run.at_end())["v"])
    reported = {name: values[:num_points] for name, values in run.states.items()}
    blow_up = BlowUp(time=time, state="v", component=(int(speed.argmax()),))
    return Trajectory(t=run.t[:num_points], states=reported, num_evaluations=run.num_evaluations), blow_up


def _dip(flow: JointFlow, run: Trajectory) -> Rebound:
    """Find the lowest entropy on the reported times, then once more with fine steps between its two neighbours."""
    values = np.asarray(entropy(flow.log_attention(run["z"])))
    coarse = rebound(run.t, values)
    lowest = int(values.argmin())
    if lowest in (0, run.t.size - 1):
        return coarse
    before, after = run.t[lowest - 1], run.t[lowest + 1]
    state = {name: states[lowest - 1] for name, states in run.states.items()}
    fine = _integrator(flow)(_patient(flow), state, np.linspace(before, after, NUM_DIP_POINTS))
    within = rebound(fine.t, np.asarray(entropy(flow.log_attention(fine["z"]))))
    return replace(coarse, lowest=within.lowest, time=within.time)


def _grid(t1: float, num_points: int, spacing: str) -> Float[np.ndarray, " T"]:
    if spacing == "linear":
        return np.linspace(0.0, t1, num_points)
    return np.append(0.0, t1 * np.logspace(np.log10(FIRST_TIME), 0.0, num_points - 1))


def _default_end(flow: JointFlow) -> float:
    """The flow's own span, or where it has finite limits the time at which all components have settled there."""
    limits = flow.limits()
    if limits is None or not _settles(flow):
        return flow.span()
    enough = SETTLED * np.maximum(np.abs(limits - flow.v0), SETTLED)
    state, passed, span = flow.start_state, 0.0, flow.span()
    for _ in range(MAX_DOUBLINGS):
        run = scout(_patient(flow), state, np.linspace(0.0, span, NUM_SCOUT_POINTS))
        if run.blow_up is not None:
            return passed + PAST_BLOW_UP * run.blow_up.time
        settled = (np.abs(run["v"] - limits) <= enough).all(axis=1)
        if settled.any():
            return passed + float(run.t[max(1, int(settled.argmax()))])
        state, passed = run.at_end(), passed + span
        span = passed
    raise AssumptionError(f"The flow has not settled at its limits by t = {passed:.3g}. Pass `t1`, the time to end at.")


def _distance(exact: np.ndarray, integrated: np.ndarray) -> float:
    return float((np.abs(exact - integrated) / np.maximum(1.0, np.abs(exact))).max())


def _plain(name: str, value: Any) -> Any:
    """Return a law as it is and numbers as floats, so that configs compare and print."""
    if value is None:
        return None
    if isinstance(value, str) and ":" in value:
        _require_law(name, value)
        return value
    try:
        numbers = finite(name, [float(part) for part in value.split(",")] if isinstance(value, str) else value)
    except ValueError as error:
        if not isinstance(value, str):
            raise
        raise ValueError(
            f"`{name}` must be numbers such as '1,0.5,2' or a law such as 'uniform:1:4', got {value!r}. ({error})"
        ) from None
    if numbers.ndim > 1 or numbers.size == 0:
        raise ValueError(f"`{name}` must be one number or a list of them, got shape {numbers.shape}. Flatten it.")
    return float(numbers) if numbers.ndim == 0 else tuple(numbers.tolist())


def _require_law(name: str, text: str) -> None:
    law, *parameters = text.split(":")
    if law not in LAWS:
        raise UnknownNameError("law", law, LAWS)
    try:
        first, second = (float(finite(name, float(parameter))) for parameter in parameters)
    except ValueError:
        raise ValueError(
            f"`{name}` as a law needs two numbers, 'uniform:low:high' or 'normal:mean:sd', got {text!r}."
        ) from None
    if second <= (first if law == "uniform" else 0.0):
        raise ValueError(f"`{name}` must have low < high, or a positive standard deviation, got {text!r}. Swap them.")
