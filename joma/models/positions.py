"""Where a token stands: waves added to its state, or a turn of its queries and keys."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from joma.models.decoder_config import DecoderConfig

BASE = 10_000.0
"""Ratio of the longest wave to the shortest."""


def positioned(
    config: DecoderConfig, rows: Float[Tensor, "R B L D"], learned: Float[Tensor, "R T D"] | None
) -> Float[Tensor, "R B L D"]:
    """Scale the rows of the embedding and add the positions, where those are added; `learned` has some to take."""
    x = rows if config.embedding_scale == 1 else rows * config.embedding_scale
    length, width = rows.shape[-2:]
    if config.positions == "sinusoidal":
        return x + sinusoidal(length, width, rows)
    if learned is not None:
        return x + learned[:, None, :length]
    return x


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
