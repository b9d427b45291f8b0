"""The fused loss against autograd on plain logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from joma.models import vocabulary_loss


def _case(seed: int, num_runs: int, num_rows: int, num_words: int, width: int):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    targets = torch.randint(num_words, (num_runs, num_rows), generator=generator)
    rows = draw(num_runs, num_rows).softmax(dim=1)
    return draw(num_runs, num_rows, width), draw(num_runs, num_words, width), draw(num_runs, num_words), targets, rows


def _by_autograd(hidden, weight, bias, targets, rows, scale):
    leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    logits = scale * (leaves[0] @ leaves[1].mT + leaves[2][:, None])
    losses = (cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(rows) * rows).sum(dim=1)
    return losses, torch.autograd.grad(losses.sum(), leaves)


def _found(hidden, weight, bias, targets, rows, **options):
    """Loss, loss without gradients, and the gradients of hidden states, weight and bias."""
    into = {"weight_gradient": torch.full_like(weight, torch.nan), "bias_gradient": torch.full_like(bias, torch.nan)}
    losses, gradient = vocabulary_loss.loss_and_gradients(hidden, weight, bias, targets, rows, **into, **options)
    return losses, vocabulary_loss.loss(hidden, weight, bias, targets, rows, **options), gradient, *into.values()


@given(
    seed=st.integers(0, 10**6),
    num_runs=st.integers(1, 3),
    num_rows=st.integers(1, 9),
    num_words=st.integers(1, 7),
    scale=st.sampled_from([1.0, 0.3]),
    num_chunks=st.integers(1, 4),
    even=st.booleans(),
)
def test_loss_and_gradients_are_autograds(seed, num_runs, num_rows, num_words, scale, num_chunks, even):
    hidden, weight, bias, targets, rows = _case(seed, num_runs, num_rows, num_words, width=4)
    rows = torch.full_like(rows, 1 / num_rows) if even else rows
    expected, gradients = _by_autograd(hidden, weight, bias, targets, rows, scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary_loss, "CHUNK_BYTES", max(1, num_rows * num_words * 8 // num_chunks))
        all_found = _found(hidden, weight, bias, targets, None if even else rows, scale=scale)
    for found, right in zip(all_found, (expected, expected, *gradients), strict=True):
        assert torch.allclose(found, right, rtol=0, atol=1e-12)  # rounding of float64 sums of a few terms of order 1


@pytest.mark.parametrize("working", [None, torch.float32])
def test_rows_of_zeros_behind_the_words_change_nothing(working):
    hidden, weight, bias, targets, rows = _case(3, num_runs=2, num_rows=5, num_words=6, width=3)
    roomy = torch.cat([weight, torch.zeros(2, 4, 3, dtype=torch.float64)], dim=1)
    plain, found = (_found(hidden, each, bias, targets, rows, working=working) for each in (weight, roomy))
    assert not found[3][:, 6:].any()
    for one, other in zip(plain, (*found[:3], found[3][:, :6], found[4]), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12 if working is None else 1e-6)


def test_bfloat16_products_are_near():
    hidden, weight, bias, targets, rows = (
        tensor.float() if tensor.is_floating_point() else tensor
        for tensor in _case(1, num_runs=2, num_rows=6, num_words=50, width=16)
    )
    exact, right = vocabulary_loss.loss_and_gradients(hidden, weight, bias, targets, rows)
    near, found = vocabulary_loss.loss_and_gradients(hidden, weight, bias, targets, rows, working=torch.bfloat16)
    assert torch.allclose(near, exact, rtol=2e-2)  # bfloat16 has 8 bits: 0.4 % of each logit, which are of order 4
    assert torch.allclose(found, right, rtol=0, atol=2e-2 * float(right.abs().max()))


def test_chunks_do_not_depend_on_the_number_of_runs(monkeypatch):
    monkeypatch.setattr(vocabulary_loss, "CHUNK_BYTES", 100)
    chunks = list(vocabulary_loss._chunks(num_rows=10, bytes_per_row=40))
    assert [chunk.stop - chunk.start for chunk in chunks] == [3, 3, 3, 1]
