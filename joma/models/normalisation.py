"""LayerNorm and RMSNorm with the scale and shift of each run."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
"""Added to the variance, as in torch.nn.LayerNorm."""


def layer_norm(
    x: Float[Tensor, "R *rows D"], weight: Float[Tensor, "R D"], bias: Float[Tensor, "R D"]
) -> Float[Tensor, "R *rows D"]:
    r"""Return $\gamma_r (x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + \beta_r$ over the last axis."""
    normed = functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
    return normed * _per_run(weight, x) + _per_run(bias, x)


def rms_norm(x: Float[Tensor, "R *rows D"], weight: Float[Tensor, "R D"]) -> Float[Tensor, "R *rows D"]:
    r"""Return $\gamma_r\, x/\sqrt{\overline{x^2} + \epsilon}$ over the last axis."""
    return functional.rms_norm(x, x.shape[-1:], eps=EPSILON) * _per_run(weight, x)


def _per_run(vector: Float[Tensor, "R D"], x: Tensor) -> Tensor:
    """Lay a vector of each run along the last axis of x."""
    return vector.reshape(vector.shape[0], *(1,) * (x.ndim - 2), vector.shape[1])
