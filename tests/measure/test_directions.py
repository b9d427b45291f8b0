"""Top directions of matrices against a full decomposition, and at their limits."""

import pytest
import torch

from joma.measure.directions import overlap, spectrum, top_directions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("decay", "tolerance"), [(0.0, 0.02), (0.1, 1e-4), (2.0, 1e-5)])
def test_values_and_energy_agree_with_a_decomposition(decay, tolerance, dtype):
    """A Gaussian matrix, of which many directions are equally large, is the hardest."""
    w = torch.randn(3, 200, 120, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = (w * torch.exp(-decay * torch.arange(120))).to(dtype)
    found, exact = top_directions(w, 4), torch.linalg.svdvals(w.double())
    assert found.values.tolist() == pytest.approx(exact[:, :4], rel=tolerance)
    assert (found.values <= exact[:, :4] * (1 + 1e-5)).all()
    products = found.vectors.mT @ found.vectors
    assert torch.allclose(products, torch.eye(4, dtype=torch.float64).expand(3, -1, -1), atol=1e-5)


def test_the_directions_are_the_singular_vectors_and_do_not_depend_on_the_batch():
    w = torch.randn(2, 50, 30, generator=torch.Generator().manual_seed(1)) * torch.exp(-0.5 * torch.arange(30))
    found = top_directions(w, 3).vectors
    exact = torch.linalg.svd(w.double()).Vh[:, :3].mT
    assert overlap(found, exact).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert overlap(top_directions(w[1:], 3).vectors, found[1:]).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("rank", [0, 1])
def test_matrices_of_small_rank(rank):
    w = rank * torch.ones(1, 5, 1) @ torch.arange(1.0, 4.0)[None, None]
    found = top_directions(w, 2)
    assert found.values[0].tolist() == pytest.approx([rank * 70**0.5, 0.0], abs=1e-5)
    assert torch.isfinite(found.vectors).all()


def test_overlap_lies_between_nothing_and_all():
    a, b = torch.eye(6)[None, :, :2], torch.eye(6)[None, :, 3:5]
    assert (overlap(a, a).item(), overlap(a, b).item()) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e25, 1e-20])
def test_the_spectrum_agrees_with_a_decomposition_at_every_scale(dtype, scale):
    w = torch.randn(2, 60, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    w *= torch.exp(-0.3 * torch.arange(30))
    squares = torch.linalg.svdvals(w).square()
    total = squares.sum(1)
    expected = [total / squares[:, 0], squares[:, :4].sum(1) / total, (total - squares[:, 0]) / squares[:, 1]]
    for found, right in zip(spectrum((scale * w).to(dtype), 4), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=0)


def test_a_matrix_of_rank_one_has_stable_rank_one_and_no_second_direction():
    w = torch.outer(torch.arange(1.0, 41.0), torch.linspace(-1, 2, 30))[None]
    found = spectrum(w, 4)
    assert found.stable_rank.item() == pytest.approx(1.0, abs=1e-5)
    assert found.energy.item() == pytest.approx(1.0, abs=1e-5)
    assert found.rest_rank.isnan()
    assert spectrum(w[:, :, :1], 4).rest_rank.isnan()


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf])
def test_a_matrix_without_a_spectrum_gives_nan_and_leaves_its_neighbours_alone(bad):
    w = torch.randn(3, 12, 9, generator=torch.Generator().manual_seed(3))
    alone = spectrum(w[:1], 4)
    w[1] = bad
    for found, right in zip(spectrum(w, 4), alone, strict=True):
        assert found[1].isnan() and torch.equal(found[0], right[0])
