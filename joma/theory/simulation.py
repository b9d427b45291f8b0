"""`simulate`: solve one of the paper's flows, exactly where that is possible, and measure what it conserves.

Weights and attention logits are integrated together, without Theorem 1 and without any closed form. The invariant is
then measured along the result, and the closed form, where there is one, is compared with it. Beyond targets of about 9
under Eqn 6 a component jumps to its target within one rounding of t and no integrator can follow: the closed form is
then all there is, and `obstacle` says why nothing was measured.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, UnknownNameError, finite, positive, whole
from joma.theory.activations import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.flows import LARGEST, PAST_BLOW_UP, TITLES, JointFlow, RelaxingFlow, flow_class
from joma.theory.integrate import State, integrate
from joma.theory.invariants import invariant_drift
from joma.theory.rebound import Rebound, entropy, rebound
from joma.types import BlowUp, Trajectory, as_columns, keep

Values = float | int | str | Sequence[float | int] | np.ndarray
"""Numbers as a user gives them: one, several, `"1,0.5,2"`, or a seeded law such as `"uniform:1:4"`."""

LAWS: dict[str, Callable[..., Any]] = {"uniform": np.random.Generator.uniform, "normal": np.random.Generator.normal}
"""Laws to draw from, each with two parameters: low and high, or mean and standard deviation."""
DEFAULT_NUM_COMPONENTS = 10
OWN_OPTIONS = {"bias": "clusters", "negative_weight": "clusters", "common": "common", "num_queries": "common"}
"""Options that one flow alone has."""
SPACINGS = ("linear", "log")
MIN_POINTS = 3  # start, end and one time between: fewer have no dip

FIGURE_4_TARGETS = (
    *(1.2654323578, 1.3960914612, 1.9222683907, 2.3668839931, 2.4702801704),
    *(2.4887697697, 2.8969187737, 2.9022359848, 3.3046653271, 3.6893341541),
)
"""Targets of the paper's figure 4: ten draws from [1, 4], sorted, by the public scripts with torch's seed 0."""
FIGURE_4_START = 0.05
FIGURE_4_END = 100.0  # time that those scripts cover with softmax(v²/3): 5000 steps of 0.02


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """What to simulate. Every field but `flow` and `targets` has a default that suits the flow."""

    flow: str = "saliency"
    """`saliency` (Section 3.1, Theorem 2), `printed` (Eqn 6), `normalised` (Eqn 6 with softmax(v²/T)), `model` (the
    flow that exp attention gives, of which Eqn 6 is an ansatz), `common` (the same for many queries that share a
    vector) or `clusters` (Lemma 2 with attention)."""
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
    common: float | None = None
    """Squared norm s of the vector that queries share, for `common`; 1 when None, 0 for the control."""
    num_queries: int | None = None
    """Number of queries Q of `common`; 100 when None."""
    t1: float | None = None
    """End time; when None past the blow-up where one is due, or the time for all components to settle."""
    num_points: int = 400
    """Number of reported times."""
    spacing: str | None = None
    """Reported times evenly spaced, `linear`, or in their logarithm, `log`; when None the one that suits the flow."""

    def __post_init__(self) -> None:
        keep(self, **{name: _plain(name, getattr(self, name)) for name in ("targets", "v0", "z0")})
        cls = flow_class(self.flow, self.attention)
        if self.activation is not None and activation(self.activation).name not in cls.activations:
            known = f"only {' or '.join(cls.activations)}" if cls.activations else "no choice"
            raise ValueError(
                f"The flow {self.flow!r} has {known} of activation, got {self.activation!r}. "
                "Leave it out, or use the flow 'saliency'."
            )
        for name, flow in OWN_OPTIONS.items():
            value = getattr(self, name)
            if value is not None and name not in {field.name for field in fields(cls)}:
                raise ValueError(f"The flow {self.flow!r} has no `{name}`, got {value}. Leave it out, or use {flow!r}.")
            finite(name, 0.0 if value is None else value)
        for name in ("temperature", "normalisation", "rate_ratio", "t1"):
            positive(name, 1.0 if getattr(self, name) is None else getattr(self, name))
        whole("num_points", self.num_points, low=MIN_POINTS)
        if self.spacing not in (None, *SPACINGS):
            raise UnknownNameError("spacing", str(self.spacing), SPACINGS)
        whole("seed", self.seed, low=0)
        self._num_components()

    def build(self) -> JointFlow:
        """Return the flow, with laws drawn and defaults filled in."""
        cls = flow_class(self.flow, self.attention)
        kind = cls.attentions[0] if self.attention is None else AttentionKind(self.attention)
        temperature = cls.default_temperature if self.temperature is None else self.temperature
        attention = Attention(kind=kind, temperature=temperature, normalisation=self.normalisation)
        targets = self._drawn("targets", 0, self._num_components())
        name = self.activation or next(iter(cls.activations), "")
        v0 = cls.default_start(targets, kind, name) if self.v0 is None else self._drawn("v0", 1, targets.size)
        z0 = None if self.z0 is None else self._drawn("z0", 2, targets.size)
        options: dict[str, Any] = {option: getattr(self, option) for option in OWN_OPTIONS}
        options["activation"] = activation(name) if name else None
        own = {field.name for field in fields(cls)}
        options = {option: value for option, value in options.items() if value is not None and option in own}
        return cls(targets=targets, attention=attention, v0=v0, z0=z0, rate_ratio=self.rate_ratio, **options)

    def log_time(self, flow: JointFlow) -> bool:
        """Whether the reported times of the flow are evenly spaced in their logarithm."""
        return (self.spacing or ("log" if flow.settles else "linear")) == "log"

    def _num_components(self) -> int:
        if isinstance(self.targets, str):
            asked = DEFAULT_NUM_COMPONENTS if self.num_components is None else self.num_components
            return int(whole("num_components", asked, low=1))
        given = np.size(self.targets)
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
            raise ValueError(f"`{name}` must be one number or one for each of {size} targets, got {np.size(value)}.")
        return np.broadcast_to(np.asarray(value, dtype=np.float64), size).copy()


def figure4(flow: str = "printed") -> SimulationConfig:
    """Return the setting of the paper's figure 4 for one of the flows that have targets μ.

    `printed` is Eqn 6, which the caption names; `normalised` is what the public scripts integrate; `model` is the flow
    that exp attention gives.
    """
    if flow not in ("printed", "normalised", "model"):
        raise ValueError(f"Figure 4 has targets μ: 'printed', 'normalised' or 'model', got {flow!r}. Use one of these.")
    t1 = FIGURE_4_END if flow == "normalised" else None
    return SimulationConfig(flow=flow, targets=FIGURE_4_TARGETS, v0=FIGURE_4_START, t1=t1)


PRESETS = {"figure4": figure4}  # settings of the paper by name, each a function of the flow


def preset_config(name: str, flow: str | None = None) -> SimulationConfig:
    """Return a setting of the paper by name, for its own flow or another.

    >>> preset_config("figure4", "model").flow
    'model'
    """
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]() if flow is None else PRESETS[name](flow)


def _plain(name: str, value: Any) -> Any:
    """Return a law as it is and numbers as floats, so that configs compare and print."""
    if value is None:
        return None
    if isinstance(value, str) and ":" in value:
        law, *parameters = value.split(":")
        if law not in LAWS:
            raise UnknownNameError("law", law, LAWS)
        try:
            first, second = (float(finite(name, float(parameter))) for parameter in parameters)
        except ValueError:
            raise ValueError(
                f"`{name}` as a law needs two numbers, 'uniform:low:high' or 'normal:mean:sd', got {value!r}."
            ) from None
        if second <= (first if law == "uniform" else 0.0):
            raise ValueError(f"`{name}` needs low < high, or a positive standard deviation, got {value!r}. Swap them.")
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


SETTLED = 1e-3  # share of the way to its limit that every component may have left at the default end of a flow
NUM_SCOUT_POINTS = 33
MAX_DOUBLINGS = 60  # how often the end is doubled in search of that time
DOUBLINGS_OF_ANY_FLOAT = 1100  # from the smallest float to beyond any time, where a closed form is searched at once
LATEST = 1e100  # time beyond which no closed form is evaluated
NO_BOUND = float(np.finfo(np.float64).max)
"""Threshold of the integrator: a blow-up shows in steps that shrink to nothing, mere growth is none."""
RELAXING: dict[str, Any] = {"method": "LSODA", "rtol": 3e-14, "atol": 3e-15}
"""How flows with limits are integrated: stiff once salient components have settled, and implicit from then on."""
SCOUTING: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
"""Tolerances of the search for the time at which a flow has settled, which needs two digits."""
BEFORE_BLOW_UP = 0.999  # last reported share of the blow-up time: later, one rounding of t moves v by 1e-11
AT_BLOW_UP = 1 - 1e-7  # fraction of the blow-up time at which the fastest component is named
MAX_EVALUATIONS = 7_000  # evaluations of the field after which a run gives up, in about two seconds ...
EVALUATIONS_PER_TOKEN = 400  # ... and as many more for each token, since a Jacobian takes two for each
MAX_WITH_CLOSED_FORM = 50_000  # the same where a closed form can take over; targets of 8.5 under Eqn 6 need 7,000
NUM_DIP_POINTS = 401  # times between the two neighbours of the lowest reported entropy at which the dip is searched for


class IntegratorGivesUp(ArithmeticError):
    """The integrator stopped early: why, and what a user can do."""

    def __str__(self) -> str:
        reason, advice = self.args
        return f"{reason[0].upper()}{reason[1:]}. {advice}"


def solve(flow: JointFlow, t1: float, num_points: int, first: float | None) -> tuple[Trajectory, str]:
    """Return v and z up to `t1` or just before a blow-up, and why they were not integrated (empty where they were).

    Times are even, or from `first` on even in their logarithm. Where the integrator gives up and the flow has a finite
    closed form, that is used, with logits by Theorem 1 and the blow-up of the theory.
    """
    try:
        return _by_integration(flow, t1, num_points, first), ""
    except IntegratorGivesUp as error:
        predicted = flow.predicted_blow_up()
        blow_up = predicted if predicted is not None and t1 >= predicted.time else None
        t = _grid(t1 if blow_up is None else BEFORE_BLOW_UP * blow_up.time, num_points, first)
        states = flow.exact(t)
        if states is None or not all(np.isfinite(values).all() for values in states.values()):
            raise
        return Trajectory(t=t, states=states, blow_up=blow_up), error.args[0]


def natural_end(flow: JointFlow) -> float:
    """The flow's own span, or where it has limits the time at which all components have settled; infinite if never."""
    if not flow.settles:
        return flow.span()
    limits = flow.limits()
    enough = SETTLED * np.maximum(np.abs(limits - flow.v0), SETTLED)

    def first_settled(t: Float[np.ndarray, " T"], v: Any) -> float | None:
        settled = (np.abs(v - limits) <= enough).all(axis=1)
        return float(t[max(1, int(settled.argmax()))]) if settled.any() else None

    span = max(flow.span(), float(np.finfo(np.float64).tiny))
    if flow.solution(np.zeros(1)) is None:
        state, passed = flow.start_state, 0.0
        for _ in range(MAX_DOUBLINGS):
            run = _integrated(flow, np.linspace(passed, passed + span, NUM_SCOUT_POINTS), start=state, **SCOUTING)
            if run.blow_up is not None:
                return passed + PAST_BLOW_UP * (run.blow_up.time - passed)
            if found := first_settled(run.t, run["v"]):
                return found
            state, passed = run.at_end(), passed + span
            span = passed
        return np.inf
    with np.errstate(over="ignore"):
        ends = np.append(0.0, np.ldexp(span, np.arange(DOUBLINGS_OF_ANY_FLOAT)))
    ends = ends[ends < max(LATEST, 2 * span)]
    end = first_settled(ends, flow.solution(ends))
    if end is None:
        return np.inf
    closer = np.linspace(ends[np.searchsorted(ends, end) - 1], end, NUM_SCOUT_POINTS)
    return first_settled(closer, flow.solution(closer)) or end


def dip(flow: JointFlow, run: Trajectory, *, integrated: bool) -> Rebound:
    """Find the lowest entropy on the reported times, then once more with fine steps between its two neighbours."""
    values = entropy(flow.log_attention(run["z"]))
    coarse = rebound(run.t, values)
    lowest = int(values.argmin())
    if lowest in (0, run.t.size - 1):
        return coarse
    t = np.linspace(run.t[lowest - 1], run.t[lowest + 1], NUM_DIP_POINTS)
    before = {name: values[lowest - 1] for name, values in run.states.items()}
    states = _integrated(flow, t, start=before).states if integrated else flow.exact(t)
    assert states is not None
    fine = rebound(t, entropy(flow.log_attention(states["z"])))
    return replace(coarse, lowest=fine.lowest, time=fine.time)


def _by_integration(flow: JointFlow, t1: float, num_points: int, first: float | None) -> Trajectory:
    """Integrate to the end; or, where a blow-up comes before it, once more to just before, and name what diverges."""
    run = _integrated(flow, _grid(t1, num_points, first))
    if run.blow_up is not None:
        time = run.blow_up.time
        run = _integrated(flow, np.append(_grid(BEFORE_BLOW_UP * time, num_points, first), AT_BLOW_UP * time))
        with np.errstate(over="ignore", invalid="ignore"):
            speed = np.abs(flow.field(float(run.t[-1]), run.at_end())["v"])
        blow_up = BlowUp(time=time, state="v", component=(int(speed.argmax()),))
        states = {name: values[:-1] for name, values in run.states.items()}
        run = replace(run, t=run.t[:-1], states=states, blow_up=blow_up)
    if not max(np.abs(values).max() for values in run.states.values()) < LARGEST:
        raise ArithmeticError(f"The weights grow beyond {LARGEST:.0e}, too far to be squared. Pass a smaller `t1`.")
    return run


def _integrated(flow: JointFlow, t: np.ndarray, *, start: State | None = None, **options: Any) -> Trajectory:
    """Integrate v and z from a state at `t[0]`, in the order v₀, z₀, v₁, …: a banded system where tokens decouple."""
    start = flow.start_state if start is None else start
    options = (RELAXING | flow.coupling if flow.settles else {}) | options
    count, most = itertools.count(), MAX_EVALUATIONS + EVALUATIONS_PER_TOKEN * flow.v0.size
    if flow.solution(np.zeros(1)) is not None:
        most = MAX_WITH_CLOSED_FORM

    def field(time: float, state: State) -> State:
        if next(count) >= most:
            raise IntegratorGivesUp(
                f"the integrator has got to t = {time:.4g} of {t[-1]:.4g} after {most} evaluations: the rest is too "
                "long, or the flow too stiff",
                f"Pass a `t1` below {time:.4g}, or smaller targets.",
            )
        rates = flow.field(time, _apart(state))
        return {"v_z": np.column_stack((rates["v"], rates["z"]))}

    run = integrate(field, {"v_z": np.column_stack((start["v"], start["z"]))}, t, blow_up=NO_BOUND, **options)
    if run.blow_up is not None and isinstance(flow, RelaxingFlow):
        raise IntegratorGivesUp(
            f"the integrator stops at t = {run.blow_up.time:.6g}, though this flow does not diverge: it is too stiff",
            "Pass targets that are smaller, or nearer to each other.",
        )
    found, predicted = run.blow_up, flow.predicted_blow_up()
    # Steps may shrink to nothing long before the blow-up that the theory predicts.
    too_early = found is not None and predicted is not None and found.time < BEFORE_BLOW_UP * predicted.time
    if too_early or not np.isfinite(run["v_z"]).all():
        raise IntegratorGivesUp(
            f"the integrator cannot follow the flow beyond t = {run.t[-1] if run.t.size else t[0]:.6g}: it is too fast",
            "Pass a start or targets nearer to zero.",
        )
    return replace(run, states=_apart(run.states))


def _apart(state: State) -> State:
    return {"v": state["v_z"][..., 0], "z": state["v_z"][..., 1]}


def _grid(t1: float, num_points: int, first: float | None) -> Float[np.ndarray, " T"]:
    """Times from zero to t1, evenly spaced, or from `first` on evenly spaced in their logarithm."""
    if first is None:
        return np.linspace(0.0, t1, num_points)
    return np.append(0.0, np.geomspace(first, t1, num_points - 1))


FIRST_TIME = 1e-3  # first time after zero on a logarithmic grid, as a share of the time to settle or of an earlier end


@dataclass(frozen=True, kw_only=True, repr=False)
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
        return entropy(self.flow.log_attention(self.z))

    @property
    def predicted_blow_up(self) -> BlowUp | None:
        """The blow-up that the theory predicts, met or not."""
        return self.flow.predicted_blow_up()

    @property
    def title(self) -> str:
        """The flow in words, with its attention and activation."""
        activation = getattr(self.flow, "activation", None)
        name = f", {activation.name} activation" if activation else ""
        return f"{TITLES[self.config.flow]}: {self.flow.attention.kind} attention{name}"

    @property
    def log_time(self) -> bool:
        """Whether the reported times are evenly spaced in their logarithm."""
        return self.config.log_time(self.flow)

    def columns(self) -> dict[str, np.ndarray]:
        """Every reported quantity over time by name, in the order of the CSV file; NaN for what was not measured."""
        drift = np.full_like(self.t, np.nan) if self.drift is None else self.drift
        tables = {"t": self.t, "entropy": self.entropy, "drift": drift}
        tables |= {"v": self.v, "z": self.z, "attention": self.attention}
        if self.v_integrated is not None and self.exact:
            tables["v_integrated"] = self.v_integrated
        return as_columns(tables)

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
        rows = zip(*table.values(), strict=True)
        return [{"component": i} | dict(zip(table, map(float, row), strict=True)) for i, row in enumerate(rows)]

    def effects(self) -> dict[str, float]:
        """How the flow ends and what was measured, by name; what does not apply is left out.

        >>> simulate(targets=[1.0, 0.5]).effects()["blow-up: component"]
        0
        """
        values: dict[str, float | None] = {"end time": float(self.t[-1])}
        for name, found in (("blow-up", self.blow_up), ("blow-up by Theorem 2", self.predicted_blow_up)):
            if found is not None:
                values |= {f"{name}: time": found.time, f"{name}: component": found.component[0]}
        values |= {
            "distance of the closed form from the ODE": self.closed_form_distance,
            f"largest drift of {self.flow.conserved}": None if self.drift is None else float(self.drift.max()),
            "entropy at the start": self.rebound.start,
            "lowest entropy": self.rebound.lowest,
            "time of the lowest entropy": self.rebound.time,
            "entropy at the end": self.rebound.end,
            "rise of the entropy": self.rebound.rise,
        }
        return {name: value for name, value in values.items() if value is not None}

    def summary(self) -> str:
        """Return the flow as text: a row for each component, then how it ends and what was measured.

        >>> print(simulate(flow="printed", targets=[3.0, 1.0]).summary().partition("end time")[0])
        Eqn 6 as printed: exp attention
        component   target    start      end    limit  attention
                0        3        0        3        3     0.9820
                1        1        0   0.9991        1     0.0180
        <BLANKLINE>
        """
        rows = self.summary_rows()
        lines = [self.title, "component" + "".join(f"{name:>9}" for name in list(rows[0])[1:-1]) + "  attention"]
        for row in rows:
            index, *values, attention = row.values()
            lines.append(f"{index:>9}" + "".join(f"{value:>9.4g}" for value in values) + f"{attention:>11.4f}")
        return "\n".join([*lines, *(f"{name}: {value:.6g}" for name, value in self.effects().items())])

    __repr__ = __str__ = summary

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
            "components": [
                {name: value if np.isfinite(value) else None for name, value in row.items()}
                for row in self.summary_rows()
            ],
        }


def simulate(config: SimulationConfig | None = None, /, **options: Any) -> Simulation:
    """Solve a flow from its start to `t1` or to its blow-up; `options` are fields of the config to set or replace.

    >>> run = simulate(flow="saliency", targets=[1.0, 0.5])
    >>> run.blow_up.component, round(run.blow_up.time, 9), round(run.predicted_blow_up.time, 9)
    ((0,), 1.253314137, 1.253314137)
    >>> run.closed_form_distance < 1e-9
    True
    """
    known = [field.name for field in fields(SimulationConfig)]
    for name in options.keys() - set(known):
        raise UnknownNameError("option of a simulation", name, known, listing="`joma simulate --help`")
    config = replace(config or SimulationConfig(), **options)
    flow = config.build()
    natural = natural_end(flow)
    t1 = natural if config.t1 is None else float(config.t1)
    if not np.isfinite(t1):
        raise AssumptionError("The flow does not settle at its limits from this start. Pass `t1`, the time to end at.")
    if t1 > flow.latest():
        latest = f"{LARGEST:.0e} at t = {flow.latest():.6g}"
        raise ArithmeticError(f"The weights grow beyond {latest}, too far to be squared. Pass a smaller `t1`.")
    first = FIRST_TIME * min(t1, natural) if config.log_time(flow) else None
    run, obstacle = solve(flow, t1, config.num_points, first)
    v, z, exact = run["v"], run["z"], flow.solution(run.t)
    drift = distance = None
    if not obstacle:
        drift = np.abs(invariant_drift(v[:, None], z[:, None], flow.invariant)).max(axis=1)
        if exact is not None:
            distance = float((np.abs(exact - v) / np.maximum(1.0, np.abs(exact))).max())
    return Simulation(
        config=config,
        flow=flow,
        t=run.t,
        v=v if exact is None else exact,
        v_integrated=None if obstacle else v,
        z=z,
        drift=drift,
        rebound=dip(flow, run, integrated=not obstacle),
        closed_form_distance=distance,
        obstacle=obstacle,
        blow_up=run.blow_up,
        num_evaluations=run.num_evaluations,
    )
