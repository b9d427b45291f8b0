"""Cosine similarity over pairs: sums without pairs, blocks and samples agree with the full matrix."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.measure import similarity
from joma.measure.similarity import Pairs, cosine_similarity, stream_similarity

seeds = st.integers(0, 2**31)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_matrix(rows: torch.Tensor) -> torch.Tensor:
    """Similarities of all pairs i < j from the full matrix, the slow way."""
    unit = rows.double() / rows.double().norm(dim=-1, keepdim=True)
    return (unit @ unit.T)[*torch.triu_indices(len(rows), len(rows), offset=1)]


@given(st.integers(2, 40), st.integers(1, 12), seeds, st.floats(-2, 2))
def test_all_pairs_agree_with_the_full_matrix(num_rows, dim, seed, shift):
    rows = gaussian(num_rows, dim, seed=seed) + shift
    found, expected = cosine_similarity(rows), by_matrix(rows)
    assert found.pairs is Pairs.ALL and found.num_pairs == len(expected)
    # float64 sums over up to 780 pairs
    assert found.mean == pytest.approx(expected.mean().item(), abs=1e-12)
    assert found.root_mean_square == pytest.approx(expected.square().mean().sqrt().item(), abs=1e-7)
    assert found.mean_absolute == pytest.approx(expected.abs().mean().item(), abs=1e-12)
    assert found.largest == pytest.approx(expected.max().item(), abs=1e-12)
    assert found.smallest == pytest.approx(expected.min().item(), abs=1e-12)
    for share, value in found.quantiles.items():
        above = torch.quantile(expected, share, interpolation="higher").item()
        below = torch.quantile(expected, share, interpolation="lower").item()
        assert below - 1e-4 <= value <= above + 1e-4


@given(seeds)
def test_the_size_of_blocks_changes_nothing(seed):
    rows = gaussian(37, 5, seed=seed)
    whole = cosine_similarity(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "BLOCK_ENTRIES", 60)
        blocks = cosine_similarity(rows)
    for name in ("mean", "mean_absolute", "largest", "smallest"):
        assert getattr(blocks, name) == pytest.approx(getattr(whole, name), abs=1e-14)
    assert blocks.num_pairs == whole.num_pairs and blocks.quantiles == pytest.approx(whole.quantiles, abs=1e-4)


def test_random_directions_show_the_control():
    found = cosine_similarity(gaussian(3000, 64))
    assert found.random_root_mean_square == 1 / 8
    assert found.root_mean_square == pytest.approx(1 / 8, rel=0.01)
    assert found.mean == pytest.approx(0, abs=1e-3)
    assert found.mean_absolute == pytest.approx(math.sqrt(2 / math.pi) / 8, rel=0.02)  # nearly normal


def test_a_sample_says_so_and_is_unbiased():
    rows = gaussian(2000, 8) + 0.5
    every, sample = cosine_similarity(rows, every_pair=True), cosine_similarity(rows, every_pair=False)
    assert sample.pairs is Pairs.SAMPLE and sample.num_pairs == similarity.NUM_SAMPLED < every.num_pairs
    assert (sample.mean, sample.root_mean_square) == (every.mean, every.root_mean_square)
    # spread of |cos| is below 0.3; five standard errors of the sample
    assert sample.mean_absolute == pytest.approx(every.mean_absolute, abs=5 * 0.3 / math.sqrt(sample.num_pairs))
    assert sample.largest <= every.largest and sample.smallest >= every.smallest
    for share in every.quantiles:
        assert sample.quantiles[share] == pytest.approx(every.quantiles[share], abs=0.01)
    few = cosine_similarity(torch.eye(3), every_pair=False, seed=7)
    assert few.largest == 0  # never a row with itself
    assert few == cosine_similarity(torch.eye(3), every_pair=False, seed=7)
    many = gaussian(similarity.MOST_ROWS_BY_DEFAULT + 1, 2, dtype=torch.float32)
    assert cosine_similarity(many).pairs is Pairs.SAMPLE


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 1), (torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 1e-30), (torch.float32, 1e30)],
    ids=str,
)
def test_low_precision_is_measured_in_float32_at_any_scale(dtype, scale):
    rows = (gaussian(60, 32) * scale).to(dtype)
    found, expected = cosine_similarity(rows), by_matrix(rows)
    assert found.mean == pytest.approx(expected.mean().item(), abs=1e-7)
    assert found.largest == pytest.approx(expected.max().item(), abs=1e-6)


def test_zero_rows_are_left_out_and_counted():
    rows = gaussian(10, 4)
    padded = torch.cat([torch.zeros(3, 4, dtype=torch.float64), rows])
    found = cosine_similarity(padded)
    assert (found.num_rows, found.num_zero_rows) == (10, 3)
    assert found.mean == cosine_similarity(rows).mean


def test_streams_are_measured_layer_by_layer_without_padding():
    streams = [gaussian(2, 5, 8, seed=layer) + layer for layer in range(3)]
    visible = torch.tensor([[True] * 5, [True, True, False, False, False]])
    found = stream_similarity(streams, visible=visible)
    for layer, stream in enumerate(streams):
        kept = torch.cat([stream[0], stream[1, :2]])
        assert found[layer] == cosine_similarity(kept)
    assert found[0].mean < found[1].mean < found[2].mean
    assert stream_similarity(streams)[0].num_rows == 10
