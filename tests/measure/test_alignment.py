"""Alignment: planted neurons are found, chance is not, and p-values mean what they say."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from joma.measure import alignment
from joma.measure.alignment import align, peak_activation

SMALL = {"num_shuffles": 20}  # enough where the control is not what is tested
SINGLE = 2e-6  # shuffles are multiplied in single precision: a few of its units for sums of up to a hundred terms
seeds = st.integers(0, 10**6)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def independent(generator, num_samples=120, num_latents=6, num_neurons=60):
    """Sparse binary latents, and rectified neurons that know nothing of them."""
    latents = torch.rand(num_samples, num_latents, generator=generator) < 0.3
    return latents, torch.randn(num_samples, num_neurons, generator=generator).relu()


def planted(generator, strength):
    """The same with latent s written into neuron 3s + 1."""
    latents, activations = independent(generator)
    activations[:, 1 : 3 * latents.shape[1] : 3] += strength * latents
    return latents, activations


def correlations(latents, activations):
    return np.corrcoef(latents.T, activations.T)[: latents.shape[1], latents.shape[1] :]


def test_planted_neurons_are_found():
    latents, activations = planted(seeded(0), 3.0)
    found = align(latents, activations, generator=seeded(1))
    assert found.latent.tolist() == list(range(6))
    assert found.neuron.tolist() == found.matched.neuron.tolist() == [1, 4, 7, 10, 13, 16]
    # Signal of variance 9 · 0.21 on a rectified normal of variance 0.34: correlation √(1.89 / 2.23) = 0.92.
    assert found.average == pytest.approx(0.92, abs=0.02)
    assert found.shuffled.average < 0.4 and found.shuffled.p_value == pytest.approx(1 / 201)


@given(seeds, st.integers(4, 30), st.integers(1, 4), st.integers(1, 5))
def test_the_best_neurons_and_the_best_matching_are_those_of_a_loop(seed, num_samples, num_latents, num_neurons):
    generator = seeded(seed)
    latents, activations = (
        torch.randn(num_samples, n, generator=generator).double() for n in (num_latents, num_neurons)
    )
    found = align(latents, activations, generator=generator, **SMALL)
    table = correlations(latents, activations)
    assert found.neuron.tolist() == table.argmax(axis=1).tolist()
    np.testing.assert_allclose(found.correlation, table.max(axis=1), atol=1e-12)
    assert found.average == pytest.approx(table.max(axis=1).mean(), abs=1e-12)
    matched, wide = found.matched, table if num_latents <= num_neurons else table.T
    choices = itertools.permutations(range(wide.shape[1]), len(wide))
    totals = [sum(wide[i, j] for i, j in enumerate(choice)) for choice in choices]
    assert float(matched.correlation.sum()) == pytest.approx(max(totals), abs=1e-12)
    assert len(set(matched.neuron.tolist())) == len(matched.latent) == min(num_latents, num_neurons)
    np.testing.assert_allclose(matched.correlation, table[matched.latent, matched.neuron], atol=1e-12)


@settings(max_examples=10)
@given(seeds)
def test_scales_names_and_groups_of_one_sample_do_not_matter(seed):
    latents, activations = (tensor.double() for tensor in planted(seeded(seed), 1.0))
    before = align(latents, activations, generator=seeded(1), **SMALL)
    scale, offset = torch.rand(2, 60, generator=seeded(seed)).double() * 9 + 0.1
    neurons, names = torch.randperm(60, generator=seeded(seed)), torch.randperm(6, generator=seeded(seed))
    moved = (activations * scale + offset)[:, neurons]
    after = align(7 - 2 * (3 - latents)[:, names], moved, generator=seeded(1), **SMALL)
    grouped = align(latents, activations, groups=torch.arange(120), generator=seeded(1), **SMALL)
    numbers = [[each.average, each.matched.average, each.shuffled.average] for each in (before, after, grouped)]
    np.testing.assert_allclose(numbers, [numbers[0]] * 3, atol=SINGLE)
    assert before.shuffled.p_value == after.shuffled.p_value == grouped.shuffled.p_value
    assert neurons[after.neuron].tolist() == before.neuron[names].tolist()


def test_the_best_of_many_grows_with_their_number_and_the_control_with_it():
    few, many = (align(*independent(seeded(4), num_neurons=size), generator=seeded(5)) for size in (10, 1000))
    # Correlations spread by 1/√120, and the largest of 10 and of 1000 normals is 1.54 and 3.24 on average.
    assert few.shuffled.average == pytest.approx(0.14, abs=0.02)
    assert many.shuffled.average == pytest.approx(0.30, abs=0.02)
    assert many.average > few.average + 0.1
    assert all(abs(found.average - found.shuffled.average) < 0.05 for found in (few, many))


def test_false_positives_come_at_the_nominal_rate():
    values = [
        align(*independent(generator), generator=generator, num_shuffles=99).shuffled.p_value
        for generator in map(seeded, range(100))
    ]
    for level in (0.05, 0.2, 0.5):
        low, high = binom.ppf([1e-3, 1 - 1e-3], 100, level)
        assert low <= sum(value <= level for value in values) <= high


def test_repeated_inputs_are_not_independent_samples():
    """Twenty inputs, drawn again and again: what a network does with each is independent of the latents."""
    grouped, single = [], []
    for seed in range(25):
        generator = seeded(seed)
        latents, activations = independent(generator, num_samples=20)
        number = torch.randint(20, (120,), generator=generator)
        for values, groups in ((grouped, number), (single, None)):
            found = align(latents[number], activations[number], groups=groups, generator=seeded(seed), **SMALL)
            values.append(found.shuffled.p_value)
    low, high = binom.ppf([1e-3, 1 - 1e-3], 25, 0.2)
    assert low <= sum(value <= 0.2 for value in grouped) <= high
    assert max(single) < 0.05


def test_constant_latents_and_dead_neurons_are_left_out_and_counted():
    latents, activations = planted(seeded(0), 3.0)
    expected = align(latents[:, [0, 2, 3, 4, 5]], activations, generator=seeded(1), **SMALL)
    latents[:, 1] = True
    found = align(latents, torch.cat([torch.zeros(120, 2), activations], dim=1), generator=seeded(1), **SMALL)
    assert (found.num_constant_latents, found.num_dead_neurons) == (1, 2)
    assert found.latent.tolist() == [0, 2, 3, 4, 5]
    assert found.neuron.tolist() == [3, 9, 12, 15, 18]
    assert found.shuffled.average == pytest.approx(expected.shuffled.average, abs=1e-6)
    assert found.average == pytest.approx(expected.average, abs=1e-12)
    assert torch.isfinite(found.correlation).all()


def test_half_precision_is_read_as_it_is_and_equal_seeds_give_equal_results():
    dtype = torch.bfloat16
    latents, activations = planted(seeded(0), 3.0)
    half, whole, other = (
        align(latents, activations.to(dtype).to(kind), generator=seeded(seed), **SMALL)
        for kind, seed in ((dtype, 1), (torch.float64, 1), (dtype, 2))
    )
    assert half.average == whole.average and half.shuffled.average == whole.shuffled.average
    assert half.shuffled.average != other.shuffled.average


def test_a_neuron_that_moves_by_rounding_alone_is_dead():
    latents, activations = planted(seeded(0), 1.0)
    noise = activations.abs().max() * torch.finfo(torch.float32).eps * latents[:, :1]  # would correlate perfectly
    alone, dead, seen = (
        align(latents, torch.cat([activations, *more], dim=1), generator=seeded(1), **SMALL)
        for more in ([], [1 + 4 * noise], [1 + 1000 * noise])
    )
    assert dead.num_dead_neurons == alone.num_dead_neurons + 1
    assert dead.average == alone.average < seen.average


@given(seeds)
def test_groups_are_dealt_as_a_whole_and_chunks_do_not_show(seed):
    """Against NumPy sample by sample."""
    generator = seeded(seed)
    of_group = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    activations = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    member = torch.cat([torch.arange(6), torch.randint(6, (14,), generator=generator)])
    found = align(of_group[member], activations, groups=10 * member + 3, generator=seeded(1), **SMALL)
    np.testing.assert_allclose(found.correlation, correlations(of_group[member], activations).max(axis=1), atol=1e-12)
    generator, best = seeded(1), []
    for _ in range(20):
        dealt = of_group[torch.randperm(6, generator=generator)][member]
        best.append(correlations(dealt, activations).max(axis=1))
    np.testing.assert_allclose(found.shuffled.correlation, np.mean(best, axis=0), atol=SINGLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "CHUNK_BYTES", 1000)
        cut = align(of_group[member], activations, groups=10 * member + 3, generator=seeded(1), **SMALL)
    np.testing.assert_allclose(cut.correlation, found.correlation, atol=1e-14)
    np.testing.assert_allclose(cut.shuffled.correlation, found.shuffled.correlation, atol=SINGLE)


@given(seeds)
def test_the_peak_is_that_of_a_loop(seed):
    hidden = torch.randn(4, 5, 3, generator=seeded(seed))
    mask = torch.rand(4, 5, generator=seeded(seed)) < 0.5
    mask[:, 2] = True
    for n, j in itertools.product(range(4), range(3)):
        assert peak_activation(hidden)[n, j] == max(hidden[n, i, j] for i in range(5))
        assert peak_activation(hidden, mask)[n, j] == max(hidden[n, i, j] for i in range(5) if mask[n, i])
