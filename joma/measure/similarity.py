r"""How far from orthogonal embeddings and residual streams are: cosine similarity over pairs of different rows.

JoMA assumes orthonormal embeddings; learned ones are almost orthogonal at best, since there are more tokens than
dimensions. With unit rows $u_i$ two averages over all pairs are exact without visiting a pair,

$$\sum_{i \ne j} u_i\cdot u_j = \Big\|\sum_i u_i\Big\|^2 - N, \qquad
  \sum_{i \ne j} (u_i\cdot u_j)^2 = \Big\|\sum_i u_i u_i^\top\Big\|_F^2 - N,$$

and for random directions they are 0 and $1/d$ a pair: the baseline. Absolute values, extremes and quantiles need the
pairs: all of them in blocks, or a seeded sample where there are too many. No matrix over all pairs is held, and the
result says which pairs it rests on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from joma.measure.tensors import finite_tensor, required_tensor, tensor_with_axes, truth_values

MOST_ROWS_BY_DEFAULT = 8192
"""Up to here every pair is visited unless the caller decides otherwise: 33 million pairs, seconds on one core."""
NUM_SAMPLED = 2**17
"""Pairs in a sample."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NUM_BINS = 20_000
"""Bins over [-1, 1] from which quantiles are read: to 1e-4."""
BLOCK_ENTRIES = 2**21
"""Similarities, or entries of the rows that make them, held at once."""


class Pairs(StrEnum):
    """Which pairs the absolute mean, the extremes and the quantiles rest on."""

    ALL = "all"
    SAMPLE = "sample"


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineStatistics:
    """Cosine similarity between different rows."""

    num_rows: int
    """Rows with a direction."""
    num_zero_rows: int
    """Rows that are zero, and left out: they have none."""
    mean: float
    """Over all pairs, exact."""
    root_mean_square: float
    """Over all pairs, exact."""
    random_root_mean_square: float
    r"""What directions drawn at random would have, $1/\sqrt d$."""
    mean_absolute: float
    largest: float
    """Of the pairs visited: of a sample it is a lower bound for the largest there is."""
    smallest: float
    quantiles: dict[float, float]
    """From share of pairs to similarity, to 1e-4."""
    pairs: Pairs
    num_pairs: int
    """How many were visited."""


def cosine_similarity(
    rows: Float[Tensor, "N d"],
    *,
    every_pair: bool | None = None,
    seed: int = 0,
) -> CosineStatistics:
    """Measure all pairs of different rows, such as those of an embedding matrix.

    `every_pair` forces all pairs, or a sample of `NUM_SAMPLED`; None visits all up to `MOST_ROWS_BY_DEFAULT` rows.

    >>> found = cosine_similarity(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
    >>> round(found.mean, 4), found.largest, found.smallest, found.pairs.value
    (-0.3333, 0.0, -1.0, 'all')
    """
    rows = finite_tensor("rows", tensor_with_axes("rows", rows, "N d"))
    directed = rows[rows.any(dim=-1)]
    num_rows = len(directed)
    if num_rows < 2:  # noqa: PLR2004 (a pair)
        raise ValueError(f"Similarity needs two rows that are not zero, got {num_rows} of {len(rows)}.")
    wide = directed if directed.dtype == torch.float64 else directed.float()
    unit = normalize(wide / wide.abs().amax(dim=-1, keepdim=True), dim=-1)  # scaled, so that no square is lost
    every_pair = num_rows <= MOST_ROWS_BY_DEFAULT if every_pair is None else every_pair
    mean, mean_square = _exact_means(unit)
    blocks = _all_pairs(unit) if every_pair else _sampled_pairs(unit, seed)
    return CosineStatistics(
        num_rows=num_rows,
        num_zero_rows=len(rows) - num_rows,
        mean=mean,
        root_mean_square=mean_square**0.5,
        random_root_mean_square=rows.shape[-1] ** -0.5,
        pairs=Pairs.ALL if every_pair else Pairs.SAMPLE,
        **_over_pairs(blocks),
    )


def stream_similarity(
    streams: Sequence[Float[Tensor, "*positions d"]],
    *,
    visible: Bool[Tensor, "*positions"] | None = None,
    every_pair: bool | None = None,
    seed: int = 0,
) -> list[CosineStatistics]:
    """Measure the residual stream of each layer: pairs of positions, of one sequence or of two.

    `streams` holds one tensor a layer, as the hidden states of a model do. `visible` is False where positions are
    padding. Positions that hold the same token are alike in the first layers by that alone.
    """

    def kept(stream: Float[Tensor, "*positions d"]) -> Float[Tensor, "N d"]:
        if visible is None:
            return stream.flatten(end_dim=-2)
        if truth_values("visible", visible).shape != stream.shape[:-1]:
            raise ValueError(
                f"`visible` must cover the positions of each layer, {tuple(stream.shape[:-1])}, "
                f"got {tuple(visible.shape)}. Pass the padding mask as booleans, True where a token stands."
            )
        return stream[visible]

    layers = [required_tensor(f"streams[{layer}]", stream) for layer, stream in enumerate(streams)]
    return [cosine_similarity(kept(stream), every_pair=every_pair, seed=seed) for stream in layers]


def token_spread(x: Float[Tensor, "*batch L D"]) -> Float[Tensor, "*batch"]:
    r"""Return $\|x - 1\bar x^\top\|/\|x\|$ of each sequence: 0 where all its tokens have the same state.

    >>> token_spread(torch.tensor([[[1.0], [1.0]], [[1.0], [-1.0]]])).tolist()
    [0.0, 1.0]
    """
    apart = x - x.mean(dim=-2, keepdim=True)
    return torch.linalg.vector_norm(apart, dim=(-2, -1)) / torch.linalg.vector_norm(x, dim=(-2, -1))


def _exact_means(unit: Float[Tensor, "N d"]) -> tuple[float, float]:
    """Mean and mean square over all pairs, in float64; each row's product with itself is taken as it came out."""
    num_rows, dim = unit.shape
    total, second, own, own_square = (unit.new_zeros(shape, dtype=torch.float64) for shape in (dim, (dim, dim), (), ()))
    for part in unit.split(max(1, BLOCK_ENTRIES // dim)):
        rows = part.double()
        lengths = rows.square().sum(dim=-1)
        total += rows.sum(dim=0)
        second += rows.T @ rows
        own += lengths.sum()
        own_square += lengths.square().sum()
    num_ordered = num_rows * (num_rows - 1)
    square = float(second.square().sum() - own_square) / num_ordered
    return float(total.square().sum() - own) / num_ordered, max(0.0, square)  # rounding may go below an exact zero


def _all_pairs(unit: Float[Tensor, "N d"]) -> Iterator[Float[Tensor, " P"]]:
    """Similarities of all pairs i < j, a block of rows at a time."""
    num_rows = len(unit)
    step = max(1, BLOCK_ENTRIES // num_rows)
    for first in range(0, num_rows, step):
        block = unit[first : first + step] @ unit[first:].T
        row, column = torch.triu_indices(block.shape[0], block.shape[1], offset=1, device=unit.device)
        yield block[row, column]


def _sampled_pairs(unit: Float[Tensor, "N d"], seed: int) -> Iterator[Float[Tensor, " P"]]:
    """Similarities of pairs drawn at random, never of a row with itself."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, dim = unit.shape
    one = torch.randint(num_rows, (NUM_SAMPLED,), generator=generator)
    other = (one + torch.randint(1, num_rows, (NUM_SAMPLED,), generator=generator)) % num_rows
    for i, j in zip(*(index.split(max(1, BLOCK_ENTRIES // dim)) for index in (one, other)), strict=True):
        yield (unit[i.to(unit.device)] * unit[j.to(unit.device)]).sum(dim=-1)


def _over_pairs(blocks: Iterator[Float[Tensor, " P"]]) -> dict[str, Any]:
    """Absolute mean, extremes and quantiles of similarities, in one walk over their blocks.

    Cosines that rounding put outside [-1, 1] are counted at its ends. A quantile is the middle of its bin.
    """
    num_pairs, absolute, largest, smallest = 0, 0.0, -1.0, 1.0
    counts = torch.zeros(NUM_BINS, dtype=torch.int64)
    for block in blocks:
        if not len(block):
            continue
        similarity = block.clamp(-1.0, 1.0)
        num_pairs += len(similarity)
        absolute += float(similarity.abs().sum(dtype=torch.float64))
        largest, smallest = max(largest, float(similarity.max())), min(smallest, float(similarity.min()))
        bins = ((similarity + 1) * (NUM_BINS / 2)).long().clamp(max=NUM_BINS - 1)
        counts += torch.bincount(bins, minlength=NUM_BINS).cpu()
    wanted = num_pairs * torch.tensor(QUANTILES, dtype=torch.float64)
    reached = torch.searchsorted(counts.cumsum(dim=0).double(), wanted).tolist()
    return {
        "num_pairs": num_pairs,
        "mean_absolute": absolute / num_pairs,
        "largest": largest,
        "smallest": smallest,
        "quantiles": {share: (2 * bin + 1) / NUM_BINS - 1 for share, bin in zip(QUANTILES, reached, strict=True)},
    }
