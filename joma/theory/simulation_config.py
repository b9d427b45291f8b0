"""What `simulate` can be asked for: one frozen config, checked as a whole, and the settings of the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float

from joma.errors import UnknownNameError, finite, positive, whole
from joma.theory.activations import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.flows import flow_class
from joma.theory.joint_flow import JointFlow

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
        whole("num_points", self.num_points, low=MIN_POINTS)
        if self.spacing not in (None, *SPACINGS):
            raise UnknownNameError("spacing", str(self.spacing), SPACINGS)
        whole("seed", self.seed, low=0)
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
            return int(whole("num_components", asked, low=1))
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
