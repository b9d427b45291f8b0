"""Correlations of resamples against NumPy's, sample by sample and neuron by neuron."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.measure import alignment
from joma.measure.alignment import Correlations, Resamples, Units

SINGLE = 2e-6
"""Resamples are multiplied in single precision: a few of its units for sums of up to a hundred terms."""


def draw(seed: int, num_samples: int, num_latents: int, num_neurons: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(num_samples, num_latents, generator=generator, dtype=torch.float64)
    return latents, torch.randn(num_samples, num_neurons, generator=generator, dtype=torch.float64)


def naive_best(latents: torch.Tensor, activations: torch.Tensor, weights: torch.Tensor) -> list[float]:
    found = []
    for y in latents.numpy().T:
        pairs = [np.cov(y, h, aweights=weights.numpy(), ddof=0) for h in activations.numpy().T]
        found.append(max(c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]) for c in pairs))
    return found


@given(st.integers(0, 10**6), st.integers(3, 20), st.integers(1, 4), st.integers(1, 6))
def test_the_table_is_pearsons(seed, num_samples, num_latents, num_neurons):
    latents, activations = draw(seed, num_samples, num_latents, num_neurons)
    table = Correlations.of("h", activations, Units.of(latents, None, latents.device), absolute=False).table()
    expected = np.corrcoef(latents.T, activations.T)[:num_latents, num_latents:]
    np.testing.assert_allclose(table, expected, atol=1e-12)


@given(st.integers(0, 10**6), st.booleans())
def test_resamples_are_weighted_correlations(seed, absolute):
    latents, activations = draw(seed, 15, 3, 5)
    units = Units.of(latents, None, latents.device)
    for resamples in (units.shuffles(2, torch.Generator()), units.bootstraps(2, torch.Generator())):
        found = Correlations.of("h", activations, units, absolute=absolute).best(resamples)
        both = torch.cat([activations, -activations], dim=1) if absolute else activations
        for order, weights, row in zip(resamples.order, resamples.weights, found, strict=True):
            np.testing.assert_allclose(row, naive_best(latents[order], both, weights), atol=SINGLE)


@given(st.integers(0, 10**6))
def test_groups_are_dealt_and_weighed_as_a_whole(seed):
    of_group, _ = draw(seed, 6, 2, 1)
    member = torch.cat([torch.arange(6), torch.randint(6, (14,), generator=torch.Generator().manual_seed(seed))])
    _, activations = draw(seed + 1, 20, 1, 4)
    units = Units.of(of_group[member], 10 * member + 3, of_group.device)
    network = Correlations.of("h", activations, units, absolute=False)
    whole = Correlations.of("h", activations, Units.of(of_group[member], None, of_group.device), absolute=False)
    np.testing.assert_allclose(network.table(), whole.table(), atol=1e-12)
    for resamples in (units.shuffles(2, torch.Generator()), units.bootstraps(2, torch.Generator())):
        for order, weights in zip(resamples.order, resamples.weights, strict=True):
            dealt, shares = of_group[order][member], (weights / units.weights)[member]
            one = Resamples(order=order[None], weights=weights[None])
            np.testing.assert_allclose(network.best(one)[0], naive_best(dealt, activations, shares), atol=SINGLE)


def test_bootstraps_leave_every_sample_some_weight():
    units = Units.of(torch.eye(5), None, torch.device("cpu"))
    weights = units.bootstraps(500, torch.Generator().manual_seed(0)).weights
    assert float(weights.min()) > 0
    np.testing.assert_allclose(weights.sum(dim=1), 1.0)
    # Dirichlet(1, …, 1) has variance (1/5)(4/5)/6 = 0.0267; 2500 draws know it to some 5 %.
    assert float(weights.var()) == pytest.approx(0.0267, rel=0.15)


def test_chunks_do_not_show(monkeypatch):
    latents, activations = draw(0, 30, 3, 17)
    units = Units.of(latents, None, latents.device)
    network, shuffles = Correlations.of("h", activations, units, absolute=False), units.shuffles(7, torch.Generator())
    whole, best = network.table(), network.best(shuffles)
    monkeypatch.setattr(alignment, "CHUNK_BYTES", 1000)
    np.testing.assert_allclose(network.table(), whole, atol=1e-14)
    np.testing.assert_allclose(network.best(shuffles), best, atol=SINGLE)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_scale_of_activations_does_not_matter(scale):
    latents, activations = draw(3, 40, 2, 6)
    units = Units.of(latents, None, latents.device)
    expected = Correlations.of("h", activations, units, absolute=False).table()
    scaled = Correlations.of("h", (scale * activations).float(), units, absolute=False).table()
    np.testing.assert_allclose(scaled, expected, atol=1e-6)  # activations were rounded to single precision
