"""One block, attention and MLP with their norms, residuals and dropout, for all runs at once.

It knows its parameters by names that are the same in every layer, so that it is compiled once for all of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from joma.models.attention import Heads, KeyBias, Logits, State, attention, attention_of_last, attention_shapes
from joma.models.batch import Parameters
from joma.models.decoder_config import DecoderConfig
from joma.models.functional import ACTIVATIONS, Stream, dropout, linear, norm, norm_shapes


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
    slope = config.negative_slope
    phi = partial(functional.leaky_relu, negative_slope=slope) if slope else ACTIVATIONS[config.activation]
    lower = linear(x, parameters["mlp.lower.weight"], parameters["mlp.lower.bias"])
    if config.gated:
        gate, up = lower.chunk(2, dim=-1)
        hidden = phi(gate) * up
    else:
        hidden = phi(lower)
    kept = dropout(hidden, config.dropout, stream)
    return linear(kept, parameters["mlp.upper.weight"], parameters["mlp.upper.bias"]), hidden


Passed = tuple[State, Heads | None, Heads | None, Logits | None, Float[Tensor, "R B L F"]]
"""Output of a block, and what was inside: queries and keys, or free logits, and the hidden neurons."""


def block_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a block's parameters."""
    attention_part = attention_shapes(config) | norm_shapes(config, "attention_norm")
    return attention_part | mlp_shapes(config) | norm_shapes(config, "mlp_norm")


def block(
    config: DecoderConfig,
    parameters: Parameters,
    x: State,
    tokens: Int[Tensor, "R B L"],
    streams: Mapping[str, Stream],
    key_bias: KeyBias = None,
) -> Passed:
    """Pass the states through; `streams` has the dropout of each site, or nothing in evaluation."""
    before = _normed("before", config, parameters, "attention_norm", x)
    output, q, k, logits = attention(config, parameters, before, tokens, streams.get("attention.weights"), key_bias)
    branch = dropout(output, config.dropout, streams.get("attention.output"))
    state, hidden = _rest(config, parameters, x, branch, streams)
    return state, q, k, logits, hidden


def block_state(*given: Any) -> State:
    """Return the output of `block` alone: where it is differentiated, nothing inside has to be kept."""
    return block(*given)[0]


def block_of_last(
    config: DecoderConfig, parameters: Parameters, x: State, key_bias: KeyBias = None
) -> Float[Tensor, "R B 1 D"]:
    """Pass the last position through alone: all that a class read-out needs of the last block, without dropout."""
    branch = attention_of_last(config, parameters, _normed("before", config, parameters, "attention_norm", x), key_bias)
    return _rest(config, parameters, x[:, :, -1:], branch, {})[0]


def _rest(
    config: DecoderConfig, parameters: Parameters, x: State, branch: State, streams: Mapping[str, Stream]
) -> tuple[State, Float[Tensor, "R B L F"]]:
    """Take what attention put out through residuals, norms and the MLP; return the states and the hidden neurons."""
    x = _normed("after", config, parameters, "attention_norm", x + branch if config.residual_attention else branch)
    before = _normed("before", config, parameters, "mlp_norm", x)
    output, hidden = mlp(config, parameters, before, streams.get("mlp.hidden"))
    branch = dropout(output, config.dropout, streams.get("mlp.output"))
    return _normed("after", config, parameters, "mlp_norm", x + branch if config.residual_mlp else branch), hidden


def _normed(place: str, config: DecoderConfig, parameters: Parameters, name: str, x: State) -> State:
    """Apply the norm called `name` if norms stand at this place."""
    return norm(config, parameters, name, x) if config.norm_place == place else x
