"""Logits that a model has built itself are measured like the queries and keys behind them."""

import pytest
import torch

from joma.measure import entropy
from joma.measure.entropy import Path, attention_entropy, logits_entropy

NAMES = ("entropy", "fraction", "effective_keys", "sink_mass", "mean_distance", "max_logit")


def logits_and_queries(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 3, n, 8, generator=generator, dtype=dtype) * 2 for n in (11, 13))
    mask = torch.rand(2, 1, 11, 13, generator=generator) > 0.4
    mask[0, :, 4] = False  # a row that sees nothing
    mask[1, :, :, 0] = False  # a key that nobody sees
    return q @ k.mT * 8**-0.5, q, k, mask


@pytest.mark.parametrize("hidden", [-torch.inf, -1e4, -1e9, torch.finfo(torch.float64).min], ids=str)
@pytest.mark.parametrize("chunk_bytes", [1, 2**12, 2**26])
def test_statistics_are_those_of_queries_and_keys(hidden, chunk_bytes, monkeypatch):
    monkeypatch.setattr(entropy, "CHUNK_BYTES", chunk_bytes)
    logits, q, k, mask = logits_and_queries()
    found = logits_entropy(logits.masked_fill(~mask, hidden))
    wanted = attention_entropy(q, k, mask=mask, path=Path.CHUNKED)
    assert torch.equal(found.num_visible, wanted.num_visible.expand_as(found.num_visible))
    for name in NAMES:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), atol=1e-12, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_single(dtype):
    logits = logits_and_queries(dtype=torch.float32)[0].to(dtype)
    found, wanted = logits_entropy(logits), logits_entropy(logits.double())
    assert found.entropy.dtype == torch.float32
    torch.testing.assert_close(found.entropy.double(), wanted.entropy, atol=1e-5, rtol=0)


def test_autocast_changes_nothing():
    logits = logits_and_queries(dtype=torch.float32)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = logits_entropy(logits)
    assert torch.equal(found.entropy, logits_entropy(logits).entropy)


def test_companions_can_be_left_out_and_positions_shifted():
    logits = logits_and_queries()[0]
    assert logits_entropy(logits, companions=False).sink_mass is None
    p = logits.softmax(-1)
    distance = (torch.arange(13) - torch.arange(11)[:, None] - 2).abs()
    torch.testing.assert_close(logits_entropy(logits, offset=2).mean_distance, (p * distance).sum(-1))


def test_no_rows_give_no_numbers():
    assert logits_entropy(torch.zeros(1, 2, 0, 5)).entropy.shape == (1, 2, 0)
