"""Attention of every run at once: the runs folded into the batch, logits from queries and keys or free.

Axes: R runs, B sequences, L positions, D width, H heads, Dh width of a head, V tokens.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from joma.models.batch import Noise, Parameters
from joma.models.decoder_config import DecoderConfig
from joma.models.dropout import dropout
from joma.models.linear import linear
from joma.models.positions import rotate

State = Float[Tensor, "R B L D"]
Heads = Float[Tensor, "RB H L Dh"]
Logits = Float[Tensor, "RB H L L"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attended:
    """What attention put out, and what its weights came from."""

    output: State
    q: Heads | None
    k: Heads | None
    logits: Logits | None


def attention_shapes(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters; queries, keys and values are one matrix, all rows of each in turn."""
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {}
    if config.attention_logits == "free":
        shapes[f"{prefix}.logits"] = (config.heads, config.vocabulary, config.vocabulary)
        shapes[f"{prefix}.value.weight"] = (width, width)
    else:
        shapes[f"{prefix}.qkv.weight"] = (3 * width, width)
    if config.attention_bias:
        weight = next(reversed(shapes))
        shapes[weight.removesuffix("weight") + "bias"] = shapes[weight][:1]
    if config.attention_output:
        shapes |= {f"{prefix}.output.weight": (width, width), f"{prefix}.output.bias": (width,)}
    return shapes


def attention(
    config: DecoderConfig,
    parameters: Parameters,
    prefix: str,
    x: State,
    tokens: Int[Tensor, "R B L"],
    noise: Noise | None,
) -> Attended:
    """Attend within each sequence; the weights are dropped at the site `prefix`.weights."""
    site = f"{prefix}.weights"
    q, k, logits = None, None, None
    if config.attention_logits == "free":
        (v,) = _projected(config, parameters, f"{prefix}.value", x, num_parts=1)
        logits = free_logits(parameters[f"{prefix}.logits"], tokens)
        mixed = _materialised(config, logits, v, noise, site)
    else:
        q, k, v = _projected(config, parameters, f"{prefix}.qkv", x, num_parts=3)
        if config.positions == "rotary":
            q, k = rotate(q), rotate(k)
        if noise is None or config.dropout == 0:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=config.causal)
        else:
            mixed = _materialised(config, torch.matmul(q, k.mT) * config.head_width**-0.5, v, noise, site)
    output = mixed.transpose(1, 2).reshape(x.shape)
    if config.attention_output:
        output = linear(output, parameters[f"{prefix}.output.weight"], parameters[f"{prefix}.output.bias"])
    return Attended(output=output, q=q, k=k, logits=logits)


def free_logits(z: Float[Tensor, "R H V V"], tokens: Int[Tensor, "R B L"]) -> Logits:
    """Return the logit of each pair of positions, the entry of Z at their tokens."""
    runs = torch.arange(z.shape[0], device=z.device)[:, None, None, None, None]
    heads = torch.arange(z.shape[1], device=z.device)[:, None, None]
    return z[runs, heads, tokens[:, :, None, :, None], tokens[:, :, None, None, :]].flatten(0, 1)


def _projected(
    config: DecoderConfig, parameters: Parameters, name: str, x: State, *, num_parts: int
) -> tuple[Heads, ...]:
    """Project the states by one matrix and cut the result into parts and heads, with no copy."""
    rows = linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
    parts = rows.flatten(0, 1).unflatten(-1, (num_parts, config.heads, config.head_width))
    return parts.permute(2, 0, 3, 1, 4).unbind(0)


def _materialised(config: DecoderConfig, logits: Logits, v: Heads, noise: Noise | None, site: str) -> Heads:
    """Mix the values by weights that exist as a matrix: dropout takes some of them, free logits have no q and k."""
    if config.causal:
        logits = logits.masked_fill(_future(logits), -torch.inf)
    weights = logits.softmax(dim=-1)
    if noise is not None:
        by_run = weights.unflatten(0, (noise.keys.shape[0], -1))
        weights = dropout(by_run, config.dropout, noise, site).flatten(0, 1)
    return torch.matmul(weights, v)


def _future(logits: Logits) -> Bool[Tensor, "L L"]:
    positions = torch.arange(logits.shape[-1], device=logits.device)
    return positions > positions[:, None]
