r"""The three attentions of the paper, with temperature: scores $b$ and their derivative applied to a vector.

$$b = \sigma(z/T) \circ x / A, \qquad
  \sigma(y) = y \ \text{(linear)}, \quad \sigma(y) = e^y,\ A \text{ constant (exp)}, \quad
  \sigma(y) = e^y,\ A = \mathbf 1^\top(\sigma(z/T)\circ x) \ \text{(softmax)}.$$

The paper has $T = 1$ throughout, and $A = 1$ for linear attention (Section 2, below Eqn 1).
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Float
from scipy import special

from joma.errors import AssumptionError, UnknownNameError, broadcast, finite, positive

Tokens = Float[np.ndarray, "*#B M"]
"""A number for each token: logits z, frequencies x, or a vector u that is pulled back."""


class AttentionKind(StrEnum):
    """Which attention function σ, and whether the scores are normalised."""

    LINEAR = "linear"
    EXP = "exp"
    SOFTMAX = "softmax"


@dataclass(frozen=True, kw_only=True)
class Attention:
    r"""Attention scores $b = \sigma(z/T)\circ x/A$ of Eqn 1, as a function of the logits z and the token frequencies x.

    >>> softmax = Attention(kind=AttentionKind.SOFTMAX)
    >>> softmax.scores(np.array([0.0, np.log(3.0), 800.0]), np.array([0.5, 0.5, 0.0])).round(12)
    array([0.25, 0.75, 0.  ])
    """

    kind: AttentionKind
    temperature: float = 1.0
    """T in σ(z / T)."""
    normalisation: float = 1.0
    """The constant A of linear and exp attention; softmax computes its own."""

    def __post_init__(self) -> None:
        if self.kind not in list(AttentionKind):
            raise UnknownNameError("attention", str(self.kind), [kind.value for kind in AttentionKind])
        positive("temperature", self.temperature)
        positive("normalisation", self.normalisation)
        if self.kind == AttentionKind.SOFTMAX and self.normalisation != 1:
            raise ValueError(f"Softmax normalises itself, got `normalisation` {self.normalisation:g}. Leave it at 1.")

    def scores(self, z: Tokens, x: Tokens, *, checked: bool = True) -> Float[np.ndarray, "*B M"]:
        r"""Return $b = \sigma(z/T)\circ x/A$; leading axes broadcast.

        Softmax needs frequencies ($x \ge 0$, some token present) and is safe for logits of any size, those of absent
        tokens included. NaN and infinity are refused, unless `checked` is false: fields are not, since an integrator
        rejects a trial step over a blow-up.
        """
        if checked:
            z, x = broadcast(z=finite("z", z), x=finite("x", x)).values()
        match self.kind:
            case AttentionKind.LINEAR:
                return z / self.temperature * x / self.normalisation
            case AttentionKind.EXP:
                return np.exp(z / self.temperature) * x / self.normalisation
            case AttentionKind.SOFTMAX:
                if (x < 0).any():
                    raise ValueError(f"Softmax attention needs x ≥ 0, got {x.min()}. Use exp attention for signed x.")
                if not x.any(axis=-1).all():
                    raise ValueError("Softmax attention needs a token in every sample, got x = 0. Remove that sample.")
                with np.errstate(divide="ignore"):  # the logarithm of an absent token is -inf, its score 0
                    return special.softmax(z / self.temperature + np.log(x), axis=-1)

    def pull_back(self, z: Tokens, x: Tokens, u: Tokens, *, checked: bool = True) -> Float[np.ndarray, "*B M"]:
        r"""Return $(\partial b/\partial z)^\top u$ without the M×M matrix (L of Eqn 10).

        Linear: $x\circ u/(AT)$; exp: $b\circ u/T$; softmax: $(b\circ u - b\,b^\top u)/T$. `checked` as in `scores`.
        """
        if checked:
            z, x, u = broadcast(z=finite("z", z), x=finite("x", x), u=finite("u", u)).values()
        if self.kind == AttentionKind.LINEAR:
            shape = np.broadcast_shapes(z.shape, x.shape, u.shape)
            return np.broadcast_to(x * u / (self.normalisation * self.temperature), shape)
        b = self.scores(z, x, checked=False)
        if self.kind == AttentionKind.SOFTMAX:
            u = u - (b * u).sum(axis=-1, keepdims=True)
        return b * u / self.temperature

    def score_over_slope(self, z: Float[np.ndarray, "*B"]) -> Float[np.ndarray, "*B"]:
        r"""Return $\sigma(z/T) \,/\, \tfrac{d}{dz}\sigma(z/T)$ of Eqn 14: z for linear attention, T for exp.

        Softmax has no such diagonal form, its scores depend on all logits.
        """
        if self.kind == AttentionKind.SOFTMAX:
            raise AssumptionError("Eqn 14 needs attention with a constant A, got softmax. Use linear or exp attention.")
        return z if self.kind == AttentionKind.LINEAR else np.full_like(z, self.temperature)
