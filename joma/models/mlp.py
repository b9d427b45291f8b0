"""The MLP of a block: into the hidden neurons by the lower matrix, back by the upper one."""

from jaxtyping import Float
from torch import Tensor

from joma.models.activations import ACTIVATIONS
from joma.models.batch import Parameters
from joma.models.decoder_config import DecoderConfig
from joma.models.dropout import Stream, dropout
from joma.models.linear import linear


def mlp_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters; of a gated MLP the lower matrix holds the gate's rows, then the others."""
    rows = 2 * config.hidden if config.gated else config.hidden
    return {
        "mlp.lower.weight": (rows, config.width),
        "mlp.lower.bias": (rows,),
        "mlp.upper.weight": (config.width, config.hidden),
        "mlp.upper.bias": (config.width,),
    }


def mlp(
    config: DecoderConfig, parameters: Parameters, x: Float[Tensor, "R B L D"], stream: Stream | None
) -> tuple[Float[Tensor, "R B L D"], Float[Tensor, "R B L F"]]:
    """Return the output, and the hidden neurons after the activation; these are dropped by the stream."""
    phi = ACTIVATIONS[config.activation]
    lower = linear(x, parameters["mlp.lower.weight"], parameters["mlp.lower.bias"])
    if config.gated:
        gate, up = lower.chunk(2, dim=-1)
        hidden = phi(gate) * up
    else:
        hidden = phi(lower)
    kept = dropout(hidden, config.dropout, stream)
    return linear(kept, parameters["mlp.upper.weight"], parameters["mlp.upper.bias"]), hidden
