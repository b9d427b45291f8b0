"""The MLP of a block: into the hidden neurons by the lower matrix, back by the upper one."""

from jaxtyping import Float
from torch import Tensor

from joma.models.activations import ACTIVATIONS
from joma.models.batch import Noise, Parameters
from joma.models.decoder_config import DecoderConfig
from joma.models.dropout import dropout
from joma.models.linear import linear


def mlp_shapes(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters; of a gated MLP the lower matrix holds the gate's rows, then the others."""
    rows = 2 * config.hidden if config.gated else config.hidden
    return {
        f"{prefix}.lower.weight": (rows, config.width),
        f"{prefix}.lower.bias": (rows,),
        f"{prefix}.upper.weight": (config.width, config.hidden),
        f"{prefix}.upper.bias": (config.width,),
    }


def mlp(
    config: DecoderConfig, parameters: Parameters, prefix: str, x: Float[Tensor, "R B L D"], noise: Noise | None
) -> tuple[Float[Tensor, "R B L D"], Float[Tensor, "R B L F"]]:
    """Return the output, and the hidden neurons after the activation; these drop at the site `prefix`.hidden."""
    phi = ACTIVATIONS[config.activation]
    lower = linear(x, parameters[f"{prefix}.lower.weight"], parameters[f"{prefix}.lower.bias"])
    if config.gated:
        gate, up = lower.chunk(2, dim=-1)
        hidden = phi(gate) * up
    else:
        hidden = phi(lower)
    kept = dropout(hidden, config.dropout, noise, f"{prefix}.hidden")
    return linear(kept, parameters[f"{prefix}.upper.weight"], parameters[f"{prefix}.upper.bias"]), hidden
