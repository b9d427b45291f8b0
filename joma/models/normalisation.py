"""LayerNorm and RMSNorm with the scale and shift of each run."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from joma.models.batch import Parameters
from joma.models.decoder_config import DecoderConfig
from joma.models.linear import Vectors, along_rows

EPSILON = 1e-5
"""Added to the variance, as in torch.nn.LayerNorm."""


_PARTS = {"layer": ("weight", "bias"), "rms": ("weight",), "none": ()}


def norm_shapes(config: DecoderConfig, name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the norm called `name`."""
    return {f"{name}.{part}": (config.width,) for part in _PARTS[config.norm]}


def norm(
    config: DecoderConfig, parameters: Parameters, name: str, x: Float[Tensor, "R *rows D"]
) -> Float[Tensor, "R *rows D"]:
    """Apply the norm called `name`."""
    match config.norm:
        case "layer":
            return layer_norm(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])
        case "rms":
            return rms_norm(x, parameters[f"{name}.weight"])
        case _:
            return x


def layer_norm(x: Float[Tensor, "R *rows D"], weight: Vectors, bias: Vectors) -> Float[Tensor, "R *rows D"]:
    r"""Return $\gamma_r (x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + \beta_r$ over the last axis."""
    normed = functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
    return normed * along_rows(weight, x) + along_rows(bias, x)


def rms_norm(x: Float[Tensor, "R *rows D"], weight: Vectors) -> Float[Tensor, "R *rows D"]:
    r"""Return $\gamma_r\, x/\sqrt{\overline{x^2} + \epsilon}$ over the last axis."""
    return functional.rms_norm(x, x.shape[-1:], eps=EPSILON) * along_rows(weight, x)
