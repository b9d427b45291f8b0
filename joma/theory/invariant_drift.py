"""How far a run drifts from Theorem 1's invariant, which hypothesis it broke, and what is conserved instead."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Float

from joma.errors import UnknownNameError, same_shape, with_axes
from joma.theory.attention import AttentionKind
from joma.theory.invariants import Invariant, logit_sums


class Hypothesis(StrEnum):
    """A hypothesis of Theorem 1, named by the way in which runs break it."""

    DISCRETE_STEPS = "discrete steps"
    MOMENTUM = "momentum"
    ADAM = "Adam"
    WEIGHT_DECAY = "weight decay"
    UNEQUAL_RATES = "unequal learning rates"
    EMBEDDINGS = "embeddings not orthonormal"
    QUERY_IN_CONTEXT = "query is a contextual token"
    SEVERAL_QUERIES = "several queries share w"
    NODES_LEFT_OUT = "hidden nodes left out of the sum"


@dataclass(frozen=True, kw_only=True)
class InvariantDrift:
    """Drift of the conserved quantity over a run, beside how far the logits moved."""

    quantity: str
    """The quantity, in plain mathematics."""
    drift: Float[np.ndarray, "T C"]
    """The quantity minus its start, at each time; per token for linear and exp attention, per query for softmax."""
    movement: float
    """Largest distance of a logit from its start: what the drift is to be compared with."""
    instead: dict[Hypothesis, str]
    """Each hypothesis that the run broke, with what is conserved instead; empty where nothing is known."""

    @property
    def per_component(self) -> Float[np.ndarray, " C"]:
        """Largest absolute drift of each token (of each query for softmax)."""
        return np.abs(self.drift).max(axis=0)

    @property
    def maximum(self) -> float:
        """Largest absolute drift of all."""
        return float(self.per_component.max())

    @property
    def relative(self) -> float:
        """Largest drift over the movement of the logits; zero without drift, infinite if the logits stood still."""
        if not self.maximum:
            return 0.0
        return self.maximum / self.movement if self.movement else float("inf")

    def __str__(self) -> str:
        """One line for each broken hypothesis, after the numbers."""
        head = f"{self.quantity} drifts by {self.maximum:.2g} while z moves by {self.movement:.2g}"
        broken = [
            f"broken: {name}; conserved instead: {what or 'nothing known'}" for name, what in self.instead.items()
        ]
        return "\n".join([head, *broken])


def invariant_drift(
    v: Float[np.ndarray, "T K M"],
    z: Float[np.ndarray, "T Q M"],
    invariant: Invariant,
    *,
    broken: Collection[Hypothesis] = (),
) -> InvariantDrift:
    r"""Report how far Theorem 1's quantity drifts along a run, and name the hypotheses that the caller says it broke.

    `v` is $U_C^\top w_k$ over time, `z` the logits of every query that shares w. Softmax attention has no invariant per
    token; its $\mathbf 1^\top z$, per query, is reported.

    >>> from joma.theory.attention import Attention
    >>> exp = Invariant(attention=Attention(kind=AttentionKind.EXP))
    >>> v, z = np.array([[[0.0]], [[1.0]]]), np.array([[[0.0]], [[2.0]]])
    >>> print(invariant_drift(v, z, exp, broken={Hypothesis.UNEQUAL_RATES}))
    z − (η_z/2η_wT)·Σ_k v_k² drifts by 1.5 while z moves by 2
    broken: unequal learning rates; conserved instead: the same with the true η_z/η_w, given as `rate_ratio`
    """
    v, z = with_axes("v", v, "T K M"), with_axes("z", z, "T Q M")
    same_shape(times_and_tokens_of_v=v[:, 0], times_and_tokens_of_z=z[:, 0])
    for name in broken:
        if name not in list(Hypothesis):
            raise UnknownNameError("hypothesis", str(name), [known.value for known in Hypothesis])
    kind = invariant.attention.kind
    values = logit_sums(z) if kind == AttentionKind.SOFTMAX else invariant.value(v, z)
    return InvariantDrift(
        quantity=QUANTITIES[kind],
        drift=values - values[0],
        movement=float(np.abs(z - z[0]).max()),
        instead={name: conserved_instead(name, kind) for name in sorted(map(Hypothesis, broken))},
    )


def conserved_instead(broken: Hypothesis, kind: AttentionKind) -> str:
    """Return what a run that breaks one hypothesis conserves, in plain mathematics; empty where nothing is known."""
    return INSTEAD[broken] if kind != AttentionKind.SOFTMAX and broken in INSTEAD else SPECIAL[kind].get(broken, "")


QUANTITIES = {
    AttentionKind.LINEAR: "z² − (η_z/η_w)·Σ_k v_k²",
    AttentionKind.EXP: "z − (η_z/2η_wT)·Σ_k v_k²",
    AttentionKind.SOFTMAX: "1ᵀz",
}
"""What each attention conserves, for orthonormal embeddings and one query."""

INSTEAD = {
    Hypothesis.UNEQUAL_RATES: "the same with the true η_z/η_w, given as `rate_ratio`",
    Hypothesis.EMBEDDINGS: (
        "its sum over tokens with v_kᵀG⁺v_k for ‖v_k‖² (`Invariant.total`), if queries are orthogonal to the context; "
        "the quantity itself with v²/s² for v² if embeddings are orthogonal with norms s"
    ),
    Hypothesis.QUERY_IN_CONTEXT: "the same for every token that is not the query",
    Hypothesis.SEVERAL_QUERIES: "the same with the logits' part summed over all queries",
    Hypothesis.NODES_LEFT_OUT: "the same with every consumer of f in the sum over k",
}
"""What linear and exp attention conserve when one hypothesis breaks."""

_ITSELF = "1ᵀz all the same"
SPECIAL = {
    AttentionKind.LINEAR: {
        Hypothesis.DISCRETE_STEPS: "z² − Σ_k v_k² less the sum over steps of (Δz)² − Σ_k (Δv_k)²",
        Hypothesis.WEIGHT_DECAY: "exp(2λt)·(z² − Σ_k v_k²), for equal rates and decay",
    },
    AttentionKind.EXP: {
        Hypothesis.DISCRETE_STEPS: "z − (η_z/η_wT)·Σ_k Σ_steps v_k∘Δv_k, with v_k before each step",
    },
    AttentionKind.SOFTMAX: dict.fromkeys((Hypothesis.DISCRETE_STEPS, Hypothesis.MOMENTUM, *INSTEAD), _ITSELF)
    | {Hypothesis.WEIGHT_DECAY: "exp(λt)·1ᵀz"},
}
"""The same for what depends on the attention. Softmax's sum survives all but Adam."""
