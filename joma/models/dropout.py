"""Dropout whose mask is a function of (run seed, step, site)."""

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from joma.models.batch import Noise
from joma.models.compilation import compiled
from joma.randomness import keep_mask, site_numbers, streams_at

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
    draw = compiled_streams() if numbers.is_cuda else streams_at
    embedding, *others = draw(noise.keys, noise.step, numbers).unbind(0)
    blocks = [others[at : at + len(BLOCK_SITES)] for at in range(0, len(others), len(BLOCK_SITES))]
    return embedding, [dict(zip(BLOCK_SITES, block, strict=True)) for block in blocks]


@cache
def compiled_streams() -> Callable[..., Int[Tensor, "S R 2"]]:
    """Return `streams_at` compiled: one kernel instead of some twenty tiny ones."""
    return compiled(streams_at)


def dropout(x: Float[Tensor, "R ..."], rate: float, stream: Stream | None) -> Float[Tensor, "R ..."]:
    """Zero a share `rate` of each run's numbers and scale the others up; without a stream leave them."""
    if stream is None:
        return x
    return torch.where(keep_mask(stream, x.shape[1:], rate), x * (1 / (1 - rate)), 0.0)
