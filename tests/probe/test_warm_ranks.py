"""Ranks of weights that move, followed from one measurement to the next."""

import math

import models
import pytest
import torch

from joma.measure.rank import stable_rank
from joma.probe.measures import Flagged, Matrix, WarmRanks
from joma.probe.watch import watch


def test_warm_ranks_follow_weights_that_move():
    generator = torch.Generator().manual_seed(0)
    ranks = WarmRanks()
    weight = torch.randn(300, 220, generator=generator)
    for _ in range(10):
        weight = weight + 0.3 * torch.randn(300, 220, generator=generator)
        (found,) = ranks([Matrix(site="w", layer=0, weight=weight)])
        exact = stable_rank(weight).item()
        assert found["stable_rank"].value == pytest.approx(exact, rel=0.06)
        assert found["stable_rank"].value >= exact * (1 - 1e-6)  # a norm from products never exceeds the true one
        assert bool(found["stable_rank"].flag) == (found["rank_residual"] > 0.02)


def test_warm_ranks_notice_when_another_singular_value_takes_the_lead():
    """Two values cross; products from the vector of the old one alone would never find the other but for rounding."""
    generator = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(300, 200, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(200, 200, generator=generator))
    ranks = WarmRanks()
    for step in range(30):
        values = torch.linspace(0, 1, 200)
        values[:2] = torch.tensor([2.0 - 0.02 * step, 1.4 + 0.02 * step])
        (found,) = ranks([Matrix(site="w", layer=0, weight=left @ torch.diag(values) @ right.T)])
        assert found["spectral_norm"].value == pytest.approx(values.max().item(), rel=0.05)
    assert found["spectral_norm"].value == pytest.approx(values.max().item(), rel=1e-4)


def test_matrices_without_a_rank_are_flagged_and_ranked_again_later():
    ranks = WarmRanks()
    (found,) = ranks([Matrix(site="w", layer=0, weight=torch.zeros(4, 3))])
    assert math.isnan(found["stable_rank"].value) and found["spectral_norm"] == Flagged(0.0, "every entry is 0")
    (found,) = ranks([Matrix(site="w", layer=0, weight=torch.full((4, 3), torch.nan))])
    assert math.isnan(found["spectral_norm"].value)
    assert found["stable_rank"].flag == "12 of 12 entries are NaN or infinite"
    for size in (3, 2):  # the second has another shape
        (found,) = ranks([Matrix(site="w", layer=0, weight=torch.eye(size))])
        assert found["stable_rank"].value == pytest.approx(size)


def test_ranks_of_many_matrices_are_those_of_each():
    """Two shapes, one of them lying, one matrix that was measured before, one without a rank."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (60, 40), "b": (60, 40), "lying": (40, 60), "c": (50, 30), "known": (60, 40)}
    matrices = [
        Matrix(site=site, layer=0, weight=torch.randn(shape, generator=generator)) for site, shape in shapes.items()
    ]
    matrices.append(Matrix(site="zero", layer=0, weight=torch.zeros(60, 40)))
    together, apart = WarmRanks(), WarmRanks()
    for ranks in (together, apart):
        ranks([matrices[4]])
    for found, matrix in zip(together(matrices), matrices, strict=True):
        (alone,) = apart([matrix])
        assert found.keys() == alone.keys()
        for name, value in found.items():
            one, other = (v.value if isinstance(v, Flagged) else v for v in (value, alone[name]))
            assert one == pytest.approx(other, rel=1e-4, nan_ok=True), (matrix.site, name)


def test_a_matrix_that_cannot_be_measured_does_not_spoil_the_others(monkeypatch):
    model = models.HandWritten()
    honest = WarmRanks.__call__

    def fragile(self, matrices):
        if any(matrix.layer == 1 for matrix in matrices):
            raise RuntimeError("broken")
        return honest(self, matrices)

    monkeypatch.setattr(WarmRanks, "__call__", fragile)
    with watch(model, every=1, measures="ranks") as seen:
        seen.step(0)
    assert set(seen.frame().query("kind == 'mlp'")["layer"]) == {0}
    assert seen.events()[["site", "message"]].to_numpy().tolist() == [["blocks.1.mlp.0", "RuntimeError: broken"]]
