r"""Weights v and attention logits z that learn together: what every flow of `simulate` has in common.

One hidden node, orthonormal embeddings. With attention $b = \sigma(z/T)/A$ that acts token by token, Eqn 2 reads

$$\dot v = b\circ q, \qquad \dot z = \frac{\eta_z}{\eta_w}\,\frac{\partial b}{\partial z}\circ v\circ q,$$

with a push $q$ that makes the difference between flows (`joma.theory.flows`). Neither Theorem 1 nor a closed form
enters, so that both can be measured along the integrated flow.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, finite, positive, same_shape, within
from joma.theory.attention import Attention, AttentionKind
from joma.theory.integrate import State
from joma.theory.invariants import Invariant
from joma.theory.tied_attention import TiedFlow
from joma.types import BlowUp

DECOUPLED = {"lband": 1, "uband": 1}
"""A token's v and z see each other and no other token's: the Jacobian has one diagonal on either side."""
LARGEST = 1e150
"""Size beyond which a number cannot be squared; exponential growth gets there, a blow-up does not."""
CONSERVED = {
    AttentionKind.LINEAR: "z² − (η_z/η_w)·v²",
    AttentionKind.EXP: "z − (η_z/2η_wT)·v²",
    AttentionKind.SOFTMAX: "Σ_l z_l",
}
"""What Theorem 1 says is conserved, for one hidden node; for softmax its assumption-free part."""


@dataclass(frozen=True, kw_only=True)
class JointFlow(ABC):
    """Weights v and attention logits z of one hidden node over M tokens, learning together."""

    attentions: ClassVar[tuple[AttentionKind, ...]] = (AttentionKind.EXP,)
    """Kinds of attention that the flow is known for, the default first."""
    activations: ClassVar[tuple[str, ...]] = ()
    """Names of activations that the flow takes, the default first; empty where there is none to choose."""
    default_temperature: ClassVar[float] = 1.0
    coupling: ClassVar[dict[str, int]] = {}
    """Options of an implicit integrator for states in the order v₀, z₀, v₁, z₁, …; none where all tokens interact."""
    target_symbol: ClassVar[str] = "μ"
    """What the paper calls the targets."""

    targets: Float[np.ndarray, " M"]
    r"""Saliencies $\Delta$, targets $\mu$, or the center of the positive cluster."""
    attention: Attention
    v0: Float[np.ndarray, " M"]
    """Start of v."""
    z0: Float[np.ndarray, " M"] | None = None
    """Start of z; when None the one that makes Theorem 1's constant zero (zero under softmax attention)."""
    rate_ratio: float = 1.0
    r"""$\eta_z / \eta_w$, the learning rate of the logits over that of the weights."""

    def __post_init__(self) -> None:
        """Refuse shapes that disagree, NaN, a rate that is not positive, and a start from which nothing moves."""
        targets = within("targets", self.targets, -LARGEST, LARGEST)
        same_shape(targets=targets, v0=finite("v0", self.v0))
        if self.z0 is not None:
            same_shape(targets=targets, z0=finite("z0", self.z0))
        positive("rate_ratio", self.rate_ratio)
        with np.errstate(over="ignore", invalid="ignore"):  # a start so far out that it moves at once
            rates = self.field(0.0, self.start_state)
        if not any(np.any(rate) for rate in rates.values()):
            raise AssumptionError(
                f"A simulation needs a start that moves: v and z stand still at their start under "
                f"{self.attention.kind} attention. Pass another `v0`, or targets other than 0."
            )

    @abstractmethod
    def field(self, t: float, state: State) -> State:
        r"""$\dot v$ and $\dot z$ from v and z, as `integrate` takes it."""

    @property
    def invariant(self) -> Invariant:
        """What Theorem 1 says the flow conserves."""
        return Invariant(attention=self.attention, rate_ratio=self.rate_ratio)

    @property
    def conserved(self) -> str:
        """The same in plain mathematics."""
        return CONSERVED[self.attention.kind]

    @cached_property
    def start_state(self) -> State:
        """v and z at time zero."""
        return {"v": self.v0, "z": self._tied_start() if self.z0 is None else self.z0}

    def _tied_start(self) -> Float[np.ndarray, " M"]:
        """Logits for which Theorem 1's quantity is zero; of the two roots for linear attention the positive one."""
        kind = self.invariant.attention.kind
        if kind is AttentionKind.SOFTMAX:
            return np.zeros_like(self.v0)
        logit_part = self.invariant.coefficient() * np.square(self.v0)
        return np.sqrt(logit_part) if kind is AttentionKind.LINEAR else logit_part

    def log_attention(self, z: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\ln|\sigma(z/T)|$ up to a constant: attention over tokens, normalised, is the softmax of this."""
        if self.attention.kind is AttentionKind.LINEAR:
            with np.errstate(divide="ignore"):  # a logit of zero has no attention
                return np.log(np.abs(z))
        return z / self.attention.temperature

    @classmethod
    def default_start(
        cls, targets: Float[np.ndarray, " M"], attention: AttentionKind, activation: str
    ) -> Float[np.ndarray, " M"]:
        """Start of v where none is asked for: zero, or a small one where zero is a stationary point."""
        return np.zeros_like(targets)

    def solution(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"] | None:
        """Exact v(t), by a closed form or one quadrature; None where none is known."""
        return None

    def tied_logits(self, v: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T M"] | None:
        """Logits that Theorem 1 ties to the closed form's v; None where v does not determine them."""
        return None

    def limits(self) -> Float[np.ndarray, " M"] | None:
        """Where v ends according to the theory; None where it ends nowhere or nothing is known."""
        return None

    def predicted_blow_up(self) -> BlowUp | None:
        """Time and component of the blow-up according to the theory; None where there is none or it is not known."""
        return None

    def span(self) -> float:
        """End time to take where none is asked for; where the flow has limits, a first guess of the time to settle."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TokenwiseFlow(JointFlow):
    """A flow under linear or exp attention, where every token has its own attention $b_l = σ(z_l/T)/A$."""

    @abstractmethod
    def push(self, v: Float[np.ndarray, " M"], b: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        r"""$q$, the velocity of v for each unit of attention."""

    def field(self, t: float, state: State) -> State:
        r"""$\dot v = b\circ q$ and $\dot z = (\eta_z/\eta_w)\,\partial b/\partial z\circ v\circ q$."""
        v, z = state["v"], state["z"]
        every = np.ones_like(z)
        b = self.attention.scores(z, every, checked=False)
        q = self.push(v, b)
        return {"v": b * q, "z": self.rate_ratio * self.attention.pull_back(z, every, v * q, checked=False)}

    @property
    def scales(self) -> dict[str, Any]:
        """The constants that every closed form takes."""
        return {
            "normalisation": self.attention.normalisation,
            "temperature": self.attention.temperature,
            "rate_ratio": self.rate_ratio,
        }


@dataclass(frozen=True, kw_only=True)
class RelaxingFlow(TokenwiseFlow):
    """A flow to a target under exp attention that is solved exactly once Theorem 1 ties z to v."""

    coupling = DECOUPLED

    @property
    @abstractmethod
    def tied(self) -> TiedFlow:
        """The flow of v alone."""

    def solution(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"]:
        """Exact v(t), by inverting one quadrature."""
        return self.tied.solution(t)

    def tied_logits(self, v: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T M"]:
        r"""$z = T(\ln a + \ln A)$."""
        return self.tied.logits(v)

    def limits(self) -> Float[np.ndarray, " M"]:
        """The critical point."""
        return self.tied.critical_point()

    def span(self) -> float:
        """The time constant of the slowest component near its target."""
        return 1 / float(self.tied.local_rates().min())
