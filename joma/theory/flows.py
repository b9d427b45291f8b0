r"""The flows that `simulate` knows: weights v and attention logits z of one hidden node that learn together.

Orthonormal embeddings. With attention $b = \sigma(z/T)/A$ that acts token by token, Eqn 2 reads

$$\dot v = b\circ q, \qquad \dot z = \frac{\eta_z}{\eta_w}\,\frac{\partial b}{\partial z}\circ v\circ q,$$

with a push $q$ that makes the difference between flows. `saliency`: $q = \Delta\circ\phi'(v\circ b)$, Section 3.1.
`printed`: $q = \mu - v$, Eqn 6. `model`: $q = \mu - v\circ b$, the flow that exp attention really gives. `common`: the
same for many queries that share a vector. `clusters`: $q = \Phi(v\circ b)$, Lemma 2 with attention. `normalised`: the
variant of Eqn 6 used for the paper's figure 4. Softmax attention couples the tokens and has separate classes. Neither
Theorem 1 nor a closed form enters the fields, so that both can be measured along the integrated flow.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from joma.errors import AssumptionError, UnknownNameError, finite, positive, shaped, whole, within
from joma.theory.activations import ACTIVATIONS, Activation, linear, relu
from joma.theory.attention import Attention, AttentionKind
from joma.theory.attention_flow import AttentionFlow, LinearAttentionFlow
from joma.theory.convergence import ConvergenceFlow, TiedFlow
from joma.theory.critical_points import critical_points
from joma.theory.integrate import State
from joma.theory.invariants import Invariant
from joma.theory.isotropic import Gaussian
from joma.theory.mixture import Mixture, two_clusters
from joma.theory.winner_take_all import LinearFlow
from joma.types import BlowUp, keep

Tokens = Float[np.ndarray, " M"]
"""A number for each token."""

DECOUPLED = {"lband": 1, "uband": 1}
"""A token's v and z see each other and no other token's: the Jacobian has one diagonal on either side."""
LARGEST = 1e150  # size beyond which a number cannot be squared; exponential growth gets there, a blow-up does not


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
    start_size: ClassVar[float] = 0.05
    """Start of v where zero is a stationary point, with the sign of the target; that of the paper's figure 4."""
    target_symbol: ClassVar[str] = "μ"
    """What the paper calls the targets."""
    laws: ClassVar = {
        AttentionKind.LINEAR: "z² − (η_z/η_w)·v²",
        AttentionKind.EXP: "z − (η_z/2η_wT)·v²",
        AttentionKind.SOFTMAX: "Σ_l z_l",
    }
    """What Theorem 1 says is conserved, for one hidden node; for softmax its assumption-free part."""

    targets: Tokens
    r"""Saliencies $\Delta$, targets $\mu$, or the center of the positive cluster."""
    attention: Attention
    v0: Tokens
    """Start of v."""
    z0: Tokens | None = None
    """Start of z; when None the one that makes Theorem 1's constant zero (zero under softmax attention)."""
    rate_ratio: float = 1.0
    r"""$\eta_z / \eta_w$, the learning rate of the logits over that of the weights."""

    def __post_init__(self) -> None:
        targets, v0, z0 = shaped("M, M, M", targets=self.targets, v0=self.v0, z0=self.z0)
        within("targets", targets, -LARGEST, LARGEST)
        keep(self, targets=targets, v0=v0, z0=z0, rate_ratio=float(positive("rate_ratio", self.rate_ratio)))
        with np.errstate(over="ignore", invalid="ignore"):  # a start so far out that it moves at once
            rates = self.field(0.0, self.start_state)
        if not any(np.any(rate) for rate in rates.values()):
            raise AssumptionError(
                f"A simulation needs a start that moves: v and z stay at their start under "
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
        return self.laws[self.attention.kind]

    @cached_property
    def start_state(self) -> State:
        """v and z at time zero; of the two roots for linear attention the positive one."""
        kind, z = self.invariant.attention.kind, self.z0
        if z is None and kind is AttentionKind.SOFTMAX:
            z = np.zeros_like(self.v0)
        elif z is None:
            z = self.invariant.coefficient() * np.square(self.v0)
            z = np.sqrt(z) if kind is AttentionKind.LINEAR else z
        return {"v": self.v0, "z": z}

    def log_attention(self, z: Float[np.ndarray, "*T M"]) -> Float[np.ndarray, "*T M"]:
        r"""$\ln|\sigma(z/T)|$ up to a constant: attention over tokens, normalised, is the softmax of this."""
        if self.attention.kind is AttentionKind.LINEAR:
            with np.errstate(divide="ignore"):  # a logit of zero has no attention
                return np.log(np.abs(z))
        return z / self.attention.temperature

    @classmethod
    def default_start(cls, targets: Tokens, attention: AttentionKind, activation: str) -> Tokens:
        """Default start of v: zero as in the paper, unless linear attention or ReLU would stay there."""
        stays_at_zero = attention is AttentionKind.LINEAR or activation == relu.name
        return cls.start_size * np.sign(targets) * stays_at_zero

    def exact(self, t: Float[np.ndarray, " T"]) -> State | None:
        """v and z by a closed form or one quadrature; None where none is known."""
        return None

    def solution(self, t: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T M"] | None:
        """Exact v(t); None where no closed form is known."""
        states = self.exact(t)
        return None if states is None else states["v"]

    def limits(self) -> Tokens | None:
        """Where v ends according to the theory; None where it ends nowhere or nothing is known."""
        return None

    def predicted_blow_up(self) -> BlowUp | None:
        """Time and component of the blow-up according to the theory; None where there is none or it is not known."""
        return None

    @property
    def settles(self) -> bool:
        """Whether the flow ends at limits, and not in a blow-up."""
        return self.limits() is not None and self.predicted_blow_up() is None

    def span(self) -> float:
        """Default end time; where the flow has limits, a first guess of the time to settle."""
        return 1.0

    def latest(self) -> float:
        """Time at which weights are too large to be squared, where that is known beforehand; infinite elsewhere."""
        return np.inf


@dataclass(frozen=True, kw_only=True)
class TokenwiseFlow(JointFlow):
    """A flow under linear or exp attention, where every token has its own attention $b_l = σ(z_l/T)/A$."""

    def push(self, v: Tokens, b: Tokens) -> Tokens:
        r"""$q$, the velocity of v for each unit of attention: $\mu - v$ for flows that do not say otherwise."""
        return self.targets - v

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
    tied_class: ClassVar[type[TiedFlow]]

    @cached_property
    def tied(self) -> TiedFlow:
        """The flow of v alone."""
        return self.tied_class(mu=self.targets, v0=self.v0, z0=self.start_state["z"], **self.scales)

    def exact(self, t: Float[np.ndarray, " T"]) -> State:
        r"""v by inverting one quadrature, and $z = T(\ln a + \ln A)$."""
        v = self.tied.solution(t)
        with np.errstate(over="ignore"):  # weights too large to be squared
            return {"v": v, "z": self.tied.logits(v)}

    def limits(self) -> Tokens:
        """The critical point."""
        return self.tied.critical_point()

    def span(self) -> float:
        """The time constant of the slowest component near its target."""
        return 1 / float(self.tied.local_rates().min())


PAST_BLOW_UP = 1.1  # default end over the blow-up time of Theorem 2, so that a run meets it
PAST_LINEAR_BLOW_UP = 4.0  # the same for a nonlinear activation, whose own blow-up, if any, is not known beforehand
EFOLDS_OF_GROWTH = 5.0  # default end under linear attention, where the winner grows exponentially
SOFTMAX_SPAN = 8.0  # default end under softmax attention, in units of 1 / max|Δ|, where growth is linear
AT_ZERO = 1e-6  # weights of clusters this far below their start count as zero
BACKGROUND = 0.5  # share of every sample that is spread evenly over all tokens, under softmax attention


@dataclass(frozen=True, kw_only=True)
class SaliencyFlow(TokenwiseFlow):
    r"""Constant saliencies $\Delta$: every sample is one token l, so that $E[gx_l] = \Delta_l$ and $h = v_lb_l$.

    With a linear activation this is Section 3.1 for any data, and with exp attention Theorem 2. The query's own
    contribution to h, the implicit bias, is left out.

    >>> flow = SaliencyFlow(targets=np.array([0.5, 1.0]), v0=np.zeros(2), attention=Attention(kind=AttentionKind.EXP))
    >>> flow.predicted_blow_up().component
    (1,)
    """

    attentions = (AttentionKind.EXP, AttentionKind.LINEAR)
    activations = tuple(ACTIVATIONS)
    target_symbol = "Δ"

    activation: Activation = linear

    def push(self, v: Tokens, b: Tokens) -> Tokens:
        r"""$\Delta\circ\phi'(v\circ b)$."""
        return self.targets * self.activation.derivative(v * b)

    def exact(self, t: Float[np.ndarray, " T"]) -> State | None:
        r"""Theorem 2 for exp attention, hyperbolic functions for linear attention; known for a linear activation.

        $v = v_0\cosh\omega t + z_0q^{-1/2}\sinh\omega t$, $z = z_0\cosh\omega t + v_0q^{1/2}\sinh\omega t$ with
        $q = \eta_z/\eta_w$ and $\omega = \Delta\sqrt q/(AT)$.
        """
        if self.activation.name != linear.name:
            return None
        if self.attention.kind is AttentionKind.EXP:
            path = self.theorem2.solution(t)
            return {"v": path[:, 0], "z": self.theorem2.logits(path)}
        growth = finite("t", t)[:, None] * self._growth_rates
        v0, z0, root = self.v0, self.start_state["z"], np.sqrt(self.rate_ratio)
        cosh, sinh = np.cosh(growth), np.sinh(growth)
        return {"v": v0 * cosh + z0 / root * sinh, "z": z0 * cosh + root * v0 * sinh}

    def latest(self) -> float:
        r"""Time at which $e^{\omega t}$ times the start is too large, under linear attention without saturation."""
        if self.attention.kind is not AttentionKind.LINEAR or self.activation.slopes is None:
            return np.inf
        largest = max(np.abs(values).max() for values in self.start_state.values())
        return float(np.log(LARGEST / largest) / np.abs(self._growth_rates).max())

    def limits(self) -> Tokens | None:
        """Values at the blow-up of Theorem 2, infinite for the winner; other saliency flows end nowhere."""
        return self.theorem2.limits()[0] if self.is_theorem2 else None

    def predicted_blow_up(self) -> BlowUp | None:
        """Theorem 2: exp attention and a linear activation."""
        if not self.is_theorem2:
            return None
        return BlowUp(time=self.theorem2.blow_up_time(), state="v", component=(self.theorem2.winner(),))

    def span(self) -> float:
        """A little past the blow-up of Theorem 2, or a few e-folds of growth under linear attention."""
        if self.attention.kind is AttentionKind.LINEAR:
            return EFOLDS_OF_GROWTH / float(np.abs(self._growth_rates).max())
        return self.theorem2.blow_up_time() * (PAST_BLOW_UP if self.is_theorem2 else PAST_LINEAR_BLOW_UP)

    @property
    def is_theorem2(self) -> bool:
        """Exp attention and a linear activation."""
        return self.attention.kind is AttentionKind.EXP and self.activation.name == linear.name

    @property
    def _growth_rates(self) -> Tokens:
        return self.targets * np.sqrt(self.rate_ratio) / (self.attention.normalisation * self.attention.temperature)

    @cached_property
    def theorem2(self) -> LinearFlow:
        """Theorem 2 with this start, and the constants of this attention."""
        return LinearFlow(delta=self.targets[None], v0=self.v0[None], z0=self.start_state["z"], **self.scales)


@dataclass(frozen=True, kw_only=True)
class SoftmaxSaliencyFlow(JointFlow):
    r"""Saliencies $\Delta$ under softmax attention: M samples, half of each its own token, half spread over all.

    $x[i] = (1-c)\,e_i + c\,\mathbf 1/M$ with $c = 1/2$, since a sample of one token has nothing to choose from, and
    gradients $\gamma_i = p_ig_i = (\Delta_i - c\,\bar\Delta)/(1-c)$, for which $E[gx] = \Delta$ exactly. Eqn 2 then is
    $\dot v = \sum_i\gamma_i\phi'(v^\top b[i])\,b[i]$. Nothing blows up: scores are at most one.
    """

    attentions = (AttentionKind.SOFTMAX,)
    activations = tuple(ACTIVATIONS)
    target_symbol = "Δ"

    activation: Activation = linear

    @cached_property
    def samples(self) -> Float[np.ndarray, "M M"]:
        """Token frequencies x[i], one row for each sample."""
        return (1 - BACKGROUND) * np.eye(self.targets.size) + BACKGROUND / self.targets.size

    @cached_property
    def gradients(self) -> Tokens:
        r"""$\gamma_i$, the backpropagated gradient of each sample times its probability."""
        return (self.targets - BACKGROUND * self.targets.mean()) / (1 - BACKGROUND)

    def field(self, t: float, state: State) -> State:
        r"""Eqn 2: $\dot v = \sum_is_i\,b[i]$ and $\dot z = (\eta_z/\eta_w)\sum_is_i(\partial b[i]/\partial z)^\top v$.

        $s_i = \gamma_i\phi'(v^\top b[i])$.
        """
        v, z = state["v"], np.broadcast_to(state["z"], self.samples.shape)
        b = self.attention.scores(z, self.samples, checked=False)
        slope = self.gradients * self.activation.derivative(b @ v)
        along_v = self.attention.pull_back(z, self.samples, np.broadcast_to(v, self.samples.shape), checked=False)
        return {"v": slope @ b, "z": self.rate_ratio * slope @ along_v}

    def span(self) -> float:
        """A multiple of the time in which the winner would reach one."""
        return SOFTMAX_SPAN / float(np.abs(self.targets).max())


@dataclass(frozen=True, kw_only=True)
class PrintedFlow(RelaxingFlow):
    r"""Eqn 6 as printed, $\dot v = (\mu - v)\circ e^{z/T}/A$: attention in front of the gradient only."""

    tied_class = ConvergenceFlow


@dataclass(frozen=True, kw_only=True)
class ModelFlow(RelaxingFlow):
    r"""The flow that the model has, $\dot v = b\circ(\mu - v\circ b)$: attention inside the activation too."""

    tied_class = AttentionFlow

    def push(self, v: Tokens, b: Tokens) -> Tokens:
        r"""$\mu - v\circ b$, zero at $v^* = \operatorname{sgn}(\mu)\sqrt{W(A^2\mu^2)}$."""
        return self.targets - v * b


@dataclass(frozen=True, kw_only=True)
class CommonVectorFlow(ModelFlow):
    r"""The model's flow for many queries with one target, whose embeddings share a vector: see `common_vector`.

    The logits' matrix moves every query's logits by $1/Q + s$ of the whole gradient, in place of $1/Q$.
    """

    laws: ClassVar = {AttentionKind.EXP: "z − (1/Q + s)·(η_z/2η_wT)·v²"}

    common: float = 1.0
    r"""s, the squared norm of the common vector over that of an embedding; zero is the control."""
    num_queries: int = 100
    """Q, all of them equally frequent."""

    def __post_init__(self) -> None:
        keep(self, common=float(within("common", self.common, 0, LARGEST)))
        keep(self, num_queries=int(whole("num_queries", self.num_queries, low=1)))
        super().__post_init__()

    @property
    def effective_ratio(self) -> float:
        r"""$\frac{\eta_z}{\eta_w}(\frac1Q + s)$."""
        return self.rate_ratio * (1 / self.num_queries + self.common)

    @property
    def invariant(self) -> Invariant:
        r"""Theorem 1 with the effective ratio."""
        return Invariant(attention=self.attention, rate_ratio=self.effective_ratio)

    @property
    def scales(self) -> dict[str, Any]:
        """The constants of the closed form."""
        return super().scales | {"rate_ratio": self.effective_ratio}

    def field(self, t: float, state: State) -> State:
        """As for every tokenwise flow, the logits by all queries together."""
        rates = super().field(t, state)
        return {"v": rates["v"], "z": rates["z"] * self.effective_ratio / self.rate_ratio}


@dataclass(frozen=True, kw_only=True)
class LinearPrintedFlow(TokenwiseFlow):
    r"""Eqn 6 with linear attention, $\dot v = (\mu - v)\circ z/(AT)$: logistic where $z^2 = (\eta_z/\eta_w)v^2$."""

    attentions = (AttentionKind.LINEAR,)
    coupling = DECOUPLED

    @cached_property
    def charges(self) -> Tokens:
        r"""$c = z^2 - (\eta_z/\eta_w)v^2$ at the start."""
        return np.zeros_like(self.v0) if self.z0 is None else self.z0**2 - self.rate_ratio * self.v0**2

    @property
    def reaches_targets(self) -> bool:
        """Whether the attention stays positive up to the targets: it does not if v has to pass zero without charge."""
        passes_zero = self.v0 * self.targets <= 0
        charged = (self.charges > 0) | ((self.charges == 0) & ~passes_zero)
        return bool(charged.all() and (self.start_state["z"] > 0).all())

    def exact(self, t: Float[np.ndarray, " T"]) -> State | None:
        r"""v and $z = \sqrt{(\eta_z/\eta_w)v^2 + c}$ where the targets are reached."""
        if not self.reaches_targets:
            return None
        temperature = self.attention.normalisation * self.attention.temperature
        flow = LinearAttentionFlow(
            mu=self.targets, v0=self.v0, charge=self.charges, temperature=temperature, rate_ratio=self.rate_ratio
        )
        v = flow.solution(t)
        return {"v": v, "z": flow.logits(v)}

    def limits(self) -> Tokens | None:
        r"""$\mu$, where it is reached."""
        return self.targets if self.reaches_targets else None

    def span(self) -> float:
        """The time constant of the most salient component."""
        rates = np.abs(self.targets) * np.sqrt(self.rate_ratio)
        scale = self.attention.normalisation * self.attention.temperature
        return float(scale / (rates.max() or 1.0))


@dataclass(frozen=True, kw_only=True)
class NormalisedFlow(JointFlow):
    r"""The variant used for the paper's figure 4, $\dot v = (\mu - v)\circ\mathrm{softmax}(v^2/T)$ with $T = 3$.

    As a joint flow: softmax(z/T) with $\dot z = 2v\circ\dot v$, the law of exp attention and not of softmax.
    """

    attentions = (AttentionKind.SOFTMAX,)
    default_temperature = 3.0
    laws: ClassVar = {AttentionKind.SOFTMAX: "z − (η_z/η_w)·v²"}

    @property
    def invariant(self) -> Invariant:
        r"""$z - (\eta_z/\eta_w)v^2$: Theorem 1's for exp attention, at $2T$ times the rate."""
        exp = Attention(kind=AttentionKind.EXP, temperature=self.attention.temperature)
        return Invariant(attention=exp, rate_ratio=2 * exp.temperature * self.rate_ratio)

    def field(self, t: float, state: State) -> State:
        r"""$\dot v = (\mu - v)\circ\mathrm{softmax}(z/T)$ and $\dot z = 2(\eta_z/\eta_w)\,v\circ\dot v$."""
        v, z = state["v"], state["z"]
        v_dot = (self.targets - v) * self.attention.scores(z, np.ones_like(z), checked=False)
        return {"v": v_dot, "z": 2 * self.rate_ratio * v * v_dot}

    def limits(self) -> Tokens:
        r"""$\mu$."""
        return self.targets

    def span(self) -> float:
        """The time constant of uniform attention."""
        return float(self.targets.size)


@dataclass(frozen=True, kw_only=True)
class ClusterFlow(TokenwiseFlow):
    r"""Two Gaussian clusters, ReLU and exp attention: $\dot v = b\circ\Phi(v\circ b)$ with the field $\Phi$ of Lemma 2.

    The positive cluster lies at `targets` with weight one, the negative one at the origin. The bias is frozen, without
    which there is nothing to converge to (Theorem 3).
    """

    activations = ("relu",)
    start_size = 0.5  # from near zero a node with a negative bias sees no sample at all
    target_symbol = "x̄₊"

    bias: float = -1.0
    r"""$\xi^*$."""
    negative_weight: float = 4.0
    r"""$a_-/a_+$."""

    def field(self, t: float, state: State) -> State:
        """As for every tokenwise flow, refusing weights that reach zero where the field jumps there."""
        if self.bias == 0 and np.abs(state["v"]).max() <= AT_ZERO * np.abs(self.v0).max():
            raise AssumptionError(
                f"The weights reach zero at t = {t:.6g}. With `bias` 0 the field of Lemma 2 jumps there, and the flow "
                "ends. Pass a smaller `t1`, or another `bias`."
            )
        return super().field(t, state)

    @cached_property
    def mixture(self) -> Mixture:
        """The clusters."""
        return two_clusters(self.targets, a_minus=self.negative_weight, noise=Gaussian(dim=self.targets.size))

    def push(self, v: Tokens, b: Tokens) -> Tokens:
        r"""$\Phi(v\circ b)$."""
        u = v * b
        if not np.isfinite(u).all():  # a trial step over a blow-up, which the integrator will take back
            return np.full_like(u, np.nan)
        return self.mixture.field(u, self.bias)[0]

    def limits(self) -> Tokens | None:
        r"""$\operatorname{sgn}(\mu)\sqrt{W(A^2\mu^2)}$ for the stable critical point $\mu$ of Theorem 3."""
        return None if self._attractor is None else self._attractor[0].critical_point()

    def span(self) -> float:
        """The time constant of the slowest direction near the critical point."""
        if self._attractor is None:
            return 1.0
        tied, matrix = self._attractor
        return 1 / float(np.abs(np.linalg.eigvals(tied.jacobian(matrix))).min())

    @cached_property
    def _attractor(self) -> tuple[AttentionFlow, np.ndarray] | None:
        r"""The flow to Theorem 3's only stable critical point and its $C(\mu)$; None where there is none."""
        try:
            stable = [point for point in critical_points(self.mixture, self.bias) if point.linearised.stable]
        except AssumptionError:
            return None
        if len(stable) != 1:
            return None
        tied = AttentionFlow(mu=stable[0].mu, v0=self.v0, z0=self.start_state["z"], **self.scales)
        return tied, stable[0].linearised.matrix


FLOWS: dict[str, tuple[type[JointFlow], ...]] = {
    "saliency": (SaliencyFlow, SoftmaxSaliencyFlow),
    "printed": (PrintedFlow, LinearPrintedFlow),
    "normalised": (NormalisedFlow,),
    "model": (ModelFlow,),
    "common": (CommonVectorFlow,),
    "clusters": (ClusterFlow,),
}
"""The flows by the name that the command takes, one class for each group of attentions, the default first."""

TITLES = {
    "saliency": "Constant saliencies (Section 3.1)",
    "printed": "Eqn 6 as printed",
    "normalised": "Eqn 6 with softmax(v²/T), the variant used for figure 4",
    "model": "The flow that exp attention gives, where the paper has Eqn 6",
    "common": "The flow of many queries that share a vector",
    "clusters": "Two clusters (Lemma 2) with attention",
}
"""The same in words, for headings."""


def flow_class(name: str, attention: str | None = None) -> type[JointFlow]:
    """Return the class of a named flow for the attention asked for, its default where None.

    >>> flow_class("saliency", "softmax").__name__
    'SoftmaxSaliencyFlow'
    """
    if name not in FLOWS:
        raise UnknownNameError("flow", name, FLOWS)
    if attention not in (None, *AttentionKind):
        raise UnknownNameError("attention", str(attention), [kind.value for kind in AttentionKind])
    for cls in FLOWS[name]:
        if attention is None or attention in cls.attentions:
            return cls
    known = " or ".join(kind for cls in FLOWS[name] for kind in cls.attentions)
    raise ValueError(f"The flow {name!r} is known for {known} attention, got {attention}. Use {known}.")
