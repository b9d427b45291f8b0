"""What the sliders ask for, checked, and the curves that answer: one simulation with all that its charts draw."""

import itertools
import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.claims.table import short
from joma.theory.activations import ACTIVATIONS
from joma.theory.attention import AttentionKind
from joma.theory.flows import FLOWS, TITLES, ClusterFlow, JointFlow, SaliencyFlow, TokenwiseFlow, flow_class
from joma.theory.invariants import invariant_drift
from joma.theory.rebound import entropy
from joma.theory.simulation import Simulation, SimulationConfig, simulate

Value = str | int | float

OWN = ""
"""Stands for the attention or the activation that the flow is about."""
KEPT_ANSWERS = 256
NUM_POINTS = 120
"""Times of a curve: enough for half the width of a screen, and few enough to draw at once."""
MAX_LETTERS = 40
"""Letters of a refused value that are repeated."""
DIGITS, MANY_DIGITS = 4, 6
"""Significant digits of the numbers that are sent, and of those whose axis may show a small range only."""
ARROWS = (13, 9)
"""Arrows of the phase portrait along v and along z."""
ARROW_LENGTH = 0.6
"""Of an arrow, in cells of that grid."""
FLOOR = 1e-17
"""A drift below this is drawn here: a logarithmic axis has no zero."""


@dataclass(frozen=True, slots=True)
class Slider:
    """A slider over values, or a list of names to choose from."""

    name: str
    label: str
    values: tuple[Value, ...]
    start: Value
    titles: tuple[str, ...] = ()
    """Names in words, where they can be chosen from."""

    def read(self, text: str) -> Value:
        """Return a value from an address, refusing what is no number, out of range or no known name."""
        shown = text[:MAX_LETTERS]
        if isinstance(self.start, str):
            if text not in self.values:
                names = ", ".join(str(value) for value in self.values if value)
                raise ValueError(f"`{self.name}` must be one of {names}, got {shown!r}. Choose one of them.")
            return text
        low, high = min(map(float, self.values)), max(map(float, self.values))
        try:
            value = type(self.start)(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            kind = "a whole number" if isinstance(self.start, int) else "a number"
            raise ValueError(f"`{self.name}` must be {kind} from {low:g} to {high:g}, got {shown!r}. Move the slider.")
        return value


def _between(low: float, high: float, step: float) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in np.arange(low, high + step / 2, step))


TEMPERATURES = (0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 3.5, 4.0)
RATIOS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
SLIDERS = (
    Slider("flow", "flow", tuple(FLOWS), "printed", tuple(TITLES[name] for name in FLOWS)),
    Slider("attention", "attention", (OWN, *(kind.value for kind in AttentionKind)), OWN),
    Slider("activation", "activation", (OWN, *ACTIVATIONS), OWN),
    Slider("low", "smallest target μ or Δ", _between(-4, 4, 0.25), 1.0),
    Slider("high", "largest target μ or Δ", _between(-3.75, 5, 0.25), 4.0),
    Slider("temperature", "temperature T", TEMPERATURES, 1.0),
    Slider("rate_ratio", "rate ratio η_z/η_w", RATIOS, 1.0),
    Slider("tokens", "tokens (width)", tuple(range(2, 31)), 10),
    Slider("noise", "noise of the start", _between(0, 1, 0.05), 0.0),
    Slider("seed", "seed", tuple(range(21)), 0),
)
"""What can be moved, in the order of the page."""
STARTS = {name: {"temperature": flow_class(name).default_temperature} for name in FLOWS}
"""What choosing a flow sets, besides its own attention and activation."""


def answer(asked: dict[str, str], num_points: int = NUM_POINTS) -> dict[str, Any]:
    """Return all curves for the values of an address; the rest is at its start. An error is one line of text."""
    try:
        known = {control.name: control for control in SLIDERS}
        for name in asked.keys() - known.keys():
            raise ValueError(f"There is no slider {name[:MAX_LETTERS]!r}. Leave it out.")
        chosen = {name: each.read(asked[name]) if name in asked else each.start for name, each in known.items()}
        return _answer(tuple(_explicit(chosen).items()), num_points)
    except (ValueError, ArithmeticError) as error:
        return {"error": " ".join(str(error).split())}


def _explicit(chosen: dict[str, Value]) -> dict[str, Value]:
    """Name the flow's own attention and activation, so that equal settings are computed once."""
    kind = AttentionKind(str(chosen["attention"])) if chosen["attention"] else None
    cls = flow_class(str(chosen["flow"]), kind)
    own = {"attention": (kind or cls.attentions[0]).value, "activation": next(iter(cls.activations), OWN)}
    return {name: value or own.get(name, value) for name, value in chosen.items()}


_one_at_a_time = Lock()
"""LSODA cannot be called from two threads at once."""


@lru_cache(maxsize=KEPT_ANSWERS)
def _answer(settings: tuple[tuple[str, Value], ...], num_points: int) -> dict[str, Any]:
    chosen: dict[str, Any] = dict(settings)
    options = {name: chosen[name] for name in ("flow", "attention", "temperature", "rate_ratio", "seed")}
    options |= {"targets": f"uniform:{chosen['low']:g}:{chosen['high']:g}", "num_components": chosen["tokens"]}
    options |= {"activation": chosen["activation"]} if chosen["activation"] else {}
    if noise := chosen["noise"]:
        start = SimulationConfig(**options).build().v0
        moved = start + noise * np.random.default_rng([chosen["seed"], 3]).normal(size=start.size)
        options["v0"] = moved.round(4).tolist()
    with _one_at_a_time:
        run = simulate(num_points=num_points, **options)
    call = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return curves(run) | {"call": f"joma.simulate({call})"}


def curves(run: Simulation) -> dict[str, Any]:
    """Return what the charts of a simulation draw, as plain types: a list for each token or time."""
    rows = slice(1 if run.log_time else 0, None)  # a logarithmic axis has no zero
    flow, t, dip = run.flow, run.t[rows], run.rebound
    limits = flow.limits()
    order = np.argsort(flow.targets, kind="stable")[::-1]
    return {
        "title": run.title,
        "log": run.log_time,
        "t": _plain(t, MANY_DIGITS),
        "names": [f"{flow.target_symbol} = {target:.3g}" for target in flow.targets[order]],
        "targets": _plain(flow.targets[order]),
        **{name: _plain(values[rows, order].T) for name, values in _by_token(run).items()},
        "entropy": _plain(run.entropy[rows], MANY_DIGITS),
        "uniform": math.log(flow.targets.size),
        "dip": {name: float(getattr(dip, name)) for name in ("time", "lowest", "drop", "rise")} if dip.occurs else None,
        "limits": [] if limits is None else _plain(limits[order]),
        "blow_up": None if run.blow_up is None else run.blow_up.time,
        "arrows": _arrows(run),
        "conserved": flow.conserved,
        "drift": {name: _plain(np.maximum(values[rows], FLOOR)) for name, values in _drifts(run).items()},
        "law": _law(run, rows),
        "facts": [[name, short(value)] for name, value in run.effects().items()],
        "obstacle": run.obstacle,
    }


def _by_token(run: Simulation) -> dict[str, Float[np.ndarray, "T M"]]:
    return {"v": run.v, "z": run.z, "attention": run.attention}


def _arrows(run: Simulation) -> list[list[float | None]]:
    """Return the ends of arrows along (v̇, ż) of the token with the largest target, where tokens do not interact."""
    flow = run.flow
    if not isinstance(flow, TokenwiseFlow) or isinstance(flow, ClusterFlow):
        return []
    lowest, highest = (np.array([end(run.v), end(run.z)]) for end in (np.min, np.max))
    cell = (highest - lowest) / (np.array(ARROWS) - 1)
    if not (cell > 0).all():
        return []
    sides = (np.linspace(*ends) for ends in zip(lowest, highest, ARROWS, strict=True))
    v, z = (side.ravel() for side in np.meshgrid(*sides))
    lead = np.full(v.size, flow.targets[np.abs(flow.targets).argmax()])
    rates = replace(flow, targets=lead, v0=v, z0=z).field(0.0, {"v": v, "z": z})
    direction = np.column_stack((rates["v"], rates["z"])) / cell
    size = np.hypot(*direction.T)[:, None]
    half = ARROW_LENGTH / 2 * cell * np.divide(direction, size, out=np.zeros_like(direction), where=size > 0)
    middle = np.column_stack((v, z))
    return _plain(np.hstack((middle - half, middle + half)))


def _drifts(run: Simulation) -> dict[str, Float[np.ndarray, " T"]]:
    """Return the drift of Theorem 1's constant over time: corrected, and as printed, without T and learning rates."""
    if run.drift is None or run.v_integrated is None:
        return {}
    found = {"corrected": run.drift}
    attention = run.flow.attention
    if attention.kind is not AttentionKind.SOFTMAX:
        printed = replace(run.flow.invariant, attention=replace(attention, temperature=1.0), rate_ratio=1.0)
        found["printed"] = np.abs(invariant_drift(run.v_integrated[:, None], run.z[:, None], printed)).max(axis=1)
    return found


def _law(run: Simulation, rows: slice) -> dict[str, Any] | None:
    """Return a printed law and the corrected one along the run; None where the paper prints none for the flow."""
    flow, t = run.flow, run.t[rows]
    if isinstance(flow, SaliencyFlow) and flow.is_theorem2:
        v = run.v[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            printed = special.erf(v / 2) / flow.targets
        about = (
            "Theorem 2 says that all tokens share one curve: erf(v/2)/Δ as printed; erf(v√(η_z/2η_w)/T)/Δ corrected."
        )
        return {
            "about": about,
            "printed": _plain(printed.T),
            "corrected": _plain(flow.theorem2.invariant(v[:, None]).T),
        }
    if run.config.flow not in ("printed", "model", "normalised") or flow.attention.kind is AttentionKind.LINEAR:
        return None
    found = {}
    for law, name in {"printed": "printed", "corrected": "model"}.items():
        curve = run.entropy[rows] if name == run.config.flow else _exact_entropy(run.config, name, t)
        found[law] = [_plain(curve, MANY_DIGITS)]
    about = "Attention entropy under Eqn 6 as printed, and under the flow that exp attention has, from the same start."
    return {"about": about, **found}


def _exact_entropy(config: SimulationConfig, flow: str, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
    """Return the entropy by the closed form of a flow with targets μ under exp attention."""
    joint: JointFlow = replace(config, flow=flow, attention=AttentionKind.EXP.value).build()
    states = joint.exact(t)
    assert states is not None
    return entropy(joint.log_attention(states["z"]))


def _plain(values: Float[np.ndarray, "..."], digits: int = DIGITS) -> list[Any]:
    """Return nested lists of numbers with few digits, None for what is not finite."""
    if values.ndim > 1:
        return [_plain(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]


FEW: dict[str, tuple[Value, ...]] = {
    "flow": tuple(FLOWS),
    "attention": (OWN, *(kind.value for kind in AttentionKind)),
    "activation": (OWN, "relu", "tanh"),
    "high": (2.5, 4.0),
    "temperature": (0.5, 1.0, 3.0),
    "rate_ratio": (1.0, 2.0),
    "noise": (0.0, 0.3),
}
"""Values of the page without a server, whose answers are computed beforehand."""
FEW_POINTS, FEW_TOKENS = 50, 8


def few_controls() -> list[Slider]:
    """Return the controls of the page without a server."""
    return [replace(each, values=FEW[each.name]) for each in SLIDERS if each.name in FEW]


def grid() -> dict[str, Any]:
    """Return the answers to all combinations of few values, each once; in `index` the last control counts fastest."""
    controls, answers = few_controls(), dict[str, int]()
    index = []
    for values in itertools.product(*(control.values for control in controls)):
        asked = {control.name: str(value) for control, value in zip(controls, values, strict=True)}
        found = json.dumps(answer(asked | {"tokens": str(FEW_TOKENS)}, FEW_POINTS), allow_nan=False)
        index.append(answers.setdefault(found, len(answers)))
    return {"index": index, "answers": [json.loads(text) for text in answers]}
