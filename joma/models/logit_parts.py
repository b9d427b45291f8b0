r"""The first layer's queries and keys in parts: what tokens and positions, and the means of both, bring to its logits.

With norms after and positions that are added, attention reads $x_i = c\,e_i + p_i$ in evaluation. Means are over
windows and positions; with the bias, queries and keys have five parts each. Products with a mean of the keys or their
bias depend on the query alone and drop out of the softmax: on the side of the keys only token and position count.
"""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.models.batch import Parameters
from joma.models.decoder import EMBEDDING, POSITIONS
from joma.models.decoder_config import DecoderConfig
from joma.models.embedding import embedding_rows
from joma.models.functional import entrance, linear

TOKEN, POSITION, MEAN_TOKEN, MEAN_POSITION, BIAS = "token", "position", "mean token", "mean position", "bias"
COMMON = (MEAN_TOKEN, MEAN_POSITION, BIAS)
"""Parts that all tokens and positions share: on the side of the keys they drop out of the softmax."""


Parts = dict[str, Float[Tensor, "R n H l Dh"]]


def has_logit_parts(config: DecoderConfig) -> bool:
    """Whether the first layer's logits are products of such parts: no norm, rotation or bound comes in between."""
    is_product = config.attention_logits == "projected" and not config.qk_norm and config.softcap == math.inf
    return is_product and config.norm_place == "after" and config.positions != "rotary"


def mean_rows(states: Parameters, tokens: Iterable[Int[Tensor, "R N L"]]) -> Float[Tensor, "R 1 1 D"]:
    """Return the mean row of the embedding over all windows."""
    sums = [(embedding_rows(states[EMBEDDING], each).sum(dim=(1, 2), keepdim=True), each[0].numel()) for each in tokens]
    return torch.stack([total for total, _ in sums]).sum(dim=0) / sum(num for _, num in sums)


def query_key_parts(
    config: DecoderConfig,
    states: Parameters,
    weights: Parameters,
    tokens: Int[Tensor, "R N L"],
    mean: Float[Tensor, "R 1 1 D"],
) -> tuple[Parts, Parts]:
    """Return the parts of the first layer's queries, with `attention_scale`, and keys.

    Axes along which a part does not vary are 1.

    Args:
        config: A model that `has_logit_parts`.
        states: Parameters whose embedding and positions are read.
        weights: Parameters whose queries and keys are applied.
        tokens: Windows.
        mean: Of the embedding's rows, from `mean_rows`.
    """
    rows, mean = (config.embedding_scale * each for each in (embedding_rows(states[EMBEDDING], tokens), mean))
    places = entrance(config, torch.zeros_like(rows[:, :1]), states.get(POSITIONS), None)
    parts = {TOKEN: rows - mean, MEAN_TOKEN: mean, MEAN_POSITION: places.mean(dim=2, keepdim=True)}
    parts[POSITION] = places - parts[MEAN_POSITION]
    matrices, biases = (weights.get(f"blocks.0.attention.qkv.{name}") for name in ("weight", "bias"))
    assert matrices is not None
    sides, factors = [], (config.attention_scale, 1.0)  # values come third
    for number, (matrix, factor) in enumerate(zip(matrices.chunk(3, dim=1), factors, strict=False)):
        side = {part: linear(x, matrix) for part, x in parts.items()}
        if biases is not None:
            side[BIAS] = biases.chunk(3, dim=1)[number][:, None, None]
        sides.append({part: (factor * x).unflatten(-1, (config.heads, -1)).transpose(2, 3) for part, x in side.items()})
    return sides[0], sides[1]
