"""Attention of every run at once: the runs folded into the batch, logits from queries and keys or free.

Axes: R runs, B sequences, L positions, D width, H heads, Dh width of a head, V tokens.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from joma.models.batch import Parameters
from joma.models.decoder_config import DecoderConfig
from joma.models.functional import EPSILON, Stream, along_rows, dropout, linear, rotate

LONGEST_IN_A_KERNEL, LONGEST_OF_SINGLES = 128, 64
"""Tokens of a window up to which attention is one kernel of ours while training on a GPU: in half precision, and in
single, of which a GPU's shared memory holds half as many."""

State = Float[Tensor, "R B L D"]
Heads = Float[Tensor, "RB H L Dh"]
Logits = Float[Tensor, "RB H L L"]
KeyBias = Float[Tensor, "R B L"] | None
"""Of every key, the logarithm of how many equal positions it stands for; None where each stands for itself."""


def attention_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters; queries, keys and values are one matrix, all rows of each in turn."""
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {}
    if config.attention_logits == "free":
        shapes["attention.logits"] = (config.heads, config.vocabulary, config.vocabulary)
        shapes["attention.value.weight"] = (width, width)
    else:
        shapes["attention.qkv.weight"] = (3 * width, width)
    if config.attention_bias:
        weight = next(reversed(shapes))
        shapes[weight.removesuffix("weight") + "bias"] = shapes[weight][:1]
    if config.qk_norm:
        shapes |= {f"attention.{name}_norm.weight": (config.head_width,) for name in ("query", "key")}
    if config.attention_output:
        shapes |= {"attention.output.weight": (width, width), "attention.output.bias": (width,)}
    return shapes


def attention(
    config: DecoderConfig,
    parameters: Parameters,
    x: State,
    tokens: Int[Tensor, "R B L"],
    stream: Stream | None,
    key_bias: KeyBias = None,
) -> tuple[State, Heads | None, Heads | None, Logits | None]:
    """Attend within each sequence; return the output, and the queries and keys or logits that its weights came from.

    The weights are dropped by the stream.
    """
    q, k, logits = None, None, None
    if config.attention_logits == "free":
        (v,) = _parts(config, _projected(parameters, "attention.value", x))
        logits = free_logits(parameters["attention.logits"], tokens)
        logits = _capped(config, logits if config.attention_scale == 1 else logits * config.attention_scale)
        mixed = _materialised(config, _biased(logits, key_bias), v, stream)
    else:
        rows = _projected(parameters, "attention.qkv", x)
        q, k, v = _parts(config, rows)
        if config.qk_norm:
            q, k = (_normed(x, parameters[f"attention.{name}_norm.weight"]) for x, name in ((q, "query"), (k, "key")))
        if config.attention_scale != 1:  # so that fused kernels, which scale by the width alone, need not know it
            q = q * config.attention_scale
        if config.positions == "rotary":
            q, k = rotate(q), rotate(k)
        if config.softcap < math.inf:  # no fused kernel has it: the logits are a matrix, and what is measured
            logits = _capped(config, torch.matmul(q, k.mT) * config.head_width**-0.5)
            mixed = _materialised(config, _biased(logits, key_bias), v, stream)
        else:
            mixed = _mixed(config, rows, q, k, v, stream, key_bias)
    return _output(config, parameters, mixed, x), q, k, logits


def attention_of_last(
    config: DecoderConfig, parameters: Parameters, x: State, key_bias: KeyBias = None
) -> Float[Tensor, "R B 1 D"]:
    """Attend from the last position alone, as much as a class is read off; no dropout, no rotary positions."""
    name, width = "attention.qkv", config.width
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    last = x[:, :, -1:]
    (q,) = _parts(config, linear(last, weight[:, :width], None if bias is None else bias[..., :width]))
    k, v = _parts(config, linear(x, weight[:, width:], None if bias is None else bias[..., width:]))
    logits = _biased((q * k).sum(dim=-1) * config.head_width**-0.5, key_bias)
    weights = logits.softmax(dim=-1)[..., None]
    mixed = (weights * v).sum(dim=-2, keepdim=True)  # sums, not products of a single row: those are slow on a GPU
    return _output(config, parameters, mixed, last)


def _output(config: DecoderConfig, parameters: Parameters, mixed: Heads, like: State) -> State:
    """Put the heads side by side, and through the output projection where there is one."""
    output = mixed.transpose(1, 2).reshape(like.shape)
    if not config.attention_output:
        return output
    return linear(output, parameters["attention.output.weight"], parameters["attention.output.bias"])


def free_logits(z: Float[Tensor, "R H V V"], tokens: Int[Tensor, "R B L"]) -> Logits:
    """Return the logit of each pair of positions, the entry of Z at their tokens."""
    runs = torch.arange(z.shape[0], device=z.device)[:, None, None, None, None]
    heads = torch.arange(z.shape[1], device=z.device)[:, None, None]
    return z[runs, heads, tokens[:, :, None, :, None], tokens[:, :, None, None, :]].flatten(0, 1)


def _projected(parameters: Parameters, name: str, x: State) -> Float[Tensor, "R B L PD"]:
    return linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def _parts(config: DecoderConfig, rows: Float[Tensor, "R B L PD"]) -> tuple[Heads, ...]:
    """Cut projected states into parts (queries, keys, values) and heads, with no copy."""
    parts = rows.flatten(0, 1).unflatten(-1, (-1, config.heads, config.head_width))
    return parts.permute(2, 0, 3, 1, 4).unbind(0)


def _mixed(
    config: DecoderConfig,
    rows: Float[Tensor, "R B L PD"],
    q: Heads,
    k: Heads,
    v: Heads,
    stream: Stream | None,
    key_bias: KeyBias,
) -> Heads:
    """Mix the values by the weights that queries and keys give; dropout needs those as a matrix, or our kernel.

    That one serves without dropout too: the general kernels' backward is slow for heads as wide as ours.
    """
    longest = LONGEST_OF_SINGLES if q.dtype == torch.float32 else LONGEST_IN_A_KERNEL
    if q.is_cuda and q.dtype != torch.float64 and q.shape[2] <= longest and torch.is_grad_enabled():
        from joma.models.attention_triton import short_attention  # noqa: PLC0415 (Triton is there where a GPU is)

        if config.positions == "rotary" or config.qk_norm or config.attention_scale != 1:
            packed = torch.stack([q, k, v], dim=2).permute(0, 3, 2, 1, 4)
        else:
            packed = rows.flatten(0, 1).unflatten(-1, (3, config.heads, config.head_width))
        return short_attention(packed, stream, config.dropout, config.causal, key_bias).transpose(1, 2)
    if stream is None and key_bias is None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=config.causal)
    return _materialised(config, _biased(torch.matmul(q, k.mT) * config.head_width**-0.5, key_bias), v, stream)


def _normed(x: Heads, gain: Float[Tensor, "R Dh"] | Float[Tensor, "R B Dh"]) -> Heads:
    """Norm the vectors of every head by their root mean square, with the gain of their run."""
    normed = functional.rms_norm(x, x.shape[-1:], eps=EPSILON).unflatten(0, (gain.shape[0], -1))
    return (normed * along_rows(gain, normed)).flatten(0, 1).to(x.dtype)


def _capped(config: DecoderConfig, logits: Logits) -> Logits:
    return logits if config.softcap == math.inf else config.softcap * torch.tanh(logits / config.softcap)


def without_future(logits: Logits) -> Logits:
    """Hide the keys after each row."""
    positions = torch.arange(logits.shape[-1], device=logits.device)
    return logits.masked_fill(positions > positions[:, None], -torch.inf)


def _materialised(config: DecoderConfig, logits: Logits, v: Heads, stream: Stream | None) -> Heads:
    """Mix the values by weights that exist as a matrix: dropout takes some of them, free logits have no q and k."""
    weights = (without_future(logits) if config.causal else logits).softmax(dim=-1)
    if stream is not None:
        by_run = weights.unflatten(0, (stream.shape[0], -1))
        weights = dropout(by_run, config.dropout, stream).flatten(0, 1)
    return torch.matmul(weights, v)


def _biased(logits: Float[Tensor, "RB H ... L"], key_bias: KeyBias) -> Float[Tensor, "RB H ... L"]:
    """Let keys count as often as the positions that they stand for."""
    if key_bias is None:
        return logits
    shape = (logits.shape[0], *(1 for _ in logits.shape[1:-1]), logits.shape[-1])
    return logits + key_bias.reshape(shape).to(logits.dtype)
