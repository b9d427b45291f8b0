"""What blocks are made of, each for all runs at once: linear layers, norms, activations, dropout, positions."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from joma.models.batch import Noise, Parameters
from joma.models.decoder_config import WAVES, DecoderConfig
from joma.randomness import keep_mask, site_numbers, streams_at

MOST_SHAPES = 1000
"""Settings and shapes that one process may compile a function for; torch stops at 8, and a grid has more."""
AS_WRITTEN: dict[str, Any] = {"shape_padding": False, "comprehensive_padding": False, "pattern_matcher": False}
"""Settings of Inductor that leave shapes, strides and products as they are, whatever the number of runs. It would pad
shapes by what a timing says, pad strides, which costs a copy wherever something needs them dense, and take the product
of a single run for another operation: a quarter more kernels in a block, and not as many for one run as for sixteen."""


@cache
def compiled(function: Callable[..., Any], backend: str = "inductor") -> Callable[..., Any]:
    """Return the function as one graph for each shape that it meets; where it cannot be one, that is an error.

    On a GPU many small steps become a few kernels.
    """
    limits = {"recompile_limit": MOST_SHAPES, "accumulated_recompile_limit": MOST_SHAPES}
    options = AS_WRITTEN if backend == "inductor" else None
    graph = torch.compile(function, dynamic=False, fullgraph=True, backend=backend, options=options)
    return torch._dynamo.config.patch(limits)(graph)


Vectors = Float[Tensor, "R D"] | Float[Tensor, "R B D"]
"""A vector of each run, or the same for each of its sequences (`beside_sequences`)."""


def linear(
    x: Float[Tensor, "R *rows I"],
    weight: Float[Tensor, "R O I"],
    bias: Float[Tensor, "R O"] | Float[Tensor, "R B O"] | None = None,
) -> Float[Tensor, "R *rows O"]:
    r"""Return $x W_r^\top + b_r$ for the rows of each run r, with weights laid out as in `torch.nn.Linear`.

    >>> x, weight = torch.ones(2, 3, 4, 5), torch.ones(2, 7, 5)
    >>> linear(x, weight, torch.ones(2, 7)).unique().tolist()
    [6.0]
    """
    product = torch.bmm(x.flatten(1, -2), weight.mT).unflatten(1, x.shape[1:-1])
    if bias is None:
        return product
    return (product.to(bias.dtype) + along_rows(bias, product)).to(product.dtype)


def along_rows(vector: Vectors, x: Float[Tensor, "R *rows D"]) -> Float[Tensor, "R ... D"]:
    """Lay a vector of each run along the last axis of x, to be combined with it."""
    first = vector.shape[:-1]
    return vector.reshape(*first, *(1,) * (x.ndim - vector.ndim), vector.shape[-1])


def beside_sequences(vector: Float[Tensor, "R D"], num_sequences: int) -> Float[Tensor, "R B D"]:
    """Repeat a vector of each run for each of its sequences, with no copy.

    Its gradient is then summed over the positions of a sequence alone, and what is left is summed for all vectors of a
    block at once: a compiler would take two kernels for each of them, or one, by the number of runs.
    """
    return vector[:, None].expand(-1, num_sequences, -1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
"""Elementwise functions by name."""


EPSILON = 1e-5
"""Added to the variance, as in torch.nn.LayerNorm."""


_PARTS = {"layer": ("weight", "bias"), "rms": ("weight",), "none": ()}


def norm_shapes(config: DecoderConfig, name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the norm called `name`."""
    return {f"{name}.{part}": (config.width,) for part in _PARTS[config.norm]}


def norm(
    config: DecoderConfig, parameters: Parameters, name: str, x: Float[Tensor, "R *rows D"]
) -> Float[Tensor, "R *rows D"]:
    r"""Apply the norm called `name` over the last axis.

    It is $\gamma_r (x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + \beta_r$, or for rms
    $\gamma_r\, x/\sqrt{\overline{x^2} + \epsilon}$.
    """
    if config.norm == "none":
        return x
    weight = along_rows(parameters[f"{name}.weight"], x)
    if config.norm == "rms":
        return functional.rms_norm(x, x.shape[-1:], eps=EPSILON) * weight
    normed = functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
    return normed * weight + along_rows(parameters[f"{name}.bias"], x)


Stream = Int[Tensor, "R 2"]
"""Where one site takes its mask from at one step (`joma.randomness.streams`); None in evaluation."""
BLOCK_SITES = ("attention.weights", "attention.output", "mlp.hidden", "mlp.output")
"""Where a block drops numbers, as torch.nn.TransformerEncoderLayer does."""


def site_streams(noise: Noise | None, rate: float, depth: int) -> tuple[Stream | None, list[dict[str, Stream]]]:
    """Return the stream of the embedding and those of each block, empty where nothing is dropped."""
    if noise is None or rate == 0:
        return None, [{} for _ in range(depth)]
    sites = [f"blocks.{layer}.{site}" for layer in range(depth) for site in BLOCK_SITES]
    numbers = site_numbers(("embedding", *sites), noise.keys.device)
    draw = compiled(streams_at) if numbers.is_cuda else streams_at
    embedding, *others = draw(noise.keys, noise.step, numbers).unbind(0)
    blocks = [others[at : at + len(BLOCK_SITES)] for at in range(0, len(others), len(BLOCK_SITES))]
    return embedding, [dict(zip(BLOCK_SITES, block, strict=True)) for block in blocks]


def dropout(x: Float[Tensor, "R ..."], rate: float, stream: Stream | None) -> Float[Tensor, "R ..."]:
    """Zero a share `rate` of each run's numbers and scale the others up; without a stream leave them."""
    if stream is None:
        return x
    return torch.where(keep_mask(stream, x.shape[1:], rate), x * (1 / (1 - rate)), 0.0)


BASE = 10_000.0
"""Ratio of the longest wave to the shortest."""


def entrance(
    config: DecoderConfig,
    rows: Float[Tensor, "R B L D"],
    learned: Float[Tensor, "R T D"] | None,
    stream: Stream | None,
) -> Float[Tensor, "R B L D"]:
    """Scale the rows of the embedding, add the positions where those are added, and drop by the stream.

    `learned` has the learned positions, or the random direction of those that have one.
    """
    x = rows if config.embedding_scale == 1 else rows * config.embedding_scale
    length, width = rows.shape[-2:]
    if config.positions in WAVES:
        x = x + _waves(config, sinusoidal(length, width, rows), learned)
    elif learned is not None:
        x = x + learned[:, None, :length]
    return dropout(x, config.dropout, stream)


def _waves(
    config: DecoderConfig, waves: Float[Tensor, "L D"], direction: Float[Tensor, "R 1 D"] | None
) -> Float[Tensor, "L D"] | Float[Tensor, "1 D"] | Float[Tensor, "R 1 L D"] | Float[Tensor, "R 1 1 D"]:
    """Return sinusoidal positions, or what is left of them."""
    if config.positions == "sinusoidal":
        return waves
    mean = waves.mean(dim=0, keepdim=True)
    if direction is not None:
        random = direction[:, None] * mean.norm()
        if config.positions == "constant":
            return random
        return waves - random if config.positions == "displaced" else waves - mean + random
    if config.positions == "mean":
        return mean
    centred = waves - mean
    if config.positions == "centred":
        return centred
    return centred * (waves.norm() / centred.norm().clamp(min=EPSILON))  # a single position is its mean, and gets zero


def sinusoidal(length: int, width: int, like: Tensor) -> Float[Tensor, "length width"]:
    r"""Return $\sin(i\,\omega_j)$ and $\cos(i\,\omega_j)$ in turn, $\omega_j = 10^{-4\cdot 2j/D}$, of `like`'s type.

    >>> sinusoidal(2, 4, torch.zeros(())).round(decimals=3).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8410000205039978, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """
    angles = _angles(length, width, like)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like.dtype)


def rotate(x: Float[Tensor, "*batch L Dh"]) -> Float[Tensor, "*batch L Dh"]:
    r"""Turn the pairs $(x_j, x_{j+D_h/2})$ of position i by the angle $i\,\omega_j$.

    The product of a turned query and a turned key depends on the difference of their positions alone.

    >>> x = torch.ones(1, 500, 8)
    >>> bool((rotate(x.bfloat16()) - rotate(x)).abs().max() < 0.01)
    True
    """
    angles = _angles(x.shape[-2], x.shape[-1], x)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    # Joined from single numbers they may lie apart in memory, and fused attention would not take them.
    return turned if turned.stride(-1) == 1 else turned.contiguous()


def _angles(length: int, width: int, like: Tensor) -> Float[Tensor, "length half"]:
    dtype = torch.promote_types(like.dtype, torch.float32)  # bfloat16 has no room for position 257
    exponents = torch.arange(0, width, 2, dtype=dtype, device=like.device)
    frequencies = torch.exp(exponents * (-math.log(BASE) / width))
    return torch.arange(length, dtype=dtype, device=like.device)[:, None] * frequencies
